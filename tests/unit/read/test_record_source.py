"""Reading a log in splits: what is left out is not read, and a log that changes loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, RefusedError, UnavailableError
from keeplast.format import offset_index, time_index
from keeplast.format.checkpoint import encode_offsets
from keeplast.log import readers
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.log.lock import locked
from keeplast.model.partition import TopicPartition
from keeplast.read.log_view import Wanted
from keeplast.read.record_source import read_records
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from tests.support.counting_files import CountingFiles
from tests.support.flipped import flip
from tests.support.log_builder import LogBuilder
from tests.support.manual_clock import ManualClock
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    clean_at,
    data_batch,
    one,
    records_of,
    write_partition,
    write_snapshot,
)
from tests.support.reader import read_partition
from tests.support.record_rows import expected_rows, rows_of
from tests.support.source_reading import read_log, read_splits, splits_of, view_of

SEGMENTS = 4
RECORDS = 400
"""Records of a segment, a batch each, 1 ms apart."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of four segments of 40 KiB, the last one active; timestamps ascend."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    for number in range(SEGMENTS * RECORDS):
        if number and number % RECORDS == 0:
            log.roll()
        log.append(NewRecord(b"%d" % (number % 50), b"v" * 30, NOW_MS + number))
    log.close()
    return tmp_path / "t-0"


def bytes_read(directory: Path, wanted: Wanted) -> int:
    """Return how many bytes of logs the splits of ``wanted`` read, the look before not counted."""
    splits = splits_of(view_of(directory), wanted)
    files = CountingFiles(".log")
    read_splits(splits, files=files)
    return files.bytes_read


def test_an_offset_range_reads_only_what_the_offset_index_points_at(directory: Path) -> None:
    whole = bytes_read(directory, Wanted())
    wanted = Wanted(500, 520)
    assert list(range(500, 520)) == [row.offset for row in read_log(directory, wanted)]
    assert bytes_read(directory, wanted) <= 3 * 4096 < whole // 10


def test_segments_that_are_too_old_are_not_read(directory: Path) -> None:
    first = 2 * RECORDS + 100
    wanted = Wanted(first_ms=NOW_MS + first)
    rows = read_log(directory, wanted)
    assert list(range(first, SEGMENTS * RECORDS)) == [row.offset for row in rows]
    segment = (directory / f"{0:020d}.log").stat().st_size
    assert bytes_read(directory, Wanted()) - bytes_read(directory, wanted) > 2 * segment
    # Of the third segment only what follows the last older entry of its time index.
    assert splits_of(view_of(directory), wanted)[0].wanted.first_offset > 2 * RECORDS + 40


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_a_time_index_that_lost_its_end_leaves_no_late_record_out(
    directory: Path, kept: int
) -> None:
    """A crash, or a copy of a directory in pieces, takes the last entries of a closed segment."""
    path = directory / f"{RECORDS:020d}.timeindex"
    path.write_bytes(path.read_bytes()[: kept * time_index.ENTRY_BYTES])
    for late in (RECORDS + 200, 2 * RECORDS - 1):
        rows = read_log(directory, Wanted(first_ms=NOW_MS + late))
        assert list(range(late, SEGMENTS * RECORDS)) == [row.offset for row in rows]


