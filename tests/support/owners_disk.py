"""A disk in memory that a broker and keeplast share, and that the broker changes at any moment.

keeplast's operations are steps of its task: each may be its last. Before each of them, reading
included, the broker may do something. The broker's own changes are no operations, and whole.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.clock import Clock
from keeplast.log.files import FileStat, ReadHandle, WriteHandle
from tests.support.crashing_files import Directory, Inode
from tests.support.tier_world_stores import HostFiles
from tests.support.tier_world_tasks import Tasks


def _nothing() -> None:
    """Let nothing happen."""


class SharedFiles(HostFiles):
    """Files of two owners. ``meanwhile`` is called before each look of a task."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        """Start empty."""
        super().__init__({}, tasks, clock)
        self.meanwhile: Callable[[], None] = _nothing

    # What keeplast does.

    def _note(self, operation: str) -> None:
        self._look()
        super()._note(operation)

    def _look(self) -> None:
        task = self._tasks.current
        if task is not None:
            self._tasks.count_step(task)
            with self._tasks.unobserved():
                self.meanwhile()

    def listdir(self, path: Path) -> list[str]:
        """Return names."""
        self._look()
        return super().listdir(path)

    def open_read(self, path: Path) -> ReadHandle:
        """Open a file to read; it stays what it is when another takes its name."""
        self._look()
        return _Reader(self, super().open_read(path))

    def stat(self, path: Path) -> FileStat:
        """Return size and time."""
        self._look()
        return super().stat(path)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole."""
        self._look()
        return super().read_bytes(path, limit)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Create, truncate or append."""
        self.make_directory(path.parent)
        return super().open_write(path, append=append)

    # What the broker does.

    def put(self, path: Path, data: bytes, mtime_ms: int) -> None:
        """Let a new file with this content be there."""
        self._names(path)[path.name] = Inode(bytearray(data), data, mtime_ms * 10**6)

    def extend(self, path: Path, data: bytes, mtime_ms: int) -> None:
        """Append to a file, or begin one."""
        found = self._names(path).get(path.name)
        if found is None:
            self.put(path, data, mtime_ms)
        else:
            found.data += data
            found.mtime_ns = mtime_ms * 10**6

    def cut(self, path: Path, size_bytes: int) -> None:
        """Shorten a file in place."""
        del self._names(path)[path.name].data[max(size_bytes, 0) :]

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        self._names(path).pop(path.name, None)

    def move(self, source: Path, target: Path) -> None:
        """Give a file another name, in the place of what has it."""
        names = self._names(source)
        names[target.name] = names.pop(source.name)

    def read_offset(self, path: Path) -> int | None:
        """Return the offset in a checkpoint of one partition, None without one."""
        found = self._names(path).get(path.name)
        lines = [] if found is None else bytes(found.data).decode().splitlines()[2:]
        return int(lines[0].split()[-1]) if lines else None

    def content(self, directory: Path) -> dict[str, bytes]:
        """Return everything in a directory."""
        return {n: bytes(i.data) for n, i in self._directories[directory].names.items()}

    def remove_directory(self, directory: Path) -> None:
        """Remove a directory without work on it."""
        self._directories.pop(directory, None)

    def _names(self, path: Path) -> dict[str, Inode]:
        return self._directories.setdefault(path.parent, Directory()).names


class _Reader:
    """Looks before each read."""

    def __init__(self, files: SharedFiles, handle: ReadHandle) -> None:
        self._files, self._handle = files, handle

    @property
    def size_bytes(self) -> int:
        return self._handle.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self._files._look()
        return self._handle.pread_into(buffer, position)

    def close(self) -> None:
        self._handle.close()
