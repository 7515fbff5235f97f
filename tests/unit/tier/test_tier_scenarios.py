"""Scenarios (ST-*) that a metadata store decides alone; others are where hosts and rounds are."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import ConflictError, FencedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.metadata.collection import is_covered
from keeplast.tier.objects.object_store import object_key
from keeplast.tier.state.partition_state import Publication, checkpoint, find_vector
from keeplast.tier.state.segment import RemoteSegment, SegmentKind
from tests.support.metadata_contract import (
    GRACE_MS,
    LINEAGE,
    PARTITION,
    TOPIC_ID,
    Opened,
    new_id,
    segment,
)
from tests.support.partition_maker import COMPACT, DAY_MS, one, write_partition
from tests.support.remote_log import RemoteLog


def cleaned(base: int, last: int) -> RemoteSegment:
    return segment(base, last, kind=SegmentKind.CLEANED)


def swap(
    opened: Opened, sources: list[RemoteSegment], output: RemoteSegment, *, epoch: int
) -> None:
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=epoch, sources=[s.segment_id for s in sources],
        outputs=[output], grace_ms=GRACE_MS,
    )  # fmt: skip


def test_st_2_late_commit_that_claims_exactly_the_limit_is_never_read(opened: Opened) -> None:
    """Its claim changes no vector; its objects are there; its segment is not read."""
    known = [Publication(0, 1, {0: 100}), Publication(1, 0, {0: 100, 1: 100})]
    late = Publication(0, 2, {0: 100})
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(1, 120))
    assert {0: 100, 1: 100} == find_vector([*known, late], lineage, 200)
    source = segment(0, 99)
    opened.copy(source)
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100)
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=100)
    before = opened.state()
    with pytest.raises(FencedError):
        swap(opened, [source], cleaned(0, 99), epoch=0)
    with pytest.raises(FencedError):
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100)
    assert before == opened.state()


@pytest.mark.parametrize("is_before", [True, False])
def test_st_3_commit_before_the_claim_counts_and_after_it_is_fenced(
    opened: Opened, is_before: bool
) -> None:
    opened.copy(segment(0, 99))
    if is_before:
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=60)
    state = opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=100)
    if not is_before:
        with pytest.raises(FencedError):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=60)
    found = 60 if is_before else 0
    assert {0: found, 1: found} == dict(state.publications[-1].offsets)
    assert found == opened.state().first_dirty()


def test_st_5_leader_that_returns_is_fenced_by_its_old_epoch(opened: Opened) -> None:
    """A leads, B leads, A leads again: what A began the first time is another leader's."""
    source = segment(0, 9)
    opened.copy(source)
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=10)
    opened.store.take_over(PARTITION, epoch=2, owner="a", lineage=LINEAGE, log_end=10)
    with pytest.raises(FencedError):
        swap(opened, [source], cleaned(0, 9), epoch=0)
    swap(opened, [source], cleaned(0, 9), epoch=2)


def test_st_6_source_is_kept_while_its_replacement_is_outside_of_the_lineage(
    opened: Opened,
) -> None:
    """A new leader whose log ends inside the output: what it may be rebuilt from is not deleted."""
    first, second = segment(0, 9), segment(10, 19)
    opened.copy(first)
    opened.copy(second)
    output = cleaned(0, 19)
    swap(opened, [first, second], output, epoch=0)
    opened.clock.advance(GRACE_MS)
    assert all(is_covered(o.segment, opened.state()) for o in opened.store.orphans(PARTITION))
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(1, 15))
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=lineage, log_end=15)
    covered = {
        o.segment.segment_id: is_covered(o.segment, opened.state())
        for o in opened.store.orphans(PARTITION)
    }
    # The second left the lineage too, and can never be read again.
    assert {first.segment_id: False, second.segment_id: True} == covered


