"""What tests of the verbs over places share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.placed_logs import write_directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "data")
