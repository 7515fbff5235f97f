"""The options of the data source: what each mistake is answered with."""

from __future__ import annotations

import re

import pytest

from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.pipeline.arrow_batches import COLUMN_NAMES
from keeplast.pipeline.source_options import EndOfLog, Isolation, SourceContent, read_options

MISTAKES = [
    ({"isolation.level": "serializable"}, "isolation.level='serializable'"),
    ({"endingOffset": "latest"}, "did you mean endingOffsets"),
    ({"startingOffsets": '{"u":{"zero":1}}'}, "give earliest, or"),
    ({"startingOffsets": '{"u":{"0":1.5}}'}, "not a partition and its offset: '0': 1.5"),
    ({"startingOffsets": '{"u":[0]}'}, "no partitions for topic u"),
    ({"startingOffsets": "{"}, "not understood"),
    ({"startingOffsets": "latest"}, "startingOffsets can be earliest"),
    ({"endingOffsets": "earliest"}, "endingOffsets can be latest"),
    ({"endingOffsets": "latest", "endingGroup": "g"}, "leave out endingOffsets, or this"),
    ({"endingTimestamp": "1", "endingGroup": "g"}, "leave out endingTimestamp, or this"),
    ({"subscribe": " , "}, "give names with commas between"),
    ({"subscribe": "u", "assign": '{"u":[0]}'}, "options=assign,subscribe"),
    ({"subscribePattern": "("}, "not a regular expression"),
    ({"assign": '{"u":["0"]}'}, "not a list of partitions"),
    ({"assign": "{}"}, "no partition; give"),
    ({"maxOffsetsPerTrigger": "10"}, "only a stream has triggers"),
    ({"compaction.strategy": "timestamp"}, "add state=latest"),
    ({"state": "newest"}, "give all or latest"),
    ({"state": "latest", "compaction.strategy": "age"}, "give offset or timestamp or header"),
    ({"failOnDataLoss": "maybe"}, "give true or false"),
    ({"maxPartitionBytes": "1e9"}, "not a size; write bytes, or a number with k, m, g or t"),
    ({"maxPartitionBytes": "0"}, "maxPartitionBytes='0'"),
    ({"memoryBytes": "5"}, "memoryBytes='5'"),
    ({"kafka.bootstrap.servers": "b:9092"}, "give load() the data directory"),
    ({"Kafka.Isolation.Level": "read_committed"}, "use isolation.level"),
    ({"kafka.ssl.keystore.location": "k"}, "no broker is asked; leave the option out"),
    ({"groupIdPrefix": "g"}, "there is no consumer group"),
    ({"startingTimestamp": "1"}, "use minTimestamp"),
    ({"endingOffsetsByTimestamp": "{}"}, "use maxTimestamp"),
    ({"maxRecordsPerPartition": "1"}, "use maxPartitionBytes, or minPartitions"),
    ({"topic": "t"}, "use subscribe"),
    ({"columns": "offset, colour"}, "no such column; choose from topic, partition, offset"),
    ({"columns": ""}, "column=''"),
    ({"columns": "offset,key,offset"}, "named twice"),
    ({"zzz": "1"}, "unknown option; choose from path, store, assign, subscribe,"),
    ({"option.zzz": "1"}, "option=option.zzz"),
    ({"endOfLog": "now"}, "give log-end or high-watermark"),
    ({"path": "hdfs://host/data"}, "every host has at the same path"),
]


MISTAKES_OF_A_STREAM: list[tuple[dict[str, str], str]] = [
    ({"state": "latest"}, "a stream has no state"),
    ({"endingOffsets": "latest"}, "a stream has no end"),
    ({"endingGroup": "g"}, "a stream has no end"),
    ({"filterPushdown": "true"}, "this option is no more"),
    ({"maxOffsetsPerTrigger": "0"}, "not a number from 1"),
]


@pytest.mark.parametrize(
    ("given", "expected", "is_streaming"),
    [*((*each, False) for each in MISTAKES), *((*each, True) for each in MISTAKES_OF_A_STREAM)],
)
def test_a_mistake_is_named_with_its_value_and_the_remedy(
    given: dict[str, str], expected: str, is_streaming: bool
) -> None:
    with pytest.raises(InvalidError, match=re.escape(expected)):
        read_options({"path": "/data", **given}, is_streaming=is_streaming)


def test_a_path_is_needed() -> None:
    with pytest.raises(InvalidError, match="option=path"):
        read_options({}, is_streaming=False)


