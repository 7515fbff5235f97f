"""The rank of one record, by which the winner of a key is chosen (KIP-280).

The value behind the columns of :mod:`keeplast.columns.versions`, for readers that hold records; a
test binds the two. Source: cleaning.md section 9.2, in words in :mod:`keeplast.model.strategy`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from keeplast.format.record import Header, Record
from keeplast.model.offsets import NO_TIMESTAMP
from keeplast.model.strategy import Strategy

Rank = tuple[bool, int, int]
"""Has a version, version (0 without), offset: the greatest tuple wins."""

_VERSION = struct.Struct(">q")


def header_version(headers: Sequence[Header], name: bytes) -> int | None:
    """Return the version in the last header ``name``; None without one, or not of eight bytes."""
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None or len(value) != _VERSION.size:
        return None
    version: int = _VERSION.unpack(value)[0]
    return version


def rank_of(record: Record, strategy: Strategy, header: bytes = b"") -> Rank:
    """Return the rank of a record whose timestamp is the effective one."""
    if strategy is Strategy.OFFSET:
        return False, 0, record.offset
    if strategy is Strategy.TIMESTAMP:
        is_dated = record.timestamp != NO_TIMESTAMP
        return is_dated, record.timestamp if is_dated else 0, record.offset
    version = header_version(record.headers, header)
    return version is not None, 0 if version is None else version, record.offset
