"""A database for the runs of a module: each run begins by emptying it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.tier_world_stores import open_database_in_memory


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_database_in_memory()
