"""Aborted transactions are known by batches and markers, whatever the indexes say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from keeplast.errors import CorruptError
from keeplast.format import txn_index
from keeplast.format.batch import RecordBatch, encode_batch
from keeplast.format.compression import Codec
from keeplast.format.message_set import read_batches
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.active_segment import ProducerState
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.transactions import aborted_between, aborted_by_segment
from keeplast.log.windows import WindowBuffers
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import (
    NOW_MS,
    data_batch,
    marker,
    one,
    write_partition,
    write_snapshot,
)

FILES = LocalFiles()
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def derived(
    directory: Path, *, start: int = 0, end: int | None = None, window_bytes: int = 1 << 16
) -> tuple[AbortedTransaction, ...]:
    listing = list_partition(directory, FILES)
    tail = find_tail(listing, FILES)
    buffers = WindowBuffers(window_bytes)
    return aborted_between(listing, tail, FILES, buffers, start=start, end=end)


def entry(producer_id: int, first: int, last: int, stable: int | None = None) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last + 1 if stable is None else stable)


def opened(producer_id: int, first_offset: int) -> ProducerEntry:
    return ProducerEntry(producer_id, 0, 0, first_offset, 0, NOW_MS, 0, first_offset)


def test_an_abort_that_the_index_lacks_is_found(tmp_path: Path) -> None:
    data = data_batch(0, 7, [b"a"]) + data_batch(1, 8, [b"b"]) + marker(2, 7, ABORT)
    directory = write_partition(tmp_path, {0: data + marker(3, 8, ABORT), 4: b""})
    assert (entry(7, 0, 2, 1), entry(8, 1, 3)) == derived(directory)


def test_an_abort_of_the_index_alone_is_not_believed(tmp_path: Path) -> None:
    data = data_batch(0, 7, [b"a"]) + marker(1, 7, COMMIT)
    directory = write_partition(tmp_path, {0: data, 2: b""})
    (directory / f"{0:020d}.txnindex").write_bytes(txn_index.encode([entry(7, 0, 1)]))
    assert () == derived(directory)


def test_a_transaction_goes_on_in_the_next_segments(tmp_path: Path) -> None:
    segments = {0: data_batch(0, 7, [b"a"]), 1: one(1, b"k"), 2: marker(2, 7, ABORT), 3: b""}
    directory = write_partition(tmp_path, segments)
    listing = list_partition(directory, FILES)
    found = aborted_by_segment(listing, find_tail(listing, FILES), FILES, WindowBuffers(1 << 16))
    assert [(0, ()), (1, ()), (2, (entry(7, 0, 2),))] == [
        (segment.base_offset, entries) for segment, entries in found
    ]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_range_knows_what_began_before_it(tmp_path: Path, *, has_snapshot: bool) -> None:
    segments = {0: data_batch(0, 7, [b"a"]), 1: one(1, b"k"), 2: marker(2, 7, ABORT), 3: b""}
    directory = write_partition(tmp_path, segments)
    if has_snapshot:
        write_snapshot(directory, 2, [opened(7, 0)])
        # It is believed, and what lies before it is not read again.
        (directory / f"{0:020d}.log").write_bytes(b"\x00" * 80)
    assert (entry(7, 0, 2),) == derived(directory, start=2)


def test_a_snapshot_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    directory = write_partition(
        tmp_path, {0: data_batch(0, 7, [b"a"]), 1: marker(1, 7, ABORT), 2: b""}
    )
    write_snapshot(directory, 1).write_bytes(b"\x00\x01garbage")
    assert (entry(7, 0, 1),) == derived(directory, start=1)


def test_a_transaction_from_below_the_log_begins_where_the_snapshot_says(tmp_path: Path) -> None:
    data = data_batch(5, 7, [b"a"]) + marker(6, 7, ABORT)
    directory = write_partition(tmp_path, {5: data, 7: b""})
    assert (entry(7, 5, 6),) == derived(directory)
    write_snapshot(directory, 5, [opened(7, 2)])
    assert (entry(7, 2, 6),) == derived(directory, start=5)
    assert (entry(7, 5, 6),) == derived(directory)


def test_a_marker_without_data_is_no_transaction(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: marker(4, 7, ABORT), 5: b""})
    assert () == derived(directory)


def test_a_header_that_a_cleaner_left_still_counts_as_data(tmp_path: Path) -> None:
    empty = encode_batch(
        [], base_offset=0, last_offset=2, producer_id=7, producer_epoch=0, is_transactional=True
    )
    directory = write_partition(tmp_path, {0: empty + marker(3, 7, ABORT), 4: b""})
    assert (entry(7, 0, 3),) == derived(directory)


def test_an_emptied_marker_ends_nothing(tmp_path: Path) -> None:
    empty = encode_batch(
        [], base_offset=1, last_offset=1, producer_id=7, producer_epoch=0,
        is_transactional=True, is_control=True,
    )  # fmt: skip
    data = data_batch(0, 7, [b"a"]) + empty + marker(2, 7, ABORT)
    assert (entry(7, 0, 2),) == derived(write_partition(tmp_path, {0: data, 3: b""}))


def test_a_compressed_marker_is_read(tmp_path: Path) -> None:
    key, value = encode_end_transaction(EndTransactionMarker(ABORT, 0))
    packed = encode_batch(
        [Record(1, NOW_MS, key, value)], codec=Codec.GZIP, producer_id=7, producer_epoch=0,
        is_transactional=True, is_control=True,
    )  # fmt: skip
    directory = write_partition(tmp_path, {0: data_batch(0, 7, [b"a"]) + packed, 2: b""})
    assert (entry(7, 0, 1),) == derived(directory)


def test_old_formats_and_gaps_change_nothing(tmp_path: Path) -> None:
    data = encode_message_set([Record(0, NOW_MS, b"k", b"v")], magic=1) + data_batch(9, 7, [b"a"])
    directory = write_partition(tmp_path, {0: data + marker(70, 7, ABORT), 900: b""})
    assert (entry(7, 9, 70),) == derived(directory)


def test_a_marker_of_a_newer_epoch_ends_the_transaction(tmp_path: Path) -> None:
    data = data_batch(0, 7, [b"a"]) + marker(1, 7, ABORT, epoch=1) + marker(2, 7, ABORT, epoch=2)
    assert (entry(7, 0, 1),) == derived(write_partition(tmp_path, {0: data, 3: b""}))


def test_a_damaged_marker_is_not_believed(tmp_path: Path) -> None:
    last = bytearray(marker(1, 7, ABORT))
    last[-10] ^= 1  # the record's key: a commit, had it not a checksum
    directory = write_partition(tmp_path, {0: data_batch(0, 7, [b"a"]) + last, 2: b""})
    with pytest.raises(CorruptError, match="crc mismatch"):
        derived(directory)


def test_nothing_is_found_in_an_empty_range(tmp_path: Path) -> None:
    data = data_batch(0, 7, [b"a"]) + marker(1, 7, ABORT)
    directory = write_partition(tmp_path, {0: data, 2: b""})
    assert () == derived(directory, start=2)
    assert () == derived(directory, end=1)
    assert (entry(7, 0, 1),) == derived(directory, start=1)


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_is_the_twin_of_the_producer_state(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    producers = [1 << dice.randrange(1, 50) for _ in range(dice.choice([1, 3, 40]))]
    segments: dict[int, bytes] = {}
    offset = 0
    for _ in range(5):
        base, data = offset, b""
        for _ in range(dice.randrange(1, 200)):
            producer_id, kind = dice.choice(producers), dice.randrange(5)
            if kind < 2:
                data += marker(offset, producer_id, COMMIT if kind else ABORT)
            else:
                data += data_batch(offset, producer_id, [b"k"] * dice.randrange(1, 4))
            offset += dice.randrange(3, 6)
        segments[base] = data
    twin, expected, cuts = ProducerState(), [], sorted(dice.sample(range(offset), 2))
    directory = write_partition(tmp_path, {**segments, offset: b""})
    for base, data in segments.items():
        if dice.randrange(2):
            write_snapshot(directory, base, twin.entries())
        for batch in read_batches(data):
            assert isinstance(batch, RecordBatch)
            ended = twin.add(batch)
            expected += [] if ended is None else [ended]
    window_bytes = dice.choice([200, 5000, 1 << 20])
    assert tuple(expected) == derived(directory, window_bytes=window_bytes)
    assert tuple(e for e in expected if cuts[0] <= e.last_offset < cuts[1]) == derived(
        directory, start=cuts[0], end=cuts[1], window_bytes=window_bytes
    )


def test_nothing_is_read_after_the_record_that_decides(tmp_path: Path) -> None:
    segments = {0: data_batch(0, 7, [b"a"]), 1: marker(1, 7, ABORT), 2: one(2, b"k"), 3: b""}
    directory = write_partition(tmp_path, segments)
    (directory / f"{2:020d}.log").write_bytes(b"damage" * 20)
    listing = list_partition(directory, FILES)
    tail, buffers = find_tail(listing, FILES), WindowBuffers(1 << 16)
    found = aborted_by_segment(listing, tail, FILES, buffers, deciding=1)
    assert [(0, ()), (1, (entry(7, 0, 1),))] == [(s.base_offset, its) for s, its in found]
    with pytest.raises(CorruptError):
        list(aborted_by_segment(listing, tail, FILES, buffers))
