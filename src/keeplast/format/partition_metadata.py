"""The ``partition.metadata`` file: which topic id a partition directory belongs to.

::

    version: 0
    topic_id: lZ6vvmajTWKDBUTV6SQAtQ

No newline at the end as Kafka writes it. Lines are split at a colon and white space. Labels are not
looked at, any version from 0 on is accepted and further lines are ignored, as by Kafka. A topic id
of zero is refused: under KRaft it would make the replica a stray one. Answers to
``PartitionMetadataFile``; formats.md section 2.9.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.format.identifier import NO_ID, decode_id, encode_id

_READ_BYTES_MAX = 4096
_SEPARATOR = re.compile(r":[ \t\x0b\f]+")
_LINE_END = re.compile(r"\r\n|\n|\r")
_VERSION = re.compile(r"\+?[0-9]{1,9}\Z")


class PartitionMetadata(Struct, frozen=True):
    """The file's content; ``topic_id`` is 16 bytes."""

    topic_id: bytes
    version: int = 0


def decode(data: Buffer) -> PartitionMetadata:
    """Return version and topic id; CorruptError for an unknown version or a bad id."""
    # Only two short ASCII lines matter, so a byte that is no text must not hide them.
    lines = _LINE_END.split(bytes(data[:_READ_BYTES_MAX]).decode("utf-8", "replace"))
    version = _value(lines, 0, 0)
    if not _VERSION.match(version):
        raise CorruptError(
            "unknown version of partition metadata",
            position=0,
            expected="0 or more",
            found=repr(version),
            code="K221",
        )
    position = len(lines[0].encode()) + 1
    topic_id = decode_id(_value(lines, 1, position), position=position)
    if topic_id == NO_ID:
        raise CorruptError(
            "topic id is zero",
            position=position,
            expected="an id",
            found=encode_id(topic_id),
            code="K221",
        )
    return PartitionMetadata(topic_id, int(version))


def encode(metadata: PartitionMetadata) -> bytes:
    """Return the file's bytes: two lines of ``key: value``, as Kafka writes them."""
    return f"version: {metadata.version}\ntopic_id: {encode_id(metadata.topic_id)}".encode()


def _value(lines: list[str], index: int, position: int) -> str:
    line = lines[index] if index < len(lines) else ""
    fields = _SEPARATOR.split(line)
    if len(fields) != 2:
        raise CorruptError(
            "malformed line of partition metadata",
            position=position,
            expected="name: value",
            found=repr(line[:60]),
            code="K221",
        )
    return fields[1]
