"""A partition directory as found: segments, indexes that may be wrong, and where the log ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keeplast.columns import batches as t
from keeplast.errors import (
    CorruptError,
    InterruptedSwapError,
    RefusedError,
    UnavailableError,
)
from keeplast.format import offset_index, time_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import INDEX, TIME_INDEX
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.log.log_end import check_understood
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentIndexes,
    Tail,
    find_tail,
    list_partition,
    load_aborted,
    load_entries,
    load_indexes,
    read_first_batch_timestamp,
    read_first_timestamp,
    summarize,
)
from keeplast.log.paths import place_path
from keeplast.log.windows import WindowBuffers
from tests.support.crashing_files import CrashingFiles
from tests.support.legacy_sets import encode_message
from tests.support.partition_maker import (
    NOW_MS,
    indexes_of,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)

FILES = LocalFiles()
INTERVAL = 100
BATCHES = [one(i, b"key%d" % i, bytes(40 + i), NOW_MS + i) for i in range(8)]
DATA = b"".join(BATCHES)
STARTS = [sum(len(batch) for batch in BATCHES[:i]) for i in range(len(BATCHES) + 1)]


def listed(directory: Path) -> PartitionFiles:
    return list_partition(directory, FILES)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One closed segment of eight batches and an empty active one."""
    return write_partition(tmp_path, {0: DATA, 8: b""}, interval=INTERVAL)


def indexes(directory: Path) -> SegmentIndexes:
    segment = listed(directory).segments[0]
    return load_indexes(segment, FILES, INTERVAL, WindowBuffers(1000))


def expected_indexes() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return indexes_of(0, list(read_batches(DATA)), INTERVAL)


def tuples(found: SegmentIndexes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return (
        [(int(a), int(b)) for a, b in found.offsets],
        [(int(a), int(b)) for a, b in found.times],
    )


def test_what_lies_in_a_partition_directory(directory: Path) -> None:
    write_snapshot(directory, 8)
    for name in (
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000004.log.0a1b.deleted",
        "notes.txt",
        "foo.log",
    ):
        (directory / name).write_bytes(b"")
    found = listed(directory)
    assert [(0, len(DATA)), (8, 0)] == [(s.base_offset, s.size_bytes) for s in found.segments]
    assert found.active.base_offset == 8
    assert [NOW_MS, NOW_MS] == [s.mtime_ms for s in found.segments]
    assert (8,) == found.snapshots
    assert len(found.leftovers) == 3
    assert ("foo.log", "leader-epoch-checkpoint", "notes.txt") == found.unknown


@pytest.mark.parametrize("kind", ["log", "index", "txnindex"])
def test_a_swap_that_was_interrupted_is_refused_with_what_ends_it(
    directory: Path, kind: str
) -> None:
    (directory / f"00000000000000000000.{kind}.swap").write_bytes(b"")
    with pytest.raises(InterruptedSwapError, match=f"keeplast clean or .* {directory.parent}, or"):
        listed(directory)
    with locked(directory.parent), pytest.raises(UnavailableError, match="just now"):
        listed(directory)


def test_a_copy_in_an_object_store_of_a_swap_is_refused() -> None:
    path = place_path("s3://bucket/data") / "t-0"
    names = {"00000000000000000000.log.swap": (b"", 0), "00000000000000000009.log": (b"", 0)}
    with pytest.raises(InterruptedSwapError, match=r"copy the directory again\. url=s3://bucket"):
        list_partition(path, CrashingFiles({path: names}))


def test_directory_without_a_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.index").write_bytes(b"")
    with pytest.raises(RefusedError):
        listed(tmp_path)


def test_segment_beyond_2_gib_is_refused(directory: Path) -> None:
    os.truncate(directory / "00000000000000000008.log", 2**31)
    with pytest.raises(RefusedError):
        listed(directory)
    os.truncate(directory / "00000000000000000008.log", 2**31 - 1)
    listed(directory)


def test_sound_indexes_are_taken_as_they_are(directory: Path) -> None:
    found = indexes(directory)
    assert not found.rebuilt
    assert expected_indexes() == tuples(found)
    assert NOW_MS + 7 == found.largest_timestamp_ms


def test_position_before_an_offset_is_that_of_an_entry_not_above_it(directory: Path) -> None:
    found = indexes(directory)
    (first, position), *_ = expected_indexes()[0]
    assert first > 0
    assert [0, 0, position] == [found.position_before(offset) for offset in (0, first - 1, first)]


INDEX_DAMAGES = {
    "missing": None,
    "cut inside an entry": b"\x00" * 7,
    "zero-padded to full size": bytes(10 << 20),
    "zeros behind the entries": offset_index.encode([(2, 150)]) + bytes(800),
    "offsets that fall": offset_index.encode([(5, 150), (3, 300)]),
    "positions that fall": offset_index.encode([(3, 300), (5, 150)]),
    "position behind the log": offset_index.encode([(3, 1 << 20)]),
    "negative": b"\xff" * 16,
}
TIME_INDEX_DAMAGES = {
    "missing": None,
    "cut inside an entry": b"\x00" * 11,
    "zero-padded to full size": bytes(10485756),
    "timestamps that fall": time_index.encode([(NOW_MS + 2, 1), (NOW_MS, 2)]),
    "offsets that fall": time_index.encode([(NOW_MS, 2), (NOW_MS + 1, 1)]),
    "negative": b"\xff" * 12,
}


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        *((INDEX, content) for content in INDEX_DAMAGES.values()),
        *((TIME_INDEX, content) for content in TIME_INDEX_DAMAGES.values()),
    ],
    ids=[*INDEX_DAMAGES, *(f"times: {name}" for name in TIME_INDEX_DAMAGES)],
)
def test_an_index_that_cannot_be_right_is_rebuilt_in_memory(
    directory: Path, ending: str, content: bytes | None
) -> None:
    """LS07: nothing is written."""
    path = directory / f"{0:020d}{ending}"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = indexes(directory)
    assert found.rebuilt
    assert expected_indexes() == tuples(found)
    assert (path.read_bytes() if path.exists() else None) == content


