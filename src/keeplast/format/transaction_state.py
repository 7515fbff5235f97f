"""Records of ``__transaction_state``: where every transactional id stands.

A key is an int16 type (0) and the transactional id. A value is an int16 version, then its fields:
plain in version 0, flexible in version 1, whose tags carry what version 0 does not have. No value
means that the id has expired. Other types and later versions are a newer Kafka's, shown as such.
Answers to ``TransactionLog``, ``TransactionLogKey`` and ``TransactionLogValue``.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.format.fields import NO_COUNT, FieldReader
from keeplast.model.partition import TopicPartition

TOPIC = "__transaction_state"
KEY_TYPE = 0
VERSION_MAX = 1
TOPIC_BYTES_MIN = 2
PARTITION_BYTES = 4


class TransactionStatus(IntEnum):
    """Where a transaction stands, by the coordinator's number (``TransactionState``)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TransactionStateValue(Struct, frozen=True):
    """One transactional id; -1 for what its version does not have."""

    version: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: tuple[TopicPartition, ...]
    update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = -1
    next_producer_epoch: int = -1


class UnknownState(Struct, frozen=True):
    """A value of a version that is not decoded."""

    version: int
    size_bytes: int


def decode_key(key: Buffer | None) -> str | None:
    """Return the transactional id, None for a type of key that is not known here."""
    if key is None:
        raise CorruptError(
            "record of the transaction topic without a key",
            position=0,
            expected="a key",
            found="null",
            code="K223",
        )
    fields = FieldReader(key, "key of the transaction topic")
    if fields.int16() != KEY_TYPE:
        return None
    transactional_id = fields.text()
    fields.end()
    return transactional_id


def decode_value(value: Buffer | None) -> TransactionStateValue | UnknownState | None:
    """Return where the transaction stands, None for a tombstone, or raise CorruptError."""
    if value is None:
        return None
    fields = FieldReader(value, "value of the transaction topic")
    version = fields.int16()
    if not 0 <= version <= VERSION_MAX:
        return UnknownState(version, len(value))
    fields.is_flexible = version >= 1
    producer_id, producer_epoch = fields.int64(), fields.int16()
    timeout_ms = fields.int32()
    at = fields.position
    status = fields.int8()
    if status not in set(TransactionStatus):
        raise CorruptError(
            "unknown status of a transaction",
            position=at,
            expected="0 to 7",
            found=status,
            code="K223",
        )
    partitions = _partitions(fields)
    update_timestamp, start_timestamp = fields.int64(), fields.int64()
    tags = fields.tags()
    fields.end()
    return TransactionStateValue(
        version,
        producer_id,
        producer_epoch,
        timeout_ms,
        TransactionStatus(status),
        partitions,
        update_timestamp,
        start_timestamp,
        previous_producer_id=tags[0].int64() if 0 in tags else -1,
        next_producer_id=tags[1].int64() if 1 in tags else -1,
        client_version=tags[2].int16() if 2 in tags else -1,
        next_producer_epoch=tags[3].int16() if 3 in tags else -1,
    )


def _partitions(fields: FieldReader) -> tuple[TopicPartition, ...]:
    topics = fields.count(TOPIC_BYTES_MIN)
    found: list[TopicPartition] = []
    for _ in range(max(topics, 0)):
        topic = fields.text()
        numbers = fields.count(PARTITION_BYTES)
        if numbers == NO_COUNT:
            raise CorruptError(
                "null where partitions must be",
                position=fields.position,
                expected="a count",
                found="null",
                code="K223",
            )
        found += [TopicPartition(topic, fields.int32()) for _ in range(numbers)]
        fields.tags()
    return tuple(found)
