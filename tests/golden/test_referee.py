"""What other tests judge by, judged itself: our dump, and the per-record reference cleaner.

Both must agree with Kafka on every case before they may say that the engine is wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archive import names
from tests.support.cases import load_case
from tests.support.dump import dump_partition
from tests.support.expected import expected_of_ours
from tests.support.reference_cleaning import reference_cleaning
from tests.support.replay import replay

NAMES = names(Path(__file__).parent / "fixtures.tar.xz")
UNREADABLE = '{"t":"err"'
BEYOND_REFERENCE = {
    "bad-": "damaged input",
    "map-too-small": "no usable slot is refused before a round starts",
}


def _until_damage(text: str) -> list[str]:
    """Return the lines of a dump before the first that says how reading ended."""
    lines = text.splitlines()
    damaged = [number for number, line in enumerate(lines) if line.startswith(UNREADABLE)]
    return lines[: damaged[0]] if damaged else lines


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", NAMES)
def test_dump_equals_kafkas_dump(name: str, fixtures: Path) -> None:
    case = load_case(fixtures / name)
    expected = (case.directory / "after.jsonl").read_text()
    actual = dump_partition(case.after)
    assert (UNREADABLE in expected) == (UNREADABLE in actual)
    if UNREADABLE not in expected:
        assert expected == actual
        return
    # How far into a damaged batch a reader gets before it notices is its own affair.
    readable = _until_damage(expected)
    assert readable == _until_damage(actual)[: len(readable)]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(tuple(BEYOND_REFERENCE))])
def test_reference_cleaner_leaves_what_kafka_leaves(
    name: str, fixtures: Path, tmp_path: Path
) -> None:
    case = load_case(fixtures / name)
    differences = replay(case, tmp_path, reference_cleaning, expected=expected_of_ours(name))
    assert differences == []
