"""Random directories: the logs that are worth a round, and their order, are those of Kafka.

``LogCleanerManager.grabFilthiestCompactedLog`` is asked again and again: what it has grabbed is in
progress, so that it names one after another. Logs, ratios, lags, checkpoints, log starts and high
watermarks are left to chance. ``SEEDS`` is how many directories (default 100), ``FIRST_SEED`` the
first.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from keeplast.cleaner.log_order import Order, choose
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.run.round_state import candidate_of
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from tests.kafka.oracle.driver import Json, Oracle
from tests.kafka.oracle.random_log import DAY_MS, START_MS, Features, Script
from tests.support.cases import topic_config

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = int(os.environ.get("SEEDS", "100"))
FILES = LocalFiles()

pytestmark = pytest.mark.kafka


def make_logs(oracle: Oracle, dice: random.Random, root: Path) -> list[Json]:
    """Have Kafka write some logs below ``root``; return what a broker would know of each."""
    logs: list[Json] = []
    for number in range(dice.randint(2, 5)):
        partition = TopicPartition("t", number)
        script = Script(dice, Features.draw(dice))
        operations = script.appends(dice.choice([5, 20, 40]), dice.choice([3, 6]))
        if dice.random() < 0.7:
            operations.append({"t": "roll"})
        end = script.next_offset
        config: Json = {
            "segment.bytes": dice.choice([700, 2000, 6000]),
            "cleanup.policy": dice.choice(["compact"] * 4 + ["compact,delete", "delete"]),
            "min.cleanable.dirty.ratio": dice.choice([0.0, 0.3, 0.5, 0.9, 1.0]),
        }
        if dice.random() < 0.4:
            config["max.compaction.lag.ms"] = dice.choice([1, 500, 5000, DAY_MS])
        if dice.random() < 0.3:
            most = config.get("max.compaction.lag.ms", DAY_MS)
            config["min.compaction.lag.ms"] = min(most, dice.choice([200, 2000]))
        oracle.demand(
            {
                "op": "write",
                "dir": str(root / str(partition)),
                "now": START_MS,
                "config": config,
                "ops": operations,
                "mtime": START_MS + dice.randrange(3000),
            }
        )
        log_start = dice.choice([0, 0, 0, dice.randrange(end + 1)])
        log: Json = {"partition": str(partition), "config": config, "log_start": log_start}
        if log_start:
            update_checkpoint(FILES, root, LOG_START_CHECKPOINT, {partition: log_start})
        if dice.random() < 0.3:
            log["high_watermark"] = dice.randrange(log_start, end + 1)
            watermark = {partition: log["high_watermark"]}
            update_checkpoint(FILES, root, REPLICATION_CHECKPOINT, watermark)
        if dice.random() < 0.6:
            # Sometimes beyond the end, or below the log start: it is repaired.
            at = dice.randrange(end + 5)
            update_checkpoint(FILES, root, CLEANER_CHECKPOINT, {partition: at})
        logs.append(log)
    return logs


def ours(root: Path, logs: list[Json], now_ms: int) -> list[Json]:
    """Return what keeplast would clean, in Kafka's order."""
    candidates = []
    for log in logs:
        topic = topic_config(log["config"])
        partition = TopicPartition("t", int(log["partition"].rpartition("-")[2]))
        request = PartitionRequest(partition, root / log["partition"], topic)
        if not topic.is_compacted:
            continue
        # Kafka's log is loaded again: it has forgotten transactions that lie below a snapshot and
        # whose marker is not replicated (docs/explanation/differences.md, o).
        # A log is overdue here by its first record, there by its first batch (q).
        asked = CleanRequest(
            (request,), high_watermark=log.get("high_watermark"), is_unsafe=True,
            order=Order.KAFKA,
        )  # fmt: skip
        survey = survey_partition(request, asked, load_checkpoints(FILES, root), FILES, now_ms)
        if survey.plan is not None:
            candidates.append(candidate_of(survey, partition))
    ratios = {candidate.partition: candidate.ratio for candidate in candidates}
    chosen = choose(candidates, len(candidates), Order.KAFKA)
    return [
        {"partition": str(choice.partition), "ratio": ratios[choice.partition]} for choice in chosen
    ]


def by_ratio(grabbed: list[Json]) -> list[tuple[float, str]]:
    """Return the order with equals in the order of their names: Kafka's is that of a hash table."""
    ratios = [each["ratio"] for each in grabbed]
    assert sorted(ratios, reverse=True) == ratios
    return sorted((-each["ratio"], each["partition"]) for each in grabbed)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_the_logs_that_are_taken_are_those_that_kafka_grabs(
    seed: int, oracle: Oracle, tmp_path: Path
) -> None:
    dice = random.Random(f"selection {seed}")
    root = tmp_path / "data"
    root.mkdir()
    logs = make_logs(oracle, dice, root)
    now_ms = START_MS + dice.choice([500, 3000, 10_000, 2 * DAY_MS])
    copy = tmp_path / "kafka"
    shutil.copytree(root, copy)
    answer = oracle.demand({"op": "select", "root": str(copy), "now": now_ms, "logs": logs})
    assert by_ratio(answer["grabbed"]) == by_ratio(ours(root, logs, now_ms))
    shutil.rmtree(tmp_path)
