"""Kafka's LogCleanerTest: transactions and producers (cleaning.md section 8.1).

A step that Kafka's test cleans with an empty dirty range (marked in the specification) is a
``recopy`` here: the second pass with an empty key map that reaches the active segment.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.format.record import ControlType, encode_control_key
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import NewRecord
from keeplast.model.partition import INT64_MAX
from tests.support.log_builder import text
from tests.support.scenario_log import BIG, SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

LARGE = replace(SMALL, segment_bytes=2048)
TINY = replace(SMALL, segment_bytes=256)


@pytest.fixture
def tiny_log(make_log: MakeLog) -> ScenarioLog:
    """Return a log with segments of 256 bytes."""
    return make_log(TINY)


def test_ct06_last_sequences_survive_so_that_duplicates_are_recognised(make_log: MakeLog) -> None:
    log = make_log(LARGE)
    p1, p2, p3, p4 = (log.producer(n, is_transactional=False) for n in (1, 2, 3, 4))
    p1.send(1, 2, 3)
    p2.send(3, 1, 4)
    p3.send(1, 4)
    log.roll_and_clean()
    assert [2, 5, 7] == log.last_offsets
    assert {1: 2, 2: 2, 3: 1} == log.last_sequences
    assert ([2, 3, 1, 4], [1, 3, 6, 7]) == (log.keys, log.offsets)
    # Sent once more from sequence 0, each batch is found under its offsets.
    sent_again = [log.find_duplicate(*sequences) for sequences in ((1, 0, 2), (3, 0, 1), (2, 0, 2))]
    assert [(0, 2), (6, 7), (3, 5)] == sent_again

    p4.send(2)
    log.roll_and_clean()
    assert [2, 5, 7, 8] == log.last_offsets
    assert {1: 2, 2: 2, 3: 1, 4: 0} == log.last_sequences
    assert ([3, 1, 4, 2], [3, 6, 7, 8]) == (log.keys, log.offsets)
    assert 0 == log.batches()[0].count
    assert (0, 2) == log.find_duplicate(1, 0, 2)


def test_ct07_transactions_over_rounds_of_a_map_of_three_keys(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, delete_retention_ms=50_000))
    p1, p2 = log.producer(1), log.producer(2)
    p1.send(1, 2)
    p2.send(2, 3)
    p1.send(3, 4)
    p1.commit()
    p2.commit()
    p1.send(2, 3)
    p1.abort()
    p2.send(4, 5)
    p1.send(5, 6)
    p1.commit()
    p2.abort()
    p2.send(6, 7)
    p2.commit()
    log.roll()
    aborted = [AbortedTransaction(1, 8, 10, 11), AbortedTransaction(2, 11, 16, 17)]

    assert 4 == log.clean(0, capacity=4).end_offset
    bases = [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert bases == log.base_offsets
    assert [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19] == log.offsets
    assert aborted == log.aborted()

    assert 14 == log.clean(4, capacity=4).end_offset
    assert bases == log.base_offsets
    assert [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19] == log.offsets
    assert [] == log.aborted()

    log.now_ms += 50_000
    assert 20 == log.clean(14, capacity=4).end_offset
    assert [0, 2, 4, 6, 7, 13, 15, 17, 19] == log.base_offsets
    assert [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19] == log.offsets
    assert [] == log.aborted()


def test_ct08_committed_and_aborted_data(make_log: MakeLog) -> None:
    log = make_log(LARGE)
    p1, p2 = log.producer(1), log.producer(2)
    p1.send(1, 2)
    p2.send(2, 3)
    p1.send(3, 4)
    p1.abort()
    p2.commit()
    p1.send(2)
    p1.commit()
    log.roll()
    before = log.aborted()
    log.clean(0)
    assert ([3, 2], [3, 6, 7, 8, 9]) == (log.keys, log.offsets)
    assert [AbortedTransaction(1, 0, 6, 2)] == before == log.aborted()


def test_ct09_transactions_that_span_segments(log: ScenarioLog) -> None:
    p1, p2, p3 = (log.producer(n) for n in (1, 2, 3))
    p1.send(1, 2)
    p3.send(2, 3)
    p2.send(3, 4)
    log.roll()
    p2.send(5, 6)
    p3.send(6, 7)
    p1.send(7, 8)
    p2.abort()
    p3.send(8, 9)
    p3.commit()
    p1.send(9, 10)
    p1.abort()
    dirty = log.clean(0).end_offset
    # The aborts are known from the index of the segment behind the one that is cleaned.
    assert [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10] == log.keys

    log.roll()
    p2.send(11)
    p1.send(12)
    log.clean(dirty)
    assert [2, 3, 6, 7, 8, 9, 11, 12] == log.keys


def test_ct10_a_commit_marker_goes_two_rounds_after_its_data(tiny_log: ScenarioLog) -> None:
    log = tiny_log
    p = log.producer(1)
    p.send(1)
    p.send(2, 3)
    p.commit()
    p.send(2)
    p.commit()
    log.roll()
    dirty = log.clean(0, now_ms=BIG).end_offset
    assert ([1, 3, 2], [0, 2, 3, 4, 5]) == (log.keys, log.offsets)

    p.send(1, 3)
    p.commit()
    log.roll()
    log.clean(dirty, now_ms=BIG)
    # The records of the transaction that the marker at 3 ended were seen in this round.
    assert ([2, 1, 3], [3, 4, 5, 6, 7, 8]) == (log.keys, log.offsets)
    log.recopy(BIG)
    assert ([2, 1, 3], [3, 4, 5, 6, 7, 8]) == (log.keys, log.offsets)
    log.recopy(INT64_MAX)
    assert ([2, 1, 3], [4, 5, 6, 7, 8]) == (log.keys, log.offsets)


def test_ct11_a_dropped_batch_does_not_end_the_copy(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, max_message_bytes=100, segment_bytes=1000))
    p = log.producer(1)
    p.send(1)
    p.abort()
    p.send(2)
    p.send(2)
    p.commit()
    log.roll_and_clean(now_ms=BIG)
    assert ([2], [1, 3, 4]) == (log.keys, log.offsets)
    log.two_pass(0, BIG)
    assert ([2], [3, 4]) == (log.keys, log.offsets)


def test_ct12_a_marker_stays_while_an_empty_batch_of_it_does(tiny_log: ScenarioLog) -> None:
    log = tiny_log
    p1, p2 = log.producer(1), log.producer(2)
    p1.send(2, 3)
    log.roll()
    p2.send(2, 3)
    p2.commit()
    log.roll()
    log.record(2, 2)
    log.record(3, 3)
    p1.commit()
    log.roll()
    dirty = log.clean(0, now_ms=BIG).end_offset
    for _ in range(2):
        assert ([2, 3], [4, 5, 6, 7]) == (log.keys, log.offsets)
        assert [1, 3, 4, 5, 6, 7] == log.last_offsets
        log.recopy(BIG)

    p2.send(1)
    p2.commit()
    log.roll()
    log.clean(dirty, now_ms=BIG)
    # The second producer's empty batch is no longer its last; its marker has no horizon yet.
    assert ([2, 3, 1], [4, 5, 6, 7, 8, 9]) == (log.keys, log.offsets)
    assert [1, 4, 5, 6, 7, 8, 9] == log.last_offsets
    log.two_pass_recopy(BIG)
    assert ([2, 3, 1], [5, 6, 7, 8, 9]) == (log.keys, log.offsets)
    assert [1, 5, 6, 7, 8, 9] == log.last_offsets


def test_ct13_an_empty_control_batch_is_kept_for_its_epoch(tiny_log: ScenarioLog) -> None:
    log = tiny_log
    log.producer(1).commit()
    log.record(2, 2)
    log.record(3, 3)
    log.roll()
    log.two_pass(0, BIG)
    for _ in range(2):
        assert ([2, 3], [1, 2], [0, 1, 2]) == (log.keys, log.offsets, log.last_offsets)
        log.recopy(INT64_MAX)


def test_ct14_a_committed_transaction_over_two_segments(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, segment_bytes=128))
    p = log.producer(1)
    p.send(1)
    log.roll()
    p.commit()
    log.roll()
    log.two_pass(0, BIG)
    assert ([0, 1], [0, 1]) == (log.offsets, log.last_offsets)


def test_ct15_an_aborted_transaction_over_two_segments(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, segment_bytes=128))
    p = log.producer(1)
    p.send(1)
    log.roll()
    p.abort()
    log.roll()
    for now_ms in (BIG, INT64_MAX):
        log.clean(0, now_ms=now_ms)
        assert ([1], [0, 1]) == (log.offsets, log.last_offsets)


def test_ct16_an_abort_marker_goes_two_rounds_after_its_data(tiny_log: ScenarioLog) -> None:
    log = tiny_log
    p = log.producer(1)
    p.send(1)
    p.send(2, 3)
    p.abort()
    p.send(3)
    p.commit()
    log.roll_and_clean(now_ms=BIG)
    assert ([3], [3, 4, 5]) == (log.keys, log.offsets)
    log.two_pass_recopy(BIG)
    assert ([3], [4, 5]) == (log.keys, log.offsets)


def test_ct17_a_producer_that_starts_again_from_sequence_0(make_log: MakeLog) -> None:
    log = make_log(LARGE)
    for key in (1, 2):
        p = log.producer(1)
        p.send(key)
        p.commit()
    log.record(1, 1)
    log.record(2, 2)
    log.roll_and_clean(now_ms=BIG)
    assert ([1, 3, 4, 5], [1, 2, 3, 4, 5]) == (log.offsets, log.last_offsets)
    log.two_pass(0, BIG)
    assert ([3, 4, 5], [2, 3, 4, 5]) == (log.offsets, log.last_offsets)


def test_ct18_an_abort_stays_indexed_while_an_empty_batch_of_it_does(tiny_log: ScenarioLog) -> None:
    log = tiny_log
    p = log.producer(1)
    p.send(2, 3)
    p.abort()
    log.roll()
    aborted = [AbortedTransaction(1, 0, 2, 3)]

    def state() -> tuple[list[AbortedTransaction], list[int], list[int], list[int]]:
        return log.aborted(), log.keys, log.offsets, log.last_offsets

    dirty = log.clean(0, now_ms=BIG).end_offset
    assert (aborted, [], [2], [1, 2]) == state()
    log.two_pass_recopy(BIG)
    assert (aborted, [], [2], [1, 2]) == state()
    p.send(1)
    log.roll()
    log.clean(dirty, now_ms=BIG)
    assert (aborted, [1], [2, 3], [2, 3]) == state()
    log.two_pass_recopy(BIG)
    assert ([], [1], [3], [3]) == state()


def test_ct25_the_last_sequence_of_each_producer_stays(log: ScenarioLog) -> None:
    log.record(0, 0)
    producers = {n: log.producer(n, is_transactional=False) for n in (1, 2, 3)}
    for p in producers.values():
        p.send(0)
    producers[2].send(1)
    log.roll_and_clean()
    assert [1, 3, 4] == log.last_offsets
    assert {1: 0, 2: 1, 3: 0} == log.last_sequences
    assert ([0, 1], [3, 4]) == (log.keys, log.offsets)


def test_ct26_the_last_sequence_stays_even_if_its_transaction_was_aborted(log: ScenarioLog) -> None:
    p = log.producer(1)
    p.send(1)
    p.send(2, 3)
    p.abort()
    log.roll_and_clean()
    assert ([2, 3], {1: 2}) == (log.last_offsets, log.last_sequences)
    assert ([], [3]) == (log.keys, log.offsets)

    p.send(1, 5)
    log.roll_and_clean()
    assert ([3, 5], {1: 4}) == (log.last_offsets, log.last_sequences)
    assert ([1, 5], [3, 4, 5]) == (log.keys, log.offsets)


def test_ct27_a_users_key_may_equal_a_markers_key(log: ScenarioLog) -> None:
    log.leader_epoch = 5
    p1, p2 = log.producer(1), log.producer(2)
    p1.send(1)
    p1.commit()
    marker_key = encode_control_key(ControlType.COMMIT)
    p2.send_records(NewRecord(marker_key, text(1), log.now_ms))
    p2.commit()
    log.roll_and_clean()
    assert ([0, 1, 2, 3], [0, 1, 2, 3]) == (log.last_offsets, log.offsets)
    assert {5} == {batch.leader_epoch for batch in log.batches()}
