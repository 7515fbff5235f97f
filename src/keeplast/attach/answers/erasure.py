"""Finds keys that must go in a live cluster's remote tier, in served segments and all others.

The rule that a reader must not break: **every segment that lies there is searched whole, or
reported**. The served segments are the log. The other copies and outputs are: replaced segments,
ends that another segment lies over, and segments below the log's start. The objects are listed
last, after the search. An object that is listed and was not searched is searched as soon as it is
announced; otherwise it is a problem. The exception is an object that begins where the search ended:
it was written later. Later writes do not count: a round writes from searched segments, and brokers
write newer records. Nothing is held, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from keeplast.attach.answers.explain import (
    RemoteLog,
    file_of,
    look_at,
    served_there,
    unseen_ranges,
    with_removal,
)
from keeplast.attach.rounds.round import RoundWish
from keeplast.attach.rules.sources import EffectiveLog
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import PartitionSearch, SegmentSums
from keeplast.inspect.explain import KeyExplanation, LookedLog, explain_records, rankings_of
from keeplast.inspect.key_search import (
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_keys,
    find_records_of_keys,
)
from keeplast.inspect.remains import Remains, RemainsKind, WantedKeys
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Workspace

WRITING_SECONDS_MAX = 60.0
"""How long the search waits for the writer of a segment while the objects are listed."""
LOOK_SECONDS = 1.0
COPY_BEGUN = "its copy was begun and has not ended: ask again when it has"
UNKNOWN_OBJECTS = (
    "it was not searched: ask again, and if it stays, keeplast collect --orphans list says "
    "whose it is"
)
WRITTEN_NOW = (
    "it was not searched: a round of ours was writing it, and did not end within a minute; ask "
    "again, and if it stays, keeplast repair ends what a crash left"
)
SegmentPlace = tuple[bytes, int]
"""Where objects of a segment lie: its id, and the offset in their names."""


class AttachedTraces(Struct, frozen=True):
    """What was found of the keys in one partition.

    ``search`` is of what brokers serve, None where that is nothing; ``explained`` is of each key in
    it. ``remains`` are segments that brokers do not read. ``unseen`` says which offsets only
    brokers have. ``searched`` is all that was searched of what begins below ``end``: see
    :func:`search_listed`.
    """

    search: PartitionSearch | None
    explained: Mapping[bytes, KeyExplanation] = field(default_factory=dict)
    remains: tuple[Remains, ...] = ()
    unseen: tuple[str, ...] = ()
    searched: frozenset[SegmentPlace] = frozenset()
    end: int = 0


class TierLook(Struct, frozen=True):
    """What is announced of a partition now, and the ids of segments that a round of ours writes."""

    cache: PartitionCache
    own_ids: frozenset[bytes]


def search_attached(
    layout: RemoteLayout,
    log: RemoteLog,
    at: TopicIdPartition,
    wish: RoundWish,
    clock: Clock,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Progressed,
) -> AttachedTraces:
    """Search all that was announced of a partition, and say what becomes of it.

    Other objects there are for :func:`search_listed`, which asks the cluster: tasks do not.
    ConflictError when what brokers serve is gone meanwhile; CorruptError when it cannot be read.
    """
    found: list[Remains] = []
    searched: set[SegmentPlace] = set()
    looked_at = look_at(layout, log, wish, clock)
    search, explained = None, dict[bytes, KeyExplanation]()
    if looked_at is not None:
        effective, looked = looked_at
        with served_there(log.partition):
            search, explained = _search_served(
                effective, looked, at, wanted, workspace, progressed, found
            )
        explained = {key: with_removal(each, log.removal) for key, each in explained.items()}
        searched = {_place_of(each) for each in effective.segments}
        unseen = unseen_ranges(log.ends, effective)
    else:
        unseen = (
            []
            if log.ends.start == log.ends.end
            else [f"offsets {log.ends.start} to {log.ends.end - 1}, which only brokers have"]
        )
    for segment in log.copied:
        if _place_of(segment) in searched:
            continue
        one = _search_hidden(layout, segment, wanted, workspace, progressed)
        if one is None:
            continue  # It was on its way out: the list of objects says whether it is gone.
        searched.add(_place_of(segment))
        found.append(one)
    end = log.ends.start if search is None else search.log_end
    return AttachedTraces(search, explained, tuple(found), tuple(unseen), frozenset(searched), end)


def search_listed(
    layout: RemoteLayout,
    at: TopicIdPartition,
    traces: AttachedTraces,
    look: Callable[[], TierLook],
    clock: Clock,
    wanted: WantedKeys,
    workspace: Callable[[], Workspace],
    progressed: Progressed,
) -> list[Remains]:
    """List the objects, and search those that ``traces`` have not.

    An object that is still being written is searched when it is whole: ``look`` asks cluster and
    decision log again, for :data:`WRITING_SECONDS_MAX` at most. Objects that are not searched then,
    or that nothing announced, are reported.
    """
    found: list[Remains] = []
    searched = set(traces.searched)

    def listed() -> set[SegmentPlace]:
        there = {(each.segment_id, each.start_offset) for each in layout.list(at)}
        return {each for each in there - searched if each[1] < traces.end}

    until = clock.seconds() + WRITING_SECONDS_MAX
    waiting = listed()
    while waiting:
        seen = look()
        copied = {_place_of(each): each for each in seen.cache.segments if not _is_begun(each)}
        begun = {_place_of(each): each for each in seen.cache.segments if _is_begun(each)}
        for place in sorted(waiting & copied.keys()):
            one = _search_hidden(layout, copied[place], wanted, workspace(), progressed)
            if one is not None:
                searched.add(place)
                found.append(one)
        there = listed()
        # What went unsearched may have been written again under another id meanwhile.
        waiting = waiting & there if waiting - searched <= there else there
        writes = [each for each in waiting if _is_written(each, seen, begun, clock.now_ms())]
        if waiting and (not writes or clock.seconds() >= until):
            break
        if waiting:
            progressed(0)
            clock.sleep(LOOK_SECONDS)
    for place in sorted(waiting):
        name = f"objects of segment {encode_id(place[0])}"
        problem = WRITTEN_NOW if place[0] in seen.own_ids else UNKNOWN_OBJECTS
        problem = COPY_BEGUN if place in begun else problem
        found.append(Remains(RemainsKind.UNFILED, name, problem=problem))
    return found


def _is_begun(segment: RemoteLogSegment) -> bool:
    return segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED


def _is_written(
    place: SegmentPlace, seen: TierLook, begun: Mapping[SegmentPlace, RemoteLogSegment], now_ms: int
) -> bool:
    """Say whether a round of ours, or a broker, may be writing a segment now."""
    copy = begun.get(place)
    if copy is None:
        return place[0] in seen.own_ids
    return now_ms - copy.event_timestamp_ms < WRITING_SECONDS_MAX * 1000


def _search_hidden(
    layout: RemoteLayout,
    segment: RemoteLogSegment,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Progressed,
) -> Remains | None:
    """Search a segment whole; None when it is not there any more."""
    keys, problem = frozenset[bytes](), None
    try:
        keys = _keys_in(layout, segment, wanted, workspace, progressed)
    except FileNotFoundError:
        return None
    except (CorruptError, RefusedError, InvalidError) as error:
        problem = f"brokers read it no more, and nothing else can: {error}"
    return Remains(RemainsKind.HIDDEN, encode_id(segment.id.segment_id), keys, problem)


def _search_served(
    effective: EffectiveLog,
    looked: LookedLog,
    at: TopicIdPartition,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Progressed,
    remains: list[Remains],
) -> tuple[PartitionSearch, dict[bytes, KeyExplanation]]:
    """Search the segments that brokers serve, whole; ``remains`` get keys that they do not read.

    The facts of the keys in the log rest on what brokers read alone.
    """
    rankings, files = rankings_of(looked.topic, None), looked.files
    whole = [
        SearchedSegment(each.files, each.valid_bytes)
        for each in {each.files.base_offset: each for each in looked.segments}.values()
    ]
    keys = wanted.keys
    if keys is None:
        keys = frozenset(find_keys(whole, wanted.is_wanted, files, workspace, progressed))
    sums = SegmentSums(whole)
    physical = find_records_of_keys(
        whole, keys, rankings, files, workspace, progressed, sums.passed
    )
    again: Iterable[KeyRecord] = ()
    is_read_whole = all(
        each.start <= each.segment.start_offset and each.end >= each.segment.end_offset
        for each in effective.ranges
    )
    if physical and not is_read_whole:
        # Only the markers that brokers read show how a transaction ended.
        again = find_records_of_keys(looked.segments, keys, rankings, files, workspace, progressed)
    elif physical:
        ranges = {each.files.base_offset: each for each in looked.segments}
        again = (each for each in physical if ranges[each.segment].has(each.offset))
    records: dict[bytes, list[KeyRecord]] = {}
    for each in again:
        records.setdefault(each.record.key or b"", []).append(each)
    read = {(each.segment, each.offset) for its in records.values() for each in its}
    names = {each.start_offset: encode_id(each.id.segment_id) for each in effective.segments}
    hidden: dict[int, set[bytes]] = {}
    for each in physical:
        if (each.segment, each.offset) not in read:
            hidden.setdefault(each.segment, set()).add(each.record.key or b"")
    remains += [
        Remains(
            RemainsKind.UNFILED, f"segment {names[base]}, in what brokers do not read",
            frozenset(its),
        )
        for base, its in sorted(hidden.items())
    ]  # fmt: skip
    end = effective.ranges[-1].end + 1
    search = PartitionSearch(
        looked.partition, looked.path, encode_id(at.topic_id),
        PartitionFiles(looked.path, tuple(each.files for each in whole), (), (), ()),
        Tail(end, 0),
        {key: tuple(its) for key, its in records.items()},
        sums.of(looked.partition), sums.batches, (), (),
    )  # fmt: skip
    explained = {
        key: explain_records(looked, key, its, rankings, workspace) for key, its in records.items()
    }
    return search, explained


def _keys_in(
    layout: RemoteLayout,
    segment: RemoteLogSegment,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Progressed,
) -> frozenset[bytes]:
    """Return the wanted keys in one segment, whole."""
    files, listed = file_of(layout, segment)
    whole = [SearchedSegment(listed, segment.size_bytes)]
    if wanted.keys is None:
        return frozenset(find_keys(whole, wanted.is_wanted, files, workspace, progressed))
    records = find_records_of_keys(
        whole, wanted.keys, rankings_of(TopicConfig(), None), files, workspace, progressed
    )
    return frozenset(each.record.key or b"" for each in records)


def _place_of(segment: RemoteLogSegment) -> SegmentPlace:
    return segment.id.segment_id, segment.start_offset
