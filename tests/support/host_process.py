"""A host of the tiered log in a process of its own, which stops where a test wants it to.

The test sends calls of :class:`Member` through a pipe and gets what they return. A call can be sent
with a *step*, such as ``in commit_swap``: the process stops there, says so and waits, and the test
kills it, or freezes it, lets another host take over and wakes it up again. Steps:

    before NAME, in NAME, after NAME    around a change of the metadata store; ``in`` is when all of
                                        the transaction is sent but its COMMIT
    read .log                           a range of a segment was read
    upload .log (and other suffixes)    something was written of an object that is not complete
    delete                              one object of several is gone

Processes are forked from a server that has imported everything, so that each starts in a moment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from sqlalchemy import event

from keeplast.clock import SystemClock
from keeplast.config.mapping import topic_config
from keeplast.errors import CompactionError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.host.leased_host import open_host
from keeplast.log.append import NewRecord
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore, ObjectWriter, StoredObject
from keeplast.tier.objects.stores import open_objects
from tests.support.waiting import SECONDS_MAX

CHANGES = (
    "take_over", "commit_copy", "commit_swap", "publish", "commit_expiry", "start_delete",
    "finish_delete",
)  # fmt: skip
Entry = tuple[bytes, bytes | None, int]
"""A record: key, value, timestamp in milliseconds."""


class Place(Struct, frozen=True):
    """Where a partition is: its store, its objects, and below which directory hosts keep logs."""

    database: str
    objects: str
    root: Path
    partition: TopicPartition
    settings: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)


class Stop:
    """Where the process stops next; nowhere unless it was armed."""

    def __init__(self, connection: Connection | None = None) -> None:
        """Take the pipe to the test; None never stops."""
        self._connection = connection
        self._step: str | None = None
        self._left = 0
        self._lock = threading.Lock()

    def arm(self, step: str | None, nth: int) -> None:
        """Stop at the ``nth`` time that ``step`` is reached."""
        self._step, self._left = step, nth

    def reach(self, step: str) -> None:
        """Stop here if it was asked for, until the test says go."""
        with self._lock:
            if step != self._step or self._connection is None:
                return
            self._left -= 1
            if self._left == 0:
                self._connection.send(("reached", step))
                self._connection.recv()


class StoppingObjects:
    """An object store whose user can be stopped between any two requests."""

    def __init__(self, objects: ObjectStore, stop: Stop) -> None:
        """Wrap ``objects``."""
        self._objects = objects
        self._stop = stop

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Read, then reach ``read`` and the suffix."""
        data = self._objects.read_range(key, start, end)
        self._stop.reach(f"read {Path(key).suffix}")
        return data

    def stat(self, key: str) -> StoredObject:
        """Pass on."""
        return self._objects.stat(key)

    def open_write(self, key: str) -> ObjectWriter:
        """Return a writer that can stop."""
        return _StoppingWriter(
            self._objects.open_write(key), self._stop, f"upload {Path(key).suffix}"
        )

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Pass on."""
        return self._objects.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete one after another."""
        for key in keys:
            self._objects.delete([key])
            self._stop.reach("delete")


class _StoppingWriter:
    def __init__(self, writer: ObjectWriter, stop: Stop, step: str) -> None:
        self._writer = writer
        self._stop = stop
        self._step = step

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._writer.write(data)
        self._stop.reach(self._step)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()


class StoppingStore(MetadataStore):
    """A metadata store whose user can be stopped before, in and after each transaction."""

    def __init__(self, url: str, stop: Stop) -> None:
        """Open the database at ``url``."""
        engine = open_database(url)
        super().__init__(engine, SystemClock())
        self._stop = stop
        self._doing = ""
        event.listen(engine, "commit", lambda _connection: stop.reach(f"in {self._doing}"))
        for name in CHANGES:
            setattr(self, name, self._around(name, getattr(self, name)))

    def _around(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **named: Any) -> Any:
            self._stop.reach(f"before {name}")
            self._doing = name
            try:
                made = change(*args, **named)
            finally:
                self._doing = ""
            self._stop.reach(f"after {name}")
            return made

        return act


