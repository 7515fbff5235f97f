"""Where versions rank, every way to cut a round leaves the same bytes and counts the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    clean_request,
    last_round,
    one,
    records_of,
    write_partition,
)
from tests.support.scenario_log import PARTITION, ScenarioLog
from tests.support.source_reading import read_log_state
from tests.support.versioned_history import write_history
from tests.support.versioned_log import BY_HEADER, BY_TIMESTAMP

COUNTED = (
    "messages_read",
    "messages_written",
    "tombstones_written",
    "distinct_keys",
    "versions_missing",
    "versions_malformed",
)


def cleaned(log: ScenarioLog, topic: TopicConfig, shape: Shape, cores: int) -> tuple[int, ...]:
    files = UnsyncedFiles()
    with LocalRunner(cores=cores, files=files) as runner:
        request = CleanRequest(
            (PartitionRequest(PARTITION, log.directory, topic),), now_ms=log.now_ms,
            is_unsafe=True, force=True, shape=shape,
        )  # fmt: skip
        coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
        report = last_round(coordinator.clean(request))
    assert report.failure is None
    assert report.stats is not None
    return tuple(getattr(report.stats, name) for name in COUNTED)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topic", [BY_HEADER, BY_TIMESTAMP], ids=["header", "timestamp"])
def test_every_shape_leaves_the_same(tmp_path: Path, topic: TopicConfig, seed: int) -> None:
    topic = replace(topic, segment_bytes=2000)
    log = write_history(tmp_path / "first", topic, seed=seed)
    expected = cleaned(log, topic, Shape.PARTITION, 1)
    for shape in (Shape.BROADCAST, Shape.BUCKET):
        same = write_history(tmp_path / shape.name, topic, seed=seed)
        assert expected == cleaned(same, topic, shape, 3), shape
        assert log.closed_files() == same.closed_files(), shape


@pytest.mark.parametrize("shape", [Shape.PARTITION, Shape.BROADCAST, Shape.BUCKET])
def test_versions_rank_among_the_greatest_offsets(tmp_path: Path, shape: Shape) -> None:
    """What a rank holds of an offset has no bit left for a sign."""
    first = INT64_MAX - 100
    segments = {
        first: one(first, b"a", b"1", NOW_MS + 2) + one(first + 1, b"a", b"2", NOW_MS + 1),
        first + 10: one(first + 10, b"b", b"3", NOW_MS),
    }
    directory = write_partition(tmp_path, segments)
    topic = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    state = [(first, b"1"), (first + 10, b"3")]
    assert state == [(row.offset, row.value) for row in read_log_state(directory, topic=topic)]
    with LocalRunner(cores=2) as runner:
        request = replace(clean_request(directory, topic=topic), shape=shape)
        coordinator = Coordinator(runner, SystemClock(), UnsyncedFiles(), NoEvents())
        last_round(coordinator.clean(request))
    assert state == [(record.offset, record.value) for record in records_of(directory)]


@pytest.mark.parametrize("shape", [Shape.PARTITION, Shape.BROADCAST, Shape.BUCKET])
def test_versions_are_counted_only_where_a_key_is_dirty(tmp_path: Path, shape: Shape) -> None:
    segments = {0: one(0, b"a") + one(1, b"b"), 10: one(10, None), 20: one(20, b"c")}
    directory = write_partition(tmp_path, segments)
    request = clean_request(directory, topic=BY_HEADER)
    request = replace(request, shape=shape, first_dirty_offset=10)
    with LocalRunner(cores=2) as runner:
        coordinator = Coordinator(runner, SystemClock(), UnsyncedFiles(), NoEvents())
        report = last_round(coordinator.clean(request))
    assert report.stats is not None
    assert (0, 0) == (report.stats.distinct_keys, report.stats.versions_missing)
