"""A stream that begins again knows the log that its offsets are of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from keeplast.errors import InvalidError
from keeplast.format import leader_epoch, partition_metadata
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.source_options import read_options
from keeplast.pipeline.stream_reader import Lineage, LogStreamReader, Position, read_position
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS

OLD, NEW = b"o" * 16, b"n" * 16


def make(directory: Path, count: int, topic_id: bytes | None, *epochs: tuple[int, int]) -> None:
    """Make a log of ``count`` records in the place of what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    log = LogBuilder(directory, TopicConfig())
    for number in range(count):
        log.append(NewRecord(b"k", b"v", NOW_MS + number))
    log.close()
    if topic_id is not None:
        metadata = partition_metadata.encode(PartitionMetadata(topic_id))
        (directory / "partition.metadata").write_bytes(metadata)
    if epochs:
        lines = leader_epoch.encode(LeaderEpoch(*each) for each in epochs)
        (directory / "leader-epoch-checkpoint").write_bytes(lines)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data/t-0"


def reader_of(directory: Path, **options: str) -> LogStreamReader:
    """Return a reader as a query has it that begins again: without any memory."""
    given = {"path": str(directory.parent), "startingOffsets": "earliest", **options}
    return LogStreamReader(read_options(given, is_streaming=True), ["offset"])


def latest(reader: LogStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_an_offset_has_the_topics_id_and_the_epoch_of_the_record_before_it(directory: Path) -> None:
    make(directory, 9, OLD, (2, 0), (5, 6))
    begin = reader_of(directory).initialOffset()
    assert {"t": {"0": 0}, "@": {"t-0": {"topicId": "b29vb29vb29vb29vb29vbw"}}} == begin
    end = latest(reader_of(directory), begin)
    assert {"topicId": "b29vb29vb29vb29vb29vbw", "epoch": 5} == end["@"]["t-0"]
    limited = latest(reader_of(directory, maxOffsetsPerTrigger="6"), begin)
    assert ({"0": 6}, 2) == (limited["t"], limited["@"]["t-0"]["epoch"])


def test_a_topic_that_was_made_again_and_has_grown_ends_a_stream_that_begins_again(
    directory: Path,
) -> None:
    make(directory, 3, OLD)
    end = latest(reader_of(directory), {"t": {"0": 0}})
    make(directory, 5, NEW)
    with pytest.raises(InvalidError, match="deleted and made again"):
        latest(reader_of(directory), end)
    with pytest.raises(InvalidError, match="deleted and made again"):
        reader_of(directory).partitions({"t": {"0": 0}}, end)
    accepted = latest(reader_of(directory, failOnDataLoss="false"), end)
    assert {"0": 5} == accepted["t"]
    assert accepted == latest(reader_of(directory), accepted)


def test_a_log_that_was_cut_below_what_was_read_and_has_grown_ends_the_stream(
    directory: Path,
) -> None:
    """As a topic that was made again where no id says so."""
    make(directory, 3, None, (4, 0))
    end = latest(reader_of(directory), {"t": {"0": 0}})
    assert {"t": {"0": 3}, "@": {"t-0": {"epoch": 4}}} == end
    for epochs in [((0, 0),), ((4, 0), (6, 2))]:
        make(directory, 7, None, *epochs)
        with pytest.raises(InvalidError, match="another leader epoch"):
            latest(reader_of(directory), end)


def test_a_log_that_goes_on_contradicts_nothing(directory: Path) -> None:
    """New epochs, a log start behind older ones, and files that say less than they did."""
    make(directory, 4, OLD, (1, 0), (3, 2))
    end = latest(reader_of(directory), {"t": {"0": 0}})
    make(directory, 6, OLD, (3, 2), (7, 4))
    assert {"0": 6} == latest(reader_of(directory), end)["t"]
    make(directory, 6, OLD, (7, 4))
    assert {"0": 6} == latest(reader_of(directory), end)["t"]
    make(directory, 6, None)
    last = latest(reader_of(directory), end)
    assert {"t": {"0": 6}} == last


def test_offsets_of_earlier_versions_go_on_and_say_more_from_then_on(directory: Path) -> None:
    make(directory, 3, OLD, (1, 0))
    old = {"t": {"0": 3}}
    end = latest(reader_of(directory), old)
    assert ({"0": 3}, 1) == (end["t"], end["@"]["t-0"]["epoch"])
    assert [] == list(reader_of(directory).partitions(old, end))
    assert end == latest(reader_of(directory), end)


def test_what_is_known_of_a_partition_that_is_not_there_stays(directory: Path) -> None:
    make(directory, 3, OLD)
    make(directory.with_name("t-1"), 2, OLD)
    end = latest(reader_of(directory), {"t": {"0": 0}})
    shutil.rmtree(directory.with_name("t-1"))
    assert end == latest(reader_of(directory, failOnDataLoss="false"), end)


def test_a_position_survives_being_kept() -> None:
    offsets = {TopicPartition("a.b", 0): 3, TopicPartition("a.b", 12): 0}
    position = Position(offsets, {TopicPartition("a.b", 0): Lineage(NEW, 7)})
    assert position == read_position(position.as_document())


@pytest.mark.parametrize(
    "known",
    [
        3,
        {"t-0": 3},
        {"t-1": {}},
        {"t-0": {"topicId": "short"}},
        {"t-0": {"epoch": "7"}},
        {"t-0": {"epoch": -1}},
    ],
)
def test_a_bad_position_is_refused(known: object) -> None:
    with pytest.raises(InvalidError, match="remove the checkpoint"):
        read_position({"t": {"0": 3}, "@": known})
