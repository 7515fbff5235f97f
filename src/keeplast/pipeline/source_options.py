"""The options of ``kafka-log``, read once and checked when a query is made, not when it runs.

Names and syntax are those of Spark's Kafka source where it has the option. Names have no case, as
everywhere in Spark. An option that is not known is an error: a misspelt ``endingOffsets`` would
otherwise read too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from keeplast.errors import InvalidError, InvariantError, installing
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FilesRecipe
from keeplast.log.paths import SCHEMES, place_path
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.text import shown_url
from keeplast.model.topic_config import Strategy
from keeplast.pipeline.arrow_batches import COLUMN_NAMES
from keeplast.pipeline.query_options import (
    CLUSTER_NAMES,
    EARLIEST,
    LATEST,
    STORAGE_PREFIX,
    ClusterPlace,
    Offsets,
    OptionTexts,
    ReadPartitions,
    read_choice,
    read_cluster,
    read_offsets,
)
from keeplast.read.log_view import Wanted
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.survey.request import TASK_MEMORY_BYTES_MIN
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.places import recipe_of
from keeplast.tier.objects.round_files import ROOT

OBJECT_PREFIX = "object."
"""Begins options of the object store: ``object.endpoint`` is its ``endpoint``."""
EVERY_TIME = (-INT64_MAX - 1, INT64_MAX)
SPLIT_BYTES_DEFAULT = 128 << 20
KEY_BYTES_DEFAULT = 1 << 30
TASKS_MAX = 1 << 16
MEMORY_BYTES_DEFAULT = 64 << 20
GROUP_TOPIC = "__consumer_offsets"
"""What a group's checkpoint is in, whatever else is read."""
NAMES = (
    "path",
    "store",
    "assign",
    "subscribe",
    "subscribePattern",
    "paths",
    "columns",
    "isolation.level",
    "startingOffsets",
    "endingOffsets",
    "endingTimestamp",
    "endingGroup",
    "minTimestamp",
    "maxTimestamp",
    "endOfLog",
    "failOnDataLoss",
    "partialTopics",
    "maxOffsetsPerTrigger",
    "state",
    "compaction.strategy",
    "compaction.strategy.header",
    "minPartitions",
    "taskMemoryBytes",
    "maxPartitionBytes",
    "memoryBytes",
    *CLUSTER_NAMES,
)
ENDS = ("endingOffsets", "endingTimestamp", "endingGroup")
"""The options for where a query ends: it has one of them."""
STATE_NAMES = (
    "compaction.strategy",
    "compaction.strategy.header",
    "taskMemoryBytes",
)
"""Options that go with ``state=latest`` only."""


class Isolation(StrEnum):
    """Which records of transactions are read."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


class EndOfLog(StrEnum):
    """What ``latest`` means: everything in the files, or what all replicas have."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"


