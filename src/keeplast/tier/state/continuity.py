"""Whether a copy may go on where object storage ends, next to a cleaner that is not ours. Pure.

A broker cleans its directory by itself, also what was not copied yet. ``E`` is the store's end.
Below it the store has its own copy; from it on it gets what the broker's cleaner has left.

*What can hurt* is only a tombstone or a transaction marker at or above ``E`` that is gone. What it
deletes may lie below ``E`` in the store, where nothing would ever delete it. Records that a later
one supersedes are harmless with the strategy ``offset``. The cleaner drops one only for a record or
tombstone of its key at a higher offset, that one for a higher one still. The last of them is there
to be copied, or is a tombstone that is gone. Nor do aborted data hurt: their marker shows what they
are.

*When it can be gone.* A cleaner keeps a tombstone or marker in the first cleaning. It stamps it
with a horizon, the clock at the start of that cleaning plus ``delete.retention.ms``. A later
cleaning drops it when the horizon has passed. What lies in a segment that is active, or above the
last stable offset, was never cleaned. So a :class:`Visit` is remembered: *at this time nothing at
or above this offset had been cleaned*. Whatever is dropped there was dropped a retention later.

The rule. A range ``[E, end)`` of the directory is taken

1. when all offsets of it are there (:attr:`Content.missing` is 0): nothing was dropped; or
2. when the store is empty, or holds exactly what the directory does below ``E``, and all of it was
   read as one moment's (the caller's to know). It is then the broker's own log; or
3. when it was read before the deadline. That is the newest visit at or below ``E``, plus the least
   ``delete.retention.ms`` that was seen since, less a slack of an eighth for clocks that are
   corrected. Batches of the old formats have no horizon, and nothing of them is taken by time. Nor
   is it where a horizon is there that is earlier than that. Then somebody keeps tombstones shorter
   than is known here, or the replica has fetched what its leader had cleaned before. Whole segments
   are taken. From half of the retention before the deadline on, what is replicated of the next one
   is taken too. A broker may have merged it across the high watermark each time;
4. else it *could miss a delete* (:class:`Doubt`). When the directory begins at or below the store's
   log start, its range replaces the store's whole range as one transaction. Otherwise it is
   refused;
5. by timestamp or header a broker, which cleans by offset, may drop the winner. The copy is refused
   as soon as offsets are missing, or its cleaner was seen to move.

Clocks are the host's that copies, which is the broker's or agrees with it up to the slack. A clock
that went back by more than the slack forgets every visit. Two things are not seen, unless a horizon
shows them. One is that ``delete.retention.ms`` was lowered and raised again between two visits. The
other is that a replica was out of sync at the visit. Its leader may have cleaned by then what it
fetches later: copy from replicas in sync.

Answers to ``Cleaner.buildOffsetMap``, ``MemoryRecords.filterTo``; cleaning.md sections 3.4 to 3.6.
"""

from __future__ import annotations

import json
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.topic_config import Strategy

VISITS_MAX = 16
"""Visits that wait for the store to reach them; the newest that it has reached is the last."""
SLACK_PARTS = 8
RENEWALS = 16
"""A visit is written down again when it is this part of the retention old.

So what is copied every half of a retention is far from the deadline.
"""


class Doubt(StrEnum):
    """Why a copy cannot rule out that a tombstone or marker is missing."""

    NEVER_SEEN = "never_seen"
    TOO_LATE = "too_late"
    OLD_FORMAT = "old_format"
    EARLY_HORIZON = "early_horizon"
    CLEANED_BY_OFFSET = "cleaned_by_offset"


class Visit(Struct, frozen=True):
    """At ``at_ms`` nothing at or above ``uncleaned_from`` had been cleaned in the directory.

    ``retention_ms`` is the ``delete.retention.ms`` that was known then.
    """

    at_ms: int
    uncleaned_from: int
    retention_ms: int


