"""The options of ``kafka-log``, read once and checked when a query is made, not when it runs.

Names and syntax are those of Spark's Kafka source where it has the option. Names have no case, as
everywhere in Spark. An option that is not known is an error: a misspelt ``endingOffsets`` would
otherwise read too much.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from keeplast.engine.log_ranges import Wanted
from keeplast.engine.places import recipe_of
from keeplast.engine.workspace import MEMORY_BYTES_MIN
from keeplast.errors import InvalidError
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, PartitionEntry
from keeplast.log.files import FilesRecipe
from keeplast.log.object_paths import SCHEMES, place_path
from keeplast.model.offsets import INT32_MAX, INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.strategy import Strategy

EARLIEST = "earliest"
LATEST = "latest"
_E = TypeVar("_E", bound=StrEnum)
_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1

OBJECT_PREFIX = "object."
"""Begins options of the object store: ``object.endpoint`` is its ``endpoint``."""
EVERY_TIME = (-INT64_MAX - 1, INT64_MAX)
SPLIT_BYTES_DEFAULT = 128 << 20
KEY_BYTES_DEFAULT = 1 << 30
KEY_BYTES_MIN = 1 << 20
TASKS_MAX = 1 << 16
MEMORY_BYTES_DEFAULT = 64 << 20
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that are read only by those who name them."""

