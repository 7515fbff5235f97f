"""What goes after a swap, and what a crash left undone: sources, decisions, half-done swaps.

The rule of decisions, which keeps the decision log bounded: **what explains anything that the
metadata topic still has, stays**. A decision goes when its sources were collected long ago, and the
topic's fold has none of its segments. A later swap, or the log start, took the place of its outputs
then. Readers of old decisions need no more than that:

* present outputs show what is clean;
* a day's caps look back for a day, and tombstones wait for no more than is kept
  (:mod:`keeplast.attach.rules.tombstone_removal`);
* ``keeplast repair --accept-metadata`` can publish again what a metadata topic lost that was put
  back to an earlier time. That time must not be longer ago than :data:`DECISIONS_KEPT_MS`.

The rule of sources, in this order, each time:

1. the grace of their readers has passed;
2. the metadata topic was read to its end under one leader epoch and still has the swap;
3. what is served in the sources' place was read from the store;
4. decision log and owner object are ours;
5. **then objects go, and the end of the deletion is announced last**.

After this there is no way back. Source: attach.md sections 4 and 8, attach-aiven.md section 9.

The rule of repair, after a crash or a cluster that lost something: **decided swaps are published,
undecided ones are taken back**, and nothing else is done. A process that claims a partition does
this before any work of its own. Source: tiering.md section 8.2, step 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.outputs import filter_name, filter_names
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.stored_segment import check_stored
from keeplast.attach.rules.swap import announcement, batch_of, covered, standing_of
from keeplast.attach.rules.tombstone_removal import REMEMBERED_MS
from keeplast.cluster.late_copies import closable_holes
from keeplast.errors import CompactionError, ConflictError, CorruptError, InvalidError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import Receipt, collection_line
from keeplast.tier.state.attached import Decision, DecisionState, OwnSegment

DECISIONS_KEPT_MS = REMEMBERED_MS
PRUNED_MAX = 1_000
"""Decisions that one call removes; each partition's collections are one."""


def prune(publisher: Publisher) -> int:
    """Remove decisions that nothing needs, with the ids of their outputs; return how many."""
    log, held = publisher.log, publisher.held
    before_ms = log.clock.now_ms() - DECISIONS_KEPT_MS
    old = [
        each
        for each in log.decisions(held, DecisionState.COLLECTED)
        if each.collected_ms is not None
        # Of records that are dated ahead brokers keep local copies, and tombstones, for so long.
        and max(each.collected_ms, *(e.max_timestamp_ms for e in each.sources)) < before_ms
    ]
    if not old:
        return 0
    there = {each.id for each in publisher.look().cache.segments}
    gone = [
        each.id
        for each in old
        if not any(segment.id in there for segment in (*each.sources, *each.outputs))
    ][:PRUNED_MAX]
    log.prune(held, gone)
    return len(gone)


GRACE_MS_DEFAULT = 60 * 60 * 1000
GRACE_MS_MIN = 60 * 1000
"""On an object store: half of the readers failed without one on a slow store, and brokers follow
their metadata topic with a delay. A file system keeps what is open."""


class CollectedSources(Struct, frozen=True):
    """What a pass removed, and how many decisions still wait: for their grace, or for brokers.

    ``held_back`` is why brokers may not have heard of what is due, None where they have, nothing is
    due, or no broker was asked. ``due_ms`` is when the grace of the next one that waits for it is
    over, None where none does.
    """

    decisions: int
    segments: int
    bytes: int
    waiting: int
    held_back: str | None = None
    due_ms: int | None = None


WhyWait = Callable[[int, int], str | None]
"""Says why brokers may not have read a partition of the metadata topic, None when they have.

It is asked with the partition's number and the least number of brokers that have to.
"""


def check_grace(grace_ms: int, *, is_object_store: bool) -> int:
    """Return ``grace_ms``; InvalidError when readers would meet objects that are gone."""
    if grace_ms < 0 or (is_object_store and grace_ms < GRACE_MS_MIN):
        raise InvalidError(
            "the grace is too short: a reader that began before the swap would fail. "
            f"--grace-ms={grace_ms} least={GRACE_MS_MIN if is_object_store else 0}",
            code="K431",
        )
    return grace_ms


