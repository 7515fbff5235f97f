"""A partition of a live topic, most of whose log is in a remote tier in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keeplast.attach.held.publication import Publisher
from tests.support.attached_world import AttachedWorld


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AttachedWorld]:
    """A world with as many segments as the module's ``WORLD_SEGMENTS`` says, three without."""
    segments = getattr(request.module, "WORLD_SEGMENTS", 3)
    with closing(AttachedWorld(tmp_path, segments)) as made:
        yield made


@pytest.fixture
def publisher(world: AttachedWorld) -> Publisher:
    return world.claim()
