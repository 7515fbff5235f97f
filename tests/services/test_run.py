"""``keeplast run`` on a database that goes away while it works, and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.store_world import StoreWorld
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.services

AWAY_SECONDS = 1.5


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[bytes], err: Path) -> None:
    wait_until(reached, by=lambda: process.poll() is None, words=err.read_text)


def test_a_database_that_goes_away_is_waited_for(
    tmp_path: Path, database: str, postgresql: str
) -> None:
    world = StoreWorld(tmp_path, database)
    partition = world.log(0, 3)
    name = database.rsplit("/", 1)[1]
    err = tmp_path / "err"

    def cleaned_to() -> int:
        with world.open() as store:
            return store.state(partition).first_dirty()

    with err.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "keeplast", "run", database, "--owner", "a",
             "--cores", "1", "--data-dir", str(world.data),
             "--config", "log.cleaner.backoff.ms=200"],
            stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    try:
        wait_for(lambda: cleaned_to() == 15, process, err)
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            for _ in range(3):
                world.fill(0)
            wait_for(lambda: "cannot be worked on now" in err.read_text(), process, err)
            time.sleep(AWAY_SECONDS)
            connection.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        wait_for(lambda: cleaned_to() == 30, process, err)
        process.send_signal(signal.SIGTERM)
        assert 143 == process.wait(SECONDS_MAX)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    # A session that was ended in the middle of something knows another reason than the next one.
    reasons = [line for line in err.read_text().splitlines() if "cannot be worked on now" in line]
    assert len(set(reasons)) == len(reasons), reasons
    with world.open() as store:
        assert () == store.verify(partition, lambda count: None)
