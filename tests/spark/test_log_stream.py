"""A stream follows a directory that grows: every record once, in order, restarts included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from keeplast.format import partition_metadata
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS

pytestmark = pytest.mark.spark


class Following:
    """One query with a checkpoint, run again and again until it has what is available."""

    def __init__(self, spark: SparkSession, data: Path, target: Path, **options: str) -> None:
        self._spark = spark
        self._data = data
        self._target = target
        self._options = {"startingOffsets": "earliest", **options}

    def run(self) -> list[str]:
        """Run, and return the rows that are new, as ``topic-partition@offset``, in file order."""
        before = self.seen()
        reader = self._spark.readStream.schema("topic string, partition int, offset long")
        frame = reader.format("kafka-log").options(**self._options).load(str(self._data))
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self._target / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._target / "rows"))
        )
        query.awaitTermination()
        after = self.seen()
        assert len(set(after)) == len(after)
        return [row for row in after if row not in set(before)]

    def seen(self) -> list[str]:
        """Return everything that the stream has written."""
        files = (self._target / "rows").glob("*.parquet")
        return [
            f"{row['topic']}-{row['partition']}@{row['offset']}"
            for path in sorted(files, key=lambda each: (each.stat().st_mtime_ns, each.name))
            for row in pq.read_table(path).to_pylist()
        ]

    def offsets(self) -> list[dict[str, dict[str, int]]]:
        """Return the end offsets of all batches, from the checkpoint."""
        logs = sorted(
            (self._target / "checkpoint/offsets").glob("[0-9]*"), key=lambda p: int(p.name)
        )
        return [json.loads(path.read_text().splitlines()[-1]) for path in logs]


def append(log: LogBuilder, count: int) -> None:
    for _ in range(count):
        log.append(NewRecord(b"%d" % (log.log_end % 3), b"v", NOW_MS))


def names(topic: str, first: int, end: int) -> list[str]:
    return [f"{topic}@{offset}" for offset in range(first, end)]


def identify(log: LogBuilder, topic_id: bytes) -> None:
    metadata = partition_metadata.encode(PartitionMetadata(topic_id))
    (log.directory / "partition.metadata").write_bytes(metadata)


def test_a_growing_directory_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = LogBuilder(data / "t-0", TopicConfig())
    append(log, 10)
    stream = Following(spark, data, tmp_path, maxOffsetsPerTrigger="6")
    assert names("t-0", 0, 10) == stream.run()
    assert [6, 10] == [each["t"]["0"] for each in stream.offsets()]

    # Rolled, written on, and a partition that was not there before. The checkpoint, which knows no
    # id of the topic, as those of earlier versions, goes on and says it from now on.
    append(log, 2)
    log.roll()
    identify(log, b"o" * 16)
    append(log, 3)
    other = LogBuilder(data / "t-1", TopicConfig())
    append(other, 2)
    assert sorted([*names("t-0", 10, 15), *names("t-1", 0, 2)]) == sorted(stream.run())
    assert "@" in stream.offsets()[-1]
    # Compacted below and above the stream's position: gaps are no loss.
    append(log, 3)
    log.append(NewRecord(b"9", b"v", NOW_MS), at=40)
    log.path(0).write_bytes(b"")
    assert [*names("t-0", 15, 18), "t-0@40"] == stream.run()
    log.close()
    other.close()


@pytest.mark.repeats(
    "tests/unit/pipeline/test_stream_reader.py::test_a_directory_without_partitions_is_waited_for"
)
def test_a_directory_that_is_still_empty_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    stream = Following(spark, data, tmp_path)
    (tmp_path / "rows").mkdir()
    assert [] == stream.run()
    append(LogBuilder(data / "t-0", TopicConfig()), 3)
    assert names("t-0", 0, 3) == stream.run()


@pytest.mark.repeats(
    "tests/unit/pipeline/test_stream_position.py"
    "::test_a_topic_that_was_made_again_and_has_grown_ends_a_stream_that_begins_again"
)
def test_a_checkpoint_of_an_earlier_version_goes_on_and_ends_with_a_topic_that_is_made_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    log = LogBuilder(data / "t-0", TopicConfig())
    append(log, 3)
    stream = Following(spark, data, tmp_path)
    assert names("t-0", 0, 3) == stream.run()
    assert [{"t": {"0": 3}}] == stream.offsets()
    identify(log, b"o" * 16)
    append(log, 2)
    assert names("t-0", 3, 5) == stream.run()
    assert "@" in stream.offsets()[-1]
    assert [] == stream.run()
    log.close()
    shutil.rmtree(data)
    log = LogBuilder(data / "t-0", TopicConfig())
    append(log, 7)
    log.close()
    identify(log, b"n" * 16)
    with pytest.raises(StreamingQueryException, match="deleted and made again"):
        stream.run()
    assert names("t-0", 0, 5) == stream.seen()
