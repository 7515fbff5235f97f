"""Spans of time in words."""

from __future__ import annotations

import pytest

from keeplast.model.text import duration_text, precise_relative_text


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1001, "1001 ms"),
        (90_000, "90 s"),
        (299_999, "4 min"),
        (3_600_000, "1 h"),
        (5_400_000, "90 min"),
        (86_400_000, "1 d"),
        (172_800_000, "2 d"),
        ((1 << 63) - 1, "106751991167 d"),
    ],
)
def test_the_largest_unit_that_is_not_too_coarse(milliseconds: int, words: str) -> None:
    assert words == duration_text(milliseconds)


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (1, "now"),
        (1_999, "now"),
        (2_000, "in 2 s"),
        (-1_999, "just now"),
        (59_499, "in 59 s"),
        (59_500, "in 1 min"),
        (-59_999, "59 s ago"),
        (90_000, "in 1 min 30 s"),
        (3_600_000, "in 1 h"),
        (86_400_000 + 1_799_999, "in 1 d"),
        (86_400_000 + 1_800_000, "in 1 d 1 h"),
        (7 * 86_400_000 - 1, "in 7 d"),
        (-7 * 86_400_000 + 1, "6 d 23 h ago"),
        (-5_400_000, "1 h 30 min ago"),
        (0, "now"),
    ],
)
def test_how_far_away_in_two_units(milliseconds: int, words: str) -> None:
    assert words == precise_relative_text(10**12 + milliseconds, 10**12)
