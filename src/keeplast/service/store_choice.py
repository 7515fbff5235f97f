"""Which partitions of a store are meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from keeplast.config.choice import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.store.tiered_store import TieredStore

SHOWN_MAX = 10


def choose_partitions(opened: TieredStore, choice: PartitionChoice) -> list[TopicPartition]:
    """Return the chosen partitions, of an empty store none without a choice.

    InvalidError when something was named and nothing in the store fits.
    """
    known = opened.partitions()
    found = [each for each in known if choice.includes(each)]
    if found or not (choice.topics or choice.partitions):
        return found
    names = ", ".join(str(each) for each in known[:SHOWN_MAX]) or "none"
    raise InvalidError(
        "no such partition in the store; correct --topic and --partition, or take it in "
        f"with keeplast tier import. topics={list(choice.topics)} "
        f"partitions={list(choice.partitions)} there={names}"
    )


def choose_topics(opened: TieredStore, topics: Collection[str]) -> list[TopicPartition]:
    """Return the partitions of ``topics``, all without any; InvalidError where one is not there."""
    there: Sequence[TopicPartition] = opened.partitions()
    strange = sorted(set(topics) - {each.topic for each in there})
    if strange:
        raise InvalidError(f"no such topic in the store; correct --topic. topic={strange[0]}")
    return [each for each in there if not topics or each.topic in topics]
