"""A database for the runs of a module, each of which empties it; a directory with a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.daemon_world import World
from tests.support.tier_world_stores import open_database_in_memory


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_database_in_memory()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An empty data directory; logs are released at the end."""
    world = World(tmp_path / "data")
    yield world
    for log in world.logs.values():
        log.close()
