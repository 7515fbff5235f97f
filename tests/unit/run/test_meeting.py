"""Tasks that meet hear everybody's word, and wait for no task for ever."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from keeplast.errors import UnavailableError
from keeplast.log.files import LocalFiles
from keeplast.rewrite.joint_run import PATIENCE_SECONDS, Meeting
from tests.support.manual_clock import ManualClock
from tests.support.waiting import run_at_once


def meeting(directory: Path, number: int, tasks: int, clock: ManualClock) -> Meeting:
    return Meeting(directory, "ax", f"ax{number}", number, tasks, LocalFiles(), clock, lambda: None)


class Patient(ManualClock):
    """A clock of somebody who waits for other threads: its time stands still while they work."""

    def __init__(self) -> None:
        super().__init__(0)
        self._turn = threading.Event()

    def sleep(self, seconds: float) -> None:
        self._turn.wait(seconds)


def test_every_task_hears_all_words_of_each_meeting_in_order(tmp_path: Path) -> None:
    heard: dict[int, list[list[str]]] = {}

    def come(number: int) -> None:
        own = meeting(tmp_path, number, 3, Patient())
        heard[number] = [list(own.meet(f"{word} of {number}")) for word in ("first", "second")]

    run_at_once(partial(come, number) for number in range(3))
    said = [[f"{word} of {number}" for number in range(3)] for word in ("first", "second")]
    assert {0: said, 1: said, 2: said} == heard


def test_a_task_that_waits_in_vain_leaves(tmp_path: Path) -> None:
    clock = ManualClock(0)
    with pytest.raises(UnavailableError, match="did not come to where the others wait"):
        meeting(tmp_path, 0, 2, clock).meet("here")
    assert PATIENCE_SECONDS <= clock.seconds() < 2 * PATIENCE_SECONDS


def test_a_task_that_worked_long_waits_longer(tmp_path: Path) -> None:
    clock = ManualClock(0)
    own = meeting(tmp_path, 0, 2, clock)
    clock.advance(3_600_000)
    with pytest.raises(UnavailableError):
        own.meet("here")
    assert clock.seconds() > 20 * 3600


def test_a_word_of_an_earlier_attempt_is_as_good(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        meeting(tmp_path, 1, 2, ManualClock(0)).meet("earlier")
    assert ["now", "earlier"] == meeting(tmp_path, 0, 2, ManualClock(0)).meet("now")


def test_a_word_that_cannot_be_said_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        meeting(tmp_path / "gone", 0, 1, ManualClock(0)).meet("here")
