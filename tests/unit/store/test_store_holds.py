"""A hold in a store keeps rounds of every host from passing its point, until it is over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from keeplast.errors import RefusedError
from tests.support.hold_contract import HeldStore, HoldContract


class TestSqlite(HoldContract):
    """On a file of this host."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        (tmp_path / "world").mkdir()
        return f"sqlite:///{tmp_path / 'world' / 'meta.db'}"


def test_a_backup_that_lacks_a_hold_is_refused_by_its_mark(tmp_path: Path) -> None:
    """Of what happened since it was taken, the hold is all."""
    path, backup = tmp_path / "world" / "meta.db", tmp_path / "backup.db"
    path.parent.mkdir()
    held = HeldStore(path.parent, f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", [str(backup)])
    held.hold(offset=12)
    held.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    backup.replace(path)
    with held.world.open() as store:
        with pytest.raises(RefusedError, match="the metadata is older than its objects"):
            store.clean(held.partition, force=True)
        assert () == store.holds.all()


def test_holds_of_an_earlier_incarnation_do_not_reach_the_next(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    held = HeldStore(tmp_path / "world", f"sqlite:///{tmp_path / 'world' / 'meta.db'}")
    held.hold(offset=12)
    held.store.removals.forget(held.partition, grace_ms=0)
    directory = held.world.logs[0].directory
    held.store.import_directory(held.partition, directory, {"cleanup.policy": "compact"})
    assert () == held.store.state(held.partition).holds
    assert 20 == held.clean().end_offset
    held.close()
