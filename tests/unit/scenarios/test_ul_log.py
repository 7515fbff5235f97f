"""Kafka's UnifiedLogTest, what of it a cleaner relies on (cleaning.md section 8.6, UL)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import InvalidError
from keeplast.format.batch import decode_batch, encode_batch, encode_empty_batch
from keeplast.format.compression import Codec
from keeplast.format.filename import SNAPSHOT, segment_file
from keeplast.format.producer_snapshot import decode as decode_snapshot
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition, load_aborted
from keeplast.model.partition import INT64_MAX, RELATIVE_OFFSET_MAX
from keeplast.model.topic_config import TopicConfig
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    SMALL_SEGMENTS,
    bases_of,
    clean_at,
    one,
    records_of,
    write_partition,
    write_snapshot,
)
from tests.support.reader import read_partition

ROOMY = TopicConfig(segment_ms=INT64_MAX)
FAR = RELATIVE_OFFSET_MAX + 1


def of_producer(*offsets: int, base: int, count: int) -> bytes:
    """A batch of ``count`` records from ``base`` of which only those at ``offsets`` are left."""
    whole = encode_batch(
        [Record(base + i, NOW_MS, b"k%d" % i, b"v") for i in range(count)],
        producer_id=23, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    header = decode_batch(whole)
    if not offsets:
        return encode_empty_batch(header)
    left = [record for record in header.records() if record.offset in offsets]
    return encode_batch(
        left, base_offset=base, last_offset=base + count - 1,
        producer_id=23, producer_epoch=0, base_sequence=0,
    )  # fmt: skip


def last_sequence(directory: Path) -> int:
    """Reopen a log without its snapshot and return what it knows of producer 23."""
    with LogAppender(directory, LocalFiles(), topic=ROOMY) as log:
        end = log.log_end_offset
    (entry,) = decode_snapshot((directory / segment_file(end, SNAPSHOT)).read_bytes())
    assert entry.producer_id == 23
    return entry.last_sequence


@pytest.mark.parametrize(
    ("offsets", "count", "expected"),
    [((1, 2), 4, 3), ((0, 3), 4, 3), ((), 2, 1)],
    ids=["ul02 ul03 two of four", "first and last", "ul04 empty"],
)
def test_ul02_ul03_ul04_producers_are_known_from_what_cleaning_left(
    tmp_path: Path, offsets: tuple[int, ...], count: int, expected: int
) -> None:
    directory = write_partition(tmp_path, {0: of_producer(*offsets, base=0, count=count)})
    assert expected == last_sequence(directory)


def test_ul05_snapshots_stay_where_a_segment_begins(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {i: one(i, b"same") for i in range(3)} | {3: b""})
    for offset in (1, 2, 3):
        write_snapshot(directory, offset)
    clean_at(directory, topic=COMPACT)
    first, *others = bases_of(directory)
    assert first == 0
    assert others == [int(path.stem) for path in sorted(directory.glob("*.snapshot"))]
    assert len(others) < 3


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("keys", "at_fault"), [([None], 0), ([None, b"k"], 0), ([b"k", None], 1), ([b"k", b"l"], None)]
)
def test_ul09_a_compacted_topic_takes_no_record_without_a_key(
    tmp_path: Path, codec: Codec, keys: list[bytes | None], at_fault: int | None
) -> None:
    records = [NewRecord(key, b"v", NOW_MS) for key in keys]
    with LogAppender(tmp_path, LocalFiles(), topic=COMPACT) as log:
        if at_fault is None:
            assert log.append(records, codec=codec) == 0
            return
        with pytest.raises(InvalidError, match=f"record={at_fault} "):
            log.append(records, codec=codec)
        assert log.log_end_offset == 0


RECORDS = [NewRecord(b"k", bytes(100), NOW_MS)]
SIZE = len(encode_batch([Record(0, NOW_MS, b"k", bytes(100))]))


@pytest.mark.parametrize(
    ("fitting", "tight"),
    [
        (replace(ROOMY, max_message_bytes=SIZE), replace(ROOMY, max_message_bytes=SIZE - 1)),
        (replace(ROOMY, segment_bytes=SIZE), replace(ROOMY, segment_bytes=SIZE - 1)),
    ],
    ids=["ul10 max.message.bytes", "ul12 segment.bytes"],
)
def test_ul10_ul12_a_batch_over_a_limit_is_refused(
    tmp_path: Path, fitting: TopicConfig, tight: TopicConfig
) -> None:
    with LogAppender(tmp_path, LocalFiles(), topic=fitting) as log:
        assert log.append(RECORDS) == 0
    with (
        LogAppender(tmp_path, LocalFiles(), topic=tight) as log,
        pytest.raises(InvalidError, match=f"size_bytes={SIZE} "),
    ):
        log.append(RECORDS)


def test_ul13_a_segment_is_split_where_its_offsets_overflow(tmp_path: Path) -> None:
    segments = {
        0: one(0, b"a"),
        10: one(10, b"b") + one(11, b"c") + one(12 + FAR, b"d") + one(13 + FAR, b"e"),
        20 + FAR: one(20 + FAR, b"f"),
    }
    directory = write_partition(tmp_path, segments)
    before = records_of(directory)
    clean_at(directory, topic=SMALL_SEGMENTS)
    assert [0, 10, 12 + FAR, 20 + FAR] == bases_of(directory)
    assert before == records_of(directory)


def test_ul14_a_segment_of_which_everything_overflows_begins_at_its_first_batch(
    tmp_path: Path,
) -> None:
    segments = {10: one(11 + FAR, b"d") + one(12 + FAR, b"e"), 20 + FAR: one(20 + FAR, b"f")}
    directory = write_partition(tmp_path, segments)
    before = records_of(directory)
    clean_at(directory, topic=SMALL_SEGMENTS)
    # A round never moves the log start: what overflowed is behind an empty first output.
    found = [
        base for base in bases_of(directory) if (directory / f"{base:020d}.log").stat().st_size
    ]
    assert [11 + FAR, 20 + FAR] == found
    assert before == records_of(directory)


def test_ul28_an_idle_segment_is_left_by_the_next_append_and_not_before(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    topic = replace(ROOMY, segment_ms=1000)
    with LogAppender(tmp_path, LocalFiles(), topic=topic, clock=clock) as log:
        clock.advance(5000)
        # Empty, it never rolls.
        log.append([NewRecord(b"k", b"v", clock.now_ms())])
        assert bases_of(tmp_path) == [0]
        clock.advance(5000)
        assert bases_of(tmp_path) == [0]
        # The first record's time decides, not the clock.
        log.append([NewRecord(b"k", b"v", NOW_MS + 5000)])
        assert bases_of(tmp_path) == [0]
        log.append([NewRecord(b"k", b"v", clock.now_ms())])
        assert bases_of(tmp_path) == [0, 2]


def test_ul30_an_aborted_transaction_over_two_segments_is_listed_once(tmp_path: Path) -> None:
    with LogAppender(tmp_path, LocalFiles(), topic=ROOMY) as log:
        for sequence in (0, 1):
            log.append(
                [NewRecord(b"k", b"v", NOW_MS)],
                producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True,
            )  # fmt: skip
            log.roll()
        log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
    found = [
        entry
        for segment in list_partition(tmp_path, LocalFiles()).segments
        for entry in load_aborted(segment, LocalFiles())
    ]
    assert [AbortedTransaction(7, 0, 2, 3)] == found
    assert read_partition(tmp_path).records() == []
