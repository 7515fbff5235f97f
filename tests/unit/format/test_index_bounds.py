"""Which slots of an index are entries while a broker keeps the file at full size."""

from __future__ import annotations

import numpy as np
import pytest

from keeplast.log.indexes import filled_entries

HOLE = (0, 0)


@pytest.mark.parametrize(
    ("slots", "used"),
    [
        ([], 0),
        ([HOLE], 0),
        ([HOLE, HOLE], 0),
        ([(3, 90), HOLE, HOLE], 1),
        ([(3, 90), (7, 180)], 2),
        # A first batch dated 0 that ends at the base offset, and a later one.
        ([HOLE, (5, 2), HOLE], 2),
        # A truncation or a crash: a broker fills its slots in order and follows none behind a hole.
        ([(3, 90), HOLE, (9, 400)], 1),
        ([HOLE, HOLE, (9, 400)], 0),
        ([HOLE, (5, 2), HOLE, (9, 400)], 2),
    ],
)
def test_entries_end_before_the_first_hole(slots: list[tuple[int, int]], used: int) -> None:
    entries = np.array(slots, np.int64).reshape(-1, 2)
    assert slots[:used] == [tuple(each) for each in filled_entries(entries).tolist()]
