"""Logs as DataFrames: rows, options, what is refused, and what Spark does with filters."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import keeplast
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import LogBuilder
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS
from tests.support.reader import read_partition
from tests.support.record_rows import LogRow, expected_rows
from tests.support.source_reading import read_log, read_log_state

pytestmark = pytest.mark.spark

SAMPLE = Path(__file__).parents[2] / "src/keeplast/samples/broker-4.3.0"
RECORDS = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic ``t`` with a log of everything, topic ``u`` with two plain partitions."""
    root = tmp_path_factory.mktemp("data")
    write_mixed_log(root)
    for partition in (0, 1):
        log = LogBuilder(root / f"u-{partition}", TopicConfig())
        for number in range(RECORDS):
            if number and number % 200 == 0:
                log.roll()
            headers = ((b"version", (number % 7).to_bytes(8, "big")),)
            value = b"%d" % number if number % 9 else None
            log.append(NewRecord(b"%d" % (number % 40), value, NOW_MS + number, headers))
        log.close()
    return root


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    """Load with options whose dots are spelled as underscores."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("kafka-log").options(**named).load(str(path))


def offsets(frame: DataFrame) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of every row, sorted."""
    return sorted((r.topic, r.partition, r.offset) for r in frame.collect())


def rows(frame: DataFrame) -> list[LogRow]:
    """Return all rows of a DataFrame by offset."""
    found = frame.withColumn("micros", F.unix_micros("timestamp")).orderBy("offset").collect()
    return [
        LogRow(
            r.offset,
            r.micros,
            r.timestampType,
            None if r.key is None else bytes(r.key),
            None if r.value is None else bytes(r.value),
            None
            if r.headers is None
            else tuple((h.key, None if h.value is None else bytes(h.value)) for h in r.headers),
            r.producerId,
            r.isTransactional,
            r.leaderEpoch,
        )
        for r in found
    ]


def test_rows_are_what_brokers_wrote(spark: SparkSession) -> None:
    everything = expected_rows(read_partition(SAMPLE / "orders-0").batches)
    frame = load(spark, SAMPLE, isolation_level="read_uncommitted")
    assert everything == rows(frame)
    assert {("orders", 0)} == {(r.topic, r.partition) for r in frame.collect()}
    assert read_log(SAMPLE / "orders-0") == rows(load(spark, SAMPLE))


def test_a_partition_directory_is_read_as_one_partition(spark: SparkSession, data: Path) -> None:
    assert read_log(data / "t-0") == rows(load(spark, data / "t-0"))


@pytest.mark.repeats(
    "tests/unit/pipeline/test_partition_choice.py"
    "::test_named_topics_are_read_and_else_all_but_the_brokers_own"
)
def test_only_the_topics_that_are_named_are_read(spark: SparkSession, data: Path) -> None:
    def found(**options: str) -> set[tuple[str, int]]:
        frame = load(spark, data, **options).select("topic", "partition").distinct()
        return {(r.topic, r.partition) for r in frame.collect()}

    assert {("t", 0), ("u", 0), ("u", 1)} == found()
    assert {("u", 0), ("u", 1)} == found(subscribe="u")
    assert {("t", 0)} == found(subscribePattern="t|v")
    assert {("u", 1)} == found(assign='{"u":[1]}')


@pytest.mark.repeats(
    "tests/unit/pipeline/test_partition_choice.py"
    "::test_named_topics_are_read_and_else_all_but_the_brokers_own"
)
def test_internal_topics_are_read_where_they_are_named(spark: SparkSession) -> None:
    frame = load(spark, SAMPLE, subscribe="__transaction_state")
    assert 0 < frame.count()


def test_offsets_have_the_syntax_of_the_kafka_source(spark: SparkSession, data: Path) -> None:
    starting = json.dumps({"u": {"0": 590, "1": -2}})
    ending = json.dumps({"u": {"0": -1, "1": 5}})
    frame = load(spark, data, subscribe="u", startingOffsets=starting, endingOffsets=ending)
    expected = [("u", 0, n) for n in range(590, RECORDS)] + [("u", 1, n) for n in range(5)]
    assert expected == offsets(frame)


