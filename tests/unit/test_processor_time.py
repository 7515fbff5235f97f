"""Processor time is counted with that of other processes, and files are compared in one run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processor_time import (
    BEGIN,
    UNLISTED,
    FileCosts,
    processor_seconds,
    too_heavy,
)
from tests.support.waiting import wait_until

WORK = """\
from time import process_time
end = process_time() + 0.3
while process_time() < end: pass
"""
WEIGHTS = {BEGIN: 10.0, UNLISTED: 1.0, "a": 200.0, "b": 20.0}


def test_what_a_process_takes_counts_while_it_lives_and_when_it_has_ended() -> None:
    before = processor_seconds()
    script = f"{WORK}\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        if sys.platform == "linux":
            wait_until(lambda: processor_seconds() - before > 0.1)
        process.stdin.close()
    assert processor_seconds() - before > 0.1


def test_taken_time_is_counted_once() -> None:
    costs = FileCosts()
    costs.count("a")
    first = processor_seconds()
    exec(WORK)
    costs.count("b")
    costs.count("a")
    assert costs.seconds["b"] > 0.05
    assert sum(costs.seconds.values()) >= first
    assert sum(costs.seconds.values()) <= processor_seconds()


@pytest.mark.parametrize("pace", [0.5, 1.0, 7.0])
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"a": 200.0, "b": 20.0, "c": 1.0}, []),
        ({"a": 200.0, "b": 14.0, "c": 1.0, BEGIN: 5000.0}, []),
        ({"a": 200.0, "b": 200.0, "c": 1.0}, ["b"]),
        ({"a": 200.0, "b": 20.0, "c": 150.0}, ["c"]),
    ],
)
def test_a_file_is_too_heavy_next_to_the_others_and_on_no_machine_by_itself(
    seconds: dict[str, float], expected: list[str], pace: float
) -> None:
    assert expected == too_heavy({k: pace * v for k, v in seconds.items()}, WEIGHTS)


def test_a_run_of_nothing_is_not_too_heavy() -> None:
    assert [] == too_heavy({}, WEIGHTS)
