"""Three writers, a rewritten table, rounds, a crash: the topics stay what ``SELECT *`` says.

    python examples/postgres-cdc/demo.py URL DIRECTORY

URL is that of an empty database of a server with ``wal_level = logical``, as a superuser. While
the writers insert, update, delete and change keys in two tables, points are made: a ``SELECT *`` of
both tables, and a name for the commit that it stands at. The state of the topics as of each point
must be those rows, whatever was captured twice and however often the logs were compacted.

The rule: a point keeps writers out while it is made, by ``LOCK TABLE … IN SHARE MODE``. The order
in which commits become visible is not that in which they are logged, so that a snapshot alone
stands at no position of the log.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
from capture import Captured, capture
from source import Printed, Source, connect, printed_rows, tell_point
from topics import CHECKPOINTS, PARTITIONS, points_in

import keeplast
from keeplast.errors import CompactionError, InvalidError

SEED, WRITERS, ROWS, CHANGES_MAX, NOTE_CHARS = 16, 3, 40, 4, 3_000
TRANSACTIONS_MIN, TRANSACTIONS_MAX, PAUSE_SECONDS = 20, 1_000, 0.02
TABLES = ("shop.items", "shop.stock")
SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.items (id int PRIMARY KEY, name text, price int, note text);
-- Out of line, so that an update that leaves a note alone does not send it.
ALTER TABLE shop.items ALTER note SET STORAGE EXTERNAL;
CREATE TABLE shop.stock (place text, item int, amount int, PRIMARY KEY (place, item));
INSERT INTO shop.items SELECT n, 'first ' || n, n, NULL FROM generate_series(0, 199) AS n;
"""
USED = """
SELECT EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema'))
"""
State = dict[str, list[Printed]]
"""The rows of each table, in one order."""


class Load:
    """Writers, each with rows of its own, so that they meet in the log and not in a row."""

    def __init__(self, url: str) -> None:
        """Begin nothing."""
        self._url = url
        self._round = 0
        self._failed: list[BaseException] = []
        self._is_over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have all of them write meanwhile, some transactions at least."""
        self._round += 1
        self._is_over.clear()
        threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()
        if self._failed:
            raise self._failed[0]

    def _write(self, number: int) -> None:
        dice = random.Random(f"{SEED} {number} {self._round}")
        try:
            with connect(self._url) as connection:
                for done in range(TRANSACTIONS_MAX):
                    if done >= TRANSACTIONS_MIN and self._is_over.wait(PAUSE_SECONDS):
                        break
                    with connection.transaction():
                        # Items before stock, in every transaction: nobody waits for each other.
                        for change in (_change_item, _change_stock):
                            for _ in range(dice.randrange(CHANGES_MAX)):
                                change(connection, dice, number)
        except BaseException as error:  # noqa: BLE001 - told where the threads are waited for
            self._failed.append(error)


def _change_item(connection: psycopg.Connection, dice: random.Random, writer: int) -> None:
    """Insert, change, delete or rename an item."""
    item, other = (writer + WRITERS * dice.randrange(ROWS) for _ in range(2))
    price, letters = dice.randrange(1_000), "0123456789abcdef\u00e9\u4e16"
    note = "".join(dice.choices(letters, k=NOTE_CHARS)) if dice.random() < 0.2 else None
    match dice.randrange(5):
        case 0 | 1:
            connection.execute(
                "INSERT INTO shop.items (id, name, price, note) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (id) DO UPDATE SET name = excluded.name, note = excluded.note",
                [item, f"item {price}", price, note],
            )
        case 2:
            connection.execute("UPDATE shop.items SET price = %s WHERE id = %s", [price, item])
        case 3:
            connection.execute("DELETE FROM shop.items WHERE id = %s", [item])
        case _:
            connection.execute(
                "UPDATE shop.items SET id = %s WHERE id = %s "
                "AND NOT EXISTS (SELECT FROM shop.items WHERE id = %s)",
                [other, item, other],
            )


def _change_stock(connection: psycopg.Connection, dice: random.Random, writer: int) -> None:
    """Put something on a shelf, or take all of it away."""
    place, item = dice.choice(("north", "south")), writer + WRITERS * dice.randrange(ROWS)
    if dice.random() < 0.3:
        query = "DELETE FROM shop.stock WHERE place = %s AND item = %s"
        connection.execute(query, [place, item])
    else:
        connection.execute(
            "INSERT INTO shop.stock VALUES (%s, %s, %s) "
            "ON CONFLICT (place, item) DO UPDATE SET amount = excluded.amount",
            [place, item, dice.randrange(100)],
        )


def ordered(rows: list[Printed]) -> list[Printed]:
    """Return rows in one order, whoever gave them."""
    return sorted(rows, key=json.dumps)


def read_topics(data: Path, ends: dict[str, dict[str, int]] | None = None) -> State:
    """Return what the topics' state is, now or as of these offsets."""
    found: State = {}
    for topic in TABLES:
        rows = []
        for number in range(PARTITIONS):
            end = None if ends is None else ends[topic][str(number)]
            log = keeplast.open_log(data / f"{topic}-{number}")
            for key, record in log.state(end_offset=end).items():
                row = json.loads(record.value or b"")
                assert json.loads(key).items() <= row.items(), "a row lies under another's key"
                rows.append(row)
        found[topic] = ordered(rows)
    return found


