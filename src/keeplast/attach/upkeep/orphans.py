"""Objects below a partition that no broker serves: left by a topic that is gone, or by a crash.

The rule: **in doubt an object stays**. Of a topic that is gone, an object is removed only under all
of these conditions:

* this decision log, the metadata topic or a mark of a round names it, and the grace has passed
  since it was written;
* brokers say by name that there is no such topic (one that is hidden from the principal is not
  gone);
* the metadata topic is the one that was seen;
* the owner object is this log's at its very epoch.

The metadata topic may have a segment that is not on its way out. Then brokers ended before they let
go of the topic, or another cluster has it, with a copy of that topic: only a person can say so. An
unnamed object may be another cluster's that shares the bucket: it is reported, and left to a
person.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from keeplast.attach.held.metadata_view import KeptFolds
from keeplast.attach.held.outputs import sweep_filters, work_folder, work_name
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import Publisher, require_free
from keeplast.attach.held.words import (
    CHECKED_EVERY,
    NO_WORDS,
    Words,
    remove_words,
    words_of_nothing,
)
from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.cluster.live_cluster import METADATA_TOPIC, LiveCluster, OffsetRange
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors
from keeplast.cluster.metadata_log import FoldPoint, fold_metadata
from keeplast.errors import CompactionError, RefusedError, StoppedError
from keeplast.format.identifier import encode_id, metadata_partition
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, Decision

_BEGUN = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_ON_THEIR_WAY = (
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)  # fmt: skip


class TopicsCluster(LiveCluster, Protocol):
    """A cluster that can be asked for a topic by name."""

    def find_topic_id(self, topic: str) -> bytes | None:
        """Return a topic's id, None when brokers say that there is none of this name.

        RefusedError when the principal may not know.
        """


class FoundOrphans(Struct, frozen=True):
    """What lies below a partition that no broker serves; sizes are of objects as they are stored.

    ``named`` may go, ``waiting`` are named and younger than the grace, ``unknown`` have no name. A
    metadata topic that never said that they are to go names ``served``. ``words`` are of what a
    round began and never wrote.
    """

    named: tuple[FoundSegment, ...] = ()
    waiting: tuple[FoundSegment, ...] = ()
    unknown: tuple[FoundSegment, ...] = ()
    served: tuple[FoundSegment, ...] = ()
    words: Words = NO_WORDS


def orphans_of_gone(
    cluster: TopicsCluster, log: DecisionLog, layout: RemoteLayout, known: Attached,
    grace_ms: int, folds: KeptFolds,
) -> FoundOrphans:  # fmt: skip
    """Return what a topic that is gone has left; RefusedError where that is in doubt."""
    cache = _gone_cache(cluster, log, known, folds)
    kept = {each.id.segment_id for each in _not_let_go(log, known, cache)}
    named = {each.id.segment_id for each in cache.segments}
    named |= {each.segment_id for each in log.own_segments(known)}
    named |= _ids_of(log.decisions(known))
    latest_ms = log.clock.now_ms() - grace_ms
    due: list[FoundSegment] = []
    waiting: list[FoundSegment] = []
    unknown: list[FoundSegment] = []
    served: list[FoundSegment] = []
    begun = list(layout.list_own(work_folder(known.name.partition)))
    there = list(layout.list(known.name.partition))
    for found in there:
        if found.segment_id not in named and not _is_begun(layout, known, found):
            unknown.append(found)
        elif found.modified_ms > latest_ms:
            waiting.append(found)
        else:
            (served if found.segment_id in kept else due).append(found)
    words = words_of_nothing(known, begun, {each.segment_id for each in there}, latest_ms)
    return FoundOrphans(tuple(due), tuple(waiting), tuple(unknown), tuple(served), words)


def collect_gone(
    cluster: TopicsCluster, log: DecisionLog, layout: RemoteLayout, known: Attached,
    grace_ms: int, folds: KeptFolds, *, takes_over: bool = False, takes_served: bool = False,
) -> FoundOrphans:  # fmt: skip
    """Remove what a topic that is gone has left, and return what that was; see the module's rule.

    ``takes_served`` says that a person has looked, and that no other cluster has the topic: what
    the metadata topic never let go of is removed too. RefusedError without it where there is any.
    When nothing is left the partition is given up, owner object and all. StoppedError while paused.
    """
    if known.paused_ms is not None:
        raise StoppedError(
            f"the partition is paused; keeplast pause --resume goes on. partition={known.name}",
            code="K421",
        )
    if not takes_over:
        require_free(log, known)
    owner = OwnerObject(layout, known.name, log.store_id())
    cache = _gone_cache(cluster, log, known, folds)
    if not takes_served:
        _require_let_go(log, known, cache)
    _require_owner(owner, known)
    held = log.claim(known, epoch=known.epoch + 1)
    try:
        owner.take(held.epoch)
        found = orphans_of_gone(cluster, log, layout, held, grace_ms, folds)
        if not takes_served and found.served:
            _require_let_go(log, held, _gone_cache(cluster, log, held, folds))

        def check() -> None:
            log.check(held)
            owner.check(held.epoch)

        for number, each in enumerate((*found.named, *found.served)):
            if number % CHECKED_EVERY == 0:
                check()
            layout.delete_found(held.name.partition, each)
            layout.delete_own(work_name(_name(held, each)))
        remove_words(layout, found.words, check)
        sweep_filters(layout, held.name.partition)
        if not found.waiting and not found.unknown and not found.words.waiting:
            log.forget(held)
            owner.give_up(held.epoch)
        else:
            log.give_back(held)
    except CompactionError:
        log.give_back(held)
        raise
    return found


def _require_owner(owner: OwnerObject, known: Attached) -> None:
    """Raise RefusedError unless the remote tier says that this decision log is the newest."""
    found = owner.read()
    if found is None or found.epoch > known.epoch:
        raise RefusedError(
            "the owner object is gone, or says a later epoch than the decision log: somebody else "
            "has the partition, or gave it up. Nothing is removed. "
            f"partition={known.name} object={owner.key} epoch={known.epoch} "
            f"found={None if found is None else found.epoch}",
            code="K423",
        )


def unknown_of_live(publisher: Publisher) -> tuple[FoundSegment, ...]:
    """Return the unnamed objects below a partition that is there: only reported, never removed.

    It is listed before the cluster is looked at: brokers announce before they write.
    """
    there = list(publisher.layout.list(publisher.name.partition))
    cache = publisher.look().cache
    ids = {each.id.segment_id for each in cache.segments}
    ids |= {each.segment_id for each in publisher.log.own_segments(publisher.held)}
    ids |= _ids_of(publisher.log.decisions(publisher.held))
    return tuple(
        each
        for each in there
        if each.segment_id not in ids and not _is_begun(publisher.layout, publisher.held, each)
    )


def _ids_of(decisions: Iterable[Decision]) -> set[bytes]:
    return {
        each.id.segment_id
        for decision in decisions
        for each in (*decision.sources, *decision.outputs)
    }


def _gone_cache(
    cluster: TopicsCluster, log: DecisionLog, known: Attached, folds: KeptFolds
) -> PartitionCache:
    """Return what brokers last said of a partition of a topic that is gone, by all sources."""
    name, seen = known.name, known.seen
    topic_id = cluster.find_topic_id(name.partition.topic)
    facts = cluster.read_facts(())
    metadata = facts.metadata_topic
    if facts.cluster_id != name.cluster_id or metadata is None:
        raise RefusedError(
            f"the address is another cluster's, or it has no {METADATA_TOPIC}; nothing is removed. "
            f"partition={name} cluster_id={facts.cluster_id}",
            code="K418",
        )
    if topic_id == name.partition.topic_id:
        raise RefusedError(
            f"the topic is there; nothing of it is removed. partition={name}", code="K432"
        )
    at = metadata_partition(
        name.partition.topic_id, name.partition.partition, metadata.partition_count
    )
    point = FoldPoint(
        cluster_id=name.cluster_id, topic_id=seen.topic_id, partition_count=seen.partition_count,
        partition=at, offset=seen.offset, leader_epoch=seen.leader_epoch, record_epoch=-1,
        digest=seen.digest,
    )  # fmt: skip
    end = cluster.read_end(at)
    last = OffsetRange(max(seen.offset - 1, 0), seen.offset)
    if not point.may_lead_to(name.cluster_id, metadata, end) or not point.is_at(
        next(iter(cluster.read_metadata(at, last)), None)
    ):
        raise RefusedError(
            f"{METADATA_TOPIC} is not the one that was seen before, or has lost its end; nothing "
            f"is removed. partition={name} end={end.offset}",
            code="K413",
        )
    folded = fold_metadata(
        cluster, metadata, [at], kept=lambda number: folds.find(name.cluster_id, number)
    )
    folded.require_sound()
    return folded.cache.partitions.get(name.partition, PartitionCache())


def _not_let_go(log: DecisionLog, known: Attached, cache: PartitionCache) -> list[RemoteLogSegment]:
    """Return the segments that brokers never said are to go."""
    # No broker will ever delete what a round announced after the deletion.
    own = {each.segment_id for each in log.own_segments(known) if each.decision_id is None}
    return [
        each
        for each in cache.segments
        if each.state not in _ON_THEIR_WAY
        and not (each.state is _BEGUN and is_compactors(each) and each.id.segment_id in own)
    ]


def _require_let_go(log: DecisionLog, known: Attached, cache: PartitionCache) -> None:
    """Raise RefusedError for a segment that brokers never said is to go."""
    left = _not_let_go(log, known, cache)
    if left:
        raise RefusedError(
            "the topic cannot be seen, and brokers never said that its segments are to go. Its "
            "deletion has not ended, brokers stopped before it, or another cluster has the "
            "topic. Nothing is removed. When the deletion is long over, and you know that no "
            f"other cluster reads this bucket: --orphans collect-served. partition={known.name} "
            f"segments={len(left)} segment={encode_id(left[0].id.segment_id)}",
            code="K433",
        )


def _is_begun(layout: RemoteLayout, known: Attached, found: FoundSegment) -> bool:
    """Say whether a round of ours has left word that it began this."""
    return layout.read_own(work_name(_name(known, found))) is not None


def _name(known: Attached, found: FoundSegment) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(known.name.partition, found.segment_id)
