"""Kafka's 16-byte ids as text, and the hash that gives an id or a key its partition.

The text form of an id is URL-safe base64 without padding, 22 characters. Answers to
``org.apache.kafka.common.Uuid``; formats.md section 0.

The hash is the one that Kafka spreads things over partitions with. Answers to ``Utils.murmur2``,
``Uuid.hashCode`` and ``RemoteLogMetadataTopicPartitioner``; formats.md section 5.1.
"""

from __future__ import annotations

import base64
import re
import struct

from keeplast.errors import CorruptError, invariant
from keeplast.format.checksum import Buffer

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)
"""The id that stands for none."""

_TEXT = re.compile(r"([A-Za-z0-9_-]{22})={0,2}\Z")
_PADDING = "=="
_SHOWN_MAX = 48


def decode_id(text: str, *, position: int = 0) -> bytes:
    """Return the 16 bytes; ``position`` is put into the :class:`CorruptError`."""
    match = _TEXT.match(text)
    if match is None:
        raise CorruptError(
            "not an id",
            position=position,
            expected="22 characters of URL-safe base64",
            found=repr(text[:_SHOWN_MAX]),
            code="K221",
        )
    return base64.urlsafe_b64decode(match[1] + _PADDING)


def encode_id(raw: bytes) -> str:
    """Return the 22 characters of a 16-byte id: base64 for URLs, without padding."""
    invariant(len(raw) == ID_BYTES, f"not an id of {ID_BYTES} bytes. size={len(raw)}")
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


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
    """Return which of ``count`` partitions of ``__remote_log_metadata`` is about a partition."""
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
