"""The options of a query, a kind at a time: texts, offsets, partitions, a live cluster.

Spark hands options over as texts, and each is read as what it has to be. Names have no case, as
everywhere in Spark. Whatever cannot be read is an InvalidError that names the option, its value and
what may stand there instead.

*Options that are not ours* come along: what Spark adds itself, and its Kafka source's. Who moves a
query from ``kafka`` to ``kafka-log`` brings that source's options. One that means nothing here and
changes no row is ignored. Every other one is refused with what does it instead, because a query
that silently ignored it would read something else. Names are in lower case.

*Options that name a live cluster*, whose remote tier is read as a directory is. The rule: **these
are texts, and nothing is opened here**. What may be a secret is in the file that ``commandConfig``
names, or is a reference. Only the driver that looks at the cluster reads that file: options stand
in plans, and in logs of events.

*Offsets* have the syntax of Spark's Kafka source: ``earliest``, ``latest``, or a document such as
``{"topic": {"0": 23, "1": -2}}``, in which -2 is earliest and -1 is latest.

*Partitions* of a data directory are chosen by ``assign``, ``subscribe``, a pattern, or all.
Replicas that are being deleted, moved or set aside, and the metadata log, are never meant. A
broker's own topics are read only by those who name them.

Sources: Spark's "Structured Streaming + Kafka Integration Guide"; ``TableCatalog`` for tables.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, PartitionEntry
from keeplast.model.partition import INT32_MAX, INT64_MAX, TopicPartition
from keeplast.model.text import parse_size, shown_url

IGNORED = frozenset({"includeheaders"})
"""Headers are a column of every query, and ``schema()`` leaves it out."""

PROVIDER = "provider"
LOCATION = "location"
MANAGED = "is_managed_location"
OF_TABLES = frozenset(
    {
        LOCATION,
        MANAGED,
        "collation",
        "comment",
        "external",
        "owner",
        PROVIDER,
        "serialization.format",
    }
)
"""What Spark hands over of a table that was made with ``CREATE TABLE … USING``."""

TABLE_OPTION = "option."
"""Begins the second copy of a table's options among its properties."""

_KAFKA_CLIENT = "kafka."
_BY_TIME = (
    "offsets are not found by time here; use {}, which compares the timestamp of each record, or "
    "give offsets"
)
_NO_GROUP = (
    "there is no consumer group, and a stream's offsets are in its checkpoint; leave the option out"
)
_NO_CLIENT = "files are read and no broker is asked; leave the option out"
REMOVED = {
    "filterpushdown": "Spark applies what filters one query pushes to other queries of the same "
    "DataFrame too; use assign, startingOffsets, endingOffsets, minTimestamp or maxTimestamp, and "
    "leave it out",
}
"""Options that earlier versions had, and what does it instead."""
_INSTEAD = {
    "kafka.bootstrap.servers": "files are read and no broker is asked; give load() the data "
    "directory, or bootstrapServers and storage, and leave the option out",
    "kafka.isolation.level": "use isolation.level",
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "startingtimestamp": _BY_TIME.format("minTimestamp"),
    "startingoffsetsbytimestamp": _BY_TIME.format("minTimestamp"),
    "startingoffsetsbytimestampstrategy": _BY_TIME.format("minTimestamp"),
    "endingoffsetsbytimestamp": "use maxTimestamp, which compares the timestamp of each "
    "record, or endingTimestamp, which is about all partitions",
    "minoffsetspertrigger": "a stream does not wait for more; let its trigger run less often",
    "maxtriggerdelay": "a stream does not wait for more; let its trigger run less often",
    "maxrecordsperpartition": "use maxPartitionBytes, or minPartitions",
    "kafkaconsumer.polltimeoutms": _NO_CLIENT,
    "fetchoffset.numretries": _NO_CLIENT,
    "fetchoffset.retryintervalms": _NO_CLIENT,
    "topic": "nothing is written; use subscribe to read a topic",
}


def instead_of(name: str) -> str | None:
    """Return what does what an option of Spark's Kafka source does; None for any other name."""
    found = _INSTEAD.get(name)
    if found is None and name.startswith(_KAFKA_CLIENT):
        return _NO_CLIENT
    return found


_E = TypeVar("_E", bound=StrEnum)
_D = TypeVar("_D")


