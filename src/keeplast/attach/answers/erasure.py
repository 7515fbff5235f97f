"""Where keys that must go are in a live cluster's remote tier: in what is served, and beside it.

The rule that a reader must not break: **every segment that lies there is searched whole, or told**.
What brokers serve is the log; all else that was copied, or made, lies beside it: segments whose
place others have taken, ends that another one lies over, what is below the log's start. The objects
are listed last, behind the search: what is there then and was not searched is a problem, unless it
begins where the search ended, since that was written later. Nothing is held, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from keeplast.attach.answers.explain import (
    RemoteLog,
    file_of,
    look_at,
    served_there,
    unseen_ranges,
    with_removal,
)
from keeplast.attach.rounds.round import RoundWish
from keeplast.attach.rules.effective_log import EffectiveLog
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import BesideLog, PartitionSearch, SegmentSums, WantedKeys
from keeplast.inspect.explain import KeyExplanation, LookedLog, explain_records, rankings_of
from keeplast.inspect.key_search import (
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_keys,
    find_records_of_keys,
)
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Workspace

COPY_BEGUN = "its copy was begun and has not ended: ask again when it has"
UNKNOWN_OBJECTS = (
    "nobody searched it: ask again, and if it stays, keeplast attach collect --orphans list says "
    "whose it is"
)


@dataclass(frozen=True, slots=True)
class AttachedTraces:
    """What was found of the keys in one partition.

    ``search`` is of what brokers serve, None where that is nothing; ``told`` is of each key in it.
    ``beside`` are segments with a key that brokers do not read, and what could not be searched, of
    ``searched_beside``. ``unseen`` says which offsets only brokers have.
    """

    search: PartitionSearch | None
    told: Mapping[bytes, KeyExplanation] = field(default_factory=dict)
    beside: tuple[BesideLog, ...] = ()
    searched_beside: int = 0
    unseen: tuple[str, ...] = ()


def beside_name(name: RemoteLogSegmentId) -> str:
    """Return how a segment is called that brokers do not read."""
    return f"segment {encode_id(name.segment_id)}"


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
    """Search all that lies in the remote tier of a partition, and say what becomes of it.

    ConflictError when what brokers serve is gone meanwhile; CorruptError when it cannot be read.
    """
    found: list[BesideLog] = []
    searched: set[tuple[bytes, int]] = set()
    looked_at = look_at(layout, log, wish, clock)
    search, told = None, dict[bytes, KeyExplanation]()
    if looked_at is not None:
        effective, looked = looked_at
        with served_there(log.partition):
            search, told = _search_served(
                effective, looked, at, wanted, workspace, progressed, found
            )
        told = {key: with_removal(each, log.removal) for key, each in told.items()}
        searched = {_place_of(each) for each in effective.segments}
        unseen = unseen_ranges(log.ends, effective)
    else:
        unseen = _nothing_served(log)
    count = 0
    for segment in log.copied:
        if _place_of(segment) in searched:
            continue
        name, keys, problem = beside_name(segment.id), frozenset[bytes](), None
        try:
            keys = _keys_in(layout, segment, wanted, workspace, progressed)
        except FileNotFoundError:
            continue  # It was on its way out: the list of objects says whether it is gone.
        except (CorruptError, RefusedError, InvalidError) as error:
            problem = f"brokers read it no more, and nobody else can: {error}"
        count += 1
        searched.add(_place_of(segment))
        if keys or problem:
            found.append(BesideLog(name, keys, problem))
    end = log.ends.start if search is None else search.log_end
    begun = {
        each.id.segment_id
        for each in log.cache.segments
        if each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    }
    # Last, so that what was put there meanwhile is seen.
    for there in layout.list(at):
        if (there.segment_id, there.start_offset) in searched or there.start_offset >= end:
            continue
        name = f"objects of {beside_name(RemoteLogSegmentId(at, there.segment_id))}"
        is_begun = there.segment_id in begun
        found.append(BesideLog(name, problem=COPY_BEGUN if is_begun else UNKNOWN_OBJECTS))
    return AttachedTraces(search, told, tuple(found), count, tuple(unseen))


def _search_served(
    effective: EffectiveLog,
    looked: LookedLog,
    at: TopicIdPartition,
    wanted: WantedKeys,
    workspace: Workspace,
    progressed: Progressed,
    beside: list[BesideLog],
) -> tuple[PartitionSearch, dict[bytes, KeyExplanation]]:
    """Search the segments that brokers serve, whole; ``beside`` gets keys that they do not read.

    What is known of the keys in the log rests on what brokers read alone.
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
    if physical and not _is_read_whole(effective):
        # How a transaction ended only the markers tell that brokers read.
        again = find_records_of_keys(looked.segments, keys, rankings, files, workspace, progressed)
    elif physical:
        ranges = {each.files.base_offset: each for each in looked.segments}
        again = (each for each in physical if ranges[each.segment].has(each.offset))
    records: dict[bytes, list[KeyRecord]] = {}
    for each in again:
        records.setdefault(each.record.key or b"", []).append(each)
    read = {(each.segment, each.offset) for its in records.values() for each in its}
    names = {each.start_offset: beside_name(each.id) for each in effective.segments}
    hidden: dict[int, set[bytes]] = {}
    for each in physical:
        if (each.segment, each.offset) not in read:
            hidden.setdefault(each.segment, set()).add(each.record.key or b"")
    beside += [
        BesideLog(f"{names[base]}, in what brokers do not read", frozenset(its))
        for base, its in sorted(hidden.items())
    ]
    end = effective.ranges[-1].end + 1
    search = PartitionSearch(
        looked.partition, looked.path, encode_id(at.topic_id),
        PartitionFiles(looked.path, tuple(each.files for each in whole), (), (), ()),
        Tail(end, 0),
        {key: tuple(its) for key, its in records.items()},
        sums.of(looked.partition), sums.batches, (), 0, (),
    )  # fmt: skip
    told = {
        key: explain_records(looked, key, its, rankings, workspace) for key, its in records.items()
    }
    return search, told


def _is_read_whole(effective: EffectiveLog) -> bool:
    """Say whether brokers read every segment that they read to its ends."""
    return all(
        each.start <= each.segment.start_offset and each.end >= each.segment.end_offset
        for each in effective.ranges
    )


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


def _nothing_served(log: RemoteLog) -> list[str]:
    if log.ends.start == log.ends.end:
        return []
    return [f"offsets {log.ends.start} to {log.ends.end - 1}, which only brokers have"]


def _place_of(segment: RemoteLogSegment) -> tuple[bytes, int]:
    return segment.id.segment_id, segment.start_offset
