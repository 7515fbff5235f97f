"""KIP-1272, "Persisting cleaner-offset-checkpoint to remote storage": its table, line by line.

The KIP's columns are events of broker A (leader epoch 0) and broker B (leader epoch 1), and what is
then published. ``{LE-0: CO-100, LE-1: CO-155}`` is ``{0: 100, 1: 155}`` here. What a segment
carries is what the table calls its *RL Metadata*. The rule alone, of any set of publications in
every order, is in ``test_vector.py``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest

from keeplast.errors import ConflictError, FencedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.state.partition_state import PartitionState, find_vector
from keeplast.tier.state.segment import RemoteSegment, SegmentKind
from tests.support.metadata_contract import LINEAGE, PARTITION, Opened, new_id, segment
from tests.support.store_world import COMPACTED, StoreWorld

B_LINEAGE = (LeaderEpoch(0, 0), LeaderEpoch(1, 120))


def vector(opened: Opened) -> dict[int, int]:
    state = opened.state()
    return find_vector(state.publications, state.lineage, state.remote_end)


def carried(opened: Opened, made: RemoteSegment) -> dict[int, int]:
    return dict(opened.state().segments[made.segment_id].cleaner_offsets)


def test_kip_1272_vector_table(opened: Opened) -> None:
    # "Initial cleaner offset map: {LE-0:}"
    assert {0: 0} == vector(opened)
    # "A finishes one compaction": publishes Seg-0 with {LE-0 -> CO-100}.
    source = segment(0, 119)
    opened.copy(source)
    seg_0 = segment(0, 119, kind=SegmentKind.CLEANED)
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=0, sources=[source.segment_id], outputs=[seg_0], grace_ms=0
    )
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100, outputs=[seg_0.segment_id])
    assert {0: 100} == vector(opened)
    assert {0: 100} == carried(opened, seg_0)
    # "A becomes unresponsive and B becomes leader": {LE-0 -> CO-100, LE-1 ->}; here the claim is
    # published, with what B inherits, before B cleans anything.
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=B_LINEAGE, log_end=160)
    assert {0: 100, 1: 100} == vector(opened)
    # "B finishes one compaction": Seg-2 with {LE-0 -> CO-100, LE-1 -> CO-155}.
    appended = segment(120, 159, epoch=1)
    opened.store.commit_copy(PARTITION, new_id(), epoch=1, segment=appended, lineage=B_LINEAGE)
    seg_2 = segment(0, 119, kind=SegmentKind.CLEANED)
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=1, sources=[seg_0.segment_id], outputs=[seg_2], grace_ms=0
    )
    opened.store.publish(PARTITION, new_id(), epoch=1, cleaned_to=155, outputs=[seg_2.segment_id])
    assert {0: 100, 1: 155} == vector(opened)
    assert {0: 100, 1: 155} == carried(opened, seg_2)
    # "A becomes live and uploads its pending compaction": Seg-1 with {LE-0 -> CO-123}.
    before = opened.state()
    seg_1 = segment(0, 119, kind=SegmentKind.CLEANED)
    with pytest.raises(FencedError):
        opened.store.commit_swap(
            PARTITION, new_id(), epoch=0, sources=[seg_0.segment_id], outputs=[seg_1], grace_ms=0
        )
    with pytest.raises(FencedError):
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=123)
    assert before == opened.state()
    # "Future reads": Seg-2, {LE-0 -> CO-100, LE-1 -> CO-155}.
    assert seg_2.segment_id == opened.state().routes[0].segment_id
    assert {0: 100, 1: 155} == vector(opened)


TABLE_LINEAGE = (LeaderEpoch(0, 0), LeaderEpoch(1, 130))
"""Epoch 0 ends behind all that A says."""


@dataclass
class Table:
    """The table's events as they arrive at the store; an event that it refuses changes nothing.

    Who compacts replaces the segment that it knows of: A what it left itself, B what it found.
    """

    opened: Opened
    known_to_a: RemoteSegment
    accepted: dict[str, RemoteSegment] = field(default_factory=dict)

    def arrive(self, event: str) -> None:
        before = self.opened.state()
        try:
            if event == "B leads":
                self._lead()
            else:
                self._compact(event, *EVENTS[event])
        except (FencedError, ConflictError):
            assert before == self.opened.state()

    def _lead(self) -> None:
        store = self.opened.store
        store.take_over(PARTITION, epoch=1, owner="b", lineage=TABLE_LINEAGE, log_end=160)
        store.commit_copy(
            PARTITION, new_id(), epoch=1, segment=segment(130, 159, epoch=1), lineage=TABLE_LINEAGE
        )

    def _compact(self, event: str, epoch: int, cleaned_to: int) -> None:
        store, state = self.opened.store, self.opened.state()
        known = self.known_to_a.segment_id if epoch == 0 else state.routes[0].segment_id
        made = segment(0, 129, kind=SegmentKind.CLEANED)
        store.commit_swap(
            PARTITION, new_id(), epoch=epoch, sources=[known], outputs=[made], grace_ms=0
        )
        store.publish(
            PARTITION, new_id(), epoch=epoch, cleaned_to=cleaned_to, outputs=[made.segment_id]
        )
        self.accepted[event] = made
        if epoch == 0:
            self.known_to_a = made


EVENTS = {"A: seg-0": (0, 100), "B: seg-2": (1, 155), "A: seg-1": (0, 123)}
ORDERS = [
    order
    for order in itertools.permutations([*EVENTS, "B leads"])
    if order.index("A: seg-0") < order.index("A: seg-1")
]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_kip_1272_vector_table_in_every_order_of_arrival(
    opened: Opened, order: tuple[str, ...]
) -> None:
    """ "The cache validation rejects Seg-1 regardless of arrival order." """
    source = segment(0, 129)
    opened.copy(source)
    table = Table(opened, source)
    for event in order:
        table.arrive(event)
    led = order.index("B leads")
    before = [EVENTS[event][1] for event in order[:led] if event.startswith("A")]
    found_by_b = max(before, default=0)
    is_compacted_by_b = order.index("B: seg-2") > led
    expected = {0: found_by_b, 1: 155 if is_compacted_by_b else found_by_b}
    assert expected == vector(opened)
    # What a zombie uploads is live nowhere, and carries nothing.
    late = {event for event in order[led:] if event.startswith("A")}
    early = set() if is_compacted_by_b else {"B: seg-2"}
    assert set(EVENTS) - late - early == set(table.accepted)
    # "The latest segment provides the checkpoint values": also to the next leader.
    if table.accepted:
        newest = list(table.accepted.values())[-1]
        assert newest.segment_id == opened.state().routes[0].segment_id
        its = carried(opened, newest)
        assert its == (expected if is_compacted_by_b else {0: found_by_b})
        state = opened.store.take_over(
            PARTITION, epoch=2, owner="c", lineage=TABLE_LINEAGE, log_end=160
        )
        assert its[max(its)] == state.first_dirty()
        assert expected | {2: its[max(its)]} == dict(state.publications[-1].offsets)


def latest(state: PartitionState) -> dict[int, int]:
    """Return what the live segment that was published last carries."""
    live = [state.segments[route.segment_id] for route in state.routes]
    return dict(max(live, key=lambda each: sum(each.cleaner_offsets.values())).cleaner_offsets)


@pytest.mark.parametrize("arrives", ["before B leads", "before B compacts", "after B compacted"])
def test_kip_1272_vector_of_rounds_is_read_back_by_the_next_leader(
    tmp_path: Path, arrives: str
) -> None:
    """Rounds of two hosts over one log: A's second one has uploaded all, and is frozen."""
    world = StoreWorld(tmp_path)
    partition = world.log(0, 3)
    with world.open("a") as a, world.open("b") as b:
        a.own(partition, takes_over=True)
        a.clean(partition, force=True)
        state = a.state(partition)
        assert {0: 15} == latest(state)
        assert all({0: 15} == dict(each.cleaner_offsets) for each in state.segments.values())
        for _ in range(3):
            world.fill(0)
        a.import_directory(partition, world.logs[0].directory, COMPACTED)
        assert {0: 15} == latest(a.state(partition))

        def lead() -> None:
            carried_to_b = latest(b.state(partition))
            claim = b.own(partition, takes_over=True).publications[-1]
            assert carried_to_b | {1: carried_to_b[0]} == dict(claim.offsets)

        def compact() -> None:
            b.clean(partition, force=True)

        def frozen(line: bytes) -> bytes:
            if arrives != "before B leads":
                lead()
            if arrives == "after B compacted":
                compact()
            return line

        if arrives == "before B leads":
            a.clean(partition, force=True, receipt=frozen)
            assert {0: 30} == latest(a.state(partition))
            lead()
        else:
            with pytest.raises(FencedError):
                a.clean(partition, force=True, receipt=frozen)
        found = 30 if arrives == "before B leads" else 15
        if arrives != "after B compacted":
            assert {0: found} == latest(b.state(partition))
            compact()
        state = b.state(partition)
        assert {0: found, 1: 30} == find_vector(state.publications, state.lineage, 30)
        assert 30 == state.first_dirty()
        if arrives != "before B leads":
            assert {0: 15, 1: 30} == latest(state)
        assert () == b.verify(partition)


