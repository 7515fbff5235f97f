"""Where the first pass begins: an index that is older than its segment leaves nothing dirty out."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast import open_log
from keeplast.format import offset_index
from keeplast.format.filename import CLEANER_CHECKPOINT, INDEX
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from tests.support.existing import existing
from tests.support.log_builder import LogBuilder, text

TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=1 << 20
)
KEYS = [0, 1, 2, 3, 0, 1, 2, 3, 0, 9]
FIRST_DIRTY = 4
WINNERS = [5, 6, 7, 8, 9]


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A closed segment of ten batches, clean up to the fifth."""
    log = LogBuilder(tmp_path / "data" / "t-0", TOPIC)
    for offset, key in enumerate(KEYS):
        log.append(NewRecord(text(key), text(offset), log.now_ms))
    log.roll()
    (log.directory.parent / CLEANER_CHECKPOINT).write_text(f"0\n1\nt 0 {FIRST_DIRTY}\n")
    return log


def positions(log: LogBuilder) -> list[int]:
    return [batch.position for batch in open_log(log.directory).batches()]


@pytest.mark.parametrize("number", [5, 6, 7, 8, 9])
def test_a_place_after_the_first_dirty_batch_is_not_believed(log: LogBuilder, number: int) -> None:
    """As the index of what the segment was before it was merged, restored by itself."""
    at = positions(log)[number]
    log.path(0, INDEX).write_bytes(offset_index.encode([(FIRST_DIRTY - 1, at)]))
    found = open_log(log.directory)
    found.clean(TOPIC)
    assert WINNERS == [record.offset for record in found.records()]


def test_a_place_within_a_batch_is_not_believed(log: LogBuilder) -> None:
    at = positions(log)[9] - 5
    log.path(0, INDEX).write_bytes(offset_index.encode([(FIRST_DIRTY - 1, at)]))
    found = open_log(log.directory)
    found.clean(TOPIC)
    assert WINNERS == [record.offset for record in found.records()]


@pytest.mark.parametrize("number", [1, 4])
def test_a_place_before_the_first_dirty_batch_is_taken(log: LogBuilder, number: int) -> None:
    at = positions(log)[number]
    log.path(0, INDEX).write_bytes(offset_index.encode([(number, at)]))
    found = open_log(log.directory)
    report = found.clean(replace(TOPIC, index_interval_bytes=1))
    stats = existing(report.rounds[-1].stats)
    assert len(KEYS) - number == stats.map_messages_read
    assert WINNERS == [record.offset for record in found.records()]
