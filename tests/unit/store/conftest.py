"""What tests of stores share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.keyed_history import KeyedHistory


@pytest.fixture
def history(tmp_path: Path) -> KeyedHistory:
    return KeyedHistory(tmp_path)
