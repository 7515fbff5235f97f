"""The example that captures a real PostgreSQL's tables: as it is run, and at its borders."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import keeplast
from keeplast.errors import InvalidError, RefusedError

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[2] / "examples/postgres-cdc"
MODULES = ("pgoutput", "source", "topics", "capture")
TABLE = "public.t"
State = dict[str, dict[str, str | None]]


class KilledError(BaseException):
    """Ends a call as a kill would: nothing is tidied up."""


@pytest.fixture
def cdc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


class World:
    """A table, its topic, and what both say."""

    def __init__(self, cdc: Any, url: str, data: Path) -> None:
        self.cdc, self.url, self.data = cdc, url, data
        self.connection: psycopg.Connection = cdc.source.connect(url)

    def execute(self, *queries: str) -> None:
        for query in queries:
            self.connection.execute(query.encode())

    def capture(self, step: Callable[[str], None] | None = None, data: Path | None = None) -> Any:
        steps = {} if step is None else {"step": step}
        with self.cdc.source.connect(self.url) as connection:
            return self.cdc.capture.capture(connection, data or self.data, [TABLE], **steps)

    def selected(self) -> list[str]:
        rows = self.cdc.source.printed_rows(self.connection.execute(f"SELECT * FROM {TABLE}"))
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    def held(self, ends: dict[str, dict[str, int]] | None = None) -> list[str]:
        rows = []
        for number in range(self.cdc.topics.PARTITIONS):
            end = None if ends is None else ends[TABLE][str(number)]
            log = keeplast.open_log(self.data / f"{TABLE}-{number}")
            for key, record in log.state(end_offset=end).items():
                row = json.loads(record.value or b"")
                assert json.loads(key).items() <= row.items()
                rows.append(json.dumps(row, sort_keys=True))
        return sorted(rows)

    def points(self) -> dict[str, tuple[int, int, dict[str, dict[str, int]]]]:
        found: dict[str, tuple[int, int, dict[str, dict[str, int]]]]
        found = self.cdc.topics.points_in(self.data)
        return found

    def close(self) -> None:
        self.connection.close()
        with self.cdc.source.connect(self.url) as connection:
            self.cdc.source.Source(connection, ()).drop()


@pytest.fixture
def world(cdc: Any, database: str, tmp_path: Path) -> Iterator[World]:
    made = World(cdc, database, tmp_path / "data")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, word text)")
    made.execute("INSERT INTO t SELECT n, 'first ' || n FROM generate_series(1, 20) AS n")
    yield made
    made.close()


def test_the_topics_are_what_the_tables_say(database: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py"), database, str(tmp_path / "try")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stdout + done.stderr
    assert 4 == done.stdout.count("and now: ")
    assert "equal: the export is what SELECT * said before the ALTER" in done.stdout
    assert "written twice, and are folded" in done.stdout
    with psycopg.connect(database) as connection:
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        assert (0,) == connection.execute(slots).fetchone()


def test_a_crash_after_any_step_loses_nothing_and_no_point_lies(world: World) -> None:
    world.capture()
    for number, killed_at in enumerate(world.cdc.capture.STEPS):

        def step(name: str, killed_at: str = killed_at) -> None:
            if name == killed_at:
                raise KilledError

        world.execute(
            f"UPDATE t SET word = 'twice {number}' WHERE id % 3 = 0",
            f"DELETE FROM t WHERE id = {number + 1}",
            f"INSERT INTO t VALUES ({100 + number}, NULL)",
        )
        with world.connection.transaction():
            world.cdc.source.tell_point(world.connection, killed_at)
        then = world.selected()
        world.execute(f"UPDATE t SET id = id + 1000 WHERE id = {100 + number}", "TRUNCATE t")
        world.execute(f"INSERT INTO t SELECT n, 'again' FROM generate_series(1, {20 + number}) n")
        with pytest.raises(KilledError):
            world.capture(step)
        world.capture()
        assert world.selected() == world.held(), killed_at
        _, _, ends = world.points()[killed_at]
        assert then == world.held(ends), killed_at


def test_changes_that_the_slot_lacks_are_read_from_the_tables(world: World, tmp_path: Path) -> None:
    assert world.capture().took_tables
    assert not world.capture().took_tables
    earlier = tmp_path / "earlier"
    shutil.copytree(world.data, earlier)
    world.execute("DELETE FROM t WHERE id = 7", "UPDATE t SET word = 'new' WHERE id = 8")
    world.capture()
    # A directory that came back from a backup: the slot has nothing of the delete any more.
    world.data = earlier
    assert world.capture().took_tables
    assert world.selected() == world.held()
    # Somebody else takes from the same slot.
    world.execute("DELETE FROM t WHERE id = 9")
    assert world.capture(data=tmp_path / "other").took_tables
    world.execute("INSERT INTO t VALUES (9, 'back')")
    assert world.capture().took_tables
    assert world.selected() == world.held()
    assert not world.capture().took_tables


def test_a_table_is_sent_again_when_it_is_altered(world: World) -> None:
    world.capture()
    for alter in (
        "ADD extra int DEFAULT 5", "RENAME word TO text", "ALTER id TYPE numeric(6, 2)",
        "RENAME id TO number", "DROP text",
        "DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (extra, number)",
    ):  # fmt: skip
        world.execute(f"ALTER TABLE t {alter}")
        world.capture()
        assert world.selected() == world.held(), alter
    # All at once, and all that came before it is decoded behind it.
    world.execute("INSERT INTO t VALUES (90, 1)", "ALTER TABLE t RENAME number TO id")
    world.execute("DELETE FROM t WHERE id = 90", "ALTER TABLE t ADD note text DEFAULT 'x'")
    world.capture()
    assert world.selected() == world.held()


def test_rows_come_whole_and_as_they_are_printed(world: World) -> None:
    large = "".join(chr(0x20 + n * 7919 % 0xD000) for n in range(9_000))
    world.execute(
        "CREATE TYPE mood AS ENUM ('well', 'not')",
        "ALTER TABLE t ADD at timestamptz, ADD raw bytea, ADD many int[], ADD how mood",
        "ALTER TABLE t ADD big text",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    )
    world.capture()
    world.connection.execute(
        "INSERT INTO t VALUES (500, %s, '2026-11-23 05:00+02', %s, '{1,NULL}', 'well', %s)",
        ['"quoted\\", {braces}\n', b"\x00\xff", large],
    )
    world.execute(
        "INSERT INTO t (id, word) VALUES (501, '')",
        "UPDATE t SET how = 'not' WHERE id = 500",
    )
    world.capture()
    (row,) = [row for row in map(json.loads, world.held()) if row["id"] == "500"]
    assert large == row["big"]
    assert "2026-11-23 03:00:00+00" == row["at"]
    assert world.selected() == world.held()


def test_messages_of_others_in_the_log_are_passed_over(world: World) -> None:
    world.capture()
    at = world.capture().lsn
    message = "SELECT pg_logical_emit_message(false, 'of somebody else', 'and of no transaction')"
    # Something that is committed, so that the message is on the server's disk too.
    world.execute(message, "CREATE TABLE not_captured ()")
    done = world.capture()
    assert (0, 0) == (done.transactions, done.records)
    assert at != done.lsn
    assert done.lsn == world.capture().lsn
    world.execute(message, "UPDATE t SET word = 'new'", message, "CREATE TABLE neither ()")
    assert 20 == world.capture().records
    assert world.selected() == world.held()


def test_records_torn_by_a_crash_are_cut_and_come_again(world: World) -> None:
    world.capture()
    logs = [world.data / f"{TABLE}-{number}" for number in range(world.cdc.topics.PARTITIONS)]
    with (max(logs[0].glob("*.log"))).open("ab") as log:
        log.write(b"\0\0\0\0half a batch")
    world.execute("UPDATE t SET word = 'all'")
    with pytest.warns(UserWarning, match="torn at byte"):
        world.capture()
    assert world.selected() == world.held()
    # What was confirmed is no tail: without it the server would not send it again.
    (path,) = logs[1].glob("*.log")
    path.write_bytes(path.read_bytes()[:-1])
    world.execute("UPDATE t SET word = 'more'")
    with (
        pytest.warns(UserWarning, match="torn at byte"),
        pytest.raises(RefusedError, match="stable storage"),
    ):
        world.capture()


def test_tables_that_cannot_be_followed_are_refused(world: World, tmp_path: Path) -> None:
    world.execute(
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        'CREATE TABLE "a b" (id int PRIMARY KEY)', 'CREATE TABLE "a.b" (id int PRIMARY KEY)',
    )  # fmt: skip
    for table in ("keyless", "deferred", "made", '"a b"', '"a.b"', "missing"):
        with pytest.raises(InvalidError):
            world.cdc.capture.capture(world.connection, tmp_path / "none", [table])
    world.capture()
    world.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(RefusedError, match="captured already"):
        world.cdc.capture.capture(world.connection, world.data, [TABLE, "other"])
    with pytest.raises(psycopg.errors.RaiseException, match="primary key"):
        world.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    world.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(psycopg.errors.RaiseException, match="READ COMMITTED"):
        world.execute("ALTER TABLE t ADD more int")
    world.execute("RESET default_transaction_isolation")
    world.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET word = 'part'")
    with pytest.raises(RefusedError, match="REPLICA IDENTITY"):
        world.capture()


def test_settings_that_do_not_compact_a_topic_are_said(world: World) -> None:
    world.data.mkdir()
    (world.data / "keeplast.toml").write_text(
        '[topic."checkpoints"]\n"cleanup.policy" = "compact"\n'
    )
    with pytest.raises(InvalidError, match=r"topic=public\.t"):
        world.capture()


def test_the_demo_leaves_a_database_alone_that_is_in_use(world: World, tmp_path: Path) -> None:
    world.capture()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py"), world.url, str(tmp_path / "try")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 1 == done.returncode
    assert "empty database" in done.stderr
    assert not world.capture().took_tables


def test_topics_of_another_database_are_left_alone(
    world: World, new_database: Callable[[], str]
) -> None:
    world.capture()
    other = World(world.cdc, new_database(), world.data)
    other.execute("CREATE TABLE t (id int PRIMARY KEY, word text)")
    with pytest.raises(RefusedError, match="another database"):
        other.capture()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert (0,) == other.connection.execute(slots).fetchone()
    other.close()
    assert world.selected() == world.held()
