"""Looks at a partition without reading all of it, and decides what a round may touch.

Reads index files, the newest usable producer snapshot and what follows it, the tail of the active
segment and the first header of each dirty segment. Records are left to the passes. The result is a
:class:`RoundPlan`, or the reason why there is none.

Odd files of a log are reported with its round, and left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import (
    FirstDirty,
    FirstUncleanable,
    find_expired_bound,
    find_first_dirty,
    find_first_uncleanable,
    find_hold,
    find_kept_transaction,
    segments_between,
)
from keeplast.cleaner.dirty_section import (
    DirtySection,
    LogFigures,
    dating_notes,
    due_reason,
    figures_of,
    find_dirty_section,
    section_notes,
    skip_reason,
)
from keeplast.cleaner.log_order import Order
from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.reasons import Decision, DueReason, GivenLimit, SkipReason
from keeplast.cleaner.transactions import last_records
from keeplast.errors import InvalidError
from keeplast.format import producer_snapshot
from keeplast.format.filename import (
    CLEANED_FOR,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    parse_undo_file,
)
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.active_segment import ProducerState
from keeplast.log.checkpoints import UNFINISHED as UNFINISHED_NOTE
from keeplast.log.files import FileSystem
from keeplast.log.log_end import check_magic, check_understood
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_offset_from,
    find_tail,
    list_partition,
    read_first_batch_timestamp,
    read_first_timestamp,
    summarize,
)
from keeplast.log.readers import LoadedIndexes
from keeplast.log.windows import WindowBuffers
from keeplast.model.hold import Hold, ReaderWait, in_force
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.survey.bounds import (
    Checkpoints,
    LogBounds,
    actual_log_start,
    find_bounds,
    lifts_above,
    uncleanable_lifts,
)
from keeplast.survey.group_offsets import GroupOffsets, ReaderOffsets, find_wait
from keeplast.survey.notes import (
    GivenOption,
    Lift,
    Note,
    RebuiltIndexes,
    RemainsActive,
    RollNote,
    RollStage,
    StagedFiles,
    TornTail,
    UnknownFiles,
    WaitNote,
)
from keeplast.survey.request import CleanRequest, PartitionRequest, key_capacity, key_slots
from keeplast.survey.rolling import (
    ForeseenRoll,
    derived_aborted,
    find_undecided,
    foreseen,
    idle_reason,
    indexed_aborted,
    replay_producers,
)
from keeplast.survey.sample import SampleChoice, choose_sample
from keeplast.survey.tombstone_horizons import Examination, ExpiredBook, find_expired

KNOWN_NAMES = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, CLEANED_FOR, UNFINISHED_NOTE})
NAMES_SHOWN_MAX = 10


FileNote = TornTail | RebuiltIndexes | UnknownFiles | StagedFiles


def file_notes(
    listing: PartitionFiles, tail: Tail, rebuilt: Sequence[int], tp: TopicPartition
) -> list[FileNote]:
    """Return what is odd about the files; ``rebuilt`` are segments without good indexes."""
    notes: list[FileNote] = []
    torn = torn_tail(listing, tail)
    if torn is not None:
        notes.append(torn)
    if rebuilt:
        notes.append(RebuiltIndexes(tuple(rebuilt)))
    strange = [
        name
        for name in listing.unknown
        if name not in KNOWN_NAMES and parse_undo_file(name) is None
    ]
    if strange:
        notes.append(UnknownFiles(len(strange), tuple(strange[:NAMES_SHOWN_MAX])))
    if listing.leftovers:
        notes.append(StagedFiles(len(listing.leftovers), tp))
    return notes


def torn_tail(listing: PartitionFiles, tail: Tail) -> TornTail | None:
    """Return what ends a log in front of an unfinished batch, None where nothing does."""
    if tail.torn_at is None:
        return None
    return TornTail(listing.active.base_offset, tail.torn_at, str(tail.problem), tail.log_end)


ReadFirst = Callable[[SegmentFiles, FileSystem, bytes | None], int | None]
"""Reads when a segment's first record was written, given what its log begins with if known."""


