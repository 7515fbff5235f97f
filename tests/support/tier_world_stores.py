"""An object store, a metadata store and a disk that fail where the simulation says so.

Each operation is a step of :class:`~tests.support.tier_world_tasks.Tasks`: a process may fall
asleep or die before it. What goes wrong with an object store: an error before the write, an answer
that is lost after it, a write that arrives long after its error, and one that is cut short. With a
database: no connection, a commit whose answer is lost, and one that never happened. Both are
consistent once they have answered, as S3 and PostgreSQL are.
"""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Engine, create_engine, delete
from sqlalchemy.pool import StaticPool

from keeplast.clock import Clock
from keeplast.errors import CommitUnknownError, UnavailableError
from keeplast.format.checksum import crc32c
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import StoreTime
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import (
    FILTER,
    ObjectWriter,
    StoredObject,
    object_key,
    segment_of_key,
)
from keeplast.tier.state.partition_state import PartitionState
from tests.support.crashing_files import CrashingFiles, Image
from tests.support.partition_maker import PARTITION
from tests.support.tier_world_tasks import Tasks

TOPIC_ID = "0" * 32


def require(condition: bool, message: str) -> None:
    """AssertionError unless it holds: the simulation has found something."""
    if not condition:
        raise AssertionError(message)


@dataclass(slots=True)
class Late:
    """A write whose author was informed that it failed, on its way."""

    due: int
    key: str
    data: bytes


