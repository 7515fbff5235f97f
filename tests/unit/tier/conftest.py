"""What tests of the tier share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.metadata_contract import Opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    yield made
    made.store.close()
