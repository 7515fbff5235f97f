"""The power goes while a round keeps what it replaces, while that comes back, and while it goes.

``tests/support/crash_undo.py`` says what must be found then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import CompactionError
from tests.support.crash_logs import CRASH_LOGS
from tests.support.crash_undo import UndoCrashes
from tests.support.crashing_files import CrashingFiles
from tests.support.turns import Turn

NAMES = ("merged in waves", "vanishing tails in waves", "emptied and merged", "split")


@pytest.fixture(autouse=True)
def in_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rounds begin for which there is no room at once, as when the disk fills behind that."""
    monkeypatch.setattr("keeplast.run.directory_place.check_room", lambda *_: None)


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", NAMES)
def test_no_crash_of_round_or_undo_costs_what_was_before_it(
    tmp_path: Path, name: str, turn: Turn
) -> None:
    crashes = UndoCrashes(CRASH_LOGS[name], tmp_path, limit=2, turn=turn)
    crashes.crash(crashes.before, crashes.clean, crashes.check_comes_back)
    crashes.crash(crashes.cleaned, crashes.undo, crashes.check_goes_on)
    crashes.crash(crashes.cleaned, crashes.sweep, crashes.check_swept)
    print(f"{name}: {crashes.points} crash points, {crashes.states} distinct states")
    assert crashes.points > 50
    assert crashes.states > crashes.points


@pytest.mark.slow
@pytest.mark.parametrize("name", CRASH_LOGS)
def test_no_crash_costs_what_was_before_it_in_many_more_states(tmp_path: Path, name: str) -> None:
    crashes = UndoCrashes(CRASH_LOGS[name], tmp_path, limit=16)
    crashes.crash(crashes.before, crashes.clean, crashes.check_comes_back)
    crashes.crash(crashes.cleaned, crashes.undo, crashes.check_goes_on)
    crashes.crash(crashes.cleaned, crashes.sweep, crashes.check_swept)
    print(f"{name}: {crashes.points} crash points, {crashes.states} distinct states")


def test_a_disk_that_ignores_flushes_of_directories_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examination is worth something: it fails where the order of operations is not kept."""
    monkeypatch.setattr(CrashingFiles, "fsync_directory", lambda self, path: None)
    crashes = UndoCrashes(CRASH_LOGS["emptied and merged"], tmp_path, limit=24)
    with pytest.raises((AssertionError, OSError, CompactionError)):
        crashes.crash(crashes.before, crashes.clean, crashes.check_comes_back)


def test_a_checkpoint_that_goes_back_after_the_files_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that came back would be called clean."""
    crashes = UndoCrashes(CRASH_LOGS["merged in waves"], tmp_path, limit=2)
    monkeypatch.setattr("keeplast.run.undo.drop_from_checkpoint", lambda *_: None)
    with pytest.raises(AssertionError):
        crashes.check_comes_back(crashes.cleaned, "undone")
