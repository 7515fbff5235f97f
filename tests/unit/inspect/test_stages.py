"""Tombstones and markers by stage, against logs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.compression import Codec
from keeplast.inspect.stages import StageCounts, Stages, stages_by_headers, stages_by_records
from keeplast.inspect.verified_log import VerifiedLog
from keeplast.log.partition_log import find_tail, list_partition
from tests.support.flipped import flip
from tests.support.log_builder import LogBuilder, record_of, text, tombstone_of
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS, clean_at

HORIZON_MS = NOW_MS + DAY_MS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogBuilder]:
    with closing(LogBuilder(tmp_path / "t-0", COMPACT)) as builder:
        yield builder


def ignore(_: int) -> None:
    """Take no notice of progress."""


def by_headers(log: LogBuilder, now_ms: int = NOW_MS) -> Stages:
    files = UnsyncedFiles()
    listing = list_partition(log.directory, files)
    return stages_by_headers(listing, find_tail(listing, files), files, now_ms, ignore)


def by_records(log: LogBuilder, now_ms: int = NOW_MS) -> Stages:
    return stages_by_records(VerifiedLog(log.directory, UnsyncedFiles()), now_ms, ignore)


def write_deletions(log: LogBuilder, codec: Codec = Codec.NONE) -> None:
    """Write a batch with two tombstones and a value, one with one; close them; one more stays."""
    log.append(tombstone_of(b"a"), record_of(b"b"), tombstone_of(b"c"), codec=codec)
    log.append(tombstone_of(b"d"), codec=codec)
    log.roll()
    log.append(tombstone_of(b"e"), codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_tombstones_have_no_horizon_then_wait_then_are_removable(
    log: LogBuilder, codec: Codec
) -> None:
    write_deletions(log, codec)
    none = StageCounts(0, 0, 0)
    assert Stages(StageCounts(4, 0, 0), none, True) == by_records(log)
    assert Stages(StageCounts(None, 0, 0), none, False) == by_headers(log)
    clean_at(log.directory)
    retained = StageCounts(1, 3, 0, HORIZON_MS, HORIZON_MS)
    assert Stages(retained, none, True) == by_records(log)
    assert Stages(replace(retained, unstamped=None, retained=2), none, False) == by_headers(log)
    assert StageCounts(1, 0, 3) == by_records(log, HORIZON_MS).tombstones
    assert StageCounts(None, 0, 2) == by_headers(log, HORIZON_MS).tombstones
    clean_at(log.directory, HORIZON_MS)
    assert StageCounts(1, 0, 0) == by_records(log, HORIZON_MS).tombstones


def test_markers_are_counted_exactly_by_headers_too(log: LogBuilder) -> None:
    producer = log.producer(7)
    producer.send(1)
    producer.abort()
    log.append(record_of(b"x"))
    log.roll()
    producer.send(2)
    producer.commit()
    stages = []
    for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + 2):
        assert by_headers(log, now_ms).markers == by_records(log, now_ms).markers
        stages.append(by_headers(log, now_ms).markers)
        clean_at(log.directory, now_ms)
    assert [
        StageCounts(2, 0, 0),  # one has its data, the other lies in the active segment
        StageCounts(2, 0, 0),  # the first round saw the data that it removed
        StageCounts(1, 1, 0, HORIZON_MS + 1, HORIZON_MS + 1),
    ] == stages


def test_waits_that_end_at_different_times_are_given_from_first_to_last(log: LogBuilder) -> None:
    for number, key in enumerate((b"a", b"b")):
        log.append(tombstone_of(key))
        log.append(record_of(text(number)))
        log.roll()
        clean_at(log.directory, NOW_MS + number)
    found = by_records(log).tombstones
    assert (2, HORIZON_MS, HORIZON_MS + 1) == (found.retained, found.first_ms, found.last_ms)
    found = by_records(log, HORIZON_MS).tombstones
    assert (1, 1, HORIZON_MS + 1) == (found.retained, found.removable, found.first_ms)


def test_large_batches_are_counted_from_one_header_to_the_next(log: LogBuilder) -> None:
    for number in range(40):
        log.append(tombstone_of(text(number)), record_of(b"v%d" % number, b"x" * (64 << 10)))
    log.roll()
    clean_at(log.directory)
    assert 40 == by_headers(log).tombstones.retained
    assert 40 == by_records(log).tombstones.retained


def test_a_torn_tail_of_the_active_segment_counts_for_nothing(
    log: LogBuilder,
) -> None:
    write_deletions(log)
    path = log.path(log.active_base)
    with path.open("ab") as file:
        file.write(b"\0" * 30)
    assert 4 == by_records(log).tombstones.unstamped
    assert StageCounts(0, 0, 0) == by_headers(log).markers


def test_all_bytes_are_reported_on_the_way(log: LogBuilder) -> None:
    write_deletions(log)
    files, heard = UnsyncedFiles(), list[int]()
    listing = list_partition(log.directory, files)
    total = sum(segment.size_bytes for segment in listing.segments)
    stages_by_headers(listing, find_tail(listing, files), files, NOW_MS, heard.append)
    assert total == sum(heard)
    stages_by_records(VerifiedLog(log.directory, files), NOW_MS, heard.append)
    assert 2 * total == sum(heard)


def test_records_are_checked_and_headers_are_not(log: LogBuilder) -> None:
    write_deletions(log)
    path = log.path(0)
    flip(path, 70)
    assert StageCounts(None, 0, 0) == by_headers(log).tombstones
    with pytest.raises(CorruptError):
        by_records(log)