def test_defaults_are_what_a_reader_of_files_expects() -> None:
    batch = read_options({"path": "file:///data"}, is_streaming=False)
    assert Isolation.COMMITTED is batch.isolation
    assert EndOfLog.LOG_END is batch.end_of_log
    assert SourceContent.ALL is batch.content
    assert "/data" == str(batch.path)
    partition = TopicPartition("t", 0)
    assert 3 == batch.starting.of(partition, earliest=3, latest=9)
    assert 9 == batch.ending.of(partition, earliest=3, latest=9)
    stream = read_options({"path": "/data"}, is_streaming=True)
    assert EndOfLog.HIGH_WATERMARK is stream.end_of_log
    assert 9 == stream.starting.of(partition, earliest=3, latest=9)


def test_names_of_options_have_no_case() -> None:
    options = read_options(
        {"PATH": "/data", "STATE": "LATEST", "compaction.STRATEGY": "Timestamp"},
        is_streaming=False,
    )
    assert (SourceContent.LATEST, Strategy.TIMESTAMP) == (options.content, options.strategy)


def test_columns_are_those_that_are_named_in_their_order() -> None:
    given = {"path": "/data"}
    assert COLUMN_NAMES == read_options(given, is_streaming=True).columns
    given["columns"] = "offset, key"
    assert ("offset", "key") == read_options(given, is_streaming=False).columns


def test_sizes_are_written_as_everywhere() -> None:
    given = {"maxPartitionBytes": "64m", "memoryBytes": "1 GiB", "taskMemoryBytes": "2097152"}
    options = read_options({"path": "/d", "state": "latest", **given}, is_streaming=False)
    assert (64 << 20, 1 << 30, 2 << 20) == (
        options.split_bytes,
        options.memory_bytes,
        options.key_bytes_max,
    )


def test_what_spark_adds_of_a_table_is_no_mistake_and_its_location_a_path() -> None:
    table = {
        "location": "file:/data",
        "owner": "o",
        "provider": "kafka-log",
        "serialization.format": "1",
        "subscribe": "t",
        "option.subscribe": "t",
        "includeHeaders": "true",
    }
    assert "/data" == str(read_options(table, is_streaming=False).path)
    assert "/other" == str(read_options({**table, "path": "/other"}, is_streaming=False).path)
    with pytest.raises(InvalidError, match="option=path"):
        read_options({**table, "is_managed_location": "true"}, is_streaming=False)


@pytest.mark.parametrize(
    ("given", "is_streaming", "words"),
    [
        ({"path": "/data"}, False, "leave one of the two out"),
        ({}, True, "not a store"),
    ],
)
def test_a_store_is_read_alone_in_no_stream_and_its_password_is_not_shown(
    given: dict[str, str], is_streaming: bool, words: str
) -> None:
    store = "postgresql://me:sesame@host/db"
    with pytest.raises(InvalidError, match=words) as error:
        read_options({"store": store, **given}, is_streaming=is_streaming)
    assert "sesame" not in str(error.value)
    options = read_options({"store": store}, is_streaming=False)
    assert "sesame" not in options.where() + repr(options)


CLUSTER = {"bootstrapServers": "b:9092", "storage": "aiven:s3://me:sesame@bucket"}


@pytest.mark.parametrize(
    ("given", "is_streaming", "words"),
    [
        ({**CLUSTER, "path": "/data"}, False, "leave one of the two out. path=/data bootstrapSer"),
        (CLUSTER, True, "a stream reads a directory, not the remote tier .* bootstrapServers=b:90"),
        ({"bootstrapServers": "b:9092"}, False, "give storage"),
        ({"path": "/data", "storage": CLUSTER["storage"]}, False, "too, .* option=storage"),
        ({"path": "/data", "commandConfig": "c"}, False, "option=commandConfig"),
        ({"path": "/data", "storage.endpoint": "sesame"}, False, "option=storage.endpoint"),
        ({**CLUSTER, "object.endpoint": "sesame"}, False, "option=object.endpoint"),
    ],
)
def test_a_live_cluster_is_read_alone_in_no_stream_and_no_secret_is_shown(
    given: dict[str, str], is_streaming: bool, words: str
) -> None:
    with pytest.raises(InvalidError, match=words) as error:
        read_options(given, is_streaming=is_streaming)
    assert "sesame" not in str(error.value)


def test_with_a_live_cluster_the_store_is_its_decision_log() -> None:
    given = {"store": "postgresql://me:sesame@host/db", "storage.endpoint": "e", **CLUSTER}
    options = read_options(given, is_streaming=False)
    assert options.store is None
    assert options.cluster is not None
    assert given["store"] == options.cluster.store
    assert {"endpoint": "e"} == options.cluster.storage_options
    assert "bootstrapServers=b:9092" == options.where()
    assert "sesame" not in repr(options)
