"""What a round on the tier need not read: asks the filters, and makes those of what it has read.

After the first pass, before anything is ranked or rewritten, every clean segment's filter is asked
whether it may hold a dirty key. The groups are those of a round without filters; one that consists
of a single segment which would stay as it is is left out. So filters change what is read and never
what remains (I-22). A filter that is missing, damaged or not of these very bytes means reading.

One task asks all filters for all keys. In a round that is cut, several share the segments, or the
keys, or both. A segment is left out when every part of the keys has been asked for and found
absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.plan import (
    EMPTIES_MAX,
    GroupPlan,
    RoundPlan,
    SegmentContents,
    has_no_events,
    stays,
)
from keeplast.columns import filters
from keeplast.columns.filters import KeyHashes
from keeplast.errors import CorruptError, invariant
from keeplast.log.files import FileSystem, reading
from keeplast.log.windows import Window
from keeplast.model.partition import SegmentSummary
from keeplast.model.topic_config import Shape, Strategy
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import Asked, FilterSpec, PartitionTask, Skips
from keeplast.rewrite.workspace import Slice, Workspace
from keeplast.tier.objects.filters import (
    FILTER_BYTES_MAX,
    HEAD_BYTES,
    FilterHead,
    SegmentBytes,
    decode_head,
    decode_words,
    encode_filter,
)
from keeplast.tier.objects.round_files import filter_file

HASHES_SHARE = 64
"""A worker may hold a hash for every so many bytes of its memory: an eighth of it, and as much
again while doubles are dropped."""


def hashes_max(memory_bytes: int) -> int:
    """Return how many hashes a worker with so much memory holds."""
    return max(memory_bytes // HASHES_SHARE, 1)


def ranks_apart(task: PartitionTask) -> bool:
    """Say whether a pass of its own reads the clean section for versions.

    Where keys go to buckets it does not: what is rewritten is read for them in any case.
    """
    has_versions = task.plan.topic.strategy is not Strategy.OFFSET
    return has_versions and not (task.is_staged and task.shape.shape is Shape.BUCKET)


def note_dirty(
    hashes: KeyHashes, spec: FilterSpec, window: Window, part: Slice, w: Workspace, first: int
) -> None:
    """Remember the keys of a slice's records at or above the offset ``first``."""
    if hashes.make_room(part.rows - part.first_row):
        hashes.count = filters.hash_rows(
            window.data, w.scratch, window.table, part.first, part.last, w.offsets, w.positions,
            w.flags, first, np.uint64(spec.key.k0), np.uint64(spec.key.k1), hashes.values,
            hashes.count,
        )  # fmt: skip


class ContentsBuilder:
    """Keys and contents of one output while it is written."""

    def __init__(self, spec: FilterSpec, memory_bytes: int) -> None:
        self._key = spec.key
        self._hashes = KeyHashes(hashes_max(memory_bytes))
        self._facts = np.zeros(filters.FACTS, np.int64)
        self._facts[filters.HORIZON_MIN] = filters.NEVER
        self._empties = np.empty((EMPTIES_MAX, 2), np.int64)

    def add(self, window: Window, part: Slice, w: Workspace) -> None:
        """Note what stays of the judged batches of a slice."""
        if self._hashes.make_room(part.rows - part.first_row):
            self._hashes.count = filters.note_kept(
                window.data, w.scratch, window.table, part.first, part.last, w.positions, w.flags,
                w.marks, np.uint64(self._key.k0), np.uint64(self._key.k1), self._hashes.values,
                self._hashes.count, self._facts, self._empties,
            )  # fmt: skip

    def encode(self, segment: SegmentBytes, fpp: float) -> bytes | None:
        """Return the filter of ``segment``; None when it has more keys than memory allows."""
        if self._hashes.is_full:
            return None
        hashes = self._hashes.distinct()
        return encode_filter(segment, self._key, self._contents(), hashes, fpp)

    def _contents(self) -> SegmentContents:
        facts = self._facts.tolist()
        horizon = facts[filters.HORIZON_MIN]
        noted = min(facts[filters.EMPTIES], EMPTIES_MAX)
        return SegmentContents(
            keyless=facts[filters.KEYLESS],
            tombstones=facts[filters.TOMBSTONES],
            unstamped=facts[filters.UNSTAMPED],
            horizon_ms=None if horizon == filters.NEVER else horizon,
            transactional=facts[filters.TRANSACTIONAL],
            old_format=facts[filters.OLD_FORMAT],
            empties=tuple((pid, offset) for pid, offset in self._empties[:noted].tolist()),
            more_empties=facts[filters.EMPTIES] > EMPTIES_MAX,
        )


def find_skips(
    spec: FilterSpec,
    plan: RoundPlan,
    directory: Path,
    groups: Sequence[GroupPlan],
    dirty: KeyHashes,
    files: FileSystem,
    *,
    has_versions: bool,
) -> Skips:
    """Ask all filters for all of the ``dirty`` keys; too many of them find nothing."""
    bases: tuple[int, ...] = ()
    if not dirty.is_full:
        bases = segments_to_ask(plan, groups, has_versions=has_versions)
    hashes = dirty.distinct()
    return skips_of(
        plan, groups,
        ask_filters(spec, plan, directory, bases, hashes, files, has_versions=has_versions),
    )  # fmt: skip


