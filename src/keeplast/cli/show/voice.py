"""How much a command says beside its result, and the file in which all of it is kept.

One voice a process: commands run one at a time, and their worker threads share it. Errors and
warnings are said whatever was asked for; a quiet command has its log file all the same.
"""

from __future__ import annotations

import datetime
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from keeplast.clock import Clock, SystemClock

LOUD = ("error", "warning")
"""Kinds of lines that no ``--quiet`` keeps back."""

_lock = threading.Lock()


class Voice:
    """What ``--quiet``, ``--verbose`` and ``--log-file`` ask for; in force inside its ``with``."""

    def __init__(
        self,
        *,
        is_quiet: bool = False,
        is_verbose: bool = False,
        path: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take what was asked for; ``path`` is opened by :meth:`open`."""
        self.is_quiet = is_quiet
        self.is_verbose = is_verbose
        self._path = path
        self._clock = SystemClock() if clock is None else clock
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        global _voice
        _voice = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Speak as before, and close the file."""
        global _voice
        _voice = _USUAL
        if self._file is not None:
            self._file.close()
            self._file = None

    def open(self) -> None:
        """Open the log file, which is appended to; OSError when that cannot be."""
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8", errors="backslashreplace")

    def says(self, kind: str | None) -> bool:
        """Say whether a line of this kind goes to stderr."""
        return not self.is_quiet or kind in LOUD

    def keep(self, text: str) -> None:
        """Write lines into the log file, if there is one, behind the time in UTC."""
        if self._file is None:
            return
        now = datetime.datetime.fromtimestamp(self._clock.now_ms() / 1000, datetime.UTC)
        moment = now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        with _lock:
            for line in text.splitlines():
                self._file.write(f"{moment} {line}\n")
            self._file.flush()


_USUAL = Voice()
_voice = _USUAL


def voice() -> Voice:
    """Return the voice that is in force."""
    return _voice