class SourceContent(StrEnum):
    """What rows are: the records of the log, or of its state."""

    ALL = "all"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query; ``ending_ms`` takes the place of ``ending`` where it is there.

    So does ``ending_group``, the consumer group whose committed offsets are the end.
    ``store`` is the URL of a store's metadata, ``given`` what somebody shows as a directory: then
    ``path`` is what that looks like. ``cluster`` is a live one whose logs are to be shown so.
    ``columns`` are all where none are named. ``others`` are directories that make one place with
    ``path``. Topics that are not whole are an error unless a query ``takes_partial`` ones.
    """

    path: Path
    columns: tuple[str, ...]
    choice: ReadPartitions
    isolation: Isolation
    starting: Offsets
    ending: Offsets
    ending_ms: int | None
    first_ms: int
    last_ms: int
    end_of_log: EndOfLog
    fails_on_loss: bool
    takes_partial: bool
    offsets_per_trigger: int | None
    content: SourceContent
    strategy: Strategy | None
    strategy_header: str | None
    tasks_min: int
    key_bytes_max: int
    split_bytes: int
    memory_bytes: int
    object_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: str | None = field(default=None, repr=False)
    given: LogDirectoryRecipe | None = field(default=None, repr=False)
    ending_group: str | None = None
    cluster: ClusterPlace | None = None
    others: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the directories that are read as one."""
        return (self.path, *self.others)

    def recipe(self) -> FilesRecipe:
        """Return how the driver and tasks open what is read; of a store as it is now."""
        if self.given is None and self.store is None and self.cluster is None:
            return recipe_of(self.paths, self.object_options)
        return self.shown_logs()

    def shown_logs(self) -> LogDirectoryRecipe:
        """Return what is shown as a directory, and what of a store is chosen, as it is now."""
        if self.given is not None:
            return self.given
        if self.cluster is not None:
            raise InvariantError(
                f"the cluster was not looked at. {self.cluster.where()}", code="K901"
            )
        try:
            from keeplast.tier.metadata.stored_logs import open_stored_logs
        except ModuleNotFoundError as error:
            raise InvalidError(
                f"a store needs more packages; {installing('tier')}. missing={error.name}",
                code="K134",
            ) from error
        return open_stored_logs(self.store or "", self.object_options, self._wants)

    def _wants(self, partition: TopicPartition) -> bool:
        return self.choice.covers(partition) or partition.topic == GROUP_TOPIC

    def of(self, recipe: LogDirectoryRecipe) -> SourceOptions:
        """Return the same of what ``recipe`` shows, instead of a directory or store."""
        return replace(self, path=recipe.root, others=(), given=recipe)

    def where(self) -> str:
        """Return what is read, for people."""
        if self.given is not None and self.given.source:
            return self.given.source
        if self.cluster is not None:
            return self.cluster.where()
        if self.store is not None:
            return f"store={shown_url(self.store)}"
        return f"path={','.join(str(each) for each in self.paths)}"

    @property
    def has_end(self) -> bool:
        """Say whether anything but the latest offsets was asked for."""
        return (
            self.ending_ms is not None or self.ending_group is not None or bool(self.ending.named)
        )

    @property
    def wanted(self) -> Wanted:
        """Return the times that are asked for, of every offset."""
        return Wanted(first_ms=self.first_ms, last_ms=self.last_ms)

    @property
    def is_committed(self) -> bool:
        """Say whether only committed records are read."""
        return self.isolation is Isolation.COMMITTED

    @property
    def is_replicated(self) -> bool:
        """Say whether only what is below the high watermark is read."""
        return self.end_of_log is EndOfLog.HIGH_WATERMARK

    def chosen(self, directory: DataDirectory, *, waits: bool = False) -> list[PartitionEntry]:
        """Return which partitions of ``directory`` are meant.

        InvalidError when none is, but for a caller that ``waits`` until there is one.
        """
        return self.choice.chosen(directory, self.where(), waits=waits)


