"""Finds the records of one key in a log, wherever they lie, the active segment included.

One pass over the log: kernels hash the keys of each window, and only batches in which the hash
occurs are looked into, byte for byte. How transactions ended is asked of the markers, headers only,
and only where a record that was found is part of one.

A record that is found is all that a round would know of it: the header of its batch as a row of the
batch table, its flags and what it ranks by. :mod:`keeplast.inspect.key_rounds` gives that to the
cleaner's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.columns import verdicts
from keeplast.columns.hashing import hash_of
from keeplast.columns.rows import HAS_KEY
from keeplast.errors import InvalidError
from keeplast.format.control import ControlType
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import Record
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.transactions import markers_of
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.offsets import INT64_MAX
from keeplast.model.strategy import Strategy
from keeplast.read.log_reader import read_segment
from keeplast.read.log_state import new_hash_key
from keeplast.read.transaction_outcomes import TransactionOutcome, is_transactional_data
from keeplast.rewrite.decompressed_cache import DecompressedCache
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Slice, Workspace

Progressed = Callable[[int], None]
RECORDS_MAX = 100_000
"""More records of one key than anybody reads; each is some hundred bytes of memory."""


@dataclass(frozen=True, slots=True)
class SearchedSegment:
    """A segment to look into, up to ``valid_bytes``; offsets in ``[start, end)`` count alone."""

    files: SegmentFiles
    valid_bytes: int
    start: int = 0
    end: int = INT64_MAX

    def has(self, offset: int) -> bool:
        """Say whether an offset counts."""
        return self.start <= offset < self.end


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One record of the key.

    ``header`` is its batch's row of the batch table, ``ranks`` the flags and the version that the
    record has by each strategy; ``mtime_ms`` is the file's. ``horizon_ms`` is the delete horizon
    that the batch carries, None without one.
    """

    record: Record
    segment: int
    position: int
    mtime_ms: int
    header: NDArray[np.int64]
    outcome: TransactionOutcome
    ranks: Mapping[Strategy, tuple[int, int]]
    horizon_ms: int | None

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        return self.record.offset

    @property
    def is_tombstone(self) -> bool:
        """True when the record deletes its key."""
        return self.record.key is not None and self.record.value is None


@dataclass(slots=True)
class _Candidate:
    """A record before anybody knows how its transaction ended."""

    record: Record
    segment: SegmentFiles
    position: int
    header: NDArray[np.int64]
    ranks: Mapping[Strategy, tuple[int, int]]
    horizon_ms: int | None


def find_key_records(
    segments: Sequence[SearchedSegment],
    key: bytes,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
    values_bytes_max: int | None = None,
) -> tuple[KeyRecord, ...]:
    """Return the records of ``key`` in ``segments``, which are those of one log, in log order.

    ``rankings`` say by what versions are read. CorruptError where a batch cannot be read or has a
    wrong CRC; InvalidError when there are more than :data:`RECORDS_MAX`, or when their values take
    more than ``values_bytes_max``. What ``progressed`` raises ends the search; it hears of each
    window, also of those that are read again for transactions.
    """
    search = _Search(key, rankings, workspace)
    found: list[_Candidate] = []
    values_bytes = 0
    for segment in segments:
        for each in search.records_of(segment, files, progressed):
            if not segment.has(each.record.offset):
                continue
            if len(found) >= RECORDS_MAX:
                raise InvalidError(
                    f"the log has more than {RECORDS_MAX} records of this key; have a round clean "
                    f"it first. path={segment.files.log_path}"
                )
            found.append(each)
            values_bytes += len(each.record.value or b"")
            if values_bytes_max is not None and values_bytes > values_bytes_max:
                raise InvalidError(
                    "the values of this key's records take more than is kept here; ask keeplast "
                    f"explain. limit={values_bytes_max} path={segment.files.log_path}"
                )
    outcomes = _outcomes(found, segments, files, progressed)
    return tuple(
        KeyRecord(
            each.record, each.segment.base_offset, each.position,
            each.segment.mtime_ns // 1_000_000, each.header, outcome, each.ranks, each.horizon_ms,
        )
        for each, outcome in zip(found, outcomes, strict=True)
    )  # fmt: skip


def find_record_at(
    segments: Sequence[SearchedSegment], offset: int, files: FileSystem
) -> Record | None:
    """Return the record at ``offset``, None when there is none (any more); no control record."""
    holding = [s for s in segments if s.files.base_offset <= offset and s.has(offset)][-1:]
    for segment in holding:
        if not segment.valid_bytes:
            continue
        for batch in read_segment(files, segment.files.log_path, end=segment.valid_bytes):
            if batch.last_offset < offset or batch.is_control:
                continue
            return next((each for each in batch.records() if each.offset == offset), None)
    return None


