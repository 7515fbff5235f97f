"""How the start of a log moves: by what retention decides, and as for ``DeleteRecords``.

Expiry carries out what :mod:`keeplast.cleaner.segment_expiry` decides about one partition. Nothing
is changed before everything has been read. Then, in the order that :mod:`keeplast.log.truncation`
asks for: a new active segment when all of the log goes, the log start offset, the receipt, the
renames, the removal. The caller holds the lock.

A deletion moves the log start offset of one partition, as a broker does for ``DeleteRecords``.
Nothing but the start moves. The records below it are gone for readers at once. They go from the
disk when all of their segment is below and a next look finds it: a broker's retention check,
``clean`` or ``run`` here. A round that comes before may have made one segment of it and what
follows, as a broker's would: then it stays as long as that one does. Allowed where the policy
contains ``delete``, and up to the high watermark. Answers to
``ReplicaManager.deleteRecordsOnLocalLog`` and ``UnifiedLog.maybeIncrementLogStartOffset``;
cleaning.md section 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.segment_expiry import ExpiryPlan, ExpiryRule, plan_expiry
from keeplast.columns import batches as t
from keeplast.errors import CompactionError, CorruptError, InvalidError, RefusedError
from keeplast.log.files import FileSystem, reading
from keeplast.log.lock import locked
from keeplast.log.log_end import check_magic, check_understood
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_tail,
    is_empty_log,
    list_partition,
    load_indexes,
    rebuild_indexes,
    summarize,
)
from keeplast.log.recovery import recover_swap
from keeplast.log.truncation import (
    follow_log_start,
    raise_log_start,
    retire_below,
    settle_log_start,
)
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.document import shown_fields
from keeplast.model.partition import NO_TIMESTAMP, SegmentSummary
from keeplast.model.topic_config import TopicConfig
from keeplast.run.commit import complete_active, remove_files, shielded
from keeplast.run.receipt import append_receipt, expiry_line
from keeplast.run.undoing import sweep_kept
from keeplast.survey.bounds import (
    Checkpoints,
    LogBounds,
    check_lifts,
    find_bounds,
    lift_notes,
    lifts_above,
    load_checkpoints,
)
from keeplast.survey.notes import GivenOption, Lift, LiftNote
from keeplast.survey.report import ExpiredReport, ExpiryReport, describe_error
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.rolling import roll_active
from keeplast.survey.wording import expiry_words, lift_words, sentences

ALL_RULES = frozenset(ExpiryRule)


class ExpirySurvey(Struct, frozen=True):
    """A partition as found, and what of it goes at ``now_ms``."""

    listing: PartitionFiles
    bounds: LogBounds
    plan: ExpiryPlan
    now_ms: int


def expire_partition(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    now_ms: int,
    *,
    clock_ms: int,
    writes: bool,
    warned: Callable[[str], None],
    is_understood: bool = False,
    load: Callable[[FileSystem, Path], Checkpoints] = load_checkpoints,
) -> ExpiryReport | None:
    """Expire a partition, or say what would go; errors are in the report. None for an empty log.

    ``clock_ms`` is the machine's clock: a given ``now_ms`` ahead of it is refused as a lift.
    ``is_understood`` says that this call has asked already whether everything there is. ``load``
    reads the checkpoints of a directory.
    """
    survey: ExpirySurvey | None = None
    try:
        names = files.listdir(partition.path)
        if is_empty_log(names):
            return None
        survey = survey_expiry(
            partition, request, files, now_ms, is_understood=is_understood, names=names, load=load
        )
        lifts = (*lifts_above(GivenOption.NOW, request.now_ms, clock_ms), *survey.bounds.lifts)
        report = expiry_report(survey, lift_notes(lifts, writes=writes or request.is_unsafe))
        if writes:
            check_lifts(lifts, request, partition.path)
            with shielded():
                note = partial(_note, partition, request, files, now_ms, report, lifts)
                remove_files(files, expire(files, partition, survey, note), warned)
                is_as_found = not (survey.plan.expired or survey.plan.rolls_active)
                settle(files, partition, survey.listing if is_as_found else None)
    except (CompactionError, OSError) as error:
        return failed_expiry(survey, error)
    return report


def _note(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    now_ms: int,
    report: ExpiryReport,
    lifts: tuple[Lift, ...],
) -> None:
    if request.receipt is not None:
        line = expiry_line(
            partition.partition, partition.topic, now_ms, report,
            is_unsafe=request.is_unsafe, lifts=lifts,
        )  # fmt: skip
        append_receipt(files, request.receipt, line)


def survey_expiry(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    now_ms: int,
    rules: frozenset[ExpiryRule] = ALL_RULES,
    *,
    is_understood: bool = False,
    names: Sequence[str] | None = None,
    load: Callable[[FileSystem, Path], Checkpoints] = load_checkpoints,
) -> ExpirySurvey:
    """Say what of a partition goes; reads indexes, and of the active segment what lacks one.

    ``names`` are what the caller has just listed.

    CorruptError, OSError, or RefusedError when the log start offset is beyond the log end: a broker
    would drop the whole log, which is not for us to do.
    """
    if not is_understood:
        check_understood(partition.path, files)
    listing = list_partition(partition.path, files, names=names)
    tail = find_tail(listing, files)
    if tail.torn_at is not None:
        check_magic(listing.active.log_path, tail.torn_at, files)
    checkpoints = load(files, partition.path.parent)
    bounds = find_bounds(partition.partition, request, checkpoints, listing, tail)
    if bounds.log_start > tail.log_end:
        raise RefusedError(
            "the log start offset is beyond the log end, and a broker would drop all of the log; "
            f"correct log-start-offset-checkpoint. path={partition.path} "
            f"log_start={bounds.log_start} log_end={tail.log_end}",
            code="K214",
        )
    plan = plan_expiry(
        partition.topic,
        _summaries(partition, listing, tail, files),
        log_start=bounds.log_start,
        log_end=tail.log_end,
        high_watermark=bounds.high_watermark,
        now_ms=now_ms,
        rules=rules,
        is_torn=tail.torn_at is not None,
    )
    return ExpirySurvey(listing, bounds, plan, now_ms)


def expire(
    files: FileSystem,
    partition: PartitionRequest,
    survey: ExpirySurvey,
    note_receipt: Callable[[], None],
) -> list[Path]:
    """Let go what was decided; returns the files that nothing needs any more, for removal.

    Where nothing is to go, what a crash has left of an earlier expiry still does.

    ``note_receipt`` is called when the log start has moved and no file has yet.
    """
    plan = survey.plan
    if plan.rolls_active:
        roll_active(files, partition.path, partition.topic)
    move = raise_log_start if plan.expired else follow_log_start
    move(
        files,
        partition.path,
        partition.partition,
        plan.log_start,
        is_compacted=partition.topic.is_compacted,
    )
    if plan.expired:
        note_receipt()
    return retire_below(files, partition.path, plan.first_base)


def settle(
    files: FileSystem, partition: PartitionRequest, listing: PartitionFiles | None = None
) -> None:
    """Drop a log start offset that the first segment's name shows, when all is removed.

    An active segment that was rolled gets its empty indexes, should a crash have kept them.
    ``listing`` is the log where its segments are as they were surveyed.
    """
    if listing is None:
        listing = list_partition(partition.path, files)
    complete_active(files, listing)
    first_base = listing.segments[0].base_offset
    settle_log_start(files, partition.path, partition.partition, first_base)


def expiry_report(survey: ExpirySurvey, lifted: Sequence[LiftNote] = ()) -> ExpiryReport:
    """Return the report of what goes or has gone, and of limits that were lifted for it."""
    plan = survey.plan
    return ExpiryReport(
        log_start_before=plan.log_start_before,
        log_start=plan.log_start,
        high_watermark=survey.bounds.high_watermark,
        rolled_active=plan.rolls_active,
        segments=expired_reports(plan),
        notes=(*sentences(lifted), *sentences(plan.notes)),
    )


def failed_expiry(survey: ExpirySurvey | None, error: Exception) -> ExpiryReport:
    """Return the report of an expiry that ended with ``error``; what was to go is in it."""
    report = ExpiryReport() if survey is None else expiry_report(survey)
    return replace(report, error=describe_error(error), failure=error)


def _summaries(
    partition: PartitionRequest, listing: PartitionFiles, tail: Tail, files: FileSystem
) -> list[SegmentSummary]:
    """Summarize all segments; only a policy that looks at times has their indexes read."""
    if not partition.topic.expires:
        return [
            SegmentSummary(s.base_offset, s.size_bytes, s.mtime_ms, NO_TIMESTAMP, 0, 0)
            for s in listing.segments
        ]
    buffers = WindowBuffers()
    interval = partition.topic.index_interval_bytes
    closed = [
        summarize(segment, load_indexes(segment, files, interval, buffers), None)
        for segment in listing.segments[:-1]
    ]
    return [*closed, _summarize_active(listing.active, tail, files, interval, buffers)]


def _summarize_active(
    active: SegmentFiles, tail: Tail, files: FileSystem, interval: int, buffers: WindowBuffers
) -> SegmentSummary:
    """Summarize the sound part of the active segment.

    Indexes that are sound may still be of an earlier time: the batches after their last entry are
    read.
    """
    whole = dataclasses.replace(active, size_bytes=tail.valid_bytes)
    if tail.torn_at is None:
        indexes = load_indexes(whole, files, interval, buffers)
    else:
        indexes = rebuild_indexes(whole, files, interval, buffers)
    largest = indexes.largest_timestamp_ms
    start = int(indexes.offsets[-1, 1]) if len(indexes.offsets) else 0
    with reading(files, active.log_path) as handle:
        windows = read_windows(handle, active.log_path, buffers, start=start, end=tail.valid_bytes)
        for window in windows:
            stamps = window.table[: window.batches, t.MAX_TIMESTAMP]
            largest = max(largest, int(stamps.max()))
    return replace(summarize(whole, indexes, None), largest_timestamp_ms=largest)


def expired_reports(plan: ExpiryPlan) -> tuple[ExpiredReport, ...]:
    """Return what a plan lets go, as it is reported."""
    return tuple(
        ExpiredReport(
            each.segment.base_offset,
            each.segment.size_bytes,
            each.segment.age_timestamp_ms if each.rule is ExpiryRule.TIME else None,
            each.rule.value,
            expiry_words(each.reason),
        )
        for each in plan.expired
    )


HIGH_WATERMARK = -1
"""As an offset to delete before: all that is replicated."""


class DeletedSegment(Struct, frozen=True):
    """A segment with deleted records: base offset, bytes, and where it ends, exclusive."""

    base: int
    bytes: int
    end_offset: int


class DeleteRecordsReport(Struct, frozen=True):
    """What a deletion did, or would do.

    Readers see ``[log_start, log_end)``. ``below`` are the segments all of whose records are
    deleted. ``partly`` is the one that holds ``log_start`` and deleted records before it, which
    stay in the file as long as the segment does. ``removed`` says that ``below`` is off the disk.
    ``lifts`` are limits of the log that an unsafe call lifted.
    """

    topic: str
    partition: int
    log_start_before: int
    log_start: int
    high_watermark: int
    log_end: int
    below: tuple[DeletedSegment, ...]
    partly: DeletedSegment | None
    removed: bool
    is_compacted: bool
    lifts: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True when the log start moves; an offset below it is no error and does nothing."""
        return self.log_start > self.log_start_before

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        head = {"topic": self.topic, "partition": self.partition, "changed": self.changed}
        return head | shown_fields(self, "topic", "partition", "is_compacted")


