"""What another strategy would keep: counted over the same records, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.api.open_log import open_log
from keeplast.format.record import Record, header_version
from keeplast.inspect.preview import (
    GREATEST_MAX,
    SAMPLE_MAX,
    StrategyPreview,
    VersionSpread,
    preview_strategy,
)
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Strategy, TopicConfig
from tests.support.existing import existing
from tests.support.record_rank import Rank, rank_of
from tests.support.scenario_log import PARTITION, ScenarioLog
from tests.support.versioned_history import write_history
from tests.support.versioned_log import (
    BY_HEADER,
    BY_TIMESTAMP,
    HEADER_NAME,
    deletion,
    versioned,
    write,
)

A, B, C = b"a", b"b", b"c"
NAME = HEADER_NAME.encode()
BY_OFFSET = replace(BY_HEADER, strategy=Strategy.OFFSET, strategy_header=None)


def preview(
    directory: Path,
    *,
    today: TopicConfig = BY_OFFSET,
    then: TopicConfig = BY_HEADER,
    first: int = 10,
    memory_bytes: int = 1 << 20,
    log_start: int = 0,
) -> StrategyPreview:
    return preview_strategy(
        directory, PARTITION, LocalFiles(), today=today, then=then, first=first,
        memory_bytes=memory_bytes, log_start=log_start, progressed=lambda _: None,
    )  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> ScenarioLog:
    log = ScenarioLog(tmp_path, BY_HEADER)
    log.append(versioned(A, 9, timestamp_ms=5), versioned(B, 1), versioned(C, 4))
    write(log, versioned(A, 3, timestamp_ms=6), versioned(B, 2), deletion(C))
    log.append(NewRecord(b"d", b"v", headers=((NAME, b"short"),)))
    log.close()
    return log


def test_changed_keys_come_with_both_candidates(log: ScenarioLog) -> None:
    found = preview(log.directory)
    assert (7, 4, 2, 1, 0) == (
        found.records, found.keys, found.keys_changed, found.keys_back, found.keys_gone
    )  # fmt: skip
    first, second = found.changes
    assert (A, 3, 0) == (first.key, first.today.offset, first.then.offset)
    assert (6, 3, 5, 9) == (
        first.today.timestamp, first.today.version, first.then.timestamp, first.then.version
    )  # fmt: skip
    assert (C, True, False) == (second.key, second.today.is_tombstone, second.then.is_tombstone)


def test_records_without_a_version_are_counted(log: ScenarioLog) -> None:
    found = preview(log.directory)
    assert (1, 1, 1) == (
        found.versions_missing, found.versions_malformed, found.tombstones_unversioned
    )  # fmt: skip


def test_the_way_back_is_the_same_seen_from_the_other_side(log: ScenarioLog) -> None:
    found = preview(log.directory, today=BY_HEADER, then=BY_OFFSET)
    assert (2, 0, 1) == (found.keys_changed, found.keys_back, found.keys_gone)
    assert (0, 3) == (found.changes[0].today.offset, found.changes[0].then.offset)


def test_no_more_keys_are_shown_than_asked_for(log: ScenarioLog) -> None:
    assert (2, [A]) == (
        preview(log.directory, first=1).keys_changed,
        [change.key for change in preview(log.directory, first=1).changes],
    )
    assert () == preview(log.directory, first=0).changes


def test_only_committed_records_from_the_log_start_count(log: ScenarioLog) -> None:
    assert (4, 4) == (
        preview(log.directory, log_start=3).records, preview(log.directory, log_start=3).keys
    )  # fmt: skip
    again = ScenarioLog(log.directory.parent / "other", BY_HEADER)
    aborted, opened = again.producer(1), again.producer(2)
    aborted.send_records(versioned(A, 9))
    aborted.abort()
    again.append(versioned(A, 1))
    opened.send_records(versioned(A, 5))
    again.append(versioned(B, 1))
    again.close()
    found = preview(again.directory)
    assert (1, 1, 0) == (found.records, found.keys, found.keys_changed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("today", "then"),
    [(BY_OFFSET, BY_HEADER), (BY_OFFSET, BY_TIMESTAMP), (BY_TIMESTAMP, BY_HEADER)],
    ids=["header", "timestamp", "timestamp to header"],
)
def test_counts_are_those_of_two_dictionaries(
    tmp_path: Path, seed: int, memory_bytes: int, today: TopicConfig, then: TopicConfig
) -> None:
    log = write_history(tmp_path, BY_HEADER, seed=seed)
    kept = open_log(log.directory)
    aborted = {entry.producer_id for entry in log.aborted()}
    records = [
        record
        for batch in kept.batches()
        if not batch.is_control and batch.producer_id not in aborted
        for record in batch.records()
        if record.key is not None
    ]

    def finals(topic: TopicConfig) -> dict[bytes, Record]:
        best: dict[bytes, tuple[Rank, Record]] = {}
        for record in records:
            rank = rank_of(record, topic.strategy, NAME)
            if record.key is not None and best.get(record.key, (rank, record))[0] <= rank:
                best[record.key] = rank, record
        return {key: record for key, (_, record) in best.items()}

    ours, theirs = finals(today), finals(then)
    changed = {key for key in ours if ours[key].offset != theirs[key].offset}
    found = preview(log.directory, today=today, then=then, memory_bytes=memory_bytes, first=99)
    assert (len(records), len(ours), len(changed)) == (
        found.records, found.keys, found.keys_changed
    )  # fmt: skip
    assert {key: (ours[key].offset, theirs[key].offset) for key in changed} == {
        change.key: (change.today.offset, change.then.offset) for change in found.changes
    }
    if then.strategy is Strategy.HEADER:
        without = sum(header_version(record.headers, NAME) is None for record in records)
        assert without == found.versions_missing + found.versions_malformed


def spread_of(*versions: int) -> VersionSpread:
    spread = VersionSpread()
    for start in range(0, len(versions), 1000):
        part = np.array(versions[start : start + 1000], np.int64)
        spread.add(np.arange(start, start + len(part)), part)
    return spread


def test_a_version_far_beyond_the_rest_is_found() -> None:
    spread = spread_of(*range(500), 1 << 62, *range(500))
    assert (0, 1 << 62) == (spread.least, spread.greatest)
    assert [(500, 1 << 62)] == spread.far_ahead(3)
    assert 1 == spread.far_ahead_count


@pytest.mark.parametrize("versions", [(), (7,), (7, 7, 7), tuple(range(1000)), (-(2**63), 5)])
def test_versions_that_grow_with_the_rest_are_not_far_ahead(versions: tuple[int, ...]) -> None:
    assert [] == spread_of(*versions).far_ahead(3)


def test_of_many_versions_a_bounded_sample_is_kept() -> None:
    spread = VersionSpread()
    count = 0
    for _ in range(30):
        spread.add(np.arange(count, count + 10_000), np.arange(count, count + 10_000))
        count += 10_000
    spread.add(np.array([count]), np.array([1 << 60]))
    usual = existing(spread.usual)
    assert abs(usual[0] - 3_000) < 300
    assert abs(usual[1] - 297_000) < 300
    assert [(count, 1 << 60)] == spread.far_ahead(5)
    assert len(spread._sample) <= SAMPLE_MAX
    assert len(spread._greatest) <= GREATEST_MAX
