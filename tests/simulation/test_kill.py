"""The process is killed at random moments, without warning, and the next call goes on from there.

``KILLS`` is how many seeds there are (20 by default), which take turns, ``FIRST_KILL`` the first;
a failure names its seed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.cleaning_process import Subject, descendants, disturb, sender
from tests.support.waiting import wait_for_end

KILLS = int(os.environ.get("KILLS", "20"))
FIRST_KILL = int(os.environ.get("FIRST_KILL", "0"))
SPARK_KILLS = max(1, KILLS // 20)
KILL = sender(signal.SIGKILL)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The log that is cleaned."""
    return Subject(tmp_path_factory.mktemp("kill"))


@pytest.mark.rotates(20)
@pytest.mark.parametrize("seed", range(FIRST_KILL, FIRST_KILL + KILLS))
def test_a_killed_process_loses_nothing(subject: Subject, seed: int) -> None:
    root = subject.copy(f"local-{seed}")
    (delay,) = subject.delays(seed, 1)
    ended = disturb(root, runner="local", delay_seconds=delay, act=KILL)
    assert ended.code in (-signal.SIGKILL, 0), ended.err
    subject.assert_recovers(root)


@pytest.mark.spark
@pytest.mark.repeats("tests/simulation/test_kill.py::test_a_killed_process_loses_nothing")
@pytest.mark.parametrize("seed", range(FIRST_KILL, FIRST_KILL + SPARK_KILLS))
def test_a_killed_spark_driver_loses_nothing(subject: Subject, seed: int) -> None:
    """Its workers go on for a while: what they stage then belongs to no round."""
    root = subject.copy(f"driver-{seed}")
    orphans: list[int] = []

    def kill(pid: int) -> None:
        orphans.extend(child for child, _ in descendants(pid))
        os.kill(pid, signal.SIGKILL)

    (delay,) = subject.delays(seed, 1)
    ended = disturb(root, runner="spark", delay_seconds=delay, act=kill)
    assert ended.code in (-signal.SIGKILL, 0), ended.err
    wait_for_end(orphans)
    subject.assert_recovers(root)


def kill_workers() -> Callable[[int], None]:
    """Return what kills the Python workers of a driver, and leaves it and its JVM alone."""

    def kill(pid: int) -> None:
        for child, line in descendants(pid):
            if "pyspark" in line and "daemon" in line:
                os.kill(child, signal.SIGKILL)

    return kill


@pytest.mark.spark
@pytest.mark.repeats("tests/spark/test_standalone_cluster.py::test_lost_work_is_done_again")
@pytest.mark.parametrize("seed", range(FIRST_KILL, FIRST_KILL + SPARK_KILLS))
def test_a_killed_spark_worker_loses_nothing(subject: Subject, seed: int) -> None:
    """The driver lives to say so, and leaves no staged file."""
    root = subject.copy(f"worker-{seed}")
    (delay,) = subject.delays(seed, 1)
    ended = disturb(root, runner="spark", delay_seconds=delay / 2, act=kill_workers())
    assert ended.code in (0, 5), ended.err
    subject.assert_readers_see_the_same(root)
    subject.assert_recovers(root)
