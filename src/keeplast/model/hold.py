"""A named hold: until some time the states of a partition as of a point, and later, are kept.

For that no round cleans it past the hold's limit. That lies in front of the point where a
transaction is in flight there: a round would go by how it ended. A hold ends by itself: one that
nobody releases would keep what was deleted for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keeplast.errors import InvalidError, RefusedError
from keeplast.model.partition import TopicPartition

NAME_CHARS_MAX = 64
AGE_MS_MAX = 366 * 86_400_000
"""Who needs a state for longer exports it."""
HOLDS_MAX = 100_000
"""Of one data directory, store or cluster."""


@dataclass(frozen=True, slots=True, order=True)
class Hold:
    """The states of ``partition`` as of ``offset``, and of every later one, are kept from
    ``since_ms`` until ``until_ms``: nothing is cleaned at or above ``limit``.

    Times are milliseconds since 1970; at ``until_ms`` it is over. ``limit`` is at most ``offset``.
    """

    name: str
    partition: TopicPartition
    offset: int
    since_ms: int
    until_ms: int
    limit: int

    def is_in_force(self, now_ms: int) -> bool:
        """Say whether it counts at ``now_ms``."""
        return now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class KeptPoint:
    """The states as of ``offset``, and of every later one, can be told as long as nothing is
    cleaned at or above ``limit``, which is at most ``offset``.
    """

    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class HoldPoint:
    """Where a hold begins: at ``offset``, or at a time in ms, or, without either, where logs end.

    The end is that of what is decided: where the first open transaction begins. Where the state as
    of that cannot be told any more, it is the first point behind it whose state can.
    """

    offset: int | None = None
    time_ms: int | None = None

    @property
    def is_now(self) -> bool:
        """Say whether it is where logs end."""
        return self.offset is None and self.time_ms is None


def check_hold_name(name: str) -> None:
    """Raise InvalidError unless ``name`` may be that of a hold."""
    if re.fullmatch(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}", name) is None:
        raise InvalidError(
            f"not a name for a hold; give up to {NAME_CHARS_MAX} letters, digits, dots, dashes and "
            f"underscores. name={name[: 2 * NAME_CHARS_MAX]!r}"
        )


def check_hold_age(age_ms: int) -> None:
    """Raise InvalidError for a hold that would be over at once, or hardly ever."""
    if not 1000 <= age_ms <= AGE_MS_MAX:
        raise InvalidError(
            f"a hold lasts for a second at least and {AGE_MS_MAX // 86_400_000} d at most; for "
            f"longer, export the state. max_age_ms={age_ms}"
        )


def require_new_name(name: str, known: Iterable[Hold], now_ms: int, place: str) -> None:
    """Raise RefusedError when one of ``known``, all of ``place``, has this name at ``now_ms``."""
    if any(each.name == name and each.is_in_force(now_ms) for each in known):
        raise RefusedError(
            "there is a hold of this name; release it first, or take another name. "
            f"name={name} {place}"
        )


def require_room(count: int, place: str) -> None:
    """Raise RefusedError for more holds than a place may have."""
    if count > HOLDS_MAX:
        raise RefusedError(f"too many holds; release some. holds={count} most={HOLDS_MAX} {place}")


def holds_named(name: str, known: Sequence[Hold], place: str) -> tuple[Hold, ...]:
    """Return the holds of a name, those that are over too; InvalidError when there is none."""
    found = tuple(each for each in known if each.name == name)
    if not found:
        names = ", ".join(sorted({each.name for each in known})) or "none"
        raise InvalidError(
            f"there is no hold of this name; there are: {names}. name={name} {place}"
        )
    return found


def in_force(holds: Iterable[Hold], now_ms: int) -> tuple[Hold, ...]:
    """Return those that count at ``now_ms``."""
    return tuple(each for each in holds if each.is_in_force(now_ms))


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A hold and the id of its topic, None where the name alone says which topic it is."""

    hold: Hold
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class HoldBook:
    """Holds of a place and its time, in milliseconds since 1970, by which they end."""

    holds: tuple[HeldTopic, ...]
    now_ms: int
