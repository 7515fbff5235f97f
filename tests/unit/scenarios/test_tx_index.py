"""Kafka's TransactionIndexTest (cleaning.md section 8.5, TX), as rounds see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keeplast.cleaner.plan import RoundPlan
from keeplast.format import txn_index
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean,
    clean_at,
    clean_request,
    data_batch,
    marker,
    one,
    records_of,
    write_partition,
    write_segment,
)

ENTRIES = (
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
)


def test_tx01_entries_of_a_reopened_log_continue_in_order(tmp_path: Path) -> None:
    directory = tmp_path / str(PARTITION)
    for producer in (1, 2):
        with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
            log.append(
                [NewRecord(b"k", b"v", NOW_MS)], producer_id=producer, producer_epoch=0,
                base_sequence=0, is_transactional=True,
            )  # fmt: skip
            log.append_marker(
                ControlType.ABORT, producer_id=producer, producer_epoch=0, timestamp_ms=NOW_MS
            )
    expected = (AbortedTransaction(1, 0, 1, 2), AbortedTransaction(2, 2, 3, 4))
    assert expected == txn_index.decode((directory / f"{0:020d}.txnindex").read_bytes())


def log_with_abort(tmp_path: Path, known: tuple[AbortedTransaction, ...]) -> Path:
    """Return a log whose second segment ends an aborted transaction of producer 7."""
    directory = write_partition(
        tmp_path,
        {
            0: one(0, b"a") + data_batch(1, 7, [b"a", b"b"]),
            10: marker(10, 7, ControlType.ABORT) + one(11, b"c"),
            20: one(20, b"d"),
        },
    )
    if known:
        write_segment(directory, 10, (directory / f"{10:020d}.log").read_bytes(), aborted=known)
    return directory


def test_tx02_index_of_another_segment_is_replaced_by_what_the_batches_say(tmp_path: Path) -> None:
    """An entry that ends below the segment's base: a broker would scan the segment again."""
    directory = log_with_abort(tmp_path, (AbortedTransaction(7, 1, 9, 10),))
    report = clean(clean_request(directory))
    assert [0, 11, 20] == [record.offset for record in records_of(directory)]
    assert report.reasons is not None
    assert report.reasons.aborted_records == 2


def test_tx03_last_offsets_of_a_written_index_ascend(tmp_path: Path) -> None:
    """Kafka refuses to append anything else; an output is written in the order of the markers."""
    directory = tmp_path / str(PARTITION)
    with LogAppender(directory, LocalFiles(), topic=COMPACT) as log:
        for producer in (3, 1, 2):
            log.append(
                [NewRecord(b"k", b"v", NOW_MS)], producer_id=producer, producer_epoch=0,
                base_sequence=0, is_transactional=True,
            )  # fmt: skip
        for producer in (1, 2, 3):
            log.append_marker(
                ControlType.ABORT, producer_id=producer, producer_epoch=0, timestamp_ms=NOW_MS
            )
        log.roll()
    clean(clean_request(directory))
    entries = txn_index.decode((directory / f"{0:020d}.txnindex").read_bytes())
    lasts = [entry.last_offset for entry in entries]
    assert sorted(set(lasts)) == lasts
    assert [1, 2, 3] == [entry.producer_id for entry in entries]


def plan_with(log_start: int, bound: int) -> RoundPlan:
    return RoundPlan(
        partition=PARTITION, topic=COMPACT, segments=(),
        aborted=((0, ENTRIES[:2]), (20, ENTRIES[2:])), last_records=np.empty((0, 3), np.int64),
        log_start=log_start, first_dirty=log_start, bound=bound, start_position=0,
        key_capacity=None, now_ms=NOW_MS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log_start", "bound", "base", "expected"),
    [
        (0, 100, 0, [0, 1, 2, 3]),
        (0, 32, 0, [0, 1, 2]),
        (0, 35, 0, [0, 1, 2, 3]),
        (10, 35, 0, [0, 1, 2, 3]),
        (11, 35, 0, [1, 2, 3]),
        (20, 41, 0, [2, 3]),
        # The index of the segment in which a pass begins, and those behind it.
        (0, 100, 20, [2, 3]),
        (0, 18, 20, []),
    ],
)
def test_tx05_aborted_transactions_that_a_range_needs(
    log_start: int, bound: int, base: int, expected: list[int]
) -> None:
    """The lower end is the log start and not where the pass begins (cleaning.md 3.5)."""
    plan = plan_with(log_start, bound)
    assert expected == [entry.producer_id for entry in plan.aborted_from(base)]


def test_tx07_entries_come_back(tmp_path: Path) -> None:
    assert txn_index.decode(txn_index.encode(ENTRIES)) == ENTRIES


def test_tx07_cut_entry_at_the_end_is_ignored(tmp_path: Path) -> None:
    directory = log_with_abort(tmp_path, (AbortedTransaction(7, 1, 10, 11),))
    path = directory / f"{10:020d}.txnindex"
    path.write_bytes(path.read_bytes() + bytes(20))
    clean(clean_request(directory))
    assert [0, 11, 20] == [record.offset for record in records_of(directory)]


def test_missing_index_of_a_segment_that_has_an_offset_index_is_not_believed(
    tmp_path: Path,
) -> None:
    """No file is the usual case; a broker believes it, and so would make aborted data win."""
    directory = log_with_abort(tmp_path, ())
    clean(clean_request(directory))
    assert [0, 11, 20] == [record.offset for record in records_of(directory)]


def test_missing_indexes_altogether_are_worked_out_again(tmp_path: Path) -> None:
    directory = log_with_abort(tmp_path, ())
    (directory / f"{10:020d}.index").unlink()
    clean(clean_request(directory))
    assert [0, 11, 20] == [record.offset for record in records_of(directory)]


def test_x57_data_in_one_group_and_its_abort_in_the_next(tmp_path: Path) -> None:
    directory = log_with_abort(tmp_path, (AbortedTransaction(7, 1, 10, 11),))
    clean(clean_request(directory, topic=SMALL_SEGMENTS))
    assert not (directory / f"{0:020d}.txnindex").exists()
    entries = txn_index.decode((directory / f"{10:020d}.txnindex").read_bytes())
    assert (AbortedTransaction(7, 1, 10, 11),) == entries


def test_abort_is_indexed_while_a_batch_of_its_data_is_left(tmp_path: Path) -> None:
    """An empty one too: here it is the last batch of a producer that has not expired yet."""
    directory = log_with_abort(tmp_path, (AbortedTransaction(7, 1, 10, 11),))
    path = directory / f"{10:020d}.txnindex"
    found = []
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + DAY_MS, NOW_MS + DAY_MS):
        clean_at(directory, now_ms, topic=SMALL_SEGMENTS)
        found.append(path.exists())
    assert found == [True, True, True, False]