class Story:
    """What was seen in the database, and what is looked at in the topics."""

    def __init__(self, url: str, directory: Path) -> None:
        """Make the tables; InvalidError when there is something, in the database or directory."""
        self._url = url
        self.data = directory / "data"
        self._connection = connect(url)
        is_used = self._connection.execute(USED).fetchone()
        if is_used != (False,) or self.data.exists():
            self._connection.close()
            raise InvalidError(
                "the demo makes tables and drops what captures them: give an empty database and a "
                f"directory that is not there. path={self.data}"
            )
        self._connection.execute(SHOP)
        self.seen: dict[str, State] = {}
        self._checked: set[str] = set()

    def execute(self, query: str) -> None:
        """Change something beside the writers."""
        print(f"sql: {query}", flush=True)
        self._connection.execute(query)

    def point(self, name: str) -> None:
        """See both tables at one commit, and name it."""
        with self._connection.transaction():
            self._connection.execute(f"LOCK TABLE {', '.join(TABLES)} IN SHARE MODE")
            tell_point(self._connection, name)
            self.seen[name] = self.select()

    def select(self) -> State:
        """Return the rows of both tables."""
        return {
            table: ordered(printed_rows(self._connection.execute(f"SELECT * FROM {table}")))
            for table in TABLES
        }

    def capture(self) -> Captured:
        """Write what is committed by now."""
        done = capture(self._connection, self.data, TABLES)
        taken = "the tables, then " if done.took_tables else ""
        print(
            f"captured: {taken}{done.transactions} transactions as {done.records} records",
            flush=True,
        )
        return done

    def check(self) -> None:
        """Compare the topics with ``SELECT *`` at each point since the last time, and now."""
        there = points_in(self.data)
        new = [name for name in self.seen if name not in self._checked]
        for name in new:
            _, _, ends = there[name]
            assert self.seen[name] == read_topics(self.data, ends), f"as of {name}"
        self._checked.update(new)
        now = self.select()
        assert now == read_topics(self.data), "now"
        sizes = " and ".join(f"{len(rows)} rows" for rows in now.values())
        print(f"equal: as of {', '.join(map(repr, new))}, and now: {sizes}", flush=True)

    def crash(self, step: str) -> None:
        """Have a process capture that is killed behind a step, as by ``kill -9``."""
        command = [sys.executable, str(Path(__file__).with_name("capture.py"))]
        done = subprocess.run(
            [*command, self._url, str(self.data), *TABLES, "--kill-at", step], check=False
        )
        assert done.returncode < 0, "it was not killed"
        print(f"killed: behind the step {step!r}", flush=True)

    def drop(self) -> None:
        """Leave nothing in the server."""
        Source(self._connection, ()).drop()
        self._connection.close()


