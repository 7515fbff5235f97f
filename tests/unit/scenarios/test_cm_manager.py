"""Kafka's LogCleanerManagerTest: what is cleanable, and what a look at a log writes down.

Ids are those of cleaning.md section 8.2. README.md says where the others are: what a pure function
decides is tested with it, and what concerns a broker's threads does not exist here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.expiring_log import BOTH, expire, set_log_start, write_log
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import (
    NOW_MS,
    PARTITION,
    bases_of,
    clean,
    clean_request,
    coordinator,
)

LOW_RETENTION = TopicConfig(
    cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.05, retention_ms=1
)
DIRTY_HALF = replace(LOW_RETENTION, min_cleanable_dirty_ratio=0.5)


def make_log(root: Path, number: int, records: int, *, rolls: bool = True) -> TopicPartition:
    """Write a log of one-record batches that rolls before every fifth and at its end."""
    partition = TopicPartition("log", number)
    log = LogBuilder(root / str(partition), LOW_RETENTION)
    for key in range(records):
        if rolls and key and key % 5 == 0:
            log.roll()
        log.record(key, key)
    if rolls:
        log.roll()
    log.close()
    return partition


def put(root: Path, name: str, **offsets: int) -> None:
    """Write lines of a checkpoint file: ``p0=15`` is partition 0."""
    lines = {TopicPartition("log", int(key[1:])): value for key, value in offsets.items()}
    update_checkpoint(LocalFiles(), root, name, lines)


def cleaner_lines(root: Path) -> dict[int, int]:
    lines = read_checkpoint(LocalFiles(), root, CLEANER_CHECKPOINT)
    return {partition.partition: offset for partition, offset in lines.items()}


def rounds(
    root: Path, *partitions: TopicPartition, topic: TopicConfig = LOW_RETENTION
) -> list[RoundReport]:
    """Clean what is worth it of ``partitions``; return each one's last round."""
    request = CleanRequest(
        tuple(PartitionRequest(each, root / str(each), topic) for each in partitions),
        now_ms=NOW_MS,
        is_unsafe=True,
    )
    return [each.rounds[-1] for each in coordinator().clean(request).partitions]


def last_round_of(directory: Path) -> RoundReport:
    (partition,) = coordinator().clean(clean_request(directory)).partitions
    return partition.rounds[-1]


def test_cm01_a_log_that_cannot_be_judged_says_where_and_stops_no_other(tmp_path: Path) -> None:
    """A broker gives up looking at the others as well (cleaning.md section 10, row 10)."""
    bad, good = make_log(tmp_path, 0, 10), make_log(tmp_path, 1, 10)
    put(tmp_path, CLEANER_CHECKPOINT, p0=1)
    segment = tmp_path / str(bad) / f"{5:020d}.log"
    data = bytearray(segment.read_bytes())
    data[8:12] = b"\x00\x00\x00\x01"  # the size of the first batch
    segment.write_bytes(data)
    failed, done = rounds(tmp_path, bad, good)
    assert isinstance(failed.failure, CorruptError)
    assert str(segment) == failed.failure.path
    assert done.stats is not None
    assert {0: 1, 1: 10} == cleaner_lines(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> TopicPartition:
    return make_log(tmp_path, 0, 20)


def test_cm06_a_checkpoint_beyond_the_log_end_starts_again(
    log: TopicPartition, tmp_path: Path
) -> None:
    put(tmp_path, CLEANER_CHECKPOINT, p0=200)
    (found,) = rounds(tmp_path, log)
    assert 0 == found.first_dirty
    assert any("beyond the log end 20" in note for note in found.notes)


def test_cm07_a_checkpoint_below_the_log_start_starts_there(
    log: TopicPartition, tmp_path: Path
) -> None:
    put(tmp_path, CLEANER_CHECKPOINT, p0=0)
    put(tmp_path, LOG_START_CHECKPOINT, p0=10)
    assert [10] == [found.first_dirty for found in rounds(tmp_path, log)]


@pytest.mark.parametrize(
    ("records", "log_start", "checkpoint", "expected"),
    [
        pytest.param(9, 2, 0, 2, id="CM08 the log starts inside the active segment"),
        pytest.param(6, 0, 3, 3, id="CM09 the checkpoint lies inside the active segment"),
    ],
)
def test_nothing_is_cleaned_of_an_active_segment_alone(
    tmp_path: Path, records: int, log_start: int, checkpoint: int, expected: int
) -> None:
    log = make_log(tmp_path, 0, records, rolls=False)
    put(tmp_path, CLEANER_CHECKPOINT, p0=checkpoint)
    put(tmp_path, LOG_START_CHECKPOINT, p0=log_start)
    (found,) = rounds(tmp_path, log)
    assert (True, expected) == (found.skipped, found.first_dirty)
    assert "only the active segment" in (found.reason or "")
    assert {0: expected} == cleaner_lines(tmp_path)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"delete"}, id="CM10"),
        pytest.param({"compact", "delete"}, id="CM11"),
        pytest.param({"compact"}, id="CM12"),
    ],
)
def test_what_lies_below_the_log_start_goes_whatever_the_policy(
    tmp_path: Path, policy: set[str]
) -> None:
    """A broker's cleaner leaves CM10 to another thread; there is none here."""
    directory = write_log(tmp_path)
    set_log_start(directory, 5)
    expire(directory, replace(BOTH, cleanup_policy=frozenset(policy)))
    assert [5, 10] == bases_of(directory)