class _Search:
    """One key, hashed once; the workspace has the rows of the window at hand."""

    def __init__(self, key: bytes, rankings: Mapping[Strategy, Ranking], w: Workspace) -> None:
        self._key = key
        self._rankings = rankings
        self._w = w
        self._hash_key = new_hash_key()
        self._hash = np.zeros(2, np.uint64)
        hash_of(
            np.frombuffer(bytearray(key), np.uint8), *map(np.uint64, self._hash_key), self._hash
        )

    def records_of(
        self, segment: SearchedSegment, files: FileSystem, progressed: Progressed
    ) -> Iterator[_Candidate]:
        """Yield the records of the key in one segment."""
        if not segment.valid_bytes:
            return
        path = segment.files.log_path
        cache = DecompressedCache(0)
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, self._w.buffers, end=segment.valid_bytes, checks_crc=True
            ):
                window.table[: window.batches, t.STATE] = 0
                verdicts.select_indexed(window.table, 0, window.batches)
                for part in self._w.slices(
                    window, segment.files.base_offset, self._hash_key, cache, keeps=True
                ):
                    yield from self._records_in(window, part, segment.files)
                progressed(window.length)

    def _records_in(
        self, window: Window, part: Slice, segment: SegmentFiles
    ) -> Iterator[_Candidate]:
        w, rows = self._w, slice(0, part.rows)
        has_key = w.flags[rows] & HAS_KEY != 0
        w.marks[rows] = has_key & (w.hashes[rows] == self._hash).all(axis=1)
        marked = np.flatnonzero(w.marks[rows])
        if not len(marked):
            return
        ranks = self._ranks(window, part, marked)
        offsets = w.offsets[marked].tolist()
        firsts = window.table[part.first : part.last, t.FIRST_ROW]
        counts = window.table[part.first : part.last, t.ROWS]
        records: dict[int, Record] = {}
        decoded, horizon_ms = -1, None
        for at, (row, offset) in enumerate(zip(marked.tolist(), offsets, strict=True)):
            inside = np.flatnonzero((firsts <= row) & (row < firsts + counts))
            number = part.first + int(inside[-1])
            if number != decoded:
                batch = batch_at(window, number)
                records = {each.offset: each for each in batch.records()}
                decoded, horizon_ms = number, batch.delete_horizon_ms
            record = records.get(offset)
            if record is not None and record.key == self._key:
                header = window.table[number].copy()
                yield _Candidate(
                    record, segment, window.position + int(header[t.POSITION]), header,
                    {strategy: each[at] for strategy, each in ranks.items()}, horizon_ms,
                )  # fmt: skip

    def _ranks(
        self, window: Window, part: Slice, marked: NDArray[np.int64]
    ) -> dict[Strategy, list[tuple[int, int]]]:
        """Return flags and version of the marked rows, by each strategy."""
        w = self._w
        bare = w.flags[marked].copy()
        found = {}
        for strategy, ranking in self._rankings.items():
            versions = [0] * len(marked)
            if ranking.has_versions:
                ranking.read_versions(window, part, w)
                versions = w.room_for_ranks()[0][marked].tolist()
            found[strategy] = list(zip(w.flags[marked].tolist(), versions, strict=True))
            w.flags[marked] = bare
        return found


def batch_at(window: Window, number: int) -> Batch:
    """Return batch ``number`` of a window as a value, from its bytes alone."""
    start = int(window.table[number, t.POSITION])
    data = window.data[start : start + int(window.table[number, t.SIZE])].tobytes()
    return next(read_batches(data, base_position=window.position + start))


def _outcomes(
    found: Sequence[_Candidate],
    segments: Sequence[SearchedSegment],
    files: FileSystem,
    progressed: Progressed,
) -> list[TransactionOutcome]:
    """Return how the transaction of each record ended; COMMITTED outside of any.

    Data was aborted when the next marker of its producer is an ABORT.
    """
    outcomes = [TransactionOutcome.COMMITTED] * len(found)
    if not found:
        return outcomes
    is_data = is_transactional_data(np.array([each.header for each in found]))
    waiting: dict[int, list[int]] = {}
    for number in np.flatnonzero(is_data).tolist():
        outcomes[number] = TransactionOutcome.OPEN
        waiting.setdefault(int(found[number].header[t.PRODUCER_ID]), []).append(number)
    if not waiting:
        return outcomes
    first = min(found[number].segment.base_offset for its in waiting.values() for number in its)
    buffers = WindowBuffers()
    for segment in segments:
        if segment.files.base_offset < first or not segment.valid_bytes:
            continue
        path = segment.files.log_path
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, buffers, end=segment.valid_bytes, checks_crc=False
            ):
                progressed(0)
                for producer_id, offset, kind in markers_of(window).tolist():
                    if not segment.has(offset):
                        continue
                    its = waiting.get(producer_id, [])
                    for number in [n for n in its if found[n].record.offset < offset]:
                        outcomes[number] = (
                            TransactionOutcome.ABORTED
                            if kind == ControlType.ABORT
                            else TransactionOutcome.COMMITTED
                        )
                        its.remove(number)
    return outcomes