def segments_to_ask(
    plan: RoundPlan, groups: Sequence[GroupPlan], *, has_versions: bool
) -> tuple[int, ...]:
    """Return the base offsets of the clean segments whose filters may save something.

    Without versions only those are asked for that are a group of their own: the others are merged
    in any case. ``has_versions`` says that a pass of its own reads the clean section for them.
    """
    alone = _alone(groups)
    bases = [segment.base_offset for segment in _clean(plan)]
    return tuple(base for base in bases if base in alone or has_versions)


def ask_filters(
    spec: FilterSpec,
    plan: RoundPlan,
    directory: Path,
    bases: Sequence[int],
    hashes: NDArray[np.uint64],
    files: FileSystem,
    *,
    has_versions: bool,
) -> Iterator[Asked]:
    """Yield what the filter of each clean segment in ``bases`` says of keys with these hashes."""
    ends = _ends(plan)
    for base in bases:
        path = directory / filter_file(base)
        yield _ask(spec, plan, path, base, ends[base], hashes, files, has_versions=has_versions)


def skips_of(plan: RoundPlan, groups: Sequence[GroupPlan], asked: Iterable[Asked]) -> Skips:
    """Return what may be left out when each filter has been asked for every dirty key."""
    alone = _alone(groups)
    clean = {segment.base_offset: segment.size_bytes for segment in _clean(plan)}
    stats = FilterStats(clean_segments=len(clean), clean_bytes=sum(clean.values()))
    staying, unranked, known = set(), set(), set()
    for each in asked:
        base, size = each.base_offset, clean[each.base_offset]
        stats = replace(
            stats,
            bytes_read=stats.bytes_read + each.bytes_read,
            damaged=stats.damaged + each.is_damaged,
        )
        if not each.size_bytes:
            continue
        known.add(base)
        stats = replace(
            stats,
            found=stats.found + 1,
            found_bytes=stats.found_bytes + each.size_bytes,
            filtered_bytes=stats.filtered_bytes + size,
        )
        if each.stays and base in alone:
            staying.add(base)
            stats = replace(
                stats,
                skipped_segments=stats.skipped_segments + 1,
                skipped_bytes=stats.skipped_bytes + size,
            )
        if each.needs_no_ranking:
            unranked.add(base)
            stats = replace(stats, unranked_bytes=stats.unranked_bytes + size)
    return Skips(frozenset(staying), frozenset(unranked), frozenset(known), stats)


def _alone(groups: Sequence[GroupPlan]) -> frozenset[int]:
    return frozenset(group.base_offset for group in groups if len(group.sources) == 1)


def _ends(plan: RoundPlan) -> dict[int, int]:
    """Return where each segment but the last one ends, exclusive, by its base offset."""
    return dict(pairwise(segment.base_offset for segment in plan.segments))


def _clean(plan: RoundPlan) -> list[SegmentSummary]:
    """Return the segments that lie wholly in the clean section."""
    ends = _ends(plan)
    return [s for s in plan.segments[:-1] if ends[s.base_offset] <= plan.first_dirty]


def _ask(
    spec: FilterSpec,
    plan: RoundPlan,
    path: Path,
    base: int,
    end: int,
    hashes: NDArray[np.uint64],
    files: FileSystem,
    *,
    has_versions: bool,
) -> Asked:
    """Return what the filter of a segment that ends before ``end`` says."""
    size = 0
    try:
        with reading(files, path) as handle:
            if handle.size_bytes > FILTER_BYTES_MAX:
                return Asked(base, is_damaged=True)
            data = bytearray(min(handle.size_bytes, HEAD_BYTES))
            size = handle.pread_into(memoryview(data), 0)
            head = decode_head(bytes(data[:size]), str(path))
            if not head.speaks_for(spec.segments[base], handle.size_bytes, spec.key):
                return Asked(base, bytes_read=size, is_damaged=True)
            may_stay = stays(
                head.contents, now_ms=plan.now_ms, last_offset=end - 1,
                last_records=plan.last_records, expires_nothing=plan.expires_nothing,
            )  # fmt: skip
            may_go_unranked = has_versions and has_no_events(head.contents)
            if not may_stay and not may_go_unranked:
                return Asked(base, head.size_bytes, bytes_read=size)
            rest = bytearray(max(head.size_bytes - size, 0))
            size += handle.pread_into(memoryview(rest), size) if rest else 0
            words = decode_words(head, bytes((data + rest)[head.words_at :]), str(path))
    except FileNotFoundError:
        return Asked(base)
    except CorruptError:
        return Asked(base, bytes_read=size, is_damaged=True)
    is_absent = _is_absent(words, head, hashes)
    return Asked(base, head.size_bytes, may_stay and is_absent, may_go_unranked and is_absent, size)


def _is_absent(words: NDArray[np.uint64], head: FilterHead, hashes: NDArray[np.uint64]) -> bool:
    found: int = filters.find_any(words, head.bits, head.probes, hashes, len(hashes))
    return found < 0


def write_filter(
    task: PartitionTask, builder: ContentsBuilder, segment: SegmentBytes, path: Path,
    files: FileSystem,
) -> int:  # fmt: skip
    """Write the filter of what was read or written; returns its bytes, 0 without one."""
    invariant(task.filters is not None, "a round without filters makes none")
    spec = cast(FilterSpec, task.filters)
    data = builder.encode(segment, spec.fpp)
    if data is None or not spec.takes(len(data), segment):
        return 0
    files.write_durable(path, data)
    return len(data)
