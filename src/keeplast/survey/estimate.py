"""Says from a sample of a log about what a round would bring; nothing here is exact.

Counts of the sample are scaled by bytes, section by section. A record of the dirty section goes
unless it is its key's last, so what matters is the number of distinct keys
(:mod:`keeplast.cleaner.distinct`, which says what it cannot see). A record of the clean section
goes when its key occurs in the dirty one. Where the sample has too few recurring keys, everything
that depends on them is None. A log that is small enough to be sampled whole gives the true numbers
of records, keys and superseded records, while a bounded map does not fill. Always guessed:
transaction markers are taken to stay, and tombstones to be superseded as often as other records.
Records that go are taken to be spread evenly over batches, which gives the bytes.

A sample that meets damage gives no estimate: a plan is no check, and ``--exact`` says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.distinct import DistinctKeys, fit_distinct
from keeplast.cleaner.plan import RoundPlan
from keeplast.cleaner.shapes import (
    PACK_SECONDS_A_BYTE,
    UNPACK_SECONDS_A_BYTE,
    index_seconds,
    key_map_bytes,
    rewrite_seconds,
)
from keeplast.columns import batches as t
from keeplast.model.topic_config import Strategy
from keeplast.survey.report import Estimate
from keeplast.survey.sample import Sample, SectionSample


class _Section(Struct, frozen=True):
    """A section scaled to its whole size; ``goes`` is the share of its keyed records that go."""

    sample: SectionSample
    goes: float
    scale: float

    @property
    def records(self) -> float:
        """Return the records the second pass reads: markers count, aborted data does not."""
        return (self.sample.records + self.sample.control) * self.scale

    @property
    def superseded(self) -> float:
        """Return the records with a later one of their key."""
        return sum(map(len, self.sample.key_parts)) * self.scale * self.goes

    @property
    def expired(self) -> float:
        """Return the tombstones that go because their horizon has passed."""
        return self.sample.expired * self.scale * (1 - self.goes)

    @property
    def tombstones_kept(self) -> float:
        """Return how many tombstones stay, by the sample: not expired and not superseded."""
        return (self.sample.tombstones - self.sample.expired) * self.scale * (1 - self.goes)

    @property
    def records_kept(self) -> float:
        """Return how many records stay, by the sample; at least 0."""
        gone = self.superseded + self.expired + self.sample.keyless * self.scale
        return max(self.records - gone, 0)

    @property
    def share_kept(self) -> float:
        """Return which share of the records in batches of data stays."""
        kept = self.records_kept / self.scale - self.sample.control
        return min(max(kept / max(self.sample.records, 1), 0), 1)

    def codec_seconds(self, seconds_a_byte: Sequence[float]) -> float:
        """Return what all that is compressed takes at so much a byte, by codec."""
        unpacked = self.sample.unpacked_bytes.tolist()
        return float(self.scale * sum(map(mul, unpacked, seconds_a_byte)))

    @property
    def bytes_kept(self) -> float:
        """Return the bytes that stay: a batch keeps its header while any of its records stays."""
        sample, share = self.sample, self.share_kept
        batches = sample.batches
        sizes, counts = batches[:, 0].astype(float), batches[:, 1].astype(float)
        headers = np.minimum(sizes, t.HEADER_BYTES)
        # A batch of one record goes with it; one of many all but never goes as a whole.
        lasting = headers * (1 - (1 - share) ** counts)
        parsed = float(((sizes - headers) * share + lasting).sum())
        unparsed = sample.read_bytes - sample.aborted_bytes - float(sizes.sum())
        return (parsed + unparsed) * self.scale


def estimate_round(sample: Sample, plan: RoundPlan) -> Estimate | None:
    """Return what a round of ``plan`` would bring; None when nothing of a section was read."""
    if any(part.size_bytes and not part.read_bytes for part in (sample.clean, sample.dirty)):
        return None
    dirty_keys = sample.dirty.keys
    keys, windows = _windows_of_keys(dirty_keys)
    curve = fit_distinct(windows)
    scale = _scale(sample.dirty)
    more = scale - 1
    keyed = len(dirty_keys) * scale
    distinct = min(curve.after(more), keyed)
    found = _share_found(sample.clean.keys[:, 0], keys, windows, curve, more)
    indexed = read = 1.0
    capacity = plan.key_capacity
    if capacity is not None and distinct > capacity:
        indexed = _reach(sample.dirty, curve, capacity) / scale
        read = _to_segment_end(plan, indexed)
        found *= capacity / distinct
        distinct = float(capacity)
    goes = max(keyed * indexed - distinct, 0) / max(keyed * read, 1)
    dirty = _Section(sample.dirty, goes, scale * read)
    clean = _Section(sample.clean, found, _scale(sample.clean))
    estimate = _estimate(plan, clean, dirty, distinct, indexed, read)
    if curve.is_known(more):
        return estimate
    # The sample says nothing about distinct keys.
    return replace(
        estimate,
        messages_written=None,
        bytes_written=None,
        tombstones_written=None,
        superseded_records=None,
        tombstone_records=None,
        distinct_keys=None,
        key_map_bytes=None,
    )


def _scale(part: SectionSample) -> float:
    return part.size_bytes / part.read_bytes if part.read_bytes else 1.0


def _windows_of_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distinct keys, ascending, and in how many windows each occurs."""
    if not np.count_nonzero(keys[1:, 1] != keys[:-1, 1]):
        found = np.unique(keys[:, 0])
        return found, np.ones(len(found), np.int64)
    ordered = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    is_new = np.ones(len(ordered), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    found = ordered[is_new, 0]
    is_first = np.ones(len(found), bool)
    is_first[1:] = found[1:] != found[:-1]
    return found[is_first], np.diff(np.flatnonzero(is_first), append=len(found))


def _reach(dirty: SectionSample, curve: DistinctKeys, capacity: int) -> float:
    """Return how many samples of this size hold ``capacity`` distinct keys."""
    if capacity <= curve.seen:
        keys = dirty.keys
        ordered = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:, 0] != ordered[:-1, 0]
        # How many keys are known after the first window, after two, and so on.
        known = np.cumsum(np.bincount(ordered[is_first, 1].astype(np.int64)))
        steps = np.arange(len(known) + 1) / len(known)
        return float(np.interp(capacity, np.concatenate(([0], known)), steps))
    low, high = 0.0, dirty.size_bytes / dirty.read_bytes - 1
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if curve.after(middle) > capacity else (middle, high)
    return 1 + low


