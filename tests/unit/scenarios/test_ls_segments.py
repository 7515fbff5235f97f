"""Kafka's LogSegmentsTest and LogSegmentTest (cleaning.md section 8.5, LS)."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cleaner.cleanable_range import non_active_from, segments_between
from keeplast.errors import CorruptError, InvalidError
from keeplast.format import txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import LocalFiles
from keeplast.model.partition import SegmentSummary
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.survey import survey_partition
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    bases_of,
    clean,
    clean_request,
    coordinator,
    data_batch,
    last_round,
    marker,
    one,
    records_of,
    write_partition,
    write_snapshot,
)


def summaries(*bases: int) -> tuple[SegmentSummary, ...]:
    return tuple(SegmentSummary(base, 1, NOW_MS, -1, 0, 0) for base in bases)


FOUR = summaries(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (1, 1, []),
        (1, 2, [1]),
        (1, 3, [1, 2]),
        (2, 4, [2, 3]),
        (4, 4, []),
        (4, 5, [4]),
        (-1, 9, [1, 2, 3, 4]),
    ],
)
def test_ls01_segments_of_a_range(start: int, end: int, expected: list[int]) -> None:
    assert expected == [s.base_offset for s in segments_between(FOUR, start, end)]


def test_ls01_range_that_ends_before_it_begins_is_invalid() -> None:
    with pytest.raises(InvalidError):
        segments_between(FOUR, 2, 1)


@pytest.mark.parametrize(("offset", "expected"), [(2, [2, 3]), (4, []), (5, []), (1, [1, 2, 3])])
def test_ls01_closed_segments_from_an_offset(offset: int, expected: list[int]) -> None:
    assert expected == [s.base_offset for s in non_active_from(FOUR, offset)]


@pytest.mark.parametrize(("start", "first"), [(2, 1), (3, 3), (4, 3), (8, 7)])
def test_ls02_range_begins_with_the_segment_that_holds_its_start(start: int, first: int) -> None:
    found = segments_between(summaries(1, 3, 5, 7), start, 100)
    assert first == found[0].base_offset


@pytest.mark.parametrize(("base", "last"), [(1, 0), (100, 10), (2**31, 0), (2**31, 2**31 - 1)])
def test_ls04_offset_below_its_segment_is_corrupt(tmp_path: Path, base: int, last: int) -> None:
    directory = write_partition(tmp_path, {base: b"", base + 10**6: b""})
    data = one(last, b"k", timestamp=NOW_MS)
    (directory / f"{base:020d}.log").write_bytes(data)
    (directory / f"{base:020d}.index").unlink()
    report = last_round(coordinator().clean(clean_request(directory)))
    assert isinstance(report.failure, CorruptError)
    assert (str(directory / f"{base:020d}.log"), 0) == (
        report.failure.path, report.failure.position,
    )  # fmt: skip
    assert data == (directory / f"{base:020d}.log").read_bytes()


def test_ls04_greatest_distance_from_the_base_is_inclusive(tmp_path: Path) -> None:
    far = 2**31 - 1
    data = one(0, b"a") + one(5, b"gone") + one(far, b"gone")
    directory = write_partition(tmp_path, {0: data, 2**31: b""})
    clean(clean_request(directory))
    assert [0, far] == [record.offset for record in records_of(directory)]
    assert bases_of(directory) == [0, 2**31]


TRANSACTIONS = (
    data_batch(100, 5, [b"a", b"b"])
    + data_batch(102, 10, [b"c", b"d"])
    + one(104, b"e")
    + one(105, b"f")
    + marker(106, 10, ControlType.ABORT)
    + marker(107, 5, ControlType.COMMIT)
)


@pytest.mark.parametrize("open_since", [None, 75])
def test_ls06_transaction_index_is_worked_out_where_a_broker_would(
    tmp_path: Path, open_since: int | None
) -> None:
    """The offset index is missing, so it cannot be said that the transaction index is not."""
    directory = write_partition(tmp_path, {100: TRANSACTIONS, 108: b""})
    (directory / f"{100:020d}.index").unlink()
    if open_since is not None:
        earlier = ProducerEntry(10, 0, 0, 75, 0, NOW_MS, 0, open_since)
        write_snapshot(directory, 100, [earlier])
    survey = survey_partition(
        clean_request(directory).partitions[0],
        clean_request(directory),
        Checkpoints({}, {}, {}),
        LocalFiles(),
        NOW_MS,
    )
    assert survey.plan is not None
    # The log starts at 100, where a snapshot says nothing any more.
    expected = AbortedTransaction(10, 102, 106, 100)
    assert (expected,) == survey.plan.believing_indexes().aborted_from(100)
    clean(clean_request(directory))
    assert [100, 101, 104, 105] == [record.offset for record in records_of(directory)]
    assert (expected,) == txn_index.decode((directory / f"{100:020d}.txnindex").read_bytes())


def test_ls06_transaction_that_began_before_the_segment(tmp_path: Path) -> None:
    directory = write_partition(
        tmp_path, {0: data_batch(75, 10, [b"z"]), 100: TRANSACTIONS, 108: b""}
    )
    (directory / f"{100:020d}.index").unlink()
    entry = ProducerEntry(10, 0, 0, 75, 0, NOW_MS, 0, 75)
    write_snapshot(directory, 100, [entry])
    clean(clean_request(directory))
    assert [100, 101, 104, 105] == [record.offset for record in records_of(directory)]
    index = (directory / f"{0:020d}.txnindex").read_bytes()
    assert (AbortedTransaction(10, 75, 106, 100),) == txn_index.decode(index)


def test_ls07_garbage_in_the_indexes_changes_nothing_that_is_left(tmp_path: Path) -> None:
    data = b"".join(one(i, b"key%d" % (i % 40), bytes(200), NOW_MS + i) for i in range(100))
    sound, damaged = (
        write_partition(tmp_path / name, {0: data, 100: b""}) for name in ("sound", "damaged")
    )
    for suffix in (".index", ".timeindex"):
        path = damaged / f"{0:020d}{suffix}"
        path.write_bytes(bytes(range(7)) * (len(path.read_bytes()) // 7 + 1))
    for directory in (sound, damaged):
        clean(clean_request(directory))
    assert {p.name: p.read_bytes() for p in sound.iterdir()} == {
        p.name: p.read_bytes() for p in damaged.iterdir()
    }


@pytest.mark.parametrize("number", [0, 7, 19])
def test_ls08_garbage_in_a_closed_segment_is_corrupt_where_it_begins(
    tmp_path: Path, number: int
) -> None:
    """A broker cuts the log there; we never do."""
    batches = [encode_batch([Record(i, NOW_MS, b"k%d" % i, b"v")]) for i in range(20)]
    position = sum(len(batch) for batch in batches[:number])
    data = b"".join(batches)[:position] + b"garbage that is long enough to be read"
    directory = write_partition(tmp_path, {0: b"", 20: b""})
    (directory / f"{0:020d}.log").write_bytes(data)
    report = last_round(coordinator().clean(clean_request(directory, topic=COMPACT)))
    assert isinstance(report.failure, CorruptError)
    assert position == report.failure.position
    assert data == (directory / f"{0:020d}.log").read_bytes()