def test_a_large_partition_is_read_by_several_tasks(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data, assign='{"u":[0]}', maxPartitionBytes="5000")
    assert 5 < frame.rdd.getNumPartitions()
    assert [("u", 0, n) for n in range(RECORDS)] == offsets(frame)


def test_times_narrow_down_what_is_read(spark: SparkSession, data: Path) -> None:
    options = {"minTimestamp": str(NOW_MS + 500), "maxTimestamp": str(NOW_MS + 509)}
    frame = load(spark, data, assign='{"u":[0]}', **options)
    assert [("u", 0, n) for n in range(500, 510)] == offsets(frame)
    assert 1 == frame.rdd.getNumPartitions()


def test_a_schema_chooses_columns(spark: SparkSession, data: Path) -> None:
    reader = spark.read.schema("value binary, offset long").format("kafka-log")
    frame = reader.option("subscribe", "u").load(str(data))
    assert ["value", "offset"] == frame.columns
    assert 2 * RECORDS == frame.count()


def test_an_option_chooses_columns(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data, subscribe="u", columns="offset, value")
    assert ["offset", "value"] == frame.columns
    whole = load(spark, data, subscribe="u").select("offset", "value")
    assert sorted(whole.collect(), key=str) == sorted(frame.collect(), key=str)
    assert whole.count() == frame.select("offset").count() == frame.count()
    options = f"(path '{data}', subscribe 'u', columns 'partition,key')"
    spark.sql(f"CREATE TABLE two_columns USING `kafka-log` OPTIONS {options}")
    assert ["partition", "key"] == spark.table("two_columns").columns
    assert whole.count() == spark.table("two_columns").where("key IS NOT NULL").count()
    reader = spark.read.schema("key binary").format("kafka-log").option("columns", "offset")
    with pytest.raises(AnalysisException, match="leave one of the two out"):
        reader.load(str(data)).collect()


def test_state_is_what_readers_of_the_log_end_up_with(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data, state="latest", subscribe="t")
    assert read_log_state(data / "t-0") == rows(frame)
    final = read_partition(data / "t-0").final_values()
    assert final == {bytes(r.key): bytes(r.value) for r in frame.collect()}


def test_a_state_is_shared_out_when_more_tasks_are_asked_for(
    spark: SparkSession, data: Path
) -> None:
    whole = load(spark, data, subscribe="u", state="latest")
    shared = load(
        spark, data, subscribe="u", state="latest", minPartitions="8", taskMemoryBytes="1048576"
    )
    assert 1 == whole.rdd.getNumPartitions()
    assert 6 <= shared.rdd.getNumPartitions() <= 10
    assert offsets(whole) == offsets(shared)
    since = str(NOW_MS + 580)
    assert offsets(load(spark, data, subscribe="u", state="latest", minTimestamp=since)) == offsets(
        load(spark, data, subscribe="u", state="latest", minTimestamp=since, minPartitions="8")
    )


@pytest.mark.repeats(
    "tests/spark/test_data_source.py::test_state_is_what_readers_of_the_log_end_up_with"
)
def test_state_agrees_with_max_by_of_spark(spark: SparkSession, data: Path) -> None:
    grouped = (
        load(spark, data, subscribe="u")
        .groupBy("partition", "key")
        .agg(F.max_by(F.struct("offset", "value"), "offset").alias("last"))
        .filter("last.value is not null")
        .select("partition", "last.offset", "last.value")
    )
    state = load(spark, data, subscribe="u", state="latest")
    by_offset = state.select("partition", "offset", "value").orderBy("partition", "offset")
    assert grouped.orderBy("partition", "offset").collect() == by_offset.collect()


