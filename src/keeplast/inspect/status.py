"""What can be said of one log without cleaning it: where it stands, and what it waits for.

Looks at a log as the daemon will find it: an active segment that is due to be left counts as left.
Reads what a survey reads; headers or records of the whole log only where tombstones are to be
counted. Takes no lock and writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from keeplast.cleaner.cleanable_range import limit_of
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.erasure import (
    DirtyLog,
    Eligibility,
    ErasureBasis,
    find_deadline,
    find_eligibility,
)
from keeplast.cleaner.reasons import (
    BoundNote,
    Decision,
    HoldLimit,
    LagLimit,
    NothingBelow,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.clock import SystemClock
from keeplast.columns import batches as t
from keeplast.errors import CompactionError, InterruptedSwapError
from keeplast.inspect.stages import (
    Progressed,
    Stages,
    stages_by_headers,
    stages_by_records,
)
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.log.checkpoints import cleaned_for
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import PartitionFiles, Tail, read_first_timestamp
from keeplast.log.readers import settled_partition
from keeplast.log.undo_files import kept_until_ms
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.hold import GroupReader, Hold, ReaderWait
from keeplast.model.partition import LogRegion, SegmentSummary, TopicPartition
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.group_offsets import GroupOffsets, ReaderOffsets
from keeplast.survey.notes import Note
from keeplast.survey.request import CleanRequest, PartitionRequest, key_capacity
from keeplast.survey.survey import Survey, survey_partition
from keeplast.survey.wording import basis_words

LOOKS_MAX = 3
"""A log whose files vanish while it is looked at is looked at so many times."""


class TombstoneReading(StrEnum):
    """What is read to count tombstones and markers by stage."""

    HEADERS = "headers"
    RECORDS = "records"
    SKIP = "skip"


class LogStatus(Struct, frozen=True):
    """One log as of the clock it was asked with.

    ``decision`` is why a round is worth it, or why it is not.
    ``notes`` are all of the survey's.
    ``deadline_ms`` is when ``max.compaction.lag.ms`` ends for the log: after it, it is overdue.
    ``leftover_bytes`` are those of replaced or unfinished files that a crash left. ``holds`` are
    those in force, ``readers`` those that tombstones wait for. ``kept_until_ms`` is when the last
    of what rounds have kept for undo is due to go, None where nothing is; ``undo_retention_ms`` how
    long later ones keep what they replace.
    """

    partition: TopicPartition
    path: Path
    segments: tuple[SegmentSummary, ...]
    log_start: int
    log_end: int
    figures: LogFigures
    deadline_ms: int | None
    decision: Decision
    notes: tuple[Note, ...]
    is_expired_round: bool
    eligibility: Eligibility
    stages: Stages | None
    leftover_bytes: int
    holds: tuple[Hold, ...] = ()
    kept_until_ms: int | None = None
    undo_retention_ms: int = 0
    readers: ReaderWait | None = None
    cleaned_for: int | None = None

    @property
    def earliest_as_of(self) -> int:
        """Return the first offset whose state can still be read; every later one's can be, too.

        As far as the cleaner's checkpoint says, and ``cleaned_for``, which a round that is not over
        has noted: a reader of a state may get more.
        """
        return max(self.log_start, self.figures.first_dirty, self.cleaned_for or 0)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the offset after the last one of each segment."""
        return (*(each.base_offset for each in self.segments[1:]), self.log_end)

    @property
    def regions(self) -> tuple[LogRegion, ...]:
        """Return what each segment is to the next round; one is taken whole, as in Kafka."""
        bound, first_dirty = self.figures.cleanable.bound, self.figures.first_dirty
        held = _held_region(self)
        found = []
        for index, (segment, end) in enumerate(zip(self.segments, self.ends, strict=True)):
            if segment.base_offset < first_dirty and end <= first_dirty:
                region = LogRegion.CLEAN
            elif segment.base_offset < bound:
                region = LogRegion.DIRTY
            else:
                region = LogRegion.ACTIVE if index == len(self.segments) - 1 else held
            found.append(region)
        return tuple(found)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)


