"""``keeplast run`` as a process: asked to stop, killed without warning, and two at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from keeplast.store.tiered_store import TieredStore
from tests.support.reader import read_partition
from tests.support.store_world import StoreWorld
from tests.support.waiting import SECONDS_MAX, wait_for_line, wait_until

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
PARTITIONS, SEGMENTS = 3, 25
BACKOFF = ("--config", "log.cleaner.backoff.ms=200")


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    """A store with logs of many small segments, all of the same keys, in groups of one."""
    world = StoreWorld(tmp_path)
    for number in range(PARTITIONS):
        world.log(number, SEGMENTS, {"segment.bytes": "400"})
    return world


def line(world: StoreWorld, *more: object) -> list[str]:
    store = f"sqlite:///{world.root / 'meta.db'}"
    return [sys.executable, "-m", "keeplast", "run", store, *map(str, more)]


def run(world: StoreWorld, *more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line(world, *more), capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )


@contextmanager
def started(world: StoreWorld, *more: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        line(world, "--cores", 1, *BACKOFF, *more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def is_running(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    wait_until(reached, by=partial(is_running, process), words=lambda: str(process.communicate()))


def wait_for_rounds(world: StoreWorld, process: subprocess.Popen[str]) -> None:
    """Return when everything is clean and ``process`` says that it has nothing more to do."""
    # What is clean shows a round before the round has ended, and only its end is counted.
    wait_for_line(process, rf"  idle: {PARTITIONS} partitions")
    with world.open() as store:
        wait_for(partial(is_clean, store), process)


def wait_for_commits(world: StoreWorld, least: int, process: subprocess.Popen[str]) -> None:
    """Return when the store has seen more than ``least`` changes."""
    # Opened once: to open it takes longer than to ask it.
    with world.open() as store:
        wait_for(lambda: commits(store) > least, process)


def is_clean(store: TieredStore) -> bool:
    """Say whether all partitions are clean to their ends."""
    firsts = [store.state(each).first_dirty() for each in store.partitions()]
    return [SEGMENTS * 5] * PARTITIONS == firsts


def commits(store: TieredStore) -> int:
    """Return how many changes the store has seen."""
    return sum(store.state(each).version for each in store.partitions())


def commits_so_far(world: StoreWorld) -> int:
    with world.open() as store:
        return commits(store)


def assert_whole(world: StoreWorld) -> None:
    """Every reader sees what the directories say, and every invariant holds."""
    with world.open() as store:
        for number, log in world.logs.items():
            (partition,) = [p for p in store.partitions() if p.partition == number]
            assert () == store.verify(partition, lambda count: None)
            out = world.root / "out" / str(number) / str(partition)
            store.export(partition, out, lambda count: None)
            expected = read_partition(log.directory).final_values()
            assert expected == read_partition(out).final_values()


@pytest.mark.repeats(
    "tests/simulation/test_run_process.py::test_a_signal_ends_a_run_at_a_safe_point"
)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_at_a_safe_point(world: StoreWorld, number: signal.Signals) -> None:
    begun = commits_so_far(world)
    with started(world, "--owner", "a", "--json") as process:
        wait_for_commits(world, begun + 3, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS_MAX)
    assert CODES[number] == process.returncode
    document = json.loads(out)
    assert (True, PARTITIONS) == (document["stopped"], len(document["partitions"]))
    assert f"{number.name}: stopping at the next safe point" in err
    again = run(world, "--owner", "a", "--once")
    assert 0 == again.returncode, again.stderr
    assert_whole(world)


@pytest.mark.repeats(
    "tests/simulation/test_tier_world.py::test_nothing_acknowledged_is_lost_whatever_happens"
)
def test_a_killed_one_is_made_good_by_the_next(world: StoreWorld) -> None:
    begun = commits_so_far(world)
    for more in (3, 9):
        with started(world, "--owner", "a") as process:
            wait_for_commits(world, begun + more, process)
            process.kill()
            process.communicate()
    again = run(world, "--owner", "a", "--once", "--json")
    assert 0 == again.returncode, again.stderr
    assert {"not due"} == {each["state"] for each in json.loads(again.stdout)["partitions"]}
    with world.open() as store:
        assert is_clean(store)
    assert_whole(world)


def test_of_two_on_one_store_each_keeps_to_what_it_owns(world: StoreWorld) -> None:
    with world.open("b") as other:
        other.own(other.partitions()[0], takes_over=True)
    with started(world, "--owner", "a", "--json") as first:
        second = run(world, "--owner", "b", "--once", "--json")
        wait_for_rounds(world, first)
        first.send_signal(signal.SIGTERM)
        out, _ = first.communicate(timeout=SECONDS_MAX)
    rounds = [
        {each["partition"]: each["rounds"] for each in json.loads(text)["partitions"]}
        for text in (out, second.stdout)
    ]
    assert (0, [{0: 0, 1: 1, 2: 1}, {0: 1, 1: 0, 2: 0}]) == (second.returncode, rounds)
    assert_whole(world)


@pytest.mark.slow
def test_two_of_the_same_name_waste_rounds_and_lose_nothing(world: StoreWorld) -> None:
    with started(world, "--owner", "a") as first, started(world, "--owner", "a") as second:
        for process in (first, second):
            wait_for_line(process, "watching .*; SIGTERM or Ctrl-C ends it")
        with world.open() as store:
            wait_until(partial(is_clean, store))
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            err = process.stderr.read()
            assert (143, False) == (process.wait(SECONDS_MAX), "skipped until" in err), err
    assert_whole(world)


@pytest.mark.repeats(
    "tests/simulation/test_tier_run_process.py::test_of_two_on_one_store_each_keeps_to_what_it_owns"
)
def test_a_process_that_was_taken_over_says_so_and_goes_on_with_the_rest(world: StoreWorld) -> None:
    with started(world, "--owner", "a", "--json") as process:
        wait_for_rounds(world, process)
        with world.open("b") as other:
            # Partitions are looked at in order: what is said of the first is of a later look than
            # what was said of the second, which has come to its end.
            for number in (1, 0):
                other.own(other.partitions()[number], takes_over=True)
                wait_for_line(process, f"t-{number}  left alone: owned by b at epoch 1")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS_MAX)
    assert 143 == process.returncode
    states = [each["state"] for each in json.loads(out)["partitions"]]
    assert ["owned elsewhere", "not due"] == states[1:]