class SimulatedObjects:
    """An object store in memory. A key is written once, ever, but a filter's."""

    def __init__(self, tasks: Tasks, clock: Clock, dice: random.Random) -> None:
        """Start empty."""
        self.found: dict[str, tuple[bytes, int]] = {}
        self.late: list[Late] = []
        self.now = 0
        self.lost_answers = 0
        self.is_routed: Callable[[str], bool] = lambda segment_id: False
        self.is_due: Callable[[str, int], bool] = lambda segment_id, modified_ms: True
        self.fails = 0.0
        """How often a write goes wrong, whatever its task's share of faults is."""
        self._written: set[str] = set()
        self._sums: dict[str, tuple[int, int]] = {}
        self._tasks = tasks
        self._clock = clock
        self._dice = dice

    def sum_of(self, key: str) -> tuple[int, int]:
        """Return the size and the CRC-32C of an object that is there, as no operation of a host."""
        if key not in self._sums:
            data = self.found[key][0]
            self._sums[key] = len(data), crc32c(data)
        return self._sums[key]

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Read, or fail."""
        self._may_fail("get", key)
        return memoryview(self._find(key)[0])[start:end]

    def stat(self, key: str) -> StoredObject:
        """Look, or fail."""
        self._may_fail("head", key)
        data, modified_ms = self._find(key)
        return StoredObject(key, len(data), modified_ms)

    def open_write(self, key: str) -> ObjectWriter:
        """Start an object; nothing is sent yet."""
        return _Upload(self, key)

    def put_new(self, key: str, data: bytes) -> bool:
        """Write where nothing was written, or fail; an answer may be lost."""
        fails = self._tasks.step(f"put {short(key)}")
        loses = fails and self._dice.random() < 0.5
        if fails and not loses:
            raise UnavailableError(f"the simulated object store failed. key={key}")
        is_new = key not in self.found
        if is_new:
            self._put(key, data)
        if loses:
            self.lost_answers += 1
            raise UnavailableError(f"the simulated answer was lost. key={key}")
        return is_new

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List all of it at one moment."""
        self._may_fail("list", prefix)
        for key, (data, modified_ms) in sorted(self.found.items()):
            if key.startswith(f"{prefix}/"):
                yield StoredObject(key, len(data), modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete one by one; a failure leaves the rest, or loses an answer."""
        for key in keys:
            fails = self._tasks.step(f"delete {short(key)}")
            loses = fails and self._dice.random() < 0.5
            if fails and not loses:
                raise UnavailableError(f"the simulated object store failed. key={key}")
            segment_id = segment_of_key(key)
            require(
                segment_id is None or not self.is_routed(segment_id),
                f"I-14: an object that is read was deleted. key={key}",
            )
            require(
                segment_id is None or key not in self.found
                or self.is_due(segment_id, self.found[key][1]),
                f"an object was deleted before its time. key={key} now={self._clock.now_ms()}",
            )  # fmt: skip
            self.found.pop(key, None)
            if loses:
                self.lost_answers += 1
                raise UnavailableError(f"the simulated answer was lost. key={key}")

    def land_late(self, *, everything: bool = False) -> None:
        """Let writes arrive that were given up."""
        due = [late for late in self.late if everything or late.due <= self.now]
        self.late = [late for late in self.late if late not in due]
        for late in due:
            self._put(late.key, late.data)

    def complete(self, key: str, data: bytes) -> None:
        """Make an object appear, or do what goes wrong."""
        fails = self._tasks.step(f"put {short(key)}")
        if not fails and self._dice.random() >= self.fails:
            self._put(key, data)
            return
        how = self._dice.choice(["before", "after", "late", "short"])
        if how == "late":
            self.late.append(Late(self.now + self._dice.randint(1, 40), key, data))
        elif how != "before":
            self._put(key, data if how == "after" else data[: len(data) // 2])
        self.lost_answers += how in ("after", "late")
        if how != "short":
            raise UnavailableError(f"the simulated object store failed. key={key} how={how}")

    def _put(self, key: str, data: bytes) -> None:
        # A filter can only save work, and is the one object that may be written again.
        is_filter = key.endswith(f"/{FILTER}")
        require(is_filter or key not in self._written, f"I-9: a key was written twice. key={key}")
        self._written.add(key)
        self._sums.pop(key, None)
        self.found[key] = (data, self._clock.now_ms())

    def _may_fail(self, verb: str, key: str) -> None:
        if self._tasks.step(f"{verb} {short(key)}"):
            raise UnavailableError(f"the simulated object store failed. key={key}")

    def _find(self, key: str) -> tuple[bytes, int]:
        found = self.found.get(key)
        if found is None:
            raise FileNotFoundError(2, "no such object", key)
        return found


class _Upload:
    def __init__(self, objects: SimulatedObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def close(self) -> None:
        self._objects.complete(self._key, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()


def short(key: str) -> str:
    """Return a key as a trace shows it: eight digits of the segment's id, and the file."""
    parts = key.split("/")
    return f"{parts[-2][:8]}/{parts[-1]}" if len(parts) > 2 else key


def open_database_in_memory() -> Engine:
    """Return a database with the tables; one connection, used by one thread at a time."""
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    schema.METADATA.create_all(engine)
    return engine


def empty_database(engine: Engine) -> None:
    """Let its tables have nothing, as at the start of each run."""
    with engine.begin() as connection:
        for table in reversed(schema.METADATA.sorted_tables):
            connection.execute(delete(table))


class SimulatedTransactions(Transactions):
    """Transactions that fail before, in, or after their commit."""

    def __init__(
        self, engine: Engine, clock: Clock, tasks: Tasks, dice: random.Random,
        committed: Callable[[], None], time: StoreTime | None = None,
    ) -> None:  # fmt: skip
        """``committed`` hears of every commit."""
        super().__init__(engine, clock, time=time)
        self._tasks = tasks
        self._dice = dice
        self._heard = committed

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        if self._tasks.step("database read"):
            raise UnavailableError("the simulated database cannot be reached")
        with super().reading() as connection:
            yield connection

    @contextmanager
    def waiting(self) -> Iterator[Connection]:
        if self._tasks.step("database read"):
            raise UnavailableError("the simulated database cannot be reached")
        with super().waiting() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        how = "works"
        if self._tasks.step("database begin"):
            how = self._dice.choice(["before", "lost", "undone"])
        if how == "before":
            raise UnavailableError("the simulated database cannot be reached")
        with super().writing() as connection:
            yield connection
            if how == "undone":
                raise CommitUnknownError("the simulated commit did not happen")
        self._heard()
        # A process may die, or sleep, between its commit and the answer.
        if self._tasks.step("database answer") or how == "lost":
            raise CommitUnknownError("the simulated answer of a commit was lost")


class SimulatedStore(MetadataStore):
    """A metadata store whose transactions fail."""

    def __init__(
        self, engine: Engine, clock: Clock, tasks: Tasks, dice: random.Random,
        committed: Callable[[], None], time: StoreTime | None = None,
    ) -> None:  # fmt: skip
        """``committed`` hears of every commit."""
        super().__init__(engine, clock, time=time)
        self._transactions = SimulatedTransactions(engine, clock, tasks, dice, committed, time)
        self._tasks = tasks
        self._tables: Any = engine.raw_connection().driver_connection
        self._known: PartitionState | None = None

    def load(self, partition: TopicPartition) -> PartitionState:
        """Read the state, from memory while its version is the same: most of a run is this."""
        if self._tasks.step("database read"):
            raise UnavailableError("the simulated database cannot be reached")
        row = self._tables.execute("SELECT version FROM partitions").fetchone()
        if self._known is None or row is None or self._known.version != row[0]:
            with self._tasks.unobserved():
                self._known = super().load(partition)
        return self._known


class HostFiles(CrashingFiles):
    """A host's disk; ``is_full`` refuses what needs room."""

    def __init__(self, image: Image, tasks: Tasks, clock: Clock) -> None:
        """Start from what a crash has left."""
        super().__init__(image)
        self.is_full = False
        self._tasks = tasks
        self._clock = clock

    def _note(self, operation: str) -> None:
        fails = self._tasks.step(f"disk {operation}")
        if fails and self._tasks.current is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), operation)
        if self.is_full and operation.startswith(("open ", "write ")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation)

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably."""
        for parent in [*reversed(path.parents), path]:
            super().make_directory(parent)


class Live(Struct, frozen=True):
    """What the tables say is read: checked after every commit, by plain SQL."""

    version: int
    leader_epoch: int
    log_start: int
    remote_bytes: int
    routes: tuple[tuple[int, int, str], ...]

    @property
    def end(self) -> int:
        """Return the offset behind the last one that is served."""
        return self.routes[-1][1] + 1 if self.routes else self.log_start


def read_live(tables: Any) -> Live:
    """Read it."""
    row = tables.execute(
        "SELECT version, leader_epoch, log_start, remote_bytes FROM partitions"
    ).fetchone()
    routes = tables.execute(
        "SELECT base_offset, last_offset, segment_id FROM routing ORDER BY base_offset"
    ).fetchall()
    version, leader_epoch, log_start, remote_bytes = row
    return Live(
        version, leader_epoch, log_start, remote_bytes, tuple(tuple(route) for route in routes)
    )


def check_live(live: Live, before: Live | None, tables: Any, objects: SimulatedObjects) -> None:
    """AssertionError unless the routes have no hole and all that they name is there."""
    at = live.routes[0][0] if live.routes else live.log_start
    require(at <= live.log_start, f"I-14: no object serves {live.log_start}..{at}")
    size = 0
    for base, last, segment_id in live.routes:
        require(base == at, f"I-14: a hole or an overlap at {at}. routes={live.routes}")
        at = last + 1
        row = tables.execute(
            "SELECT base_offset, size_bytes, files, state FROM segments WHERE id = ?", (segment_id,)
        ).fetchone()
        require(row is not None and row[3] == "live", f"I-14: a route to {row}. id={segment_id}")
        size += row[1]
        for suffix, (file_size, crc) in json.loads(row[2]).items():
            key = object_key(PARTITION, TOPIC_ID, segment_id, row[0], suffix)
            require(key in objects.found, f"I-14: an object is not there. key={key}")
            found = objects.sum_of(key)
            require(
                found == (file_size, crc),
                f"I-14: an object is not what was sent. key={key} found={found} "
                f"expected={(file_size, crc)}",
            )
    require(size == live.remote_bytes, f"I-21: {live.remote_bytes} cached, the sum is {size}")
    if before is not None:
        require(
            live.version > before.version or live == before,
            "a commit that has changed what is read and not raised the version",
        )
        require(live.log_start >= before.log_start, "the log start went back")
        require(
            live.end >= before.end or not live.routes,
            f"I-17: the remote end went back from {before.end} to {live.end}",
        )


def is_routed(tables: Any, segment_id: str) -> bool:
    """Say whether a store's tables name a segment for readers."""
    query = "SELECT 1 FROM routing WHERE segment_id = ?"
    return tables.execute(query, (segment_id,)).fetchone() is not None
