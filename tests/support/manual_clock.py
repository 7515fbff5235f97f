"""Time that moves only when a test moves it, or sleeps."""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.clock import Clock


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


class SharedTime:
    """A :class:`~keeplast.tier.metadata.database.StoreTime` of all hosts, as PostgreSQL's is."""

    is_shared = True

    def __init__(self, clock: Clock) -> None:
        """Give the time of ``clock``."""
        self.clock = clock

    def now_ms(self, _connection: object) -> int:
        """Return the time that was set."""
        return self.clock.now_ms()


class SkewedClock:
    """The clock of one host of several: ahead by ``ahead_ms[name]``, behind when negative."""

    def __init__(self, clock: ManualClock, ahead_ms: Mapping[str, int], name: str) -> None:
        """Follow ``clock``, which is right."""
        self._clock = clock
        self._ahead_ms = ahead_ms
        self._name = name

    def now_ms(self) -> int:
        """Return what the host takes for the time."""
        return self._clock.now_ms() + self._ahead_ms.get(self._name, 0)

    def seconds(self) -> float:
        """Return the seconds that have passed, which are the same for all."""
        return self._clock.seconds()

    def sleep(self, seconds: float) -> None:
        """Let time pass, for all."""
        self._clock.sleep(seconds)
