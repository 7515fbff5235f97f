"""Moves the log start offset of one partition, as a broker does for ``DeleteRecords``.

Nothing but the start moves: what lies below is gone for readers at once, and from the disk when all
of its segment is below and somebody looks: a broker's retention check, ``clean`` or ``run`` here. A
round that comes before may have made one segment of it and what follows, as a broker's would: then
it stays as long as that one does.
Allowed where the policy contains ``delete``, and up to the high watermark. Answers to
``ReplicaManager.deleteRecordsOnLocalLog`` and ``UnifiedLog.maybeIncrementLogStartOffset``;
cleaning.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from keeplast.cleaner.retention import ExpiryRule
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.files import FileSystem
from keeplast.log.format_guard import check_understood
from keeplast.log.lock import locked
from keeplast.log.log_start import follow_log_start, raise_log_start
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.recovery import recover_swap
from keeplast.model.document import shown_fields
from keeplast.run.expiry import expire, settle, survey_expiry
from keeplast.run.keeping import sweep_kept
from keeplast.run.removal import remove_files
from keeplast.run.shield import shielded
from keeplast.survey.given import check_lifts
from keeplast.survey.log_bounds import find_bounds, load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.wording import lift_words

HIGH_WATERMARK = -1
"""As an offset to delete before: all that is replicated."""


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment with deleted records: base offset, bytes, and where it ends, exclusive."""

    base: int
    bytes: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsReport:
    """What a deletion did, or would do.

    Readers see ``[log_start, log_end)``. ``below`` are the segments all of whose records are
    deleted; ``partly`` is the one that holds ``log_start`` and deleted records before it, which
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

    ``high_watermark`` None means as the directory tells; a higher one is refused unless
    ``is_unsafe``. ``removes`` takes the segments that lie
    wholly below off the disk as well; ``writes`` False only says what would happen, and takes no
    lock. InvalidError for another negative offset; RefusedError above the high watermark, for a
    policy without ``delete``, and while somebody else holds the directory.
    """
    if before_offset < HIGH_WATERMARK:
        raise InvalidError(
            f"an offset cannot be negative; -1 means the high watermark. before={before_offset}"
        )
    if not partition.topic.expires:
        policy = ",".join(sorted(partition.topic.cleanup_policy)) or "empty"
        raise RefusedError(
            "cleanup.policy without delete: records go by key alone, write a tombstone instead. "
            f"cleanup_policy={policy} path={partition.path}"
        )
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
        )  # fmt: skip
    target = bounds.high_watermark if before_offset == HIGH_WATERMARK else before_offset
    if target > bounds.high_watermark:
        raise RefusedError(
            "the offset is above the high watermark; records that are not replicated cannot be "
            f"deleted. before={target} high_watermark={bounds.high_watermark} "
            f"path={partition.path}"
        )
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
