"""Which decisions of a partition nobody needs any more: the decision log stays bounded.

The rule: **what explains anything that the metadata topic still has, stays**. A decision goes when
its sources were collected long ago, and the topic's fold has none of its segments: a later swap, or
the log start, took the place of its outputs. Who reads old ones needs no more than that: what is
clean is told by outputs that are there, a day's caps look back for a day, tombstones wait for no
more than that (:mod:`keeplast.attach.rules.removal`), and ``attach repair
--accept-metadata`` can publish again what a metadata topic lost that was put back to an earlier
time, as long as that is not longer ago than :data:`DECISIONS_KEPT_MS`.
"""

from __future__ import annotations

from keeplast.attach.held.publication import Publisher
from keeplast.attach.rules.removal import REMEMBERED_MS
from keeplast.tier.state.attached import DecisionState

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
