"""Whether a clock is behind the receipts that lie beside it.

What time removes went too early then, or goes too late. The rule: **a clock that looks wrong is
told, and changes nothing**: what is right nobody knows here.
"""

from __future__ import annotations

import json
from pathlib import Path

from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.survey.notes import ClockBehind
from keeplast.survey.receipt_book import last_line

CLOCK_MS_MIN = 1000
"""Clocks are corrected by less all the time."""


def clock_notes(files: FileSystem, path: Path | None, now_ms: int) -> tuple[ClockBehind, ...]:
    """Return what to tell when ``now_ms`` lies before the last receipt, nothing when it does not.

    A host's clock was ahead then or is behind now: what time removes went too early, or goes late.
    A file that is no receipt, or cannot be read, is its reader's and its writer's business.
    """
    if path is None:
        return ()
    try:
        last_ms = _last_ms(files, path.resolve())
    except (CompactionError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return (ClockBehind(path, last_ms, now_ms),) if last_ms - now_ms >= CLOCK_MS_MIN else ()


def _last_ms(files: FileSystem, path: Path) -> int:
    """Return the time of the last whole line; ValueError without one that is short enough."""
    line = last_line(files, path)
    if line is None:
        raise ValueError("no whole line")
    return int(json.loads(line)["now_ms"])