class Visits(Struct, frozen=True):
    """What is remembered of one directory: visits, ascending by time, and the newest time of all.

    ``cleaned_to`` is the directory's cleaner checkpoint as of the last one, None without any.
    """

    entries: tuple[Visit, ...] = ()
    latest_ms: int = -1
    cleaned_to: int | None = None

    def deadline_ms(self, end: int, retention_ms: int) -> int | None:
        """Return until when what lies at or above ``end`` cannot have lost a tombstone or marker.

        Exclusive; ``retention_ms`` is the setting now. None when no visit reaches down to ``end``.
        """
        reached = self._reach(end, retention_ms)
        return None if reached is None else reached[0]

    def is_pressed(self, end: int, retention_ms: int, *, now_ms: int) -> bool:
        """Say whether the deadline of ``end`` is ahead, by half of the retention or less."""
        reached = self._reach(end, retention_ms)
        if reached is None:
            return False
        deadline_ms, least = reached
        return 0 < deadline_ms - now_ms <= least // 2

    def _reach(self, end: int, retention_ms: int) -> tuple[int, int] | None:
        """Return the deadline by the newest visit that reaches down to ``end``, and the least
        retention since; None without such a visit."""
        reaching = [at for at, visit in enumerate(self.entries) if visit.uncleaned_from <= end]
        if not reaching:
            return None
        since = self.entries[reaching[-1] :]
        least = max(min(retention_ms, *(v.retention_ms for v in since)), 0)
        return since[0].at_ms + least - least // SLACK_PARTS, least

    def have_kept(self, retention_ms: int, *, since_ms: int) -> bool:
        """Say whether no lower ``delete.retention.ms`` was seen to count since ``since_ms``.

        Until a visit has seen a higher one, a cleaner may have dated by the lower.
        """
        before = [visit for visit in self.entries if visit.at_ms <= since_ms]
        counted = (*before[-1:], *self.entries[len(before) :])
        return all(visit.retention_ms >= retention_ms for visit in counted)

    def at(self, now_ms: int, retention_ms: int) -> Visits:
        """Return what still counts at ``now_ms``: nothing when the clock went back by more than the
        slack, for what was dated by it may be dated too late."""
        if self.latest_ms - now_ms <= max(retention_ms, 0) // SLACK_PARTS:
            return self
        return replace(self, entries=(), latest_ms=now_ms)

    def with_visit(self, visit: Visit, *, end: int, now_ms: int, cleaned_to: int | None) -> Visits:
        """Return the visits with another one, when the store ends at ``end``.

        Of those that reach down to ``end`` the newest stays, and of the others at most VISITS_MAX.
        """
        known = sorted((*self.entries, visit), key=lambda each: each.at_ms)
        reached = [at for at, each in enumerate(known) if each.uncleaned_from <= end]
        kept = known[reached[-1] :] if reached else known
        if len(kept) > VISITS_MAX:
            # Every second one goes, and what it said of the setting stays with the one before it.
            kept = [
                replace(a, retention_ms=min(a.retention_ms, *(b.retention_ms for b in rest)))
                for a, *rest in (kept[at : at + 2] for at in range(0, len(kept) - 1, 2))
                if rest
            ] + kept[-1:]
        return Visits(tuple(kept), max(self.latest_ms, now_ms), cleaned_to)

    def is_due(self, visit: Visit, *, end: int, cleaned_to: int | None) -> bool:
        """Say whether ``visit`` is worth being written down."""
        newest = next((v for v in reversed(self.entries) if v.uncleaned_from <= end), None)
        if newest is None or visit.uncleaned_from > end or cleaned_to != self.cleaned_to:
            return visit not in self.entries
        if visit.retention_ms != newest.retention_ms:
            return True
        return visit.at_ms - newest.at_ms > visit.retention_ms // RENEWALS

    def to_json(self) -> str:
        """Return the text that :meth:`of_json` reads."""
        rows = [[v.at_ms, v.uncleaned_from, v.retention_ms] for v in self.entries]
        return json.dumps({"cleaned_to": self.cleaned_to, "visits": rows}, sort_keys=True)

    @staticmethod
    def of_json(text: str, latest_ms: int) -> Visits:
        """Return what :meth:`to_json` wrote."""
        found = json.loads(text)
        return Visits(tuple(Visit(*row) for row in found["visits"]), latest_ms, found["cleaned_to"])