def collect(
    publisher: Publisher,
    grace_ms: int,
    *,
    check: Callable[[RemoteLogSegment], None] | None = None,
    receipt: Receipt | None = None,
    why_wait: WhyWait | None = None,
) -> CollectedSources:
    """Collect every decision of a partition whose grace has passed, the oldest first.

    A decision that keeps its sources for longer than ``grace_ms`` says so itself.
    ``check`` reads what is served from the store, by default all of it. ``receipt`` takes a line of
    each decision before the first object goes. ``why_wait`` is asked once, when something is due:
    the grace is as long as brokers need to hear of the swap. ConflictError when the cluster has
    lost a swap: it is published again first, by repair.
    """
    log = publisher.log
    now_ms = log.clock.now_ms()
    waiting = decisions = segments = size = 0
    due_ms: int | None = None
    held_back: str | None = None
    filters: frozenset[str] | None = None
    checked: set[RemoteLogSegmentId] = set()
    for decision in log.decisions(
        publisher.held, DecisionState.PUBLISHED, DecisionState.COLLECTING
    ):
        over_ms = (decision.published_ms or now_ms) + max(grace_ms, decision.keep_ms)
        if over_ms > now_ms:
            waiting += 1
            due_ms = over_ms if due_ms is None else min(due_ms, over_ms)
            continue
        if held_back is not None:
            waiting += 1
            continue
        view = publisher.look([batch_of(decision)])
        if why_wait is not None:
            # Asked after the look: what is due was published long before.
            held_back = why_wait(view.metadata_partition, view.topic.replicas)
            why_wait = None
            if held_back is not None:
                waiting += 1
                continue
        serving = _require_collectable(view, decision)
        for each in serving:
            if each.id not in checked:
                _check_served(publisher, each, check)
                checked.add(each.id)
        log.mark_collecting(publisher.held, decision)
        publisher.owner.check(publisher.epoch)
        if receipt is not None:
            publisher.anchor(receipt(_line_of(decision, now_ms)))
        if filters is None:
            # What was replaced is in no round any more that could make another one of it.
            filters = filter_names(publisher.layout, publisher.name.partition)
        for source in decision.sources:
            if filter_name(source.id) in filters:
                publisher.layout.delete_own(filter_name(source.id))
        for source in decision.sources:
            publisher.layout.delete(source)
        publisher.send(
            view,
            [each for each in decision.sources if view.cache.find(each.id) is not None],
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
        )
        publisher.mark_collected(decision)
        log.note_seen(publisher.held, view.point)
        decisions += 1
        segments += len(decision.sources)
        size += sum(each.size_bytes for each in decision.sources)
    if decisions:
        prune(publisher)
    return CollectedSources(decisions, segments, size, waiting, held_back, due_ms)


def _line_of(decision: Decision, now_ms: int) -> bytes:
    at = decision.name.partition
    start, end = covered(decision.sources)
    return collection_line(
        TopicPartition(at.topic, at.partition), now_ms,
        {
            "decision": decision.id, "decided_ms": decision.decided_ms,
            "start": start, "end": end + 1,
            "segments": len(decision.sources),
            "bytes": sum(each.size_bytes for each in decision.sources),
            "outputs": len(decision.outputs),
            "output_bytes": sum(each.size_bytes for each in decision.outputs),
        },
    )  # fmt: skip


def _check_served(
    publisher: Publisher,
    segment: RemoteLogSegment,
    check: Callable[[RemoteLogSegment], None] | None,
) -> None:
    """Read what is served; FencedError or ConflictError when it is served no more meanwhile."""
    try:
        if check is None:
            check_stored(publisher.layout, segment)
        else:
            check(segment)
    except CorruptError as error:
        publisher.log.check(publisher.held)
        if publisher.look().cache.find(segment.id) != segment:
            raise ConflictError(
                "a segment was replaced or expired while it was read; collect again. "
                f"segment={encode_id(segment.id.segment_id)}",
                code="K429",
            ) from error
        raise


