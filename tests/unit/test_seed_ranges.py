"""What ranges of seeds came to: each seed counts once, and what cannot be read is said."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeplast.errors import InvalidError
from tests.support.live_world_mood import FENCED, LiveTally
from tests.support.owners_mood import OwnersTally
from tests.support.seed_ranges import SeedRange, add_up, line_of, read_ranges

TALLIES: dict[str, Callable[[], Any]] = {"attached": LiveTally, "owners": OwnersTally}


def made(first: int, end: int, *failed: int, fenced: int = 0, code: str = "abc") -> SeedRange:
    tally = LiveTally(runs=end - first - len(failed), happened=Counter({FENCED: fenced}))
    return SeedRange("attached", first, end, code, "2026-11-24", failed, tally)


def kept(folder: Path, *ranges: SeedRange) -> Path:
    path = folder / "ranges.jsonl"
    path.write_text("".join(line_of(each) + "\n" for each in ranges))
    return path


def test_a_range_is_read_as_it_was_kept(tmp_path: Path) -> None:
    ranges = [made(0, 10, 3, fenced=2), made(10, 20, fenced=1)]
    assert ranges == read_ranges([kept(tmp_path, *ranges)], TALLIES)


def test_counts_by_pairs_are_read_as_they_were_kept(tmp_path: Path) -> None:
    tally = OwnersTally(runs=1, outcomes=Counter({("a copy", "refused"): 4}))
    found = SeedRange("owners", 0, 1, "abc", "2026-11-24", (), tally)
    assert [found] == read_ranges([kept(tmp_path, found)], TALLIES)


def test_ranges_are_added_up_and_neighbours_are_one_span() -> None:
    total = add_up([made(0, 10, fenced=2), made(20, 30), made(10, 20, fenced=1, code="def")])
    assert ((0, 30),) == total.spans
    assert (30, 3) == (total.tally.runs, total.tally.happened[FENCED])
    assert ("abc", "def") == total.codes
    assert () == total.failed


def test_a_seed_that_failed_is_no_part_of_a_span_until_it_goes_well() -> None:
    broken = made(0, 10, 3, 7)
    assert (((0, 3), (4, 7), (8, 10)), (3, 7)) == (
        add_up([broken]).spans,
        add_up([broken]).failed,
    )
    mended = add_up([broken, made(3, 4, code="def")])
    assert (((0, 7), (8, 10)), (7,), 9) == (mended.spans, mended.failed, mended.tally.runs)


def test_a_seed_that_went_well_twice_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"count twice.*seed=9 range=9:20"):
        add_up([made(0, 10), made(9, 20)])


def test_nothing_and_several_worlds_are_not_added_up() -> None:
    with pytest.raises(InvalidError, match="no range"):
        add_up([])
    other = SeedRange("owners", 10, 11, "abc", "2026-11-24", (), OwnersTally(runs=1))
    with pytest.raises(InvalidError, match="several worlds"):
        add_up([made(0, 10), other])


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(line_of(made(0, 10, 3))), **changes})


def with_counts(**changes: Any) -> str:
    counts = json.loads(line_of(made(0, 10, 3)))["tally"]
    return changed(tally={**counts, **changes})


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "[]", "{}", "1",
        changed(world="nowhere"), changed(first=10), changed(first=-1), changed(end=11),
        changed(failed=[]), changed(failed=[10]), changed(failed=None), changed(tally={}),
        with_counts(unknown=1), with_counts(runs="9"), with_counts(events=None),
        with_counts(happened=[["a"]]), with_counts(happened=3),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    path = kept(tmp_path, made(10, 20))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InvalidError, match=rf"file={path} line=2"):
        read_ranges([path], TALLIES)
