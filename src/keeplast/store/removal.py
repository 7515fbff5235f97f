"""What leaves a store: by retention, by its log start, and because its user says so.

The order is the rule: one transaction moves the log start and stops the reading. Then comes the
receipt, whose head is kept, and the objects go with a collection when the grace has passed. A crash
between the first two leaves an expiry without its line, and never a line of what did not happen.
What may be removed of a partition is looked for at once, or now and then.

A user may take the beginning of a log, its end, or all of it out of object storage. Its beginning
goes as ``DeleteRecords`` lets it go. Two cases ask for more. A broker has truncated what was
copied, an unreplicated tail, and the store holds records that no replica has; and a partition shall
not be kept any more. Both say first what is lost. Where rounds have cleaned what stays by what
goes, that is more than what goes. The order is that of an expiry, and a crash between the first two
leaves no line.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.segment_expiry import ExpiryRule
from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SegmentFiles, find_tail, list_partition, load_aborted
from keeplast.log.truncation import find_divergence
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.expiry import (
    HIGH_WATERMARK,
    DeletedSegment,
    DeleteRecordsReport,
    check_deletion,
    check_replicated,
    expired_reports,
)
from keeplast.run.receipt import Receipt, expiry_line, removal_line
from keeplast.survey.kept_heads import keep_line
from keeplast.survey.report import ExpiryReport
from keeplast.survey.wording import sentences
from keeplast.tier.copy.importing import check_same_topic, find_other_epoch, read_lineage
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.ownership import Ownership
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.objects.transfer import copy_segment, find_cut
from keeplast.tier.state.partition_state import (
    Orphan,
    PartitionState,
    check_not_forgotten,
    plan_remote_expiry,
)
from keeplast.tier.state.segment import RemoteSegment, Route, SegmentKind


def expire_remote(
    store: MetadataStore,
    state: PartitionState,
    topic: TopicConfig,
    now_ms: int,
    *,
    grace_ms: int,
    log_start: int | None = None,
    local_only_bytes: int = 0,
    receipt: Receipt | None = None,
    rules: frozenset[ExpiryRule] = frozenset(ExpiryRule),
) -> ExpiryReport:
    """Expire as the owner and the holder that ``state`` names; FencedError when another one is.

    ``log_start`` is where the log is to start; without one it moves only with segments that go.
    ``local_only_bytes`` lie above the remote end on the leader's disk. ``receipt`` takes a line
    when segments went. ``rules`` narrows what lets segments go.
    """
    plan = plan_remote_expiry(
        topic, state, now_ms, log_start=log_start, local_only_bytes=local_only_bytes, rules=rules
    )
    report = ExpiryReport(
        state.log_start, plan.log_start, segments=expired_reports(plan), notes=sentences(plan.notes)
    )
    gone = {segment.base for segment in report.segments}
    ids = [route.segment_id for route in state.routes if route.base_offset in gone]
    if ids or (log_start is not None and plan.log_start > state.log_start):
        store.commit_expiry(
            state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
            log_start=plan.log_start, segments=ids, grace_ms=grace_ms, holder=state.holder,
            settings=state.settings,
        )  # fmt: skip
    if ids and receipt is not None:
        keep_line(store.facts, receipt(expiry_line(state.partition, topic, now_ms, report)))
    return report


COLLECT_MS = 60 * 60 * 1000
"""Objects without a row are looked for this often; replaced segments as soon as they may go."""


def is_collection_due(orphans: Iterable[Orphan], last_ms: int | None, *, now_ms: int) -> bool:
    """Say whether to collect: a grace has passed, or the last collection, at ``last_ms``, is long
    ago. None says that there was none; one in the future is that of a clock that was ahead."""
    return (
        any(orphan.not_before_ms <= now_ms for orphan in orphans)
        or last_ms is None
        or not 0 <= now_ms - last_ms < COLLECT_MS
    )


class Removal(Struct, frozen=True):
    """What goes of a partition: the records at ``[start, end)``.

    ``segments`` are those that lose something, ``bytes`` and ``records`` what goes of them; records
    are not counted where all of a partition goes. ``cut_base`` is the base offset of a segment that
    stays in part. ``asked`` is where the log was to end: above ``start`` where a batch reaches
    across, which goes whole; None where all of a partition goes. ``is_cleaned_by`` says that rounds
    may have cleaned what stays by what goes: a key whose newest record goes may have lost the older
    ones too. ``done`` says that it happened.
    """

    partition: TopicPartition
    kind: str
    start: int
    end: int
    segments: int
    bytes: int
    records: int | None
    cut_base: int | None = None
    asked: int | None = None
    is_cleaned_by: bool = False
    done: bool = False

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to remove."""
        return self.kind == "truncate" and self.start >= self.end


