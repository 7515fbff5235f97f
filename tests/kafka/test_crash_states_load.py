"""Kafka's own loader starts on what a crash of ``clean`` leaves, and its readers miss nothing.

So it does on what a crash of an undo, of an expiry or of ``delete-records`` leaves. A sample of the
states of ``tests/simulation/test_crash_states.py``, ``test_crash_undo.py`` and
``test_crash_expiry.py`` is written to real directories and opened as after a clean and as after an
unclean shutdown. ``STATES`` is how many of each log.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import LOG, LOG_START_CHECKPOINT, parse_undo_file
from tests.kafka.oracle.driver import Oracle
from tests.support.crash_expiry import SCENARIOS, Crashes
from tests.support.crash_exploration import Bounds, Exploration
from tests.support.crash_logs import CRASH_LOGS
from tests.support.crash_undo import UndoCrashes
from tests.support.crashing_files import Image
from tests.support.partition_maker import PARTITION
from tests.support.reader import read_partition

pytestmark = pytest.mark.kafka

STATES = int(os.environ.get("STATES", "40"))
BOUNDS = Bounds(states_per_point=12, nested_every=40)
EXPECTED_PROBLEMS = {"log files changed by loading"}
"""That is what the loader is there for."""


def write_image(image: Image, partition: Path, target: Path) -> None:
    """Write the partition's files of an image into the new directory ``target``."""
    target.mkdir(parents=True)
    for name, (data, mtime_ns) in image[partition].items():
        (target / name).write_bytes(data)
        os.utime(target / name, ns=(mtime_ns, mtime_ns))


@pytest.mark.parametrize("name", CRASH_LOGS)
def test_kafka_makes_a_whole_log_of_what_a_crash_leaves(
    oracle: Oracle, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "root"
    exploration = Exploration(CRASH_LOGS[name], root, BOUNDS)
    states = list(exploration.states())
    sample = random.Random(name).sample(states, min(STATES, len(states)))
    for number, state in enumerate(sample):
        directory = tmp_path / str(number) / str(PARTITION)
        write_image(state, root / str(PARTITION), directory)
        work = tmp_path / f"{number}-loaded"
        answer = oracle.demand({"op": "accept", "dir": str(directory), "work": str(work)})
        for shutdown, key in (("clean", "clean"), ("unclean", "recovered")):
            assert EXPECTED_PROBLEMS >= set(answer[key]["problems"]), (number, answer[key])
            loaded = read_partition(work / shutdown / str(PARTITION))
            found = loaded.final_values_from(exploration.law.starts)
            assert exploration.law.expected == found, (number, shutdown)


@pytest.mark.parametrize("name", ["vanishing tails", "split"])
def test_kafka_makes_a_whole_log_of_what_a_crash_of_an_undo_leaves(
    oracle: Oracle, tmp_path: Path, name: str
) -> None:
    """Of what rounds have kept it takes no notice, and leaves it where it is."""
    root = tmp_path / "root"
    root.mkdir()
    crashes = UndoCrashes(CRASH_LOGS[name], root, limit=3)
    crashes.crash(crashes.cleaned, crashes.undo, lambda _state, _where: None)
    sample = random.Random(name).sample(crashes.kept, min(STATES // 2, len(crashes.kept)))
    kept_files = 0
    for number, state in enumerate(sample):
        directory = tmp_path / str(number) / str(PARTITION)
        write_image(state, crashes.path, directory)
        kept = {name for name in state[crashes.path] if parse_undo_file(name) is not None}
        kept_files += len(kept)
        work = tmp_path / f"{number}-loaded"
        answer = oracle.demand({"op": "accept", "dir": str(directory), "work": str(work)})
        for shutdown, key in (("clean", "clean"), ("unclean", "recovered")):
            assert EXPECTED_PROBLEMS >= set(answer[key]["problems"]), (number, answer[key])
            assert kept <= set(os.listdir(work / shutdown / str(PARTITION))), number
            loaded = read_partition(work / shutdown / str(PARTITION))
            found = loaded.final_values_from(crashes.law.starts)
            assert crashes.law.expected == found, (number, shutdown)
    assert kept_files


@pytest.mark.parametrize("name", SCENARIOS)
def test_kafka_makes_a_log_of_what_a_crash_of_an_expiry_leaves(
    oracle: Oracle, tmp_path: Path, name: str
) -> None:
    """It starts where the checkpoint says, has what lies behind that, and ends where it ended."""
    root = tmp_path / "root"
    root.mkdir()
    crashes = Crashes(SCENARIOS[name], root)
    crashes.run(limit=5, nested_every=10)
    sample = random.Random(name).sample(crashes.kept, min(STATES, len(crashes.kept)))
    for number, state in enumerate(sample):
        directory = tmp_path / str(number) / str(PARTITION)
        write_image(state, crashes.directory, directory)
        lines, _ = state[root].get(LOG_START_CHECKPOINT, (b"", 0))
        # Without a line the first segment's name says it: before anything happened, or after all.
        bases = [int(n.removesuffix(LOG)) for n in state[crashes.directory] if n.endswith(LOG)]
        log_start = decode_offsets(lines).get(PARTITION, min(bases))
        assert log_start in (crashes.before.log_start, crashes.after.log_start), number
        work = tmp_path / f"{number}-loaded"
        answer = oracle.demand(
            {"op": "accept", "dir": str(directory), "work": str(work), "log_start": log_start}
        )
        for shutdown, key in (("clean", "clean"), ("unclean", "recovered")):
            assert EXPECTED_PROBLEMS >= set(answer[key]["problems"]), (number, answer[key])
            assert crashes.before.log_end == answer[key]["log_end"], (number, shutdown)
            batches = read_partition(work / shutdown / str(PARTITION)).batches
            found = {batch.last_offset for batch in batches}
            assert {at for at in crashes.before.batches if at >= log_start} <= found, number
