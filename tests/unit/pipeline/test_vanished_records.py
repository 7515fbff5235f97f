"""Records that retention or a truncation takes between planning and reading are never passed over.

Queries are asked as Spark asks them: the driver plans, and tasks read when they get to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import ConflictError, InvalidError
from keeplast.format import partition_metadata
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import SCHEMA
from keeplast.pipeline.source_options import read_options
from keeplast.pipeline.stream_reader import LogStreamReader
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS

SEGMENTS, RECORDS = 3, 40
END = SEGMENTS * RECORDS


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of three segments of forty records with a key each."""
    log = LogBuilder(tmp_path / "data/t-0", TopicConfig())
    for number in range(END):
        if number and number % RECORDS == 0:
            log.roll()
        log.append(NewRecord(b"%d" % number, b"v", NOW_MS))
    log.close()
    return log.directory


def expire_two_segments(directory: Path) -> None:
    """Remove the first two segments as retention does: their names go, the third one's stays."""
    for path in directory.glob("*.*"):
        if path.stem.isdigit() and int(path.stem) < 2 * RECORDS:
            path.unlink()


def raise_log_start(directory: Path) -> None:
    """Raise the log start as DeleteRecords does."""
    checkpoint = directory.parent / "log-start-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({TopicPartition("t", 0): 50}))


def truncate(directory: Path) -> None:
    """Cut the last segment off in the middle, as a new leader's follower does."""
    active = directory / f"{2 * RECORDS:020d}.log"
    data = active.read_bytes()
    size = int.from_bytes(data[8:12], "big") + 12
    active.write_bytes(data[: 10 * size])


CHANGES = [expire_two_segments, raise_log_start, truncate]


def planned(directory: Path, **options: str) -> Callable[[], list[int]]:
    """Plan a batch query; what is returned reads its tasks and gives the offsets of the rows."""
    source = KafkaLogSource({"path": str(directory.parent), **options})
    reader = source.reader(SCHEMA)
    parts = reader.partitions()
    return lambda: sorted(
        offset
        for part in parts
        for batch in reader.read(part)
        for offset in batch.column("offset").to_pylist()
    )


def streamed(directory: Path, **options: str) -> Callable[[], list[int]]:
    """Plan a batch of a stream, of the whole log."""
    given = {"path": str(directory.parent), **options}
    reader = LogStreamReader(read_options(given, is_streaming=True), ["offset"])
    end = reader.latestOffset({"t": {"0": 0}}, reader.getDefaultReadLimit())
    parts = reader.partitions({"t": {"0": 0}}, end)
    return lambda: sorted(
        offset
        for part in parts
        for batch in reader.read(part)
        for offset in batch.column("offset").to_pylist()
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("plan", [planned, streamed])
def test_records_that_go_before_a_task_reads_them_fail_it(
    directory: Path, plan: Callable[[Path], Callable[[], list[int]]], change: Callable[[Path], None]
) -> None:
    read = plan(directory)
    assert list(range(END)) == read()
    change(directory)
    with pytest.raises(ConflictError, match="set failOnDataLoss=false"):
        read()


def test_a_state_whose_records_go_before_a_task_reads_them_fails(directory: Path) -> None:
    read = planned(directory, state="latest", minPartitions="3")
    assert list(range(END)) == read()
    expire_two_segments(directory)
    with pytest.raises(ConflictError, match="log_start=80"):
        read()


@pytest.mark.parametrize(
    ("change", "left"),
    [(expire_two_segments, range(80, END)), (raise_log_start, range(END)), (truncate, range(90))],
)
@pytest.mark.parametrize("plan", [planned, streamed])
def test_a_reader_that_accepts_loss_reads_the_rest(
    directory: Path,
    plan: Callable[..., Callable[[], list[int]]],
    change: Callable[[Path], None],
    left: range,
) -> None:
    read = plan(directory, failOnDataLoss="false")
    change(directory)
    assert list(left) == read()


def test_a_task_that_still_has_all_its_records_is_not_failed(directory: Path) -> None:
    read = planned(directory, startingOffsets='{"t":{"0":80}}')
    expire_two_segments(directory)
    assert list(range(80, END)) == read()


def recreate(directory: Path) -> None:
    """Let the directory be that of another topic of the same name, with as many records."""
    metadata = PartitionMetadata(bytes(range(1, 17)))
    (directory / "partition.metadata").write_bytes(partition_metadata.encode(metadata))


@pytest.mark.parametrize("plan", [planned, streamed])
def test_a_topic_that_is_made_again_before_a_task_reads_it_is_another(
    directory: Path, plan: Callable[..., Callable[[], list[int]]]
) -> None:
    metadata = PartitionMetadata(bytes(range(16)))
    (directory / "partition.metadata").write_bytes(partition_metadata.encode(metadata))
    read, lenient = plan(directory), plan(directory, failOnDataLoss="false")
    assert list(range(END)) == read()
    recreate(directory)
    with pytest.raises(ConflictError, match="deleted and made again"):
        read()
    assert list(range(END)) == lenient()


def test_a_topic_that_is_made_again_under_a_stream_is_an_error(directory: Path) -> None:
    metadata = PartitionMetadata(bytes(range(16)))
    (directory / "partition.metadata").write_bytes(partition_metadata.encode(metadata))
    options = {"path": str(directory.parent)}
    reader = LogStreamReader(read_options(options, is_streaming=True), ["offset"])
    end = reader.latestOffset({"t": {"0": 0}}, reader.getDefaultReadLimit())
    recreate(directory)
    with pytest.raises(InvalidError, match="begin with another checkpoint"):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(InvalidError, match="begin with another checkpoint"):
        reader.partitions({"t": {"0": 0}}, end)


def test_a_partition_that_appears_without_its_start_is_an_error(directory: Path) -> None:
    expire_two_segments(directory)
    options = {"path": str(directory.parent)}
    reader = LogStreamReader(read_options(options, is_streaming=True), ["offset"])
    with pytest.raises(InvalidError, match="offset=0 partition=t-0 log_start=80"):
        reader.latestOffset({}, reader.getDefaultReadLimit())
    with pytest.raises(InvalidError, match="offset=0 partition=t-0 log_start=80"):
        reader.partitions({}, {"t": {"0": END}})
    options["failOnDataLoss"] = "false"
    reader = LogStreamReader(read_options(options, is_streaming=True), ["offset"])
    assert {"t": {"0": END}} == reader.latestOffset({}, reader.getDefaultReadLimit())
