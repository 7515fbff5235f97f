"""Where a stream stands: the next offset of every partition, and which log that is an offset of.

::

    {"orders": {"0": 23}, "@": {"orders-0": {"topicId": "lFYiyUK3Tr6yiY0SHi2x8Q", "epoch": 4}}}

A name may be used again and an offset be written again; the topic's id and the leader epoch of the
record before the offset are not. So a stream that begins again from a checkpoint knows a topic that
was made anew in the meantime, and a log that was cut below the offset and has grown since. The
rule: **what a log does not say contradicts nothing**; offsets of earlier versions have no ``@``.

No topic can have the name ``@``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.identifier import decode_id, encode_id
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.offset_options import is_number, parse_offsets
from keeplast.read.log_view import LogView, last_epoch

LINEAGE = "@"
_ID, _EPOCH = "topicId", "epoch"
_REMEDY = "remove the checkpoint to begin anew"

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Of which topic an offset is, and in which leader epoch the record before it was written.

    None is not known.
    """

    topic_id: bytes | None = None
    epoch: int | None = None

    def contradiction(self, now: Lineage) -> str | None:
        """Return why what the log says ``now`` is not what it said then; None where it may be."""
        if None not in (self.topic_id, now.topic_id) and self.topic_id != now.topic_id:
            return "the topic was deleted and made anew, so that its offsets are others"
        if None not in (self.epoch, now.epoch) and self.epoch != now.epoch:
            return (
                "the log was cut below what was read of it and written again, or the topic was "
                "made anew: the record before the offset is of another leader epoch"
            )
        return None


NOTHING_KNOWN = Lineage()


def lineage_at(view: LogView, offset: int, files: FileSystem) -> Lineage:
    """Return what a log says of an offset of its own, exclusive; CorruptError as the files do."""
    return Lineage(view.topic_id, last_epoch(view, files, offset))


@dataclass(frozen=True, slots=True)
class Position:
    """The next offsets to read, and what was known of them."""

    offsets: Offsets
    lineages: Mapping[TopicPartition, Lineage]

    def lineage(self, partition: TopicPartition) -> Lineage:
        """Return what was known of a partition's offset."""
        return self.lineages.get(partition, NOTHING_KNOWN)

    def as_document(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        document: dict[str, dict[str, Any]] = {}
        for partition in sorted(self.offsets):
            its = document.setdefault(partition.topic, {})
            its[str(partition.partition)] = self.offsets[partition]
        known: dict[str, dict[str, Any]] = {}
        for partition in sorted(self.offsets):
            lineage, said = self.lineage(partition), dict[str, Any]()
            if lineage.topic_id is not None:
                said[_ID] = encode_id(lineage.topic_id)
            if lineage.epoch is not None:
                said[_EPOCH] = lineage.epoch
            if said:
                known[str(partition)] = said
        return {**document, LINEAGE: known} if known else document


def read_position(document: Mapping[str, Any]) -> Position:
    """Return what Spark kept; InvalidError when it is something else."""
    text = str(document)
    plain = {topic: its for topic, its in document.items() if topic != LINEAGE}
    offsets = parse_offsets(plain, "offset", text, _REMEDY)
    known = document.get(LINEAGE, {})
    names = {str(partition): partition for partition in offsets}
    if not isinstance(known, dict) or not names.keys() >= known.keys():
        raise InvalidError(f"not what is known of its offsets; {_REMEDY}. offset={text!r}")
    return Position(offsets, {names[name]: _lineage(said, text) for name, said in known.items()})


def _lineage(said: object, text: str) -> Lineage:
    if not isinstance(said, dict):
        raise InvalidError(f"not what is known of an offset; {_REMEDY}. offset={text!r}")
    topic_id, epoch = said.get(_ID), said.get(_EPOCH)
    try:
        found = None if topic_id is None else decode_id(str(topic_id))
    except CorruptError as error:
        raise InvalidError(f"{error}; {_REMEDY}. offset={text!r}") from None
    if epoch is not None and not is_number(epoch):
        raise InvalidError(f"not a leader epoch: {epoch!r}; {_REMEDY}. offset={text!r}")
    return Lineage(found, epoch)