class Survey(Struct, frozen=True):
    """A partition as found, and what follows for a round at ``now_ms``.

    ``plan`` is None when nothing can be cleaned or nothing is worth it; ``decision`` says why, or
    why a round is. ``sample`` is what an estimate would read of it, chosen here because the indexes
    are at hand. ``segments`` are those of ``listing``, summarized. ``clean_to`` is the first dirty
    offset by the directory alone, above which nothing is clean yet. ``lifts`` says which given
    values go beyond what the directory allows, and is for a writer to refuse. ``roll`` is there
    when the last of ``segments`` has no file yet. ``holds`` are the partition's that are in force,
    ``readers`` those that tombstones wait for.
    """

    listing: PartitionFiles
    segments: tuple[SegmentSummary, ...]
    tail: Tail
    log_start: int
    last_stable: int
    section: DirtySection
    plan: RoundPlan | None
    sample: SampleChoice | None
    decision: Decision
    notes: tuple[Note, ...]
    clean_to: FirstDirty
    lifts: tuple[Lift, ...] = ()
    roll: ForeseenRoll | None = None
    holds: tuple[Hold, ...] = ()
    readers: ReaderWait | None = None

    @property
    def figures(self) -> LogFigures:
        """Return what is published of the log."""
        return figures_of(self.section, self.segments)

    @property
    def reason(self) -> SkipReason | None:
        """Return why there is no round, None when one is worth it."""
        return None if isinstance(self.decision, DueReason) else self.decision

    def checkpoint_after(self, end_offset: int) -> int | None:
        """Return the cleaner checkpoint of a round that ended at ``end_offset``, None to leave it.

        It never moves over a range that was not cleaned: a round that began above what is clean
        leaves it there, however it came to begin there.
        """
        if self.section.first_dirty.offset <= self.clean_to.offset:
            return end_offset
        return self.clean_to.offset if self.clean_to.repairs else None


