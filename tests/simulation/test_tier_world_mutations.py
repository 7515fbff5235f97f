"""The simulation is worth something: without any one of these rules it fails, and soon.

Each case takes one rule of the tier away and names a few seeds, found by running from 0 on, of
which one at least fails; with the rule in place they pass. A change of the tier changes all runs:
when none of them fails any more, the first seeds are tried in turn, and one of those must.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.host import partition_host, replica
from keeplast.host.partition_host import PartitionHost
from keeplast.host.replica import Replica
from keeplast.log.append import LogAppender
from keeplast.model.partition import TopicPartition
from keeplast.store import store_place
from keeplast.store.store_place import TierCommit
from keeplast.survey.request import CleanRequest
from keeplast.tier.metadata import collection, fencing, schema
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.schema import segment_of
from keeplast.tier.objects import transfer
from keeplast.tier.state import partition_state
from keeplast.tier.state.partition_state import Orphan, Publication
from keeplast.tier.state.segment import SegmentState
from tests.support import tier_world_cluster
from tests.support.heard_calls import hear
from tests.support.simulated import Guard, with_any_group_ends
from tests.support.tier_world import simulate
from tests.support.tier_world_cluster import Mood, draw_mood, has_wrong_clocks

CANDIDATES_MAX = 120


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """An old leader's transactions are as good as the new one's."""
    patch.setattr(fencing, "_check_fence", lambda *args: None)
    patch.setattr(PartitionHost, "_own_state", lambda self: self.state())


def with_a_claim_that_forgets(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not take over how far the log was clean."""

    def take_over(
        publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int, *,
        epoch: int, log_start: int,
    ) -> Publication:  # fmt: skip
        return Publication(epoch, 0, {epoch: log_start})

    patch.setattr(partition_state, "take_over", take_over)


def without_ends_of_segments(patch: pytest.MonkeyPatch) -> None:
    """I-6: an output may end below its range."""

    patch.setattr(store_place, "replace", with_any_group_ends)


def without_the_state_of_producers(patch: pytest.MonkeyPatch) -> None:
    """A producer's batch that is sent again is not known again."""
    patch.setattr(LogAppender, "find_duplicate", lambda *args: None)


def with_the_checkpoint_first(patch: pytest.MonkeyPatch) -> None:
    """The first dirty offset moves before the groups of the round are committed."""
    hear(patch, TierCommit, "wave", lambda self, result, *_: self.publish(result.end_offset))


def _with_copies_up_to(patch: pytest.MonkeyPatch, bound: str) -> None:
    """Copy up to another bound; what readers are given stays."""
    copy, stable = PartitionHost.copy, Replica.last_stable_offset
    copying = set[PartitionHost]()

    def copied(self: PartitionHost) -> int:
        copying.add(self)
        try:
            return copy(self)
        finally:
            copying.discard(self)

    def end(self: PartitionHost) -> int:
        return int(getattr(self, bound) if self in copying else stable.__get__(self))

    patch.setattr(PartitionHost, "copy", copied)
    patch.setattr(PartitionHost, "last_stable_offset", property(end))


def with_copies_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What is copied need not be on every replica that counts."""
    _with_copies_up_to(patch, "log_end_offset")


def with_copies_of_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """What is copied need not be decided."""
    _with_copies_up_to(patch, "high_watermark")


def with_a_high_watermark_at_the_log_end(patch: pytest.MonkeyPatch) -> None:
    """A host that starts takes all of its log for acknowledged."""
    opened = Replica.__init__

    def init(self: Replica, *args: Any, **options: Any) -> None:
        opened(self, *args, **options)
        self._high_watermark = self.log_end_offset

    patch.setattr(Replica, "__init__", init)


def without_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps what its leader does not have."""
    patch.setattr(replica, "find_divergence", lambda own, own_end, leader, leader_end: own_end)


def without_reading_back(patch: pytest.MonkeyPatch) -> None:
    """A copy that the store has cut short is taken for whole."""
    patch.setattr(transfer, "check_object", lambda objects, key, expected: None)


def with_a_list_of_garbage_that_is_wrong(patch: pytest.MonkeyPatch) -> None:
    """Who lists what may go lists what is live."""

    def everything(self: MetadataStore, partition: TopicPartition) -> tuple[Orphan, ...]:
        with self._transactions.reading() as connection:
            rows = connection.execute(
                select(schema.SEGMENTS).where(schema.SEGMENTS.c.state != SegmentState.DELETED)
            ).mappings()
            return tuple(Orphan(segment_of(row), SegmentState(row["state"]), 0) for row in rows)

    patch.setattr(MetadataStore, "orphans", everything)


def without_the_checks_of_a_deletion(patch: pytest.MonkeyPatch) -> None:
    """What is listed goes: neither is it covered, nor does its transaction look."""
    with_a_list_of_garbage_that_is_wrong(patch)

    def start(
        self: MetadataStore, partition: TopicPartition, *, epoch: int, segment_id: str
    ) -> bool:
        with self._transactions.owned(partition, epoch) as (connection, _):
            connection.execute(
                update(schema.SEGMENTS)
                .where(schema.SEGMENTS.c.id == segment_id)
                .values(state=SegmentState.DELETING)
            )
        return True

    patch.setattr(collection, "is_covered", lambda segment, state: True)
    patch.setattr(MetadataStore, "start_delete", start)


def with_followers_that_drop_tombstones(patch: pytest.MonkeyPatch) -> None:
    """ST-23: a follower cleans as if its disk had all of the log."""

    def request(*args: Any, **options: Any) -> CleanRequest:
        return CleanRequest(*args, **{**options, "clean_elsewhere_to": None})

    patch.setattr(partition_host, "CleanRequest", request)


def with_each_hosts_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Whatever time removes, a host removes by the clock that it has."""
    patch.setattr(tier_world_cluster, "shared_time", lambda clock: None)


def _mood(seed: int) -> Mood:
    return draw_mood(random.Random(seed))


GUARDS = (
    Guard(without_fencing, (52,)),
    Guard(with_a_claim_that_forgets, (1,)),
    Guard(without_ends_of_segments, (3, 4)),
    Guard(without_the_state_of_producers, (1, 2)),
    Guard(with_the_checkpoint_first, (0, 1)),
    Guard(with_copies_above_the_high_watermark, (1, 2)),
    Guard(with_copies_of_open_transactions, (2, 3)),
    Guard(with_a_high_watermark_at_the_log_end, (2, 3)),
    Guard(without_truncation, (5,)),
    Guard(without_reading_back, (286,), lambda seed: _mood(seed).fails == 0.3),
    Guard(with_followers_that_drop_tombstones, (77, 129), lambda seed: _mood(seed).copies_lag),
    Guard(without_the_checks_of_a_deletion, (0, 1)),
    Guard(with_each_hosts_own_clock, (82, *filter(has_wrong_clocks, range(100)))),
)


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_a_guard_that_is_gone_is_missed(engine: Engine, guard: Guard) -> None:
    guard.check_missed(simulate, engine, CANDIDATES_MAX)


def test_a_list_of_garbage_that_is_wrong_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """It takes the checks of a deletion away to be missed: see above."""
    with_a_list_of_garbage_that_is_wrong(monkeypatch)
    assert simulate(0, engine).collections > 0