def delete_records(
    partition: PartitionRequest,
    files: FileSystem,
    *,
    before_offset: int,
    high_watermark: int | None = None,
    is_unsafe: bool = False,
    removes: bool = False,
    writes: bool = True,
    warned: Callable[[str], None],
) -> DeleteRecordsReport:
    """Delete every record below ``before_offset``; :data:`HIGH_WATERMARK` means that offset.

    ``high_watermark`` None means as the directory says; a higher one is refused unless
    ``is_unsafe``. ``removes`` takes the segments that lie wholly below off the disk as well;
    ``writes`` False only says what would happen, and takes no lock. InvalidError for another
    negative offset; RefusedError above the high watermark, for a policy without ``delete``, and
    while another process holds the directory.
    """
    check_deletion(partition.topic, before_offset, f"path={partition.path}")
    request = CleanRequest((partition,), high_watermark=high_watermark, is_unsafe=is_unsafe)
    if not writes:
        return _plan(partition, request, before_offset, files)
    with locked(partition.path.parent):
        check_understood(partition.path, files)
        with shielded():
            recover_swap(files, partition.path)
            report = _plan(partition, request, before_offset, files)
            move = raise_log_start if report.changed else follow_log_start
            move(
                files,
                partition.path,
                partition.partition,
                report.log_start,
                is_compacted=partition.topic.is_compacted,
            )
            if removes:
                return _remove(partition, request, files, report, warned)
    return report