def test_kip_1272_vector_of_a_round_that_did_not_end_is_the_one_before(tmp_path: Path) -> None:
    """Its outputs are live, and the log is not clean as far as it went."""
    world = StoreWorld(tmp_path)
    partition = world.log(0, 3)
    with world.open("a") as a, pytest.MonkeyPatch.context() as patch:
        a.own(partition, takes_over=True)
        patch.setattr(
            "keeplast.store.store_place.TierCommit.publish", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            a.clean(partition, force=True)
        assert {0: 0} == latest(a.state(partition))
        assert 0 == a.state(partition).first_dirty()
        patch.undo()
        a.clean(partition, force=True)
        assert {0: 15} == latest(a.state(partition))


def test_kip_1272_vector_goes_back_with_what_is_put_back(tmp_path: Path) -> None:
    """What was copied behind a round carried it, and is live still when the round is undone."""
    world = StoreWorld(tmp_path)
    partition = world.log(0, 3, {"undo.retention.ms": "86400000"})
    with world.open("a") as a:
        a.own(partition, takes_over=True)
        a.clean(partition, force=True)
        world.fill(0)
        a.import_directory(
            partition, world.logs[0].directory,
            COMPACTED | {"undo.retention.ms": "86400000"},
        )  # fmt: skip
        assert {0: 15} == latest(a.state(partition))
        a.undo.put_back(partition, grace_ms=0)
        state = a.state(partition)
        assert 0 == state.first_dirty()
        assert {0: 0} == latest(state)


def test_kip_1272_vector_of_every_uploaded_segment_is_in_its_row(opened: Opened) -> None:
    """ "The leader broker will publish out this list of cleanerOffsets for each log segment." """
    made = segment(0, 9)
    opened.copy(made)
    assert {0: 0} == dict(opened.state().segments[made.segment_id].cleaner_offsets)


def test_kip_1272_vector_new_leader_asks_for_the_previous_epoch(opened: Opened) -> None:
    """ "It will look at the previous leaderEpoch and ask for the cleanerOffset for that epoch." """
    opened.copy(segment(0, 119))
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100)
    state = opened.store.take_over(PARTITION, epoch=7, owner="b", lineage=LINEAGE, log_end=120)
    assert 100 == state.first_dirty()
