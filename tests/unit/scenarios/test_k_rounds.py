"""Rounds where versions rank: clean winners, tombstones, full maps, crashes, switches (8.8)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.record import Record
from keeplast.model.topic_config import CleanerConfig, Strategy, TopicConfig
from keeplast.survey.request import PartitionRequest, key_capacity
from tests.support import legacy_sets
from tests.support.log_builder import record_of, text
from tests.support.scenario_log import PARTITION, ScenarioLog
from tests.support.versioned_log import (
    BY_HEADER,
    BY_TIMESTAMP,
    SINGLE_SEGMENT_BYTES,
    deletion,
    left,
    offsets_left,
    versioned,
    write,
)
from tests.unit.scenarios.conftest import MakeLog

A, B, Z = b"a", b"b", b"z"
APART = replace(BY_HEADER, segment_bytes=SINGLE_SEGMENT_BYTES)
ONE_KEY = 2
"""Slots of a map of which one is usable."""


@pytest.fixture
def log(make_log: MakeLog) -> ScenarioLog:
    """Return a log that ranks by the header ``ver`` and makes a group of each segment."""
    return make_log(APART)


def expire(log: ScenarioLog) -> None:
    """Let every horizon that is set pass."""
    log.now_ms += log.topic.delete_retention_ms + 1


def next_round(log: ScenarioLog, number: int) -> None:
    """Append a record of a new key, so that there is something to clean, and clean."""
    write(log, versioned(text(number), 0))
    log.clean()


def test_k15_a_clean_record_wins_against_a_dirty_one(log: ScenarioLog) -> None:
    write(log, versioned(A, 9))
    log.clean()
    write(log, versioned(A, 5), at=10)
    log.clean()
    assert [0] == offsets_left(log)
    assert 11 == log.last_offsets[-1] + 1


def test_k16_a_crash_between_the_groups_of_winner_and_loser_changes_nothing(
    log: ScenarioLog,
) -> None:
    write(log, versioned(A, 9))
    log.clean()
    write(log, versioned(A, 5), at=10)
    write(log, versioned(Z, 1))
    result = log.clean_first_wave(wave_bytes_max=1, first_dirty=1)
    assert result.carry is not None
    assert [0, 10, 11] == offsets_left(log)
    log.clean()
    assert [0, 11] == offsets_left(log)


def test_k16_and_none_when_the_winner_is_the_dirty_one(log: ScenarioLog) -> None:
    write(log, versioned(A, 5))
    log.clean()
    write(log, versioned(A, 9), at=10)
    log.clean_first_wave(wave_bytes_max=1, first_dirty=1)
    assert [10] == offsets_left(log)
    log.clean()
    assert [10] == offsets_left(log)


def test_k17_a_loser_at_the_log_end_leaves_an_empty_batch(log: ScenarioLog) -> None:
    write(log, versioned(A, 9), versioned(A, 5))
    log.clean()
    assert [0] == offsets_left(log)
    assert [0, 1] == log.last_offsets


def test_k18_of_an_old_format_the_losing_record_itself_stays(make_log: MakeLog) -> None:
    """There are no empty batches before magic 2: differences.md (b)."""
    log = make_log(BY_TIMESTAMP)
    log.add(legacy_sets.encode_message_set([Record(0, 9, A, b"v")], magic=1))
    log.add(legacy_sets.encode_message_set([Record(1, 5, A, b"v")], magic=1))
    log.roll()
    log.clean()
    assert [0, 1] == offsets_left(log)
    # With the next update of the key the loser goes.
    write(log, record_of(A, timestamp_ms=7), record_of(Z, timestamp_ms=1))
    log.clean()
    assert [0, 3] == offsets_left(log)


def test_k19_a_winning_tombstone_goes_after_its_horizon(log: ScenarioLog) -> None:
    write(log, versioned(A, 1), deletion(A, 2), versioned(Z, 1))
    log.clean()
    assert [(1, True), (2, False)] == left(log)
    expire(log)
    next_round(log, 1)
    assert [(2, False), (3, False)] == left(log)


def test_k20_k21_a_losing_tombstone_goes_at_once_wherever_the_winner_lies(
    log: ScenarioLog,
) -> None:
    write(log, versioned(A, 5), deletion(A, 3))
    log.clean()
    assert [(0, False)] == left(log)
    write(log, deletion(A, 4), versioned(Z, 1))
    log.clean()
    assert [(0, False), (3, False)] == left(log)


def test_k24_a_clean_tombstone_holds_down_a_late_record(log: ScenarioLog) -> None:
    write(log, deletion(A, 5))
    log.clean()
    write(log, versioned(A, 4), at=10)
    log.clean()
    assert [(0, True)] == left(log)


def test_k25_a_record_later_than_the_removal_of_its_tombstone_comes_back(
    log: ScenarioLog,
) -> None:
    write(log, deletion(A, 5))
    log.clean()
    expire(log)
    next_round(log, 1)
    assert [(1, False)] == left(log)
    write(log, versioned(A, 4))
    log.clean()
    assert [(1, False), (2, False)] == left(log)


def test_k25_with_versioned_tombstones_kept_it_cannot(make_log: MakeLog) -> None:
    log = make_log(replace(APART, keep_versioned_tombstones=True))
    write(log, deletion(A, 5), deletion(B))
    log.clean()
    expire(log)
    next_round(log, 1)
    assert [(0, True), (2, False)] == left(log)
    write(log, versioned(A, 4))
    log.clean()
    assert [(0, True), (2, False)] == left(log)


def expired_tombstone_and_late_record(log: ScenarioLog) -> None:
    write(log, deletion(A, 5))
    log.clean()
    expire(log)
    write(log, versioned(A, 4), versioned(Z, 1), at=10)


def test_k26_an_expired_tombstone_stays_while_a_dirty_record_has_its_key(
    log: ScenarioLog,
) -> None:
    expired_tombstone_and_late_record(log)
    log.clean()
    assert [(0, True), (11, False)] == left(log)
    next_round(log, 1)
    assert [(11, False), (12, False)] == left(log)


def test_k27_a_crash_after_the_tombstones_group_does_not_bring_the_key_back(
    log: ScenarioLog,
) -> None:
    expired_tombstone_and_late_record(log)
    log.clean_first_wave(wave_bytes_max=1, first_dirty=1)
    assert (0, True) in left(log)
    log.clean()
    assert [(0, True), (11, False)] == left(log)


def test_k28_a_late_record_in_the_active_segment_arrives_too_late(log: ScenarioLog) -> None:
    write(log, deletion(A, 5))
    log.clean()
    expire(log)
    write(log, versioned(Z, 1))
    log.append(versioned(A, 4))
    log.clean()
    assert [(1, False), (2, False)] == left(log)
    log.roll()
    log.clean()
    assert [(1, False), (2, False)] == left(log)


def test_k28_is_avoided_when_the_segment_closes_before_the_tombstone_expires(
    log: ScenarioLog,
) -> None:
    write(log, deletion(A, 5))
    log.clean()
    log.append(versioned(A, 4))
    log.roll()
    expire(log)
    log.clean()
    next_round(log, 1)
    assert [(2, False)] == left(log)


def test_k29_switched_to_header_what_the_offset_has_lost_stays_lost(log: ScenarioLog) -> None:
    by_offset = replace(APART, strategy=Strategy.OFFSET, strategy_header=None)
    write(log, versioned(A, 9), versioned(A), at=1)
    log.clean(topic=by_offset)
    assert [2] == offsets_left(log)
    write(log, versioned(A, 2), at=10)
    log.clean()
    assert [10] == offsets_left(log)


def test_k30_switched_to_offset_the_last_record_wins_whatever_its_version(
    log: ScenarioLog,
) -> None:
    write(log, versioned(A, 9))
    log.clean()
    write(log, versioned(A, 5), at=10)
    log.clean(topic=replace(APART, strategy=Strategy.OFFSET))
    assert [10] == offsets_left(log)


def test_the_upgrade_path_of_the_kip_loses_no_newest_version(log: ScenarioLog) -> None:
    """Producers first, then the topic; to leave, the topic first, then the producers."""
    by_offset = replace(APART, strategy=Strategy.OFFSET, strategy_header=None)
    write(log, versioned(A), versioned(B))
    log.clean(topic=by_offset)
    # Producers send versions now; so far in order.
    write(log, versioned(A, 1), versioned(B, 1), versioned(A, 2))
    log.clean(topic=by_offset)
    assert [3, 4] == offsets_left(log)
    # The topic is switched; from now on order does not matter.
    write(log, versioned(B, 3), versioned(B, 2), versioned(A, 1))
    log.clean()
    assert [4, 5] == offsets_left(log)
    # Back: the topic first. Versions still come, and mean nothing any more.
    write(log, versioned(A, 3), versioned(B, 1))
    log.clean(topic=by_offset)
    assert [8, 9] == offsets_left(log)
    write(log, versioned(A))
    log.clean(topic=by_offset)
    assert [9, 10] == offsets_left(log)


def test_unversioned_clean_records_lose_when_the_topic_is_switched_before_its_producers(
    log: ScenarioLog,
) -> None:
    """The wrong order: a producer without versions goes on and loses to what is older."""
    write(log, versioned(A, 1))
    log.clean()
    write(log, versioned(A))
    log.clean()
    assert [0] == offsets_left(log)


def test_k31_a_round_keeps_the_strategy_that_it_began_with(log: ScenarioLog) -> None:
    """The strategy is part of the plan that both passes are given, and it cannot be changed."""
    write(log, versioned(A, 9), versioned(A, 5))
    _, plan = log._plan(None)
    assert (APART.strategy, "ver") == (plan.topic.strategy, plan.topic.strategy_header)
    with pytest.raises(AttributeError, match="immutable"):
        plan.topic.strategy = Strategy.OFFSET  # type: ignore[misc]


def test_k32_another_header_leaves_what_is_clean_alone(log: ScenarioLog) -> None:
    write(log, versioned(A, 9), versioned(B, 1))
    log.clean()
    by_rev = replace(APART, strategy_header="rev")
    write(log, versioned(B, 5, name=b"rev"), versioned(Z, 1, name=b"rev"))
    log.clean(topic=by_rev)
    assert [0, 2, 3] == offsets_left(log)


def test_k34_a_full_map_ends_at_a_key_that_it_has_and_rounds_reach_the_end(
    log: ScenarioLog,
) -> None:
    write(log, versioned(A, 9), versioned(A, 5), versioned(B, 1))
    indexed = log.index_only(0, 3, capacity=ONE_KEY)
    assert (1, 1) == (indexed.end_offset, len(indexed.key_map))
    ends = [log.clean(capacity=ONE_KEY).end_offset for _ in range(3)]
    assert [1, 2, 3] == ends
    assert [0, 2] == offsets_left(log)


def test_k35_the_map_reaches_over_a_record_that_it_does_not_take(log: ScenarioLog) -> None:
    log.append(versioned(A, 9))
    log.append(versioned(A, 5))
    log.roll()
    # Two usable slots, so that the second record is looked at.
    assert 2 == log.index_only(0, 2, capacity=4).end_offset


def test_k36_slots_of_32_bytes() -> None:
    cleaner = CleanerConfig(1000, 1.0)
    for topic, slots in ((APART, 31), (BY_TIMESTAMP, 31), (TopicConfig(), 41)):
        assert slots == key_capacity(PartitionRequest(PARTITION, Path(), topic, cleaner))


def test_k37_a_loser_that_the_map_does_not_reach_stays(log: ScenarioLog) -> None:
    write(log, versioned(A, 9), versioned(B, 1), versioned(A, 5))
    assert 1 == log.clean(capacity=ONE_KEY).end_offset
    assert [0, 1, 2] == offsets_left(log)


def test_k38_a_loser_that_is_its_producers_last_batch_leaves_it_empty(log: ScenarioLog) -> None:
    log.append(versioned(A, 9))
    producer = log.producer(7, is_transactional=False)
    producer.send_records(versioned(A, 5))
    write(log, versioned(Z, 1))
    log.clean()
    assert [0, 2] == offsets_left(log)
    assert [0, 1, 2] == log.last_offsets
    assert {7: 0} == log.last_sequences


def test_k41_a_second_round_over_what_is_clean_changes_nothing(log: ScenarioLog) -> None:
    write(log, versioned(A, 9), versioned(B, 1), versioned(A, 5))
    write(log, versioned(B), versioned(B, 0), deletion(Z, 1))
    log.clean()
    before = log.records()
    log.clean(0)
    assert before == log.records()


def test_k42_replicas_with_other_segments_keep_the_same_records(make_log: MakeLog) -> None:
    contents = [(A, 4), (B, 1), (A, 9), (B, 3), (A, 2), (B, 3), (A, None), (B, 2), (Z, 0)]
    found = []
    for lengths in ((9,), (1, 3, 5), (4, 4, 1)):
        log = make_log(APART)
        rest = list(contents)
        for length in lengths:
            write(log, *(versioned(*rest.pop(0)) for _ in range(length)))
            log.clean()
        log.clean(0)
        found.append([(r.offset, r.key, r.headers) for r in log.records()])
    assert [2, 5, 8] == [offset for offset, _, _ in found[0]]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("first", "expected"), [(7, [2]), (5, [2])])
def test_k43_a_key_that_is_clean_twice_is_left_once(
    log: ScenarioLog, first: int, expected: list[int]
) -> None:
    """Winners are known before anything is copied, so both losers go (architecture 5)."""
    write(log, versioned(A, first), versioned(A, 8), at=1)
    write(log, versioned(A, 6), versioned(Z, 1), at=10)
    log.clean(10)
    assert [*expected, 11] == offsets_left(log)


def test_k44_a_round_whose_map_fills_expires_no_tombstone(log: ScenarioLog) -> None:
    write(log, deletion(A, 5))
    log.clean()
    expire(log)
    write(log, versioned(Z, 1), versioned(B, 1), versioned(A, 4), at=10)
    write(log, versioned(text(1), 0))
    for expected_end in (11, 12, 13):
        assert expected_end == log.clean(capacity=ONE_KEY).end_offset
        assert (0, True) in left(log)
    assert [(0, True), (10, False), (11, False), (13, False)] == left(log)
    log.clean(capacity=ONE_KEY)
    assert [(10, False), (11, False), (13, False)] == left(log)


def test_a_round_from_the_middle_of_a_segment_knows_what_lies_before_in_it(
    make_log: MakeLog,
) -> None:
    log = make_log(replace(BY_HEADER, segment_bytes=1 << 20))
    write(log, versioned(A, 9), versioned(B, 1), versioned(A, 5), versioned(B, 2))
    log.clean(2)
    assert [0, 3] == offsets_left(log)


def test_the_stories_end_two_replicas_do_not_diverge_at_the_log_end(make_log: MakeLog) -> None:
    """KIP-280: the leader compacts away the log-end record, a follower that has it becomes leader.

    Leader 1 has a, b, c, d where d loses; follower 3 has only a, b, c so far and fetches what the
    leader still has. The empty batch takes the place of d, so that 3 knows where to go on.
    """
    records = [versioned(A, 5), versioned(B, 1), versioned(b"c", 1), versioned(A, 4)]
    leader, lagging, other = make_log(APART), make_log(APART), make_log(APART)
    write(leader, *records)
    for record in records[:3]:
        lagging.append(record)
    write(other, *records)
    leader.clean()
    assert [0, 1, 2] == offsets_left(leader)
    # The lagging follower fetches what the leader has at offset 3: a batch without records.
    for batch in leader.batches():
        if batch.base_offset >= lagging.log_end:
            lagging.add(bytes(batch.data))
    assert 4 == lagging.log_end
    # It becomes the leader and takes a new record; the other replica fetches that.
    after = lagging.append(versioned(b"e", 1))
    other.append(versioned(b"e", 1), at=after)
    other.clean()
    assert (4, 4) == (after, other.records()[-1].offset)
    assert [r.offset for r in lagging.records()] == [r.offset for r in other.records()]
