"""Objects as open files: read by ranges, written as streams.

What every file system of a round is that lies on objects: a file is written once, and stays.

The rule: **what was closed is durable, keeps its name, and is never appended to**.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from keeplast.errors import CorruptError, InvariantError, UnavailableError, invariant
from keeplast.log.files import Buffer, ReadHandle, WriteHandle
from keeplast.tier.objects.object_store import ObjectStore, fill

COPY_BYTES = 1 << 20
FREE_BYTES = 1 << 60
"""An object store is never full."""


class ObjectReadHandle:
    """An object of a known size that is read by position; a range is one request."""

    def __init__(self, objects: ObjectStore, key: str, size_bytes: int) -> None:
        """Read ``key``; nothing is asked for when it has no bytes."""
        self.objects = objects
        self.key = key
        self.size_bytes: Final = size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer``; CorruptError when the object has become shorter."""
        end = min(position + len(buffer), self.size_bytes)
        if end <= position:
            return 0
        if fill(self.objects, self.key, position, buffer[: end - position]):
            return end - position
        data = self.objects.read_range(self.key, position, end)
        if len(data) != end - position:
            raise CorruptError(
                "object is shorter than it was when it was opened", path=self.key,
                position=position, expected=end - position, found=len(data), code="K309",
            )  # fmt: skip
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Do nothing: nothing is held open."""


class BytesReadHandle:
    """A small file that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes: Final = len(data)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` as far as there is something."""
        part = self._data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Do nothing: nothing is held open."""


class ObjectWriteHandle:
    """An object while it is written; nothing of it is there before ``fsync``.

    ``completed`` gets its size when it has appeared. One that is closed before is given up.
    """

    def __init__(self, objects: ObjectStore, key: str, completed: Callable[[int], None]) -> None:
        self._objects = objects
        self._key = key
        self._completed = completed
        self._writer = objects.open_write(key)
        self._is_open = True
        self._size_bytes = 0

    def write(self, data: Buffer) -> None:
        """Append all of ``data``."""
        invariant(self._is_open, f"the object is complete. key={self._key}")
        self._writer.write(data)
        self._size_bytes += len(memoryview(data).cast("B"))

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        """Append ``length`` bytes of ``source``."""
        copy_part(self, source, position, length, self._key)

    def fsync(self) -> None:
        """Complete the object; UnavailableError when the store has not kept all of it."""
        if self._is_open:
            self._is_open = False
            self._writer.close()
            found = self._objects.stat(self._key).size_bytes
            if found != self._size_bytes:
                raise UnavailableError(
                    "the object store has not kept what was sent; it is written again. "
                    f"key={self._key} expected_bytes={self._size_bytes} found_bytes={found}",
                    code="K305",
                )
            self._completed(self._size_bytes)

    def close(self) -> None:
        """Give an object up that was not completed."""
        if self._is_open:
            self._is_open = False
            self._writer.abort()


def copy_part(
    target: WriteHandle, source: ReadHandle, position: int, length: int, key: str
) -> None:
    """Append ``length`` bytes of ``source`` to ``key``; UnavailableError when it has fewer."""
    buffer = memoryview(bytearray(min(length, COPY_BYTES)))
    while length > 0:
        part = buffer[: min(length, COPY_BYTES)]
        count = source.pread_into(part, position)
        if count != len(part):
            raise UnavailableError(
                f"what is copied ended early. key={key} position={position}", code="K305"
            )
        target.write(part)
        position += count
        length -= count


class ObjectFacts:
    """What a :class:`~keeplast.log.files.FileSystem` of objects has no work with."""

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Do nothing: objects have neither."""

    def make_directory(self, path: Path) -> None:
        """Do nothing: a key needs no directory."""

    def free_bytes(self, path: Path) -> int:
        """Return a size that no round needs: a bucket does not fill up."""
        return FREE_BYTES


class WriteOnceFiles(ObjectFacts):
    """The methods of a :class:`~keeplast.log.files.FileSystem` that need nothing done, or may not
    be asked for."""

    def append_durable(self, path: Path, data: Buffer) -> None:
        """InvariantError: objects are not appended to."""
        raise InvariantError(f"objects are not appended to. path={path}", code="K901")

    def rename(self, source: Path, target: Path) -> None:
        """InvariantError: objects keep their key."""
        raise InvariantError(
            f"objects are not renamed. source={source} target={target}", code="K901"
        )

    def link(self, source: Path, target: Path) -> None:
        """InvariantError: an object has one key."""
        raise InvariantError(f"objects have one name. source={source} target={target}", code="K901")

    def fsync(self, path: Path) -> None:
        """Do nothing: what was closed is durable."""

    def fsync_directory(self, path: Path) -> None:
        """Do nothing: what was closed is durable."""

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Do nothing: the metadata keeps the times."""


class PartitionObjects(WriteOnceFiles):
    """The files of the one partition at ``path``."""

    path: Path

    def is_directory(self, path: Path) -> bool:
        """Say whether it is the partition or its parent."""
        return path in (self.path, self.path.parent)

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return none: a partition has files only."""
        return frozenset()
