"""The metadata store on SQLite: the contract, durability, and what it refuses to open."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from tests.support.manual_clock import ManualClock
from tests.support.metadata_contract import NOW_MS, PARTITION, MetadataContract, Opened, segment


class TestSQLite(MetadataContract):
    """The contract on a file."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'meta.db'}"


def test_store_is_durable_and_waits_for_another_process(tmp_path: Path) -> None:
    """ST-9: a write-ahead log, flushed at each commit; a writer waits for the lock."""
    path = tmp_path / "meta.db"
    made = Opened(f"sqlite:///{path}")
    made.copy(segment(0, 9))
    made.store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = MetadataStore(open_database(f"sqlite:///{path}"), ManualClock(NOW_MS))
    assert again.load(PARTITION).remote_end == 10
    assert again.partitions() == (PARTITION,)
    again.close()
    connection.close()


@pytest.mark.parametrize("url", ["sqlite://", "mysql://u:p@h/d", "nonsense"])
def test_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(InvalidError, match="url="):
        open_database(url)


def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    open_database(url).dispose()
    connection = sqlite3.connect(tmp_path / "meta.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(RefusedError, match="9999"):
        open_database(url)


def test_a_place_that_is_not_there_is_named_and_no_password_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="nowhere"):
        open_database(f"sqlite:///{tmp_path / 'nowhere' / 'meta.db'}")
    with pytest.raises(UnavailableError) as caught:
        open_database("postgresql://user:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