def test_an_active_index_ends_at_its_first_hole_and_at_the_sound_part_of_its_log(
    directory: Path,
) -> None:
    """A broker's own lookups go so far; where a hole begins something may be left behind it."""
    listing = list_partition(directory, FILES)
    closed = listing.segments[0]
    slots = [(1, STARTS[1]), (2, STARTS[2]), (3, STARTS[3])]
    behind = [(0, 0), (0, 0), (9, STARTS[2])]
    closed.path(INDEX).write_bytes(offset_index.encode(slots + behind))
    found = load_entries(closed, INDEX, FILES, valid_bytes=STARTS[3])
    assert slots[:2] == [tuple(each) for each in found.tolist()]
    times = [(0, 0), (NOW_MS, 2)]
    closed.path(TIME_INDEX).write_bytes(time_index.encode([*times, (0, 0), (0, 0)]))
    found = load_entries(closed, TIME_INDEX, FILES, valid_bytes=STARTS[3])
    assert times == [tuple(each) for each in found.tolist()]


def test_rebuilding_reads_the_batches_and_finds_their_damage(directory: Path) -> None:
    (directory / "00000000000000000000.index").unlink()
    log = directory / "00000000000000000000.log"
    data = bytearray(DATA)
    data[STARTS[3] + 70] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptError) as caught:
        indexes(directory)
    assert (str(log), STARTS[3]) == (caught.value.path, caught.value.position)


def test_summary_counts_index_entries_in_use(directory: Path) -> None:
    segment = listed(directory).segments[0]
    offsets, times = expected_indexes()
    summary = summarize(segment, indexes(directory), NOW_MS)
    assert (len(offsets) * 8, len(times) * 12) == (
        summary.offset_index_bytes, summary.time_index_bytes,
    )  # fmt: skip
    assert (NOW_MS + 7, NOW_MS) == (summary.largest_timestamp_ms, summary.first_timestamp_ms)
    nothing = SegmentIndexes(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64), False)
    assert NOW_MS == summarize(segment, nothing, None).age_timestamp_ms


# --- where the log ends ---


def active_only(tmp_path: Path, data: bytes) -> PartitionFiles:
    """A log of one segment, with the index of what should be in it."""
    directory = write_partition(tmp_path, {0: DATA}, interval=INTERVAL)
    (directory / f"{0:020d}.log").write_bytes(data)
    return listed(directory)


def test_log_ends_after_the_last_batch(tmp_path: Path) -> None:
    assert Tail(8, len(DATA)) == find_tail(active_only(tmp_path, DATA), FILES)


def test_empty_active_segment_ends_at_its_base(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: DATA, 40: b""})
    assert Tail(40, 0) == find_tail(listed(directory), FILES)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("size", range(STARTS[-2] + 1, STARTS[-1]))