def _held_region(log: LogStatus) -> LogRegion:
    """Return what lies at and above the bound, below the active segment."""
    notes = (note.limit for note in log.notes if isinstance(note, BoundNote))
    limit = log.decision.limit if isinstance(log.decision, NothingBelow) else next(notes, None)
    if isinstance(limit, TransactionLimit | WatermarkLimit):
        return LogRegion.UNSTABLE
    return LogRegion.UNCLEANABLE if isinstance(limit, LagLimit | HoldLimit) else LogRegion.ACTIVE


class ErasedBy(Struct, frozen=True):
    """By when every value that is overwritten or deleted in the log now is gone, of a store from
    both tiers.

    It assumes that rounds succeed from now on; ``is_unknown`` while they fail. ``by_ms`` None means
    that there is no bound, ``is_gone`` that there is nothing left to go; ``basis`` is what says
    so, or what the bound rests on. ``eligible_by_ms`` is when the round is due, ``undo_ms`` how
    long what it replaces is kept, and the rest of the time is what it may have to wait and take.
    """

    by_ms: int | None
    eligible_by_ms: int | None
    basis: ErasureBasis
    is_gone: bool = False
    is_unknown: bool = False
    undo_ms: int = 0

    @property
    def why(self) -> str:
        """Return the basis in words."""
        return basis_words(self.basis)


def find_statuses(
    request: CleanRequest,
    root: Path,
    files: FileSystem,
    now_ms: int,
    *,
    timestamp_ahead_max_ms: Callable[[str], int],
    tombstones: TombstoneReading,
    progressed: Progressed,
    brokers: GroupReader | None = None,
) -> list[tuple[PartitionRequest, LogStatus | Exception]]:
    """Return the status of each log that is asked for, or why it has none; see ``find_status``.

    A round that swaps or ends meanwhile takes files away or puts others in their place, and its
    checkpoint is new. So a log with an error is looked at again, a few times: what is wrong with it
    is what two looks in a row find. ``timestamp_ahead_max_ms`` is asked for each topic. ``brokers``
    read what consumer groups have committed, None where files do.
    """
    checkpoints, groups = load_checkpoints(files, root), GroupOffsets(files, brokers)
    found: list[tuple[PartitionRequest, LogStatus | Exception]] = []
    for each in request.partitions:
        log: LogStatus | Exception | None = None
        for look in range(LOOKS_MAX):
            if look:
                checkpoints = load_checkpoints(files, root)
                # Where segments are being replaced the next look finds them as they are then.
                with contextlib.suppress(CompactionError, OSError):
                    settled_partition(each.path, files, SystemClock(), if_empty=0)
            before = log
            try:
                log = find_status(
                    each, request, checkpoints, files, now_ms,
                    timestamp_ahead_max_ms=timestamp_ahead_max_ms(each.partition.topic),
                    tombstones=tombstones, progressed=progressed, groups=groups,
                )  # fmt: skip
                break
            except (CompactionError, OSError) as error:
                log = error
            is_same = str(log) == str(before) and not isinstance(log, FileNotFoundError)
            if is_same or isinstance(log, InterruptedSwapError):
                break
        assert log is not None
        found.append((each, log))
    return found


def find_status(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    *,
    timestamp_ahead_max_ms: int,
    tombstones: TombstoneReading = TombstoneReading.HEADERS,
    progressed: Progressed = lambda _: None,
    groups: ReaderOffsets | None = None,
) -> LogStatus:
    """Return the status of one log; CorruptError, RefusedError or OSError when it has none.

    ``timestamp_ahead_max_ms`` is how far ahead of the clock a record may be dated that is appended
    from now on, INT64_MAX when that is not checked. ``progressed`` hears of the bytes that were
    gone through to count tombstones. ``groups`` reads what consumer groups have committed.
    """
    survey = survey_partition(
        partition, request, checkpoints, files, now_ms, foresees_roll=True, wants_sample=False,
        groups=groups,
    )  # fmt: skip
    return status_of_survey(
        partition, survey, checkpoints, files, now_ms,
        timestamp_ahead_max_ms=timestamp_ahead_max_ms,
        tombstones=tombstones, progressed=progressed,
    )  # fmt: skip


