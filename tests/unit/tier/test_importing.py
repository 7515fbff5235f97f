"""What a store takes in of a directory: as aborted counts what markers say, whatever indexes do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.format import txn_index
from keeplast.format.control import ControlType
from keeplast.format.filename import TXN_INDEX
from keeplast.format.txn_index import AbortedTransaction
from tests.support.kernel_window import load
from tests.support.partition_maker import (
    data_batch,
    marker,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)
from tests.support.tiered_log import Tiered

ABORT = ControlType.ABORT
FIRST, SECOND = AbortedTransaction(7, 0, 1, 2), AbortedTransaction(8, 2, 4, 5)
TRUTH = {0: (FIRST,), 4: (SECOND,)}


def make(root: Path) -> Path:
    """Two closed segments, an aborted transaction in the first, another that ends in the second."""
    load()
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
def test_the_store_gets_the_index_that_the_markers_tell(
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