def test_cut_anywhere_in_the_last_batch_ends_the_log_before_it(
    tmp_path: Path, size: int, has_index: bool
) -> None:
    """LS08, without its truncation."""
    partition = active_only(tmp_path, DATA[:size])
    if not has_index:
        (partition.path / "00000000000000000000.index").unlink()
    tail = find_tail(partition, FILES)
    assert (7, STARTS[-2], STARTS[-2]) == (tail.log_end, tail.valid_bytes, tail.torn_at)
    assert tail.problem
    assert size == (partition.path / "00000000000000000000.log").stat().st_size


@pytest.mark.parametrize("at", range(len(BATCHES[-1])))
def test_flipped_byte_anywhere_in_the_last_batch_ends_the_log_before_it(
    tmp_path: Path, at: int
) -> None:
    """The base offset and the leader epoch are outside the checksum and go unnoticed."""
    data = bytearray(DATA)
    data[STARTS[-2] + at] ^= 0x01
    tail = find_tail(active_only(tmp_path, bytes(data)), FILES)
    if at < 8 or 12 <= at < 16:
        assert tail.torn_at is None
    else:
        assert (7, STARTS[-2]) == (tail.log_end, tail.torn_at)


@pytest.mark.parametrize("torn", [b"\x00" * 100, b"\x00" * 5, b"\xff" * 40, BATCHES[0][:30]])
def test_bytes_that_a_crash_leaves_after_the_last_batch(tmp_path: Path, torn: bytes) -> None:
    tail = find_tail(active_only(tmp_path, DATA + torn), FILES)
    assert (8, len(DATA)) == (tail.log_end, tail.torn_at)


def test_damage_in_the_middle_of_the_active_segment_ends_the_log_there(tmp_path: Path) -> None:
    """With a sound index after it there would be no look; without one everything is read."""
    data = bytearray(DATA)
    data[STARTS[2] + 65] ^= 1
    partition = active_only(tmp_path, bytes(data))
    (partition.path / "00000000000000000000.index").unlink()
    tail = find_tail(partition, FILES)
    assert (2, STARTS[2]) == (tail.log_end, tail.torn_at)


@pytest.mark.parametrize("offset_in_batch", [1, 12, 61, 80])
@pytest.mark.parametrize("batch", [1, 4, 7])
def test_index_entry_into_the_middle_of_a_batch_does_not_move_the_end(
    tmp_path: Path, batch: int, offset_in_batch: int
) -> None:
    """Case H of formats.md 3.5: Kafka silently takes the base offset for the log's end."""
    partition = active_only(tmp_path, DATA)
    entry = offset_index.encode([(batch, STARTS[batch] + offset_in_batch)])
    (partition.path / "00000000000000000000.index").write_bytes(entry)
    assert Tail(8, len(DATA)) == find_tail(partition, FILES)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, bytes(10 << 20), b"\xff" * 64])
def test_active_index_that_cannot_be_right_is_not_used(tmp_path: Path, content: bytes) -> None:
    partition = active_only(tmp_path, DATA)
    (partition.path / "00000000000000000000.index").write_bytes(content)
    assert Tail(8, len(DATA)) == find_tail(partition, FILES)


def test_untrimmed_index_of_a_running_broker_is_no_obstacle(tmp_path: Path) -> None:
    partition = active_only(tmp_path, DATA)
    path = partition.path / "00000000000000000000.index"
    path.write_bytes(path.read_bytes() + bytes(1 << 20))
    assert Tail(8, len(DATA)) == find_tail(partition, FILES)


# --- single facts of a segment ---


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"\x00" * 17, None),
        (one(0, b"k", timestamp=1000), 1000),
        (one(0, b"k", timestamp=1000) + one(1, b"k", timestamp=2000), 1000),
        (encode_message(magic=1, offset=0, timestamp=77, key=b"k", value=b"v"), 77),
        (encode_message(magic=0, offset=0, timestamp=77, key=b"k", value=b"v"), -1),
        (encode_batch([], base_offset=0, max_timestamp=9), 9),
        (one(0, b"k", timestamp=1000)[:-1], None),
    ],
)
def test_ls05_timestamp_of_the_first_batch(
    tmp_path: Path, data: bytes, expected: int | None
) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    segment = listed(tmp_path).segments[0]
    assert expected == read_first_batch_timestamp(segment, FILES)
    head = check_understood(tmp_path, FILES)[0][0]
    (tmp_path / f"{0:020d}.log").unlink()
    assert expected == read_first_batch_timestamp(segment, FILES, head)


