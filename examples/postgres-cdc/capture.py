"""Captures the changes of PostgreSQL tables as compacted topics: primary key -> row.

    python examples/postgres-cdc/capture.py URL DATA_DIR TABLE...
    python examples/postgres-cdc/capture.py URL --drop

A call writes what is committed by now and ends; call it again and again, and compact in between.
The first call makes publication, slot and trigger, and takes the tables as they are.

What a reader must not break:

1. Written and flushed first, confirmed then. Whatever ends the process between the two, the same
   changes come again, and compaction folds what they make.
2. What the slot does not tell is taken from the tables: when it is new, or was moved by somebody
   else, or the directory is an older one. Keys that are not in the tables any more are deleted.
3. A transaction is folded before it is written: of a key that changes twice, the last; of a table
   that was truncated or altered, what is there at the commit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pgoutput import Begin, Change, Commit, Decoder, Message, Row, Told, Truncate
from source import POINT, REWRITE, Source, altered, connect, lsn_text
from topics import Step, Topics, Writer, prepare

from keeplast.errors import CompactionError, RefusedError, UnavailableError
from keeplast.log.lock import locked
from keeplast.model.partition import NO_TIMESTAMP

PROGRESS, TAKEN = "progress", "tables taken"
KEYS_MAX = 2_000_000
"""Keys that one transaction may change: they are held until its commit comes."""
STEPS = ("batch", "flushed", "noted", "closed", "confirmed")


@dataclass(frozen=True, slots=True)
class Captured:
    """What a call has done: ``lsn`` is up to where everything was confirmed."""

    transactions: int
    records: int
    took_tables: bool
    lsn: str


class Capture:
    """Takes what is committed from the slot to the topics, whole transactions at a time."""

    def __init__(self, source: Source, topics: Topics) -> None:
        """Take both sides, prepared."""
        self._source = source
        self._topics = topics
        self._keys: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, dict[bytes, bytes | None]] = {}
        self._points: list[str] = []
        self._transactions = 0
        for topic, alive in topics.alive.items():
            # A key names its columns, as they were then: the table may have others by now.
            some = next(iter(alive), None)
            self._keys[topic] = source.key_of(topic) if some is None else tuple(json.loads(some))

    def run(self, step: Step) -> Captured:
        """Write and confirm what is committed by now; ``step`` is told of what was done."""
        topics, source = self._topics, self._source
        takes = topics.noted < source.confirmed()
        if takes:
            self._take_tables()
        at, end = source.confirmed(), source.written_to()
        while at < end and (messages := source.peek(end)):
            with topics.writing() as writer:
                lsn = self._write(messages, writer)
            if lsn <= at:
                raise UnavailableError(
                    "the slot tells again what was confirmed; see whether another process reads "
                    f"it, and run again. lsn={lsn_text(lsn)} confirmed={lsn_text(at)}"
                )
            source.confirm(lsn)
            step("confirmed")
            at = lsn
        return Captured(self._transactions, topics.written, takes, lsn_text(at))

    def _take_tables(self) -> None:
        """Write all rows as they are at one moment, and delete the keys that are not there."""
        with self._topics.writing() as writer, self._source.snapshot() as (lsn, at_ms):
            if lsn < self._topics.reached:
                raise RefusedError(
                    "the topics have changes that this server has not made yet: it went back to a "
                    f"backup; choose another directory. lsn={lsn_text(lsn)} "
                    f"written={lsn_text(self._topics.reached)}"
                )
            for topic in self._source.topics.values():
                self._keys[topic] = self._source.key_of(topic)
                gone = set(self._topics.alive[topic])
                for rows in self._source.rows(topic):
                    taken = {self._key(topic, row): _value(row) for row in rows}
                    writer.write(topic, taken, lsn=lsn, at_ms=at_ms)
                    gone -= taken.keys()
                writer.write(topic, dict.fromkeys(gone), lsn=lsn, at_ms=at_ms)
        # What the slot tells first is older than these rows. Here the topics have caught up.
        self._source.tell(TAKEN)

    def _write(self, messages: Sequence[bytes], writer: Writer) -> int:
        """Write whole transactions, and a point behind them; return where the messages end."""
        decoder = Decoder()
        end_lsn, at_ms = 0, NO_TIMESTAMP
        for data in messages:
            message = decoder.decode(data)
            match message:
                case Commit():
                    self._commit(message, writer)
                    end_lsn, at_ms = message.end_lsn, message.at_ms
                case Told(lsn=lsn, is_in_transaction=False):
                    # Nothing of ours, and no commit is behind it to pass it; it says where it ends.
                    end_lsn = max(end_lsn, lsn)
                case _ if message is not None:
                    self._take(message)
        writer.note(PROGRESS, lsn=end_lsn, at_ms=at_ms)
        return end_lsn

    def _take(self, message: Message) -> None:
        """Take a message of the transaction that is under way."""
        match message:
            case Begin():
                self._rows, self._points = {topic: {} for topic in self._topics.alive}, []
            case Change():
                self._change(message)
            case Truncate(tables):
                for table in tables:
                    self._clear(self._topic(table))
            case Told(prefix=prefix, content=content) if prefix == REWRITE:
                table, key = altered(content)
                topic = self._topic(table)
                self._clear(topic)
                self._keys[topic] = key
            case Told(prefix=prefix, content=content) if prefix == POINT:
                self._points.append(content.decode())
            case _:
                pass

    def _change(self, change: Change) -> None:
        topic = self._topic(change.table)
        if change.is_update and change.old is None:
            raise RefusedError(
                "an update came without the row that it replaced: REPLICA IDENTITY FULL was taken "
                f"from the table; --drop and capture again. table={topic}"
            )
        rows = self._rows[topic]
        if change.old is not None:
            rows[self._key(topic, change.old)] = None
        if change.new is not None:
            rows[self._key(topic, change.new)] = _value(change.new)
        if len(rows) > KEYS_MAX:
            raise RefusedError(
                "a transaction changes more keys than are held at once; raise KEYS_MAX, or --drop "
                f"and capture again. table={topic} limit={KEYS_MAX}"
            )

    def _clear(self, topic: str) -> None:
        rows = self._rows[topic]
        rows |= dict.fromkeys(self._topics.alive[topic] | rows.keys())

    def _commit(self, commit: Commit, writer: Writer) -> None:
        for topic, rows in self._rows.items():
            writer.write(topic, rows, lsn=commit.end_lsn, at_ms=commit.at_ms)
        for name in self._points:
            writer.note(name, lsn=commit.end_lsn, at_ms=commit.at_ms)
        self._transactions += 1

    def _topic(self, table: int) -> str:
        topic = self._source.topics.get(table)
        if topic is None:
            raise RefusedError(
                "a change of a table that is not captured: the publication was altered; --drop and "
                f"capture again. table={table}"
            )
        return topic

    def _key(self, topic: str, row: Row) -> bytes:
        columns = self._keys[topic]
        if not columns or not row.keys() >= set(columns):
            raise RefusedError(
                "the columns of the primary key are not in the row: it was altered before the "
                "topic had a record; --drop and capture again into another directory. "
                f"table={topic} key={','.join(columns)} columns={','.join(row)}"
            )
        return _value({name: row[name] for name in columns})


def _value(row: Row) -> bytes:
    """Return columns as JSON; the same row is the same bytes."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def _go_on(step: str) -> None:
    """Let every step be."""


