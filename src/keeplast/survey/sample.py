"""Chooses a small part of a log and reads it, so that a plan can say what a round would bring.

However large the log, a sample has at most ``WINDOWS`` windows of each section, clean and dirty. Of
those it takes what ``BYTES_MAX``, ``ROWS_MAX`` and ``SECONDS_MAX`` allow. In their order any
beginning is spread over the whole section. Windows begin and end where the offset index has an
entry, so at batches. No byte is in two windows: a record read twice would pass for a key written
twice. A section that is small enough is read whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.cleaner.plan import RoundPlan
from keeplast.clock import Clock
from keeplast.columns import batches as t
from keeplast.columns import retained
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SegmentIndexes
from keeplast.log.paths import child_path
from keeplast.log.windows import Window, read_windows
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, DecompressedCache, Slice, Workspace

WINDOWS = 64
WINDOW_BYTES = 128 << 10
BATCH_BYTES_MAX = 1 << 20
"""Where index entries lie further apart than this, nothing between them is sampled."""
PIECES_MAX = 8
"""A window goes on in the next segment where one ends, but not through any number of files."""
BYTES_MAX = 16 << 20
ROWS_MAX = 1 << 19
SECONDS_MAX = 0.3
CODECS = t.CODEC_MASK + 1
GOLDEN = 0.6180339887498949
"""Multiples of this, less their whole part, are spread evenly however many are taken."""


class Piece(Struct, frozen=True):
    """Bytes ``[start, end)`` of a segment: whole batches."""

    base_offset: int
    start: int
    end: int


class SectionChoice(Struct, frozen=True):
    """A section's size and the windows to read of it, each of one piece or several."""

    size_bytes: int
    windows: tuple[tuple[Piece, ...], ...]


class SampleChoice(Struct, frozen=True):
    """What to read of the log below the bound."""

    clean: SectionChoice
    dirty: SectionChoice


class _Stretch(Struct, frozen=True):
    """The part ``[start, end)`` of a section that lies in one segment."""

    base_offset: int
    start: int
    end: int
    indexes: Mapping[int, SegmentIndexes]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def borders(self) -> NDArray[np.int64]:
        """Return where a window may begin or end; of a large log no more are at hand than used."""
        entries = self.indexes[self.base_offset].offsets[:, 1]
        inner = entries[(entries > self.start) & (entries < self.end)]
        return np.concatenate(([self.start], inner, [self.end]))


def choose_sample(plan: RoundPlan, indexes: Mapping[int, SegmentIndexes]) -> SampleChoice:
    """Choose windows of the clean and of the dirty section of a round; reads nothing."""
    dirty = {segment.base_offset for segment in plan.dirty_segments()}
    first = min(dirty, default=plan.bound)
    clean_part: list[_Stretch] = []
    dirty_part: list[_Stretch] = []
    for segment in plan.segments:
        base = segment.base_offset
        if base >= plan.bound:
            break
        start = plan.start_position if base == first else 0
        split = start if base in dirty else segment.size_bytes
        for part, low, high in (
            (clean_part, 0, split),
            (dirty_part, split, segment.size_bytes),
        ):
            if low < high:
                part.append(_Stretch(base, low, high, indexes))
    return SampleChoice(_choose(clean_part), _choose(dirty_part))


def _choose(stretches: Sequence[_Stretch]) -> SectionChoice:
    total = sum(stretch.size_bytes for stretch in stretches)
    if total <= WINDOW_BYTES and len(stretches) <= PIECES_MAX:
        whole = tuple(Piece(each.base_offset, each.start, each.end) for each in stretches)
        return SectionChoice(total, (whole,) if whole else ())

    # Windows ascend, so that the next one most likely begins where the borders are known.
    @functools.lru_cache(PIECES_MAX)
    def borders_of(number: int) -> NDArray[np.int64]:
        return stretches[number].borders()

    ends = np.cumsum([stretch.size_bytes for stretch in stretches], dtype=np.int64)
    windows: list[tuple[Piece, ...]] = []
    width = total / WINDOWS
    is_whole = width <= WINDOW_BYTES
    taken = number = 0
    while taken < total and number < WINDOWS * (PIECES_MAX if is_whole else 1):
        at = taken
        if not is_whole:
            shift = (number * GOLDEN) % 1 * (width - WINDOW_BYTES)
            at = max(taken, int(number * width + shift))
        number += 1
        pieces, taken = _window_at(stretches, borders_of, ends, at)
        if pieces:
            windows.append(pieces)
    order = sorted(range(len(windows)), key=lambda i: (i + 1) * GOLDEN % 1)
    return SectionChoice(total, tuple(windows[i] for i in order))