def survey_partition(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    *,
    foresees_roll: bool = False,
    book: ExpiredBook | None = None,
    known: Mapping[int, SegmentSummary] | None = None,
    clock_ms: int | None = None,
    wants_sample: bool = True,
    groups: ReaderOffsets | None = None,
) -> Survey:
    """Survey one partition; CorruptError, RefusedError or OSError when that is not possible.

    What was given counts, also where it lifts a limit: :attr:`Survey.lifts` says so. ``clock_ms``
    is the machine's clock, None when ``now_ms`` is. ``foresees_roll`` looks at the log as it will
    be when its active segment was left as ``request`` asks for; otherwise that has happened.
    ``book`` remembers what has expired where, for a request that asks for that. ``known`` are
    closed segments, by base offset, with everything but the first timestamp known already. Their
    indexes are read when something in them must be found, and nothing asks again whether their
    format is understood. No sample is chosen then, nor without ``wants_sample``. ``groups`` reports
    what consumer groups have committed, the files of the directory by default.
    """
    topic = partition.topic
    key_capacity(partition)  # A map that cannot be is refused before anything is read.
    heads, names = ({}, None) if known else check_understood(partition.path, files)
    log = _read_log(
        partition, request, checkpoints, files, now_ms, names, foresees_roll=foresees_roll
    )
    actual_start = actual_log_start(partition.partition, checkpoints, log.listing)
    by_checkpoint, clean_to = (
        find_first_dirty(
            checkpoints.cleaner.get(partition.partition),
            log_start=log_start,
            log_end=log.tail.log_end,
        )
        for log_start in (log.bounds.log_start, actual_start)
    )
    first_dirty = _first_dirty(request, by_checkpoint, log.bounds.log_start)
    read_first = read_first_timestamp
    if request.order is Order.KAFKA:
        read_first = read_first_batch_timestamp
    segments = _summaries(log, first_dirty.offset, files, known or {}, heads, read_first)
    # The bound follows from the checkpoint also when another first dirty offset is asked for: what
    # must not be touched does not depend on where somebody wants to start.
    # By the machine's clock: one that is given ends no hold.
    holds = in_force(
        checkpoints.holds.get(partition.partition, ()), now_ms if clock_ms is None else clock_ms
    )
    hold = find_hold(holds)
    uncleanable = find_first_uncleanable(
        segments,
        first_dirty=by_checkpoint.offset,
        high_watermark=log.bounds.high_watermark,
        open_transaction=log.open_from,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        now_ms=now_ms,
        kept_transaction=find_kept_transaction(log.aborted, request.clean_elsewhere_to),
        hold=hold,
    )
    lifts = (
        *lifts_above(GivenOption.NOW, request.now_ms, now_ms if clock_ms is None else clock_ms),
        *log.bounds.lifts,
        *lifts_above(GivenOption.FIRST_DIRTY, request.first_dirty_offset, clean_to.offset),
        *uncleanable_lifts(
            request.uncleanable_offset, segments, uncleanable, first_dirty=first_dirty.offset
        ),
    )
    if request.uncleanable_offset is not None:
        given = request.uncleanable_offset
        uncleanable = FirstUncleanable(given, GivenLimit(given))
        if hold is not None and hold.offset < given:
            # No option overrides a hold; only its release does.
            uncleanable = FirstUncleanable(max(hold.offset, by_checkpoint.offset), hold)
    section = find_dirty_section(
        segments, topic, first_dirty=first_dirty, uncleanable=uncleanable, now_ms=now_ms
    )
    reason = skip_reason(section, segments, topic, is_forced=request.force)
    decision = reason or due_reason(section, topic)
    notes = _notes(log, section, partition, request, decision)
    readers = None
    if request.clean_elsewhere_to is None:
        groups = GroupOffsets(files) if groups is None else groups
        at_ms = now_ms if clock_ms is None else clock_ms
        readers = find_wait(partition, checkpoints, log.tail.log_end, groups, at_ms)
        notes += [] if readers is None else [WaitNote(readers)]
    is_expired_round = False
    if reason is not None and request.expired and request.clean_elsewhere_to is None:
        bound = find_expired_bound(
            segments, first_dirty=first_dirty.offset, bound=section.cleanable.bound
        )
        expired = find_expired(
            partition.path, log.listing.segments[:-1], bound, Examination(now_ms, readers), files,
            book,
        )  # fmt: skip
        if expired:
            reason, decision = None, expired.due_reason()
            notes.insert(0, decision)
            # A late record may rank below a tombstone that expires. By any order but the offset's,
            # all that is dirty and may be indexed has to be, and the round is one like any other
            # (cleaning.md 9.3).
            is_expired_round = (
                topic.strategy is Strategy.OFFSET or section.cleanable.cleanable_bytes == 0
            )
        if is_expired_round:
            section = section.before(bound)
    plan = None
    if reason is None:
        # A late clock holds the round back. It must not date horizons: they would have passed
        # before any reader had the time to read what they protect.
        is_dated = clock_ms is not None and not request.is_unsafe
        plan = _plan(
            partition, request, log, segments, section, now_ms, is_expired_round, readers,
            max(clock_ms or 0, now_ms) if is_dated else None,
        )  # fmt: skip
    return Survey(
        listing=log.listing,
        segments=segments,
        tail=log.tail,
        log_start=log.bounds.log_start,
        last_stable=log.last_stable,
        section=section,
        plan=plan,
        sample=choose_sample(plan, log.indexes)
        if plan is not None and wants_sample and not known
        else None,
        decision=decision,
        notes=tuple(notes),
        clean_to=clean_to,
        lifts=lifts,
        roll=log.foreseen_roll(),
        holds=holds,
        readers=readers,
    )