def capture(
    connection: psycopg.Connection, data: Path, tables: Sequence[str], step: Step = _go_on
) -> Captured:
    """Write what is committed by now to ``data``, which nobody else works on meanwhile."""
    source = Source(connection, tables)
    source.prepare()
    names = list(source.topics.values())
    prepare(data, names)
    with locked(data):
        topics = Topics(data, names, source.identity, step)
        # Not for a directory that is refused: a slot that nobody reads fills the server's disk.
        source.make_slot()
        return Capture(source, topics).run(step)


def main() -> None:
    """Run one call; ends with 1 and a sentence where that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="postgresql://USER@HOST:PORT/DATABASE")
    parser.add_argument("data", type=Path, nargs="?", help="the data directory of the topics")
    parser.add_argument("tables", nargs="*", help="tables, named with their schema")
    parser.add_argument("--drop", action="store_true", help="remove publication, slot and trigger")
    parser.add_argument("--kill-at", choices=STEPS, help="end as by kill -9 behind the first such")
    arguments = parser.parse_args()

    def step(name: str) -> None:
        if name == arguments.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if not arguments.drop and not arguments.tables:
        parser.error("name a data directory and the tables to capture, or --drop")
    try:
        with connect(arguments.url) as connection:
            if arguments.drop:
                Source(connection, ()).drop()
                return
            done = capture(connection, arguments.data, arguments.tables, step)
    except (CompactionError, psycopg.Error, OSError) as error:
        sys.exit(f"error: {error}")
    taken = "tables taken, " if done.took_tables else ""
    print(f"{taken}{done.transactions} transactions, {done.records} records, up to {done.lsn}")


if __name__ == "__main__":
    main()
