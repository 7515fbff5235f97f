"""What groups have committed, by the logs of a data directory: never more than was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from keeplast.format.compression import Codec
from keeplast.format.consumer_offsets import TOPIC, home_partition
from keeplast.format.record import ControlType, Record
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.model.hold import Absence, WaitedGroup
from keeplast.model.partition import TopicPartition
from keeplast.survey.group_offsets import FRESH_MS, GroupOffsets, waited_group
from keeplast.survey.wording import absence_words
from tests.support.committed_offsets import (
    commit_batch,
    commit_key,
    commit_offsets,
    commit_record,
    home_of,
    write_offsets_log,
)
from tests.support.flipped import flip
from tests.support.partition_maker import NOW_MS, PARTITION, marker, one

HOME = home_of("g")
OTHER = TopicPartition("t", 1)
LOG_END = 100
NO_COMMITS: Mapping[TopicPartition, int] = {}


def found(
    root: Path,
    group: str = "g",
    *,
    partition: TopicPartition = PARTITION,
    watermarks: Mapping[TopicPartition, int] = NO_COMMITS,
    topic_id: bytes | None = None,
) -> WaitedGroup:
    offsets = GroupOffsets(LocalFiles()).of(root, ["g", "h"], watermarks, NOW_MS)
    return waited_group(group, partition, offsets, topic_id, LOG_END)


def committed(root: Path, *batches: bytes, group: str = "g") -> WaitedGroup:
    """Return what counts of a log of these batches."""
    write_offsets_log(root, HOME, {0: b"".join(batches)})
    return found(root, group)


def plain(at: int, offset: int | None, group: str = "g") -> bytes:
    return commit_batch(commit_record(at, group, PARTITION, offset))


def in_transaction(at: int, offset: int | None, producer_id: int = 7) -> bytes:
    return commit_batch(commit_record(at, "g", PARTITION, offset), producer_id=producer_id)


def test_the_last_commit_of_each_group_and_partition_counts(tmp_path: Path) -> None:
    third = commit_record(3, "h", OTHER, 8)
    batches = plain(0, 5), plain(1, 9, "h"), plain(2, 7), commit_batch(third)
    assert WaitedGroup("g", 7, HOME) == committed(tmp_path, *batches)
    assert 9 == found(tmp_path, "h").offset
    assert 8 == found(tmp_path, "h", partition=OTHER).offset
    assert Absence.NOT_COMMITTED is found(tmp_path, partition=OTHER).absence


def test_an_offset_that_was_taken_away_is_none(tmp_path: Path) -> None:
    assert WaitedGroup("g", None, HOME, Absence.NOT_COMMITTED) == committed(
        tmp_path, plain(0, 5), plain(1, None)
    )
    assert 6 == committed(tmp_path, plain(0, 5), plain(1, None), plain(2, 6)).offset


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([in_transaction(1, 9)], 5),
        ([in_transaction(1, 9), marker(2, 7, ControlType.ABORT)], 5),
        ([in_transaction(1, 9), marker(2, 7, ControlType.COMMIT)], 9),
        # A marker ends the transaction of its producer and no other one.
        ([in_transaction(1, 9), marker(2, 8, ControlType.COMMIT)], 5),
        ([in_transaction(1, 9), plain(2, 6), marker(3, 7, ControlType.COMMIT)], 6),
        ([in_transaction(1, None), marker(2, 7, ControlType.COMMIT)], None),
        (
            [
                in_transaction(1, 9), marker(2, 7, ControlType.ABORT), in_transaction(3, 8),
                marker(4, 7, ControlType.COMMIT),
            ],
            8,
        ),
    ],
)  # fmt: skip
def test_what_was_written_in_a_transaction_counts_once_it_is_committed(
    tmp_path: Path, batches: list[bytes], expected: int | None
) -> None:
    assert expected == committed(tmp_path, plain(0, 5), *batches).offset


def test_a_transaction_may_end_in_a_later_segment(tmp_path: Path) -> None:
    segments = {0: in_transaction(0, 9), 1: marker(1, 7, ControlType.COMMIT), 2: b""}
    write_offsets_log(tmp_path, HOME, segments)
    assert 9 == found(tmp_path).offset


def test_an_unreplicated_commit_does_not_count(tmp_path: Path) -> None:
    batches = plain(0, 5), in_transaction(1, 9), plain(2, 7), marker(3, 7, ControlType.COMMIT)
    write_offsets_log(tmp_path, HOME, {0: b"".join(batches)})
    for watermark, expected in ((4, 7), (3, 7), (2, 5), (1, 5), (0, None)):
        marks = {TopicPartition(TOPIC, HOME): watermark}
        assert expected == found(tmp_path, watermarks=marks).offset


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_compressed_commits_count_too(tmp_path: Path, codec: Codec) -> None:
    records = [commit_record(at, "g", PARTITION, 3 + at) for at in range(3)]
    assert 5 == committed(tmp_path, commit_batch(*records, codec=codec)).offset


def test_a_group_whose_name_stands_elsewhere_is_not_taken_for_it(tmp_path: Path) -> None:
    key = commit_key("other", TopicPartition("t", 0))
    value = b"\0\x01g\0\x01t\0\0\0\0"
    assert committed(tmp_path, commit_batch(Record(0, NOW_MS, key, value))).offset is None


def test_a_group_is_found_wherever_it_is(tmp_path: Path) -> None:
    """How many partitions there are only says where a group would be that is not found."""
    commit_offsets(tmp_path, "g", {PARTITION: 5}, number=1)
    for number in (0, 2):
        write_offsets_log(tmp_path, number, {0: b""})
    assert WaitedGroup("g", 5, home_partition("g", 3)) == found(tmp_path)
    write_offsets_log(tmp_path, 60, {0: b""})
    assert WaitedGroup("g", 5, home_partition("g", 61)) == found(tmp_path)


def test_a_partition_that_is_not_here_is_named(tmp_path: Path) -> None:
    each = found(tmp_path)
    assert Absence.NOT_HERE is each.absence
    expected = f"{TOPIC}-{HOME}, where its offsets would be, is not in this directory"
    assert expected in absence_words(each)
    (tmp_path / f"{TOPIC}-{HOME}.{'a' * 32}-delete").mkdir()
    assert Absence.NOT_HERE is found(tmp_path).absence


def test_a_log_that_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    directory = write_offsets_log(tmp_path, HOME, {0: plain(0, 5), 1: plain(1, 6)})
    assert 6 == found(tmp_path).offset
    path = directory / f"{0:020d}.log"
    flip(path)
    each = found(tmp_path)
    assert (None, Absence.UNREADABLE) == (each.offset, each.absence)


def test_nothing_counts_while_segments_are_replaced(tmp_path: Path) -> None:
    directory = write_offsets_log(tmp_path, HOME, {0: plain(0, 5), 1: b""})
    (directory / f"{0:020d}.log.swap").write_bytes(b"")
    assert Absence.UNREADABLE is found(tmp_path).absence


def test_a_tail_that_is_torn_ends_the_log(tmp_path: Path) -> None:
    assert 5 == committed(tmp_path, plain(0, 5), plain(1, 6)[:-3]).offset


def test_a_commit_that_is_not_understood_does_not_count(tmp_path: Path) -> None:
    record = Record(1, NOW_MS, commit_key("g", PARTITION), b"\0\x05later")
    assert Absence.NOT_UNDERSTOOD is committed(tmp_path, plain(0, 5), commit_batch(record)).absence
    assert 6 == committed(tmp_path, commit_batch(record), plain(2, 6)).offset


def test_an_offset_of_another_log_does_not_count(tmp_path: Path) -> None:
    ours, theirs = b"a" * 16, b"b" * 16
    record = commit_record(0, "g", PARTITION, 5, version=4, topic_id=theirs)
    committed(tmp_path, commit_batch(record))
    assert 5 == found(tmp_path, topic_id=theirs).offset
    assert 5 == found(tmp_path, topic_id=None).offset
    assert Absence.ANOTHER_TOPIC is found(tmp_path, topic_id=ours).absence
    assert LOG_END == committed(tmp_path, plain(0, LOG_END)).offset
    assert Absence.BEYOND_END is committed(tmp_path, plain(0, LOG_END + 1)).absence
    assert Absence.NOT_COMMITTED is committed(tmp_path, plain(0, -1)).absence


class CountingFiles(LocalFiles):
    """Counts the logs that were opened."""

    def __init__(self) -> None:
        self.opened = 0

    def open_read(self, path: Path) -> ReadHandle:
        self.opened += path.suffix == ".log"
        return super().open_read(path)


def test_what_was_read_is_kept_for_a_while_and_unchanged_logs_for_longer(tmp_path: Path) -> None:
    files = CountingFiles()
    offsets = GroupOffsets(files)

    def at(now_ms: int, group: str = "g") -> int | None:
        known = offsets.of(tmp_path, [group], NO_COMMITS, now_ms)
        return waited_group(group, PARTITION, known, None, LOG_END).offset

    write_offsets_log(tmp_path, HOME, {0: plain(0, 5)})
    assert 5 == at(NOW_MS)
    opened = files.opened
    assert opened
    assert (5, 5) == (at(NOW_MS), at(NOW_MS + FRESH_MS))
    assert opened == files.opened
    write_offsets_log(tmp_path, HOME, {0: plain(0, 5) + plain(1, 6) + plain(2, 9, "h")})
    assert 5 == at(NOW_MS + FRESH_MS + 1)
    assert 6 == at(NOW_MS + 2 * FRESH_MS)
    # Another group, and a clock that was set back, are no reason to go by what is old.
    assert 9 == at(NOW_MS + 2 * FRESH_MS, "h")
    write_offsets_log(tmp_path, HOME, {0: plain(0, 5) + plain(1, 7)})
    assert 7 == at(NOW_MS)


def test_records_of_other_kinds_are_passed_over(tmp_path: Path) -> None:
    group = Record(1, NOW_MS, b"\0\x02\0\x01g", None)
    assert 5 == committed(tmp_path, plain(0, 5), commit_batch(group), one(2, b"\0\x63?")).offset