NAMES = (
    "path",
    "assign",
    "subscribe",
    "subscribePattern",
    "isolation.level",
    "startingOffsets",
    "endingOffsets",
    "minTimestamp",
    "maxTimestamp",
    "endOfLog",
    "filterPushdown",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "state",
    "compaction.strategy",
    "compaction.strategy.header",
    "minPartitions",
    "taskMemoryBytes",
    "maxPartitionBytes",
    "memoryBytes",
)
STATE_NAMES = (
    "compaction.strategy",
    "compaction.strategy.header",
    "minPartitions",
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


class Content(StrEnum):
    """What rows are: the records of the log, or of its state."""

    ALL = "all"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets by partition; one that is not named has ``otherwise``: earliest or latest."""

    otherwise: str
    named: Mapping[TopicPartition, int]

    def of(self, partition: TopicPartition, *, earliest: int, latest: int) -> int:
        """Return the offset of a partition whose log is [earliest, latest)."""
        offset = self.named.get(partition)
        if offset is None:
            return earliest if self.otherwise == EARLIEST else latest
        if offset == _EARLIEST_NUMBER:
            return earliest
        return latest if offset == _LATEST_NUMBER else offset


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query."""

    path: Path
    chooses: Callable[[TopicPartition], bool] | None
    named: tuple[str, ...]
    assigned: frozenset[TopicPartition]
    isolation: Isolation
    starting: Offsets
    ending: Offsets
    first_ms: int
    last_ms: int
    end_of_log: EndOfLog
    pushes_filters: bool
    fails_on_loss: bool
    offsets_per_trigger: int | None
    content: Content
    strategy: Strategy | None
    strategy_header: str | None
    tasks_min: int
    key_bytes_max: int
    split_bytes: int
    memory_bytes: int
    object_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def recipe(self) -> FilesRecipe:
        """Return how the driver and tasks open what is read."""
        return recipe_of((self.path,), self.object_options)

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

    def chosen(self, directory: DataDirectory) -> list[PartitionEntry]:
        """Return the partitions of ``directory`` that are meant; InvalidError when there is none.

        Replicas that are being deleted, moved or set aside, and the metadata log, are never meant.
        """
        available = [
            entry
            for entry in directory.partitions
            if entry.mark is None and entry.partition.topic != METADATA_TOPIC
        ]
        known = {entry.partition.topic for entry in available}
        for topic in self.named:
            if topic not in known:
                close = difflib.get_close_matches(topic, sorted(known), n=1, cutoff=0.0)
                hint = f"did you mean {close[0]}" if close else "there is none"
                raise InvalidError(
                    f"no such topic in the data directory; {hint}. topic={topic} path={self.path}"
                )
        for partition in sorted(self.assigned - {entry.partition for entry in available}):
            raise InvalidError(
                f"no such partition in the data directory. assign={partition} path={self.path}"
            )
        if self.chooses is not None:
            chosen = [entry for entry in available if self.chooses(entry.partition)]
        elif directory.is_single:
            chosen = available
        else:
            chosen = [e for e in available if e.partition.topic not in INTERNAL_TOPICS]
        if not chosen:
            raise InvalidError(
                f"no partition to read; give a Kafka log.dirs directory or a partition in it, and "
                f"options that choose one. path={self.path}"
            )
        return chosen


def read_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Return the options; InvalidError names the one that cannot be, its value and the remedy."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in _LOWERED and not name.startswith(OBJECT_PREFIX):
            close = difflib.get_close_matches(name, list(_LOWERED), n=1, cutoff=0.0)
            raise InvalidError(
                f"unknown option; did you mean {_LOWERED[close[0]]}. option={name} "
                f"value={options[name]!r}"
            )

    def option(name: str, otherwise: str) -> str:
        return options.get(name.lower(), otherwise)

    if "path" not in options:
        raise InvalidError(
            "no path; give load() a Kafka log.dirs directory or a partition in it. option=path"
        )
    chooses, named, assigned = _selection(options)
    content = _choice("state", option("state", Content.ALL), Content)
    strategy_text = options.get("compaction.strategy")
    if is_streaming:
        _refuse_in_streams(options, content)
    else:
        _refuse_in_batches(options, content)
    ending = _offsets("endingOffsets", option("endingOffsets", LATEST), allowed=LATEST)
    starting_default = LATEST if is_streaming else EARLIEST
    starting = _offsets(
        "startingOffsets",
        option("startingOffsets", starting_default),
        allowed=None if is_streaming else EARLIEST,
    )
    end_default = EndOfLog.HIGH_WATERMARK if is_streaming else EndOfLog.LOG_END
    per_trigger = options.get("maxoffsetspertrigger")
    return SourceOptions(
        path=_path(options["path"]),
        object_options={
            name.removeprefix(OBJECT_PREFIX): value
            for name, value in options.items()
            if name.startswith(OBJECT_PREFIX)
        },
        chooses=chooses,
        named=named,
        assigned=assigned,
        isolation=_choice(
            "isolation.level", option("isolation.level", Isolation.COMMITTED), Isolation
        ),
        starting=starting,
        ending=ending,
        first_ms=_integer("minTimestamp", option("minTimestamp", str(EVERY_TIME[0])), *EVERY_TIME),
        last_ms=_integer("maxTimestamp", option("maxTimestamp", str(EVERY_TIME[1])), *EVERY_TIME),
        pushes_filters=_boolean("filterPushdown", option("filterPushdown", "false")),
        end_of_log=_choice("endOfLog", option("endOfLog", end_default), EndOfLog),
        fails_on_loss=_boolean("failOnDataLoss", option("failOnDataLoss", "true")),
        offsets_per_trigger=None
        if per_trigger is None
        else _integer("maxOffsetsPerTrigger", per_trigger, 1, INT64_MAX),
        content=content,
        strategy=None
        if strategy_text is None
        else _choice("compaction.strategy", strategy_text, Strategy),
        strategy_header=options.get("compaction.strategy.header"),
        tasks_min=_integer("minPartitions", option("minPartitions", "1"), 1, TASKS_MAX),
        key_bytes_max=_integer(
            "taskMemoryBytes",
            option("taskMemoryBytes", str(KEY_BYTES_DEFAULT)),
            KEY_BYTES_MIN,
            INT64_MAX,
        ),
        split_bytes=_integer(
            "maxPartitionBytes",
            option("maxPartitionBytes", str(SPLIT_BYTES_DEFAULT)),
            1,
            INT64_MAX,
        ),
        memory_bytes=_integer(
            "memoryBytes",
            option("memoryBytes", str(MEMORY_BYTES_DEFAULT)),
            MEMORY_BYTES_MIN,
            INT64_MAX,
        ),
    )


_LOWERED = {name.lower(): name for name in NAMES}


def _refuse_in_streams(options: Mapping[str, str], content: Content) -> None:
    if "filterpushdown" in options:
        raise InvalidError(
            "filters of a stream are not pushed down; leave the option out. "
            f"filterPushdown={options['filterpushdown']}"
        )
    if content is not Content.ALL:
        raise InvalidError(
            "a stream has no state; read it with spark.read, or leave the option out. "
            f"state={content}"
        )
    if "endingoffsets" in options:
        raise InvalidError(
            "a stream has no end; leave the option out, or use a trigger of availableNow. "
            f"endingOffsets={options['endingoffsets']}"
        )


def _refuse_in_batches(options: Mapping[str, str], content: Content) -> None:
    if "maxoffsetspertrigger" in options:
        raise InvalidError(
            "only a stream has triggers; use endingOffsets, or leave the option out. "
            f"maxOffsetsPerTrigger={options['maxoffsetspertrigger']}"
        )
    if content is Content.LATEST:
        return
    for name in STATE_NAMES:
        if name.lower() in options:
            raise InvalidError(
                f"this is for a state; add state=latest, or leave the option out. "
                f"{name}={options[name.lower()]}"
            )


def _path(text: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", text)
    if scheme is not None and scheme[1] not in ("file", *SCHEMES):
        raise InvalidError(
            "this cannot be read; give a directory that every host has at the same path, or s3://, "
            f"gs:// or az:// with a bucket. path={text}"
        )
    return place_path(text).absolute()


def _selection(
    options: Mapping[str, str],
) -> tuple[Callable[[TopicPartition], bool] | None, tuple[str, ...], frozenset[TopicPartition]]:
    given = [
        name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in options
    ]
    if len(given) > 1:
        raise InvalidError(f"only one of these options can be given. options={','.join(given)}")
    if not given:
        return None, (), frozenset()
    text = options[given[0].lower()]
    if given[0] == "subscribe":
        topics = tuple(name.strip() for name in text.split(",") if name.strip())
        if not topics:
            raise InvalidError(f"no topic; give names with commas between. subscribe={text!r}")
        return _InTopics(frozenset(topics)), topics, frozenset()
    if given[0] == "subscribePattern":
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InvalidError(
                f"not a regular expression: {error}. subscribePattern={text!r}"
            ) from error
        return _Matches(pattern), (), frozenset()
    assigned = _assigned(text)
    return _Among(assigned), (), assigned


@dataclass(frozen=True, slots=True)
class _InTopics:
    topics: frozenset[str]

    def __call__(self, partition: TopicPartition) -> bool:
        return partition.topic in self.topics


@dataclass(frozen=True, slots=True)
class _Matches:
    pattern: re.Pattern[str]

    def __call__(self, partition: TopicPartition) -> bool:
        return self.pattern.fullmatch(partition.topic) is not None


@dataclass(frozen=True, slots=True)
class _Among:
    partitions: frozenset[TopicPartition]

    def __call__(self, partition: TopicPartition) -> bool:
        return partition in self.partitions


def _assigned(text: str) -> frozenset[TopicPartition]:
    remedy = 'give {"topic":[0,1]}'
    document = _json("assign", text, remedy)
    assigned: set[TopicPartition] = set()
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not all(_is_number(each) for each in numbers):
            raise InvalidError(f"not a list of partitions; {remedy}. assign={text!r}")
        assigned |= {TopicPartition(topic, number) for number in numbers}
    if not assigned:
        raise InvalidError(f"no partition; {remedy}. assign={text!r}")
    return frozenset(assigned)


def _offsets(name: str, text: str, *, allowed: str | None) -> Offsets:
    """Read ``earliest``, ``latest`` or a document; ``allowed`` is the only word there may be."""
    otherwise = allowed or EARLIEST
    words = (EARLIEST, LATEST) if allowed is None else (allowed,)
    if text.strip().lower() in (EARLIEST, LATEST):
        word = text.strip().lower()
        if word not in words:
            raise InvalidError(f"nothing would be read; {name} can be {words[0]}. {name}={text}")
        return Offsets(word, {})
    remedy = f'give {" or ".join(words)}, or {{"topic":{{"0":23,"1":-2}}}}'
    document = _json(name, text, remedy)
    return Offsets(otherwise, parse_offsets(document, name, text, remedy))


def parse_offsets(
    document: Mapping[str, Any], name: str, text: str, remedy: str
) -> dict[TopicPartition, int]:
    """Return the offsets of ``{"topic": {"0": 23}}``; InvalidError when it is something else."""
    named: dict[TopicPartition, int] = {}
    for topic, offsets in document.items():
        if not isinstance(offsets, dict):
            raise InvalidError(f"no partitions for topic {topic}; {remedy}. {name}={text!r}")
        for number, offset in offsets.items():
            is_partition = re.fullmatch(r"[0-9]{1,10}", number) is not None
            if not is_partition or int(number) > INT32_MAX or not _is_number(offset, -2):
                raise InvalidError(
                    f"not a partition and its offset: {number!r}: {offset!r}; {remedy}. "
                    f"{name}={text!r}"
                )
            named[TopicPartition(topic, int(number))] = offset
    return named


def _is_number(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INT64_MAX


def _json(name: str, text: str, remedy: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f"not understood; {remedy}. {name}={text!r}")
    return document


def _choice(name: str, text: str, choices: type[_E]) -> _E:
    try:
        return choices(text.strip().lower())
    except ValueError:
        words = " or ".join(choices)
        raise InvalidError(f"not a value of this option; give {words}. {name}={text!r}") from None


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidError(f"not a value of this option; give true or false. {name}={text!r}")
    return text.strip().lower() == "true"


def _integer(name: str, text: str, least: int, most: int) -> int:
    if re.fullmatch(r"-?[0-9]{1,19}", text.strip()) is None or not least <= int(text) <= most:
        raise InvalidError(f"not a number from {least} to {most}. {name}={text!r}")
    return int(text)
