"""What time alone may change of a segment keeps it from being skipped."""

from __future__ import annotations

import numpy as np
import pytest

from keeplast.cleaner.plan import SegmentContents, stays

NOW_MS, LAST = 1_000, 99


@pytest.mark.parametrize(
    ("contents", "stays_as_it_is", "stays_where_nothing_expires"),
    [
        (SegmentContents(), True, True),
        (SegmentContents(tombstones=1, horizon_ms=NOW_MS + 1), True, True),
        (SegmentContents(tombstones=1, horizon_ms=NOW_MS), False, True),
        (SegmentContents(tombstones=1, unstamped=1), False, True),
        (SegmentContents(keyless=1), False, False),
        (SegmentContents(transactional=1), False, False),
        (SegmentContents(old_format=1), False, False),
        (SegmentContents(more_empties=True), False, False),
        (SegmentContents(empties=((7, 50),)), True, True),
        (SegmentContents(empties=((7, LAST),)), True, True),
        (SegmentContents(empties=((8, 50),)), False, False),
    ],
)
def test_a_segment_stays_unless_time_or_anything_but_keys_changes_it(
    contents: SegmentContents, stays_as_it_is: bool, stays_where_nothing_expires: bool
) -> None:
    needed = np.array([[7, 50, 0]], np.int64)
    found = tuple(
        stays(
            contents, now_ms=NOW_MS, last_offset=LAST, last_records=needed, expires_nothing=each
        )
        for each in (False, True)
    )  # fmt: skip
    assert (stays_as_it_is, stays_where_nothing_expires) == found
