"""Two ``keeplast tier`` processes with one owner's name, on one SQLite store."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.store_world import StoreWorld
from tests.support.waiting import SECONDS_MAX, wait_until
from tests.unit.cli.conftest import Command


@contextmanager
def running(world: StoreWorld, err: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``run`` as the owner ``a``; killed at the end if it still runs."""
    with err.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "keeplast", "run", world.url, "--owner", "a",
             "--cores", "1", "--config", "log.cleaner.backoff.ms=200"],
            stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[bytes], err: Path) -> None:
    wait_until(reached, by=lambda: process.poll() is None, words=err.read_text)


@pytest.mark.repeats(
    "tests/simulation/test_tier_run_process.py::test_of_two_on_one_store_each_keeps_to_what_it_owns"
)
def test_a_command_by_hand_during_a_run_and_a_run_after_a_kill(
    tmp_path: Path, keeplast: Command
) -> None:
    world = StoreWorld(tmp_path)
    world.log(0, 3)

    def holder() -> dict[str, Any] | None:
        (found,) = keeplast("status", world.url, "--json").document["partitions"]
        held: dict[str, Any] | None = found["holder"]
        return held

    def is_held_by(process: subprocess.Popen[bytes]) -> bool:
        held = holder()
        return held is not None and held["process"] == process.pid

    first_err, second_err = tmp_path / "err-1", tmp_path / "err-2"
    with running(world, first_err) as first:
        wait_for(lambda: is_held_by(first), first, first_err)
        assert f"held by process {first.pid} on " in keeplast("status", world.url).out
        refused = keeplast("clean", world.url, "--owner", "a", "--despite", "dirty-ratio", code=4)
        assert "another process of the same owner works on the partition" in refused.err
        assert f"owner=a epoch=0 process={first.pid} host=" in refused.err
        assert "--take-over" in refused.err
        # One transaction needs no round to end.
        keeplast("configure", world.url, "--owner", "a", "segment.bytes=2097152", code=0)
        assert 0 == keeplast("clean", world.url, "--only-expire", "--owner", "a").code
        assert is_held_by(first)
        # Who insists is obeyed, and what it took goes back to whom it belongs.
        assert (
            0
            == keeplast(
                "clean", world.url, "--owner", "a", "--despite", "dirty-ratio", "--take-over"
            ).code
        )
        wait_for(lambda: is_held_by(first), first, first_err)
        with running(world, second_err) as second:
            wait_for(lambda: "  left alone: " in second_err.read_text(), second, second_err)
            assert is_held_by(first)
            first.kill()
            first.wait()
            wait_for(lambda: is_held_by(second), second, second_err)
            second.send_signal(signal.SIGTERM)
            assert 143 == second.wait(SECONDS_MAX)
    assert holder() is None
    assert 0 == keeplast("clean", world.url, "--owner", "a", "--despite", "dirty-ratio").code
    assert "t-0: holds" in keeplast("verify", world.url).out
