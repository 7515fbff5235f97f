"""The hash by which Kafka spreads things over partitions.

Answers to ``Utils.murmur2``, ``Uuid.hashCode`` and ``RemoteLogMetadataTopicPartitioner``;
formats.md section 5.1.
"""

from __future__ import annotations

import struct

from keeplast.errors import invariant
from keeplast.format.checksum import Buffer
from keeplast.format.identifier import ID_BYTES

SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_ROTATION = 24
_MASK_32 = (1 << 32) - 1
_POSITIVE = (1 << 31) - 1
_HASH_FACTOR = 31
_ID = struct.Struct(">QQ")
_WORD = struct.Struct("<I")


def murmur2(data: Buffer) -> int:
    """Return the hash of ``data``, from 0 to 2^32 - 1."""
    raw = bytes(data)
    value = (SEED ^ len(raw)) & _MASK_32
    whole = len(raw) & ~3
    for (word,) in _WORD.iter_unpack(raw[:whole]):
        value = (value * _MULTIPLIER & _MASK_32) ^ _mix(word)
    if whole < len(raw):
        value ^= int.from_bytes(raw[whole:], "little")
        value = value * _MULTIPLIER & _MASK_32
    value ^= value >> 13
    value = value * _MULTIPLIER & _MASK_32
    return value ^ value >> 15


def metadata_partition(topic_id: bytes, partition: int, count: int) -> int:
    """Return which of ``count`` partitions of ``__remote_log_metadata`` tells of a partition."""
    invariant(len(topic_id) == ID_BYTES and count > 0, f"no partition of {count}")
    most, least = _ID.unpack(topic_id)
    value = 1
    for part in (_fold(least), _fold(most), partition & _MASK_32):
        value = (_HASH_FACTOR * value + part) & _MASK_32
    return (murmur2(value.to_bytes(4, "big")) & _POSITIVE) % count


def _mix(word: int) -> int:
    word = word * _MULTIPLIER & _MASK_32
    word ^= word >> _ROTATION
    return word * _MULTIPLIER & _MASK_32


def _fold(value: int) -> int:
    return (value ^ value >> 32) & _MASK_32