class _Log(Struct, frozen=True):
    """What was read of a log: its files, what readers may see, its producers and transactions.

    ``open_from`` is where the oldest undecided transaction begins, None without one. ``aborted``
    is as in :class:`~keeplast.cleaner.plan.RoundPlan`. ``roll_notes`` says of a log as it will be
    why its active segment will be left.
    """

    listing: PartitionFiles
    tail: Tail
    roll_notes: tuple[RollNote, ...]
    bounds: LogBounds
    indexes: LoadedIndexes
    producers: ProducerState
    aborted: tuple[tuple[int, tuple[AbortedTransaction, ...]], ...]
    open_from: int | None

    def foreseen_roll(self) -> ForeseenRoll | None:
        """Return the roll that the listing has before the directory does."""
        if not self.roll_notes or self.listing.active.size_bytes:
            return None
        return ForeseenRoll(producer_snapshot.encode(self.producers.entries()))

    def shows_transactions(self) -> bool:
        """Say whether an index or a producer's state has any; False proves nothing."""
        has_ended = any(each.coordinator_epoch >= 0 for each in self.producers.entries())
        return has_ended or any(entries for _, entries in self.aborted)

    @property
    def last_stable(self) -> int:
        """Return the offset below which every transaction is decided and every record safe."""
        decided = self.tail.log_end if self.open_from is None else self.open_from
        return min(self.bounds.high_watermark, decided)


def _read_log(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    names: Sequence[str] | None,
    *,
    foresees_roll: bool,
) -> _Log:
    """Read of a log what a survey needs; see :func:`survey_partition`."""
    listing, tail, roll_notes = _find_log(
        partition, request, checkpoints, files, now_ms, names, foresees_roll=foresees_roll
    )
    buffers = WindowBuffers()
    bounds = find_bounds(partition.partition, request, checkpoints, listing, tail)
    log_start = bounds.log_start
    indexes = LoadedIndexes(listing, files, partition.topic.index_interval_bytes, buffers)
    if roll_notes and not listing.active.size_bytes:
        indexes.derive(listing.segments[-2].base_offset)
    producers = replay_producers(listing, tail, log_start, indexes, files, buffers)
    # A follower's round is bounded by them; any other asks the markers, which no survey reads.
    find_aborted = indexed_aborted if request.clean_elsewhere_to is None else derived_aborted
    aborted = find_aborted(listing, tail, files, buffers)
    if request.forgets_unreplicated_markers:
        open_from = producers.first_undecided(bounds.high_watermark)
    else:
        open_from = find_undecided(
            producers, bounds.high_watermark, listing, tail, log_start, indexes, files, buffers
        )
    if open_from is not None and open_from < log_start:
        # A transaction that DeleteRecords has cut into begins with what is left of the log.
        open_from = find_offset_from(log_start, listing, tail, indexes, files, buffers)
    return _Log(listing, tail, roll_notes, bounds, indexes, producers, aborted, open_from)


def _find_log(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    names: Sequence[str] | None,
    *,
    foresees_roll: bool,
) -> tuple[PartitionFiles, Tail, tuple[RollNote, ...]]:
    """Return the log as it is, or as it will be when its active segment was left, and why."""
    known_start = checkpoints.log_start.get(partition.partition, 0)
    listing = list_partition(partition.path, files, if_empty=known_start, names=names)
    tail = find_tail(listing, files)
    if tail.torn_at is not None:
        check_magic(listing.active.log_path, tail.torn_at, files)
    if not foresees_roll or not listing.active.size_bytes:
        return listing, tail, ()
    idle = None
    if request.roll_active:
        if request.target is not None and tail.torn_at is not None:
            return listing, tail, ()  # nothing but recovery may say where it ends
    else:
        if request.rolls_idle:
            idle = idle_reason(listing, tail, partition.topic, files, now_ms)
        if idle is None:
            return listing, tail, ()
    listing, tail = foreseen(listing, tail)
    stage = RollStage.FORESEEN if request.target is None else RollStage.AT_TARGET
    return listing, tail, (RollNote(stage, idle),)


def _first_dirty(request: CleanRequest, by_checkpoint: FirstDirty, log_start: int) -> FirstDirty:
    """Return where the round starts: as asked for from ``log_start`` on, else by the checkpoint."""
    if request.first_dirty_offset is None:
        return by_checkpoint
    if request.first_dirty_offset < 0:
        raise InvalidError(
            f"an offset cannot be negative. first_dirty={request.first_dirty_offset}", code="K104"
        )
    # What was deleted wins nothing: it would take with it what readers still see.
    lowest = 0 if request.is_unsafe else log_start
    return FirstDirty(max(request.first_dirty_offset, lowest))


