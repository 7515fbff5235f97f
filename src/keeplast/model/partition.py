"""Which log is meant, where in it, and what decisions know of its segments. Pure values.

A log is a topic and a partition number. Sentinels and arithmetic of offsets, timestamps and
sequences are as Kafka's formats use them. Ranges are half-open; a name that starts with ``last_``
is inclusive. Decisions know of a segment no records, and of a log what each part of it is.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from keeplast.errors import InvalidError

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
RELATIVE_OFFSET_MAX = INT32_MAX
"""Greatest distance between a segment's base offset and any offset in it, inclusive."""


def wrap_int64(value: int) -> int:
    """Return ``value`` as a two's complement 64-bit number, as a Java ``long`` would hold it."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number ``increment`` (>= 0) later; wraps from 2^31-1 to 0."""
    if sequence > INT32_MAX - increment:
        return increment - (INT32_MAX - sequence) - 1
    return sequence + increment


def range_text(start: int, end: int) -> str:
    """Return the offsets ``[start, end)`` as a person reads a range, both ends in it."""
    if end <= start:
        return f"no offset from {start} on"
    return f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"


NO_HORIZON = -(1 << 63)
"""In place of a delete horizon to set: none is, and no batch is written again for one."""


def delete_horizon(now_ms: int, delete_retention_ms: int) -> int:
    """Return ``now_ms + delete_retention_ms`` in 64-bit arithmetic; negative means no horizon.

    Source: ``MemoryRecords.filterTo``; cleaning.md section 3.6 on overflow.
    """
    return wrap_int64(now_ms + delete_retention_ms)


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Return the producer sequence ``decrement`` records before; INT32_MAX comes before 0.

    Kafka: ``DefaultRecordBatch.decrementSequence``.
    """
    return (sequence - decrement) % (INT32_MAX + 1)


TOPIC_CHARS_MAX = 249
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}\Z")


def is_topic_name(text: str) -> bool:
    """Say whether a broker takes ``text`` as a topic's name.

    Kafka: ``org.apache.kafka.common.internals.Topic.validate``.
    """
    return _TOPIC.match(text) is not None and text not in (".", "..")


class TopicPartition(Struct, frozen=True, order=True):
    """One partition of a topic; prints as Kafka names its directory, ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the directory name of the partition."""
        return f"{self.topic}-{self.partition}"

    def checked(self) -> TopicPartition:
        """Return itself; InvalidError when no broker has such a partition.

        For names that were read somewhere, before they become part of a path or a key.
        """
        if not is_topic_name(self.topic):
            found = self.topic[:TOPIC_CHARS_MAX]
            raise InvalidError(
                f"not the name of a topic: 1 to {TOPIC_CHARS_MAX} of the characters "
                f"a-z A-Z 0-9 . _ -, and neither one dot nor two. topic={found!r}",
                code="K107",
            )
        if not 0 <= self.partition <= INT32_MAX:
            raise InvalidError(
                f"a partition's number is 0 to {INT32_MAX}. partition={self.partition}", code="K106"
            )
        return self


class LogRegion(StrEnum):
    """What a part of a log is to the next round, in the order of offsets; KIP-1272's regions.

    ``UNCLEANABLE`` is younger than ``min.compaction.lag.ms``, or held; ``UNSTABLE`` lies at or
    above the last stable offset; ``MARGIN`` stays as brokers copied it. What is ``HIDDEN`` lies in
    the remote tier and is not served.
    """

    CLEAN = "clean"
    DIRTY = "dirty"
    UNCLEANABLE = "uncleanable"
    UNSTABLE = "unstable"
    MARGIN = "margin"
    ACTIVE = "active"
    BROKERS_ONLY = "brokers_only"
    HIDDEN = "hidden"

    @property
    def words(self) -> str:
        """Return what people are shown."""
        return "held back" if self is LogRegion.UNCLEANABLE else self.value.replace("_", " ")


class SegmentSummary(Struct, frozen=True):
    """One segment of a log.

    ``largest_timestamp_ms`` is the last entry of the time index, or -1 when no record has a
    timestamp. ``first_timestamp_ms`` is the first record's timestamp. It is the greatest of the
    first batch where its header has no other or Kafka's rules are asked for. None when it is not
    known, not needed, or absent. The index sizes are bytes in use.
    """

    base_offset: int
    size_bytes: int
    mtime_ms: int
    largest_timestamp_ms: int
    offset_index_bytes: int
    time_index_bytes: int
    first_timestamp_ms: int | None = None

    @property
    def age_timestamp_ms(self) -> int:
        """Return the largest timestamp, or the file's modification time when there is none."""
        return self.largest_timestamp_ms if self.largest_timestamp_ms >= 0 else self.mtime_ms
