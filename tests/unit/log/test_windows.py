"""A segment in windows: whole batches only, whatever the window's size."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.log.windows import WindowBuffers, read_windows
from tests.support.kernel_window import PATH, MemoryHandle, windows_of
from tests.support.partition_maker import one

BATCHES = [one(i, b"key%d" % i, bytes(size)) for i, size in enumerate((5, 900, 30, 2, 3000, 8, 1))]
DATA = b"".join(BATCHES)
ENDS = [sum(len(batch) for batch in BATCHES[: i + 1]) for i in range(len(BATCHES))]


def spans(data: bytes, window_bytes: int) -> list[tuple[int, int]]:
    """Return (file position, size) of every batch seen."""
    return [
        (window.position + int(row[t.POSITION]), int(row[t.SIZE]))
        for window in windows_of(data, window_bytes=window_bytes)
        for row in window.table[: window.batches]
    ]


@pytest.mark.parametrize("window_bytes", [18, 61, 70, 100, 1000, 1100, 4000, len(DATA), 1 << 20])
def test_every_window_size_gives_the_same_batches(window_bytes: int) -> None:
    """X60: a batch larger than the window is read alone, and small ones follow in windows."""
    expected = [(end - len(batch), len(batch)) for end, batch in zip(ENDS, BATCHES, strict=True)]
    assert expected == spans(DATA, window_bytes)


def test_windows_hold_the_files_bytes() -> None:
    joined = b"".join(
        window.data[: window.length].tobytes() for window in windows_of(DATA, window_bytes=1000)
    )
    assert joined == DATA


def test_empty_file_has_no_window() -> None:
    assert list(windows_of(b"")) == []


@pytest.mark.parametrize("window_bytes", [100, 1 << 20])
@pytest.mark.parametrize("cut", range(1, len(BATCHES[-1])))
def test_cut_last_batch_is_corrupt_after_the_whole_ones(cut: int, window_bytes: int) -> None:
    seen: list[int] = []
    windows = windows_of(DATA[:-cut], window_bytes=window_bytes)
    with pytest.raises(CorruptError) as caught:
        seen.extend(window.batches for window in windows)
    assert len(BATCHES) - 1 == sum(seen)
    assert (str(PATH), ENDS[-2]) == (caught.value.path, caught.value.position)


@pytest.mark.parametrize("left_over", [1, 8, 17])
def test_leftover_bytes_are_corrupt(left_over: int) -> None:
    with pytest.raises(CorruptError) as caught:
        spans(DATA + bytes(left_over), 1000)
    assert (len(DATA), left_over) == (caught.value.position, caught.value.found)


def test_zeros_after_the_last_batch_are_corrupt() -> None:
    with pytest.raises(CorruptError) as caught:
        spans(DATA + bytes(4096), 1000)
    assert len(DATA) == caught.value.position


def test_batch_that_claims_more_than_the_file_takes_no_memory_for_it() -> None:
    claim = bytearray(one(0, b"k"))
    claim[8:12] = (2**31 - 1).to_bytes(4, "big")
    buffers = WindowBuffers(100)
    with pytest.raises(CorruptError) as caught:
        list(read_windows(MemoryHandle(bytes(claim)), PATH, buffers))
    assert caught.value.position == 0
    assert len(buffers.data) < 1000


def test_buffers_grow_for_one_batch_only_as_far_as_it_needs() -> None:
    buffers = WindowBuffers(200)
    list(read_windows(MemoryHandle(DATA), PATH, buffers))
    assert max(len(batch) for batch in BATCHES) == len(buffers.data)


def test_part_of_a_file() -> None:
    windows = list(
        read_windows(MemoryHandle(DATA), PATH, WindowBuffers(1 << 20), start=ENDS[1], end=ENDS[3])
    )
    assert [(ENDS[1], ENDS[3] - ENDS[1], 2)] == [(w.position, w.length, w.batches) for w in windows]


def test_wrong_crc_in_a_later_window_names_the_position_in_the_file() -> None:
    data = bytearray(DATA)
    data[ENDS[4] + 65] ^= 1
    with pytest.raises(CorruptError) as caught:
        spans(bytes(data), 1000)
    assert ENDS[4] == caught.value.position


def test_file_that_shrinks_while_it_is_read_is_corrupt() -> None:
    class Shrinking(MemoryHandle):
        size_bytes = len(DATA) + 100

    with pytest.raises(CorruptError):
        list(read_windows(Shrinking(DATA), Path("x"), WindowBuffers(1 << 20)))
