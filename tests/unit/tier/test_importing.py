"""What a store takes in of a directory: as aborted counts what markers say, whatever indexes do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from keeplast.store.verification import verify_remote
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import (
    NOW_MS,
    data_batch,
    marker,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)
from tests.support.tiered_log import Tiered, records

ABORT = ControlType.ABORT
FIRST, SECOND = AbortedTransaction(7, 0, 1, 2), AbortedTransaction(8, 2, 4, 5)
TRUTH = {0: (FIRST,), 4: (SECOND,)}


def make(root: Path) -> Path:
    """Two closed segments, an aborted transaction in the first, another that ends in the second."""
    segments = {
        0: data_batch(0, 7, [b"x"]) + marker(1, 7, ABORT) + data_batch(2, 8, [b"y", b"x"]),
        4: marker(4, 8, ABORT) + one(5, b"z"),
        6: b"",
    }
    directory = write_partition(root, segments)
    for base, entries in TRUTH.items():
        write_segment(directory, base, segments[base], aborted=entries)
    return directory


def stored(tiered: Tiered) -> dict[int, tuple[AbortedTransaction, ...]]:
    return {
        base: txn_index.decode(data)
        for (base, _, suffix), data in tiered.live_objects().items()
        if suffix == TXN_INDEX
    }


def without_indexes(directory: Path) -> None:
    for path in [*directory.glob("*.*index"), *directory.glob("*.snapshot")]:
        path.unlink()


def without_last_entry(directory: Path) -> None:
    (directory / f"{4:020d}.txnindex").write_bytes(b"")


def with_a_piece_of_the_last_entry(directory: Path) -> None:
    (directory / f"{4:020d}.txnindex").write_bytes(txn_index.encode([SECOND])[:20])


def with_the_index_of_another_segment(directory: Path) -> None:
    (directory / f"{4:020d}.txnindex").write_bytes(txn_index.encode([FIRST]))


def with_an_entry_that_no_marker_ends(directory: Path) -> None:
    entries = [SECOND, AbortedTransaction(9, 5, 5, 6)]
    (directory / f"{4:020d}.txnindex").write_bytes(txn_index.encode(entries))


def with_a_snapshot_that_is_cut(directory: Path) -> None:
    without_indexes(directory)
    path = write_snapshot(directory, 4)
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        without_indexes, without_last_entry, with_a_piece_of_the_last_entry,
        with_the_index_of_another_segment, with_an_entry_that_no_marker_ends,
        with_a_snapshot_that_is_cut,
    ],
)  # fmt: skip
def test_the_store_gets_the_index_of_the_markers(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    directory = make(tmp_path)
    damage(directory)
    assert TRUTH == stored(Tiered(tmp_path, directory))


def test_an_import_that_goes_on_knows_what_began_in_what_the_store_has(tmp_path: Path) -> None:
    directory = make(tmp_path)
    without_indexes(directory)
    later = {path: path.read_bytes() for path in directory.glob("*[46].log")}
    for path in later:
        path.unlink()
    tiered = Tiered(tmp_path, directory)
    for path, data in later.items():
        path.write_bytes(data)
    tiered.take_in(directory)
    assert TRUTH == stored(tiered)


class Lies:
    """What may have become of the index files of a closed segment, whose sizes still fit."""

    @staticmethod
    def moved_positions(directory: Path, base: int) -> None:
        """The index of the segment as it was before a cleaning: its places lie inside batches."""
        path = directory / f"{base:020d}.index"
        entries = offset_index.decode(path.read_bytes())
        entries[:, 1] -= 3
        path.write_bytes(offset_index.encode(entries))

    @staticmethod
    def early_offsets(directory: Path, base: int) -> None:
        """Each entry leads behind the batches that it is asked for."""
        path = directory / f"{base:020d}.index"
        entries = offset_index.decode(path.read_bytes())
        entries[1:, 0] = entries[:-1, 0] + 1
        path.write_bytes(offset_index.encode(entries))

    @staticmethod
    def short_times(directory: Path, base: int) -> None:
        path = directory / f"{base:020d}.timeindex"
        path.write_bytes(path.read_bytes()[: -2 * time_index.ENTRY_BYTES])

    @staticmethod
    def early_times(directory: Path, base: int) -> None:
        """A time is said to be reached later than it is: who looks for it begins behind it."""
        path = directory / f"{base:020d}.timeindex"
        entries = time_index.decode(path.read_bytes())
        entries[:-1, 1] += 4
        entries[-1, 1] = entries[-2:, 1].max()
        path.write_bytes(time_index.encode(entries))


def indexed_log(root: Path) -> LogBuilder:
    log = LogBuilder(root / "t-0", replace(TopicConfig(), index_interval_bytes=100))
    for number in range(80):
        log.append(NewRecord(b"k%d" % number, b"v", NOW_MS + number))
        if number in (39, 79):
            log.roll()
    log.close()
    return log


@pytest.mark.parametrize(
    "damage",
    [Lies.moved_positions, Lies.early_offsets, Lies.short_times, Lies.early_times],
)
def test_an_index_that_lies_is_built_again_while_its_segment_is_copied(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    directory = indexed_log(tmp_path).directory
    damage(directory, 40)
    tiered = Tiered(tmp_path, directory)
    state = tiered.state
    assert () == verify_remote(tiered.objects, state, lambda count: None)
    assert NOW_MS + 79 == state.segments[state.routes[1].segment_id].max_timestamp_ms


def test_an_index_that_is_true_is_copied_as_it_is(tmp_path: Path) -> None:
    directory = indexed_log(tmp_path).directory
    found = Tiered(tmp_path, directory).live_objects()
    for suffix in (INDEX, TIME_INDEX):
        # Denser than an index that were built again: the settings of the import are the defaults.
        path = directory / f"{40:020d}{suffix}"
        assert path.read_bytes() == found[40, 79, suffix]
        assert path.stat().st_size > 5 * offset_index.ENTRY_BYTES


@pytest.mark.parametrize("damage", [Lies.moved_positions, Lies.early_offsets])
def test_a_copy_that_goes_on_inside_a_segment_leaves_nothing_out_by_an_index_that_lies(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    directory = indexed_log(tmp_path).directory
    whole = records(directory)
    tiered = Tiered(tmp_path / "first", directory, high_watermark=60)
    assert 60 == tiered.state.remote_end
    damage(directory, 40)
    tiered.take_in(directory)
    assert whole == records(tiered.export(tmp_path / "out" / "t-0"))