def test_a_segment_whose_last_batches_are_the_early_ones_is_left_out(tmp_path: Path) -> None:
    """The time index of a log with unordered times ends before its segment does."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    for stamp in [*range(60), 5, 4]:
        log.append(NewRecord(b"k", b"v", NOW_MS + stamp))
    log.roll()
    log.append(NewRecord(b"k", b"v", NOW_MS + 1000))
    log.close()
    splits = splits_of(view_of(log.directory), Wanted(first_ms=NOW_MS + 60))
    assert [62] == [split.wanted.first_offset for split in splits]


def test_late_timestamps_are_left_out_one_by_one(directory: Path) -> None:
    rows = read_log(directory, Wanted(last_ms=NOW_MS + 99))
    assert list(range(100)) == [row.offset for row in rows]


def test_nothing_is_read_of_a_range_that_is_empty(directory: Path) -> None:
    assert [] == splits_of(view_of(directory), Wanted(10, 10))


@pytest.mark.parametrize("split_bytes", [1, 5000, 60_000, 1 << 30])
def test_splits_hold_every_record_once(directory: Path, split_bytes: int) -> None:
    splits = splits_of(view_of(directory), split_bytes=split_bytes)
    assert list(range(SEGMENTS * RECORDS)) == [row.offset for row in read_splits(splits)]
    if split_bytes == 5000:
        assert 10 < len(splits) < 40
    assert (len(splits) == 1) == (split_bytes == 1 << 30)


def test_a_split_across_segments_of_another_log_format_is_whole(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    everything = expected_rows(read_partition(directory).batches)
    assert everything == read_log(directory, committed=False)
    aborted = {16, 17}
    committed = [row for row in everything if row.offset not in aborted]
    assert committed == read_log(directory)
    for end in range(0, 63, 7):
        wanted = Wanted(end, end + 7)
        assert [r for r in committed if end <= r.offset < end + 7] == read_log(directory, wanted)


def test_records_below_the_log_start_are_not_seen(directory: Path) -> None:
    checkpoint = directory.parent / "log-start-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({TopicPartition("t", 0): 450}))
    assert 450 == read_log(directory)[0].offset


def test_the_high_watermark_bounds_readers_that_ask_for_it(directory: Path) -> None:
    checkpoint = directory.parent / "replication-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({TopicPartition("t", 0): 450}))
    view = view_of(directory)
    assert 450 == view.end_for(committed=True, replicated=True)
    assert SEGMENTS * RECORDS == view.end_for(committed=True, replicated=False)


def test_an_open_transaction_ends_what_is_committed(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.record(1, 1)
    log.producer(7).send(2, 3)
    log.record(4, 4)
    log.close()
    assert [0] == [row.offset for row in read_log(tmp_path / "t-0")]
    assert [0, 1, 2, 3] == [row.offset for row in read_log(tmp_path / "t-0", committed=False)]


def test_a_torn_tail_is_not_read(directory: Path) -> None:
    active = directory / f"{3 * RECORDS:020d}.log"
    active.write_bytes(active.read_bytes()[:-5])
    assert SEGMENTS * RECORDS - 1 == len(read_log(directory))


def test_damage_in_a_closed_segment_names_the_place(directory: Path) -> None:
    path = directory / f"{RECORDS:020d}.log"
    flip(path, -3)
    with pytest.raises(CorruptError) as caught:
        read_log(directory)
    assert str(path) == caught.value.path
    assert caught.value.position is not None


def test_an_index_of_another_segment_costs_time_and_no_record(directory: Path) -> None:
    for index in directory.glob("*.index"):
        data = bytearray(index.read_bytes())
        for at in range(7, len(data), 8):
            data[at] ^= 5
        index.write_bytes(data)
    for first in (0, 130, 399, 777, 1599):
        rows = read_log(directory, Wanted(first, first + 50))
        assert list(range(first, min(first + 50, 1600))) == [row.offset for row in rows]


class ChangingFiles(LocalFiles):
    """Calls ``change`` before a file of some name is opened, once."""

    def __init__(self, name: str, change: object) -> None:
        self._name = name
        self._change = change

    def open_read(self, path: Path) -> ReadHandle:
        if path.name == self._name and callable(self._change):
            change, self._change = self._change, None
            change()
        return super().open_read(path)


def merged(directory: Path, bases: list[int]) -> None:
    """Replace neighbouring segments by one that has every fifth of their records."""
    batches = [
        batch for base in bases for batch in read_partition_batches(directory / f"{base:020d}.log")
    ]
    for base in bases:
        for path in directory.glob(f"{base:020d}.*"):
            path.unlink()
    data = b"".join(batch for i, batch in enumerate(batches) if i % 5 == 0)
    (directory / f"{bases[0]:020d}.log").write_bytes(data)


def read_partition_batches(path: Path) -> list[bytes]:
    """Return the bytes of each batch of a segment."""
    data, found = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found.append(data[:size])
        data = data[size:]
    return found


def test_segments_that_are_merged_meanwhile_lose_nothing_that_stays(directory: Path) -> None:
    (split,) = splits_of(view_of(directory))
    name = f"{RECORDS:020d}.log"
    files = ChangingFiles(name, lambda: merged(directory, [RECORDS, 2 * RECORDS]))
    rows = rows_of(read_records(split, files, SystemClock(), Workspace(MEMORY_BYTES_MIN)))
    offsets = [row.offset for row in rows]
    expected = [
        *range(RECORDS), *range(RECORDS, 3 * RECORDS, 5), *range(3 * RECORDS, 4 * RECORDS)
    ]  # fmt: skip
    assert expected == offsets


def test_a_swap_is_waited_for(directory: Path) -> None:
    staged = directory / f"{0:020d}.log.swap"
    shutil.copy(directory / f"{0:020d}.log", staged)

    class EndingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            staged.unlink()

    with locked(directory.parent):
        assert SEGMENTS * RECORDS == view_of(directory, clock=EndingClock(NOW_MS)).log_end
    assert not staged.exists()


def test_a_swap_that_never_ends_is_an_error(directory: Path) -> None:
    shutil.copy(directory / f"{0:020d}.log", directory / f"{0:020d}.log.swap")
    clock = ManualClock(NOW_MS)
    with locked(directory.parent), pytest.raises(UnavailableError):
        view_of(directory, clock=clock)
    assert clock.seconds() - NOW_MS / 1000 >= readers.SWAP_SECONDS_MAX


def test_a_swap_that_was_interrupted_is_not_waited_for(directory: Path) -> None:
    shutil.copy(directory / f"{0:020d}.log", directory / f"{0:020d}.log.swap")
    clock = ManualClock(NOW_MS)
    with pytest.raises(RefusedError, match="keeplast clean"):
        view_of(directory, clock=clock)
    assert clock.now_ms() == NOW_MS


def test_a_log_that_grows_shows_what_was_there_when_it_was_looked_at(directory: Path) -> None:
    splits = splits_of(view_of(directory))
    active = directory / f"{3 * RECORDS:020d}.log"
    with active.open("ab") as file:
        file.write(b"\0" * 30)
    assert SEGMENTS * RECORDS == len(read_splits(splits))
    beyond = [replace(split, wanted=Wanted(0, 1 << 40)) for split in splits]
    assert SEGMENTS * RECORDS == len(read_splits(beyond))


def test_segments_that_always_vanish_are_an_error(directory: Path) -> None:
    class Vanishing(LocalFiles):
        def open_read(self, path: Path) -> ReadHandle:
            if path.suffix == ".log" and path.name.startswith(f"{RECORDS:020d}"):
                raise FileNotFoundError(path)
            return super().open_read(path)

    splits = splits_of(view_of(directory))
    with pytest.raises(UnavailableError):
        read_splits(splits, files=Vanishing())


def test_an_index_from_before_the_segment_was_cleaned_hides_nothing(tmp_path: Path) -> None:
    """As in a copy that was made while a broker replaced the segment: batches are of one size, so
    that the old places are ends of other batches.
    """
    keys = [b"k%03d" % (number if number % 2 else 0) for number in range(400)]
    segments = {0: b"".join(one(i, key) for i, key in enumerate(keys)), 400: one(400, b"last")}
    directory = write_partition(tmp_path, segments, interval=500)
    index = directory / f"{0:020d}.index"
    data = index.read_bytes()
    clean_at(directory)
    size_bytes = (directory / f"{0:020d}.log").stat().st_size
    stale = [entry for entry in offset_index.decode(data).tolist() if entry[1] < size_bytes]
    index.write_bytes(offset_index.encode(stale))
    left = [record.offset for record in records_of(directory)]
    assert 202 == len(left)
    for split_bytes in (1, 300, 1000, 5000, 1 << 30):
        assert left == [row.offset for row in read_log(directory, split_bytes=split_bytes)]
    for first, end in ((0, 50), (100, 300), (150, 160), (199, 401), (399, 400)):
        expected = [offset for offset in left if first <= offset < end]
        assert expected == [row.offset for row in read_log(directory, Wanted(first, end))]


@pytest.mark.parametrize(("batches", "rest"), [(0, 0), (100, 0), (100, 5)])
def test_a_wrong_index_hides_no_open_transaction(tmp_path: Path, batches: int, rest: int) -> None:
    """The newest snapshot lies inside a segment whose index leads behind the open one's data."""
    data = b"".join(
        data_batch(i, 7, [b"op"]) if i == 205 else one(i, b"%03d" % i) for i in range(400)
    )
    shift = batches * len(one(0, b"000")) + rest
    assert 400 * len(one(0, b"000")) == len(data)
    directory = write_partition(tmp_path, {0: data, 400: one(400, b"x")}, interval=500)
    write_snapshot(directory, 150)
    index = directory / f"{0:020d}.index"
    entries = [(o, p + shift) for o, p in offset_index.decode(index.read_bytes()).tolist()]
    index.write_bytes(offset_index.encode([each for each in entries if each[1] < len(data)]))
    assert 205 == view_of(directory).last_stable
    assert list(range(205)) == [row.offset for row in read_log(directory)]