class RangeContent(Struct, frozen=True):
    """What was read of the offsets ``[start, end)`` of a segment.

    ``missing`` counts the offsets without a record; ``has_old_format`` says that a batch has no
    horizon, and ``horizon_ms`` is the earliest of those that have one. ``aborted`` are the aborted
    transactions whose marker lies in the range, with where each began, also below it.
    """

    start: int
    end: int
    missing: int
    has_old_format: bool
    horizon_ms: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()


class Hazard(Struct, frozen=True):
    """A range of a directory that could miss a delete, and why. Times are milliseconds."""

    doubt: Doubt
    start: int
    end: int
    missing: int
    now_ms: int
    deadline_ms: int | None = None

    def sentence(self) -> str:
        """Return what is wrong, with the numbers."""
        numbers = f"from_offset={self.start} to_offset={self.end} missing={self.missing}"
        if self.doubt is Doubt.CLEANED_BY_OFFSET:
            return (
                "the directory's broker cleans by offset, the store's topic by timestamp or header:"
                f" winners may be gone that were not copied. {numbers}"
            )
        since = {
            Doubt.NEVER_SEEN: "when it was cleaned first is not known",
            Doubt.TOO_LATE: "it was copied too long after the last copy",
            Doubt.OLD_FORMAT: "batches of an old format have no delete horizon",
            Doubt.EARLY_HORIZON: "a delete horizon is earlier than delete.retention.ms allows",
        }[self.doubt]
        if self.deadline_ms is not None:
            numbers += f" late_ms={max(self.now_ms - self.deadline_ms, 0)}"
        return (
            "the broker's cleaner may have dropped deletes and transaction markers that were not "
            f"copied: offsets are missing, and {since}. {numbers}"
        )


class ReplacedRange(Struct, frozen=True):
    """The store's whole range was replaced by the directory's, because of ``hazard``.

    ``segments`` and ``size_bytes`` are what was uploaded; ``kept`` segments were the same already.
    """

    hazard: Hazard
    log_start: int
    remote_end: int
    segments: int
    size_bytes: int
    kept: int

    def sentence(self) -> str:
        """Return what was done and why, with the numbers."""
        return (
            f"replaced by the directory's log, offsets {self.log_start}..{self.remote_end}: "
            f"{self.hazard.sentence()}"
        )


def find_hazard(
    content: RangeContent, visits: Visits, *, retention_ms: int, now_ms: int, strategy: Strategy
) -> Hazard | None:
    """Return why the range that was read by ``now_ms`` could miss a delete; None when it cannot.

    ``retention_ms`` is ``delete.retention.ms`` now. Rules 1, 3 and 5 of the module.
    """
    if not content.missing:
        return None
    deadline_ms = visits.at(now_ms, retention_ms).deadline_ms(content.start, retention_ms)
    if strategy is not Strategy.OFFSET:
        doubt = Doubt.CLEANED_BY_OFFSET
    elif content.has_old_format:
        doubt = Doubt.OLD_FORMAT
    elif deadline_ms is None:
        doubt = Doubt.NEVER_SEEN
    elif content.horizon_ms is not None and content.horizon_ms < deadline_ms:
        doubt = Doubt.EARLY_HORIZON
    elif now_ms >= deadline_ms:
        doubt = Doubt.TOO_LATE
    else:
        return None
    return Hazard(doubt, content.start, content.end, content.missing, now_ms, deadline_ms)


def find_foreign_cleaner(
    visits: Visits, *, cleaned_to: int | None, start: int, now_ms: int, strategy: Strategy
) -> Hazard | None:
    """Return the hazard of a broker that was seen to clean by offset what others rank. Rule 5.

    ``cleaned_to`` is the directory's cleaner checkpoint, ``start`` the store's end.
    """
    if strategy is Strategy.OFFSET or cleaned_to is None:
        return None
    has_moved = bool(visits.entries) and cleaned_to > (visits.cleaned_to or 0)
    if not has_moved and cleaned_to <= start:
        return None
    return Hazard(Doubt.CLEANED_BY_OFFSET, start, max(cleaned_to, start), 0, now_ms)
