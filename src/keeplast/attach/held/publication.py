"""One attached partition in the hands of this process: announced, decided, published, discarded.

The rule: **nothing is published that was not decided, and nothing is decided that is not complete,
read back and still fits what brokers serve**. From the decision on, the next holder publishes it,
and always the same bytes. A batch may have arrived or not: then the publisher looks for it, and
sends it again only when it is not there. Brokers drop what they have passed already. Source:
tiering.md section 8.2; attach.md section 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from keeplast.attach.held.metadata_view import (
    AttachTerms,
    KeptFolds,
    MetadataView,
    look,
    look_further,
)
from keeplast.attach.held.outputs import filter_name, sweep_filters
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.rules.sources import overlaid_from
from keeplast.attach.rules.swap import (
    Batch,
    Swap,
    announcement,
    batch_of,
    reasserted,
    require_decidable,
    standing_of,
    updates,
)
from keeplast.attach.rules.tombstone_removal import require_settled
from keeplast.cluster.late_copies import late_copies, without
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import LiveCluster, OffsetRange, encode_batch
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors
from keeplast.cluster.storage_check import NOT_STORED_REMEDY, not_stored, read_stored
from keeplast.errors import (
    CommitUnknownError,
    CompactionError,
    ConflictError,
    CorruptError,
    InvariantError,
    RefusedError,
    StoppedError,
    invariant,
)
from keeplast.format.identifier import encode_id, metadata_partition
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
)
from keeplast.survey.kept_heads import anchor_of
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.metadata.facts import Anchor
from keeplast.tier.state.attached import (
    Attached,
    AttachedName,
    Decision,
    DecisionState,
    OwnSegment,
    epoch_of_mark,
    mark_of,
)

PUBLISH_MAX = 3
"""How often a batch that is not there is sent, before it is left to the next claim."""
DISCARD_MAX = 400
"""Leftovers that are discarded at a time: their batches fit, and memory is bounded."""


class Publisher:
    """A partition that was claimed at :attr:`epoch`; see :func:`claim`."""

    def __init__(
        self, cluster: LiveCluster, log: DecisionLog, layout: RemoteLayout, held: Attached,
        terms: AttachTerms, folds: KeptFolds,
    ) -> None:  # fmt: skip
        """Take what was claimed, and what is kept of the metadata topic."""
        self.cluster = cluster
        self.log = log
        self.layout = layout
        self.held = held
        self.terms = terms
        self.folds = folds
        self.owner = OwnerObject(layout, held.name, log.store_id())
        self._anchor: Anchor | None = None

    @property
    def name(self) -> AttachedName:
        """Return which partition it is."""
        return self.held.name

    @property
    def epoch(self) -> int:
        """Return the epoch at which the partition was claimed."""
        return self.held.epoch

    @property
    def mark(self) -> int:
        """Return the broker id of everything that is announced at this epoch."""
        return mark_of(self.epoch)

    def anchor(self, line: bytes | None) -> None:
        """Let what is decided from here on keep that this line of a receipt was written.

        None keeps nothing.
        """
        self._anchor = anchor_of(self.log.facts, line) or self._anchor

    def mark_collected(self, decision: Decision) -> None:
        """Write down that a decision's sources are gone, and the line that announced it."""
        self.log.mark_collected(self.held, decision, self._anchor)

    def close(self) -> None:
        """Give the partition back; what was decided and not published is the next claim's."""
        self.log.give_back(self.held)

    def detach(self) -> None:
        """Give the partition up; ConflictError while something of it is not settled.

        The decision log first: an owner object without a partition is its own, and taken again.
        """
        sweep_filters(self.layout, self.name.partition)
        self.log.detach(self.held)
        self.owner.give_up(self.epoch)

    def look(
        self, batches: Sequence[Batch] = (), *, accepts_metadata: bool = False
    ) -> MetadataView:
        """Read the cluster again, and check everything that a decision or a deletion rests on.

        RefusedError when a setting, the metadata topic or a foreign mark stands in the way.
        ``accepts_metadata`` goes on with a metadata topic that is not the one that was seen.
        """
        known = self._reread()
        # Of a topic that was put back nothing is believed that was concluded from the other.
        kept = None if accepts_metadata else self.folds
        view = look(self.cluster, self.name, self.terms, known.seen, batches, kept)
        if not accepts_metadata:
            view.require_continued()
            keep(self.folds, view)
        require_own(view, self.log)
        return view

    def accept(self, view: MetadataView) -> None:
        """Take the metadata topic of ``view`` for the right one, because an operator has said
        so.
        """
        self.log.accept_seen(self.held, view.point)
        self.folds.refute(self.name.cluster_id, view.metadata_partition)
        keep(self.folds, view)

    def register(self, ids: Sequence[tuple[bytes, int]]) -> None:
        """Write down fresh segment ids, each with its start offset.

        Before anything is written under them: what a crash leaves is then known as ours.
        """
        self.log.register(self.held, ids)

    def announce(self, segment: RemoteLogSegment) -> RemoteLogSegment:
        """Announce a registered segment, once; return it as it was announced to the cluster.

        ConflictError when it is not known whether it was: the id is abandoned then, take another.
        """
        return self.announce_all([segment])[0]

    def announce_all(self, segments: Sequence[RemoteLogSegment]) -> list[RemoteLogSegment]:
        """Announce several in one batch; see :meth:`announce`."""
        facts = self.cluster.read_facts([self.name.partition.topic])
        metadata = facts.metadata_topic
        if metadata is None or facts.topics[0].topic_id != self.name.partition.topic_id:
            raise RefusedError(
                f"the topic or its metadata is gone. partition={self.name}", code="K420"
            )
        now_ms = self.log.clock.now_ms()
        announced = [announcement(each, self.epoch, now_ms) for each in segments]
        for each in announced:
            self.log.note_announced(self.held, each)
        at = metadata_partition(
            self.name.partition.topic_id, self.name.partition.partition, metadata.partition_count
        )
        floor = self.cluster.read_end(at)
        try:
            self.cluster.append(metadata, at, announced)
        except CommitUnknownError as unknown:
            seen = look(self.cluster, self.name, self.terms, kept=self.folds).cache
            if any(seen.find(each.id) is None for each in announced):
                raise ConflictError(
                    "it is not known whether segments were announced; they are abandoned, and "
                    f"others are made. partition={self.name} floor_offset={floor.offset}",
                    code="K426",
                ) from unknown
        return announced

    def decide_and_publish(self, swap: Swap) -> Decision:
        """Make ``swap`` live; return its decision as it was published.

        ConflictError when what the round saw has changed, was never announced, or is held by now:
        plan again. InvalidError when it does not fit one batch.
        RefusedError, FencedError and StoppedError (paused) before anything is decided.
        CommitUnknownError when it is decided and it is not known whether it was published: the
        next claim repairs that.
        """
        invariant(
            swap.partition == self.name.partition,
            f"a swap of another partition. partition={swap.partition}",
        )
        view = self.look()
        decision = Decision(
            id=os.urandom(16).hex(), name=self.name, epoch=self.epoch,
            state=DecisionState.DECIDED, sources=swap.sources,
            outputs=tuple(
                replace(each, broker_id=self.mark, tags=()) for each in swap.outputs
            ),
            cleaned_to=swap.cleaned_to, metadata_partition=view.metadata_partition,
            floor_offset=view.end.offset, decided_ms=self.log.clock.now_ms(),
            keep_ms=self.terms.keep_sources_ms, first_dirty=swap.first_dirty,
            expires_below=swap.expires_below,
        )  # fmt: skip
        outputs = (output for each in self.log.decisions(self.held) for output in each.outputs)
        require_settled(
            view.cache, swap, outputs, log_start=view.log.start,
            now_ms=decision.decided_ms,
        )  # fmt: skip
        batch = batch_of(decision)
        require_decidable(
            view.cache, swap, batch.events, view.log.start, now_ms=decision.decided_ms
        )
        # An event that no batch holds could be decided and never published: no process would get
        # past it.
        encode_batch(view.metadata_topic, view.metadata_partition, batch.events)
        self.owner.check(self.epoch)
        self.log.decide(self.held, decision, swap.cleaned_for, self._anchor)
        (decided,) = [each for each in self.log.decisions(self.held) if each.id == decision.id]
        return self.publish(decided, view)

    def publish(self, decision: Decision, view: MetadataView) -> Decision:
        """Publish a decision, unless ``view``, in which its batch was looked for, has it."""
        batch = batch_of(decision)
        found = view.find(batch)
        unknown: CommitUnknownError | None = None
        for _ in range(PUBLISH_MAX):
            if found is not None:
                return self._audited(decision, view, found)
            try:
                # What came over it since it was decided is served on, in the same batch.
                again = reasserted(view.cache, batch.events, view.log.start)
                self.cluster.append(
                    view.metadata_topic, view.metadata_partition, [*batch.events, *again]
                )
            except CommitUnknownError as error:
                unknown = error
            look_further(self.cluster, view, [batch])
            found = view.find(batch)
        if found is not None:
            return self._audited(decision, view, found)
        raise CommitUnknownError(
            "a decision is not published; the next claim goes on with it. "
            f"partition={self.name} id={decision.id} error={unknown}",
            code="K426",
        )

    def discard(self, segments: Sequence[OwnSegment]) -> None:
        """Take back ids without a decision: announcement, objects, all.

        InvariantError when brokers serve one: then it was decided, whatever is known here.
        """
        for start in range(0, len(segments), DISCARD_MAX):
            self._discard(segments[start : start + DISCARD_MAX])

    def discard_ids(self, segment_ids: Sequence[bytes]) -> None:
        """Take back those of ``segment_ids`` that were registered; see :meth:`discard`."""
        wanted = set(segment_ids)
        left = self.log.own_segments(self.held, only_left=True)
        self.discard([each for each in left if each.segment_id in wanted])

    def advance(self, cleaned_to: int) -> None:
        """Write down that the partition is clean up to ``cleaned_to`` where no swap says it."""
        self.log.advance(self.held, cleaned_to, self._anchor)

    def _discard(self, segments: Sequence[OwnSegment]) -> None:
        view = self.look()
        self.owner.check(self.epoch)
        self.log.check(self.held)
        # Whatever the caller knows: what is decided will be served, if not today.
        decided = {each.segment_id for each in self.log.own_segments(self.held) if each.decision_id}
        for own in segments:
            if own.segment_id in decided:
                raise ConflictError(
                    "a segment that was decided is not taken back; repair publishes it. "
                    f"segment={encode_id(own.segment_id)}",
                    code="K426",
                )
        places = [self._place_of(each) for each in segments]
        by_state: dict[RemoteLogSegmentState, list[RemoteLogSegment]] = {}
        for each in places:
            known = view.cache.find(each.id)
            if known is not None:
                by_state.setdefault(known.state, []).append(known)
        live = by_state.get(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        invariant(
            not live,
            f"a segment without a decision is live. partition={self.name} segments={live}",
        )
        begun = by_state.get(RemoteLogSegmentState.COPY_SEGMENT_STARTED, [])
        self.send(view, begun, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        for each in places:
            self.layout.delete_own(filter_name(each.id))
            self.layout.delete(each)
        ending = [*begun, *by_state.get(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, [])]
        self.send(view, ending, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        self.log.mark_discarded(self.held, [each.segment_id for each in segments])

    def send(
        self, view: MetadataView, segments: Sequence[RemoteLogSegment],
        state: RemoteLogSegmentState,
    ) -> None:  # fmt: skip
        """Append updates that may be sent twice: a broker drops what it has passed."""
        if segments:
            events: Sequence[RemoteLogSegmentUpdate] = updates(
                segments, state, self.epoch, self.log.clock.now_ms()
            )
            self.cluster.append(view.metadata_topic, view.metadata_partition, events)

    def _audited(self, decision: Decision, view: MetadataView, found: OffsetRange) -> Decision:
        """Look at what brokers make of it, and write down that it is published."""
        self.mend(view)
        # What a late copy hides is whole, and the next round ends the copy.
        read, _ = without(view.cache, late_copies(view.cache))
        standing = standing_of(read, decision.sources, decision.outputs, view.log.start)
        if standing.live_sources or (standing.lost_outputs and standing.overlaid_from is None):
            raise CorruptError(
                "a published swap does not hold: brokers dropped a part of it. Nothing more is "
                f"decided; see keeplast repair. partition={self.name} id={decision.id}",
                expected="outputs served, sources on their way out",
                found=[encode_id(each.id.segment_id) for each in standing.live_sources],
                code="K428",
            )
        overlaid = overlaid_from(view.cache, decision.outputs, view.log.start)
        ends = (decision.cleaned_to, standing.overlaid_from, overlaid)
        cleaned_to = min(each for each in ends if each is not None)
        self.log.mark_published(
            self.held, decision, first_offset=found.start, last_offset=found.end - 1,
            cleaned_to=cleaned_to,
        )  # fmt: skip
        self.log.note_seen(self.held, view.point)
        (published,) = [each for each in self.log.decisions(self.held) if each.id == decision.id]
        return published

    def mend(self, view: MetadataView) -> None:
        """Let brokers serve again what a batch that came late has hidden, as far as they can."""
        again = reasserted(view.cache, (), view.log.start)
        if again:
            self.cluster.append(view.metadata_topic, view.metadata_partition, again)
            look_further(self.cluster, view, ())

    def _reread(self) -> Attached:
        found = self.log.find(self.name)
        if found is None:
            raise InvariantError(
                f"an attached partition is gone. partition={self.name}", code="K901"
            )
        if found.paused_ms is not None:
            raise StoppedError(
                f"the partition is paused; keeplast pause --resume goes on. partition={self.name}",
                code="K421",
            )
        return found

    def _place_of(self, own: OwnSegment) -> RemoteLogSegment:
        return own.announced or _named(self.name.partition, own.segment_id, own.start_offset)


def claim(
    cluster: LiveCluster, log: DecisionLog, layout: RemoteLayout, partition: TopicIdPartition,
    cluster_id: str, terms: AttachTerms, *, takes_over: bool = False,
    accepts_metadata: bool = False, folds: KeptFolds | None = None,
) -> Publisher:  # fmt: skip
    """Hold a partition at an epoch that was never used; the first claim attaches it.

    ``folds`` are those of ``log``, for several partitions; without them they are read again.

    RefusedError when it may not be attached, another decision log owns it, the decision log is an
    older one, or the storage is not the brokers'. Also when another process that may still run
    holds it, unless ``takes_over``. ConflictError when another process was faster. :func:`.repair`
    ends what was left undone.
    """
    name = AttachedName(cluster_id, partition)
    owner = OwnerObject(layout, name, log.store_id())
    known = log.find(name)
    folds = KeptFolds(log.folds) if folds is None else folds
    seen = None if known is None else known.seen
    view = look(cluster, name, terms, seen, kept=None if accepts_metadata else folds)
    if not accepts_metadata:
        view.require_continued()
        keep(folds, view)
    require_own(view, log)
    held_by = owner.read()
    if held_by is None or (known is not None and held_by.epoch < known.epoch):
        require_stored(cluster, layout, view)
    owner.probe()
    if held_by is not None and held_by.epoch > (0 if known is None else known.epoch):
        newer = log.find(name)
        if newer is not None and newer.epoch >= held_by.epoch:
            raise ConflictError(
                "another process took the partition over first. "
                f"partition={name} epoch={newer.epoch}",
                code="K422",
            )
        raise RefusedError(
            "the owner object says a later epoch than the decision log: the log is an older one, "
            "restored or of a clone. Use the newest; if that is lost, keeplast repair "
            f"--rebuild. partition={name} epoch={held_by.epoch}",
            code="K415",
        )
    marks = (epoch_of_mark(e.broker_id) for e in view.cache.segments if is_compactors(e))
    newest = max((0 if held_by is None else held_by.epoch, *marks))
    held = take_hold(log, name, known, view, newest, owner.take, takes_over=takes_over)
    if not held.cleaned_for and log.decisions(held):
        note_unknown_rounds(log, held, view.cache)
    return Publisher(cluster, log, layout, held, terms, folds)


def take_hold(
    log: DecisionLog, name: AttachedName, known: Attached | None, view: MetadataView, newest: int,
    take: Callable[[int], None], *, takes_over: bool,
) -> Attached:  # fmt: skip
    """Hold a partition at an epoch after ``newest``, at which ``take`` takes its owner object.

    RefusedError when another process that may still run holds it, unless ``takes_over``.
    """
    # A partition that was held and never claimed has no owner either.
    is_new = known is None or known.epoch == 0
    if known is None:
        known = log.attach(name, view.point, cleaned_to=view.log.start)
    elif not takes_over:
        require_free(log, known)
    # Not the row's, which is read again: another process may have claimed since.
    epoch = 1 + max(known.epoch, newest)
    held = log.claim(known, epoch=epoch)
    try:
        take(epoch)
    except CompactionError:
        if is_new:
            log.forget(held)  # Another decision log was first, and this one has nothing here.
        else:
            log.give_back(held)
        raise
    return held


def require_stored(cluster: LiveCluster, layout: RemoteLayout, view: MetadataView) -> None:
    """Raise RefusedError when the newest segment that brokers serve is not in the storage.

    Where no owner object lies, or an old one as in a copy, nothing else shows that the storage is
    the brokers'. In another storage an owner object would fence no process, and no broker would
    find a round's outputs. A partition without remote segments shows nothing. ConflictError when
    brokers serve that segment no more.
    """
    served = view.cache.served_segments().values()
    newest = max(served, key=lambda each: each.start_offset, default=None)
    if newest is None:
        return
    try:
        read_stored(layout, newest)
    except FileNotFoundError as error:
        look_further(cluster, view, ())
        if newest.id not in {each.id for each in view.cache.served_segments().values()}:
            raise ConflictError(
                f"brokers have removed the newest segment meanwhile. partition={view.name}",
                code="K429",
            ) from error
        raise RefusedError(
            f"{not_stored(error)} partition={view.name}; {NOT_STORED_REMEDY}", code="K435"
        ) from error


def note_unknown_rounds(log: DecisionLog, held: Attached, cache: PartitionCache) -> None:
    """Write down how far rounds may have gone that are no longer known.

    Those of an earlier version, and of a decision log that was lost: to the end of what is there.
    """
    log.note_cleaned_for(held, max((each.end_offset + 1 for each in cache.served()), default=0))


def keep(folds: KeptFolds, view: MetadataView) -> None:
    """Keep the fold of ``view``, whose metadata topic was accepted, for the next look."""
    checkpoint = view.checkpoint()
    if checkpoint is not None:
        folds.keep(checkpoint)


def known_ids(log: DecisionLog, known: Attached) -> set[bytes]:
    """Return the ids that may carry our mark: given out here, or sources of a decision."""
    ids = {each.segment_id for each in log.own_segments(known)}
    explaining = DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING
    return ids | {
        each.id.segment_id
        for decision in log.decisions(known, *explaining)
        for each in decision.sources
    }


def require_own(view: MetadataView, log: DecisionLog) -> None:
    """Raise RefusedError when ``view`` shows what a decision log should know, and does not.

    All of the log is read after the view: a publisher has written down before.
    """
    known = log.find(view.name)
    if known is None:
        view.require_own((), 0)
        return
    undecided = {each.segment_id for each in log.own_segments(known) if each.decision_id is None}
    ids = known_ids(log, known)
    if any(is_compactors(each) and each.id.segment_id not in ids for each in view.cache.segments):
        # What somebody has collected meanwhile is on its way out here, and settled there.
        for decision in log.decisions(known, DecisionState.COLLECTED):
            ids |= {each.id.segment_id for each in decision.sources}
    view.require_own(ids, known.epoch, undecided)


def require_free(log: DecisionLog, known: Attached) -> None:
    """Raise RefusedError when another process, which may still run, holds a partition."""
    if not is_free(log, known):
        raise RefusedError(
            "another process works on the partition, or did not give it back; stop it, or take "
            f"over (--take-over). partition={known.name} {known.holder}",
            code="K422",
        )


def is_free(log: DecisionLog, known: Attached) -> bool:
    """Say whether no process that may still run, but this one, holds a partition."""
    holder = known.holder
    return (
        holder is None
        or known.held_since_ms is None
        or log.holder.knows_over(holder)
        or log.holder.is_process_of(holder)
    )


def _named(partition: TopicIdPartition, segment_id: bytes, start: int) -> RemoteLogSegment:
    """Return what names the objects of an id that was never announced."""
    return RemoteLogSegment(
        id=RemoteLogSegmentId(partition, segment_id), start_offset=start, end_offset=start,
        broker_id=mark_of(0), max_timestamp_ms=-1, event_timestamp_ms=0,
        epochs=(EpochStart(0, start),), size_bytes=0, custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip
