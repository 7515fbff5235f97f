"""Processor time of this process and of all that it began, and what each test file took of it.

The rule: **no figure here is a time by the clock.** What a test file takes depends on the machine
and on what else runs there, so that files are compared with each other in one run, and with
nothing else.
"""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

OUTSIDE = ("kafka", "services", "watch", "console")
"""Rooms of tests that need more than this package; ``make test`` imports none of them."""
PROCESSES = 2
"""How many ``make test`` runs side by side, by default."""
TICKS = os.sysconf("SC_CLK_TCK")
BEGIN = "begin"
"""The weight of what comes before the first test: imports and collecting, in every process."""
UNLISTED = "unlisted"
"""The weight of each file without one of its own."""
TIMES_MAX = 3
"""A file may take so many times its weight before the weight is wrong."""
SECONDS_MIN = 15.0
"""A file that takes less is never too heavy."""


def processor_seconds() -> float:
    """Return what this process, those it waited for and those still alive have taken.

    Where there is no ``/proc``, those alive are counted once they were waited for.
    """
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    found, todo = own, _children(os.getpid())
    while todo:
        pid = todo.pop()
        found += _taken_by(pid)
        todo += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        return found  # it has ended meanwhile
    return found


def _taken_by(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


class FileCosts:
    """What each test file took, in processor seconds."""

    def __init__(self) -> None:
        """Begin."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._taken = 0.0

    def count(self, name: str) -> None:
        """Count to ``name`` what was taken since the last call."""
        # What died without being waited for is taken back.
        taken = max(self._taken, processor_seconds())
        self.seconds[name] += taken - self._taken
        self._taken = taken


def read_weights(text: str) -> dict[str, float]:
    """Return the declared weight of each test file, in processor seconds."""
    return {name: float(weight) for name, weight in tomllib.loads(text).items()}


def weight_of_all(weights: Mapping[str, float], files: Iterable[str]) -> float:
    """Return what a run of ``files`` weighs, in processor seconds."""
    return PROCESSES * weights[BEGIN] + sum(weights.get(name, weights[UNLISTED]) for name in files)


def too_heavy(seconds: Mapping[str, float], weights: Mapping[str, float]) -> list[str]:
    """Return the files that took far more than their weight, at the pace of the whole run."""
    files = [name for name in seconds if name != BEGIN]
    weight = {name: weights.get(name, weights[UNLISTED]) for name in files}
    pace = sum(seconds[name] for name in files) / sum(weight.values()) if files else 1.0
    return sorted(
        name for name in files if seconds[name] > pace * max(TIMES_MAX * weight[name], SECONDS_MIN)
    )
