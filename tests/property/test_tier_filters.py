"""Filters change what a round on the tier reads, and never what remains (I-22)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.compression import Codec
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import CleanerConfig, Shape, Strategy, TopicConfig
from keeplast.rewrite.stats import FilterStats
from tests.support.log_builder import LogBuilder, text
from tests.support.partition_maker import DAY_MS, PARTITION
from tests.support.tiered_log import Tiered
from tests.support.versioned_log import BY_HEADER, BY_TIMESTAMP, versioned

SESSIONS = 5
KEYS_OF_A_SESSION = 8
SMALL = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=1500, delete_retention_ms=2 * DAY_MS
)


def write_session(log: LogBuilder, dice: random.Random, session: int) -> None:
    """Append segments whose keys are mostly the session's own, so that some stay untouched."""
    for segment in range(dice.randrange(2, 5)):
        has_transactions = dice.random() < 0.25
        for _ in range(dice.randrange(1, 8)):
            codec = dice.choice([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4])
            new = [record(dice, session) for _ in range(dice.randrange(1, 6))]
            if not has_transactions:
                sender = log.producer(dice.randrange(4), is_transactional=False)
                if dice.random() < 0.5:
                    sender.send_records(*new, codec=codec)
                else:
                    log.append(*new, codec=codec)
                continue
            producer = log.producer(1000 * session + 100 * segment + dice.randrange(100))
            producer.send_records(*new, codec=codec)
            producer.commit() if dice.random() < 0.6 else producer.abort(rolls=False)
        log.roll()


def record(dice: random.Random, session: int) -> NewRecord:
    its = session if dice.random() < 0.95 else dice.randrange(session + 1)
    key = text(100 * its + dice.randrange(KEYS_OF_A_SESSION))
    value = None if dice.random() < 0.15 else b"v" * dice.randrange(120)
    if dice.random() < 0.02:
        return NewRecord(None, b"keyless")
    version = dice.choice([None, dice.randrange(-3, 6)])
    return versioned(key, version, value, timestamp_ms=dice.randrange(-1, 9))


def clean_history(
    root: Path,
    seed: int,
    topic: TopicConfig,
    cleaner: CleanerConfig,
    shape: Shape | None = None,
) -> FilterStats:
    """Clean one history with filters and without, session by session; compare all that is left.

    A ``shape`` is that of the rounds with filters; the others are one task.
    """
    dice = random.Random(seed)
    log = LogBuilder(root / str(PARTITION), topic)
    pairs: list[tuple[Tiered, TopicConfig]] = []
    saved = FilterStats()
    for session in range(SESSIONS):
        log.now_ms += dice.choice([1, DAY_MS, 3 * DAY_MS])
        write_session(log, dice, session)
        for i, fpp in enumerate((0.01, 0.0)):
            if session == 0:
                own = root / str(i)
                own.mkdir()
                pairs.append((Tiered(own, log.directory), replace(topic, tier_filter_fpp=fpp)))
            else:
                pairs[i][0].take_in(log.directory)
            pairs[i][0].clock.advance(log.now_ms - pairs[i][0].clock.now_ms())
        reports = [
            each.clean(its, cleaner=cleaner, shape=shape if its.tier_filter_fpp else None)
            for each, its in pairs
        ]
        assert reports[0].shape == (shape or Shape.PARTITION).value
        assert reports[0].end_offset == reports[1].end_offset
        assert pairs[0][0].live_objects() == pairs[1][0].live_objects()
        if reports[0].filters is not None:
            saved += reports[0].filters
    log.close()
    return saved


@pytest.mark.rotates(18)
@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize(
    ("topic", "cleaner"),
    [
        (SMALL, CleanerConfig()),
        (replace(SMALL, segment_bytes=14), CleanerConfig()),
        (replace(SMALL, segment_bytes=800, tier_chunk_bytes=1 << 20), CleanerConfig()),
        (replace(SMALL, segment_bytes=700), CleanerConfig(key_map_bytes=24 * 12)),
        (replace(BY_HEADER, segment_bytes=900, delete_retention_ms=DAY_MS), CleanerConfig()),
        (replace(BY_TIMESTAMP, segment_bytes=14), CleanerConfig(key_map_bytes=32 * 12)),
    ],
    ids=["small", "one by one", "in one chunk", "bounded map", "by header", "by time, bounded"],
)
def test_i22_what_remains_is_the_same_with_filters_and_without(
    tmp_path: Path, topic: TopicConfig, cleaner: CleanerConfig, seed: int
) -> None:
    saved = clean_history(tmp_path, seed, topic, cleaner)
    assert saved.skipped_segments > 0
    if topic.strategy is not Strategy.OFFSET:
        assert saved.unranked_bytes > 0


@pytest.mark.rotates(8)
@pytest.mark.parametrize("shape", [Shape.BROADCAST, Shape.BUCKET])
@pytest.mark.parametrize(
    "topic",
    [
        replace(SMALL, segment_bytes=14),
        replace(SMALL, segment_bytes=800),
        replace(BY_HEADER, segment_bytes=900, delete_retention_ms=DAY_MS),
        replace(BY_TIMESTAMP, segment_bytes=14),
    ],
    ids=["one by one", "small", "by header", "by time"],
)
def test_i22_what_remains_is_the_same_when_rounds_with_filters_are_cut(
    tmp_path: Path, topic: TopicConfig, shape: Shape
) -> None:
    whole = replace(topic, tier_chunk_bytes=1 << 30)
    saved = clean_history(tmp_path, 1, whole, CleanerConfig(), shape)
    assert saved.skipped_segments > 0
    if shape is Shape.BROADCAST and topic.strategy is not Strategy.OFFSET:
        assert saved.unranked_bytes > 0
