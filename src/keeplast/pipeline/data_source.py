"""``spark.read.format("kafka-log")``: Kafka-format logs as a DataFrame.

The driver looks at each partition once and hands out ranges of offsets; tasks read the directory
themselves, so every host must see it at the same path. Records arrive as Arrow batches that
compiled kernels have filled.

The source itself is made by :mod:`keeplast.config.log_source`, which knows how a directory's
settings are read.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from keeplast.cleaner.settings import check_internal
from keeplast.errors import CompactionError, InvalidError, RefusedError
from keeplast.log.files import FilesRecipe
from keeplast.model.hold import GroupReader
from keeplast.model.text import shown_url
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.arrow_batches import COLUMN_NAMES
from keeplast.pipeline.checkpoints import at_group
from keeplast.pipeline.log_parts import (
    KnownPartitions,
    LogPart,
    Logs,
    nothing_known,
    read_parts,
    require_whole_topics,
    share_out,
)
from keeplast.pipeline.query_options import BOOTSTRAP, PROVIDER
from keeplast.pipeline.source_options import SourceContent, SourceOptions, read_options
from keeplast.pipeline.stream_reader import LogStreamReader
from keeplast.read.log_view import LogView, Split, Wanted, plan_splits, segments_below

Session = SparkSession
"""The type of what :func:`register_source` takes, for rooms that do not know pyspark."""

FORMAT = "kafka-log"
TABLE_OPTIONS = "kafka-log.options"
_SECRET = re.compile("secret|password|token|key", re.IGNORECASE)
_URLS = ("store", "storage", BOOTSTRAP.lower())
REASON_MAX = 300
SPARK_MIN = (4, 2)
"""Since then a stream gets its position when it is asked for more."""

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("producerId", LongType()),
        StructField("isTransactional", BooleanType()),
        StructField("leaderEpoch", IntegerType()),
    ]
)
"""All columns, in order; a query may ask for some of them with ``schema()``."""


class FoundLogs(Struct, frozen=True):
    """What a query reads, looked at once.

    ``topic_configs`` gives the settings of the topics of ``options`` when they are opened.
    ``groups`` report what consumer groups have committed, None where files do. ``known`` says which
    partitions the topics have.
    """

    options: SourceOptions
    topic_configs: Callable[[Logs], Callable[[str], TopicConfig]]
    groups: GroupReader | None = None
    known: KnownPartitions = nothing_known


class LogSource(DataSource):
    """The data source, without knowledge of where settings come from, and of live clusters."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def find(self, options: SourceOptions) -> FoundLogs:
        """Return what ``options`` name; those of a live cluster show its logs from here on."""
        raise NotImplementedError

    def naming(self, recipe: FilesRecipe) -> AbstractContextManager[None]:
        """Let errors of readers by ``recipe`` name what is really there."""
        raise NotImplementedError

    def schema(self) -> StructType:
        """Return the columns that the options name, by default all.

        A mistake in an option is reported here, before anything runs.
        """
        try:
            options = read_options(self.options, is_streaming=False)
        except InvalidError as error:
            # Batch or stream is not known yet, and a few options are for one of them.
            try:
                options = read_options(self.options, is_streaming=True)
            except InvalidError:
                raise error.with_traceback(None) from None
        schema = StructType([SCHEMA[name] for name in options.columns])
        return table_schema(self.options, schema) if PROVIDER in self.options else schema

    def reader(self, schema: StructType) -> LogReader:
        """Return the reader of a batch query."""
        try:
            options = read_options(options_of(self.options, schema), is_streaming=False)
        except InvalidError as error:
            raise error.with_traceback(None) from None
        return LogReader(self, options, column_names(schema, options))

    def streamReader(self, schema: StructType) -> LogStreamReader:
        """Return the reader of a streaming query."""
        options = read_options(options_of(self.options, schema), is_streaming=True)
        known = self.find(options).known
        return LogStreamReader(options, column_names(schema, options), known)


