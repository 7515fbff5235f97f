"""What there is of one key in a live cluster's remote tier: what brokers serve, and what is hidden.

To the search the served segments are one log, each up to where the next one serves. The survey that
a round begins with shows what a round may do with it. Segments that brokers serve no more keep
their records until they are collected. The rule: **nothing is held, nothing is written**, and the
answer names every segment that was not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.rounds.attached_files import AttachedFiles, AttachedRecipe
from keeplast.attach.rounds.attached_place import UNANNOUNCED, AttachedPlace, AttachedState
from keeplast.attach.rounds.missing_aborts import measure_sources
from keeplast.attach.rounds.round import RoundWish, read_lineage, sources_of
from keeplast.attach.rules.sources import (
    EffectiveLog,
    Sources,
    effective_log,
    newest_whole,
    source_of,
    summary_of,
    synthetic_lineage,
)
from keeplast.attach.rules.tombstone_removal import RemovalDates
from keeplast.cleaner.reasons import (
    Decision,
    DueReason,
    NothingBelow,
    SourcesLimit,
    TransactionLimit,
)
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.columns import batches as t
from keeplast.errors import ConflictError, CorruptError, RefusedError
from keeplast.format.batch import MAGIC
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.inspect.explain import (
    AskedKey,
    FoundRecord,
    KeyExplanation,
    LookedLog,
    explain_looked,
    key_of,
    rankings_of,
)
from keeplast.inspect.fates import Fate, FoundLog, Outlook, RecordVerdict
from keeplast.inspect.key_search import Progressed, SearchedSegment, find_key_records
from keeplast.inspect.remains import Remains, RemainsKind, SearchedKey
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SegmentFiles, list_partition
from keeplast.model.hold import Hold, in_force
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.rewrite.workspace import Workspace
from keeplast.run.round_state import PartitionRun
from keeplast.store.explain import left_out_of, without_absent
from keeplast.tier.objects.filters import FilterKey, SegmentBytes
from keeplast.tier.state.attached import Decision as SwapDecision


class RemoteLog(Struct, frozen=True, kw_only=True):
    """A partition as cluster and decision log have it; offsets of ``ends`` are the whole log's.

    ``cleaned_to`` is the first offset that is not clean. ``removal`` is what dates of tombstones
    are made of, None where no caller asks for those.
    """

    partition: TopicPartition
    ends: OffsetRange
    cache: PartitionCache
    cleaned_to: int
    holds: tuple[Hold, ...] = ()
    decisions: Sequence[SwapDecision] = ()
    removal: RemovalDates | None = None

    @property
    def copied(self) -> list[RemoteLogSegment]:
        """Return the segments that were once copied whole; all of them are searched."""
        begun = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        return [each for each in self.cache.segments if each.state is not begun]


def explain_attached(
    layout: RemoteLayout,
    log: RemoteLog,
    wish: RoundWish,
    clock: Clock,
    asked: AskedKey,
    workspace: Workspace,
    progressed: Progressed,
    *,
    grace_ms: int,
    filter_key: FilterKey | None = None,
    planned: Progressed = lambda _: None,
) -> SearchedKey:
    """Explain a key in what brokers serve of a partition, and find it in what they hide.

    ``grace_ms`` is how long collection leaves replaced segments in place. Segments whose filters
    say that the key is not in them are not read; ``filter_key`` None asks none. ``planned`` hears
    of the bytes that will be read then, ``progressed`` of those that were. Errors as for
    :func:`~keeplast.inspect.explain.explain_key`; ConflictError when a served segment is gone
    meanwhile.
    """
    looked_at = look_at(layout, log, wish, clock)
    if looked_at is None:
        raise RefusedError(
            "nothing of the partition is in the remote tier: its records are on the brokers "
            f"alone. partition={log.partition}",
            code="K407",
        )
    effective, looked = looked_at
    with served_there(log.partition):
        key = key_of(looked, asked)
    hidden = [
        (segment, first, last, *file_of(layout, segment))
        for segment, first, last in effective.unread(log.copied, log.ends.start)
    ]

    def narrowed(
        segments: Sequence[SearchedSegment], remote: Sequence[RemoteLogSegment], path: Path,
        files: FileSystem,
    ) -> list[SearchedSegment]:  # fmt: skip
        named = {
            each.start_offset: SegmentBytes(each.id.segment_id.hex(), each.size_bytes, None)
            for each in remote
        }
        return without_absent(segments, named, path, files, key, filter_key, progressed)

    served = narrowed(looked.segments, effective.segments, looked.path, looked.files)
    replaced = [
        (segment, files, narrowed(
            [SearchedSegment(listed, segment.size_bytes, first, last + 1)], [segment], files.path,
            files,
        ))
        for segment, first, last, files, listed in hidden
    ]  # fmt: skip
    every = [*served, *(each for _, _, its in replaced for each in its)]
    planned(sum(each.valid_bytes for each in every if not each.lacks_key))
    with served_there(log.partition):
        found = with_removal(
            explain_looked(
                replace(looked, segments=served), replace(asked, key=key, offset=None), workspace,
                progressed,
            ),
            log.removal,
        )  # fmt: skip
    remains: list[Remains] = []
    unseen = unseen_ranges(log.ends, effective)
    times = collected_times(log.decisions, grace_ms)
    for segment, files, its in replaced:
        name = encode_id(segment.id.segment_id)
        try:
            records = find_key_records(
                its, key, rankings_of(wish.topic, asked.header), files, workspace, progressed,
                asked.values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue  # It was on its way out.
        except CorruptError as error:
            unseen.append(f"segment {name}, which brokers read no more: {error}")
            continue
        remains.append(
            Remains(RemainsKind.HIDDEN, name, records=records, until_ms=times.get(segment.id))
        )
    return SearchedKey(found, tuple(remains), tuple(unseen), left_out_of(every))


def with_removal(found: KeyExplanation, dates: RemovalDates | None) -> KeyExplanation:
    """Return the explanation with what becomes of a tombstone that wins."""
    if dates is None:
        return found
    return replace(found, records=tuple(_dated(each, found, dates) for each in found.records))


def _dated(each: FoundRecord, found: KeyExplanation, dates: RemovalDates) -> FoundRecord:
    record = each.record
    if each.fate.outlook is not Outlook.WINS or not record.is_tombstone:
        return each
    removal = dates.of(
        record.offset, horizon_ms=record.horizon_ms, first_dirty=found.first_dirty,
        is_due=record.offset < found.bound and isinstance(found.decision, DueReason),
        is_old_format=int(record.header[t.MAGIC]) < MAGIC,
    )  # fmt: skip
    if removal.stays is not None:
        return replace(each, fate=replace(each.fate, removal=removal))
    fate = Fate(
        Outlook.GOES_LATER, RecordVerdict.EXPIRED_TOMBSTONE, None, removal.from_ms, removal=removal
    )
    return replace(each, fate=fate)


def look_at(
    layout: RemoteLayout, log: RemoteLog, wish: RoundWish, clock: Clock
) -> tuple[EffectiveLog, LookedLog] | None:
    """Return what brokers serve of a partition, and what rounds may do with it; None for nothing.

    Reads no records. ConflictError when what is served is gone meanwhile.
    """
    with served_there(log.partition):
        newest = newest_whole(log.cache)
        lineage_of = partial(read_lineage, layout)
        lineage = synthetic_lineage(log.cache) if newest is None else lineage_of(newest)
        effective = effective_log(log.cache, lineage, log.ends.start)
        if not effective.ranges:
            return None
        sources = measure_sources(
            layout,
            sources_of(
                lineage_of, log.cache, log.ends.start, wish.margin_bytes, now_ms=clock.now_ms()
            ),
        )
        return effective, _look(layout, log, effective, sources, wish, clock)


@contextmanager
def served_there(partition: TopicPartition) -> Iterator[None]:
    """Raise ConflictError where an object that brokers serve is missing."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConflictError(
            "an object of a segment that brokers serve is missing; ask again, and if it stays so, "
            f"keeplast verify. partition={partition} object={error.filename}",
            code="K412",
        ) from error


