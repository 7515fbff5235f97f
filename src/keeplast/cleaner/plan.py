"""What a round may touch (:class:`RoundPlan`) and what becomes one segment (:class:`GroupPlan`).

Both are immutable and carry everything that comes from outside a group. So an attempt is a function
of the plan and the group's bytes and can run anywhere, twice, in any order.

A *group* is neighbouring segments, so that what remains of them becomes one. Grouping is greedy
from the left, by sizes before cleaning. The head's base is the output's base, and every offset in
the output must lie within 2^31-1 of it. Kafka: ``groupSegmentsBySize``; cleaning.md 3.2.

Some segments need not be read, from what is known of their batches beforehand. A segment of the
clean section that no dirty key is in stays as it is, byte for byte, unless time alone changes it.
Time changes a tombstone that expires or gets its horizon, a marker, an empty batch that is not
needed any more, a format that is converted. :func:`stays` says no whenever that is possible;
skipping must never change what remains (I-22). KIP-1272 leaves these conditions out; tiering.md
section 9.4.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.cleanable_range import segments_between
from keeplast.errors import invariant
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.hold import ReaderWait
from keeplast.model.partition import (
    INT32_MAX,
    INT64_MAX,
    NO_HORIZON,
    RELATIVE_OFFSET_MAX,
    SegmentSummary,
    TopicPartition,
    delete_horizon,
)
from keeplast.model.topic_config import Strategy, TopicConfig


def group_segments(
    segments: Sequence[SegmentSummary],
    *,
    bound: int,
    segment_bytes: int,
    segment_index_bytes: int,
    sources_max: int = INT32_MAX,
    begins_at: Container[int] = (),
) -> tuple[tuple[SegmentSummary, ...], ...]:
    """Return the groups in ascending order; each has at least one segment.

    An empty segment joins at any distance, which lets runs of emptied segments collapse.
    ``bound`` is the round's exclusive end, from which the last segment's reach follows.
    ``sources_max`` is how many segments a group has at most, ``begins_at`` are base offsets with
    which one has to begin; Kafka's cleaner has no such limits.
    """
    groups: list[tuple[SegmentSummary, ...]] = []
    at = 0
    while at < len(segments):
        head = segments[at]
        size, offsets, times = head.size_bytes, head.offset_index_bytes, head.time_index_bytes
        end = at + 1
        while end < len(segments) and end - at < sources_max:
            candidate = segments[end]
            if candidate.base_offset in begins_at:
                break
            size += candidate.size_bytes
            offsets += candidate.offset_index_bytes
            times += candidate.time_index_bytes
            if size > segment_bytes or max(offsets, times) > segment_index_bytes:
                break
            following = segments[end + 1].base_offset if end + 1 < len(segments) else bound
            reach = following - 1 - head.base_offset
            if candidate.size_bytes and reach > RELATIVE_OFFSET_MAX:
                break
            end += 1
        groups.append(tuple(segments[at:end]))
        at = end
    return tuple(groups)


AbortedBySegment = tuple[tuple[int, tuple[AbortedTransaction, ...]], ...]


class RoundPlan(Struct, frozen=True):
    """What one round works on, decided before a record is read.

    ``segments`` are all of the log, the last one active. ``bound`` is the exclusive end;
    ``start_position`` the byte at which the first pass starts in the segment that holds
    ``first_dirty``. ``key_capacity`` is the number of keys that the map may hold in its
    ``key_slots``, both None without bound.

    ``is_expired_round`` says that nothing is indexed and that only what has expired goes. Then
    ``first_dirty`` and ``bound`` are the same, and the checkpoint stays where it is.
    ``keeps_group_ends`` keeps the last batch of every output, empty if need be. So a segment
    without a directory around it shows where it ends. The last batch of its sources may end before
    they do, as a broker's own cleaner leaves a segment. Then an empty one closes the output when
    ``closing_epochs`` says its leader epoch: epochs with their first offsets, ascending.

    ``expires_nothing`` keeps every tombstone and marker whatever its horizon, and sets none. A pass
    that does not see all of the log must do so. What they delete may lie where it cannot look, and
    is read there until it goes. Where it expires something, that lies below ``expires_below``. A
    caller that sees to it that nothing older comes back says up to where. Then no tombstone of an
    old format goes.

    ``sources_max`` is how many segments become one at most, as where each of them is named in one
    message of bounded size. ``begins_at`` are base offsets that a new segment has to begin with, as
    where what another may put over it ends there. ``keeps_keyless`` keeps records without a key, as
    in a log that a broker does not compact. The first pass reads up to ``chunk_end``, the base of a
    segment, when that is less than the bound. Then the round ends there, as it does where a bounded
    map fills. The horizons that the round sets count from ``stamped_ms``, None from ``now_ms``.

    ``indexed`` are each segment's aborted transactions, by its base, as its index has them.
    ``aborted`` are those as the markers have them, None while the markers have not been asked. What
    is decided goes by the latter alone. ``expects_transactions`` says that something next to the
    records names some; where nothing does there may be some all the same. ``readers`` are those
    that what has passed its horizon waits for, None for none.
    """

    partition: TopicPartition
    topic: TopicConfig
    segments: tuple[SegmentSummary, ...]
    aborted: AbortedBySegment | None
    last_records: NDArray[np.int64]
    log_start: int
    first_dirty: int
    bound: int
    start_position: int
    key_capacity: int | None
    now_ms: int
    is_expired_round: bool = False
    key_slots: int | None = None
    keeps_group_ends: bool = False
    closing_epochs: tuple[tuple[int, int], ...] = ()
    expires_nothing: bool = False
    expires_below: int = INT64_MAX
    sources_max: int = INT32_MAX
    begins_at: tuple[int, ...] = ()
    keeps_keyless: bool = False
    chunk_end: int | None = None
    stamped_ms: int | None = None
    indexed: AbortedBySegment = ()
    expects_transactions: bool = False
    readers: ReaderWait | None = None

    @property
    def expiry_now_ms(self) -> int:
        """Return the time up to which horizons have passed: now, or before every one."""
        return -1 if self.expires_nothing else self.now_ms

    @property
    def late_now_ms(self) -> int:
        """Return the time up to which horizons have passed and no reader is waited for any more."""
        max_ms = 0 if self.readers is None else self.readers.max_ms
        return self.expiry_now_ms - max_ms

    @property
    def passed_to(self) -> int:
        """Return the offset below which nothing is waited for, INT64_MAX when nothing is at all."""
        passed_to = INT64_MAX if self.readers is None else self.readers.passed_to
        return min(passed_to, self.expires_below)

    @property
    def indexed_to(self) -> int:
        """Return the exclusive end of what the first pass reads, if the map does not fill."""
        return self.bound if self.chunk_end is None else self.chunk_end

    @property
    def horizon_ms(self) -> int:
        """Return the delete horizon that is stamped in this round; negative means never."""
        if self.expires_nothing:
            return NO_HORIZON
        since_ms = self.now_ms if self.stamped_ms is None else self.stamped_ms
        return delete_horizon(since_ms, self.topic.delete_retention_ms)

    @property
    def old_format_horizon_ms(self) -> int:
        """Return the age limit of old-format tombstones: a segment's mtime must be above it."""
        if self.expires_nothing or self.expires_below < INT64_MAX:
            return -1
        return old_format_horizon(self.segments, self.first_dirty, self.topic.delete_retention_ms)

    def old_tombstones_kept_from(self, mtime_ms: int) -> int:
        """Return from which offset on old-format tombstones stay, in a segment of this mtime."""
        return old_kept_from(mtime_ms, self.old_format_horizon_ms, self.readers)

    def dirty_segments(self) -> Sequence[SegmentSummary]:
        """Return the segments that the first pass reads, those of ``[first_dirty, indexed_to)``."""
        return segments_between(self.segments, self.first_dirty, self.indexed_to)

    @property
    def is_decided_by_notes(self) -> bool:
        """Say whether the second pass asks for notes of the first alone, if no transaction comes.

        All is dirty, and ranks by offset. A clean section would be looked up by key, and what
        aborted makes notes unsure.
        """
        is_all_dirty = self.first_dirty <= self.segments[0].base_offset and not self.start_position
        is_whole = self.indexed_to == self.bound and self.key_capacity is None
        is_quiet = not self.aborted and not self.expects_transactions
        return is_all_dirty and is_whole and is_quiet and self.topic.strategy is Strategy.OFFSET

    def aborted_from(self, base_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that a pass starting in this segment can meet."""
        invariant(self.aborted is not None, "the markers were not asked for aborted transactions")
        return tuple(
            txn
            for base, entries in self.aborted or ()
            if base >= base_offset
            for txn in entries
            if txn.last_offset >= self.log_start and txn.first_offset < self.bound
        )

    def believing_indexes(self) -> RoundPlan:
        """Return the plan for a caller that may believe the transaction indexes."""
        return replace(self, aborted=self.indexed)

    def as_indexed(
        self, entries: Sequence[AbortedTransaction], bases: Container[int]
    ) -> tuple[AbortedTransaction, ...]:
        """Return what an index that is written has for ``entries``, of the segments at ``bases``.

        An entry stays as it was, as in Kafka: it may say of more data that went long ago.
        """
        known = {
            (txn.producer_id, txn.last_offset): txn
            for base, its in self.indexed
            if base in bases
            for txn in its
        }
        found = [known.get((txn.producer_id, txn.last_offset), txn) for txn in entries]
        return tuple(
            old if old.first_offset <= txn.first_offset else txn
            for old, txn in zip(found, entries, strict=True)
        )


def old_format_horizon(
    segments: Sequence[SegmentSummary], first_dirty: int, delete_retention_ms: int
) -> int:
    """Return the last clean segment's mtime less the retention, 0 without a clean segment."""
    clean = [s for s in segments if s.base_offset < first_dirty]
    return clean[-1].mtime_ms - delete_retention_ms if clean else 0


def old_kept_from(mtime_ms: int, horizon_ms: int, readers: ReaderWait | None) -> int:
    """Return from which offset on old-format tombstones of a segment stay: 0 for all of them.

    ``horizon_ms`` is :func:`old_format_horizon`; INT64_MAX when all may go.
    """
    if mtime_ms > horizon_ms:
        return 0
    if readers is not None and mtime_ms > horizon_ms - readers.max_ms:
        return readers.passed_to
    return INT64_MAX


def find_chunk_end(plan: RoundPlan, chunk_bytes: int) -> int | None:
    """Return where the dirty segments end that ``chunk_bytes`` hold, at least one; None for all."""
    size = 0
    for number, segment in enumerate(plan.dirty_segments()):
        size += segment.size_bytes
        if number and size > chunk_bytes:
            return segment.base_offset
    return None


class GroupPlan(Struct, frozen=True):
    """Segments that become one, named by the first one's base offset."""

    sources: tuple[SegmentSummary, ...]

    @property
    def base_offset(self) -> int:
        """Return the base offset of the output."""
        return self.sources[0].base_offset

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the sources; only converted old formats (F1) can need more."""
        return sum(source.size_bytes for source in self.sources)


def plan_groups(plan: RoundPlan, end_offset: int) -> tuple[GroupPlan, ...]:
    """Seal a round that ends at ``end_offset``: group the segments up to the one before it."""
    groups = group_segments(
        segments_between(plan.segments, 0, end_offset) if end_offset > 0 else (),
        bound=plan.bound,
        segment_bytes=plan.topic.segment_bytes,
        segment_index_bytes=plan.topic.segment_index_bytes,
        sources_max=plan.sources_max,
        begins_at=plan.begins_at,
    )
    return tuple(GroupPlan(sources) for sources in groups)


EMPTIES_MAX = 1024


class SegmentContents(Struct, frozen=True):
    """What of a segment's batches a round in which no key matches could change.

    ``unstamped`` are batches with tombstones and without a delete horizon, ``horizon_ms`` the
    earliest horizon, None without one. ``keyless`` are records, the others batches.
    ``transactional`` counts markers too. ``empties`` are producer id and last offset of the batches
    without records; ``more_empties`` says that there are more than could be noted.
    """

    keyless: int = 0
    tombstones: int = 0
    unstamped: int = 0
    horizon_ms: int | None = None
    transactional: int = 0
    old_format: int = 0
    empties: tuple[tuple[int, int], ...] = ()
    more_empties: bool = False


def stays(
    contents: SegmentContents, *, now_ms: int, last_offset: int, last_records: NDArray[np.int64],
    expires_nothing: bool = False,
) -> bool:  # fmt: skip
    """Say whether a round at ``now_ms`` leaves the segment as it is when no key of it is dirty.

    ``last_offset`` is the segment's own, whose batch always stays. ``last_records`` are those of
    :func:`~keeplast.cleaner.transactions.last_records`: an empty batch stays while its producer's
    state rests on it. A round that ``expires_nothing`` sets no horizon and heeds none.
    """
    if contents.keyless or contents.transactional or contents.old_format:
        return False
    if not expires_nothing:
        has_passed = contents.horizon_ms is not None and contents.horizon_ms <= now_ms
        if contents.unstamped or has_passed:
            return False
    if contents.more_empties:
        return False
    needed = set(zip(last_records[:, 0].tolist(), last_records[:, 1].tolist(), strict=True))
    return all(each[1] == last_offset or each in needed for each in contents.empties)


def has_no_events(contents: SegmentContents) -> bool:
    """Say whether no transaction runs through the segment.

    Where versions rank, the clean section is read for its winners. A segment without a dirty key
    has none, but what follows it must know of its markers.
    """
    return not contents.transactional