def read_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Return the options; InvalidError names the one that cannot be, its value and the remedy."""
    options = OptionTexts(given, NAMES, prefixes=(OBJECT_PREFIX, STORAGE_PREFIX))
    object_options = options.prefixed(OBJECT_PREFIX)
    cluster = read_cluster(options, object_options, is_streaming=is_streaming)
    paths = _paths(options)
    path = paths[0] if paths else None
    store = options.text("store", None) if cluster is None else None
    if path is None and store is None and cluster is None:
        raise InvalidError(
            "no path; give load() a Kafka log.dirs directory or a partition in it, or the option "
            "store, or bootstrapServers. option=path",
            code="K102",
        )
    if path is not None and cluster is not None:
        raise InvalidError(
            f"a live cluster is read instead of a directory; leave one of the two out. path={path} "
            f"{cluster.where()}",
            code="K101",
        )
    if is_streaming and store is not None:
        raise InvalidError(
            "a stream reads a directory, not a store; read that with spark.read. "
            f"store={shown_url(store)}",
            code="K141",
        )
    if path is not None and store is not None:
        raise InvalidError(
            f"a store is read instead of a directory; leave one of the two out. path={path} "
            f"store={shown_url(store)}",
            code="K101",
        )
    if len(paths) > 1 and options.text("endingGroup", None) is not None:
        options.refuse(
            "endingGroup", "a group's offsets are those in one directory; give endingOffsets"
        )
    choice = read_choice(options)
    content = options.choice("state", SourceContent, SourceContent.ALL)
    if is_streaming:
        _refuse_in_streams(options, content)
    else:
        _refuse_in_batches(options, content)
    ending = read_offsets("endingOffsets", options.text("endingOffsets", LATEST), allowed=LATEST)
    starting = read_offsets(
        "startingOffsets",
        options.text("startingOffsets", LATEST if is_streaming else EARLIEST),
        allowed=None if is_streaming else EARLIEST,
    )
    return SourceOptions(
        path=ROOT if path is None else _path(path),
        others=tuple(_path(each) for each in paths[1:]),
        store=store,
        cluster=cluster,
        columns=_columns(options.text("columns", None)),
        object_options=object_options,
        choice=choice,
        isolation=options.choice("isolation.level", Isolation, Isolation.COMMITTED),
        starting=starting,
        ending=ending,
        ending_ms=options.integer("endingTimestamp", None),
        ending_group=options.text("endingGroup", None),
        first_ms=options.integer("minTimestamp", EVERY_TIME[0], least=EVERY_TIME[0]),
        last_ms=options.integer("maxTimestamp", EVERY_TIME[1], least=EVERY_TIME[0]),
        end_of_log=options.choice(
            "endOfLog", EndOfLog, EndOfLog.HIGH_WATERMARK if is_streaming else EndOfLog.LOG_END
        ),
        fails_on_loss=options.boolean("failOnDataLoss", otherwise=True),
        takes_partial=options.boolean("partialTopics", otherwise=False),
        offsets_per_trigger=options.integer("maxOffsetsPerTrigger", None),
        content=content,
        strategy=options.choice("compaction.strategy", Strategy, None),
        strategy_header=options.text("compaction.strategy.header", None),
        tasks_min=options.integer("minPartitions", 1, most=TASKS_MAX),
        key_bytes_max=options.size(
            "taskMemoryBytes", KEY_BYTES_DEFAULT, least=TASK_MEMORY_BYTES_MIN
        ),
        split_bytes=options.size("maxPartitionBytes", SPLIT_BYTES_DEFAULT),
        memory_bytes=options.size("memoryBytes", MEMORY_BYTES_DEFAULT, least=MEMORY_BYTES_MIN),
    )


def _refuse_in_streams(options: OptionTexts, content: SourceContent) -> None:
    if content is not SourceContent.ALL:
        options.refuse(
            "state", "a stream has no state; read it with spark.read, or leave the option out"
        )
    for name in ENDS:
        options.refuse(
            name, "a stream has no end; leave the option out, or use a trigger of availableNow"
        )


def _refuse_in_batches(options: OptionTexts, content: SourceContent) -> None:
    options.refuse(
        "maxOffsetsPerTrigger",
        "only a stream has triggers; use endingOffsets, or leave the option out",
    )
    ends = options.given(ENDS)
    if len(ends) > 1:
        options.refuse(ends[-1], f"there is one end; leave out {ends[0]}, or this")
    if content is not SourceContent.LATEST:
        for name in STATE_NAMES:
            options.refuse(name, "this is for a state; add state=latest, or leave the option out")


def _columns(text: str | None) -> tuple[str, ...]:
    """Return the columns that a list with commas names, all without one."""
    if text is None:
        return COLUMN_NAMES
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMN_NAMES:
            raise InvalidError(
                f"no such column; choose from {', '.join(COLUMN_NAMES)}. column={name!r} "
                f"columns={text!r}",
                code="K137",
            )
    if len(set(names)) < len(names):
        raise InvalidError(
            f"a column is named twice; name each once. columns={text!r}", code="K137"
        )
    return names


def _paths(options: OptionTexts) -> tuple[str, ...]:
    """Return the directories, none without any: what ``load()`` was given, one or a list."""
    text = options.text("paths", None)
    path = options.text("path", None)
    if text is None:
        return () if path is None else (path,)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(p, str) for p in found):
        raise InvalidError(
            f"not a list of directories; give load() a list. paths={text!r}", code="K140"
        )
    if path is not None:
        raise InvalidError(
            f"give load() all directories in one list. path={path} paths={text}", code="K140"
        )
    return tuple(found)


def _path(text: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", text)
    if scheme is not None and scheme[1] not in ("file", *SCHEMES):
        raise InvalidError(
            "this cannot be read; give a directory that every host has at the same path, or s3://, "
            f"gs:// or az:// with a bucket. path={text}",
            code="K116",
        )
    return place_path(text).absolute()