class Member:
    """One host of a partition: its local log, its tiered store, and what a test looks at."""

    def __init__(self, place: Place, owner: str, stop: Stop | None = None) -> None:
        """Open everything; a follower until it is made to lead."""
        stop = Stop() if stop is None else stop
        clock = SystemClock()
        self.partition = place.partition
        self.objects = StoppingObjects(open_objects(place.objects, place.options), stop)
        self.store = StoppingStore(place.database, stop)
        self.tiered = TieredStore(
            self.store, self.objects, owner=owner, topic_of=topic_config, clock=clock,
            files=LocalFiles(),
        )  # fmt: skip
        topic = topic_config(place.settings)
        self.host = open_host(
            self.tiered, place.partition, place.root / owner, topic, recovers=True
        )

    def close(self) -> None:
        """Leave as a host does that is stopped in good order."""
        self.host.close()
        self.store.close()

    def lead(self, epoch: int) -> int:
        """Take over; returns the first dirty offset."""
        return self.host.become_leader(epoch).first_dirty()

    def own(self) -> int:
        """Take over without a local log, as a command does; returns the epoch."""
        return self.tiered.own(self.partition, takes_over=True).leader_epoch

    def follow(self, epoch: int) -> None:
        """Step down."""
        self.host.become_follower(epoch)

    def truncate_to(self, lineage: tuple[LeaderEpoch, ...], log_end: int) -> int:
        """Cut what the leader with this lineage and end does not have; returns the log end."""
        return self.host.truncate_to(lineage, log_end)

    def lineage(self) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs of the local log."""
        return self.host.lineage

    def catch_up(self) -> int:
        """Replicate from object storage; returns the log end."""
        return self.host.catch_up()

    def log_start(self) -> int:
        """Return where the log begins."""
        return self.store.load(self.partition).log_start

    def local_bytes(self) -> int:
        """Return what the local log takes."""
        return sum(path.stat().st_size for path in self.host.directory.iterdir())

    def append_batches(self, batches: list[list[Entry]]) -> int:
        """Append each list of records as a batch; returns the log end."""
        for entries in batches:
            self.host.append([NewRecord(key, value, at) for key, value, at in entries])
        return self.host.log_end_offset

    def append(self, entries: list[Entry]) -> int:
        """Append each record as a batch of its own; returns the log end."""
        for key, value, timestamp_ms in entries:
            self.host.append([NewRecord(key, value, timestamp_ms)])
        return self.host.log_end_offset

    def acknowledge(self, offset: int) -> None:
        """Say that every replica has the log below ``offset``."""
        self.host.acknowledge(offset)

    def roll(self) -> None:
        """Close the active segment."""
        self.host.roll()

    def end(self) -> int:
        """Return the log end offset."""
        return self.host.log_end_offset

    def fetch(self, offset: int) -> tuple[bytes, int]:
        """Return whole batches and where to go on."""
        found = self.host.fetch(offset)
        return bytes(found.data), found.next_offset

    def replicate(self, data: bytes, high_watermark: int, log_start: int) -> int:
        """Append what a leader's fetch gave."""
        return self.host.replicate(data, high_watermark=high_watermark, log_start=log_start)

    def copy(self) -> int:
        """Copy closed segments; returns how many."""
        return self.host.copy()

    def clean(self) -> bool:
        """Do a round; returns whether there was something to do."""

        def runner_for(files: FileSystem) -> Runner:
            return LocalRunner(1, files=files)

        report = self.host.clean(runner_for, memory_bytes=MEMORY_BYTES_MIN, force=True, grace_ms=0)
        return not report.skipped

    def expire(self) -> int:
        """Let go what retention lets go; returns how many segments."""
        return len(self.host.expire(grace_ms=0).segments)

    def retain_local(self) -> int:
        """Let local segments go that are in object storage; returns how many."""
        return self.host.retain_local().segments

    def collect(self, garbage_age_ms: int = 0) -> tuple[int, int, int]:
        """Remove what is no longer read; returns segments, objects and what still waits."""
        found = self.tiered.collect(self.partition, garbage_age_ms=garbage_age_ms)
        return found.segments, found.objects, found.waiting

    def read(self, start: int | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
        """Return the records from an offset on (None: the log start) to the log end."""
        offset = self.store.load(self.partition).log_start if start is None else start
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while offset < self.host.log_end_offset:
            fetched = self.host.fetch(offset)
            for batch in read_batches(fetched.data):
                found += [(r.offset, r.key, r.value) for r in batch.records() if r.offset >= offset]
            offset = fetched.next_offset
        return found


class Outcome(Struct, frozen=True):
    """What a call returned, or the class and the text of its error."""

    value: Any = None
    error: str | None = None
    text: str = ""


class HostProcess:
    """The test's end of a process that is a :class:`Member`."""

    def __init__(self, place: Place, owner: str) -> None:
        """Start it."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(place, owner, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._expect()

    def send(self, method: str, *args: object, step: str | None = None, nth: int = 1) -> None:
        """Begin a call."""
        self._connection.send((method, args, step, nth))

    def call(self, method: str, *args: object) -> Any:
        """Do a call and return what it returns; AssertionError when it fails."""
        self.send(method, *args)
        outcome = self.outcome()
        assert outcome.error is None, f"{outcome.error}: {outcome.text}"
        return outcome.value

    def call_until(self, step: str, nth: int, method: str, *args: object) -> None:
        """Begin a call and return when it stops at ``step``."""
        self.send(method, *args, step=step, nth=nth)
        assert ("reached", step) == self._expect()

    def go(self) -> None:
        """Let a stopped call go on."""
        self._connection.send("go")

    def outcome(self) -> Outcome:
        """Wait for the end of the call."""
        kind, *found = self._expect()
        if kind == "raised":
            return Outcome(error=found[0], text=found[1])
        assert kind == "returned", kind
        return Outcome(found[0])

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let a frozen process go on, which knows nothing of the time between."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without warning (SIGKILL), and wait until it is gone."""
        if self._process.is_alive():
            self._signal(signal.SIGKILL)
        self._process.join(SECONDS_MAX)
        self._connection.close()

    def peak_bytes(self) -> int:
        """Return the most memory that the process ever had resident."""
        status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) << 10

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def _expect(self) -> tuple[Any, ...]:
        if not self._connection.poll(SECONDS_MAX):
            raise TimeoutError("the host does not answer")
        found: tuple[Any, ...] = self._connection.recv()
        return found


def _serve(place: Place, owner: str, connection: Connection) -> None:
    """Answer calls until the test closes its end."""
    stop = Stop(connection)
    member = Member(place, owner, stop)
    connection.send(("ready",))
    while True:
        try:
            method, args, step, nth = connection.recv()
        except EOFError:
            return
        stop.arm(step, nth)
        try:
            value = getattr(member, method)(*args)
        except CompactionError as error:
            stop.arm(None, 0)
            connection.send(("raised", type(error).__name__, str(error)))
        else:
            stop.arm(None, 0)
            connection.send(("returned", value))
