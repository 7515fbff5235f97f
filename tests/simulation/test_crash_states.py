"""The power goes before any operation of ``clean``, and again while what it left is recovered.

Whatever is found on the disk then: no reader misses anything or gets anything back, and the next
call ends where one that nothing interrupted would have ended. ``tests/support/crashing_files.py``
says what a disk may forget, ``tests/support/crash_logs.py`` which logs are cleaned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crash_exploration import Bounds, Exploration, Tally
from tests.support.crash_logs import CRASH_LOGS
from tests.support.crashing_files import CrashingFiles, Mode

SHORT = Bounds(states_per_point=5, nested_every=12)
LONG = Bounds(states_per_point=24, nested_states_per_point=2)
LONG_STATES_MIN = 5000


@pytest.mark.rotates(12)
@pytest.mark.parametrize("name", CRASH_LOGS)
def test_no_crash_loses_anything(tmp_path: Path, name: str) -> None:
    exploration = Exploration(CRASH_LOGS[name], tmp_path, SHORT)
    tally = exploration.run()
    print(f"{name}: {tally}")
    assert tally.points > 50
    assert tally.states > tally.points
    # Of rounds with receipts some were found interrupted, with groups in place and without.
    assert CRASH_LOGS[name].has_receipt is ({True, False} == exploration.verdicts)


@pytest.fixture(scope="module")
def total() -> Iterator[Tally]:
    """Everything that the long form has tried."""
    tally = Tally()
    yield tally
    print(f"\nall logs: {tally}")


@pytest.mark.slow
@pytest.mark.parametrize("name", CRASH_LOGS)
def test_no_crash_loses_anything_in_many_more_states(
    tmp_path: Path, name: str, total: Tally
) -> None:
    tally = Exploration(CRASH_LOGS[name], tmp_path, LONG, seed=1).run()
    print(f"{name}: {tally}")
    total.add(tally)


@pytest.mark.slow
def test_the_long_form_has_tried_thousands_of_states(total: Tally) -> None:
    assert total.states >= LONG_STATES_MIN


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "name",
    [
        # Where segments become one the first state that betrays it comes late.
        pytest.param("merged", marks=pytest.mark.repeats), "vanishing tails", "emptied", "split",
    ],
)  # fmt: skip
def test_a_disk_that_ignores_flushes_of_directories_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The examination is worth something: it fails where the order of operations is not kept."""
    monkeypatch.setattr(CrashingFiles, "fsync_directory", lambda self, path: None)
    bounds = Bounds(states_per_point=48, nested_every=1_000_000, modes=(Mode.SUBSET,))
    with pytest.raises((AssertionError, OSError)):
        Exploration(CRASH_LOGS[name], tmp_path, bounds).run()
