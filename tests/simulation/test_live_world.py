"""A short set of simulated live clusters; ``make simulate`` runs as many as one likes.

And the simulation is worth something: without one of these guards it fails. Each case names a few
seeds, found by running from 0 on, of which one at least fails without it; with the guard in place
that one passes, which is looked at each time: a seed that fails anyway proves nothing. A change of
the product changes all runs: when none of them fails any more, the first seeds are tried in turn,
and one of those must.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from keeplast.attach.held import publication
from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.outputs import OutputFacts
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import Publisher
from keeplast.attach.rounds import attached_place
from keeplast.attach.rounds import round as round_module
from keeplast.attach.rules import tombstone_removal
from keeplast.attach.rules.swap import Batch, Standing, Swap, batch_of
from keeplast.attach.rules.tombstone_removal import expires_below
from keeplast.attach.upkeep import replaced_segments
from keeplast.cluster.live_cluster import OffsetRange, TopicFacts
from keeplast.errors import CommitUnknownError
from keeplast.format.remote_log_metadata import RemoteLogEvent, encode
from keeplast.model.partition import INT64_MAX
from keeplast.tier.state.attached import Attached, Decision
from tests.support import live_world
from tests.support.attached_world import START_MS, moved
from tests.support.heard_calls import hear
from tests.support.live_world import World, simulate
from tests.support.live_world_brokers import Brokers
from tests.support.live_world_fold import CF, DF, DS, MetadataTopic
from tests.support.live_world_mood import LiveTally, draw_mood
from tests.support.live_world_objects import RemoteTier
from tests.support.live_world_ports import HostCluster
from tests.support.manual_clock import ManualClock
from tests.support.remote_segments import remote_segment
from tests.support.simulated import Guard, with_any_group_ends
from tests.support.turns import Turn

SEEDS = 40
CANDIDATES_MAX = 150


def test_in_every_run_readers_get_the_acknowledged_records(engine: Engine, turn: Turn) -> None:
    """AT-2, AT-3, AT-4, AT-5, AT-6, AT-7, AT-9, AT-11, AT-12, AT-13, AT-17, AT-25, AT-26, AT-29,
    AT-30, AT-31, R1, R2, R-4, R-5, P13, P17."""
    total, seeds = LiveTally(), turn.seeds(SEEDS, 20)
    for seed in seeds:
        total.add(simulate(seed, engine))
    print(f"\n{total}")
    assert total.runs == len(seeds) > 0
    assert min(total.swaps, total.collected) > 0
    # What is rare does not come up in every share.
    assert min(total.deaths, total.sleeps, total.faults) > 0 or len(seeds) < SEEDS


def test_there_are_no_writes_while_keeplast_works_on_a_long_log(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 363, which did not end: rounds that take longer the more is written meanwhile."""
    meanwhile: list[bool] = []
    hear(monkeypatch, World, "_write", lambda self: meanwhile.append(self._is_meanwhile))
    simulate(2, engine)
    assert any(meanwhile)
    meanwhile.clear()
    monkeypatch.setattr(live_world, "RECORDS_MAX", 0)
    simulate(2, engine)
    assert meanwhile
    assert not any(meanwhile)


def test_a_left_over_copy_is_waited_for_before_all_is_said_to_be_clean(engine: Engine) -> None:
    """Seed 415: a leader announced a copy over what was merged, and never finished it."""
    assert 1 == simulate(415, engine).runs


def test_brokers_delete_all_that_the_log_start_has_passed_before_the_end_is_judged() -> None:
    """Seed 1048: a broker had begun to, and healing was over."""
    dice = random.Random(1)
    tier = RemoteTier(noted=lambda verb: None)
    brokers = Brokers(tier, ManualClock(START_MS), dice, draw_mood(dice, 1), Counter())
    while len(brokers.finished) < 60:
        brokers.produce()
        brokers.roll()
        brokers.copy_all()
    brokers.cut(brokers.log.end)
    assert 60 == len(tier.segments)
    brokers.expire_all()
    assert ({}, {}, []) == (brokers.leader.seen.known, tier.segments, brokers.leader.deleting)


def test_only_a_batch_that_ends_with_what_keeps_a_copy_served_is_read_whole() -> None:
    """Seed 1013; what others do is in property/test_swap_prefixes.py."""
    copy = remote_segment(size_bytes=1)
    cases = [
        ([CF], False), ([CF, DS], False), ([DS, DF], False), ([CF, CF], False), ([CF, DS, CF], True)
    ]  # fmt: skip
    for states, expected in cases:
        topic = MetadataTopic()
        topic.append([encode(moved(copy, state)) for state in states], START_MS)
        assert [expected] * len(states) == topic.closes, states