def test_st_7_copy_outside_of_a_swap_does_not_disturb_it_and_one_inside_refuses_it(
    opened: Opened,
) -> None:
    sources = [segment(0, 9), segment(10, 19)]
    for each in sources:
        opened.copy(each)
    opened.copy(segment(20, 29))  # Between the selection and the decision.
    swap(opened, sources, cleaned(0, 19), epoch=0)
    before = opened.state()
    with pytest.raises(ConflictError):
        swap(opened, sources, cleaned(0, 19), epoch=0)
    assert before.routes == opened.state().routes
    assert 30 == opened.state().remote_end


def test_st_20_copy_of_an_old_leader_leaves_the_remote_end_where_it_is(opened: Opened) -> None:
    opened.copy(segment(0, 9))
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=10)
    with pytest.raises(FencedError):
        opened.copy(segment(10, 19))
    assert 10 == opened.state().remote_end


def test_st_22_clock_that_jumps_back_delays_removal_and_weakens_no_fence(opened: Opened) -> None:
    source = segment(0, 9)
    opened.copy(source)
    swap(opened, [source], cleaned(0, 9), epoch=0)
    opened.clock.advance(-DAY_MS)
    assert not opened.store.start_delete(PARTITION, epoch=0, segment_id=source.segment_id)
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=10)
    with pytest.raises(FencedError):
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
    opened.clock.advance(DAY_MS + GRACE_MS)
    with pytest.raises(FencedError):
        opened.store.start_delete(PARTITION, epoch=0, segment_id=source.segment_id)
    assert opened.store.start_delete(PARTITION, epoch=1, segment_id=source.segment_id)


def test_st_22_tombstone_outlives_a_clock_that_jumps_back(tmp_path: Path) -> None:
    segments = {0: one(0, b"k", b"1", 0), 1: one(1, b"k", None, 0)}
    log = RemoteLog(tmp_path, write_partition(tmp_path / "data", segments), COMPACT)
    log.clean()
    log.clock.advance(-10 * DAY_MS)
    segments[2] = one(2, b"other", b"v", 0)
    directory = write_partition(tmp_path / "more", segments)
    log.tiered.import_directory(log.state.partition, directory, {}, progressed=lambda count: None)
    log.clean()
    assert {1, 2} == set(log.records())
    log.store.close()


def test_i_14_every_offset_is_served_by_a_live_segment_whatever_is_committed(
    opened: Opened,
) -> None:
    made = [segment(n * 10, n * 10 + 9) for n in range(4)]
    for each in made:
        opened.copy(each)
        check_served(opened)
    swap(opened, made[:2], cleaned(0, 19), epoch=0)
    check_served(opened)
    swap(opened, made[2:], cleaned(20, 39), epoch=0)
    check_served(opened)
    gone = opened.state().routes[0].segment_id
    opened.store.commit_expiry(
        PARTITION, new_id(), epoch=0, log_start=20, segments=[gone], grace_ms=0
    )
    check_served(opened)


def check_served(opened: Opened) -> None:
    state = opened.state()
    for offset in range(state.log_start, state.remote_end):
        (route,) = [r for r in state.routes if r.base_offset <= offset <= r.last_offset]
        assert route.segment_id in state.segments


def test_i_21_size_is_the_sum_after_every_change(opened: Opened) -> None:
    made = [segment(n * 10, n * 10 + 9) for n in range(3)]
    for each in made:
        opened.copy(each)
        assert opened.state().remote_bytes == opened.state().effective_bytes()
    swap(opened, made[:2], replace(cleaned(0, 19), size_bytes=70), epoch=0)
    assert 170 == opened.state().remote_bytes == opened.state().effective_bytes()


def test_objects_of_two_attempts_never_share_a_key() -> None:
    """I-9: an object's key holds the id of its segment, and an id is used once."""
    keys = {object_key(PARTITION, TOPIC_ID, new_id(), 0, ".log") for _ in range(100)}
    assert 100 == len(keys)
    assert checkpoint((), (), 0) is None