def file_of(layout: RemoteLayout, segment: RemoteLogSegment) -> tuple[AttachedFiles, SegmentFiles]:
    """Return one segment as a file, whole, wherever in the log it lies."""
    files = _files_of(layout, [segment])
    (listed,) = _listed(files).values()
    return files, listed


def _look(
    layout: RemoteLayout, log: RemoteLog, effective: EffectiveLog, sources: Sources,
    wish: RoundWish, clock: Clock,
) -> LookedLog:  # fmt: skip
    files = _files_of(layout, effective.segments)
    listed = _listed(files)
    searched = [
        SearchedSegment(
            listed[each.segment.start_offset], each.segment.size_bytes,
            # What lies below the log start is still there.
            each.segment.start_offset if each.start == log.ends.start else each.start,
            each.end + 1,
        )
        for each in effective.ranges
    ]  # fmt: skip
    end = effective.ranges[-1].end + 1
    if sources.segments:
        state = AttachedState(sources, log.ends.start, log.cleaned_to, log.holds)
        request = wish.request_for(log.partition, state)
        (asked,) = request.partitions
        place = AttachedPlace(layout, state, None, request, clock, brokers=wish.brokers)
        survey = place.survey(PartitionRun(asked))
        first_dirty, bound = survey.section.first_dirty.offset, survey.section.cleanable.bound
        decision: Decision = survey.decision
        readers = survey.readers
        is_open = survey.last_stable < sources.end
        stable: TransactionLimit | SourcesLimit = (
            TransactionLimit(survey.last_stable) if is_open else sources.limit
        )
        rounds_from = sources.segments[0].start_offset
    else:
        first_dirty = bound = rounds_from = sources.end
        decision, stable, readers = NothingBelow(sources.limit), sources.limit, None
    return LookedLog(
        partition=log.partition, path=files.path, topic=wish.topic, files=files,
        segments=searched, bound=bound, decision=decision, rounds_from=rounds_from,
        log=FoundLog(
            segments=_summaries(effective, sources, wish.topic.index_interval_bytes, end),
            log_start=log.ends.start, first_dirty=first_dirty, log_end=end, stable=stable,
            active_first_ms=None, active_largest_ms=None, now_ms=clock.now_ms(),
            expires_nothing=True, holds=in_force(log.holds, clock.now_ms()), readers=readers,
        ),
    )  # fmt: skip


