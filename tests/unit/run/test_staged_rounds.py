"""Rounds in stages on threads: the bytes of one task, whatever the rank, the section, the state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.format.record import ControlType
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Shape, Strategy, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.cleanings import Reshaped, untimed
from tests.support.flipped import flip
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean_request,
    data_batch,
    last_round,
    marker,
    one,
    write_partition,
)
from tests.support.replay import tree

CHOICES = [
    ShapeChoice(Shape.BROADCAST),
    ShapeChoice(Shape.BUCKET, 3),
    ShapeChoice(Shape.BUCKET, 70),
]
BY_TIMESTAMP = replace(SMALL_SEGMENTS, strategy=Strategy.TIMESTAMP)


def clean(runner: Runner, request: CleanRequest) -> CleanReport:
    return Coordinator(runner, SystemClock(), LocalFiles(), NoEvents()).clean(request)


def both_ways(
    directory: Path, choice: ShapeChoice, threads: LocalRunner, topic: TopicConfig, dirty: int
) -> None:
    twin = shutil.copytree(directory.parent, directory.parent.with_name("twin")) / directory.name
    request = replace(clean_request(directory, topic=topic), first_dirty_offset=dirty)
    whole = last_round(clean(LocalRunner(cores=1), request))
    request = replace(clean_request(twin, topic=topic), first_dirty_offset=dirty)
    reshaped = Reshaped(threads, choice)
    staged = last_round(clean(reshaped, request))
    assert 1 == reshaped.staged
    assert untimed(whole) == untimed(staged)
    assert tree(directory) == tree(twin)


@pytest.mark.parametrize("dirty", [0, 30, 33, 41, 51])
@pytest.mark.parametrize("topic", [COMPACT, SMALL_SEGMENTS, BY_TIMESTAMP])
@pytest.mark.parametrize("choice", CHOICES)
def test_stages_leave_the_bytes_of_one_task(
    choice: ShapeChoice, topic: TopicConfig, dirty: int, threads: LocalRunner, tmp_path: Path
) -> None:
    both_ways(write_mixed_log(tmp_path / "data"), choice, threads, topic, dirty)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_clean_section_with_transactions_below_a_dirty_one_without(
    choice: ShapeChoice, threads: LocalRunner, tmp_path: Path
) -> None:
    """The events of the clean section were not listed when a group meets the first of them."""
    segments = {
        0: data_batch(0, 7, [b"a", b"b"]) + data_batch(2, 8, [b"c"]),
        10: marker(10, 7, ControlType.COMMIT) + data_batch(11, 8, [b"d"]),
        20: marker(20, 8, ControlType.COMMIT) + one(21, b"x"),
        30: one(30, b"a", b"2", NOW_MS) + one(31, b"x", b"2", NOW_MS),
        40: one(40, b"d", b"2", NOW_MS),
        50: one(50, b"e"),
    }
    directory = write_partition(tmp_path / "data", segments)
    both_ways(directory, choice, threads, SMALL_SEGMENTS, 30)


def test_a_staged_partition_among_whole_ones(threads: LocalRunner, tmp_path: Path) -> None:
    first = write_mixed_log(tmp_path / "data")
    for number in range(1, 6):
        shutil.copytree(first, first.with_name(f"t-{number}"))
    shutil.copytree(tmp_path / "data", tmp_path / "twin")

    def request(root: Path) -> CleanRequest:
        partitions = tuple(
            PartitionRequest(
                TopicPartition("t", n), root / f"t-{n}", SMALL_SEGMENTS,
                CleanerConfig(key_map_bytes=1 << 20 if n % 2 else None),
            )
            for n in range(6)
        )  # fmt: skip
        return replace(clean_request(first), partitions=partitions)

    clean(LocalRunner(cores=1), request(tmp_path / "data"))
    reshaped = Reshaped(threads, CHOICES[0])
    clean(reshaped, request(tmp_path / "twin"))
    assert 3 == reshaped.staged
    for n in range(6):
        assert tree(tmp_path / "data" / f"t-{n}") == tree(tmp_path / "twin" / f"t-{n}")


@pytest.mark.parametrize("choice", CHOICES)
def test_a_failed_round_leaves_the_directory_as_it_was(
    choice: ShapeChoice, threads: LocalRunner, tmp_path: Path
) -> None:
    directory = write_mixed_log(tmp_path / "data")
    path = directory / f"{50:020d}.log"
    flip(path, -3)
    before = tree(directory)
    report = last_round(
        clean(Reshaped(threads, choice), clean_request(directory, topic=SMALL_SEGMENTS))
    )
    assert report.error is not None
    assert "CorruptError" == report.error.error_class
    assert str(path) == report.error.path
    assert before == tree(directory)


def test_the_report_says_shape_and_reason(threads: LocalRunner, tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path / "data")
    request = replace(clean_request(directory, topic=SMALL_SEGMENTS), shape=Shape.BUCKET)
    (partition,) = clean(threads, request).to_json()["partitions"]
    found = partition["shape"], partition["buckets"], partition["shape_reason"]
    assert ("bucket", 1, "as asked for") == found
    assert PARTITION.topic == partition["topic"]
