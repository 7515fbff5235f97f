"""The real file system with one fault: a given operation fails, once or from then on.

Operations are counted as :class:`~tests.support.observed_files.ObservedFiles` names them, and
writes and syncs of files with them. The error is the operating system's, path included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from keeplast.log.files import Buffer, LocalFiles, LocalWriteHandle, ReadHandle, WriteHandle

Verb = str


class FaultyFiles(LocalFiles):
    """Fails the ``fail_at``-th operation whose verb is in ``verbs``, and later ones if it lasts."""

    def __init__(
        self, verbs: frozenset[Verb], code: int, *, fail_at: int | None, lasts: bool = False
    ) -> None:
        """Count from 0; with ``fail_at`` None nothing fails and everything is counted.

        ``renames`` is how many took place.
        """
        self.count = 0
        self.renames = 0
        self.failed_paths: list[str] = []
        self._verbs = verbs
        self._code = code
        self._fail_at = fail_at
        self._lasts = lasts

    def check(self, verb: Verb, path: Path) -> None:
        """Raise when this is the operation that fails."""
        if verb not in self._verbs:
            return
        number = self.count
        self.count += 1
        if self._fail_at is None or number < self._fail_at:
            return
        if number == self._fail_at or self._lasts:
            self.failed_paths.append(str(path))
            raise OSError(self._code, os.strerror(self._code), str(path))

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Open, which may fail, a file whose writes may fail."""
        self.check("open", path)
        return _FaultyWriter(path, append=append, check=self.check)

    def rename(self, source: Path, target: Path) -> None:
        """Rename or fail."""
        self.check("rename", source)
        self.renames += 1
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Link or fail."""
        self.check("link", source)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove or fail."""
        self.check("unlink", path)
        super().unlink(path)

    def fsync_directory(self, path: Path) -> None:
        """Flush or fail."""
        self.check("flush", path)
        super().fsync_directory(path)

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set or fail."""
        self.check("time", path)
        super().set_mtime(path, mtime_ns)


class ShortReads(LocalFiles):
    """The real file system, of which the ``short_at``-th opened file ends one byte early."""

    def __init__(self, *, short_at: int | None) -> None:
        """Count from 0; None only counts."""
        self.count = 0
        self.short_path: str | None = None
        self._short_at = short_at

    def open_read(self, path: Path) -> ReadHandle:
        """Open."""
        handle = super().open_read(path)
        number = self.count
        self.count += 1
        if number != self._short_at or not handle.size_bytes:
            return handle
        self.short_path = str(path)
        return _ShortReader(handle)


class _FaultyWriter(LocalWriteHandle):
    """A file whose writes and syncs are checked first."""

    def __init__(self, path: Path, *, append: bool, check: Callable[[Verb, Path], None]) -> None:
        super().__init__(path, append=append)
        self._checked_path = path
        self._check = check

    def write(self, data: Buffer) -> None:
        self._check("write", self._checked_path)
        super().write(data)

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        self._check("write", self._checked_path)
        super().copy_from(source, position, length)

    def fsync(self) -> None:
        self._check("fsync", self._checked_path)
        super().fsync()


class _ShortReader:
    """A file that says its size and has a byte less."""

    def __init__(self, inner: ReadHandle) -> None:
        self._inner = inner

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        room = max(0, self._inner.size_bytes - 1 - position)
        return self._inner.pread_into(buffer[:room], position)

    def close(self) -> None:
        self._inner.close()
