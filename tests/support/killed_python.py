"""The end of a process before one of its changes to files, made by Python or Arrow.

Not through the port of logs: what writes exports uses the system's calls, and so does ``shutil``.
The interpreter reports each that names a file; Arrow, which is not Python, is reported here. A test
sees what other processes would: what was done stays done, and nothing more is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.observed_files import Crash

CHANGES = frozenset({"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Kill:
    """Counts changes below ``root`` and dies before number ``at``; None never does."""

    def __init__(self, root: Path, at: int | None) -> None:
        self.root = str(root)
        self.at = at
        self.operations: list[str] = []
        self.is_dead = False

    def note(self, operation: str) -> None:
        """Hear of a change that is about to be made; Crash when the process is dead by then."""
        if self.is_dead or len(self.operations) == self.at:
            self.is_dead = True
            raise Crash(operation)
        self.operations.append(operation)

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        """Hear of an event of the interpreter."""
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & _WRITES):
                return
            given: tuple[object, ...] = (path,)
        elif event in CHANGES:
            given = arguments[:2]
        else:
            return
        named = [os.fsdecode(each) for each in given if isinstance(each, str | bytes | os.PathLike)]
        # A name alone is one in a directory that is open, as where a tree is removed.
        if any(not each.startswith("/") or each.startswith(self.root) for each in named):
            self.note(f"{event} {' '.join(Path(each).name for each in named)}")


_running: list[Kill] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    for kill in _running:
        kill.hear(event, arguments)


class _HookOnce:
    """The interpreter never forgets a hook."""

    is_set = False


@contextmanager
def killed(root: Path, at: int | None, patch: pytest.MonkeyPatch) -> Iterator[Kill]:
    """Let what is within be killed before its change number ``at`` below ``root``.

    The Crash of it ends here.
    """
    if not _HookOnce.is_set:
        _HookOnce.is_set = True
        sys.addaudithook(_hear)
    kill = Kill(root, at)

    class Writer(pq.ParquetWriter):  # type: ignore[misc]
        is_open: bool

        def __init__(self, *arguments: object, **named: object) -> None:
            kill.note("parquet open")
            super().__init__(*arguments, **named)

        def write_batch(self, *arguments: object, **named: object) -> None:
            kill.note("parquet write")
            super().write_batch(*arguments, **named)

        def close(self) -> None:
            if self.is_open:
                try:
                    kill.note("parquet close")
                except Crash:
                    # The end of a process closes nothing, and there is no second question.
                    self.is_open = False
                    raise
            super().close()

    with patch.context() as patched:
        patched.setattr(pq, "ParquetWriter", Writer)
        _running.append(kill)
        try:
            yield kill
        except Crash:
            pass
        finally:
            _running.remove(kill)
