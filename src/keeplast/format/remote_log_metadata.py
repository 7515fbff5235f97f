"""Records of ``__remote_log_metadata``: what brokers say of segments in the remote tier.

A value is a frame around one message in the flexible encoding, without a key:

    ========  ===============  ====================================================
    field     encoding         content
    ========  ===============  ====================================================
    frame     unsigned varint  frame version, 1
    type      unsigned varint  0 segment, 1 update of a segment, 2 partition delete
    version   unsigned varint  version of the message, 0
    body                       the message's fields, then its tagged fields
    ========  ===============  ====================================================

The rule: **what this module cannot read, a broker may not survive**, and what it cannot write back
byte for byte it has not understood. A frame, type or version that is not listed, a null value and
bytes left over are a :class:`CorruptError`. So is what a broker's constructor refuses (offsets that
descend, no leader epoch, an unknown state). Tagged fields are kept, known or not.

Answers to ``RemoteLogMetadataSerde``, ``RemoteLogSegmentMetadata`` and the classes that Kafka
generates from the message definitions; formats.md section 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from msgspec import Struct

from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer
from keeplast.format.fields import NO_COUNT, FieldReader, decode_unsigned, encode_unsigned
from keeplast.format.identifier import ID_BYTES

FRAME_VERSION = 1
MESSAGE_VERSION = 0
TXN_INDEX_EMPTY_TAG = 0
"""Tagged field of a segment since Kafka 4.0: there is no transaction index to look for."""

Tags = tuple[tuple[int, bytes], ...]
"""Tagged fields as they stand: number and content, ascending."""

_MESSAGE = "remote log metadata"
_SEGMENT_TYPE, _UPDATE_TYPE, _PARTITION_DELETE_TYPE = 0, 1, 2
_EPOCH_BYTES_MIN = 13
_OFFSETS = struct.Struct(">qqiqq")
_EPOCH = struct.Struct(">iq")
_UPDATE = struct.Struct(">iq")
_INT32 = struct.Struct(">i")
_INT8 = struct.Struct(">b")
Member = TypeVar("Member", bound=IntEnum)


class RemoteLogSegmentState(IntEnum):
    """Where a segment of the remote tier is in its life; ``RemoteLogSegmentState``."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """How far the deletion of a partition is; ``RemotePartitionDeleteState``."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """One partition of one incarnation of a topic; ``topic_id`` has 16 bytes."""

    topic: str
    topic_id: bytes
    partition: int
    tags: Tags = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """The name of a segment: never used for another one."""

    partition: TopicIdPartition
    segment_id: bytes
    tags: Tags = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leader epoch, and the first offset of the segment in it."""

    epoch: int
    start_offset: int
    tags: Tags = field(default=(), compare=False)


class RemoteLogSegment(Struct, frozen=True, kw_only=True):
    """A segment as it was announced. Both offsets are inclusive; ``epochs`` ascend, one at least.

    ``size_bytes`` is the exact size of the log file, ``max_timestamp_ms`` -1 for no record.
    """

    id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: tuple[EpochStart, ...]
    size_bytes: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    tags: Tags = ()

    @property
    def is_txn_index_empty(self) -> bool:
        """Return whether the announcement says that there is no transaction index."""
        return dict(self.tags).get(TXN_INDEX_EMPTY_TAG, b"\0") != b"\0"


class RemoteLogSegmentUpdate(Struct, frozen=True, kw_only=True):
    """A segment's next state. Custom metadata, broker and time replace those of before."""

    id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    tags: Tags = ()


class RemotePartitionDelete(Struct, frozen=True, kw_only=True):
    """The deletion of a partition's whole remote log; no broker was seen to write it."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState
    tags: Tags = ()


RemoteLogEvent = RemoteLogSegment | RemoteLogSegmentUpdate | RemotePartitionDelete


def decode(value: Buffer | None) -> RemoteLogEvent:
    """Return the message in a record's value; :class:`CorruptError` when a broker could not."""
    if value is None:
        raise CorruptError(
            f"{_MESSAGE}: null value", position=0, expected="a message", found="null", code="K442"
        )
    frame, position = decode_unsigned(value)
    kind, position = decode_unsigned(value, position)
    version, position = decode_unsigned(value, position)
    for name, expected, found in (
        ("frame version", (FRAME_VERSION,), frame),
        ("type", (_SEGMENT_TYPE, _UPDATE_TYPE, _PARTITION_DELETE_TYPE), kind),
        ("version", (MESSAGE_VERSION,), version),
    ):
        if found not in expected:
            shown = " or ".join(str(each) for each in expected)
            raise CorruptError(
                f"{_MESSAGE}: unknown {name}", position=0, expected=shown, found=found, code="K442"
            )
    fields = FieldReader(value, _MESSAGE)
    fields.position, fields.is_flexible = position, True
    read = (_segment, _update, _partition_delete)[kind]
    event: RemoteLogEvent = read(fields)
    fields.end()
    if encode(event) != bytes(value):
        raise CorruptError(
            f"{_MESSAGE}: written as no broker writes it", position=0,
            expected=encode(event).hex(), found=bytes(value).hex(), code="K442",
        )  # fmt: skip
    return event


