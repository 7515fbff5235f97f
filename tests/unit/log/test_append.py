"""The end of a log: what is written, when a segment is rolled, and what a reopened log knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import CorruptError, InvalidError
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.compression import Codec
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import TopicConfig
from tests.support.manual_clock import ManualClock

START_MS = 1_700_000_000_000
ROOMY = TopicConfig(segment_ms=INT64_MAX)
TOPIC_ID = bytes(range(16))


def open_log(path: Path, topic: TopicConfig = ROOMY, *, epoch: int | None = None) -> LogAppender:
    return LogAppender(path, LocalFiles(), topic=topic, leader_epoch=epoch)


def record(key: bytes, timestamp_ms: int = START_MS, size: int = 0) -> NewRecord:
    return NewRecord(key, bytes(size), timestamp_ms)


def names(path: Path, suffix: str) -> list[int]:
    return sorted(int(file.stem) for file in path.glob(f"*{suffix}"))


def log_bytes(path: Path, base_offset: int = 0) -> bytes:
    return (path / f"{base_offset:020}.log").read_bytes()


def snapshot(path: Path, offset: int) -> tuple[ProducerEntry, ...]:
    return producer_snapshot.decode((path / f"{offset:020}.snapshot").read_bytes())


def test_records_come_back_as_they_were_appended(tmp_path: Path) -> None:
    with LogAppender(tmp_path, LocalFiles(), topic=ROOMY, leader_epoch=3, topic_id=TOPIC_ID) as log:
        log.append([NewRecord(b"k", b"v", START_MS, ((b"h", None),)), record(b"l", START_MS + 5)])
        log.append([NewRecord(b"k", None, START_MS)], codec=Codec.LZ4, append_time_ms=START_MS + 9)
        assert log.log_end_offset == 3
    first, second = read_batches(log_bytes(tmp_path))
    assert (
        first.base_offset,
        first.last_offset,
        first.leader_epoch,
        first.max_timestamp,
    ) == (0, 1, 3, START_MS + 5)
    assert [(r.offset, r.key, r.value) for r in first.records()] == [
        (0, b"k", b"v"),
        (1, b"l", b""),
    ]
    assert [(r.offset, r.timestamp, r.value) for r in second.records()] == [(2, START_MS + 9, None)]
    assert (LeaderEpoch(3, 0),) == leader_epoch.decode(
        (tmp_path / "leader-epoch-checkpoint").read_bytes()
    )
    assert (
        (tmp_path / "partition.metadata").read_bytes()
    ) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


def test_segment_rolls_before_it_would_outgrow_segment_bytes(tmp_path: Path) -> None:
    batch_bytes = 61 + 10 + 93
    topic = TopicConfig(segment_ms=INT64_MAX, segment_bytes=2 * batch_bytes)
    with open_log(tmp_path, topic) as log:
        for _ in range(5):
            log.append([record(b"k", size=92)])
    assert names(tmp_path, ".log") == [0, 2, 4]
    assert 2 * batch_bytes >= len(log_bytes(tmp_path))
    assert [0, 2, 4] == names(tmp_path, ".index") == names(tmp_path, ".timeindex")
    assert names(tmp_path, ".snapshot") == [2, 4, 5]


@pytest.mark.parametrize(
    ("age_ms", "expected"), [(1000, [0]), (1001, [0, 1])], ids=["equal stays", "older rolls"]
)
def test_segment_rolls_when_records_are_older_than_segment_ms(
    tmp_path: Path, age_ms: int, expected: list[int]
) -> None:
    with open_log(tmp_path, TopicConfig(segment_ms=1000)) as log:
        log.append([record(b"k")])
        log.append([record(b"k", START_MS + age_ms)])
    assert expected == names(tmp_path, ".log")


def test_max_compaction_lag_rolls_a_compacted_topic_earlier(tmp_path: Path) -> None:
    policy = frozenset({"compact"})
    topic = TopicConfig(cleanup_policy=policy, max_compaction_lag_ms=10, segment_ms=1000)
    with open_log(tmp_path, topic) as log:
        log.append([record(b"k")])
        log.append([record(b"k", START_MS + 11)])
    assert names(tmp_path, ".log") == [0, 1]


def test_segment_without_timestamps_ages_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with LogAppender(tmp_path, LocalFiles(), topic=TopicConfig(segment_ms=10), clock=clock) as log:
        log.append([record(b"k", -1)])
        clock.advance(10)
        log.append([record(b"k", -1)])
        clock.advance(1)
        log.append([record(b"k", -1)])
    assert names(tmp_path, ".log") == [0, 2]


def test_segment_rolls_when_its_index_is_full(tmp_path: Path) -> None:
    topic = TopicConfig(segment_ms=INT64_MAX, index_interval_bytes=0, segment_index_bytes=24)
    with open_log(tmp_path, topic) as log:
        for _ in range(6):
            log.append([record(b"k", -1)])
    # The first batch of a segment never gets an entry, so three entries are there after four.
    assert names(tmp_path, ".log") == [0, 4]


def test_offset_that_is_too_far_from_the_base_rolls(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([record(b"k")])
        log.append([record(b"k")], base_offset=2**31 - 1)
        log.append([record(b"k")])
    assert names(tmp_path, ".log") == [0, 2**31]


def test_indexes_follow_the_rule_of_recovery(tmp_path: Path) -> None:
    topic = TopicConfig(segment_ms=INT64_MAX, index_interval_bytes=100)
    with open_log(tmp_path, topic) as log:
        for timestamp in (5, 9, 7, 9, 12):
            log.append([record(b"k", START_MS + timestamp), record(b"l", START_MS)])
    batches = list(read_batches(log_bytes(tmp_path)))
    index = offset_index.decode((tmp_path / f"{0:020}.index").read_bytes())
    times = time_index.decode((tmp_path / f"{0:020}.timeindex").read_bytes())
    assert batches[0].size_bytes == 77
    assert index.tolist() == [[5, 154], [9, 308]]
    assert times.tolist() == [[START_MS + 9, 3], [START_MS + 12, 9]]


def test_aborted_transaction_is_indexed_in_the_segment_of_its_marker(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for producer_id in (7, 8):
            log.append(
                [record(b"k"), record(b"l")],
                producer_id=producer_id,
                producer_epoch=1,
                base_sequence=0,
                is_transactional=True,
            )
        log.roll()
        log.append_marker(
            ControlType.ABORT, producer_id=8, producer_epoch=1, timestamp_ms=START_MS + 3
        )
        log.append_marker(ControlType.COMMIT, producer_id=7, producer_epoch=2, timestamp_ms=1)
    assert names(tmp_path, ".txnindex") == [4]
    assert (AbortedTransaction(8, 2, 4, 0),) == txn_index.decode(
        (tmp_path / f"{4:020}.txnindex").read_bytes()
    )
    assert (
        ProducerEntry(7, 1, 1, 1, 1, START_MS, -1, 0),
        ProducerEntry(8, 1, 1, 3, 1, START_MS, -1, 2),
    ) == snapshot(tmp_path, 4)
    # A marker with a newer epoch forgets the producer's data, one with the same does not.
    assert (
        ProducerEntry(7, 2, -1, -1, 0, 1, 0, -1),
        ProducerEntry(8, 1, 1, 3, 1, START_MS + 3, 0, -1),
    ) == snapshot(tmp_path, 6)


def test_marker_without_data_is_not_indexed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_marker(ControlType.ABORT, producer_id=8, producer_epoch=1, timestamp_ms=1)
    assert names(tmp_path, ".txnindex") == []


def test_closed_and_reopened_log_equals_one_that_stayed_open(tmp_path: Path) -> None:
    topic = TopicConfig(segment_ms=INT64_MAX, segment_bytes=700, index_interval_bytes=100)

    def steps(log: LogAppender, first: int, last: int) -> None:
        for i in range(first, last):
            log.append(
                # One timestamp, so that closing early finds nothing to add to the time index.
                [record(b"k%d" % i, size=i)],
                producer_id=i % 3,
                producer_epoch=0,
                base_sequence=i // 3,
                is_transactional=True,
            )
            if i % 7 == 6:
                log.append_marker(
                    ControlType.ABORT, producer_id=i % 3, producer_epoch=0, timestamp_ms=START_MS
                )

    once, often = tmp_path / "once", tmp_path / "often"
    with open_log(once, topic) as log:
        steps(log, 0, 30)
    for i in range(30):
        with open_log(often, topic) as log:
            steps(log, i, i + 1)
    for path in sorted(once.iterdir()):
        assert path.read_bytes() == (often / path.name).read_bytes(), path.name


def test_producers_are_replayed_when_the_newest_snapshot_is_older_than_the_log(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log:
        log.append([record(b"k")], producer_id=1, producer_epoch=0, base_sequence=0)
        log.roll()
        log.append(
            [record(b"k")],
            producer_id=2,
            producer_epoch=0,
            base_sequence=5,
            is_transactional=True,
        )
    expected = snapshot(tmp_path, 2)
    (tmp_path / f"{2:020}.snapshot").unlink()
    open_log(tmp_path).close()
    assert expected == snapshot(tmp_path, 2)


def test_new_leader_starts_an_epoch_and_an_old_one_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path, epoch=2) as log:
        log.append([record(b"k")])
    with open_log(tmp_path, epoch=5) as log:
        log.append([record(b"k")])
    with open_log(tmp_path) as log:
        log.append([record(b"k")])
    assert (LeaderEpoch(2, 0), LeaderEpoch(5, 1)) == leader_epoch.decode(
        (tmp_path / "leader-epoch-checkpoint").read_bytes()
    )
    assert [batch.leader_epoch for batch in read_batches(log_bytes(tmp_path))] == [2, 5, 5]
    with pytest.raises(InvalidError):
        open_log(tmp_path, epoch=4)


def test_new_files_get_the_mode_of_the_log_they_belong_to(tmp_path: Path) -> None:
    """A broker with another user's rights must be able to go on with them."""
    with open_log(tmp_path) as log:
        log.append([record(b"k")])
    (tmp_path / f"{0:020}.log").chmod(0o660)
    with open_log(tmp_path) as log:
        log.roll()
    assert {0o660} == {
        path.stat().st_mode & 0o777 for path in tmp_path.glob("0*") if path.suffix != ".tmp"
    }


