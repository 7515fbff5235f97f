"""A layout that keeps to a pace: so many requests and bytes a second, fewer when its store says so.

The rule: **whatever a process asks of a remote tier through this goes by one pace**, that of the
process, however many threads ask. Requests are counted at the port, as the most that a layout makes
of a call; what object stores cache and join makes fewer of them. A pace travels as its limits: each
worker process keeps to its own.

A store that answers 503, SlowDown or 429 after all retries of its client lets every call wait; the
error itself is the caller's, as without this.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import Clock, SystemClock
from keeplast.cluster.layouts.layout import (
    AuxiliaryFile,
    FoundOwn,
    FoundSegment,
    LogWriter,
    RemoteLayout,
    SegmentReader,
    WrittenLog,
)
from keeplast.errors import UnavailableError
from keeplast.format.checksum import Buffer
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import ForeignPath
from keeplast.log.files import ReadHandle
from keeplast.log.throttle import NAP_SECONDS, Throttle

REQUEST_BYTES = 8 << 20
"""A request moves so much at most, in both directions."""
OPEN_REQUESTS, COMPLETE_REQUESTS, DELETE_REQUESTS, REPLACE_REQUESTS = 2, 2, 3, 2
CONDITION_REQUESTS = 6
PAGE_OBJECTS, PAGE_SEGMENTS = 1000, 333
"""A page of a listing has 1,000 objects, a segment three."""
PAUSE_MS_MAX = 60_000
PACES_KEPT = 8
Answer = TypeVar("Answer")
Waiting = Callable[[], None]
_REFUSED = re.compile(
    r"slow ?down|too ?many ?requests|server ?busy|service unavailable|reduce your request rate"
    r"|status(?: code)?:? (?:429|503)\b",
    re.IGNORECASE,
)


def go_on() -> None:
    """Wait on: each wait is as long as one call makes it."""


class PaceLimits(Struct, frozen=True, kw_only=True):
    """What a process may ask for; ``pause_ms`` is the first pause after a store has refused."""

    requests_per_second: float
    bytes_per_second: float
    pause_ms: int

    def shared_by(self, processes: int) -> PaceLimits:
        """Return the limits of each of so many processes that keep to these together."""
        return replace(
            self, requests_per_second=self.requests_per_second / processes,
            bytes_per_second=self.bytes_per_second / processes,
        )  # fmt: skip


class RequestPace:
    """The pace of one process; safe for threads. Sums are since its start."""

    def __init__(self, limits: PaceLimits, clock: Clock | None = None) -> None:
        """Owe nothing yet."""
        self.limits = limits
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._requests = Throttle(self._clock, limits.requests_per_second)
        self._bytes = Throttle(self._clock, limits.bytes_per_second)
        self._quiet_until = self._clock.seconds()
        self._in_a_row = 0
        self.requests = 0
        self.bytes = 0
        self.refusals = 0
        self.waited_seconds = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as limits."""
        return pace_of, (self.limits,)

    def take(self, requests: int, size_bytes: int = 0, waiting: Waiting = go_on) -> None:
        """Account for what is asked for or has moved; return when the limits allow more.

        ``waiting`` is called before each part of a wait, and ends it by raising: what was taken is
        owed all the same.
        """
        started = self._clock.seconds()
        try:
            while (left := self._quiet_until - self._clock.seconds()) > 0:
                waiting()
                self._clock.sleep(min(left, NAP_SECONDS))
            self._requests.take(requests, waiting)
            self._bytes.take(size_bytes, waiting)
        finally:
            with self._lock:
                self.requests += requests
                self.bytes += size_bytes
                self.waited_seconds += self._clock.seconds() - started

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look whether what is done inside was refused for its pace: then all make a pause.

        The pause doubles with each refusal in a row, up to :data:`PAUSE_MS_MAX`.
        """
        try:
            yield
        except UnavailableError as error:
            if says_slow_down(error):
                self._refuse()
            raise
        with self._lock:
            self._in_a_row = 0

    def _refuse(self) -> None:
        with self._lock:
            pause_ms = min(self.limits.pause_ms << min(self._in_a_row, 32), PAUSE_MS_MAX)
            self._in_a_row += 1
            self.refusals += 1
            self._quiet_until = max(
                self._quiet_until, self._clock.seconds() + pause_ms / 1000
            )  # fmt: skip


@functools.lru_cache(maxsize=PACES_KEPT)
def pace_of(limits: PaceLimits) -> RequestPace:
    """Return this process's pace by these limits, the same for every caller."""
    return RequestPace(limits)


def says_slow_down(error: Exception) -> bool:
    """Say whether a store asks for fewer requests; what its keys are called says nothing."""
    return _REFUSED.search(str(error).rpartition(" error=")[2]) is not None


