"""The messages of PostgreSQL's plugin ``pgoutput``, protocol version 1, from bytes to values.

Nothing is read or written here. Values of columns are text as PostgreSQL prints it. Source:
PostgreSQL's manual, "Logical Replication Message Formats". The rule: a byte that is not understood
is an error and never skipped, because what it said would be missing from the topic.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from keeplast.errors import CorruptError

POSTGRES_EPOCH_MS = 946_684_800_000
"""2000-01-01, from which PostgreSQL counts its microseconds."""


class Missing(Enum):
    """What stands for a value that PostgreSQL did not send, because the update left it alone."""

    UNCHANGED = "unchanged"


Value = str | None | Missing
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins: all that follows, up to its commit, is of it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """It is committed; ``end_lsn`` is behind the commit, ``at_ms`` milliseconds since 1970."""

    end_lsn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of a table from here on, in order."""

    table: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A row before and after: ``old`` None is an insert, ``new`` None a delete.

    An update has both where the table's replica identity is FULL, and else perhaps no ``old``:
    ``is_update`` tells it from an insert.
    """

    table: int
    old: Row | None
    new: Row | None
    is_update: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of these tables are gone."""

    tables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What somebody told with ``pg_logical_emit_message``; ``lsn`` is behind it."""

    prefix: str
    content: bytes
    lsn: int
    is_in_transaction: bool


Message = Begin | Commit | Relation | Change | Truncate | Told


class Decoder:
    """Decodes the messages of one call; tables are told of before their first row."""

    def __init__(self) -> None:
        """Know no table yet."""
        self._columns: dict[int, tuple[str, ...]] = {}

    def decode(self, data: bytes) -> Message | None:
        """Return what a message says, None where that is nothing about rows; CorruptError else."""
        reader = _Reader(data)
        kind = reader.letter()
        match kind:
            case "B":
                reader.skip(8 + 8 + 4)  # where the commit will be, its time, the transaction's id
                found: Message | None = Begin()
            case "C":
                reader.skip(1 + 8)  # flags, and where the commit begins
                end_lsn, at_us = reader.number("Q"), reader.number("q")
                found = Commit(end_lsn, POSTGRES_EPOCH_MS + at_us // 1000)
            case "R":
                found = self._relation(reader)
            case "I":
                table = reader.number("I")
                reader.require("N")
                found = Change(table, None, self._row(table, reader))
            case "U":
                found = self._update(reader)
            case "D":
                table = reader.number("I")
                reader.require("KO")
                found = Change(table, self._row(table, reader), None)
            case "T":
                count = reader.number("I")
                reader.skip(1)  # whether it cascades or restarts sequences
                found = Truncate(tuple(reader.number("I") for _ in range(count)))
            case "M":
                flags, lsn, prefix = reader.number("B"), reader.number("Q"), reader.text()
                found = Told(prefix, reader.take(reader.number("I")), lsn, bool(flags & 1))
            case "O" | "Y":
                return None  # where another server's change came from; the name of a type
            case _:
                reader.refuse("a kind of message that is not known", kind)
        reader.require_end()
        return found

    def _relation(self, reader: _Reader) -> Relation:
        table = reader.number("I")
        reader.text(), reader.text()  # schema and name, which the caller has by the number
        reader.skip(1)  # the replica identity
        columns = []
        for _ in range(reader.number("H")):
            reader.skip(1)  # whether it is of the replica identity: of FULL all are
            columns.append(reader.text())
            reader.skip(4 + 4)  # type and modifier: text is printed alike
        self._columns[table] = tuple(columns)
        return Relation(table, tuple(columns))

    def _update(self, reader: _Reader) -> Change:
        table = reader.number("I")
        kind = reader.require("KON")
        old = None
        if kind != "N":
            old = self._row(table, reader)
            reader.require("N")
        new = self._row(table, reader)
        if kind == "O" and old is not None:
            # Only large values are not sent, and the old row has them whole.
            new = {n: old.get(n) if v is Missing.UNCHANGED else v for n, v in new.items()}
        return Change(table, old if kind == "O" else None, new, is_update=True)

    def _row(self, table: int, reader: _Reader) -> Row:
        columns = self._columns.get(table)
        count = reader.number("H")
        if columns is None or len(columns) != count:
            reader.refuse("a row of a table that was not told of like that", count)
        return {name: _value(reader) for name in columns}


def _value(reader: _Reader) -> Value:
    match reader.require("nut"):
        case "n":
            return None
        case "u":
            return Missing.UNCHANGED
        case _:
            return reader.take(reader.number("I")).decode()


class _Reader:
    """The bytes of one message, in order; big-endian."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self._data) - self._at:
            self.refuse("the message ends early", count)
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, count: int) -> None:
        """Leave bytes out that say nothing to us."""
        self.take(count)

    def number(self, form: str) -> int:
        """Return a number in a form of :mod:`struct`."""
        (found,) = struct.unpack(f">{form}", self.take(struct.calcsize(f">{form}")))
        return int(found)

    def letter(self) -> str:
        """Return one byte as a letter."""
        return self.take(1).decode("latin-1")

    def require(self, letters: str) -> str:
        """Return the next letter, which is one of these."""
        found = self.letter()
        if found not in letters:
            self.refuse(f"expected one of {letters}", found)
        return found

    def text(self) -> str:
        """Return text that a zero ends."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            self.refuse("text without an end", len(self._data))
        found = self.take(end - self._at).decode()
        self.skip(1)
        return found

    def require_end(self) -> None:
        """Refuse what stands behind the message."""
        if self._at != len(self._data):
            self.refuse("bytes behind the message", len(self._data) - self._at)

    def refuse(self, problem: str, found: object) -> NoReturn:
        """Raise CorruptError with the place in the message."""
        raise CorruptError(
            f"not a message of pgoutput, protocol version 1: {problem}",
            position=self._at, found=found,
        )  # fmt: skip
