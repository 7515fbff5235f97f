"""What keeps rounds from going on: named holds, and consumer groups that have not read so far.

A *hold* keeps the states of a partition as of a point, and later, until some time. For that no
round cleans the partition past the hold's limit. That lies below the point where a transaction is
in flight there: a round would go by how it ended. A hold ends by itself: one that is never released
would keep what was deleted for good.

*Consumer groups* are waited for with tombstones and markers. What has passed its delete horizon
goes once every group has committed an offset beyond it, or once it has waited ``max_ms`` longer
than its horizon. A group without a known offset that counts has read nothing: too late costs disk,
too early a reader's tombstone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum, auto
from typing import Any, Protocol

from msgspec import Struct

from keeplast.errors import InvalidError, RefusedError
from keeplast.model.partition import TopicPartition

NAME_CHARS_MAX = 64
AGE_MS_MAX = 366 * 86_400_000
"""Who needs a state for longer exports it."""
HOLDS_MAX = 100_000
"""Of one data directory, store or cluster."""


class Hold(Struct, frozen=True, order=True):
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


class KeptPoint(Struct, frozen=True):
    """The states that can be shown as of ``offset``, and as of every later one.

    That holds as long as nothing is cleaned at or above ``limit``, which is at most ``offset``.
    """

    offset: int
    limit: int


class HoldPoint(Struct, frozen=True):
    """Where a hold begins: at ``offset``, or at a time in ms, or, without either, where logs end.

    The end is that of what is decided: where the first open transaction begins. Where the state as
    of that cannot be shown any more, it is the first point above it whose state can.
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
            f"underscores. name={name[: 2 * NAME_CHARS_MAX]!r}",
            code="K107",
        )


def check_hold_age(age_ms: int) -> None:
    """Raise InvalidError for a hold that would be over at once, or hardly ever."""
    if not 1000 <= age_ms <= AGE_MS_MAX:
        raise InvalidError(
            f"a hold lasts for a second at least and {AGE_MS_MAX // 86_400_000} d at most; for "
            f"longer, export the state. max_age_ms={age_ms}",
            code="K104",
        )


def require_new_name(name: str, known: Iterable[Hold], now_ms: int, place: str) -> None:
    """Raise RefusedError when one of ``known``, all of ``place``, has this name at ``now_ms``."""
    if any(each.name == name and each.is_in_force(now_ms) for each in known):
        raise RefusedError(
            "there is a hold of this name; release it first, or take another name. "
            f"name={name} {place}",
            code="K601",
        )


def require_room(count: int, place: str) -> None:
    """Raise RefusedError for more holds than a place may have."""
    if count > HOLDS_MAX:
        raise RefusedError(
            f"too many holds; release some. holds={count} most={HOLDS_MAX} {place}", code="K602"
        )


def holds_named(name: str, known: Sequence[Hold], place: str) -> tuple[Hold, ...]:
    """Return the holds of a name, those that are over too; InvalidError when there is none."""
    found = tuple(each for each in known if each.name == name)
    if not found:
        names = ", ".join(sorted({each.name for each in known})) or "none"
        raise InvalidError(
            f"there is no hold of this name; there are: {names}. name={name} {place}", code="K603"
        )
    return found


def in_force(holds: Iterable[Hold], now_ms: int) -> tuple[Hold, ...]:
    """Return those that count at ``now_ms``."""
    return tuple(each for each in holds if each.is_in_force(now_ms))


class HeldTopic(Struct, frozen=True):
    """A hold and the id of its topic, None where the name alone says which topic it is."""

    hold: Hold
    topic_id: str | None = None


class HoldBook(Struct, frozen=True):
    """Holds of a place, and its time in milliseconds since 1970, which decides when they end."""

    holds: tuple[HeldTopic, ...]
    now_ms: int

    @classmethod
    def of(cls, holds: Iterable[Hold], now_ms: int) -> HoldBook:
        """Return holds whose topic has its name alone."""
        return cls(tuple(map(HeldTopic, holds)), now_ms)


class Absence(StrEnum):
    """Why no offset of a group counts."""

    NOT_COMMITTED = auto()
    NOT_HERE = auto()
    UNREADABLE = auto()
    NOT_UNDERSTOOD = auto()
    ANOTHER_TOPIC = auto()
    BEYOND_END = auto()
    # Documents show these two words, so they stay.
    NOT_REPORTED = "not_told"
    NOT_ASKED = "nobody_asked"


class WaitedGroup(Struct, frozen=True):
    """A group and where it goes on reading a partition: it has read what lies below ``offset``.

    ``offset`` is None where none counts, and ``absence`` is why. ``home`` is the partition of
    ``__consumer_offsets`` that its offsets are in, None where no files were looked at. ``problem``
    is why a broker that was asked did not report it, an error's text, and empty otherwise.
    """

    group: str
    offset: int | None
    home: int | None
    absence: Absence | None = None
    problem: str = ""


class ReaderWait(Struct, frozen=True):
    """The groups that are waited for in one partition, one at least, and for how long.

    The wait ends at most so long after a horizon.
    """

    groups: tuple[WaitedGroup, ...]
    max_ms: int

    @property
    def passed_to(self) -> int:
        """Return the offset below which all groups have read, exclusive; 0 where one has not."""
        return min(0 if each.offset is None else each.offset for each in self.groups)

    def ends_at(self, horizon_ms: int, last_offset: int) -> int:
        """Return from when on what has this horizon may go, if no group reads on meanwhile.

        ``last_offset`` is the last of it. It may go as soon as all have read beyond that.
        """
        return horizon_ms if last_offset < self.passed_to else horizon_ms + self.max_ms

    def as_document(self) -> object:
        """Return what documents and receipts show."""
        return {"groups": self.groups, "max_ms": self.max_ms, "passed_to": self.passed_to}


class GroupReader(Protocol):
    """The source of what groups have committed: a cluster's brokers."""

    def waited(
        self,
        partition: TopicPartition,
        groups: Sequence[str],
        topic_id: bytes | None,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where each of ``groups`` goes on reading a partition, in their order, each once.

        ``topic_id`` is that of the log that is asked about, None where it is not known. Raises
        nothing: what is not reported, in bounded time, has no offset.
        """


class ReportedGroups(Struct, frozen=True):
    """A :class:`GroupReader` of one partition that was asked before; it can be sent to a task."""

    groups: tuple[WaitedGroup, ...]

    def waited(
        self,
        partition: TopicPartition,
        groups: Sequence[str],
        topic_id: bytes | None,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return what was given, whatever is asked."""
        return self.groups


def not_asked(groups: Sequence[str]) -> tuple[WaitedGroup, ...]:
    """Return groups without a source to ask: none has read anything."""
    return tuple(WaitedGroup(each, None, None, Absence.NOT_ASKED) for each in dict.fromkeys(groups))


def read_wait(document: dict[str, Any] | None) -> ReaderWait | None:
    """Return what :meth:`ReaderWait.as_document` has shown, without why offsets do not count.

    None for nothing. KeyError, TypeError or ValueError for what it never shows.
    """
    if document is None:
        return None
    groups = [
        WaitedGroup(
            str(each["group"]),
            None if each["offset"] is None else int(each["offset"]),
            None if each["home"] is None else int(each["home"]),
        )
        for each in document["groups"]
    ]
    if not groups:
        raise ValueError("a wait without a group")
    return ReaderWait(tuple(groups), int(document["max_ms"]))
