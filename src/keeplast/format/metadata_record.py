"""Records of KRaft's metadata log, as far as they say which topics there are, and how they are set.

A record's value is a frame around one message in Kafka's flexible encoding, without a key:

    =======  ===============  ============================================
    field    encoding         content
    =======  ===============  ============================================
    frame    unsigned varint  frame version, 1
    type     unsigned varint  which message (the API key)
    version  unsigned varint  version of the message
    body                      the message's fields, then its tagged fields
    =======  ===============  ============================================

Only seven messages are decoded. Every other type, and a version of them that is not known, gives
None, because a reader of settings has no use for it. Strings are an unsigned varint (length + 1, 0
for null) and UTF-8. Answers to ``MetadataRecordSerde``, ``TopicRecord``, ``PartitionRecord``,
``RemoveTopicRecord`` and ``ConfigRecord``.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.format.fields import decode_unsigned

FRAME_VERSION = 1
TOPIC_TYPE = 2
PARTITION_TYPE = 3
PARTITION_VERSION_MAX = 2
"""Later fields differ; number and topic come first in each."""
CONFIG_TYPE = 4
REMOVE_TOPIC_TYPE = 9
UUID_BYTES = 16
STRING_BYTES_MAX = 32_767


class ResourceType(IntEnum):
    """What a configuration is about; other kinds exist and are kept as plain numbers."""

    TOPIC = 2
    BROKER = 4


class TransactionEdge(Enum):
    """Brackets around records that count together or not at all; the value is the message type."""

    BEGIN = 23
    END = 24
    ABORT = 25


class TopicRecord(Struct, frozen=True):
    """A topic was created; ``topic_id`` is 16 bytes."""

    name: str
    topic_id: bytes


class PartitionRecord(Struct, frozen=True):
    """A partition of a topic was created, or all that is known of it was written down."""

    number: int
    topic_id: bytes


class RemoveTopicRecord(Struct, frozen=True):
    """A topic was deleted, its configuration with it."""

    topic_id: bytes


class ConfigRecord(Struct, frozen=True):
    """A setting was given a value, or taken back when ``value`` is None."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


MetadataRecord = TopicRecord | PartitionRecord | RemoveTopicRecord | ConfigRecord | TransactionEdge

_EDGES = {edge.value: edge for edge in TransactionEdge}


def decode(data: Buffer) -> MetadataRecord | None:
    """Return the message in a record's value, or None when it is none of those above."""
    frame, position = decode_unsigned(data)
    if frame != FRAME_VERSION:
        raise CorruptError(
            "unknown frame of a metadata record",
            position=0,
            expected=FRAME_VERSION,
            found=frame,
            code="K223",
        )
    message_type, position = decode_unsigned(data, position)
    version, position = decode_unsigned(data, position)
    if message_type == PARTITION_TYPE and version <= PARTITION_VERSION_MAX:
        number, position = _read_fixed(data, position, 4)
        topic_id, _ = _read_fixed(data, position, UUID_BYTES)
        return PartitionRecord(int.from_bytes(number, "big", signed=True), topic_id)
    if version != 0:
        return None
    if message_type in _EDGES:
        return _EDGES[message_type]
    if message_type == TOPIC_TYPE:
        name, position = _text(data, position)
        topic_id, _ = _read_fixed(data, position, UUID_BYTES)
        return TopicRecord(name, topic_id)
    if message_type == REMOVE_TOPIC_TYPE:
        topic_id, _ = _read_fixed(data, position, UUID_BYTES)
        return RemoveTopicRecord(topic_id)
    if message_type == CONFIG_TYPE:
        kind, position = _read_fixed(data, position, 1)
        resource, position = _text(data, position)
        name, position = _text(data, position)
        value, _ = _nullable_text(data, position)
        return ConfigRecord(int.from_bytes(kind, "big", signed=True), resource, name, value)
    return None


def _text(data: Buffer, position: int) -> tuple[str, int]:
    value, end = _nullable_text(data, position)
    if value is None:
        raise CorruptError(
            "null where a metadata record needs a string",
            position=position,
            expected="a string",
            found="null",
            code="K223",
        )
    return value, end


def _nullable_text(data: Buffer, position: int) -> tuple[str | None, int]:
    length, start = decode_unsigned(data, position)
    if length == 0:
        return None, start
    if not 0 < length <= STRING_BYTES_MAX + 1:
        raise CorruptError(
            "string of a metadata record too long",
            position=position,
            expected=f"at most {STRING_BYTES_MAX} bytes",
            found=length - 1,
            code="K223",
        )
    raw, end = _read_fixed(data, start, length - 1)
    try:
        return raw.decode(), end
    except UnicodeDecodeError as error:
        raise CorruptError(
            "string of a metadata record is not text",
            position=start + error.start,
            expected="UTF-8",
            found=raw[error.start : error.start + 4].hex(),
            code="K223",
        ) from None


def _read_fixed(data: Buffer, position: int, size: int) -> tuple[bytes, int]:
    end = position + size
    if end > len(data):
        raise CorruptError(
            "metadata record ends inside a field",
            position=position,
            expected=f"{size} bytes",
            found=f"{len(data) - position} bytes",
            code="K223",
        )
    return bytes(data[position:end]), end