def status_of_survey(
    partition: PartitionRequest,
    survey: Survey,
    checkpoints: Checkpoints,
    files: FileSystem,
    now_ms: int,
    *,
    timestamp_ahead_max_ms: int,
    tombstones: TombstoneReading = TombstoneReading.SKIP,
    progressed: Progressed = lambda _: None,
) -> LogStatus:
    """Return the status of a log that was surveyed, its next roll foreseen.

    Reads the timestamps of the active segment, and what ``tombstones`` asks for.
    """
    log = _dirty_log(partition, survey, checkpoints, files)
    plan = survey.plan
    return LogStatus(
        partition=partition.partition,
        path=partition.path,
        segments=survey.segments,
        log_start=survey.log_start,
        log_end=survey.tail.log_end,
        figures=survey.figures,
        deadline_ms=find_deadline(log, partition.topic),
        decision=survey.decision,
        notes=survey.notes,
        is_expired_round=plan is not None and plan.is_expired_round,
        eligibility=find_eligibility(
            log,
            partition.topic,
            timestamp_ahead_max_ms=timestamp_ahead_max_ms,
            key_capacity=key_capacity(partition),
            now_ms=now_ms,
        ),
        stages=_stages(partition.path, survey, files, now_ms, tombstones, progressed),
        leftover_bytes=sum(
            files.stat(partition.path / name).size_bytes for name in survey.listing.leftovers
        ),
        holds=survey.holds,
        kept_until_ms=kept_until_ms(
            files, partition.path, survey.listing.unknown, partition.topic.undo_retention_ms
        ),
        undo_retention_ms=partition.topic.undo_retention_ms,
        readers=survey.readers,
        cleaned_for=cleaned_for(survey.listing, files),
    )


def _stages(
    path: Path,
    survey: Survey,
    files: FileSystem,
    now_ms: int,
    tombstones: TombstoneReading,
    progressed: Progressed,
) -> Stages | None:
    if tombstones is TombstoneReading.SKIP:
        return None
    if tombstones is TombstoneReading.RECORDS:
        return stages_by_records(VerifiedLog(path, files), now_ms, progressed, survey.readers)
    return stages_by_headers(survey.listing, survey.tail, files, now_ms, progressed, survey.readers)


def _dirty_log(
    partition: PartitionRequest, survey: Survey, checkpoints: Checkpoints, files: FileSystem
) -> DirtyLog:
    """Return what the bound of an erasure needs to know of the log."""
    topic, log_end = partition.topic, survey.tail.log_end
    needs_largest = topic.min_compaction_lag_ms > 0 or key_capacity(partition) is not None
    return DirtyLog(
        survey.segments,
        survey.section.first_dirty.offset,
        log_end,
        survey.section.cleanable.bound,
        is_eligible=survey.plan is not None and not survey.plan.is_expired_round,
        limit=stable_limit(partition.partition, survey, checkpoints),
        hold=_last_hold(survey),
        active_first_ms=read_first_timestamp(survey.listing.active, files),
        active_largest_ms=largest_timestamp(survey.listing, survey.tail, files)
        if needs_largest
        else None,
    )


def _last_hold(survey: Survey) -> HoldLimit | None:
    """Return the hold that ends last of those that keep something from being cleaned."""
    holds = [each for each in survey.holds if each.limit < survey.tail.log_end]
    last = max(holds, key=lambda each: each.until_ms, default=None)
    return None if last is None else limit_of(last)


def stable_limit(
    partition: TopicPartition, survey: Survey, checkpoints: Checkpoints
) -> WatermarkLimit | TransactionLimit | None:
    """Return what keeps offsets from being cleaned that no time ends, None when nothing does."""
    log_end = survey.tail.log_end
    if survey.last_stable >= log_end:
        return None
    watermark = checkpoints.high_watermark.get(partition, log_end)
    is_watermark = survey.last_stable == min(max(watermark, survey.log_start), log_end)
    return (WatermarkLimit if is_watermark else TransactionLimit)(survey.last_stable)


def largest_timestamp(listing: PartitionFiles, tail: Tail, files: FileSystem) -> int | None:
    """Return the greatest timestamp in the active segment, whose time index may not be written."""
    if not tail.valid_bytes:
        return None
    path = listing.active.log_path
    largest = -1
    with reading(files, path) as handle:
        for window in read_windows(
            handle, path, WindowBuffers(), end=tail.valid_bytes, checks_crc=False
        ):
            largest = max(largest, int(window.table[: window.batches, t.MAX_TIMESTAMP].max()))
    return None if largest < 0 else largest
