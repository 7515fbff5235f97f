"""Takes a partition over from a decision log that is lost, or that a backup took the place of.

The rule: **nothing is taken over from a compactor that may still be at work, and nothing is
concluded that the metadata topic does not say**. For a grace no compactor may have announced
anything to brokers. The remote tier must be this cluster's. A swap that lies in the topic must
explain every segment that a compactor announced, or the segment must be one that never was
published. Then the owner object goes over, which fences every process with the other log. Only
after that is the topic read for good. Collection deletes what was to be deleted, after a grace of
its own.

Swaps that a lost log had decided and not published are lost with it: their outputs are taken back.
A process that slept all the while could still publish them: it is the reason for the first grace.

Each swap of a partition is read out of the metadata topic again. The second rule: **a swap counts
as found only when the records that would publish it are those that lie there, byte for byte**, in
one piece. The metadata topic is never compacted, so that it remembers what a decision log has lost:
the decider, the time, each output and its sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds, MetadataView, look
from keeplast.attach.held.outputs import work_name
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import Publisher, known_ids, note_unknown_rounds, take_hold
from keeplast.attach.rules.swap import announcement, batch_of, covered
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import METADATA_TOPIC, LiveCluster, OffsetRange
from keeplast.cluster.metadata_cache import COMPACTOR_BROKER_MAX, PartitionCache, is_compactors
from keeplast.errors import CompactionError, ConflictError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    TopicIdPartition,
    decode,
)
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import (
    Attached,
    AttachedName,
    Decision,
    DecisionState,
    OwnSegment,
    epoch_of_mark,
)

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_ID_CHARS = 32


class _BatchUpdate(Struct, frozen=True):
    """An update in a batch, and its segment as it stood before."""

    offset: int
    value: bytes
    event: RemoteLogSegmentUpdate
    segment: RemoteLogSegment | None


class CompactorHistory(Struct):
    """The records of one partition up to :attr:`end`, exclusive, of the metadata topic.

    ``epoch`` is the newest that announced or moved anything, ``newest_ms`` when that was. ``known``
    has every segment that was ever announced, as it stood last; ``announced`` are the ids that a
    compactor announced. ``swaps`` are what was published, oldest first, by what is published.
    """

    name: AttachedName
    metadata_partition: int
    end: int = 0
    epoch: int = 0
    newest_ms: int = 0
    cache: PartitionCache = field(default_factory=PartitionCache)
    known: dict[RemoteLogSegmentId, RemoteLogSegment] = field(default_factory=dict)
    announced: set[RemoteLogSegmentId] = field(default_factory=set)
    swaps: dict[tuple[bytes, ...], Decision] = field(default_factory=dict)
    _batch: list[_BatchUpdate] = field(default_factory=list)

    def read(self, cluster: LiveCluster, end: int) -> None:
        """Read on to ``end``; RefusedError for an offset without a record, CorruptError as brokers.

        ``end`` is where the topic ended: no batch goes on after it.
        """
        held = OffsetRange(self.end, end)
        for each in cluster.read_metadata(self.metadata_partition, held):
            if isinstance(each, int):
                raise RefusedError(
                    f"{METADATA_TOPIC} has no record at an offset; see keeplast place check. "
                    f"partition={self.metadata_partition} offset={each}",
                    code="K417",
                )
            self._add(each.offset, each.value)
        self._end_batch()
        self.end = max(self.end, end)

    def _add(self, offset: int, value: bytes | None) -> None:
        event = decode(value)
        assert value is not None
        if isinstance(event, RemotePartitionDelete) or event.id.partition != self.name.partition:
            self._end_batch()
            return
        if isinstance(event, RemoteLogSegmentUpdate):
            update = _BatchUpdate(offset, value, event, self.known.get(event.id))
            if not self._joins(update):
                self._end_batch()
            if event.broker_id <= COMPACTOR_BROKER_MAX and event.state in (_FINISHED, _DELETING):
                self._batch.append(update)
        else:
            self._end_batch()
            if event.broker_id <= COMPACTOR_BROKER_MAX:
                self.announced.add(event.id)
        if event.broker_id <= COMPACTOR_BROKER_MAX:
            self.epoch = max(self.epoch, epoch_of_mark(event.broker_id))
            self.newest_ms = max(self.newest_ms, event.event_timestamp_ms)
        self.cache.apply(event)
        found = self.cache.find(event.id)
        if found is not None:
            self.known[event.id] = found

    def _joins(self, update: _BatchUpdate) -> bool:
        """Say whether an update goes on what was begun: finished copies, then deletions."""
        if not self._batch:
            return False
        last = self._batch[-1]
        return (
            (last.event.broker_id, last.event.event_timestamp_ms, last.offset + 1)
            == (update.event.broker_id, update.event.event_timestamp_ms, update.offset)
            and update.event.state >= last.event.state
        )  # fmt: skip

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, []
        finished = [each for each in batch if each.event.state is _FINISHED]
        replaced = [each for each in batch if each.event.state is _DELETING]
        outputs = [
            replace(each.segment, custom_metadata=each.event.custom_metadata)
            for each in reversed(finished) if each.segment is not None
        ]  # fmt: skip
        sources = [each.segment for each in replaced if each.segment is not None]
        if not finished or not replaced or len(outputs) + len(sources) != len(batch):
            return  # What was taken back, or a late record of segments that are long gone.
        count = _sources_of(outputs, sources)
        if not count or covered(sources[:count]) != covered(outputs):
            return
        batch, sources = batch[: len(finished) + count], sources[:count]
        values = tuple(each.value for each in batch)
        digest = hashlib.sha256(b"".join(values)).hexdigest()
        decision = Decision(
            id=digest[:_ID_CHARS], name=self.name, epoch=epoch_of_mark(batch[0].event.broker_id),
            state=DecisionState.PUBLISHED, sources=tuple(sources), outputs=tuple(outputs),
            cleaned_to=sources[0].start_offset, metadata_partition=self.metadata_partition,
            floor_offset=batch[0].offset, decided_ms=batch[0].event.event_timestamp_ms,
            first_offset=batch[0].offset, last_offset=batch[-1].offset,
        )  # fmt: skip
        if batch_of(decision).values == values:
            # Who publishes twice publishes the same: the first one counted.
            self.swaps.setdefault(values, decision)


def _sources_of(outputs: Sequence[RemoteLogSegment], deleted: Sequence[RemoteLogSegment]) -> int:
    """Return how many of ``deleted`` lie within what ``outputs`` cover, from the first one on.

    A segment that was taken back in the same millisecond lies after them, and is no source.
    """
    start, end = covered(outputs)
    for at, each in enumerate(deleted):
        if each.start_offset < start or each.end_offset > end:
            return at
        start = each.start_offset
    return len(deleted)


SHOWN_MAX = 3


class Rebuilt(Struct, frozen=True):
    """How many swaps were written down again, and of how many the sources are to be collected."""

    decisions: int
    uncollected: int


def is_compacted(
    cluster: LiveCluster, layout: RemoteLayout, name: AttachedName, terms: AttachTerms, store: str
) -> bool:
    """Say whether a compactor ever worked on a partition, by brokers and the remote tier."""
    return OwnerObject(layout, name, store).find() is not None or any(
        is_compactors(each) for each in look(cluster, name, terms).cache.segments
    )


def rebuild(
    cluster: LiveCluster, log: DecisionLog, layout: RemoteLayout, partition: TopicIdPartition,
    cluster_id: str, terms: AttachTerms, *, grace_ms: int, takes_over: bool = False,
    accepts_metadata: bool = False, folds: KeptFolds | None = None,
) -> tuple[Publisher, Rebuilt]:  # fmt: skip
    """Own a partition by ``log``, and write down there what the metadata topic says of it.

    RefusedError, and nothing is changed, where that may be wrong. ``accepts_metadata`` says that an
    operator has looked: the metadata topic and the objects are of one cluster, this one.
    :func:`.repair` ends what was left undone.
    """
    name = AttachedName(cluster_id, partition)
    owner = OwnerObject(layout, name, log.store_id())
    known = log.find(name)
    view = _look(cluster, name, terms, known, accepts_metadata)
    history = CompactorHistory(name, view.metadata_partition)
    history.read(cluster, view.end.offset)
    _require_quiet(history, log.clock.now_ms(), grace_ms)
    _require_same_tier(cluster, history, layout, log, known, accepts_metadata)
    _missing(history, log, known)
    owner.probe()
    held_by = owner.find()
    newest = max(0 if held_by is None else held_by.epoch, history.epoch)
    take = partial(owner.take_from, held_by)
    held = take_hold(log, name, known, view, newest, take, takes_over=takes_over)
    try:
        # The process at work decides nothing from here on; what it had published is seen now.
        view = _look(cluster, name, terms, held, accepts_metadata)
        history.read(cluster, view.end.offset)
        if history.cache.state() != view.cache.state():
            raise ConflictError(
                f"the metadata topic changed meanwhile; try again. {name}", code="K419"
            )
        decisions, own = _missing(history, log, held)
        if decisions:
            note_unknown_rounds(log, held, view.cache)
        log.restore(held, decisions, own)
    except CompactionError:
        log.give_back(held)
        raise
    publisher = Publisher(
        cluster, log, layout, held, terms, KeptFolds(log.folds) if folds is None else folds
    )
    waiting = sum(each.state is DecisionState.PUBLISHED for each in decisions)
    return publisher, Rebuilt(len(decisions), waiting)


def _look(
    cluster: LiveCluster, name: AttachedName, terms: AttachTerms, known: Attached | None,
    accepts_metadata: bool,
) -> MetadataView:  # fmt: skip
    """Look again; what a fold that was kept says is not believed here."""
    view = look(cluster, name, terms, None if known is None else known.seen)
    if not accepts_metadata:
        view.require_continued()
    return view


def _require_quiet(history: CompactorHistory, now_ms: int, grace_ms: int) -> None:
    """Raise RefusedError when a compactor announced something to brokers within the grace."""
    if history.newest_ms and history.newest_ms + grace_ms > now_ms:
        raise RefusedError(
            "a compactor was at work here a moment ago, and may still be. End every process that "
            "has another decision log; try again when the grace is over (--grace-ms). "
            f"partition={history.name} ago_ms={now_ms - history.newest_ms} grace_ms={grace_ms}",
            code="K434",
        )


def _require_same_tier(
    cluster: LiveCluster, history: CompactorHistory, layout: RemoteLayout, log: DecisionLog,
    known: Attached | None, accepts_metadata: bool,
) -> None:  # fmt: skip
    """Raise RefusedError when objects and metadata topic are of different clusters.

    Brokers announce before they write, and delete before they forget: all that lies there was
    announced, but what a round began. A clone of a cluster that shares its bucket meets what the
    other wrote.
    """
    partition = history.name.partition
    served = {each.segment.id for each in history.cache.served()}
    there = {each.segment_id for each in layout.list(partition)}
    # What was written or removed meanwhile was announced meanwhile.
    history.read(cluster, cluster.read_end(history.metadata_partition).offset)
    served &= {each.segment.id for each in history.cache.served()}
    lost = [each.segment_id for each in served if each.segment_id not in there]
    if lost:
        raise RefusedError(
            "brokers serve segments that the remote tier lacks: --storage is another place than "
            f"theirs, or another cluster has collected there. partition={history.name} "
            f"segments={_shown(lost)}",
            code="K435",
        )
    in_history = {each.segment_id for each in history.known}
    own = () if known is None else log.own_segments(known)
    strange = there - in_history - {each.segment_id for each in own}
    strange = {
        each
        for each in strange
        if layout.read_own(work_name(RemoteLogSegmentId(partition, each))) is None
    }
    if strange and not accepts_metadata:
        raise RefusedError(
            "the remote tier has segments that this cluster never heard of: its metadata topic is "
            "an older one, or a clone of the cluster writes there. Take no partition over from a "
            "cluster that lives. When you have looked, and this is the right one: "
            f"--accept-metadata. partition={history.name} segments={_shown(strange)}",
            code="K436",
        )


def _missing(
    history: CompactorHistory, log: DecisionLog, known: Attached | None
) -> tuple[list[Decision], list[OwnSegment]]:
    """Return what ``log`` should have and has not: swaps, and ids that carry a compactor's mark.

    RefusedError for a mark that nothing explains.
    """
    there = () if known is None else log.decisions(known)
    had = {batch_of(each).values for each in there}
    decisions = [
        replace(each, state=_state_of(each, history))
        for values, each in history.swaps.items()
        if values not in had
    ]
    decided = {each.id: decision for decision in decisions for each in decision.outputs}
    waiting = {
        each.id
        for decision in decisions
        if decision.state is not DecisionState.COLLECTED
        for each in decision.sources
    }
    own = () if known is None else log.own_segments(known)
    undecided = {each.segment_id for each in own if each.decision_id is None}
    ids = set() if known is None else known_ids(log, known)
    found: list[OwnSegment] = []
    for each in history.cache.segments:
        id_ = each.id.segment_id
        decision = decided.get(each.id)
        is_lost = each.state is _FINISHED and id_ in undecided
        is_explained = each.id in waiting or (id_ in ids and not is_lost)
        if decision is not None:
            found.append(_own(each, decision.id))
        elif is_explained or not is_compactors(each):
            continue
        elif each.state is not _FINISHED and each.id in history.announced:
            found.append(_own(each, None))
        else:
            raise RefusedError(
                "a segment carries a compactor's mark, and no swap in the metadata topic explains "
                "it; only the decision log that has it can go on. "
                f"partition={history.name} segment={encode_id(id_)} state={each.state.name}",
                code="K415",
            )
    return decisions, found


def _state_of(decision: Decision, history: CompactorHistory) -> DecisionState:
    """Return how far a swap that was published is: collected, when nothing of its sources is."""
    is_there = any(history.cache.find(each.id) is not None for each in decision.sources)
    return DecisionState.PUBLISHED if is_there else DecisionState.COLLECTED


def _own(segment: RemoteLogSegment, decision_id: str | None) -> OwnSegment:
    epoch = epoch_of_mark(segment.broker_id)
    at_ms = segment.event_timestamp_ms
    return OwnSegment(
        segment_id=segment.id.segment_id, start_offset=segment.start_offset, epoch=epoch,
        at_ms=at_ms, announced=announcement(segment, epoch, at_ms), decision_id=decision_id,
        is_discarded=False,
    )  # fmt: skip


def _shown(ids: Collection[bytes]) -> str:
    """Return how many there are, and the first of them."""
    first = ", ".join(encode_id(each) for each in sorted(ids)[:SHOWN_MAX])
    return f"{len(ids)} ({first}{', …' if len(ids) > SHOWN_MAX else ''})"
