"""The rank of one record, by which the winner of a key is chosen: the model of the columns.

Source: cleaning.md section 9.2, in words in :mod:`keeplast.model.topic_config`.
"""

from __future__ import annotations

from keeplast.format.record import Record, header_version
from keeplast.model.partition import NO_TIMESTAMP
from keeplast.model.topic_config import Strategy

Rank = tuple[bool, int, int]
"""Has a version, version (0 without), offset: the greatest tuple wins."""


def rank_of(record: Record, strategy: Strategy, header: bytes = b"") -> Rank:
    """Return the rank of a record whose timestamp is the effective one."""
    if strategy is Strategy.OFFSET:
        return False, 0, record.offset
    if strategy is Strategy.TIMESTAMP:
        is_dated = record.timestamp != NO_TIMESTAMP
        return is_dated, record.timestamp if is_dated else 0, record.offset
    version = header_version(record.headers, header)
    return version is not None, 0 if version is None else version, record.offset