@pytest.mark.parametrize("configured", [False, True], ids=["by option", "by keeplast.toml"])
def test_state_ranks_as_the_topic_does(
    spark: SparkSession, data: Path, tmp_path: Path, configured: bool
) -> None:
    if configured:
        (tmp_path / "u-0").symlink_to(data / "u-0")
        root = tmp_path / "copy"
        root.mkdir()
        (root / "u-0").mkdir()
        for path in (data / "u-0").iterdir():
            (root / "u-0" / path.name).write_bytes(path.read_bytes())
        (root / "keeplast.toml").write_text(
            '[topic.u]\n"compaction.strategy" = "header"\n'
            '"compaction.strategy.header" = "version"\n'
        )
        frame = load(spark, root, state="latest")
    else:
        options = {"compaction.strategy": "header", "compaction.strategy.header": "version"}
        reader = spark.read.format("kafka-log").options(**options)
        frame = reader.options(state="latest", assign='{"u":[0]}').load(str(data))
    winners: dict[int, tuple[int, int]] = {}
    for number in range(RECORDS):
        rank = number % 7, number
        winners[number % 40] = max(winners.get(number % 40, (-1, -1)), rank)
    expected = sorted(offset for _, offset in winners.values() if offset % 9)
    assert expected == sorted(r.offset for r in frame.collect())


def test_tables_are_made_of_logs(spark: SparkSession, data: Path) -> None:
    with_options = f"OPTIONS (path '{data}', assign '{{\"u\":[0]}}')"
    spark.sql(f"CREATE TABLE by_options USING `kafka-log` {with_options}")
    spark.sql(f"CREATE TABLE by_location USING `kafka-log` LOCATION '{data}'")
    assert RECORDS == spark.table("by_options").count()
    assert load(spark, data).count() == spark.sql("SELECT * FROM by_location").count()


def test_a_bad_option_is_named(spark: SparkSession, data: Path) -> None:
    mistakes = {"endingOffset": "did you mean endingOffsets", "subscribe": "did you mean u"}
    for option, expected in mistakes.items():
        with pytest.raises(AnalysisException, match=re.escape(expected)):
            spark.read.format("kafka-log").option(option, "v").load(str(data)).collect()
    with pytest.raises(AnalysisException, match="choose from topic, partition"):
        spark.read.schema("colour string").format("kafka-log").load(str(data)).collect()


def test_one_dataframe_serves_queries_with_different_filters(
    spark: SparkSession, data: Path
) -> None:
    """Spark 4.1 to 4.3 mix up the filters of one DataFrame's queries; none are pushed here."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(spark, data, subscribe="u")
    assert 2 * 10 == frame.filter("offset < 10").count()
    assert 2 * RECORDS == frame.count()
    both = frame.filter("offset < 10").union(frame.filter("offset >= 590"))
    assert 2 * 20 == both.count()


def test_a_list_of_directories_is_one_place(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    for number in (0, 1):
        (tmp_path / f"disk-{number}").mkdir()
        shutil.copytree(data / f"u-{number}", tmp_path / f"disk-{number}/u-{number}")
    paths = [str(tmp_path / "disk-0"), str(tmp_path / "disk-1")]
    both = spark.read.format("kafka-log").option("subscribe", "u").load(paths)
    assert 2 * RECORDS == both.count()
    assert RECORDS == spark.read.format("kafka-log").load(paths[:1]).count()


def test_a_store_is_read_as_its_directory_is(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """By the settings that are kept with it; as of an offset only where no round has been."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    u = keeplast.TopicPartition("u", 0)
    ranks = {"compaction.strategy": "header", "compaction.strategy.header": "version"}
    policy = {"cleanup.policy": "compact", **ranks}
    objects = f"file://{tmp_path / 'objects'}"
    with keeplast.open_store(url, objects, owner="me", topic_of=keeplast.topic_config) as store:
        store.import_directory(u, data / "u-0", policy)

    def read(**more: str) -> list[LogRow]:
        frame = spark.read.format("kafka-log").options(store=url, subscribe="u", **more)
        return rows(frame.load())

    def directory(**more: str) -> list[LogRow]:
        assigned = {"assign": '{"u":[0]}', **more}
        return rows(spark.read.format("kafka-log").options(**assigned).load(str(data)))

    at_300 = {"state": "latest", "endingOffsets": '{"u":{"0":300}}'}
    assert directory() == read()
    assert directory(**at_300, **ranks) == read(**at_300, minPartitions="3")
    with keeplast.open_store(url, owner="me", topic_of=keeplast.topic_config) as store:
        store.clean(u, force=True)
    assert directory(state="latest", **ranks) == read(state="latest")
    with pytest.raises(Exception, match="cleaned_to=600"):
        read(**at_300)
