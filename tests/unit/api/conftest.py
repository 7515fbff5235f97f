"""What tests of the verbs over places share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.api import attached_logs
from tests.support.commanded_world import asked_world
from tests.support.placed_logs import write_directory
from tests.support.verified_world import VerifiedWorld


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "data")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A partition of a live topic that was compacted once."""
    with asked_world(tmp_path_factory.mktemp("world"), attached_logs) as made:
        yield made
