"""The only reader of wall time.

Everything else takes ``now_ms`` or a :class:`Clock`, so that a run can be repeated exactly.
"""

from __future__ import annotations

import datetime
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for the rooms that do I/O."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""

    def seconds(self) -> float:
        """Return monotonic seconds; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``; used for back-off and throttling only."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back; only differences mean something."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp in UTC, or the bare number when no calendar has it."""
    if timestamp_ms < 0:
        return "none" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def utc_text(timestamp_ms: int) -> str:
    """Return a time to the second with its zone, as sentences say it; without a calendar's, as
    :func:`time_text`.
    """
    text = time_text(timestamp_ms)
    return f"{text[:19]} UTC" if len(text) == 23 else text
