"""Limits how many bytes a second are read from and written to disk, as a ``FileSystem`` of its own.

One :class:`Throttle` is shared by all that must stay below the limit together. Bytes are paid for
after they have moved, and a debt is waited for before the next ones. Over any time from its start
no more than ``rate * seconds`` plus one piece of :data:`PIECE_BYTES` a thread moves. What was not
used is saved for :data:`SAVED_SECONDS` at most. Reads and writes count alike, and so does a copy
inside the kernel: once as read, once as written. Kafka: ``Throttler`` of the cleaner, which looks
every 300 ms; cleaning.md section 2.5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from keeplast.clock import Clock
from keeplast.errors import InvalidError
from keeplast.log.files import Buffer, FileStat, FileSystem, ReadHandle, WriteHandle

PIECE_BYTES = 1 << 20
SAVED_SECONDS = 0.3
NAP_SECONDS = 0.25
"""A wait is slept in parts, so that a stop or a new rate is noticed soon."""


class Throttle:
    """A token bucket of bytes; safe for threads."""

    def __init__(self, clock: Clock, bytes_per_second: float | None = None) -> None:
        """Start empty; None limits nothing. InvalidError unless the rate is above 0."""
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = _check(bytes_per_second)
        self._saved = 0.0
        self._counted_at = clock.seconds()

    @property
    def bytes_per_second(self) -> float | None:
        """Return the limit in force, None where there is none."""
        return self._rate

    def limit(self, bytes_per_second: float | None) -> None:
        """Change the limit from now on; a thread that waits already goes on by the new one.

        InvalidError unless it is None or above 0.
        """
        checked = _check(bytes_per_second)
        with self._lock:
            if checked != self._rate:
                self._fill()
                # A debt is in bytes and stays; what was saved under another rate does not.
                self._saved = min(self._saved, 0.0)
                self._rate = checked

    def take(self, count: int, waiting: Callable[[], None]) -> None:
        """Account for ``count`` bytes that moved; return when the limit allows the next ones.

        ``waiting`` is called before each part of a wait, and ends it by raising.
        """
        with self._lock:
            self._fill()
            self._saved -= count
            # A later caller finds this debt too: bytes are waited for in the order they came.
            owed = -self._saved
        while owed > 0:
            rate = self._rate
            if rate is None:
                return
            waiting()
            nap = min(owed / rate, NAP_SECONDS)
            before = self._clock.seconds()
            self._clock.sleep(nap)
            owed -= max(self._clock.seconds() - before, nap) * rate

    def _fill(self) -> None:
        now = self._clock.seconds()
        elapsed = now - self._counted_at
        self._counted_at = now
        if self._rate is None:
            self._saved = 0.0
        else:
            self._saved = min(self._saved + elapsed * self._rate, SAVED_SECONDS * self._rate)


def _check(bytes_per_second: float | None) -> float | None:
    if bytes_per_second is not None and not bytes_per_second > 0:
        raise InvalidError(
            "a round would never end with a limit of no bytes. Leave it out, or give a number "
            f"above 0. log.cleaner.io.max.bytes.per.second={bytes_per_second}",
            code="K133",
        )
    return bytes_per_second


class _ThrottledReadHandle:
    def __init__(self, inner: ReadHandle, take: Callable[[int], None]) -> None:
        self.inner = inner
        self._take = take

    @property
    def size_bytes(self) -> int:
        return self.inner.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            part = buffer[done : done + PIECE_BYTES]
            count = self.inner.pread_into(part, position + done)
            self._take(count)
            done += count
            if count < len(part):
                break
        return done

    def close(self) -> None:
        self.inner.close()


class _ThrottledWriteHandle:
    def __init__(self, inner: WriteHandle, take: Callable[[int], None]) -> None:
        self._inner = inner
        self._take = take

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), PIECE_BYTES):
            part = view[at : at + PIECE_BYTES]
            self._inner.write(part)
            self._take(len(part))

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        """Copy piece by piece, inside the kernel if the handles below can."""
        # The handle itself, not what throttles it, or its reads would be counted a second time.
        below = source.inner if isinstance(source, _ThrottledReadHandle) else source
        for at in range(0, length, PIECE_BYTES):
            count = min(PIECE_BYTES, length - at)
            self._inner.copy_from(below, position + at, count)
            self._take(2 * count)

    def fsync(self) -> None:
        self._inner.fsync()

    def close(self) -> None:
        self._inner.close()


class ThrottledFiles:
    """A file system whose bytes are taken from ``throttle``; names and times are free.

    Each method is :class:`FileSystem`'s; reads and writes move in pieces of PIECE_BYTES, between
    which a wait can be ended.
    """

    def __init__(self, inner: FileSystem, throttle: Throttle, waiting: Callable[[], None]) -> None:
        """Stand in front of ``inner``; ``waiting`` hears of waits and may raise to end them."""
        self.inner: Final = inner
        self._throttle = throttle
        self._waiting = waiting

    def _take(self, count: int) -> None:
        self._throttle.take(count, self._waiting)

    def open_read(self, path: Path) -> ReadHandle:
        return _ThrottledReadHandle(self.inner.open_read(path), self._take)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        return _ThrottledWriteHandle(self.inner.open_write(path, append=append), self._take)

    def listdir(self, path: Path) -> list[str]:
        return self.inner.listdir(path)

    def is_directory(self, path: Path) -> bool:
        return self.inner.is_directory(path)

    def directories_in(self, path: Path) -> frozenset[str]:
        return self.inner.directories_in(path)

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def stat(self, path: Path) -> FileStat:
        return self.inner.stat(path)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        data = self.inner.read_bytes(path, limit)
        self._take(len(data))
        return data

    def write_durable(self, path: Path, data: Buffer) -> None:
        self.inner.write_durable(path, data)
        self._take(memoryview(data).nbytes)

    def append_durable(self, path: Path, data: Buffer) -> None:
        self.inner.append_durable(path, data)
        self._take(memoryview(data).nbytes)

    def rename(self, source: Path, target: Path) -> None:
        self.inner.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.inner.link(source, target)

    def unlink(self, path: Path) -> None:
        self.inner.unlink(path)

    def fsync(self, path: Path) -> None:
        self.inner.fsync(path)

    def fsync_directory(self, path: Path) -> None:
        self.inner.fsync_directory(path)

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        self.inner.set_mtime(path, mtime_ns)

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        self.inner.copy_owner_and_mode(source, target)

    def make_directory(self, path: Path) -> None:
        self.inner.make_directory(path)

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)
