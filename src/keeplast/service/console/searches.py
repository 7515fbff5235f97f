"""Searches for a key that a page asks for: one at a time, within a budget, of open topics alone.

What a reader must not break: the key goes to the search and into its answer, and nowhere else: no
error, log or URL has it. A search ends with whoever asked for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from keeplast.clock import Clock
from keeplast.errors import RefusedError, StoppedError, UnavailableError
from keeplast.inspect.explain import AskedKey
from keeplast.model.size import format_bytes
from keeplast.service.explained import KeyAnswer

SECONDS_DEFAULT, SECONDS_MAX = 20, 50
"""A search ends before the gate would cut its request off."""
BYTES_DEFAULT = 8 << 30
MEMORY_BYTES = 64 << 20
VALUES_BYTES_MAX = 32 << 20
"""The records of one log are kept while they are answered with, hidden values too."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What searches may take, and what they may show.

    ``closed`` are patterns of topics, as a shell has them, of which no key is searched.
    """

    seconds: float = SECONDS_DEFAULT
    bytes_max: int = BYTES_DEFAULT
    shows_values: bool = True
    closed: tuple[str, ...] = ()

    def is_closed(self, topic: str) -> bool:
        """Say whether keys of a topic are nobody's to see here."""
        return any(fnmatchcase(topic, pattern) for pattern in self.closed)


class KeyFinder(Protocol):
    """Finds a key in a topic of the place that the console shows, as ``keeplast explain`` does."""

    def __call__(
        self,
        topic: str,
        partition: int | None,
        asked: AskedKey,
        now_ms: int,
        *,
        planned: Callable[[int], None],
        progressed: Callable[[int], None],
    ) -> KeyAnswer:
        """Search one partition, or all for None; what the last two raise ends it."""
        ...


class KeySearches:
    """The searches of one console."""

    def __init__(self, find: KeyFinder, clock: Clock, limits: SearchLimits) -> None:
        """Take how a key is found, and within which limits."""
        self._find = find
        self._clock = clock
        self._busy = threading.Lock()
        self.limits = limits

    def search(
        self,
        topic: str,
        partition: int | None,
        key: bytes,
        header: str | None,
        has_left: Callable[[], bool],
    ) -> KeyAnswer:
        """Return what is known of a key.

        RefusedError for a closed topic; UnavailableError while another search is under way;
        StoppedError when it takes more than its budget, or ``has_left`` says that nobody waits for
        it any more. Other errors are those of the place.
        """
        if self.limits.is_closed(topic):
            raise RefusedError("this topic is closed to key search here: --closed-topics")
        if not self._busy.acquire(blocking=False):
            raise UnavailableError("another key is being searched; one search runs at a time")
        try:
            budget = _Budget(self.limits, self._clock, has_left)
            asked = AskedKey(key, header=header, values_bytes_max=VALUES_BYTES_MAX)
            return self._find(
                topic, partition, asked, self._clock.now_ms(),
                planned=budget.planned, progressed=budget.progressed,
            )  # fmt: skip
        finally:
            self._busy.release()


class _Budget:
    """Ends a search that takes too much; hears of every window that is read."""

    def __init__(self, limits: SearchLimits, clock: Clock, has_left: Callable[[], bool]) -> None:
        self._limits = limits
        self._clock = clock
        self._has_left = has_left
        self._until = clock.seconds() + limits.seconds
        self._read_bytes = 0

    def planned(self, size_bytes: int) -> None:
        if size_bytes > self._limits.bytes_max:
            raise StoppedError(
                f"a search would read {format_bytes(size_bytes)}, more than the "
                f"{format_bytes(self._limits.bytes_max)} of --search-bytes; choose one partition, "
                "or ask keeplast explain"
            )

    def progressed(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        if self._has_left():
            raise StoppedError("whoever asked has left")
        if self._clock.seconds() > self._until:
            raise StoppedError(
                f"the search took longer than the {self._limits.seconds:g} s of --search-seconds, "
                f"and had read {format_bytes(self._read_bytes)}; choose one partition, or ask "
                "keeplast explain"
            )
        self.planned(self._read_bytes)