def test_cm13_a_topic_that_becomes_compacted_is_dirty_from_its_start(tmp_path: Path) -> None:
    """And going back and forth keeps the checkpoint: policy is no state of the log."""
    directory = write_log(tmp_path)
    expire(directory, replace(BOTH, cleanup_policy=frozenset({"delete"})))
    assert 0 == clean(clean_request(directory)).first_dirty
    expire(directory, replace(BOTH, cleanup_policy=frozenset({"delete"})))
    assert 10 == last_round_of(directory).first_dirty


def test_cm14_cm17_a_line_reads_back_and_others_stay(tmp_path: Path) -> None:
    put(tmp_path, CLEANER_CHECKPOINT, p0=999)
    put(tmp_path, CLEANER_CHECKPOINT, p1=7)
    assert {0: 999, 1: 7} == cleaner_lines(tmp_path)
    put(tmp_path, CLEANER_CHECKPOINT, p0=1)
    assert {0: 1, 1: 7} == cleaner_lines(tmp_path)


def test_cm28_a_round_that_is_done_moves_the_checkpoint_and_a_failed_one_does_not(
    log: TopicPartition, tmp_path: Path
) -> None:
    put(tmp_path, CLEANER_CHECKPOINT, p0=5)
    segment = tmp_path / str(log) / f"{15:020d}.log"
    sound = segment.read_bytes()
    segment.write_bytes(sound[:-1] + b"\xff")
    (failed,) = rounds(tmp_path, log)
    assert isinstance(failed.failure, CorruptError)
    assert {0: 5} == cleaner_lines(tmp_path)
    segment.write_bytes(sound)
    rounds(tmp_path, log)
    assert {0: 20} == cleaner_lines(tmp_path)


def test_cm30_a_checkpoint_is_repaired_though_nothing_is_cleaned(
    log: TopicPartition, tmp_path: Path
) -> None:
    put(tmp_path, CLEANER_CHECKPOINT, p0=15)
    put(tmp_path, LOG_START_CHECKPOINT, p0=20)
    (found,) = rounds(tmp_path, log)
    assert found.skipped
    assert {0: 20} == cleaner_lines(tmp_path)


def test_cm31_a_checkpoint_is_repaired_of_a_log_that_is_not_worth_it(tmp_path: Path) -> None:
    one, other = make_log(tmp_path, 0, 20), make_log(tmp_path, 1, 25)
    put(tmp_path, CLEANER_CHECKPOINT, p0=10, p1=5)
    put(tmp_path, LOG_START_CHECKPOINT, p0=15)
    skipped, cleaned = rounds(tmp_path, one, other, topic=DIRTY_HALF)
    assert (True, False) == (skipped.skipped, cleaned.skipped)
    assert {0: 15, 1: 25} == cleaner_lines(tmp_path)


def test_lm03_lm04_a_delete_policy_expires_by_time_and_by_size(tmp_path: Path) -> None:
    """The files go at once: no reader is served from them."""
    aged = write_log(tmp_path / "aged", segments=4, timestamp_ms=NOW_MS - 1000)
    expire(aged, TopicConfig(retention_ms=999))
    assert 1 == len(bases_of(aged))
    large = write_log(tmp_path / "large", segments=9)
    limit = 6 * sum(p.stat().st_size for p in large.glob("*.log")) // 9
    expire(large, TopicConfig(retention_ms=-1, retention_bytes=limit))
    assert 6 == len(bases_of(large))
    assert [] == [p.name for p in large.iterdir() if ".deleted" in p.name]
    assert str(PARTITION) == large.name
