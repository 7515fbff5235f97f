"""What the processes of a contestant take: memory held at once, processor time of one thread.

Read from ``/proc``; on a system without it nothing is known, and ``None`` says so.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
SAMPLE_SECONDS = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Samples the resident memory of a process and all its descendants while it is entered.

    Pages that processes share are counted for each: an upper bound where workers are forked.
    """

    def __init__(self, process_id: int) -> None:
        """Watch ``process_id``."""
        self._root = process_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; ``peak_bytes`` is final."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            held = sum(_resident_bytes(pid) for pid in _family(self._root))
            self.peak_bytes = max(self.peak_bytes, held)
            if self._stop.wait(SAMPLE_SECONDS):
                return


def _family(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _stat_fields(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    family = [root]
    for process in family:
        family += children.get(process, [])
    return family


def _stat_fields(directory: Path) -> list[str]:
    """Return the fields of a ``stat`` file from the state on; empty when the process has gone."""
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _resident_bytes(process_id: int) -> int:
    try:
        return int((PROC / str(process_id) / "statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def thread_seconds(process_id: int) -> dict[int, float]:
    """Return the processor time that every thread of a process has had so far."""
    tasks = PROC / str(process_id) / "task"
    seconds: dict[int, float] = {}
    for entry in tasks.iterdir() if tasks.is_dir() else ():
        if fields := _stat_fields(entry):
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
    return seconds


def family_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants so far, ended ones included."""
    total = 0
    for process in _family(root):
        if fields := _stat_fields(PROC / str(process)):
            # Of a process that ended and was waited for, its parent has the time.
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS_A_SECOND


def busiest_thread_seconds(before: dict[int, float], after: dict[int, float]) -> float | None:
    """Return what the thread that worked most between two calls worked, None if unknown."""
    return max((taken - before.get(thread, 0.0) for thread, taken in after.items()), default=None)
