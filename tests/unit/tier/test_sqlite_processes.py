"""ST-9: two processes on one SQLite file, and processes that are killed while they write to it."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import FencedError
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from tests.support.host_process import HostProcess, Place
from tests.support.metadata_contract import LINEAGE, PARTITION, Opened, new_id, segment
from tests.support.rival_hosts import place_of
from tests.support.waiting import SECONDS_MAX, wait_until

PAGE_BYTES = 4096
KILLS = 3


def place_on_sqlite(root: Path) -> Place:
    """Return a place whose partition is there, led at epoch 0 by ``a``, with one segment."""
    opened = Opened(f"sqlite:///{root / 'meta.db'}")
    opened.copy(segment(0, 9))
    opened.store.close()
    place = place_of(f"sqlite:///{root / 'meta.db'}", f"file://{root / 'o'}", root, "t", {})
    return replace(place, partition=PARTITION)


def open_store(root: Path) -> MetadataStore:
    return MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), SystemClock())


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start ``act``; its error, or None, is in the list when the thread has ended."""
    found: list[object] = []

    def run() -> None:
        try:
            act()
            found.append(None)
        except FencedError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "goes on"])
def test_st_9_second_process_waits_and_then_goes_on_or_is_fenced(
    tmp_path: Path, is_killed: bool
) -> None:
    other = HostProcess(place_on_sqlite(tmp_path), "b")
    store = open_store(tmp_path)
    store.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0)
    try:
        other.call_until("in take_over", 1, "own")
        thread, found = in_thread(
            lambda: store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
        )
        time.sleep(0.3)
        assert [] == found
        if is_killed:
            other.kill()
        else:
            other.go()
            other.outcome()
        thread.join(SECONDS_MAX)
        (error,) = found
        state = store.load(PARTITION)
        if is_killed:
            assert (None, "a", 10) == (error, state.owner, state.first_dirty())
        else:
            assert isinstance(error, FencedError)
            assert ("b", 0) == (state.owner, state.first_dirty())
    finally:
        other.kill()
        store.close()


def publish_forever(url: str) -> None:
    """Commit, and write the log back into the database after each commit, until killed."""
    store = MetadataStore(open_database(url), SystemClock())
    store.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    base = store.load(PARTITION).remote_end
    while True:
        made = segment(base, base + 9)
        store.commit_copy(PARTITION, new_id(), epoch=0, segment=made, lineage=LINEAGE)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        base += 10


def has_copied(store: MetadataStore, end: int) -> bool:
    return store.load(PARTITION).remote_end >= end


def test_st_9_kills_while_the_log_is_written_back_lose_nothing(tmp_path: Path) -> None:
    place_on_sqlite(tmp_path)
    context = multiprocessing.get_context("forkserver")
    seen = 10
    for _ in range(KILLS):
        process = context.Process(
            target=publish_forever, args=(f"sqlite:///{tmp_path / 'meta.db'}",), daemon=True
        )
        process.start()
        store = open_store(tmp_path)
        wait_until(partial(has_copied, store, seen + 20), by=process.is_alive)
        process.kill()
        process.join(SECONDS_MAX)
        state = store.load(PARTITION)
        assert state.remote_end >= seen + 20
        assert len(state.routes) * 10 == state.remote_end
        assert state.remote_bytes == state.effective_bytes()
        with sqlite3.connect(tmp_path / "meta.db") as connection:
            assert [("ok",)] == connection.execute("PRAGMA integrity_check").fetchall()
        connection.close()
        seen = state.remote_end
        store.close()


def test_st_9_log_that_was_written_back_by_half_is_read_whole(tmp_path: Path) -> None:
    """Every number of pages that a killed process may have written back, one after another."""
    made = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    for number in range(5):
        made.copy(segment(number * 10, number * 10 + 9))
    expected = made.state()
    database, log = tmp_path / "meta.db", tmp_path / "meta.db-wal"
    before, written = database.read_bytes(), log.read_bytes()
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    made.store.close()
    after = database.read_bytes()
    pages = range(0, len(after), PAGE_BYTES)
    changed = [at for at in pages if before[at : at + PAGE_BYTES] != after[at : at + PAGE_BYTES]]
    assert len(changed) > 3
    for count in range(len(changed) + 1):
        partly = bytearray(before.ljust(len(after) if count else len(before), b"\0"))
        for at in changed[:count]:
            partly[at : at + PAGE_BYTES] = after[at : at + PAGE_BYTES]
        directory = tmp_path / f"after-{count}"
        directory.mkdir()
        (directory / "meta.db").write_bytes(partly)
        (directory / "meta.db-wal").write_bytes(written)
        store = open_store(directory)
        assert expected == store.load(PARTITION)
        store.close()
        shutil.rmtree(directory)
