"""A swap: what a round wants to become live, whether it may be decided, and the batch that says so.

Pure values, and three rules:

* **Outputs cover exactly what their sources covered**, offset by offset and epoch by epoch.
  Otherwise a broker has a hole where a consumer is reset; tiering.md I-1, I-2.
* **One batch publishes a decision, always with the same bytes: finished copies by descending
  start, then the deletion of every source begins**. Descending, because a copy takes away what
  starts later and does not reach beyond it. In one batch, because between two of them a broker
  would serve a hole or delete what it counts twice.
* **A swap is tried on a copy of what brokers know before it is decided**. What they know
  afterwards is looked at again: every offset is served, and by an output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cluster.late_copies import (
    again,
    begun_copies,
    late_copies,
    opened,
    pieced_together,
    without,
)
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.metadata_cache import PartitionCache, ServedRange, is_in_one_piece
from keeplast.errors import ConflictError, CorruptError, invariant
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
    encode,
)
from keeplast.tier.state.attached import Decision, mark_of


class Swap(Struct, frozen=True):
    """Outputs that take the place of ``sources``; both ascend by offset, without a hole.

    Sources may lie over one another, outputs may not. Outputs are announced, complete and were read
    back; ``cleaned_to`` is the first offset that is not clean when this and everything before it is
    live. ``cleaned_for`` is where the round ends, exclusive, whose records have decided what is
    left; None is the end of the sources. ``first_dirty`` and ``expires_below`` are
    those of :class:`~keeplast.tier.state.attached.Decision`.
    """

    partition: TopicIdPartition
    sources: tuple[RemoteLogSegment, ...]
    outputs: tuple[RemoteLogSegment, ...]
    cleaned_to: int
    cleaned_for: int | None = None
    first_dirty: int = 0
    expires_below: int = 0

    def __post_init__(self) -> None:
        """Raise InvariantError unless the outputs cover what the sources covered."""
        invariant(
            bool(self.sources and self.outputs),
            f"a swap needs sources and outputs. partition={self.partition}",
        )
        for before, after in pairwise(self.outputs):
            invariant(
                after.start_offset == before.end_offset + 1,
                "outputs of a swap have a hole or overlap. "
                f"end_offset={before.end_offset} next_start={after.start_offset}",
            )
        reach = self.sources[0].end_offset
        for before, after in pairwise(self.sources):
            invariant(
                before.start_offset <= after.start_offset <= reach + 1,
                "sources of a swap have a hole or do not ascend. "
                f"end_offset={reach} next_start={after.start_offset}",
            )
            reach = max(reach, after.end_offset)
        had, has = ((*covered(each), merged_epochs(each)) for each in (self.sources, self.outputs))
        invariant(had == has, f"a swap changes what is covered. sources={had} outputs={has}")


def merged_epochs(sources: Sequence[RemoteLogSegment]) -> tuple[EpochStart, ...]:
    """Return the epochs of all ``sources``, each with its smallest start, ascending."""
    starts: dict[int, int] = {}
    for source in sources:
        for each in source.epochs:
            starts[each.epoch] = min(each.start_offset, starts.get(each.epoch, each.start_offset))
    return tuple(EpochStart(epoch, starts[epoch]) for epoch in sorted(starts))


def covered(segments: Sequence[RemoteLogSegment]) -> tuple[int, int]:
    """Return the first and the last offset, both inclusive, of ascending segments."""
    return segments[0].start_offset, max(each.end_offset for each in segments)


class Batch(Struct, frozen=True):
    """Updates of a decision in their order, and the values that they are.

    In the metadata topic that the decision was made for they lie at or above ``floor_offset``, and
    at ``place`` when they were found there before.
    """

    events: tuple[RemoteLogSegmentUpdate, ...]
    values: tuple[bytes, ...]
    floor_offset: int = 0
    place: OffsetRange | None = None


def batch_of(decision: Decision) -> Batch:
    """Return the batch that publishes ``decision``: the same for every publisher, at any time."""
    outputs = sorted(decision.outputs, key=lambda each: each.start_offset, reverse=True)
    events = (
        *updates(
            outputs, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, decision.epoch,
            decision.decided_ms,
        ),
        *updates(
            decision.sources, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, decision.epoch,
            decision.decided_ms,
        ),
    )  # fmt: skip
    place = None
    if decision.first_offset is not None and decision.last_offset is not None:
        place = OffsetRange(decision.first_offset, decision.last_offset + 1)
    return Batch(events, tuple(encode(each) for each in events), decision.floor_offset, place)


def updates(
    segments: Iterable[RemoteLogSegment], state: RemoteLogSegmentState, epoch: int, at_ms: int
) -> tuple[RemoteLogSegmentUpdate, ...]:
    """Return updates of ``segments`` to ``state``, each with its own custom metadata."""
    return tuple(
        RemoteLogSegmentUpdate(
            id=each.id, broker_id=mark_of(epoch), event_timestamp_ms=at_ms,
            custom_metadata=each.custom_metadata, state=state,
        )
        for each in segments
    )  # fmt: skip


def announcement(segment: RemoteLogSegment, epoch: int, at_ms: int) -> RemoteLogSegment:
    """Return ``segment`` as it is announced: begun, in the name of ``epoch``."""
    return replace(
        segment, broker_id=mark_of(epoch), event_timestamp_ms=at_ms, custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, tags=(),
    )  # fmt: skip


_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
HOLES_MAX = 32
"""Holes that are looked at one by one; each look is a copy of what brokers know."""


class Standing(Struct, frozen=True):
    """What brokers make of a published swap.

    ``overlaid_from`` is the first offset that another segment serves in an output's place, None
    without one. A new leader copied it again, and it is not clean. ``live_sources`` are sources
    that are not on their way out, ``lost_outputs`` outputs that are not whole.
    """

    overlaid_from: int | None
    live_sources: tuple[RemoteLogSegment, ...]
    lost_outputs: tuple[RemoteLogSegment, ...]


def require_decidable(
    cache: PartitionCache, swap: Swap, events: Sequence[RemoteLogSegmentUpdate], log_start: int,
    *, now_ms: int,
) -> None:  # fmt: skip
    """Raise ConflictError when what the round saw has changed, InvariantError for a wrong swap.

    ``now_ms`` is the decision log's time: it says whether a copy that a broker began may still
    finish.
    """
    ids = {each.id for each in swap.sources}
    passed = [each for each in late_copies(cache) if {each.copy.id, each.within.id} <= ids]
    read, _ = pieced_together(without(cache, passed)[0], only=ids)
    served = read.served_by_segment()
    for source in swap.sources:
        found = cache.find(source.id)
        if found != source or found.state is not _FINISHED:
            raise ConflictError(
                "a source is not what it was; plan again. "
                f"segment={encode_id(source.id.segment_id)} "
                f"state={'gone' if found is None else found.state.name}",
                code="K427",
            )
    _require_one_lineage(cache, swap)
    serving = [each for each in swap.sources if each.id in served]
    for number, source in enumerate(serving):
        is_last = number + 1 == len(serving)
        last = source.end_offset if is_last else serving[number + 1].start_offset - 1
        if not _is_served_up_to(served[source.id], min(last, source.end_offset)):
            raise ConflictError(
                "a source is not served from its beginning to where the next one begins. "
                f"segment={encode_id(source.id.segment_id)} start={source.start_offset}",
                code="K427",
            )
    for output in swap.outputs:
        found = cache.find(output.id)
        if found is None or found.state is not _STARTED:
            raise ConflictError(
                "an output is not announced any more: a broker expired it. "
                f"segment={encode_id(output.id.segment_id)}",
                code="K427",
            )
        invariant(
            found
            == replace(
                output,
                state=_STARTED,
                custom_metadata=None,
                broker_id=found.broker_id,
                event_timestamp_ms=found.event_timestamp_ms,
                tags=found.tags,
            ),
            f"an output is not what was announced. segment={encode_id(output.id.segment_id)}",
        )
    tried = cache.copy()
    for event in events:
        dropped = tried.apply(event)
        if dropped is not None:
            raise ConflictError(f"brokers would drop a record of the swap: {dropped}", code="K427")
    holes = opened(cache, tried, log_start)
    if holes:
        raise ConflictError(f"the swap would leave a hole. offsets={holes}", code="K427")
    _require_apart(cache, tried, swap, log_start, now_ms)
    served = tried.served_by_segment()
    for output in swap.outputs:
        if not _is_served_up_to(served.get(output.id, ()), output.end_offset):
            raise ConflictError(
                "brokers would not serve all of an output. "
                f"segment={encode_id(output.id.segment_id)} start={output.start_offset}",
                code="K427",
            )


def _is_served_up_to(served: Sequence[ServedRange], last: int) -> bool:
    return bool(served) and is_in_one_piece(served) and served[-1].end_offset == last


def _require_apart(
    cache: PartitionCache, tried: PartitionCache, swap: Swap, log_start: int, now_ms: int
) -> None:
    """Raise ConflictError when a begun copy that is finished after the swap would leave a hole.

    And would leave none, or a smaller one, without it. ``tried`` is ``cache`` after the swap.
    """
    first, last = covered(swap.sources)
    for copy in begun_copies(cache, now_ms):
        if copy.start_offset > last or copy.end_offset < first:
            continue
        holes = opened(cache.copy(again(copy)), tried.copy(again(copy)), log_start)
        if holes:
            raise ConflictError(
                "a broker has begun a copy that would leave a hole when it is finished after the "
                f"swap; plan again. segment={encode_id(copy.id.segment_id)} "
                f"start={copy.start_offset} end={copy.end_offset} offsets={holes}",
                code="K427",
            )


def reasserted(
    cache: PartitionCache, events: Sequence[RemoteLogSegmentUpdate], log_start: int
) -> tuple[RemoteLogSegmentUpdate, ...]:
    """Return what closes holes that brokers have after ``events``: all of them, or those it can.

    A newly elected leader may finish a copy that begins before an output and ends after it. When
    the output is finished later, it takes the place of all that the copy has from there on, and has
    only a part of that. Brokers serve the copy again when it is announced as finished once more, in
    its own name and by descending start. A hole that this cannot close, as one that a late copy
    hides, keeps no other from being closed. Of more than :data:`HOLES_MAX` the last ones come
    first.
    """
    tried = cache.copy(*events)
    holes = tried.holes(log_start)
    found = _whole_over(tried, holes)
    if not tried.copy(*found).holes(log_start):
        return found
    closing: list[RemoteLogSegmentUpdate] = []
    for hole in reversed(holes[-HOLES_MAX:]):
        its = _whole_over(tried, [hole])
        behind = tried.copy(*its)
        left = behind.holes(log_start)
        is_closed = not any(first <= hole[1] and last >= hole[0] for first, last in left)
        if is_closed and not opened(tried, behind, log_start):
            closing += its
            tried = behind
    return tuple(closing)


def _whole_over(
    cache: PartitionCache, holes: Sequence[tuple[int, int]]
) -> tuple[RemoteLogSegmentUpdate, ...]:
    """Return word once more of what is whole and lies over ``holes``, by descending start."""
    return tuple(
        again(each)
        for each in reversed(cache.segments)
        if each.state is _FINISHED
        and any(each.start_offset <= last and each.end_offset >= first for first, last in holes)
    )


def _require_one_lineage(cache: PartitionCache, swap: Swap) -> None:
    """Raise ConflictError when an offset is served twice: by a source, and in another epoch.

    A leader that was cut off wrote the same offsets; which of them counts is not merged away.
    """
    ids = {each.id for each in swap.sources}
    first, last = covered(swap.sources)
    for each in cache.served():
        if each.segment.id not in ids and each.start_offset <= last and each.end_offset >= first:
            raise ConflictError(
                "offsets of the sources are served by another segment, too: another leader wrote "
                f"them. segment={encode_id(each.segment.id.segment_id)} epoch={each.epoch} "
                f"start={each.start_offset}",
                code="K427",
            )


def standing_of(
    cache: PartitionCache, sources: Sequence[RemoteLogSegment],
    outputs: Sequence[RemoteLogSegment], log_start: int,
) -> Standing:  # fmt: skip
    """Return what brokers make of a swap; CorruptError when it left a hole at or above the start.

    Offsets below ``log_start`` went with the log's start and are asked for no more.
    """
    start, end = covered(sources)
    holes = [
        (first, last)
        for first, last in cache.holes(max(start, log_start))
        if first <= end and last >= start
    ]
    if holes:
        raise CorruptError(
            "brokers serve nothing for offsets that were compacted; nothing more is decided or "
            "deleted. Run keeplast repair, which ends what word to brokers can end; "
            "keeplast place check says what else to do", expected=f"{start} to {end}", found=holes,
            code="K428",
        )  # fmt: skip
    ids = {each.id for each in outputs}
    overlaid = [
        each.start_offset
        for each in cache.served()
        if each.segment.id not in ids
        and each.start_offset <= end
        and each.end_offset >= max(start, log_start)
    ]
    states = {each.id: cache.find(each.id) for each in (*sources, *outputs)}
    return Standing(
        min(overlaid, default=None),
        tuple(each for each in sources if _state(states[each.id]) in (_STARTED, _FINISHED)),
        tuple(
            each
            for each in outputs
            if each.end_offset >= log_start and _state(states[each.id]) is not _FINISHED
        ),
    )


def _state(found: RemoteLogSegment | None) -> RemoteLogSegmentState | None:
    return None if found is None else found.state
