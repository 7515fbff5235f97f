"""Offsets as options of a query, in the syntax of Spark's Kafka source.

``earliest``, ``latest``, or a document such as ``{"topic": {"0": 23, "1": -2}}``, in which -2 is
earliest and -1 is latest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keeplast.errors import InvalidError
from keeplast.log.data_directory import PartitionEntry
from keeplast.model.offsets import INT32_MAX, INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.option_texts import read_object

EARLIEST = "earliest"
LATEST = "latest"
_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1


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

    def require_chosen(self, name: str, chosen: Sequence[PartitionEntry], where: str) -> None:
        """Raise InvalidError when there is an offset of a partition that is not read.

        A misspelt topic would otherwise be read from where nobody asked for.
        """
        known = {str(entry.partition): entry.partition for entry in chosen}
        for partition in sorted(self.named):
            if partition not in known.values():
                close = difflib.get_close_matches(str(partition), list(known), n=1)
                hint = f"; did you mean {close[0]}" if close else ""
                raise InvalidError(
                    f"an offset of a partition that this query does not read{hint}. Leave it out, "
                    f"or choose the partition. {name}={partition} {where}"
                )

    def require_named(self, chosen: Sequence[PartitionEntry], where: str) -> None:
        """Raise InvalidError when a partition that is read has no offset of its own."""
        for entry in chosen:
            if entry.partition not in self.named:
                raise InvalidError(
                    "the checkpoint names no offset of this partition, so that its state would be "
                    "of another point; choose others with --topic and --partition. "
                    f"partition={entry.partition} {where}"
                )


def read_offsets(name: str, text: str, *, allowed: str | None) -> Offsets:
    """Read ``earliest``, ``latest`` or a document; ``allowed`` is the only word there may be."""
    otherwise = allowed or EARLIEST
    words = (EARLIEST, LATEST) if allowed is None else (allowed,)
    if text.strip().lower() in (EARLIEST, LATEST):
        word = text.strip().lower()
        if word not in words:
            raise InvalidError(f"nothing would be read; {name} can be {words[0]}. {name}={text}")
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
            raise InvalidError(f"no partitions for topic {topic}; {remedy}. {name}={text!r}")
        for number, offset in offsets.items():
            is_partition = re.fullmatch(r"[0-9]{1,10}", number) is not None
            if not is_partition or int(number) > INT32_MAX or not is_number(offset, -2):
                raise InvalidError(
                    f"not a partition and its offset: {number!r}: {offset!r}; {remedy}. "
                    f"{name}={text!r}"
                )
            named[TopicPartition(topic, int(number))] = offset
    return named


def is_number(value: object, least: int = 0) -> bool:
    """Say whether a value of a document is a number in ``[least, 2**63)``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INT64_MAX
