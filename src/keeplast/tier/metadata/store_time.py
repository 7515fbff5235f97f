"""The time by which a store removes: one clock for all of its hosts, where the database has one.

What a reader must not break: whatever is removed because time has passed (expiry, tombstones and
markers, lags, graces, garbage) asks :class:`StoreClock`, never a host's own clock. On PostgreSQL
that is the server's; a host that differs from it removes nothing at all, because either of the two
may be the wrong one. SQLite has no clock but its host's, which counts as it does in a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, Engine, text

from keeplast.clock import Clock
from keeplast.errors import UnavailableError

SKEW_MS_MAX = 5 * 60 * 1000
"""Hosts that keep their clocks differ by milliseconds; one that does not is off by far more."""
_NOW = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)")

Reading = Callable[[], AbstractContextManager[Connection]]


class StoreTime(Protocol):
    """Tells the time of a store within a transaction."""

    is_shared: bool
    """Whether all hosts of the store are told the same time."""

    def now_ms(self, connection: Connection) -> int:
        """Return milliseconds since the Unix epoch."""
        ...


class ServerTime:
    """PostgreSQL's own clock."""

    is_shared = True

    def now_ms(self, connection: Connection) -> int:
        """Ask the server: the time of the moment, not of the transaction's begin."""
        return int(connection.execute(_NOW).scalar_one())


class HostTime:
    """The clock of whoever asks."""

    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self, connection: Connection) -> int:
        """Look at the clock."""
        return self._clock.now_ms()


def time_of(engine: Engine, clock: Clock) -> StoreTime:
    """Return what tells the time of a store in this database; ``clock`` is the host's."""
    return ServerTime() if engine.dialect.name == "postgresql" else HostTime(clock)


class StoreClock:
    """A :class:`~keeplast.clock.Clock` whose time is the store's."""

    def __init__(self, time: StoreTime, host: Clock, reading: Reading) -> None:
        """``reading`` opens a transaction in which ``time`` is asked."""
        self._time = time
        self._host = host
        self._reading = reading

    def now_ms(self) -> int:
        """Return the store's time; UnavailableError when the host's differs by too much.

        What the question took is no difference: the time must lie outside of all of it.
        """
        if not self._time.is_shared:
            return self._host.now_ms()
        with self._reading() as connection:
            return self.now_in(connection)

    def now_in(self, connection: Connection) -> int:
        """Return the same, or refuse the same, within a transaction of one's own."""
        before = self._host.now_ms()
        found = self._time.now_ms(connection)
        after = self._host.now_ms()
        ahead_ms = before - found if before > found else min(after - found, 0)
        if abs(ahead_ms) > SKEW_MS_MAX:
            raise UnavailableError(
                "this host's clock and the metadata store's differ, so nothing is removed; set the "
                f"clock that is wrong. host_ms={before} store_ms={found} "
                f"ahead_seconds={ahead_ms / 1000:.0f} seconds_max={SKEW_MS_MAX // 1000}"
            )
        return found

    def seconds(self) -> float:
        """Return the host's monotonic seconds."""
        return self._host.seconds()

    def sleep(self, seconds: float) -> None:
        """Wait on the host."""
        self._host.sleep(seconds)
