"""Time that moves only when a test moves it, or sleeps."""

from __future__ import annotations


class ManualClock:
    """A :class:`~keeplast.clock.Clock`; sleeping takes no time and lets it pass."""

    def __init__(self, now_ms: int) -> None:
        """Start at ``now_ms``."""
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self._now_ms

    def seconds(self) -> float:
        """Return the same time in seconds."""
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self._now_ms += milliseconds