def encode(event: RemoteLogEvent) -> bytes:
    """Return the record's value; the sender asks :func:`decode` first."""
    match event:
        case RemoteLogSegment():
            kind, body = _SEGMENT_TYPE, _segment_bytes(event)
        case RemoteLogSegmentUpdate():
            body = _id_bytes(event.id) + _UPDATE.pack(event.broker_id, event.event_timestamp_ms)
            body += _nullable_bytes(event.custom_metadata) + _INT8.pack(event.state)
            kind, body = _UPDATE_TYPE, body + _tag_bytes(event.tags)
        case RemotePartitionDelete():
            body = _partition_bytes(event.partition)
            body += _UPDATE.pack(event.broker_id, event.event_timestamp_ms)
            body += _INT8.pack(event.state) + _tag_bytes(event.tags)
            kind = _PARTITION_DELETE_TYPE
    head = (FRAME_VERSION, kind, MESSAGE_VERSION)
    return b"".join(encode_unsigned(each) for each in head) + body


def _segment(fields: FieldReader) -> RemoteLogSegment:
    start = fields.position
    segment = RemoteLogSegment(
        id=_segment_id(fields),
        start_offset=fields.int64(),
        end_offset=fields.int64(),
        broker_id=fields.int32(),
        max_timestamp_ms=fields.int64(),
        event_timestamp_ms=fields.int64(),
        epochs=_epochs(fields),
        size_bytes=fields.int32(),
        custom_metadata=fields.nullable_blob(),
        state=_state(fields, RemoteLogSegmentState),
        tags=_tags(fields),
    )
    _check_segment(segment, start)
    return segment


def _update(fields: FieldReader) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(
        id=_segment_id(fields),
        broker_id=fields.int32(),
        event_timestamp_ms=fields.int64(),
        custom_metadata=fields.nullable_blob(),
        state=_state(fields, RemoteLogSegmentState),
        tags=_tags(fields),
    )


def _partition_delete(fields: FieldReader) -> RemotePartitionDelete:
    return RemotePartitionDelete(
        partition=_topic_id_partition(fields),
        broker_id=fields.int32(),
        event_timestamp_ms=fields.int64(),
        state=_state(fields, RemotePartitionDeleteState),
        tags=_tags(fields),
    )


def _tags(fields: FieldReader) -> Tags:
    return tuple(fields.raw_tags().items())


def _topic_id_partition(fields: FieldReader) -> TopicIdPartition:
    return TopicIdPartition(fields.text(), fields.raw(ID_BYTES), fields.int32(), _tags(fields))


def _segment_id(fields: FieldReader) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_topic_id_partition(fields), fields.raw(ID_BYTES), _tags(fields))


def _epochs(fields: FieldReader) -> tuple[EpochStart, ...]:
    count = max(fields.count(_EPOCH_BYTES_MIN), NO_COUNT + 1)
    return tuple(EpochStart(fields.int32(), fields.int64(), _tags(fields)) for _ in range(count))


def _state(fields: FieldReader, kind: type[Member]) -> Member:
    position = fields.position
    value = fields.int8()
    try:
        return kind(value)
    except ValueError:
        raise CorruptError(
            f"{_MESSAGE}: unknown state", position=position, expected=f"0 to {max(kind):d}",
            found=value, code="K442",
        ) from None  # fmt: skip


def _check_segment(segment: RemoteLogSegment, position: int) -> None:
    """Raise what a broker's constructor would: its reader ends there, for good."""
    for is_so, what, found in (
        (segment.start_offset >= 0, "start offset from 0 on", segment.start_offset),
        (
            segment.end_offset >= segment.start_offset,
            f"end offset from {segment.start_offset} on",
            segment.end_offset,
        ),
        (bool(segment.epochs), "at least one leader epoch", "none"),
    ):
        if not is_so:
            raise CorruptError(
                f"{_MESSAGE}: a segment that no broker accepts", position=position, expected=what,
                found=found, code="K442",
            )  # fmt: skip


def _segment_bytes(segment: RemoteLogSegment) -> bytes:
    epochs = (
        _EPOCH.pack(each.epoch, each.start_offset) + _tag_bytes(each.tags)
        for each in segment.epochs
    )
    return b"".join(
        (
            _id_bytes(segment.id),
            _OFFSETS.pack(
                segment.start_offset,
                segment.end_offset,
                segment.broker_id,
                segment.max_timestamp_ms,
                segment.event_timestamp_ms,
            ),
            encode_unsigned(len(segment.epochs) + 1),
            *epochs,
            _INT32.pack(segment.size_bytes),
            _nullable_bytes(segment.custom_metadata),
            _INT8.pack(segment.state),
            _tag_bytes(segment.tags),
        )
    )


def _partition_bytes(partition: TopicIdPartition) -> bytes:
    return (
        _nullable_bytes(partition.topic.encode())
        + _identifier(partition.topic_id)
        + _INT32.pack(partition.partition)
        + _tag_bytes(partition.tags)
    )


def _id_bytes(name: RemoteLogSegmentId) -> bytes:
    return _partition_bytes(name.partition) + _identifier(name.segment_id) + _tag_bytes(name.tags)


def _identifier(raw: bytes) -> bytes:
    invariant(len(raw) == ID_BYTES, f"not an id of {ID_BYTES} bytes. size={len(raw)}")
    return raw


def _nullable_bytes(content: bytes | None) -> bytes:
    return encode_unsigned(0) if content is None else encode_unsigned(len(content) + 1) + content


def _tag_bytes(tags: Tags) -> bytes:
    parts = [encode_unsigned(len(tags))]
    for tag, content in tags:
        parts += (encode_unsigned(tag), encode_unsigned(len(content)), content)
    return b"".join(parts)