def _require_collectable(view: MetadataView, decision: Decision) -> list[RemoteLogSegment]:
    """Return what brokers serve in the place of a decision's sources."""
    if view.find(batch_of(decision)) is None:
        raise ConflictError(
            "the cluster has no record of a swap that it acknowledged; nothing is deleted. See "
            f"keeplast repair. id={decision.id} offset={decision.first_offset}",
            code="K430",
        )
    start, end = covered(decision.sources)
    hidden = [
        (first, last)
        for first, last in closable_holes(view.cache, view.log.start)
        if first <= end and last >= start
    ]
    if hidden:
        raise ConflictError(
            "a copy that a broker finished late hides what was compacted; nothing is deleted. The "
            "next round makes it served again (keeplast run, or keeplast clean). "
            f"id={decision.id} offsets={hidden}",
            code="K430",
        )
    standing = standing_of(view.cache, decision.sources, decision.outputs, view.log.start)
    if standing.live_sources:
        raise ConflictError(
            "brokers still serve a segment that was replaced; nothing is deleted. "
            f"id={decision.id} segment={encode_id(standing.live_sources[0].id.segment_id)}",
            code="K430",
        )
    serving: dict[RemoteLogSegmentId, RemoteLogSegment] = {}
    for each in view.cache.served():
        if each.start_offset <= end and each.end_offset >= max(start, view.log.start):
            serving[each.segment.id] = each.segment
    return list(serving.values())


OPEN = (DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING)
"""Of these something is still to be done."""


class Repaired(Struct, frozen=True):
    """How many decisions were published at last, or once more, and how many ids taken back."""

    published: int
    published_again: int
    discarded: int


@contextmanager
def repaired(publisher: Publisher, not_given_back: Callable[[Exception], None]) -> Iterator[None]:
    """End what was left undone of a claimed partition; give it back after the work that follows.

    ``not_given_back`` hears why it could not be given back: the error of the work is worth more.
    """
    try:
        repair(publisher)
        yield
    finally:
        try:
            publisher.close()
        except (CompactionError, OSError) as error:
            not_given_back(error)


def repair(publisher: Publisher, *, accepts_metadata: bool = False) -> Repaired:
    """Publish what was decided, publish again what the cluster lost, discard what is left over.

    Segments that a late batch has hidden are served again: see :meth:`.Publisher.mend`.

    ``accepts_metadata`` says that an operator has looked at a metadata topic that is not the one
    that was seen, and that it is the right one. RefusedError for marks of another compactor; when
    an output cannot be read from the store, it is a CorruptError and not published.
    """
    log, held = publisher.log, publisher.held
    published = published_again = 0
    # A topic that goes on from what was seen still has what was collected long ago.
    states = tuple(DecisionState) if accepts_metadata else OPEN
    for decision in log.decisions(held, *states):
        batch = batch_of(decision)
        view = publisher.look([batch], accepts_metadata=accepts_metadata)
        is_there = view.find(batch) is not None
        if is_there and decision.state is not DecisionState.DECIDED:
            publisher.mend(view)
            continue
        if not is_there:
            _restore(publisher, view, decision)
        if decision.state is DecisionState.COLLECTED:
            decision = log.reopen(held, decision)
        publisher.publish(decision, view)
        published += decision.state is DecisionState.DECIDED
        published_again += decision.state is not DecisionState.DECIDED
    if accepts_metadata:
        publisher.accept(publisher.look(accepts_metadata=True))
    left = _leftovers(publisher)
    publisher.discard(left)
    return Repaired(published, published_again, len(left))


def _leftovers(publisher: Publisher) -> list[OwnSegment]:
    """Return the undecided ids of earlier epochs that have left something.

    Also those that were taken back before: an overtaken process may have announced one, or written
    its objects, afterwards.
    """
    own = [
        each
        for each in publisher.log.own_segments(publisher.held)
        if each.decision_id is None and each.epoch < publisher.epoch
    ]
    if not own:
        return []
    there = {each.segment_id for each in publisher.layout.list(publisher.name.partition)}
    there |= {each.id.segment_id for each in publisher.look().cache.segments}
    return [each for each in own if not each.is_discarded or each.segment_id in there]


def _restore(publisher: Publisher, view: MetadataView, decision: Decision) -> None:
    """See that the outputs of a decision are whole, and that they were announced to the cluster."""
    unknown: list[RemoteLogSegment] = []
    for output in decision.outputs:
        if output.end_offset < view.log.start:
            continue  # The log's start has passed it: a broker has removed it, or will.
        known = view.cache.find(output.id)
        if known is None:
            unknown.append(output)
        if known is None or known.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            check_stored(publisher.layout, output)
    if unknown:
        announced = [announcement(each, decision.epoch, decision.decided_ms) for each in unknown]
        publisher.cluster.append(view.metadata_topic, view.metadata_partition, announced)
