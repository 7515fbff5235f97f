"""Random logs and limits: what expires here is what Kafka's ``deleteOldSegments`` lets go.

``SEEDS`` is how many logs (default 150), ``FIRST_SEED`` the first. A log is Kafka's own; its policy
limits, clock, file times, log start and high watermark are left to chance. In half of them
records are deleted first. What is left must load in Kafka, after a clean and an unclean shutdown.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from keeplast.errors import RefusedError
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.run.expiry import delete_records
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from tests.kafka.oracle.driver import Json, Oracle
from tests.kafka.oracle.random_log import DAY_MS, START_MS, Features, Script
from tests.support.cases import topic_config
from tests.support.expiring_log import snapshots_of
from tests.support.partition_maker import coordinator

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "150"))
PARTITION = TopicPartition("t", 0)
FILES = LocalFiles()

pytestmark = pytest.mark.kafka


class Chance(Struct, frozen=True):
    """What a seed gives: a log, and under what limits it is looked at."""

    operations: list[Json]
    mtime_ms: int
    config: Json
    now_ms: int
    log_start: int
    high_watermark: int
    delete_before: int | None
    end: int


def draw(seed: int) -> Chance:
    """Return what ``seed`` gives."""
    dice = random.Random(f"retention {seed}")
    script = Script(dice, Features.draw(dice))
    operations = script.appends(dice.choice([5, 30, 80]), dice.choice([3, 6, 15]))
    if dice.random() < 0.3:
        operations.append({"t": "roll"})
    end = script.next_offset
    span_ms = max(script.now_ms - START_MS, 1)
    config: Json = {
        "segment.bytes": dice.choice([700, 2000, 6000]),
        "cleanup.policy": dice.choice(["compact,delete"] * 4 + ["delete", "compact"]),
        "retention.ms": dice.choice([-1, 0, dice.randrange(2 * span_ms), DAY_MS]),
        "retention.bytes": dice.choice([-1, -1, 0, dice.randrange(20_000)]),
    }
    start = dice.choice([0, 0, dice.randrange(end + 1)])
    return Chance(
        operations=operations,
        mtime_ms=START_MS + dice.randrange(2 * span_ms),
        config=config,
        now_ms=START_MS + dice.choice([0, dice.randrange(3 * span_ms), 2 * DAY_MS]),
        log_start=start,
        high_watermark=dice.choice([end, dice.randrange(start, end + 1)]),
        delete_before=None if dice.random() < 0.5 else dice.randrange(end + 1),
        end=end,
    )


def write(oracle: Oracle, chance: Chance, root: Path) -> Path:
    """Have Kafka write the log below ``root``."""
    directory = root / str(PARTITION)
    oracle.demand(
        {
            "op": "write",
            "dir": str(directory),
            "now": START_MS,
            "config": chance.config,
            "ops": chance.operations,
            "mtime": chance.mtime_ms,
        }
    )
    return directory


def ours(directory: Path, chance: Chance) -> dict[str, Any]:
    """Do to ``directory`` what the seed asks for, and say what became of it."""
    root = directory.parent
    if chance.log_start:
        update_checkpoint(FILES, root, LOG_START_CHECKPOINT, {PARTITION: chance.log_start})
    partition = PartitionRequest(PARTITION, directory, topic_config(chance.config))
    request = CleanRequest(
        (partition,),
        now_ms=chance.now_ms,
        high_watermark=chance.high_watermark,
        is_unsafe=True,
        retention=True,
    )
    out_of_range = False
    if chance.delete_before is not None:
        # A broker asks whether the policy allows it elsewhere.
        deleting = topic_config({**chance.config, "cleanup.policy": "delete"})
        try:
            delete_records(
                PartitionRequest(PARTITION, directory, deleting),
                FILES,
                before_offset=chance.delete_before,
                high_watermark=chance.high_watermark,
                warned=pytest.fail,
            )
        except RefusedError:
            out_of_range = True
    deleted = []
    for _ in range(2):
        (report,) = coordinator(files=FILES).expire(request).partitions
        assert report.expiry is not None
        if report.expiry.failure is not None:
            raise report.expiry.failure
        deleted.append(len(report.expiry.segments))
    survey = survey_partition(
        partition, request, load_checkpoints(FILES, root), FILES, chance.now_ms
    )
    line = read_checkpoint(FILES, root, LOG_START_CHECKPOINT).get(PARTITION)
    segments = [[s.base_offset, s.size_bytes] for s in survey.listing.segments]
    # A broker keeps a line only for a log that starts inside its first segment.
    assert line == (survey.log_start if survey.log_start > segments[0][0] else None)
    epochs = leader_epoch.decode((directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
    return {
        "deleted": deleted,
        "log_start": survey.log_start,
        "log_end": survey.tail.log_end,
        "last_stable": survey.last_stable,
        "segments": segments,
        "epochs": [[entry.epoch, entry.start_offset] for entry in epochs],
        # What lies at or below the log start goes when a broker opens the log, and is no use to us.
        "snapshots": [at for at in snapshots_of(directory) if at > chance.log_start],
        "out_of_range": out_of_range,
    }


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_the_expired_segments_are_those_of_kafka(seed: int, oracle: Oracle, tmp_path: Path) -> None:
    chance = draw(seed)
    source = write(oracle, chance, tmp_path / "before")
    request: Json = {
        "op": "expire",
        "in": str(source),
        "out": str(tmp_path / "kafka" / str(PARTITION)),
        "now": chance.now_ms,
        "config": chance.config,
        "log_start": chance.log_start,
        "high_watermark": chance.high_watermark,
        "times": 2,
    }
    if chance.delete_before is not None:
        request["delete_before"] = chance.delete_before
    expected = {"out_of_range": False, **oracle.demand(request)}
    # Where the log start lies inside a batch of an open transaction, 4.3 names the batch's base.
    expected["last_stable"] = max(expected["last_stable"], expected["log_start"])
    directory = tmp_path / "ours" / str(PARTITION)
    shutil.copytree(source, directory)
    found = ours(directory, chance)
    assert {name: expected[name] for name in found} == found
    answer = oracle.demand(
        {
            "op": "accept",
            "dir": str(directory),
            "work": str(tmp_path / "accept"),
            "config": chance.config,
            "log_start": found["log_start"],
            "now": chance.now_ms,
        }
    )
    assert [] == answer["clean"]["problems"] + answer["recovered"]["problems"]
    shutil.rmtree(tmp_path)
