"""What somebody may ask of a running loop, and whether it still turns.

Asking never waits: wishes lie in a bounded queue until the loop comes by, between two turns. Other
threads read the rest at leisure.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from keeplast.clock import Clock
from keeplast.errors import UnavailableError
from keeplast.model.partition import TopicPartition

WISHES_MAX = 100
QUIET_SECONDS_MAX = 300
"""A loop that has shown no life for so long is taken for stuck: rounds report as they read."""


class Deed(StrEnum):
    """What can be asked for."""

    CLEAN = "clean now"
    """A round of one partition, whatever its dirty ratio; every other limit stands."""
    RETRY = "retry"
    """Try again what is set aside, or waits after a failure."""
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Wish:
    """One deed, asked for at ``at_ms`` by ``by``; ``partition`` is there for the first two."""

    deed: Deed
    partition: TopicPartition | None
    by: str
    at_ms: int


class Control:
    """Between the loop and whoever watches it."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock that life is measured with."""
        self._clock = clock
        self._lock = threading.Lock()
        self._wishes: deque[Wish] = deque()
        self._beat = clock.seconds()
        self.is_paused = False
        self.trouble: str | None = None

    def ask(self, deed: Deed, partition: TopicPartition | None, by: str) -> Wish:
        """Leave a wish; UnavailableError when too many wait already."""
        wish = Wish(deed, partition, by, self._clock.now_ms())
        with self._lock:
            if len(self._wishes) >= WISHES_MAX:
                raise UnavailableError(
                    f"too many wishes wait for the loop; try again later. waiting={WISHES_MAX}"
                )
            self._wishes.append(wish)
        return wish

    @property
    def has_wishes(self) -> bool:
        """Say whether the loop should come by."""
        return bool(self._wishes)

    def take(self) -> list[Wish]:
        """Return what was asked for, in order; pausing and resuming are done by this."""
        with self._lock:
            taken = list(self._wishes)
            self._wishes.clear()
        for wish in taken:
            if wish.deed in (Deed.PAUSE, Deed.RESUME):
                self.is_paused = wish.deed is Deed.PAUSE
        return taken

    def beat(self) -> None:
        """Say that the loop is alive."""
        self._beat = self._clock.seconds()

    def fault(self) -> str | None:
        """Return why the loop cannot be said to turn, None when it turns."""
        if self.trouble is not None:
            return self.trouble
        quiet = self._clock.seconds() - self._beat
        if quiet > QUIET_SECONDS_MAX:
            return f"the loop has shown no life for {quiet:.0f} s"
        return None