def table_schema(options: Mapping[str, str], schema: StructType) -> StructType:
    """Return the columns of a table, with its options in the metadata of the first one.

    Spark 4.2 keeps the options of a table and hands none of them over when it is read; the schema
    that it was made with it does. What may be a secret does not go to the catalog this way.
    """
    kept = {
        name: text
        for name, text in options.items()
        if _SECRET.search(name) is None and (name.lower() not in _URLS or shown_url(text) == text)
    }
    first, *others = schema.fields
    metadata = {TABLE_OPTIONS: json.dumps(kept)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a query: those of the table that it reads, if any, below its own."""
    options: dict[str, str] = {}
    for field in schema.fields:
        options.update(json.loads(field.metadata.get(TABLE_OPTIONS, "{}")))
    options.update({name.lower(): text for name, text in given.items()})
    return options


def column_names(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns that a query asks for.

    InvalidError for one that does not exist, and where the option names others than the schema.
    """
    for field in schema.fields:
        known = next((each for each in SCHEMA.fields if each.name == field.name), None)
        if known is None:
            raise InvalidError(
                f"no such column; choose from {', '.join(SCHEMA.names)}. column={field.name}",
                code="K137",
            )
        if known.dataType != field.dataType:
            raise InvalidError(
                f"a column has one type; ask for {known.dataType.simpleString()} and cast it. "
                f"column={field.name} type={field.dataType.simpleString()}",
                code="K137",
            )
    if options.columns != COLUMN_NAMES and set(options.columns) != set(schema.names):
        raise InvalidError(
            "schema() asks for other columns than the option; leave one of the two out. "
            f"columns={','.join(options.columns)} schema={','.join(schema.names)}",
            code="K101",
        )
    return tuple(schema.names)


def ranked(configured: TopicConfig, options: SourceOptions) -> TopicConfig:
    """Return how records rank: by the options, else as configured."""
    header = options.strategy_header or configured.strategy_header
    strategy = options.strategy or configured.strategy
    if strategy is Strategy.HEADER and not header:
        raise InvalidError(
            "the strategy header needs the header's name; give compaction.strategy.header. "
            f"compaction.strategy={strategy}",
            code="K131",
        )
    source = configured.strategy_source if options.strategy is None else "by the source's option"
    return replace(
        configured, strategy=strategy, strategy_header=header, strategy_said=(strategy, source)
    )


def register_source(spark: SparkSession, source: type[LogSource]) -> None:
    """Make the format known to a session.

    RefusedError when its Spark is too old, or the Python of its workers has not this keeplast.
    """
    version = tuple(int(number) for number in re.findall(r"[0-9]+", spark.version)[:2])
    if version < SPARK_MIN:
        raise RefusedError(
            f"the data source needs Spark {SPARK_MIN[0]}.{SPARK_MIN[1]} or newer; "
            f"plan, clean and verify run on 4.0. spark={spark.version}",
            code="K509",
        )
    require_keeplast(spark)
    spark.dataSource.register(source)


def require_keeplast(spark: SparkSession) -> None:
    """Ask a worker for its keeplast; RefusedError when it has none, or another version.

    A worker of this host that runs our own Python has ours. Spark Connect says nothing of workers.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return
    own, python = Path(sys.executable), shutil.which(str(context.pythonExec))
    # Two environments may have one Python: links to it lie in folders of their own.
    if context.master.startswith("local") and python and Path(python).parent == own.parent:
        return

    # A function of a module is looked for in it, which a worker may not have; this one travels.
    def version_there(_: int) -> str:
        try:
            return str(importlib.import_module("keeplast").__version__)
        except ImportError:
            return "none"

    here = sys.modules["keeplast"].__version__
    try:
        found = context.parallelize([0], 1).map(version_there).collect()[0]
    except (PySparkException, Py4JError) as error:
        found = f"unknown error={next(iter(str(error).strip().splitlines()), '')[:REASON_MAX]}"
    if found != here:
        raise RefusedError(
            "the Python of Spark's workers has not this keeplast; set PYSPARK_PYTHON to one that "
            "has it before the session starts, or send one along (keeplast pack). "
            f"PYSPARK_PYTHON={context.pythonExec} driver={here} worker={found}",
            code="K512",
        )


class LogReader(DataSourceReader):
    """Plans and reads one batch query."""

    def __init__(self, source: LogSource, options: SourceOptions, names: Sequence[str]) -> None:
        """Take checked options and the columns that are asked for."""
        self._source = source
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads."""
        try:
            tasks = share_out(
                self._parts(),
                tasks_min=self._options.tasks_min,
                split_bytes=self._options.split_bytes,
            )
            return [InputPartition(parts) for parts in tasks]
        except CompactionError as error:
            # Spark shows people the way to the error; the sentence is what they can use.
            raise error.with_traceback(None) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one task."""
        # Spark makes a partition of its own out of none.
        if partition.value is None:
            return iter(())
        memory_bytes, naming = self._options.memory_bytes, self._source.naming
        return read_parts(partition.value, self._names, memory_bytes, naming)

    def _parts(self) -> Iterator[LogPart]:
        # What was found stays here: a reader travels to every task.
        found = self._source.find(self._options)
        if found.options.given is None:
            yield from self._parts_of(found)
            return
        with self._source.naming(found.options.given):
            yield from self._parts_of(found)

    def _parts_of(self, found: FoundLogs) -> Iterator[LogPart]:
        options = at_group(found.options, found.groups)
        logs = Logs(options)
        require_whole_topics(logs, options, logs.entries, found.known)
        for note in logs.notes:
            warnings.warn(note, stacklevel=2)
        options.starting.require_chosen("startingOffsets", logs.entries, options.where())
        options.ending.require_chosen("endingOffsets", logs.entries, options.where())
        ranges: list[tuple[LogView, Wanted]] = []
        for entry in logs.entries:
            view = logs.look(entry)
            logs.warn_torn(view)
            first, end = logs.range_of(view)
            if first < end:
                ranges.append((view, Wanted(first, end)))
        if options.content is SourceContent.LATEST:
            yield from self._state_parts(ranges, logs, found.topic_configs(logs))
        else:
            wanted = options.wanted
            yield from logs.record_parts(
                [(view, wanted.between(r.first_offset, r.end_offset)) for view, r in ranges]
            )

    def _state_parts(
        self,
        views: Sequence[tuple[LogView, Wanted]],
        logs: Logs,
        topic_config: Callable[[str], TopicConfig],
    ) -> Iterator[LogPart]:
        """Yield parts of states: one a partition, or as many as its share of the tasks asked for.

        Each part reads what it shows and, for the winners, what may outrank that.
        """
        options, shown = self._options, self._options.wanted
        total = sum(view.size_bytes for view, _ in views)
        for view, whole in views:
            end = whole.end_offset
            logs.require_state_at(view, end)
            # A query that accepts loss and reads to the latest offset reads on from there.
            checks = options.fails_on_loss or end < logs.latest_of(view)
            segments = segments_below(view, end) if checks else None
            parts = max(1, round(options.tasks_min * view.size_bytes / max(total, 1)))
            split = Split(
                view.partition,
                view.path,
                whole,
                view.size_bytes // parts,
                options.fails_on_loss,
                segments,
                options.is_committed,
                view.topic_id,
                logs.decided_before(view, end),
            )
            topic = ranked(topic_config(view.partition.topic), options)
            check_internal(view.partition.topic, topic)
            wanted = shown.between(whole.first_offset, whole.end_offset)
            # A time says nothing of the winners, so that cuts are made by offsets alone.
            offsets = Wanted(wanted.first_offset, wanted.end_offset)
            cuts = plan_splits(view, offsets, logs.files, split_bytes=-(-view.size_bytes // parts))
            for part in [cut.wanted for cut in cuts] if parts > 1 else [wanted]:
                its = wanted.between(part.first_offset, part.end_offset)
                recipe = logs.recipe_for(view.partition)
                yield LogPart(split, its, topic, options.key_bytes_max, recipe)
