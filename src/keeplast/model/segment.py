"""What decisions need to know of a segment, without its records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One segment of a log.

    ``largest_timestamp_ms`` is the last entry of the time index, or -1 when no record has a
    timestamp. ``first_timestamp_ms`` is the first record's timestamp, or the greatest of the first
    batch where its header has no other or Kafka's rules are asked for; None when it is not known,
    not needed, or absent. The index sizes are bytes in use.
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