def two(first_ms: int, last_ms: int, **fields: Any) -> bytes:
    """Return a batch of two records with these timestamps."""
    records = [Record(0, first_ms, b"k", b"v"), Record(1, last_ms, b"k", b"v")]
    return encode_batch(records, **fields)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (two(1000, 9000), 1000),
        (two(9000, 1000), 9000),
        (two(-1, 9000), 9000),
        (two(1000, 9000, delete_horizon_ms=5000), 9000),
        (encode_message(magic=1, offset=0, timestamp=77, key=b"k", value=b"v"), 77),
        (encode_message(magic=0, offset=0, timestamp=77, key=b"k", value=b"v"), -1),
        (encode_batch([], base_offset=0, max_timestamp=9), 9),
        (one(0, b"k", timestamp=1000)[:-1], None),
    ],
)
def test_the_timestamp_of_the_first_record_is_taken_where_the_header_has_it(
    tmp_path: Path, data: bytes, expected: int | None
) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    segment = listed(tmp_path).segments[0]
    assert expected == read_first_timestamp(segment, FILES)


def test_with_log_append_time_every_record_has_the_brokers(tmp_path: Path) -> None:
    data = bytearray(two(1000, 9000))
    data[22] |= t.LOG_APPEND_TIME
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    assert 9000 == read_first_timestamp(listed(tmp_path).segments[0], FILES)


@pytest.mark.parametrize(
    ("at", "value"), [(8, b"\x00\x00\x00\x0d"), (8, b"\xff" * 4), (16, b"\x03")]
)
def test_damaged_first_header_is_corrupt(tmp_path: Path, at: int, value: bytes) -> None:
    """F6: Kafka's eligibility fails on it too."""
    data = bytearray(DATA)
    data[at : at + len(value)] = value
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(data)
    for head in (None, bytes(data[: t.HEADER_BYTES])):
        with pytest.raises(CorruptError) as caught:
            read_first_batch_timestamp(listed(tmp_path).segments[0], FILES, head)
        assert (str(path), 0) == (caught.value.path, caught.value.position)


def test_a_listing_knows_which_segments_have_indexes(tmp_path: Path) -> None:
    for base in (0, 5):
        (tmp_path / f"{base:020d}.log").write_bytes(DATA)
    (tmp_path / f"{5:020d}.index").write_bytes(b"")
    (tmp_path / f"{0:020d}.index.deleted").write_bytes(b"")
    (tmp_path / f"{0:020d}.txnindex").write_bytes(b"")
    (tmp_path / f"{5:020d}.txnindex.cleaned").write_bytes(b"")
    found = listed(tmp_path)
    bare = PartitionFiles(found.path, found.segments, (), (), ())
    assert found == PartitionFiles(found.path, found.segments, (), found.leftovers, ())
    assert [False, True] == [found.has_index(each, FILES) for each in found.segments]
    assert [False, True] == [bare.has_index(each, FILES) for each in found.segments]
    assert [True, False] == [found.may_have_aborted(each) for each in found.segments]
    assert [True, True] == [bare.may_have_aborted(each) for each in found.segments]


def test_aborted_transactions_of_a_segment(tmp_path: Path) -> None:
    entries = (AbortedTransaction(1, 40, 100, 101), AbortedTransaction(2, 90, 120, 121))
    write_segment(tmp_path, 100, b"", aborted=entries)
    write_segment(tmp_path, 200, b"")
    first, second = listed(tmp_path).segments
    assert entries == load_aborted(first, FILES)
    assert load_aborted(second, FILES) == ()


def test_tx02_transaction_that_ends_below_its_segment_is_corrupt(tmp_path: Path) -> None:
    """The file belongs to another segment."""
    entries = (AbortedTransaction(1, 40, 110, 111), AbortedTransaction(2, 50, 99, 100))
    write_segment(tmp_path, 100, b"", aborted=entries)
    with pytest.raises(CorruptError) as caught:
        load_aborted(listed(tmp_path).segments[0], FILES)
    assert (str(tmp_path / f"{100:020d}.txnindex"), 34) == (
        caught.value.path, caught.value.position,
    )  # fmt: skip


def test_unknown_version_of_a_transaction_index_is_corrupt_with_its_path(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, b"")
    path = tmp_path / f"{0:020d}.txnindex"
    path.write_bytes(b"\x01" * 34)
    with pytest.raises(CorruptError) as caught:
        load_aborted(listed(tmp_path).segments[0], FILES)
    assert str(path) == caught.value.path
