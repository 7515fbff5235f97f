"""What logs are read for when a page asks: one search at a time, within a budget, of open topics.

What a reader must not break: the key goes to the search and into its answer, and nowhere else: no
error, log or URL has it. A search ends when its client has left.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError, StoppedError, UnavailableError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.stages import LogHeaders
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes
from keeplast.service.explained import KeyAnswer

SECONDS_DEFAULT, SECONDS_MAX = 20, 50
"""A search ends before the gate would cut its request off."""
BYTES_DEFAULT = 8 << 30
MEMORY_BYTES = 64 << 20
VALUES_BYTES_MAX = 32 << 20
"""The records of one log are kept while they are answered with, hidden values too."""


class SearchLimits(Struct, frozen=True):
    """What searches may take, and what they may show.

    ``closed`` are patterns of topics, as a shell has them, whose keys are not searched.
    """

    seconds: float = SECONDS_DEFAULT
    bytes_max: int = BYTES_DEFAULT
    shows_values: bool = True
    closed: tuple[str, ...] = ()

    def is_closed(self, topic: str) -> bool:
        """Say whether keys of a topic may not be shown here."""
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


class HeaderScanner(Protocol):
    """Reads the batch headers of a partition of the place that the console shows."""

    def __call__(
        self, partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
    ) -> LogHeaders:
        """Read them; what ``progressed`` raises ends it."""


class KeySearches:
    """What one console reads logs for, when a visitor asks: keys, and batch headers."""

    def __init__(
        self,
        find: KeyFinder,
        clock: Clock,
        limits: SearchLimits,
        scan: HeaderScanner | None = None,
    ) -> None:
        """Take how a key is found, within which limits, and how headers are read if they are."""
        self._find = find
        self._scan = scan
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

        RefusedError for a closed topic; UnavailableError while another search is under way.
        StoppedError when it takes more than its budget, or ``has_left`` says that its client has
        left. Other errors are those of the place.
        """
        if self.limits.is_closed(topic):
            raise RefusedError(
                "this topic is closed to key search here: --closed-topics", code="K706"
            )
        with self._alone(has_left) as budget:
            asked = AskedKey(key, header=header, values_bytes_max=VALUES_BYTES_MAX)
            return self._find(
                topic, partition, asked, self._clock.now_ms(),
                planned=budget.planned, progressed=budget.progressed,
            )  # fmt: skip

    @property
    def has_scans(self) -> bool:
        """Say whether batch headers are read here."""
        return self._scan is not None

    def scan(
        self, partition: TopicPartition, size_bytes: int, has_left: Callable[[], bool]
    ) -> LogHeaders:
        """Return what the batch headers of a log of ``size_bytes`` say; errors as of a search.

        No key is shown, so that no topic is closed to it. InvalidError where they are not read.
        """
        if self._scan is None:
            raise InvalidError(
                "batch headers are not read here: the console does not know where they are",
                code="K706",
            )
        with self._alone(has_left) as budget:
            budget.planned(size_bytes)
            return self._scan(partition, self._clock.now_ms(), progressed=budget.progressed)

    @contextlib.contextmanager
    def _alone(self, has_left: Callable[[], bool]) -> Iterator[_Budget]:
        """Give a budget to the only one that reads."""
        if not self._busy.acquire(blocking=False):
            raise UnavailableError(
                "something else is being searched; one search runs at a time", code="K706"
            )
        try:
            yield _Budget(self.limits, self._clock, has_left)
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
                f"it would read {format_bytes(size_bytes)}, more than the "
                f"{format_bytes(self._limits.bytes_max)} of --search-bytes; choose one partition, "
                "or ask keeplast explain",
                code="K706",
            )

    def progressed(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        if self._has_left():
            raise StoppedError("the browser has closed the connection", code="K706")
        if self._clock.seconds() > self._until:
            raise StoppedError(
                f"it took longer than the {self._limits.seconds:g} s of --search-seconds, "
                f"and had read {format_bytes(self._read_bytes)}; choose one partition, or ask "
                "keeplast explain",
                code="K706",
            )
        self.planned(self._read_bytes)