def check_deletion(topic: TopicConfig, before_offset: int, where: str) -> None:
    """Raise InvalidError for an offset that cannot be, RefusedError for a policy without delete."""
    if before_offset < HIGH_WATERMARK:
        raise InvalidError(
            f"an offset cannot be negative; -1 means the high watermark. before={before_offset}",
            code="K104",
        )
    if not topic.expires:
        policy = ",".join(sorted(topic.cleanup_policy)) or "empty"
        raise RefusedError(
            "cleanup.policy without delete: records go by key alone, write a tombstone instead. "
            f"cleanup_policy={policy} {where}",
            code="K235",
        )


def check_replicated(before_offset: int, high_watermark: int, where: str) -> None:
    """Raise RefusedError for an offset above the high watermark."""
    if before_offset > high_watermark:
        raise RefusedError(
            "the offset is above the high watermark; records that are not replicated cannot be "
            f"deleted. before={before_offset} high_watermark={high_watermark} {where}",
            code="K236",
        )


def _plan(
    partition: PartitionRequest, request: CleanRequest, before_offset: int, files: FileSystem
) -> DeleteRecordsReport:
    check_understood(partition.path, files)
    listing = list_partition(partition.path, files)
    tail = find_tail(listing, files)
    checkpoints = load_checkpoints(files, partition.path.parent)
    bounds = find_bounds(partition.partition, request, checkpoints, listing, tail)
    check_lifts(bounds.lifts, request, partition.path)
    if bounds.log_start > tail.log_end:
        raise CorruptError(
            "the log start offset is beyond the log end",
            path=str(partition.path), expected=f"at most {tail.log_end}", found=bounds.log_start,
            code="K214",
        )  # fmt: skip
    target = bounds.high_watermark if before_offset == HIGH_WATERMARK else before_offset
    check_replicated(target, bounds.high_watermark, f"path={partition.path}")
    log_start = max(target, bounds.log_start)
    ends = [*(segment.base_offset for segment in listing.segments[1:]), tail.log_end]
    deleted = [
        DeletedSegment(segment.base_offset, segment.size_bytes, end)
        for segment, end in zip(listing.segments, ends, strict=True)
        if segment.base_offset < log_start
    ]
    # The active segment stays even when all of it is deleted: the log ends in it.
    below = [
        d for d in deleted if d.end_offset <= log_start and d.base != listing.active.base_offset
    ]
    partly = next((d for d in deleted if d not in below), None)
    return DeleteRecordsReport(
        partition.partition.topic,
        partition.partition.partition,
        bounds.log_start,
        log_start,
        bounds.high_watermark,
        tail.log_end,
        tuple(below),
        partly,
        removed=False,
        is_compacted=partition.topic.is_compacted,
        lifts=tuple(map(lift_words, bounds.lifts)),
    )


def _remove(
    partition: PartitionRequest,
    request: CleanRequest,
    files: FileSystem,
    report: DeleteRecordsReport,
    warned: Callable[[str], None],
) -> DeleteRecordsReport:
    """Take the segments below the log start off the disk, by the rule that rounds go by."""
    rules = frozenset({ExpiryRule.LOG_START})
    survey = survey_expiry(partition, request, files, 0, rules)
    remove_files(files, expire(files, partition, survey, lambda: None), warned)
    settle(files, partition)
    sweep_kept(files, partition, None)
    return replace(report, removed=True)