def _plan(
    partition: PartitionRequest,
    request: CleanRequest,
    log: _Log,
    segments: tuple[SegmentSummary, ...],
    section: DirtySection,
    now_ms: int,
    is_expired_round: bool,
    readers: ReaderWait | None,
    stamped_ms: int | None,
) -> RoundPlan:
    first_dirty, bound = section.first_dirty.offset, section.cleanable.bound
    return RoundPlan(
        partition=partition.partition,
        topic=partition.topic,
        segments=segments,
        aborted=None,
        last_records=last_records(
            log.producers.entries(),
            now_ms=now_ms,
            expiration_ms=partition.cleaner.producer_id_expiration_ms,
        ),
        log_start=log.bounds.log_start,
        first_dirty=first_dirty,
        bound=bound,
        start_position=_start_position(segments, log.indexes, first_dirty, bound),
        key_capacity=key_capacity(partition),
        key_slots=key_slots(partition),
        now_ms=now_ms,
        is_expired_round=is_expired_round,
        expires_nothing=request.clean_elsewhere_to is not None,
        indexed=log.aborted,
        expects_transactions=log.shows_transactions(),
        readers=readers,
        stamped_ms=stamped_ms,
    )


def _start_position(
    segments: Sequence[SegmentSummary],
    indexes: LoadedIndexes,
    first_dirty: int,
    bound: int,
) -> int:
    """Return where in the first dirty segment reading begins; no dirty batch lies before it."""
    dirty = segments_between(segments, first_dirty, bound)
    if not dirty or dirty[0].base_offset >= first_dirty:
        return 0
    return indexes.find_start(dirty[0].base_offset, first_dirty)


def _summaries(
    log: _Log,
    first_dirty: int,
    files: FileSystem,
    known: Mapping[int, SegmentSummary],
    heads: Mapping[int, bytes],
    read_first: ReadFirst,
) -> tuple[SegmentSummary, ...]:
    """Summarize all segments; only dirty, closed ones are asked for their first timestamp.

    ``heads`` are the beginnings of logs that have been read; ``read_first`` reads the timestamp.
    """
    listing = log.listing
    closed = listing.segments[:-1]
    summaries: list[SegmentSummary] = []
    for i, segment in enumerate(closed):
        is_dirty = listing.segments[i + 1].base_offset > first_dirty
        base = segment.base_offset
        stamp = read_first(segment, files, heads.get(base)) if is_dirty else None
        if base in known:
            summaries.append(replace(known[base], first_timestamp_ms=stamp))
        else:
            summaries.append(summarize(segment, log.indexes[base], stamp))
    active = listing.active
    summaries.append(
        SegmentSummary(active.base_offset, active.size_bytes, active.mtime_ms, -1, 0, 0)
    )
    return tuple(summaries)


def _notes(
    log: _Log,
    section: DirtySection,
    partition: PartitionRequest,
    request: CleanRequest,
    decision: Decision,
) -> list[Note]:
    """Return what to know of the log: why it is cleaned, how far, and what is odd about it."""
    return [
        *_roll_notes(log, section, request, is_eligible=isinstance(decision, DueReason)),
        *((decision,) if isinstance(decision, DueReason) else ()),
        *section_notes(section),
        *file_notes(log.listing, log.tail, log.indexes.rebuilt, partition.partition),
        *dating_notes(section.dating, partition.topic),
    ]


def _roll_notes(
    log: _Log, section: DirtySection, request: CleanRequest, *, is_eligible: bool
) -> tuple[RollNote | RemainsActive, ...]:
    """Return why the active segment is left, or that it remains at a target after all."""
    if request.target is None or not log.roll_notes:
        return log.roll_notes
    left = log.listing.segments[-2].base_offset
    if is_eligible and section.cleanable.bound > left:
        return log.roll_notes
    limit = section.uncleanable.limit if section.cleanable.bound <= left else None
    return (RemainsActive(left, limit),)