class OptionTexts:
    """The given texts by name."""

    def __init__(
        self, given: Mapping[str, str], names: Sequence[str], *, prefixes: tuple[str, ...]
    ) -> None:
        """Take ``given``; InvalidError for a name not in ``names`` and with none of ``prefixes``.

        What Spark adds of a table is no option, but its location is a path.
        """
        lowered = {name.lower(): name for name in names}
        self._texts = {}
        all_given = {name.lower(): text for name, text in given.items()}
        for name, text in all_given.items():
            if name in lowered or name.startswith(prefixes):
                self._texts[name] = text
            # A table's option may stand twice, once with a prefix.
            elif name not in IGNORED | OF_TABLES and not (
                name.startswith(TABLE_OPTION) and name.removeprefix(TABLE_OPTION) in all_given
            ):
                raise _unknown(name, lowered)
        if LOCATION in all_given and all_given.get(MANAGED, "false").lower() != "true":
            self._texts.setdefault("path", all_given[LOCATION])

    def text(self, name: str, otherwise: _D) -> str | _D:
        """Return what was given for ``name``, ``otherwise`` when nothing was."""
        return self._texts.get(name.lower(), otherwise)

    def refuse(self, name: str, why: str) -> None:
        """Raise InvalidError when ``name`` was given; ``why`` says what helps."""
        if name.lower() in self._texts:
            raise InvalidError(f"{why}. {name}={self._texts[name.lower()]}", code="K104")

    def given(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` were given, in their order."""
        return [name for name in names if name.lower() in self._texts]

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options that have a prefix, without it."""
        return {
            name.removeprefix(prefix): text
            for name, text in self._texts.items()
            if name.startswith(prefix)
        }

    def choice(self, name: str, choices: type[_E], otherwise: _D) -> _E | _D:
        """Return the member of ``choices`` that is named, ``otherwise`` when none is."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        try:
            return choices(text.strip().lower())
        except ValueError:
            words = " or ".join(choices)
            raise InvalidError(
                f"not a value of this option; give {words}. {name}={text!r}", code="K104"
            ) from None

    def boolean(self, name: str, *, otherwise: bool) -> bool:
        """Return what is given, ``otherwise`` when nothing is."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise InvalidError(
                f"not a value of this option; give true or false. {name}={text!r}", code="K104"
            )
        return word == "true"

    def integer(
        self, name: str, otherwise: _D, *, least: int = 1, most: int = INT64_MAX
    ) -> int | _D:
        """Return a number in ``[least, most]``, ``otherwise`` when none was given."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        if re.fullmatch(r"-?[0-9]{1,19}", text.strip()) is None or not least <= int(text) <= most:
            raise InvalidError(f"not a number from {least} to {most}. {name}={text!r}", code="K104")
        return int(text)

    def size(self, name: str, otherwise: int, *, least: int = 1) -> int:
        """Return the bytes that are given, as ``65536`` or ``64m``; at least ``least``."""
        text = self.text(name, None)
        if text is None:
            return otherwise
        size = parse_size(text, name)
        if not least <= size <= INT64_MAX:
            raise InvalidError(
                f"not a size from {least} to {INT64_MAX} bytes. {name}={text!r}", code="K104"
            )
        return size


def _unknown(name: str, known: Mapping[str, str]) -> InvalidError:
    """Return the error for an option that means nothing here, with what comes nearest to it.

    Without its value, which may be a secret: ``kafka.sasl.jaas.config``, or a misspelt ``object.``.
    """
    if name in REMOVED:
        return InvalidError(f"this option is no more: {REMOVED[name]}. option={name}", code="K138")
    instead = instead_of(name)
    if instead is not None:
        return InvalidError(
            f"this option of Spark's Kafka source is not one of kafka-log: {instead}. "
            f"option={name}",
            code="K138",
        )
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = (
        f"did you mean {known[close[0]]}" if close else f"choose from {', '.join(known.values())}"
    )
    return InvalidError(f"unknown option; {hint}. option={name}", code="K138")


def read_object(name: str, text: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f"not understood; {remedy}. {name}={text!r}", code="K104")
    return document


STORAGE_PREFIX = "storage."
"""Begins options of the remote tier's storage: ``storage.endpoint`` is its ``endpoint``."""
BOOTSTRAP = "bootstrapServers"
CLUSTER_NAMES = (BOOTSTRAP, "storage", "commandConfig")
"""With ``store``, which is the decision log then."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A live cluster, its remote tier and its decision log (None: unknown), as they were given.

    ``storage`` is PLUGIN:PLACE, ``command_config`` the path of the client's properties.
    """

    bootstrap_servers: str
    storage: str = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    command_config: str | None = None
    store: str | None = field(default=None, repr=False)

    def where(self) -> str:
        """Return what is read, for people."""
        return f"{BOOTSTRAP}={shown_url(self.bootstrap_servers)}"


def read_cluster(
    options: OptionTexts, object_options: Mapping[str, str], *, is_streaming: bool
) -> ClusterPlace | None:
    """Return the cluster that the options name, None for none.

    ``object_options`` are those of directories and stores. InvalidError for what does not go
    together, and for a stream.
    """
    servers, storage = options.text(BOOTSTRAP, None), options.text("storage", None)
    given = options.prefixed(STORAGE_PREFIX)
    if servers is None:
        names = options.given(CLUSTER_NAMES) + [STORAGE_PREFIX + name for name in given]
        if names:
            raise InvalidError(
                f"this is about a live cluster; give {BOOTSTRAP} too, or leave it out. "
                f"option={names[0]}",
                code="K103",
            )
        return None
    where = f"{BOOTSTRAP}={shown_url(servers)}"
    if is_streaming:
        raise InvalidError(
            "a stream reads a directory, not the remote tier of a live cluster; read that with "
            f"spark.read, or the topic itself with Spark's kafka source. {where}",
            code="K141",
        )
    if storage is None:
        raise InvalidError(
            "say where the brokers' plugin keeps segments: give storage, as local:PATH or "
            f"aiven:URL. {where}",
            code="K409",
        )
    if object_options:
        raise InvalidError(
            "options of an object store begin with storage. for a live cluster's remote tier. "
            f"option=object.{next(iter(object_options))} {where}",
            code="K103",
        )
    return ClusterPlace(
        servers, storage, given, options.text("commandConfig", None), options.text("store", None)
    )


EARLIEST = "earliest"
LATEST = "latest"
_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1


class Offsets(Struct, frozen=True):
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

    def require_chosen(self, name: str, chosen: Sequence[PartitionEntry], where: str) -> None:
        """Raise InvalidError when there is an offset of a partition that is not read.

        A misspelt topic would otherwise be read from where the query did not ask for.
        """
        known = {str(entry.partition): entry.partition for entry in chosen}
        for partition in sorted(self.named):
            if partition not in known.values():
                close = difflib.get_close_matches(str(partition), list(known), n=1)
                hint = f"; did you mean {close[0]}" if close else ""
                raise InvalidError(
                    f"an offset of a partition that this query does not read{hint}. Leave it out, "
                    f"or choose the partition. {name}={partition} {where}",
                    code="K155",
                )

    def require_named(self, chosen: Sequence[PartitionEntry], where: str) -> None:
        """Raise InvalidError when a partition that is read has no offset of its own."""
        for entry in chosen:
            if entry.partition not in self.named:
                raise InvalidError(
                    "the checkpoint names no offset of this partition, so that its state would be "
                    "of another point; choose others with --topic and --partition. "
                    f"partition={entry.partition} {where}",
                    code="K155",
                )


def read_offsets(name: str, text: str, *, allowed: str | None) -> Offsets:
    """Read ``earliest``, ``latest`` or a document; ``allowed`` is the only word there may be."""
    otherwise = allowed or EARLIEST
    words = (EARLIEST, LATEST) if allowed is None else (allowed,)
    if text.strip().lower() in (EARLIEST, LATEST):
        word = text.strip().lower()
        if word not in words:
            raise InvalidError(
                f"nothing would be read; {name} can be {words[0]}. {name}={text}", code="K104"
            )
        return Offsets(word, {})
    remedy = f'give {" or ".join(words)}, or {{"topic":{{"0":23,"1":-2}}}}'
    document = read_object(name, text, remedy)
    return Offsets(otherwise, parse_offsets(document, name, text, remedy))


def parse_offsets(
    document: Mapping[str, Any], name: str, text: str, remedy: str
) -> dict[TopicPartition, int]:
    """Return the offsets of ``{"topic": {"0": 23}}``; InvalidError when it is something else."""
    named: dict[TopicPartition, int] = {}
    for topic, offsets in document.items():
        if not isinstance(offsets, dict):
            raise InvalidError(
                f"no partitions for topic {topic}; {remedy}. {name}={text!r}", code="K139"
            )
        for number, offset in offsets.items():
            is_partition = re.fullmatch(r"[0-9]{1,10}", number) is not None
            if not is_partition or int(number) > INT32_MAX or not is_number(offset, -2):
                raise InvalidError(
                    f"not a partition and its offset: {number!r}: {offset!r}; {remedy}. "
                    f"{name}={text!r}",
                    code="K139",
                )
            named[TopicPartition(topic, int(number))] = offset
    return named


def is_number(value: object, least: int = 0) -> bool:
    """Say whether a value of a document is a number in ``[least, 2**63)``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INT64_MAX


INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that are read only by those who name them."""


class ReadPartitions(Struct, frozen=True):
    """What a query names: ``chooses`` None means all; what is named has to be there."""

    chooses: Callable[[TopicPartition], bool] | None = None
    topics: tuple[str, ...] = ()
    assigned: frozenset[TopicPartition] = frozenset()

    def chosen(
        self, directory: DataDirectory, where: str, *, waits: bool = False
    ) -> list[PartitionEntry]:
        """Return the partitions that are meant.

        InvalidError, with ``where``, when something that is named is not there, and when there is
        none and no caller ``waits`` for it.
        """
        available = [
            entry
            for entry in directory.partitions
            if entry.mark is None and entry.partition.topic != METADATA_TOPIC
        ]
        self._require_named([entry.partition for entry in available], where)
        takes_all = directory.is_single and self.chooses is None
        chosen = [each for each in available if takes_all or self.covers(each.partition)]
        if not chosen and not waits:
            raise InvalidError(
                f"no partition to read; give a Kafka log.dirs directory or a partition in it, and "
                f"options that choose one. {where}",
                code="K116",
            )
        return chosen

    def covers(self, partition: TopicPartition) -> bool:
        """Say whether a partition of a data directory is meant, if it is there."""
        if self.chooses is not None:
            return self.chooses(partition)
        return partition.topic not in INTERNAL_TOPICS

    def _require_named(self, available: Sequence[TopicPartition], where: str) -> None:
        known = {partition.topic for partition in available}
        for topic in self.topics:
            if topic not in known:
                close = difflib.get_close_matches(topic, sorted(known), n=1, cutoff=0.0)
                hint = f"did you mean {close[0]}" if close else "there is none"
                raise InvalidError(
                    f"no such topic is there; {hint}. topic={topic} {where}", code="K114"
                )
        for partition in sorted(self.assigned.difference(available)):
            raise InvalidError(
                f"no such partition is there. assign={partition} {where}", code="K115"
            )


def read_choice(options: OptionTexts) -> ReadPartitions:
    """Return what the options choose; InvalidError when they cannot be understood."""
    given = options.given(("assign", "subscribe", "subscribePattern"))
    if len(given) > 1:
        raise InvalidError(
            f"only one of these options can be given. options={','.join(given)}", code="K101"
        )
    if (text := options.text("subscribe", None)) is not None:
        topics = tuple(name.strip() for name in text.split(",") if name.strip())
        if not topics:
            raise InvalidError(
                f"no topic; give names with commas between. subscribe={text!r}", code="K139"
            )
        return topics_named(topics)
    if (text := options.text("subscribePattern", None)) is not None:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InvalidError(
                f"not a regular expression: {error}. subscribePattern={text!r}", code="K139"
            ) from error
        return ReadPartitions(_Matches(pattern))
    if (text := options.text("assign", None)) is not None:
        assigned = _assign(text)
        return ReadPartitions(_Among(assigned), assigned=assigned)
    return ReadPartitions()


def topics_named(topics: Collection[str]) -> ReadPartitions:
    """Return the choice of all partitions of ``topics``."""
    return ReadPartitions(_InTopics(frozenset(topics)), topics=tuple(sorted(topics)))


class _InTopics(Struct, frozen=True):
    topics: frozenset[str]

    def __call__(self, partition: TopicPartition) -> bool:
        return partition.topic in self.topics


class _Matches(Struct, frozen=True):
    pattern: re.Pattern[str]

    def __call__(self, partition: TopicPartition) -> bool:
        return self.pattern.fullmatch(partition.topic) is not None


class _Among(Struct, frozen=True):
    partitions: frozenset[TopicPartition]

    def __call__(self, partition: TopicPartition) -> bool:
        return partition in self.partitions


def _assign(text: str) -> frozenset[TopicPartition]:
    remedy = 'give {"topic":[0,1]}'
    document = read_object("assign", text, remedy)
    assigned: set[TopicPartition] = set()
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not all(is_number(each) for each in numbers):
            raise InvalidError(f"not a list of partitions; {remedy}. assign={text!r}", code="K139")
        assigned |= {TopicPartition(topic, number) for number in numbers}
    if not assigned:
        raise InvalidError(f"no partition; {remedy}. assign={text!r}", code="K139")
    return frozenset(assigned)
