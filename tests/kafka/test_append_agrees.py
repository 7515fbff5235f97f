"""What our appender writes, next to what Kafka's own log writes when given the same batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from keeplast.format import producer_snapshot
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import TopicConfig
from tests.kafka.oracle.driver import Oracle

pytestmark = pytest.mark.kafka

START_MS = 1_700_000_000_000
SAME_BYTES = (".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint")
# Snappy's bytes differ between implementations; the other codecs equal Kafka's.
CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class Step(Struct, frozen=True):
    """One append: as the oracle's script says it, and as ours does."""

    script: dict[str, Any]

    def apply(self, log: LogAppender) -> None:
        op = self.script
        if op["t"] == "m":
            log.append_marker(
                ControlType[op["type"].upper()],
                producer_id=op["pid"],
                producer_epoch=op["pe"],
                timestamp_ms=op["ts"],
            )
            return
        log.append(
            [
                NewRecord(key.encode(), None if value is None else value.encode(), timestamp)
                for key, value, timestamp in op["recs"]
            ],
            codec=CODECS[op["codec"]],
            producer_id=op.get("pid", -1),
            producer_epoch=op.get("pe", -1),
            base_sequence=op.get("seq", -1),
            is_transactional=op.get("txn", False),
            base_offset=op.get("base"),
        )


def steps(dice: random.Random) -> Iterator[Step]:
    timestamp = START_MS
    sequences: dict[int, int] = {}
    open_transactions: set[int] = set()
    end = 0
    for _ in range(80):
        timestamp += dice.randint(-100, 300)
        if open_transactions and dice.random() < 0.1:
            producer = dice.choice(sorted(open_transactions))
            open_transactions.remove(producer)
            outcome = dice.choice(["commit", "abort"])
            yield Step({"t": "m", "pid": producer, "pe": 0, "type": outcome, "ts": timestamp})
            end += 1
            continue
        count = dice.randint(1, 6)
        records = [
            (
                f"k{dice.randint(0, 20)}",
                dice.choice([None, "v" * dice.randint(0, 90)]),
                timestamp + i,
            )
            for i in range(count)
        ]
        op: dict[str, Any] = {"t": "b", "recs": records, "codec": dice.choice(list(CODECS))}
        if dice.random() < 0.5:
            producer = dice.randint(1, 4)
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + count
            op |= {"pid": producer, "pe": 0, "seq": sequence, "txn": producer > 2}
            if producer > 2:
                open_transactions.add(producer)
        if dice.random() < 0.05:
            end += dice.randint(1, 100)
            op["base"] = end
        yield Step(op)
        end += count


@pytest.mark.parametrize("seed", range(20))
def test_appended_files_equal_kafkas(oracle: Oracle, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    config: dict[str, Any] = {
        "cleanup.policy": "compact",
        "segment.bytes": dice.choice([1500, 6000, 1 << 20]),
        "segment.ms": dice.choice([8000, INT64_MAX]),
        "index.interval.bytes": dice.choice([0, 200, 4096]),
    }
    topic = TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=config["segment.bytes"],
        segment_ms=config["segment.ms"],
        index_interval_bytes=config["index.interval.bytes"],
    )
    script = list(steps(dice))
    theirs, ours = tmp_path / "theirs" / "t-0", tmp_path / "ours" / "t-0"
    oracle.demand(
        {
            "op": "write",
            "dir": str(theirs),
            "now": START_MS,
            "config": config,
            "ops": [step.script for step in script],
        }
    )
    with LogAppender(ours, LocalFiles(), topic=topic) as log:
        for step in script:
            step.apply(log)
    for path in sorted(theirs.iterdir()):
        mine = ours / path.name
        if path.name.endswith(SAME_BYTES):
            assert path.read_bytes() == mine.read_bytes(), path.name
        elif path.suffix == ".snapshot":
            expected, actual = (producer_snapshot.decode(p.read_bytes()) for p in (path, mine))
            assert set(expected) == set(actual), path.name
    assert {p.name for p in theirs.glob("*.log")} == {p.name for p in ours.glob("*.log")}


@pytest.mark.parametrize("seed", range(100, 110))
def test_kafka_accepts_appended_batches(oracle: Oracle, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    directory = tmp_path / "t-0"
    topic = TopicConfig(segment_bytes=4000, segment_ms=INT64_MAX, index_interval_bytes=300)
    script = list(steps(dice))
    for part in range(0, len(script), 30):
        with LogAppender(directory, LocalFiles(), topic=topic, leader_epoch=part) as log:
            for step in script[part : part + 30]:
                step.apply(log)
    answer = oracle.demand(
        {
            "op": "accept",
            "dir": str(directory),
            "work": str(tmp_path / "work"),
            "config": {"segment.bytes": 4000, "index.interval.bytes": 300},
        }
    )
    assert (answer["ok_clean"], answer["ok_recovered"]) == (True, True), answer
    assert answer["recovered"]["txn_index_same"]