class PacedLayout(Struct, frozen=True):
    """``layout``, at a pace: a :class:`~keeplast.cluster.layouts.layout.RemoteLayout`.

    ``waiting`` is called before each part of a wait; what it raises ends the call.
    """

    layout: RemoteLayout
    pace: RequestPace
    waiting: Waiting = go_on

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment."""
        return _PacedReader(
            self._paced(OPEN_REQUESTS, lambda: self.layout.open(segment)), self.pace, self.waiting
        )

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return which of ``sources`` outputs are written like; it reads a description each."""
        return self._paced(len(sources), lambda: self.layout.pattern(sources))

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start the log of a new segment."""
        writer = self._paced(
            OPEN_REQUESTS, lambda: self.layout.create_log(segment_id, start_offset, like)
        )
        return _PacedWriter(writer, self.pace, self.waiting)

    def complete(
        self,
        segment: RemoteLogSegment,
        written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes],
        like: RemoteLogSegment,
    ) -> bytes | None:
        """Write the files next to the log."""
        size = sum(map(len, auxiliary.values()))
        return self._paced(
            COMPLETE_REQUESTS, lambda: self.layout.complete(segment, written, auxiliary, like), size
        )

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove all objects of a segment."""
        self._paced(DELETE_REQUESTS, lambda: self.layout.delete(segment))

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove what a listing found."""
        self._paced(DELETE_REQUESTS, lambda: self.layout.delete_found(partition, found))

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield what lies in a partition's place; each page is a request."""
        return self._by_pages(self.layout.list(partition), PAGE_SEGMENTS)

    def foreign(self) -> Iterator[ForeignPath]:
        """Yield paths with names unknown here; each page is a request, and so is each read."""
        for each in self._by_pages(self.layout.foreign(), PAGE_OBJECTS):
            opened = functools.partial(_PacedHandle, each.open, self.pace, self.waiting)
            yield replace(each, open=opened)

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Say whether deleting a segment's log would only hide it."""
        return self._paced(1, lambda: self.layout.hides_deleted(segment))

    def check_conditions(self) -> None:
        """See that the store heeds conditions."""
        self._paced(CONDITION_REQUESTS, self.layout.check_conditions)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object of keeplast's own."""
        return self._paced(1, lambda: self.layout.put_new(name, data), len(data))

    def read_own(self, name: str) -> bytes | None:
        """Return a small object of keeplast's own."""
        return self._paced(1, lambda: self.layout.read_own(name))

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace an own object."""
        return self._paced(
            REPLACE_REQUESTS, lambda: self.layout.replace_own(name, data, expected), len(data)
        )

    def delete_own(self, name: str) -> None:
        """Remove an own object."""
        self._paced(1, lambda: self.layout.delete_own(name))

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the own objects right below ``folder``; each page is a request."""
        return self._by_pages(self.layout.list_own(folder), PAGE_OBJECTS)

    def _by_pages(self, found: Iterator[Answer], size: int) -> Iterator[Answer]:
        with self.pace.watching():
            for number, each in enumerate(found):
                if number % size == 0:
                    self.pace.take(1, 0, self.waiting)
                yield each

    def _paced(self, requests: int, ask: Callable[[], Answer], size_bytes: int = 0) -> Answer:
        self.pace.take(requests, size_bytes, self.waiting)
        with self.pace.watching():
            return ask()


class _PacedHandle(ReadHandle):
    def __init__(
        self, opened: Callable[[], ReadHandle], pace: RequestPace, waiting: Waiting
    ) -> None:
        self._handle = opened()
        self._pace = pace
        self._waiting = waiting

    @property
    def size_bytes(self) -> int:
        return self._handle.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self._pace.take(1, len(buffer), self._waiting)
        with self._pace.watching():
            return self._handle.pread_into(buffer, position)

    def close(self) -> None:
        self._handle.close()


class _PacedReader(SegmentReader):
    def __init__(self, reader: SegmentReader, pace: RequestPace, waiting: Waiting) -> None:
        self._reader = reader
        self._pace = pace
        self._waiting = waiting

    @property
    def log_bytes(self) -> int:
        return self._reader.log_bytes

    def read_into(self, start: int, buffer: memoryview) -> int:
        size = max(min(len(buffer), self._reader.log_bytes - start), 0)
        self._pace.take(1 + size // REQUEST_BYTES, size, self._waiting)
        with self._pace.watching():
            return self._reader.read_into(start, buffer)

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        with self._pace.watching():
            data = self._reader.read_auxiliary(file)
        self._pace.take(1, 0 if data is None else len(data), self._waiting)
        return data


class _PacedWriter:
    def __init__(self, writer: LogWriter, pace: RequestPace, waiting: Waiting) -> None:
        self._writer = writer
        self._pace = pace
        self._waiting = waiting
        self._unpaid = 0

    def write(self, data: Buffer) -> None:
        size = memoryview(data).nbytes
        parts, self._unpaid = divmod(self._unpaid + size, REQUEST_BYTES)
        self._pace.take(parts, size, self._waiting)
        with self._pace.watching():
            self._writer.write(data)

    def close(self) -> WrittenLog:
        self._pace.take(1, 0, self._waiting)
        with self._pace.watching():
            return self._writer.close()

    def abort(self) -> None:
        self._writer.abort()
