"""A log of several segments with versions, timestamps, transactions and tombstones."""

from __future__ import annotations

import random
from pathlib import Path

from keeplast.format.compression import Codec
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import text
from tests.support.scenario_log import ScenarioLog
from tests.support.versioned_log import versioned

KEYS = 12


def write_history(root: Path, topic: TopicConfig, *, seed: int, segments: int = 5) -> ScenarioLog:
    """Write the log of ``seed`` below ``root``, the first half of it cleaned once; closed."""
    dice = random.Random(seed)
    log = ScenarioLog(root, topic)
    for segment in range(segments):
        for _ in range(10):
            records = [
                versioned(
                    text(dice.randrange(KEYS)),
                    dice.choice([None, dice.randrange(-3, 6), dice.randrange(-3, 6)]),
                    dice.choice([b"v" * 20, b"v" * 20, None]),
                    timestamp_ms=dice.randrange(-1, 9),
                )
                for _ in range(dice.randrange(1, 5))
            ]
            codec = dice.choice([Codec.NONE, Codec.NONE, Codec.ZSTD])
            if dice.random() < 0.3:
                producer = log.producer(1000 * segment + dice.randrange(1000))
                producer.send_records(*records, codec=codec)
                producer.commit() if dice.random() < 0.5 else producer.abort(rolls=False)
            else:
                log.append(*records, codec=codec)
        log.roll()
        if segment == segments // 2:
            log.clean()
    log.close()
    return log