def without_audit(patch: pytest.MonkeyPatch) -> None:
    """What was sent is taken for what brokers have, by everybody, and is not looked at again."""
    sent: set[tuple[bytes, ...]] = set()
    find = MetadataView.find

    def trust(cluster: Any, view: MetadataView, batches: Sequence[Batch]) -> None:
        sent.update(batch.values for batch in batches)

    def found(self: MetadataView, batch: Batch) -> OffsetRange | None:
        place = OffsetRange(self.end.offset, self.end.offset + len(batch.values))
        return place if batch.values in sent else find(self, batch)

    patch.setattr(publication, "look_further", trust)
    patch.setattr(MetadataView, "find", found)
    patch.setattr(publication, "standing_of", lambda *args: Standing(None, (), ()))
    patch.setattr(replaced_segments, "_require_collectable", lambda view, decision: [])


def without_a_single_batch(patch: pytest.MonkeyPatch) -> None:
    """A swap is sent record by record, and each of them may get lost by itself."""
    append = HostCluster.append

    def apart(
        self: HostCluster, metadata_topic: TopicFacts, partition: int,
        events: Sequence[RemoteLogEvent],
    ) -> OffsetRange:  # fmt: skip
        start = self.read_end(partition).offset
        lost: CommitUnknownError | None = None
        for each in events:
            try:
                append(self, metadata_topic, partition, [each])
            except CommitUnknownError as error:
                lost = error
        if lost is not None:
            raise lost
        return OffsetRange(start, start + len(events))

    patch.setattr(HostCluster, "append", apart)


def without_a_closing_batch(patch: pytest.MonkeyPatch) -> None:
    """C7: an output may end below its range."""

    patch.setattr(attached_place, "replace", with_any_group_ends)


def without_a_grace(patch: pytest.MonkeyPatch) -> None:
    """What was replaced goes at once."""
    patch.setattr(live_world, "GRACE_MS", 0)


def with_the_publication_first(patch: pytest.MonkeyPatch) -> None:
    """A swap is written down when brokers have heard of it."""
    decide_and_publish = Publisher.decide_and_publish

    def publish_first(self: Publisher, swap: Swap) -> Decision:
        log, publisher = self.log, self

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

            def decide(self, held: Attached, decision: Decision, *more: Any) -> None:
                view = publisher.look()
                publisher.cluster.append(
                    view.metadata_topic, view.metadata_partition, batch_of(decision).events
                )
                log.decide(held, decision, *more)

        late: Any = Late()
        self.log = late
        try:
            return decide_and_publish(self, swap)
        finally:
            self.log = log

    patch.setattr(Publisher, "decide_and_publish", publish_first)


def without_the_owner_object(patch: pytest.MonkeyPatch) -> None:
    """AT-30: two decision logs share no fence."""
    for name in ("probe", "read", "take", "check"):
        patch.setattr(OwnerObject, name, lambda self, *args: None)


def with_every_aborted_transaction(patch: pytest.MonkeyPatch) -> None:
    """I-11: an index keeps entries whose markers are gone."""
    patch.setattr(OutputFacts, "has_marker", lambda self, offset: True)


def without_a_look_below_the_sources(patch: pytest.MonkeyPatch) -> None:
    """Tombstones go though what the log start has cut is still read."""

    def blind(*args: Any, **named: Any) -> int | None:
        return expires_below(*args, **{**named, "log_start": INT64_MAX})

    patch.setattr(round_module, "expires_below", blind)


def without_waiting_for_earlier_rounds(patch: pytest.MonkeyPatch) -> None:
    """Tombstones go though what they delete is not collected, or was read a moment ago."""
    patch.setattr(tombstone_removal, "is_settled", lambda decision, terms, now_ms: True)


GUARDS = (
    Guard(without_audit, (2,)),
    Guard(without_a_single_batch, (7,)),
    Guard(without_a_closing_batch, (0, 2)),
    Guard(without_a_grace, (1, 2)),
    Guard(with_the_publication_first, (6,)),
    Guard(without_the_owner_object, (10, 4)),
    Guard(with_every_aborted_transaction, (86,)),
    Guard(without_a_look_below_the_sources, (78, 61)),
    Guard(without_waiting_for_earlier_rounds, (1512,)),
)


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_a_guard_that_is_gone_is_missed(engine: Engine, guard: Guard) -> None:
    guard.check_missed(simulate, engine, CANDIDATES_MAX)
