"""Ends what a crash, or a cluster that lost something, left undone on an attached partition.

The rule: **what was decided is published, what was not is taken back**, and nothing else is done.
Whoever claims a partition does this before anything of his own. Source: tiering.md section 8.2,
step 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.stored_segment import check_stored
from keeplast.attach.rules.batch import announcement, batch_of
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.tier.state.attached import Decision, DecisionState, OwnSegment

OPEN = (DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING)
"""Of these something is still to be done."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many decisions were published at last, or once more, and how many ids taken back."""

    published: int
    published_again: int
    discarded: int


def repair(publisher: Publisher, *, accepts_metadata: bool = False) -> Repaired:
    """Publish what was decided, publish again what the cluster lost, discard what is left over.

    What a batch that came late has hidden is served again: see :meth:`.Publisher.mend`.

    ``accepts_metadata`` says that somebody has looked at a metadata topic that is not the one that
    was seen, and that it is the right one. RefusedError for marks of another compactor; when an
    output cannot be read from the store, it is a CorruptError and not published.
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
    """Return the ids of earlier epochs of which nothing was decided, and something is left.

    Also those that were taken back before: who was overtaken may have announced one, or written
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
    """See that the outputs of a decision are whole, and that the cluster was told of them."""
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