def _window_at(
    stretches: Sequence[_Stretch],
    borders_of: Callable[[int], NDArray[np.int64]],
    ends: NDArray[np.int64],
    at: int,
) -> tuple[tuple[Piece, ...], int]:
    """Return the window at byte ``at`` of a section, and the byte up to which it is used up."""
    number = int(np.searchsorted(ends, at, side="right"))
    pieces: list[Piece] = []
    room = WINDOW_BYTES
    while number < len(stretches) and len(pieces) < PIECES_MAX and room > 0:
        stretch = stretches[number]
        borders = borders_of(number)
        before = int(ends[number]) - stretch.size_bytes
        position = int(borders[0]) + (0 if pieces else max(at - before, 0))
        first = int(np.searchsorted(borders, position, side="right")) - 1
        last = int(np.searchsorted(borders, borders[first] + room, side="right")) - 1
        if last == first:
            if pieces:
                break
            last += 1
        start, end = int(borders[first]), int(borders[last])
        at = before + end - int(borders[0])
        if end - start > BATCH_BYTES_MAX:
            break
        pieces.append(Piece(stretch.base_offset, start, end))
        room -= end - start
        if last < len(borders) - 1:
            break
        number += 1
    return tuple(pieces), at


class SectionSample(Struct):
    """What was found in the windows read of one section; counts of the sample, not the section.

    ``keys`` has a row for each record with a key: half of its hash, and its window. ``batches`` has
    a row for each batch with records: its bytes and its records. ``unpacked_bytes`` is what
    compressed and old-format batches hold, by codec.
    """

    size_bytes: int
    read_bytes: int = 0
    records: int = 0
    tombstones: int = 0
    expired: int = 0
    keyless: int = 0
    aborted: int = 0
    aborted_bytes: int = 0
    control: int = 0
    unpacked_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(CODECS))
    key_parts: list[NDArray[np.uint64]] = field(default_factory=list)
    batch_parts: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Return the rows (half of the key's hash, window)."""
        return np.concatenate([np.empty((0, 2), np.uint64), *self.key_parts])

    @property
    def batches(self) -> NDArray[np.int64]:
        """Return a row a sampled batch, (n, 2) int64: its bytes, its records."""
        return np.concatenate([np.empty((0, 2), np.int64), *self.batch_parts])


class Sample(Struct, frozen=True):
    """Both sections of a sample."""

    clean: SectionSample
    dirty: SectionSample


def read_sample(
    choice: SampleChoice,
    plan: RoundPlan,
    path: Path,
    hash_key: tuple[int, int],
    files: FileSystem,
    clock: Clock,
    workspace: Workspace | None = None,
) -> Sample:
    """Read what was chosen; CorruptError or OSError where that is damaged or gone.

    A caller that reads many has one ``workspace`` of MEMORY_BYTES_MIN for all of them.
    """
    clean = SectionSample(choice.clean.size_bytes)
    dirty = SectionSample(choice.dirty.size_bytes)
    sample = Sample(clean, dirty)
    arrays = Workspace(MEMORY_BYTES_MIN) if workspace is None else workspace
    sampling = _Sampling(sample, plan, path, hash_key, files, clock, arrays)
    for section, number, pieces in _in_turn((clean, choice.clean), (dirty, choice.dirty)):
        if sampling.is_enough():
            break
        for piece in pieces:
            sampling.read(section, number, piece)
    return sample


def _in_turn(
    *sections: tuple[SectionSample, SectionChoice],
) -> Iterator[tuple[SectionSample, int, tuple[Piece, ...]]]:
    """Yield windows of the sections alternately."""
    longest = max(len(choice.windows) for _, choice in sections)
    for number in range(longest):
        for section, choice in sections:
            if number < len(choice.windows):
                yield section, number, choice.windows[number]


class _Sampling:
    """The reading of one sample, and how much of it is done."""

    def __init__(
        self,
        sample: Sample,
        plan: RoundPlan,
        path: Path,
        hash_key: tuple[int, int],
        files: FileSystem,
        clock: Clock,
        workspace: Workspace,
    ) -> None:
        self._sample = sample
        self._plan = plan
        self._path = path
        self._hash_key = hash_key
        self._files = files
        self._clock = clock
        self._stop_at = clock.seconds() + SECONDS_MAX
        self._bytes = self._rows = 0
        self._workspace = workspace
        self._cache = DecompressedCache(0)
        self._mtimes = {s.base_offset: s.mtime_ms for s in plan.segments}

    @functools.cached_property
    def _aborted(self) -> NDArray[np.int64]:
        """Return a row (producer, first offset, last offset) for each aborted transaction.

        As the indexes have them: an estimate may be wrong, and reads no log.
        """
        plan = self._plan.believing_indexes()
        return np.array(
            [
                (txn.producer_id, txn.first_offset, txn.last_offset)
                for txn in plan.aborted_from(plan.segments[0].base_offset)
            ],
            np.int64,
        ).reshape(-1, 3)

    def is_enough(self) -> bool:
        """Say whether one of the limits is reached."""
        return (
            self._bytes >= BYTES_MAX
            or self._rows >= ROWS_MAX
            or self._clock.seconds() >= self._stop_at
        )

    def read(self, section: SectionSample, number: int, piece: Piece) -> None:
        """Add the batches of ``piece``, part of window ``number``, to ``section``."""
        path = child_path(self._path, segment_file(piece.base_offset, LOG))
        with reading(self._files, path) as handle:
            for window in read_windows(
                handle, path, self._workspace.buffers, start=piece.start, end=piece.end
            ):
                table = window.table
                self._mark_aborted(section, window)
                retained.select_indexed(table, 0, window.batches)
                for part in self._workspace.slices(
                    window, piece.base_offset, self._hash_key, self._cache, keeps=False
                ):
                    self._add(section, number, table[part.first : part.last], part, piece)
        section.read_bytes += piece.end - piece.start
        self._bytes += piece.end - piece.start

    def _mark_aborted(self, section: SectionSample, window: Window) -> None:
        """Set STATE of the data batches of aborted transactions, and count them and markers."""
        rows = window.table[: window.batches]
        if not (rows[:, t.ATTRIBUTES] & (t.CONTROL | t.TRANSACTIONAL)).any():
            return
        is_control = rows[:, t.ATTRIBUTES] & t.CONTROL != 0
        section.control += int(rows[is_control, t.COUNT].sum())
        first, last = int(rows[0, t.BASE_OFFSET]), int(rows[-1, t.LAST_OFFSET])
        near = self._aborted[(self._aborted[:, 1] <= last) & (self._aborted[:, 2] >= first)]
        is_data = ~is_control & (rows[:, t.ATTRIBUTES] & t.TRANSACTIONAL != 0)
        is_data &= rows[:, t.MAGIC] == 2
        for producer_id, begin, end in near.tolist():
            hit = is_data & (rows[:, t.PRODUCER_ID] == producer_id)
            hit &= (rows[:, t.BASE_OFFSET] >= begin) & (rows[:, t.LAST_OFFSET] <= end)
            rows[hit, t.STATE] = t.ABORTED
        is_aborted = rows[:, t.STATE] == t.ABORTED
        section.aborted += int(rows[is_aborted, t.COUNT].sum())
        section.aborted_bytes += int(rows[is_aborted, t.SIZE].sum())

    def _add(
        self,
        section: SectionSample,
        number: int,
        batches: NDArray[np.int64],
        part: Slice,
        piece: Piece,
    ) -> None:
        w = self._workspace
        counts = batches[:, t.ROWS]
        flags = w.flags[: part.rows]
        has_key = flags & HAS_KEY != 0
        is_tombstone = has_key & (flags & HAS_VALUE == 0)
        tombstones, keyed = int(np.count_nonzero(is_tombstone)), int(np.count_nonzero(has_key))
        section.records += part.rows
        section.tombstones += tombstones
        if tombstones:
            is_expired = self._find_expired(batches, piece)
            section.expired += int((is_tombstone & np.repeat(is_expired, counts)).sum())
        section.keyless += part.rows - keyed
        is_unpacked = batches[:, t.PAYLOAD_IN] == 1
        if np.count_nonzero(is_unpacked):
            unpacked = batches[is_unpacked]
            section.unpacked_bytes += np.bincount(
                unpacked[:, t.ATTRIBUTES] & t.CODEC_MASK,
                weights=unpacked[:, t.PAYLOAD_END] - unpacked[:, t.PAYLOAD_START],
                minlength=CODECS,
            )
        keys = np.empty((keyed, 2), np.uint64)
        keys[:, 0] = w.hashes[: part.rows, 0][has_key]
        keys[:, 1] = number
        # The dirty section begins at an index entry, a little below the first dirty offset.
        is_dirty = w.offsets[: part.rows][has_key] >= self._plan.first_dirty
        self._sample.clean.key_parts.append(keys[~is_dirty])
        self._sample.dirty.key_parts.append(keys[is_dirty])
        section.batch_parts.append(batches[counts > 0][:, [t.SIZE, t.ROWS]].copy())
        self._rows += part.rows

    def _find_expired(self, batches: NDArray[np.int64], piece: Piece) -> NDArray[np.bool_]:
        """Return for each batch whether the time of its tombstones has passed."""
        plan = self._plan
        is_old = batches[:, t.MAGIC] < 2
        has_horizon = ~is_old & (batches[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0)
        horizons, ends = batches[:, t.BASE_TIMESTAMP], batches[:, t.LAST_OFFSET]
        is_expired: NDArray[np.bool_] = has_horizon & (horizons <= plan.expiry_now_ms)
        is_late = (horizons <= plan.late_now_ms) & (ends < plan.expires_below)
        is_expired &= (ends < plan.passed_to) | is_late
        old_kept_from = plan.old_tombstones_kept_from(self._mtimes[piece.base_offset])
        return is_expired | (is_old & (ends < old_kept_from))
