"""Consumer groups that tombstones and markers wait for, and how far each has read.

What has passed its delete horizon goes once every group has committed an offset beyond it, or once
it has waited ``max_ms`` longer than its horizon. A group of which nobody knows an offset that
counts has read nothing: too late costs disk, too early a reader's tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Protocol

from keeplast.model.partition import TopicPartition


class Absence(StrEnum):
    """Why no offset of a group counts."""

    NOT_COMMITTED = auto()
    NOT_HERE = auto()
    UNREADABLE = auto()
    NOT_UNDERSTOOD = auto()
    ANOTHER_TOPIC = auto()
    BEYOND_END = auto()
    NOT_TOLD = auto()
    NOBODY_ASKED = auto()


@dataclass(frozen=True, slots=True)
class WaitedGroup:
    """A group and where it goes on reading a partition: it has read what lies below ``offset``.

    ``offset`` is None where none counts, and ``absence`` is why. ``home`` is the partition of
    ``__consumer_offsets`` that its offsets are in, None where no files were looked at. ``problem``
    is what a broker that was asked did not tell it for, an error's text, and empty otherwise.
    """

    group: str
    offset: int | None
    home: int | None
    absence: Absence | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReaderWait:
    """Who is waited for in one partition, one at least, and how long at most behind a horizon."""

    groups: tuple[WaitedGroup, ...]
    max_ms: int

    @property
    def passed_to(self) -> int:
        """Return the offset below which all groups have read, exclusive; 0 where one has not."""
        return min(0 if each.offset is None else each.offset for each in self.groups)

    def ends_at(self, horizon_ms: int, last_offset: int) -> int:
        """Return from when on what has this horizon may go, if nobody reads on meanwhile.

        ``last_offset`` is the last of it. It may go as soon as all have read beyond that.
        """
        return horizon_ms if last_offset < self.passed_to else horizon_ms + self.max_ms

    def as_document(self) -> object:
        """Return what documents and receipts show."""
        return {"groups": self.groups, "max_ms": self.max_ms, "passed_to": self.passed_to}


class GroupReader(Protocol):
    """Who is asked what groups have committed: a cluster's brokers."""

    def waited(
        self,
        partition: TopicPartition,
        groups: Sequence[str],
        topic_id: bytes | None,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where each of ``groups`` goes on reading a partition, in their order, each once.

        ``topic_id`` is that of the log that is asked about, None where nobody knows it. Raises
        nothing: what is not told, in bounded time, has no offset.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToldGroups:
    """A :class:`GroupReader` of one partition that was asked before; it can be sent to a task."""

    told: tuple[WaitedGroup, ...]

    def waited(
        self,
        partition: TopicPartition,
        groups: Sequence[str],
        topic_id: bytes | None,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return what was told, whatever is asked."""
        return self.told


def nobody_asked(groups: Sequence[str]) -> tuple[WaitedGroup, ...]:
    """Return groups of which there is nobody to ask: none has read anything."""
    return tuple(
        WaitedGroup(each, None, None, Absence.NOBODY_ASKED) for each in dict.fromkeys(groups)
    )


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
        raise ValueError("a wait for nobody")
    return ReaderWait(tuple(groups), int(document["max_ms"]))
