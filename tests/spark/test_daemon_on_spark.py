"""The daemon with Spark as its runner, and its limit on bytes a second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from keeplast.log.append import NewRecord
from keeplast.pipeline.runner import SparkRunner
from tests.support.daemon_world import SETTINGS, World

pytestmark = pytest.mark.spark

RATE = 1_000_000


def test_it_does_what_it_does_with_threads(spark_runner: SparkRunner, tmp_path: Path) -> None:
    worlds = World(tmp_path / "spark", runner=spark_runner), World(tmp_path / "local")
    for world in worlds:
        for number in range(3):
            world.log(number, 2).close()
        report, _, _ = world.once()
        assert (3, {}) == (report.rounds, report.failures)
    spark, local = (
        {p.relative_to(world.root): p.read_bytes() for p in sorted(world.root.rglob("*.log"))}
        for world in worlds
    )
    assert local == spark


def test_all_tasks_together_stay_below_the_limit(spark_runner: SparkRunner, tmp_path: Path) -> None:
    world = World(tmp_path / "data", runner=spark_runner)
    for number in range(2):
        log = world.log(number)
        for i in range(8):
            log.append(NewRecord(b"%d" % i, bytes(100_000)))
        log.roll()
        log.close()
    world.settings(SETTINGS + f"[cluster]\n'log.cleaner.io.max.bytes.per.second' = {RATE}\n")
    began = time.monotonic()
    report, _, _ = world.once()
    seconds = time.monotonic() - began
    assert 2 == report.rounds
    # What is left alone is read by both passes and not written.
    moved = report.bytes_read
    assert moved > 2 * RATE
    assert moved / seconds < 1.1 * RATE
