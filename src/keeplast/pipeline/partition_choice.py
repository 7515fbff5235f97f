"""Which partitions of a data directory a query reads: ``assign``, ``subscribe``, a pattern, or all.

Replicas that are being deleted, moved or set aside, and the metadata log, are never meant. A
broker's own topics are read only by those who name them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from keeplast.errors import InvalidError
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, PartitionEntry
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.offset_options import is_number
from keeplast.pipeline.option_texts import OptionTexts, read_object

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics that are read only by those who name them."""


@dataclass(frozen=True, slots=True)
class ReadPartitions:
    """What a query names: ``chooses`` None means all; what is named has to be there."""

    chooses: Callable[[TopicPartition], bool] | None = None
    topics: tuple[str, ...] = ()
    assigned: frozenset[TopicPartition] = frozenset()

    def chosen(
        self, directory: DataDirectory, where: str, *, waits: bool = False
    ) -> list[PartitionEntry]:
        """Return the partitions that are meant.

        InvalidError, with ``where``, when something that is named is not there, and when there is
        none and nobody ``waits`` for it.
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
                f"options that choose one. {where}"
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
                raise InvalidError(f"no such topic is there; {hint}. topic={topic} {where}")
        for partition in sorted(self.assigned.difference(available)):
            raise InvalidError(f"no such partition is there. assign={partition} {where}")


def read_choice(options: OptionTexts) -> ReadPartitions:
    """Return what the options choose; InvalidError when they cannot be understood."""
    given = options.given(("assign", "subscribe", "subscribePattern"))
    if len(given) > 1:
        raise InvalidError(f"only one of these options can be given. options={','.join(given)}")
    if (text := options.text("subscribe", None)) is not None:
        topics = tuple(name.strip() for name in text.split(",") if name.strip())
        if not topics:
            raise InvalidError(f"no topic; give names with commas between. subscribe={text!r}")
        return topics_named(topics)
    if (text := options.text("subscribePattern", None)) is not None:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InvalidError(
                f"not a regular expression: {error}. subscribePattern={text!r}"
            ) from error
        return ReadPartitions(_Matches(pattern))
    if (text := options.text("assign", None)) is not None:
        assigned = _assign(text)
        return ReadPartitions(_Among(assigned), assigned=assigned)
    return ReadPartitions()


def topics_named(topics: Collection[str]) -> ReadPartitions:
    """Return the choice of all partitions of ``topics``."""
    return ReadPartitions(_InTopics(frozenset(topics)), topics=tuple(sorted(topics)))


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


def _assign(text: str) -> frozenset[TopicPartition]:
    remedy = 'give {"topic":[0,1]}'
    document = read_object("assign", text, remedy)
    assigned: set[TopicPartition] = set()
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not all(is_number(each) for each in numbers):
            raise InvalidError(f"not a list of partitions; {remedy}. assign={text!r}")
        assigned |= {TopicPartition(topic, number) for number in numbers}
    if not assigned:
        raise InvalidError(f"no partition; {remedy}. assign={text!r}")
    return frozenset(assigned)
