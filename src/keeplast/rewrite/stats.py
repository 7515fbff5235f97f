"""What tasks count: records by the reason they went, Kafka's counters, what filters saved.

Values only; each is added to its like, and what is no count is the greater of the two.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from keeplast.model.document import shown_fields


class Reasons(Struct, frozen=True):
    """Records that went and the bytes they held uncompressed, by the reason they went.

    ``superseded`` counts tombstones too when a later record has their key.
    """

    superseded_records: int = 0
    superseded_bytes: int = 0
    tombstone_records: int = 0
    tombstone_bytes: int = 0
    aborted_records: int = 0
    aborted_bytes: int = 0
    keyless_records: int = 0
    keyless_bytes: int = 0
    marker_records: int = 0
    marker_bytes: int = 0


class Stats(Struct, frozen=True):
    """Counters of one round. Names and meaning are those of Kafka's ``CleanerStats``.

    ``map_bytes_read`` is exact unless the key map filled. Seconds are wall time. ``total_seconds``
    ends when the swap is durable, as Kafka's does. ``removal_seconds`` is what it took after that
    to remove the replaced files, which Kafka leaves to a timer. ``versions_missing`` and
    ``versions_malformed`` count the records that the strategy ``header`` ranked without a version,
    by whether the header is there. Those are the dirty ones, and the clean ones where it read them.
    ``buffer_utilization`` is the share of the key map's slots in use at the end of the round, None
    for a map without bound. ``batches_decompressed`` counts a batch each time that a pass unpacked
    it, ``batches_reused`` each time that what an earlier pass had unpacked was still in memory.
    Their bytes are those of the records, uncompressed.
    """

    map_messages_read: int = 0
    map_bytes_read: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    messages_written: int = 0
    bytes_written: int = 0
    invalid_messages_read: int = 0
    tombstones_read: int = 0
    tombstones_written: int = 0
    batches_passed_through: int = 0
    batches_rebuilt: int = 0
    batches_dropped: int = 0
    batches_emptied: int = 0
    segments_left_alone: int = 0
    copied_bytes: int = 0
    distinct_keys: int = 0
    buffer_utilization: float | None = None
    index_seconds: float = 0.0
    clean_seconds: float = 0.0
    total_seconds: float = 0.0
    removal_seconds: float = 0.0
    peak_rss_bytes: int = 0
    versions_missing: int = 0
    versions_malformed: int = 0
    batches_decompressed: int = 0
    decompressed_bytes: int = 0
    batches_reused: int = 0
    reused_bytes: int = 0


class FilterStats(Struct, frozen=True):
    """What the filters of clean segments saved a round on the tier, and what they cost.

    ``skipped_*`` of ``clean_*`` were neither read nor rewritten; ``unranked_bytes`` were not read
    for their versions. ``found_bytes`` is the size of the filters that were found, and
    ``filtered_bytes`` that of their segments; ``bytes_read`` is what was read of filters.
    ``damaged`` ones were not used, and made again with their segments.
    """

    clean_segments: int = 0
    clean_bytes: int = 0
    skipped_segments: int = 0
    skipped_bytes: int = 0
    unranked_bytes: int = 0
    found: int = 0
    found_bytes: int = 0
    filtered_bytes: int = 0
    damaged: int = 0
    bytes_read: int = 0
    written: int = 0
    bytes_written: int = 0

    def as_document(self) -> dict[str, object]:
        """Return what a document shows: the counters, and the shares."""
        return {
            **shown_fields(self), "share_skipped": self.share_skipped,
            "share_of_segments": self.share_of_segments,
        }  # fmt: skip

    @property
    def share_skipped(self) -> float | None:
        """Return which share of the clean bytes was skipped, None without any."""
        return self.skipped_bytes / self.clean_bytes if self.clean_bytes else None

    @property
    def share_of_segments(self) -> float | None:
        """Return filter bytes by segment bytes, None when no filter was found."""
        return self.found_bytes / self.filtered_bytes if self.filtered_bytes else None

    def __add__(self, other: FilterStats) -> FilterStats:
        """Return what two waves or chunks saved and cost together."""
        return add_counters(self, other) or self


_GREATEST = frozenset({"peak_rss_bytes", "buffer_utilization"})
_Counters = TypeVar("_Counters", Stats, Reasons, FilterStats)


def add_counters(first: _Counters | None, second: _Counters | None) -> _Counters | None:
    """Return two sets of counters as one; of what is no count, the greater."""
    if first is None or second is None:
        return second if first is None else first
    values = {}
    for name in first.__struct_fields__:
        a, b = getattr(first, name), getattr(second, name)
        if a is None or b is None:
            values[name] = b if a is None else a
        else:
            values[name] = max(a, b) if name in _GREATEST else a + b
    return type(first)(**values)