def _files_of(layout: RemoteLayout, segments: Sequence[RemoteLogSegment]) -> AttachedFiles:
    """Return segments as files that are read; RefusedError for two that begin at one offset."""
    starts: dict[int, RemoteLogSegment] = {}
    for each in segments:
        if each.start_offset in starts:
            raise RefusedError(
                "brokers serve two segments that begin at the same offset, each in part; see "
                f"keeplast status. partition={each.id.partition.topic}-"
                f"{each.id.partition.partition} offset={each.start_offset}",
                code="K411",
            )
        starts[each.start_offset] = each
    sources = tuple(source_of(starts[start]) for start in sorted(starts))
    return AttachedRecipe(layout, sources, OutputMark(UNANNOUNCED, 0)).open()


def _listed(files: AttachedFiles) -> Mapping[int, SegmentFiles]:
    """Return the segments by start offset, without the active one at their end."""
    *closed, _active = list_partition(files.path, files).segments
    return {each.base_offset: each for each in closed}


def _summaries(
    effective: EffectiveLog, sources: Sources, interval: int, end: int
) -> tuple[SegmentSummary, ...]:
    """Return what rounds may take now or later, and the empty active segment above it."""
    later = [source_of(each) for each in effective.segments if each.start_offset >= sources.end]
    later.sort(key=lambda each: each.start_offset)
    closed = [summary_of(each, interval) for each in (*sources.segments, *later)]
    return (*closed, SegmentSummary(end, 0, 0, -1, 0, 0))


def collected_times(
    decisions: Sequence[SwapDecision], grace_ms: int
) -> dict[RemoteLogSegmentId, int]:
    """Return from when on replaced segments may be collected; unpublished swaps have no time."""
    return {
        source.id: each.published_ms + max(grace_ms, each.keep_ms)
        for each in decisions
        if each.published_ms is not None
        for source in each.sources
    }


def unseen_ranges(ends: OffsetRange, effective: EffectiveLog) -> list[str]:
    """Say which offsets of the log were not searched."""
    found = [
        f"offsets {first} to {last}, which nothing in the remote tier serves"
        for first, last in effective.holes
    ]
    end = effective.ranges[-1].end + 1
    if end < ends.end:
        found.append(
            f"offsets {end} to {ends.end - 1}, which only brokers have: a later record of the key "
            "may be among them"
        )
    return found
