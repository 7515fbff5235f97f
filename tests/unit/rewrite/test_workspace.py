"""What remains does not depend on how much fits into a worker's arrays; what is kept there may."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from keeplast.columns import retained
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.rewrite import workspace
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, DecompressedCache, Workspace
from tests.support.kernel_window import window_of
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import clean, clean_request


def cleaned(root: Path) -> dict[str, bytes]:
    """Clean a log with something of everything; return all of its files."""
    directory = write_mixed_log(root)
    clean(clean_request(directory))
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("ROWS_MAX", rows) for rows in (1, 3, 8)), *(("LEDGER_SHARE", 1 << n) for n in (0, 20, 25))],
)
def test_few_rows_are_given_to_the_map_more_often_and_a_ledger_may_be_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    """A share of 1/2^20 leaves room for the first few offsets, 1/2^25 for none."""
    expected = cleaned(tmp_path / "default")
    monkeypatch.setattr(workspace, name, value)
    assert expected == cleaned(tmp_path / "other")


def test_a_payload_that_another_thread_keeps_and_that_is_larger_than_scratch_is_decompressed() -> (
    None
):
    window = window_of(encode_batch([Record(0, 0, b"k", bytes(5 << 20))], codec=Codec.ZSTD) * 2)
    retained.select_indexed(window.table, 0, window.batches)
    cache = DecompressedCache(1 << 30)
    cache.keep(0, np.array([[0, 0, 5 << 20]]), np.zeros(5 << 20, np.uint8), 1.0)
    parts = Workspace(MEMORY_BYTES_MIN).slices(window, 0, (0, 0), cache, keeps=False)
    assert [(0, 1), (1, 2)] == [(each.first, each.last) for each in itertools.islice(parts, 3)]


CHUNK = 1000
"""Every payload below has this size, and so a chunk of its own."""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the chunks that the process has touched and no cache has: none yet."""
    monkeypatch.setattr(workspace, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(workspace, "_IDLE", [])
    return workspace._IDLE  # type: ignore[return-value]


def fill(room: int, costs: Sequence[float]) -> int:
    """Keep payloads until one is refused; return how many a cache of ``room`` chunks has taken.

    To decompress one takes two seconds, and to copy it what is next among ``costs``.
    """
    times = itertools.accumulate(itertools.chain.from_iterable((0.0, cost) for cost in costs))
    cache = DecompressedCache(room * CHUNK, partial(next, times))
    rows = np.array([[number, 0, CHUNK] for number in range(len(costs))])
    cache.keep(0, rows, np.zeros(CHUNK, np.uint8), 2.0 / CHUNK)
    return len(cache.take_row(0, range(len(costs)), 1 << 30))


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        ([1.0] * 30, 21),  # as far as there is room
        ([1.7] * 30, 1),
        ([1.0, 1.0, 9.0, *[1.0] * 30], 3),
        ([9.0, *[0.0] * 30], 1),
    ],
)
def test_memory_grows_while_a_copy_takes_less_than_a_decompression(
    idle: list[object], costs: Sequence[float], kept: int
) -> None:
    assert kept == fill(24, costs)


def test_what_was_touched_is_used_again_whatever_new_memory_costs(idle: list[object]) -> None:
    assert 3 == fill(4, [1.0] * 9)
    touched = {id(each) for each in idle}
    assert 3 == fill(24, [9.0] * 9)
    assert touched == {id(each) for each in idle}
    cache = DecompressedCache(3 * CHUNK)
    cache.give_up(CHUNK)
    assert 2 == len(idle), "no more lies idle than a round may have"
