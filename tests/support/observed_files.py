"""A file system that remembers what was asked of it, and can stop as if the power went.

Operations are written as short lines: ``rename A B``, ``unlink A``, ``fsync A``, ``flush D``; names
only, no directories. Reading leaves no line. After a crash nothing reaches the disk any more.
Nothing waits for the disk: what a test looks at is in the page cache anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.format.filename import CLEANED_FOR
from keeplast.log.files import Buffer, LocalFiles, LocalWriteHandle, WriteHandle


class Crash(BaseException):
    """The process is gone. Not an Exception: no handler of errors runs for it."""


class _Unsynced(LocalWriteHandle):
    def fsync(self) -> None:
        """Do nothing."""


class UnsyncedFiles(LocalFiles):
    """The real file system, without waiting for stable storage."""

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Create or append."""
        return _Unsynced(path, append=append)

    def fsync(self, path: Path) -> None:
        """Do nothing."""

    def fsync_directory(self, path: Path) -> None:
        """Do nothing."""


class ObservedFiles(UnsyncedFiles):
    """Remembers every operation that changes names, and dies before number ``crash_at``."""

    def __init__(self, *, crash_at: int | None = None, free_bytes: int | None = None) -> None:
        """Count from 0; ``free_bytes`` replaces what the volume says."""
        self.operations: list[str] = []
        self._crash_at = crash_at
        self._free_bytes = free_bytes
        self._is_dead = False

    def waves(self) -> int:
        """Return how many times what had been replaced was removed to make room."""
        removals = [
            operation.startswith("unlink") and not operation.endswith((".tmp", CLEANED_FOR))
            for operation in self.operations
        ]
        return sum(1 for i, removes in enumerate(removals) if removes and not removals[i - 1])

    def _note(self, operation: str) -> None:
        if self._is_dead or len(self.operations) == self._crash_at:
            self._is_dead = True
            raise Crash(operation)
        self.operations.append(operation)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Note and open."""
        self._note(f"open {path.name}")
        return super().open_write(path, append=append)

    def rename(self, source: Path, target: Path) -> None:
        """Note and rename."""
        self._note(f"rename {source.name} {target.name}")
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Note and link."""
        self._note(f"link {source.name} {target.name}")
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        """Note and remove."""
        self._note(f"unlink {path.name}")
        super().unlink(path)

    def fsync_directory(self, path: Path) -> None:
        """Note and flush."""
        self._note(f"flush {path.name}")
        super().fsync_directory(path)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Note and replace."""
        self._note(f"write {path.name}")
        super().write_durable(path, data)

    def append_durable(self, path: Path, data: Buffer) -> None:
        """Note and append."""
        self._note(f"append {path.name}")
        super().append_durable(path, data)

    def free_bytes(self, path: Path) -> int:
        """Return what was given, else what the volume says."""
        return super().free_bytes(path) if self._free_bytes is None else self._free_bytes


class StoppingFiles(ObservedFiles):
    """Asks for the end of the run before operation ``stop_at``."""

    def __init__(self, stop_at: int | None) -> None:
        """Ask for nothing until ``stop`` is set."""
        super().__init__()
        self.stop: Callable[[], object] = bool
        self._stop_at = stop_at

    def _note(self, operation: str) -> None:
        if len(self.operations) == self._stop_at:
            self.stop()
        super()._note(operation)
