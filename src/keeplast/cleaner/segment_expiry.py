"""Decides which of the oldest segments of a log may go, and why those after them may not.

Three rules, one after another, each on what the one before has left:

1. ``log_start``: all of the segment lies below the log start offset. Applies to every policy.
2. ``size``: with ``delete`` in the policy, while without it the log still has ``retention.bytes``.
3. ``time``: with ``delete``, when its largest timestamp is more than ``retention.ms`` ago.

Each walks from the oldest segment and stops at the first that may not go: a log gets no hole.
Nothing goes that reaches above the high watermark, and an empty active segment never does. When all
of a log goes, its end stays as the base of a new, empty active segment. Timestamps are believed:
one record from the future keeps its segment and everything above it. A segment without timestamps
has the age of its file. Answers to ``UnifiedLog.deleteOldSegments``; cleaning.md section 5.

Pure: sizes, times and the clock come from the caller, and every decision comes with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial

from msgspec import Struct

from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig


class ExpiryRule(StrEnum):
    """Which rule lets a segment go; receipts and JSON have its value."""

    LOG_START = "log_start"
    SIZE = "size"
    TIME = "time"


class BelowLogStart(Struct, frozen=True):
    """All of the segment lies below the log start offset."""

    log_start: int


class SizeLeft(Struct, frozen=True):
    """Without the segment ``left_bytes`` remain, at least ``retention_bytes``."""

    left_bytes: int
    retention_bytes: int


class SegmentAge(Struct, frozen=True):
    """The age of the newest record, or where none has a timestamp of the file; may be negative."""

    age_ms: int
    retention_ms: int
    is_undated: bool


class AboveWatermark(Struct, frozen=True):
    """The segment reaches above the high watermark: a replica may lack what is in it."""

    high_watermark: int


class TornActive(Struct, frozen=True):
    """The tail of the segment is torn."""


ExpiryReason = BelowLogStart | SizeLeft | SegmentAge | AboveWatermark | TornActive


class ExpiredSegment(Struct, frozen=True):
    """A segment that goes, the rule that lets it go, and why."""

    segment: SegmentSummary
    rule: ExpiryRule
    reason: ExpiryReason


class StaysNote(Struct, frozen=True):
    """The first segment that a rule could not let go, and why."""

    base_offset: int
    reason: ExpiryReason


class ExpiryPlan(Struct, frozen=True):
    """What of a log goes, oldest first.

    ``log_start`` is the first readable offset afterwards, never below ``log_start_before``;
    ``first_base`` the base offset of the first segment that stays.
    ``rolls_active`` says that all of the log goes, and an empty segment at its end is needed first.
    ``notes`` are what kept the first segment that stays, one for each rule that looked at it.
    """

    expired: tuple[ExpiredSegment, ...]
    log_start_before: int
    log_start: int
    first_base: int
    rolls_active: bool
    notes: tuple[StaysNote, ...]


class SegmentExpiry(Struct, frozen=True):
    """From ``from_ms`` on ``rule`` lets a segment go, if nothing is written or cleaned before."""

    rule: ExpiryRule
    from_ms: int


Judgement = tuple[bool, ExpiryReason] | None
"""Whether a segment may go, and why or why not; None when it stays and there is nothing to say."""

Judge = Callable[[SegmentSummary, int], Judgement]
"""Judges a segment and the offset at which it ends, exclusive."""


def plan_expiry(
    topic: TopicConfig,
    segments: Sequence[SegmentSummary],
    *,
    log_start: int,
    log_end: int,
    high_watermark: int,
    now_ms: int,
    rules: frozenset[ExpiryRule] = frozenset(ExpiryRule),
    is_torn: bool = False,
) -> ExpiryPlan:
    """Return what may go of ``segments``, all of a log's (at least one), the last one active.

    ``log_start`` <= ``high_watermark`` <= ``log_end``. ``rules`` narrows what is applied. An active
    segment that ``is_torn`` stays: where it ends is for recovery to say.
    """
    walk = _Walk(segments, log_end, high_watermark, is_torn=is_torn)
    if ExpiryRule.LOG_START in rules:
        walk.run(ExpiryRule.LOG_START, _below(log_start))
    if topic.expires and ExpiryRule.SIZE in rules and topic.retention_bytes >= 0:
        walk.run(ExpiryRule.SIZE, _above_size(walk.left, topic.retention_bytes))
    if topic.expires and ExpiryRule.TIME in rules and topic.retention_ms >= 0:
        walk.run(ExpiryRule.TIME, _older(topic.retention_ms, now_ms))
    rolls_active = not walk.left
    first_base = log_end if rolls_active else walk.left[0].base_offset
    return ExpiryPlan(
        expired=tuple(walk.expired),
        log_start_before=log_start,
        log_start=max(log_start, first_base),
        first_base=first_base,
        rolls_active=rolls_active,
        notes=tuple(walk.notes),
    )


def foresee_expiry(
    topic: TopicConfig,
    segments: Sequence[SegmentSummary],
    *,
    log_start: int,
    log_end: int,
    high_watermark: int,
    now_ms: int,
    is_torn: bool = False,
) -> dict[int, SegmentExpiry]:
    """Return from when on each segment may go, by base offset; what no clock lets go is left out.

    Arguments as for :func:`plan_expiry`. A round may make it sooner or later: it joins segments,
    and takes the newest record out of one.
    """
    plan = partial(
        plan_expiry, topic, segments, log_start=log_start, log_end=log_end,
        high_watermark=high_watermark, is_torn=is_torn,
    )  # fmt: skip
    found = {
        each.segment.base_offset: SegmentExpiry(each.rule, now_ms)
        for each in plan(now_ms=now_ms).expired
    }
    newest_ms = max(each.age_timestamp_ms for each in segments)
    # By then no age keeps one: what still stays, no clock lets go.
    later = plan(now_ms=max(newest_ms + max(topic.retention_ms, 0) + 1, now_ms)).expired
    counted_ms = now_ms - topic.retention_ms
    for each in later[len(found) :]:
        # One goes after all before it.
        counted_ms = max(counted_ms, each.segment.age_timestamp_ms)
        from_ms = counted_ms + topic.retention_ms + 1
        if from_ms < INT64_MAX:
            found[each.segment.base_offset] = SegmentExpiry(each.rule, from_ms)
    return found


class _Walk:
    """The segments that are left while one rule after another takes from the front."""

    def __init__(
        self,
        segments: Sequence[SegmentSummary],
        log_end: int,
        high_watermark: int,
        *,
        is_torn: bool,
    ) -> None:
        self.left = list(segments)
        self.expired: list[ExpiredSegment] = []
        self.notes: list[StaysNote] = []
        self._high_watermark = high_watermark
        self._is_torn = is_torn
        ends = [*(segment.base_offset for segment in segments[1:]), log_end]
        self._ends = {s.base_offset: end for s, end in zip(segments, ends, strict=True)}

    def run(self, rule: ExpiryRule, judge: Judge) -> None:
        """Take every segment that ``judge`` lets go, up to the first that must stay."""
        gone = 0
        for segment in self.left:
            is_last = segment is self.left[-1]
            if is_last and (segment.size_bytes == 0 or rule is ExpiryRule.LOG_START):
                break
            end = self._ends[segment.base_offset]
            judgement = judge(segment, end)
            if judgement is None:
                break
            goes, reason = judgement
            # What a replica may lack stays: the log start never passes the high watermark.
            if goes and end > self._high_watermark:
                goes, reason = False, AboveWatermark(self._high_watermark)
            if goes and is_last and self._is_torn:
                goes, reason = False, TornActive()
            if not goes:
                self.notes.append(StaysNote(segment.base_offset, reason))
                break
            self.expired.append(ExpiredSegment(segment, rule, reason))
            gone += 1
        self.left = self.left[gone:]


def _below(log_start: int) -> Judge:
    def judge(segment: SegmentSummary, end: int) -> Judgement:
        if end <= log_start:
            return True, BelowLogStart(log_start)
        return None

    return judge


def _above_size(segments: Sequence[SegmentSummary], retention_bytes: int) -> Judge:
    size_bytes = sum(segment.size_bytes for segment in segments)
    left_bytes: dict[int, int] = {}
    for segment in segments:
        size_bytes -= segment.size_bytes
        left_bytes[segment.base_offset] = size_bytes

    def judge(segment: SegmentSummary, end: int) -> Judgement:
        left = left_bytes[segment.base_offset]
        if left >= retention_bytes:
            return True, SizeLeft(left, retention_bytes)
        return None

    return judge


def _older(retention_ms: int, now_ms: int) -> Judge:
    def judge(segment: SegmentSummary, end: int) -> Judgement:
        age_ms = now_ms - segment.age_timestamp_ms
        is_undated = segment.largest_timestamp_ms < 0
        # An age below zero is never too old: what is dated in the future stays.
        return age_ms > retention_ms, SegmentAge(age_ms, retention_ms, is_undated)

    return judge
