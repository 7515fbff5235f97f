"""This host's files, with a count of the bytes that are read of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from keeplast.log.files import LocalFiles, LocalReadHandle, ReadHandle


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the bytes that are read of this host's files from now on, by the ending of the name.

    Files stay what they are, for code that asks whether one is on a disk.
    """
    read: Counter[str] = Counter()
    pread = LocalReadHandle.pread_into

    def counted(handle: LocalReadHandle, buffer: memoryview, position: int) -> int:
        count = pread(handle, buffer, position)
        read[handle._path.suffix] += count
        return count

    monkeypatch.setattr(LocalReadHandle, "pread_into", counted)
    return read


class CountingFiles(LocalFiles):
    """Counts the bytes that are read of files with a ``suffix``, of all of them without one."""

    def __init__(self, suffix: str | None = None) -> None:
        self.bytes_read = 0
        self._suffix = suffix

    def open_read(self, path: Path) -> ReadHandle:
        handle = super().open_read(path)
        is_counted = self._suffix is None or path.suffix == self._suffix
        return _CountingHandle(handle, self) if is_counted else handle


class _CountingHandle:
    def __init__(self, handle: ReadHandle, files: CountingFiles) -> None:
        self._handle = handle
        self._files = files

    @property
    def size_bytes(self) -> int:
        return self._handle.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        count = self._handle.pread_into(buffer, position)
        self._files.bytes_read += count
        return count

    def close(self) -> None:
        self._handle.close()
