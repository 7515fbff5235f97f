"""A range of offsets as a person reads it: both ends are in it."""

from __future__ import annotations

import pytest

from keeplast.model.partition import range_text


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (2000, 3000, "offsets 2000 to 2999"),
        (2000, 2002, "offsets 2000 to 2001"),
        (2000, 2001, "offset 2000"),
        (2000, 2000, "no offset from 2000 on"),
        (7, 3, "no offset from 7 on"),
    ],
)
def test_a_half_open_range_is_shown_with_both_its_ends(start: int, end: int, words: str) -> None:
    assert words == range_text(start, end)