def keeplast_run(*arguments: object) -> None:
    """Run keeplast without its tables; its own errors say what is wrong."""
    command = [sys.executable, "-m", "keeplast", *map(str, arguments)]
    print("$ keeplast", *arguments, flush=True)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def compact(data: Path) -> None:
    """Do a round of every topic, the newest segment included."""
    keeplast_run("clean", data, "--despite", "dirty-ratio", "--roll-active")


def written_twice(data: Path) -> int:
    """Return how many records say again what another one of the same key and commit says."""
    seen: Counter[tuple[str, bytes | None, tuple[object, ...]]] = Counter()
    for topic in TABLES:
        for number in range(PARTITIONS):
            for record in keeplast.open_log(data / f"{topic}-{number}").records():
                seen[topic, record.key, record.headers] += 1
    return sum(count - 1 for count in seen.values())


def late_consumer(data: Path) -> tuple[State, int]:
    """Return what a consumer holds that reads the topics from their beginning, and how much."""
    found: State = {}
    read = 0
    for topic in TABLES:
        held = keeplast.LiveState(keeplast.topic_config({"cleanup.policy": "compact"}))
        for number in range(PARTITIONS):
            for record in keeplast.open_log(data / f"{topic}-{number}").records():
                read += 1
                held.apply(
                    partition=number, offset=record.offset, timestamp_ms=record.timestamp,
                    key=record.key, value=record.value, headers=record.headers,
                )  # fmt: skip
        found[topic] = ordered([json.loads(each.value or b"") for each in held.values()])
    return found, read


def restored(exported: Path) -> State:
    """Return the tables that an export makes again."""
    return {
        topic: ordered(
            [json.loads(value) for value in pq.read_table(exported / topic)["value"].to_pylist()]
        )
        for topic in TABLES
    }


def main(url: str, directory: Path) -> None:
    """Tell the story, and leave nothing in the server that keeps its log."""
    story = Story(url, directory)
    try:
        tell(story, Load(url), directory)
    finally:
        story.drop()


def tell(story: Story, load: Load, directory: Path) -> None:
    """Write, capture, compact, crash; AssertionError when a topic is not what its table was."""
    data = story.data
    with load.running():
        story.capture()
        story.point("first")
        story.capture()
        story.point("second")
    story.capture()
    story.check()

    with load.running():
        compact(data)
        story.execute("TRUNCATE shop.stock")
        story.point("truncated")
        story.capture()
        story.point("filled again")
    story.capture()
    story.check()

    held = [word for table in TABLES for word in ("--topic", table)]
    keeplast_run("hold", "add", data, "alter", *held, "--at", "now", "--max-age", "7d")
    with load.running():
        story.point("before")
        story.execute("ALTER TABLE shop.items ALTER price TYPE numeric(12, 2)")
        story.point("altered")
        story.execute("ALTER TABLE shop.items ADD origin text DEFAULT 'unknown'")
        story.capture()
    story.capture()
    story.check()

    with load.running():
        story.point("before the crash")
    story.crash("batch")
    story.crash("closed")
    with load.running():
        story.capture()
    story.capture()
    story.check()
    twice = written_twice(data)
    assert twice, "the crash made nothing come again, and nothing is shown"

    compact(data)
    offset, _, _ = points_in(data)["before"]
    earlier = directory / "before"
    keeplast_run("export", data, "--checkpoint", f"{CHECKPOINTS}@{offset}", "--to", earlier)
    assert story.seen["before"] == restored(earlier), "as of before the ALTER"
    print("equal: the export is what SELECT * said before the ALTER")
    keeplast_run("hold", "release", data, "alter")
    compact(data)
    assert not written_twice(data), "what was written twice is still there"
    consumer, read = late_consumer(data)
    assert story.select() == consumer, "of a late consumer"
    offsets = sum(end for ends in points_in(data)["progress"][2].values() for end in ends.values())
    print(f"{twice} records were written twice, and are folded")
    print(f"a late consumer reads {read} of {offsets} records, and holds what SELECT * says")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except (CompactionError, psycopg.Error) as error:
        sys.exit(f"error: {error}")