def test_torn_active_segment_is_not_appended_to(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append([record(b"k")])
        log.append([record(b"k")])
    path = tmp_path / f"{0:020}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptError) as caught:
        open_log(tmp_path)
    assert (str(path), len(whole) // 2) == (caught.value.path, caught.value.position)
    assert whole[:-1] == path.read_bytes()


@pytest.mark.parametrize(
    "topic", [TopicConfig(max_message_bytes=99), TopicConfig(segment_bytes=99)]
)
def test_batch_that_is_too_large_is_refused_and_leaves_the_log_alone(
    tmp_path: Path, topic: TopicConfig
) -> None:
    with open_log(tmp_path, topic) as log:
        with pytest.raises(InvalidError):
            log.append([record(b"k", size=100)])
        assert log.log_end_offset == 0
    assert log_bytes(tmp_path) == b""


@pytest.mark.parametrize(
    ("records", "base_offset"), [([], None), ([NewRecord(b"k", b"v")], 0)], ids=["empty", "below"]
)
def test_batch_without_records_or_below_the_log_end_is_refused(
    tmp_path: Path, records: list[NewRecord], base_offset: int | None
) -> None:
    with open_log(tmp_path) as log:
        log.append([record(b"k")])
        with pytest.raises(InvalidError):
            log.append(records, base_offset=base_offset)


def test_after_an_error_nothing_is_written_next_to_the_log(tmp_path: Path) -> None:
    """As after a crash: what is missing can be derived from the log."""

    def append_and_fail() -> None:
        with open_log(tmp_path) as log:
            log.append([record(b"k")])
            raise InvalidError("stop")

    with pytest.raises(InvalidError):
        append_and_fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
    ]
    with open_log(tmp_path) as log:
        assert log.log_end_offset == 1


def test_rolling_an_empty_segment_changes_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.roll()
        log.append([record(b"k")])
        log.roll()
        log.roll()
    assert names(tmp_path, ".log") == [0, 1]