class StoreRemovals:
    """The removals of one opened store; see :attr:`.tiered_store.TieredStore.removals`."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        files: FileSystem,
        clock: Clock,
        topic_of: Callable[[Mapping[str, str]], TopicConfig],
        ownership: Ownership,
    ) -> None:
        self._store = store
        self._objects = objects
        self._files = files
        self._clock = clock
        self._topic_of = topic_of
        self._ownership = ownership

    def plan_truncation(
        self, partition: TopicPartition, offset: int | None = None, *, directory: Path | None = None
    ) -> Removal:
        """Say what is lost when the log ends at ``offset``, exclusive; changes nothing.

        Instead of one, a ``directory`` of the partition: the log then ends where that is another
        log, or ends itself. InvalidError unless one of both is given.
        """
        return self._plan(self._store.load(partition), offset, directory)

    def truncate(
        self,
        partition: TopicPartition,
        offset: int | None = None,
        *,
        directory: Path | None = None,
        takes_over: bool = False,
        grace_ms: int,
        receipt: Receipt | None = None,
    ) -> Removal:
        """End the log as :meth:`plan_truncation` says: what lies above that is not read any more.

        As its holder, and at a new leader epoch. ``receipt`` takes a line of what went.
        ConflictError when the partition changed meanwhile.
        """
        state = self._ownership.own(partition, takes_over=takes_over)
        removal = self._plan(state, offset, directory)
        if removal.is_empty:
            return removal
        cut = removal.start
        across = next((r for r in state.routes if r.base_offset < cut <= r.last_offset), None)
        made = (
            None
            if across is None or removal.cut_base is None
            else _shorten(self._objects, state, across, cut, self._interval(state))
        )
        self._store.removals.truncate(
            state, secrets.token_hex(ID_CHARS // 2), cut=cut,
            replaced=None if across is None else across.segment_id, made=made, grace_ms=grace_ms,
        )  # fmt: skip
        return self._note(removal, receipt)

    def delete_records(
        self,
        partition: TopicPartition,
        before_offset: int,
        *,
        writes: bool = True,
        takes_over: bool = False,
        grace_ms: int,
        receipt: Receipt | None = None,
    ) -> DeleteRecordsReport:
        """Let the log start at ``before_offset``, as :func:`keeplast.run.expiry` does.

        The segments that lie wholly below are collected when their grace has passed. It is one
        transaction: a process of this owner that holds the partition goes on with it. ``writes``
        False only says what would happen. InvalidError for another negative offset; RefusedError
        above the remote end and for a policy without ``delete``.
        """
        state = (
            self._ownership.join(partition, takes_over=takes_over)
            if writes
            else self._store.load(partition)
        )
        topic = self._topic_of(state.settings)
        end = state.remote_end
        check_deletion(topic, before_offset, f"partition={partition}")
        target = end if before_offset == HIGH_WATERMARK else before_offset
        check_replicated(target, end, f"partition={partition}")
        log_start = max(target, state.log_start)
        if writes:
            expire_remote(
                self._store, state, topic, self._clock.now_ms(), grace_ms=grace_ms,
                receipt=receipt, log_start=log_start, rules=frozenset({ExpiryRule.LOG_START}),
            )  # fmt: skip
        deleted = [
            DeletedSegment(
                route.base_offset, state.segments[route.segment_id].size_bytes,
                route.last_offset + 1,
            )
            for route in state.routes
            if route.base_offset < log_start
        ]  # fmt: skip
        below = tuple(each for each in deleted if each.end_offset <= log_start)
        return DeleteRecordsReport(
            partition.topic, partition.partition, state.log_start, log_start, end, end, below,
            next((each for each in deleted if each not in below), None), removed=False,
            is_compacted=topic.is_compacted,
        )  # fmt: skip

    def plan_forgetting(self, partition: TopicPartition) -> Removal:
        """Say what is lost when the partition is given up; changes nothing."""
        return _plan_forgetting(self._store.load(partition))

    def forget(
        self,
        partition: TopicPartition,
        *,
        takes_over: bool = False,
        grace_ms: int,
        receipt: Receipt | None = None,
    ) -> Removal:
        """Give a partition up: it is in the store no more, and its objects go with collections.

        As its holder. An import begins it again. ``receipt`` takes a line of what went.
        """
        state = self._ownership.own(partition, takes_over=takes_over)
        removal = _plan_forgetting(state)
        self._store.removals.forget(state, secrets.token_hex(ID_CHARS // 2), grace_ms=grace_ms)
        return self._note(removal, receipt)

    def _plan(self, state: PartitionState, offset: int | None, directory: Path | None) -> Removal:
        if directory is not None and offset is None:
            offset = find_directory_end(self._files, directory, state)
        elif offset is None or directory is not None:
            raise InvalidError(
                "give an offset to end at, or a directory to compare with", code="K102"
            )
        return _plan_truncation(self._objects, state, offset, self._interval(state))

    def _interval(self, state: PartitionState) -> int:
        return self._topic_of(state.settings).index_interval_bytes

    def _note(self, removal: Removal, receipt: Receipt | None) -> Removal:
        if receipt is not None:
            facts = {
                "kind": removal.kind, "start": removal.start, "end": removal.end,
                "segments": removal.segments, "bytes": removal.bytes, "records": removal.records,
                "is_cleaned_by": removal.is_cleaned_by,
            }  # fmt: skip
            keep_line(
                self._store.facts,
                receipt(removal_line(removal.partition, self._clock.now_ms(), facts)),
            )
        return replace(removal, done=True)


def find_directory_end(files: FileSystem, directory: Path, state: PartitionState) -> int:
    """Return up to which offset the directory has the log that is stored, by both leader epochs.

    A directory that ends earlier has less, whether it was truncated or lags.
    """
    check_same_topic(files, directory, state)
    lineage = read_lineage(files, directory)
    listing = list_partition(directory, files)
    log_end = find_tail(listing, files).log_end
    known = [entry for entry in state.lineage if entry.start_offset < state.remote_end]
    found = find_divergence(known, state.remote_end, lineage, log_end) if lineage else log_end
    other = find_other_epoch(state, lineage) if lineage else None
    found = min(found, state.remote_end)
    return found if other is None else min(found, other.start_offset)


def _plan_truncation(
    objects: ObjectStore, state: PartitionState, offset: int, index_interval_bytes: int
) -> Removal:
    """Return what goes when the log of ``state`` ends at ``offset``, exclusive.

    Where a batch reaches across it goes whole, and ``start`` is where it begins. InvalidError when
    the log begins above ``offset``.
    """
    if offset < state.log_start:
        raise InvalidError(
            "the log begins above that offset; keeplast detach gives all of it up. "
            f"partition={state.partition} offset={offset} log_start={state.log_start}",
            code="K342",
        )
    start = asked = min(offset, state.remote_end)
    cut_base, segments, size, records = None, 0, 0, 0
    for route in state.routes:
        if route.last_offset < start:
            continue
        segment = state.segments[route.segment_id]
        files, found = _open(objects, state, segment)
        if route.base_offset < start:
            start = find_cut(files, found, start, index_interval_bytes)
            start = max(start, route.base_offset, state.log_start)
            if start > max(route.base_offset, state.log_start):
                cut_base = segment.base_offset
        gone_bytes, gone_records = _count(files, found, start)
        segments, size, records = segments + 1, size + gone_bytes, records + gone_records
    return Removal(
        state.partition, "truncate", start, state.remote_end, segments, size, records, cut_base,
        asked, start < state.remote_end and _is_cleaned_by(state, start),
    )  # fmt: skip


def _is_cleaned_by(state: PartitionState, start: int) -> bool:
    """Say whether what is live below ``start`` may have been cleaned by records at or above it.

    Rounds that did not end count, and those whose records an earlier cut has taken.
    """
    return max(state.cleaned_for, state.first_dirty()) > start and any(
        state.segments[route.segment_id].kind is SegmentKind.CLEANED
        for route in state.routes
        if route.base_offset < start
    )


def _plan_forgetting(state: PartitionState) -> Removal:
    check_not_forgotten(state)
    start = min([state.log_start, *(route.base_offset for route in state.routes)])
    return Removal(
        state.partition, "forget", start, state.remote_end, len(state.routes),
        state.effective_bytes(), None,
    )  # fmt: skip


def _open(
    objects: ObjectStore, state: PartitionState, segment: RemoteSegment
) -> tuple[RoundFiles, SegmentFiles]:
    """Return a segment in object storage as a file of a directory."""
    files = RoundFiles(objects, state.partition, state.topic_id, (segment,))
    return files, list_partition(files.path, files).segments[0]


def _count(files: FileSystem, segment: SegmentFiles, start: int) -> tuple[int, int]:
    """Return bytes and records of the batches that end at ``start`` or above it."""
    size = records = 0
    with reading(files, segment.log_path) as handle:
        for window in read_windows(
            handle, segment.log_path, WindowBuffers(), end=segment.size_bytes
        ):
            rows = window.table[: window.batches]
            gone = rows[rows[:, t.LAST_OFFSET] >= start]
            size += int(gone[:, t.SIZE].sum())
            records += int(gone[:, t.COUNT].sum())
    return size, records


def _shorten(
    objects: ObjectStore,
    state: PartitionState,
    route: Route,
    cut: int,
    index_interval_bytes: int,
) -> RemoteSegment:
    """Upload what a segment serves below ``cut`` as a segment of its own."""
    source = state.segments[route.segment_id]
    files, found = _open(objects, state, source)
    made = copy_segment(
        objects, files, found,
        partition=state.partition, topic_id=state.topic_id,
        segment_id=secrets.token_hex(ID_CHARS // 2), next_offset=cut,
        lineage=[entry for entry in state.lineage if entry.start_offset < cut],
        leader_epoch_of_owner=state.leader_epoch + 1, number=source.number,
        cleaner_offsets=dict(source.cleaner_offsets), index_interval_bytes=index_interval_bytes,
        aborted=load_aborted(found, files), from_offset=route.base_offset, is_cut=True,
    )  # fmt: skip
    return replace(made, kind=source.kind)
