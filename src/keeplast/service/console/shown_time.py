"""A time as pages show it: how far away it is, and when that is. Pure.

What a reader must not break: a date by which something is kept is never told earlier than it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from keeplast.clock import time_text, utc_text
from keeplast.model.duration import NEAR_MS, precise_duration_text, precise_relative_text

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ShownTime:
    """A time for people; ``iso`` and ``at_ms`` are for machines, ``iso`` empty where none is.

    ``is_deadline`` says that it counts on as late, not as ago.
    """

    text: str
    iso: str = ""
    title: str = ""
    at_ms: int = 0
    is_deadline: bool = False

    @property
    def minute(self) -> str:
        """Return the time to the minute, the next one where it has seconds: a date is kept by then;
        empty without one.
        """
        if not self.iso:
            return ""
        text = utc_text(-(-self.at_ms // MINUTE_MS) * MINUTE_MS)
        return f"{text[:16]} UTC" if len(text) == len(self.title) else self.title


NO_TIME = ShownTime("")


def moment(at_ms: int | None, now_ms: int) -> ShownTime:
    """Return a time, how far away it is first."""
    if at_ms is None:
        return NO_TIME
    text = time_text(at_ms)
    iso = f"{text[:10]}T{text[11:19]}Z" if len(text) == 23 and at_ms >= 0 else ""
    return ShownTime(precise_relative_text(at_ms, now_ms), iso, utc_text(at_ms), at_ms)


def deadline(at_ms: int | None, now_ms: int) -> ShownTime:
    """Return by when something is due; behind it, for how long it is overdue."""
    found = moment(at_ms, now_ms)
    if at_ms is None or at_ms + NEAR_MS > now_ms:
        return found
    return replace(
        found, text=f"overdue for {precise_duration_text(now_ms - at_ms)}", is_deadline=True
    )
