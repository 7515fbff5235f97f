"""Where a stream's batches begin and end; the reader is asked as Spark asks it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from keeplast.columns.batches import HEADER_BYTES
from keeplast.errors import InvalidError
from keeplast.format import offset_index
from keeplast.format.batch import encode_batch
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import INDEX
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition, rebuild_indexes
from keeplast.log.windows import WindowBuffers
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.source_options import read_options
from keeplast.pipeline.stream_reader import LogStreamReader
from tests.support.counting_files import count_reads
from tests.support.log_builder import LogBuilder, Producer
from tests.support.partition_maker import NOW_MS

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A log of three records."""
    log = LogBuilder(tmp_path / "data/t-0", TopicConfig())
    append(log, 3)
    return log


def append(log: LogBuilder, count: int) -> None:
    for _ in range(count):
        log.append(NewRecord(b"k", b"v", NOW_MS + log.log_end))


def reader_of(log: LogBuilder, **options: str) -> LogStreamReader:
    given = {"path": str(log.directory.parent), **options}
    return LogStreamReader(read_options(given, is_streaming=True), ["topic", "offset"])


def latest(reader: LogStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def read(reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the offsets of the rows of one batch."""
    return [
        offset
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for offset in batch.column("offset").to_pylist()
    ]


def at(offset: int) -> dict[str, Any]:
    return {"t": {"0": offset}}


def test_a_new_stream_begins_at_the_end_by_default(log: LogBuilder) -> None:
    assert at(3) == reader_of(log).initialOffset()
    assert at(0) == reader_of(log, startingOffsets="earliest").initialOffset()
    assert at(2) == reader_of(log, startingOffsets='{"t":{"0":2}}').initialOffset()


@pytest.fixture
def reader(log: LogBuilder) -> LogStreamReader:
    return reader_of(log)


def test_a_batch_is_the_range_between_two_offsets(reader: LogStreamReader) -> None:
    assert at(3) == latest(reader, at(1))
    assert [1, 2] == read(reader, at(1), at(3))
    assert [] == read(reader, at(3), at(3))


def test_what_is_written_after_the_end_was_taken_is_the_next_batchs(
    reader: LogStreamReader, log: LogBuilder
) -> None:
    end = latest(reader, at(0))
    append(log, 2)
    assert [0, 1, 2] == read(reader, at(0), end)
    assert [3, 4] == read(reader, end, latest(reader, end))


def test_read_records_are_not_read_again_and_without_news_nothing_is(
    log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a look, of which a trigger has several; whatever ends a batch, and how."""
    append(log, 2000)
    active = list_partition(log.directory, LocalFiles()).active
    interval = log.topic.index_interval_bytes
    indexes = rebuild_indexes(active, LocalFiles(), interval, WindowBuffers())
    index = offset_index.encode(indexes.offsets)
    log.path(0, INDEX).write_bytes(index + bytes(1 << 20))  # as a broker has it that is running
    reader = reader_of(log, startingOffsets="earliest")
    end = latest(reader, reader.initialOffset())
    reader.partitions(at(0), end)
    read_bytes = count_reads(monkeypatch)
    assert end == latest(reader, end) == reader.reportLatestOffset()
    assert [] == reader.partitions(end, end)
    assert 0 == read_bytes[".log"]
    before = log.path(0).stat().st_size
    append(log, 3)
    after = latest(reader, end)
    parts = reader.partitions(end, after)
    assert at(2006) == after == reader.reportLatestOffset()
    new = log.path(0).stat().st_size - before
    assert new <= read_bytes[".log"] <= new + HEADER_BYTES
    read_bytes.clear()
    rows = [each for part in parts for batch in reader.read(part) for each in batch["offset"]]
    assert [2003, 2004, 2005] == [each.as_py() for each in rows]
    # Twice: to where the log is sound, and its records; both from the batch before.
    assert read_bytes[".log"] <= 2 * (new + 2 * interval)


def test_a_log_that_was_cut_and_written_again_is_not_taken_for_one_that_went_on(
    log: LogBuilder,
) -> None:
    reader = reader_of(log, failOnDataLoss="false")
    begun = log.path(0).stat().st_size
    log.producer(7).send(1, 2)
    assert at(3) == latest(reader, at(0))  # a transaction is open, and was never there
    records = [Record(3 + i, NOW_MS, b"k", b"v", ()) for i in range(9)]
    with log.path(0).open("r+b") as file:
        file.truncate(begun)
        file.seek(begun)
        file.write(encode_batch(records, leader_epoch=1))
    assert at(12) == latest(reader, at(3))


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_that_follows_a_log_sees_what_one_sees_that_comes_new(
    log: LogBuilder, seed: int
) -> None:
    dice, reader = random.Random(seed), reader_of(log)
    checkpoint, replicated = log.directory.parent / "replication-offset-checkpoint", 0
    senders: dict[int, Producer] = {}
    for _ in range(60):
        match dice.randrange(7):
            case 0 | 1:
                append(log, dice.randrange(1, 4))
            case 2 | 3:
                number = dice.randrange(3)
                senders.setdefault(number, log.producer(number)).send(1, 2)
            case 4 if senders:
                _, sender = senders.popitem()
                dice.choice((sender.commit, sender.abort))()
            case 5:
                log.roll()
            case _:
                replicated = dice.randint(replicated, log.log_end)
                checkpoint.write_bytes(encode_offsets({PARTITION: replicated}))
        assert latest(reader_of(log), at(0)) == latest(reader, at(0))


def test_available_now_ends_where_it_began(reader: LogStreamReader, log: LogBuilder) -> None:
    reader.prepareForTriggerAvailableNow()
    append(log, 2)
    assert at(3) == latest(reader, at(0))
    assert at(5) == reader.reportLatestOffset()


def test_a_limit_is_shared_by_partitions_and_given_on(log: LogBuilder) -> None:
    other = LogBuilder(log.directory.parent / "t-1", TopicConfig())
    append(other, 9)
    reader = reader_of(log, maxOffsetsPerTrigger="8")
    assert ReadMaxRows(8) == reader.getDefaultReadLimit()
    assert {"t": {"0": 3, "1": 5}} == latest(reader, at(0))
    assert {"t": {"0": 3, "1": 9}} == reader.latestOffset(at(0), ReadAllAvailable())
    one = reader_of(log, maxOffsetsPerTrigger="1")
    assert {"t": {"0": 1, "1": 0}} == latest(one, at(0))


def test_no_partition_starves_where_a_batch_has_fewer_offsets_than_there_are(
    log: LogBuilder,
) -> None:
    logs = [log, *(LogBuilder(log.directory.parent / f"t-{n}", TopicConfig()) for n in (1, 2))]
    for other in logs[1:]:
        append(other, 3)
    reader = reader_of(log, maxOffsetsPerTrigger="2")
    at_start = start = {"t": {"0": 0, "1": 0, "2": 0}}
    for _ in range(3):
        # The first two grow faster than they are read.
        append(logs[0], 2)
        append(logs[1], 2)
        start = latest(reader, start)
    assert {"t": {"0": 2, "1": 2, "2": 2}} == start
    # Nor where each batch is a query of its own, begun where the last one ended.
    start = at_start
    for _ in range(9):
        start = latest(reader_of(log, maxOffsetsPerTrigger="1"), start)
    assert {"t": {"0": 3, "1": 3, "2": 3}} == start


@pytest.mark.parametrize("named", ["u", "t"])
def test_starting_offsets_of_what_is_not_read_are_refused(log: LogBuilder, named: str) -> None:
    offsets = f'{{"{named}":{{"7":0}}}}'
    with pytest.raises(InvalidError, match=f"startingOffsets={named}-7"):
        reader_of(log, startingOffsets=offsets).initialOffset()


def test_a_directory_without_partitions_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options = read_options({"path": str(tmp_path / "data")}, is_streaming=True)
    reader = LogStreamReader(options, ["offset"])
    reader.reportLatestOffset()
    assert {} == reader.initialOffset() == latest(reader, {})
    assert [] == read(reader, {}, {})
    log = LogBuilder(tmp_path / "data/t-0", TopicConfig())
    append(log, 2)
    assert at(2) == latest(reader, {})
    assert [0, 1] == read(reader, {}, at(2))
    # Once it had something, an empty directory is one that was not mounted.
    log.close()
    shutil.rmtree(log.directory)
    with pytest.raises(InvalidError, match="no partition to read"):
        latest(reader, at(2))
    with pytest.raises(InvalidError, match="no such topic"):
        reader_of(log, subscribe="t").initialOffset()


def test_tasks_are_as_many_as_asked_for(log: LogBuilder) -> None:
    append(log, 2000)
    log.roll()
    for count in (1, 4):
        reader = reader_of(log, minPartitions=str(count))
        assert count <= len(reader.partitions(at(0), at(2003))) <= count + 2
        assert list(range(2003)) == read(reader, at(0), at(2003))


def test_a_partition_that_appears_is_read_from_its_start(log: LogBuilder) -> None:
    reader = reader_of(log, startingOffsets="latest")
    start = reader.initialOffset()
    other = LogBuilder(log.directory.parent / "t-1", TopicConfig())
    append(other, 2)
    end = latest(reader, start)
    assert {"t": {"0": 3, "1": 2}} == end
    assert [0, 1] == read(reader, start, end)


def test_open_transactions_are_waited_for(log: LogBuilder) -> None:
    sender = log.producer(7)
    sender.send(1, 2)
    append(log, 1)
    reader = reader_of(log)
    assert at(3) == latest(reader, at(3))
    sender.abort()
    assert at(7) == latest(reader, at(3))
    assert [5] == read(reader, at(3), at(7))
    everything = reader_of(log, **{"isolation.level": "read_uncommitted"})
    assert [3, 4, 5] == read(everything, at(3), latest(everything, at(3)))


def test_unreplicated_records_are_waited_for(log: LogBuilder) -> None:
    checkpoint = log.directory.parent / "replication-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({PARTITION: 2}))
    assert at(2) == latest(reader_of(log), at(0))
    assert at(3) == latest(reader_of(log, endOfLog="log-end"), at(0))
    # A checkpoint lags behind; what has been read is not taken back.
    assert at(3) == latest(reader_of(log), at(3))


def test_offsets_that_are_gone_unread_are_an_error_unless_loss_is_accepted(
    log: LogBuilder,
) -> None:
    start = log.directory.parent / "log-start-offset-checkpoint"
    start.write_bytes(encode_offsets({PARTITION: 2}))
    with pytest.raises(InvalidError, match="failOnDataLoss=false"):
        reader_of(log).partitions(at(1), at(3))
    assert [2] == read(reader_of(log, failOnDataLoss="false"), at(1), at(3))


def test_a_log_that_is_shorter_than_what_was_read_is_an_error(
    reader: LogStreamReader, log: LogBuilder
) -> None:
    with pytest.raises(InvalidError, match="failOnDataLoss=false"):
        reader.partitions(at(7), at(9))
    with pytest.raises(InvalidError, match="failOnDataLoss=false"):
        latest(reader, at(7))
    assert at(7) == latest(reader_of(log, failOnDataLoss="false"), at(7))


def test_a_partition_that_is_gone_is_an_error_unless_loss_is_accepted(log: LogBuilder) -> None:
    other = LogBuilder(log.directory.parent / "t-1", TopicConfig())
    append(other, 2)
    end = latest(reader_of(log), at(0))
    other.close()
    shutil.rmtree(other.directory)
    with pytest.raises(InvalidError, match="failOnDataLoss=false"):
        reader_of(log).partitions(at(0), end)
    assert [0, 1, 2] == read(reader_of(log, failOnDataLoss="false"), at(0), end)
    # Its end stays as it was, so that it is not begun again.
    assert end == latest(reader_of(log, failOnDataLoss="false"), end)


@pytest.mark.parametrize("options", [{}, {"subscribe": "t"}])
def test_a_partition_that_goes_between_two_batches_is_an_error(
    log: LogBuilder, options: dict[str, str]
) -> None:
    """What it had beyond the last batch was never read, and is not known any more."""
    other = LogBuilder(log.directory.parent / "t-1", TopicConfig())
    append(other, 2)
    reader, begin = reader_of(log, **options), {"t": {"0": 1, "1": 1}}
    assert {"t": {"0": 3, "1": 2}} == latest(reader, begin)
    other.close()
    other.directory.rename(other.directory.with_name(f"t-1.{'0' * 32}-delete"))
    with pytest.raises(InvalidError, match=r"partition is gone\. partition=t-1"):
        latest(reader, begin)
    after = {"t": {"0": 3, "1": 1}}
    assert after == latest(reader_of(log, failOnDataLoss="false", **options), begin)
    # Nor does who asks for less than before miss it.
    assert after == latest(reader_of(log, assign='{"t":[0]}'), begin)


def test_a_partition_without_segments_is_an_empty_log_and_read_when_it_fills(
    log: LogBuilder,
) -> None:
    other = log.directory.with_name("t-2")
    other.mkdir()
    reader = reader_of(log, startingOffsets="earliest")
    start = reader.initialOffset()
    assert {"t": {"0": 0, "2": 0}} == start
    end = latest(reader, start)
    assert {"t": {"0": 3, "2": 0}} == end
    assert [0, 1, 2] == read(reader, start, end)
    other.rmdir()
    append(LogBuilder(other, TopicConfig()), 2)
    later = latest(reader, end)
    assert {"t": {"0": 3, "2": 2}} == later
    assert [0, 1] == read(reader, end, later)


def test_a_partition_that_has_lost_its_segments_is_a_loss(log: LogBuilder) -> None:
    for path in log.directory.iterdir():
        path.unlink()
    with pytest.raises(InvalidError, match="the log does not have this offset"):
        latest(reader_of(log), at(3))
