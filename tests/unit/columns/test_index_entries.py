"""Index entries while batches are appended: F3, which is also recovery's rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from keeplast.columns.rebuild import final_time_entry, index_batches, new_index_state
from keeplast.format.message_set import Batch
from tests.support.partition_maker import indexes_of

BASE = 100
INTERVAL = 50
Entries = list[tuple[int, int]]


class Shape(Struct, frozen=True):
    """As much of a batch as an index sees."""

    size_bytes: int
    last_offset: int
    max_timestamp: int


def indexed(batches: list[Shape], parts: list[int], interval: int) -> tuple[Entries, Entries]:
    rows = np.array([(b.size_bytes, b.last_offset, b.max_timestamp) for b in batches], np.int64)
    state = new_index_state(BASE)
    offsets: Entries = []
    times: Entries = []
    for part in np.split(rows.reshape(-1, 3), parts):
        chunk = np.ascontiguousarray(part)
        entries = np.empty((2, len(chunk), 2), np.int64)
        o, k = index_batches(chunk, len(chunk), BASE, interval, state, entries[0], entries[1])
        offsets += [(int(a), int(b)) for a, b in entries[0, :o]]
        times += [(int(a), int(b)) for a, b in entries[1, :k]]
    final = final_time_entry(state, BASE)
    return offsets, times + ([] if final is None else [final])


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], ([], [])),
        # The first batch never has an entry, however large it is.
        ([Shape(999, BASE, 5)], ([], [(5, 0)])),
        # More than the interval, not as much.
        ([Shape(50, 100, 1), Shape(10, 101, 2)], ([], [(2, 1)])),
        ([Shape(51, 100, 1), Shape(10, 101, 2)], ([(1, 51)], [(2, 1)])),
        # The batch that is indexed counts towards the next entry.
        (
            [Shape(51, 100, 1), Shape(51, 101, 2), Shape(1, 102, 3)],
            ([(1, 51), (2, 102)], [(2, 1), (3, 2)]),
        ),
        # A timestamp that goes back adds nothing; the first batch with the greatest one counts.
        (
            [Shape(60, 105, 9), Shape(60, 106, 3), Shape(60, 107, 9)],
            ([(6, 60), (7, 120)], [(9, 5)]),
        ),
        # Without timestamps there is no time index, and an offset index all the same.
        ([Shape(60, 100, -1), Shape(60, 103, -1)], ([(3, 60)], [])),
        # A timestamp of 0 is one.
        ([Shape(60, 100, 0)], ([], [(0, 0)])),
    ],
)
def test_entries(batches: list[Shape], expected: tuple[Entries, Entries]) -> None:
    assert expected == indexed(batches, [], INTERVAL)


@st.composite
def shapes(draw: st.DrawFn) -> list[Shape]:
    offset = BASE - 1
    batches = []
    for _ in range(draw(st.integers(0, 30))):
        offset += draw(st.integers(1, 5))
        batches.append(Shape(draw(st.integers(14, 90)), offset, draw(st.integers(-1, 20))))
    return batches


@given(batches=shapes(), cuts=st.lists(st.integers(0, 30), max_size=3), interval=st.integers(0, 99))
def test_entries_equal_recoverys_however_batches_are_split(
    batches: list[Shape], cuts: list[int], interval: int
) -> None:
    as_batches: list[Batch] = batches  # type: ignore[assignment]
    expected = indexes_of(BASE, as_batches, interval)
    parts = sorted(min(cut, len(batches)) for cut in cuts)
    assert expected == indexed(batches, parts, interval)
