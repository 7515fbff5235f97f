"""Where the tombstones and markers of a log stand on their way out.

    no horizon yet --a round stamps it--> retained until then --now >= horizon--> removable

Removable ones go in the next round that rewrites their batch (cleaning.md section 3.6). Batch
headers show the horizons, and which batches are markers. Only a batch's records show how many
tombstones it holds, and whether one without a horizon holds any. So there are two counts, and
:attr:`Stages.counts_records` says which one it is.

The headers of a whole log also show its codecs. Every byte of the log is read for them, so only a
caller that shows them asks. No record is looked into and no CRC is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import Struct

from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.format.compression import Codec
from keeplast.inspect.verified_log import WINDOW_BYTES, VerifiedLog
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail
from keeplast.log.windows import WindowBuffers
from keeplast.model.hold import ReaderWait
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.tombstone_horizons import FoundHorizons, read_horizons

Progressed = Callable[[int], None]
"""Hears how many bytes of the log have been gone through since the last call."""
SEEDS = np.array((3, 5), np.uint64)


class StageCounts(Struct, frozen=True):
    """How many have no horizon yet (None: not known), are retained until theirs, and are removable.

    ``first_ms`` and ``last_ms`` are the first and the last horizon of those that are retained.
    """

    unstamped: int | None
    retained: int
    removable: int
    first_ms: int | None = None
    last_ms: int | None = None


class Stages(Struct, frozen=True):
    """Tombstones and markers by stage: as records, or as the batches that hold them.

    A batch keeps its horizon when its last tombstone is superseded, so that batches may be more
    than there are tombstones left.
    """

    tombstones: StageCounts
    markers: StageCounts
    counts_records: bool


def stages_by_headers(
    listing: PartitionFiles,
    tail: Tail,
    files: FileSystem,
    now_ms: int,
    progressed: Progressed,
    readers: ReaderWait | None = None,
) -> Stages:
    """Count batches; reads headers alone. CorruptError where a batch's size cannot be right.

    What ``readers`` are waited for has its time when the wait is over.
    """
    tombstones: dict[int, int] = {}
    markers: dict[int, int] = {}
    unstamped = 0
    buffers = WindowBuffers()
    for segment in _whole_segments(listing, tail):
        found = read_horizons(segment, files, buffers)
        for kind, horizons in ((tombstones, found.tombstones), (markers, found.markers)):
            for horizon_ms, count in horizons.items():
                _add(kind, readers, horizon_ms, found.ends[horizon_ms], count)
        unstamped += found.unstamped_markers
        progressed(segment.size_bytes)
    return stages_of(FoundHorizons(tombstones, markers, unstamped), now_ms)


def stages_of(found: FoundHorizons, now_ms: int) -> Stages:
    """Return what the headers that were read show, as batches."""
    return Stages(
        _counts(None, found.tombstones, now_ms),
        _counts(found.unstamped_markers, found.markers, now_ms),
        counts_records=False,
    )


def stages_by_records(
    log: VerifiedLog, now_ms: int, progressed: Progressed, readers: ReaderWait | None = None
) -> Stages:
    """Count records; reads and checks the whole log. CorruptError where that is not possible."""
    tombstones: dict[int, int] = {}
    markers: dict[int, int] = {}
    unstamped = [0, 0]
    for part in log.parts(SEEDS, TopicConfig(), checks_crc=True):
        is_tombstone = part.flags & (HAS_KEY | HAS_VALUE) == HAS_KEY
        is_control = part.table[:, t.ATTRIBUTES] & t.CONTROL != 0
        counts = np.bincount(part.batch_of[is_tombstone], minlength=len(part.table))
        counts[is_control] = part.table[is_control, t.COUNT]
        for i in np.flatnonzero(counts).tolist():
            horizons = markers if is_control[i] else tombstones
            if part.table[i, t.ATTRIBUTES] & t.DELETE_HORIZON and part.table[i, t.MAGIC] == 2:
                horizon_ms, last = part.table[i, [t.BASE_TIMESTAMP, t.LAST_OFFSET]].tolist()
                _add(horizons, readers, horizon_ms, last, int(counts[i]))
            else:
                unstamped[int(is_control[i])] += int(counts[i])
        progressed(int(part.table[:, t.SIZE].sum()))
    return Stages(
        _counts(unstamped[0], tombstones, now_ms),
        _counts(unstamped[1], markers, now_ms),
        counts_records=True,
    )


def _whole_segments(listing: PartitionFiles, tail: Tail) -> list[SegmentFiles]:
    """Return all segments; the active one ends where its last sound batch does."""
    closed, active = listing.segments[:-1], listing.active
    return (
        [*closed, replace(active, size_bytes=tail.valid_bytes)] if tail.valid_bytes else [*closed]
    )


def _add(
    times: dict[int, int], readers: ReaderWait | None, horizon_ms: int, last_offset: int, count: int
) -> None:
    """Count what may go from a horizon on, or once readers are waited for no more."""
    at_ms = horizon_ms if readers is None else readers.ends_at(horizon_ms, last_offset)
    times[at_ms] = times.get(at_ms, 0) + count


def _counts(unstamped: int | None, horizons: Mapping[int, int], now_ms: int) -> StageCounts:
    later = [horizon for horizon in horizons if horizon > now_ms]
    retained = sum(horizons[horizon] for horizon in later)
    return StageCounts(
        unstamped,
        retained,
        sum(horizons.values()) - retained,
        min(later, default=None),
        max(later, default=None),
    )


_NAMES = {each.value: each.name.lower() for each in Codec}


class SegmentHeaders(Struct, frozen=True):
    """The batches of one segment; ``codecs`` counts them by codec.

    ``stamped`` are those with a delete horizon: the first horizon is ``first_horizon_ms`` and the
    last ``last_horizon_ms``, None without any.
    """

    batches: int
    records: int
    codecs: Mapping[str, int]
    stamped: int
    first_horizon_ms: int | None
    last_horizon_ms: int | None


class LogHeaders(Struct, frozen=True):
    """What all headers of a log show; ``segments`` by base offset."""

    segments: Mapping[int, SegmentHeaders]
    stages: Stages


def scan_headers(path: Path, files: FileSystem, now_ms: int, progressed: Progressed) -> LogHeaders:
    """Read the headers of the partition directory ``path`` once, without its lock.

    ``progressed`` hears of the bytes of the log, and what it raises ends the scan. CorruptError
    where a batch's size cannot be right, OSError where files go meanwhile.
    """
    log = VerifiedLog(path, files)
    buffers = WindowBuffers(WINDOW_BYTES)
    segments, staged = {}, FoundHorizons()
    for segment in log.segments:
        batches = records = stamped = 0
        codecs: Counter[str] = Counter()
        horizons: list[int] = []
        for window in log.windows_of(segment, buffers, checks_crc=False):
            table = window.table[: window.batches]
            staged.take(table)
            batches += len(table)
            records += int(table[:, t.COUNT].sum())
            numbers, counts = np.unique(table[:, t.ATTRIBUTES] & t.CODEC_MASK, return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                codecs[_NAMES.get(number, str(number))] += count
            found = table[
                (table[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0) & (table[:, t.MAGIC] == 2)
            ]
            if len(found):
                stamped += len(found)
                stamps = found[:, t.BASE_TIMESTAMP]
                horizons += [int(stamps.min()), int(stamps.max())]
            progressed(window.length)
        segments[segment.base_offset] = SegmentHeaders(
            batches, records, dict(sorted(codecs.items())), stamped,
            min(horizons, default=None), max(horizons, default=None),
        )  # fmt: skip
    return LogHeaders(segments, stages_of(staged, now_ms))
