"""The power goes before any operation of an expiry or of ``delete-records``, and once more later.

``tests/support/crash_expiry.py`` says what is interrupted and what must be found then, and
``tests/support/crashing_files.py`` what a disk may forget.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash_expiry import SCENARIOS, Crashes
from tests.support.crashing_files import CrashingFiles


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_loses_what_may_not_go(tmp_path: Path, name: str) -> None:
    crashes = Crashes(SCENARIOS[name], tmp_path)
    crashes.run(limit=5, nested_every=10)
    print(f"{name}: {crashes.points} crash points, {crashes.states} distinct states")
    assert crashes.points > 5
    assert crashes.states >= crashes.points


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_crash_loses_what_may_not_go_in_many_more_states(tmp_path: Path, name: str) -> None:
    crashes = Crashes(SCENARIOS[name], tmp_path)
    crashes.run(limit=30, nested_every=2)
    print(f"{name}: {crashes.points} crash points, {crashes.states} distinct states")


def test_segments_that_go_before_the_log_start_is_known_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examination is worth something: it fails where the order of operations is not kept."""
    monkeypatch.setattr("keeplast.run.expiry.raise_log_start", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        Crashes(SCENARIOS["all of a log, by time"], tmp_path).run(limit=24, nested_every=1000)


def test_a_disk_that_ignores_flushes_of_directories_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrashingFiles, "fsync_directory", lambda self, path: None)
    with pytest.raises((AssertionError, OSError)):
        Crashes(SCENARIOS["all of a log, by time"], tmp_path).run(limit=24, nested_every=1000)