def _to_segment_end(plan: RoundPlan, share: float) -> float:
    """Return a share of the dirty section rounded up to where a segment ends, as a round reads."""
    ends = (
        np.cumsum([segment.size_bytes for segment in plan.dirty_segments()]) - plan.start_position
    )
    at = int(np.searchsorted(ends, share * ends[-1]))
    return float(ends[min(at, len(ends) - 1)] / ends[-1])


def _share_found(
    clean_keys: NDArray[np.uint64],
    dirty_keys: NDArray[np.uint64],
    windows: NDArray[np.int64],
    curve: DistinctKeys,
    more: float,
) -> float:
    """Return which part of the clean section's records have a key of the dirty section.

    The sample of the dirty section does not show some of those keys. For each that it shows once
    there are as many of them as among the dirty keys themselves.
    """
    if not len(clean_keys) or not len(dirty_keys):
        return 0.0
    at = np.minimum(np.searchsorted(dirty_keys, clean_keys), len(dirty_keys) - 1)
    is_hit = dirty_keys[at] == clean_keys
    singles = int((is_hit & (windows[at] == 1)).sum())
    unseen = singles * curve.unseen_per_single(more)
    return min((int(is_hit.sum()) + unseen) / len(clean_keys), 1.0)


def _estimate(
    plan: RoundPlan,
    clean: _Section,
    dirty: _Section,
    distinct: float,
    indexed: float,
    read: float,
) -> Estimate:
    both = (clean, dirty)
    indexed_bytes = dirty.sample.size_bytes * indexed
    bytes_read = clean.sample.size_bytes + dirty.sample.size_bytes * read
    records = clean.records + dirty.records
    ranked_records = dirty.records
    if plan.topic.strategy is not Strategy.OFFSET:
        # The clean section is read once more, because a clean record can win.
        indexed_bytes += clean.sample.size_bytes
        ranked_records += clean.records
    bytes_written = sum(part.bytes_kept for part in both if part.sample.read_bytes)
    superseded = sum(part.superseded for part in both)
    unpacking = [part.codec_seconds(UNPACK_SECONDS_A_BYTE) for part in both]
    indexing = index_seconds(indexed_bytes, ranked_records, distinct)
    indexing += unpacking[1] * indexed / read
    if plan.topic.strategy is not Strategy.OFFSET:
        indexing += unpacking[0]
    # A segment that loses nothing is left alone.
    rewriting = rewrite_seconds(bytes_read, records, bytes_written if superseded else 0)
    rewriting += sum(unpacking)
    if superseded:
        rewriting += sum(p.share_kept * p.codec_seconds(PACK_SECONDS_A_BYTE) for p in both)
    return Estimate(
        sampled_bytes=sum(part.sample.read_bytes for part in both),
        sampled_records=sum(part.sample.records for part in both),
        messages_read=round(records),
        messages_written=round(sum(part.records_kept for part in both)),
        bytes_read=round(bytes_read),
        bytes_written=round(bytes_written),
        tombstones_read=round(sum(part.sample.tombstones * part.scale for part in both)),
        tombstones_written=round(sum(part.tombstones_kept for part in both)),
        superseded_records=round(superseded),
        tombstone_records=round(sum(part.expired for part in both)),
        aborted_records=round(sum(part.sample.aborted * part.scale for part in both)),
        keyless_records=round(sum(part.sample.keyless * part.scale for part in both)),
        distinct_keys=round(distinct),
        key_map_bytes=key_map_bytes(plan, round(distinct)),
        index_seconds=round(indexing, 3),
        seconds=round(indexing + rewriting, 3),
    )
