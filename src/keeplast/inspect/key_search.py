"""Finds the records of one key, or of many, in a log, wherever they lie, active segment included.

One pass over the log: kernels hash the keys of each window. Only batches in which one of the hashes
occurs are looked into, byte for byte. How transactions ended is asked of the markers, headers only,
and only where a record that was found is part of one.

A record that is found is all that a round would know of it. That is the header of its batch as a
row of the batch table, its flags and what it ranks by. :mod:`keeplast.inspect.fates` gives that to
the cleaner's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.columns import arrow_columns, retained
from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY, hash_of
from keeplast.errors import InvalidError
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, Record
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.transactions import markers_of
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_segment
from keeplast.read.log_view import ALL
from keeplast.read.record_source import ColumnCollector, RecordColumns
from keeplast.read.transactions import TransactionOutcome, is_transactional_data
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.task import new_hash_key
from keeplast.rewrite.workspace import DecompressedCache, Slice, Workspace

Progressed = Callable[[int], None]
RECORDS_MAX = 100_000
"""More records of one log than a person reads; each is some hundred bytes of memory."""


class SearchedSegment(Struct, frozen=True):
    """A segment to look into, up to ``valid_bytes``; offsets in ``[start, end)`` count alone.

    ``named`` is where its ``.log`` file lies under another name, None where it has its own.
    ``lacks_key`` says that the searched key is known not to be in it, and ``is_quiet`` that no
    transaction runs through it. A segment that both are said of is not read.
    """

    files: SegmentFiles
    valid_bytes: int
    start: int = 0
    end: int = INT64_MAX
    named: Path | None = None
    lacks_key: bool = False
    is_quiet: bool = False

    @property
    def log_path(self) -> Path:
        """Return the path of the file that is read."""
        return self.files.log_path if self.named is None else self.named

    def has(self, offset: int) -> bool:
        """Say whether an offset counts."""
        return self.start <= offset < self.end


SAMPLE_KEYS = 4096
SAMPLE_KEYS_OF_A_WINDOW = 256
SAMPLE_KEYS_OF_A_BATCH = 64
SAMPLE_KEY_BYTES = 256
NEAR_KEYS = 3


class KeySample(Struct):
    """Some keys that a search has passed: of batches all over a window, until there are enough.

    ``passed`` counts the records with a key that were looked at.
    """

    keys: set[bytes] = field(default_factory=set)
    passed: int = 0

    def add(self, window: Window, part: Slice, w: Workspace) -> None:
        """Look at the rows of a part of a window."""
        self.passed += int(np.count_nonzero(w.flags[: part.rows] & HAS_KEY))
        filled = np.flatnonzero(window.table[part.first : part.last, t.ROWS]) + part.first
        enough = min(SAMPLE_KEYS, len(self.keys) + SAMPLE_KEYS_OF_A_WINDOW)
        for number in filled[:: max(1, len(filled) // SAMPLE_KEYS_OF_A_WINDOW)].tolist():
            if len(self.keys) >= enough:
                return
            self.keys.update(
                each.key
                for each in islice(batch_at(window, number).records(), SAMPLE_KEYS_OF_A_BATCH)
                if each.key is not None and len(each.key) <= SAMPLE_KEY_BYTES
            )

    def near(self, key: bytes) -> tuple[bytes, ...]:
        """Return the keys most like ``key``, the first of all where none is."""
        names = sorted(each.decode("latin-1") for each in self.keys)
        close = get_close_matches(key[:SAMPLE_KEY_BYTES].decode("latin-1"), names, NEAR_KEYS)
        return tuple(each.encode("latin-1") for each in close or names[:NEAR_KEYS])


Passed = Callable[[SearchedSegment, Window], None]
"""Hears of every window of a search, in the order of the file, from its first byte on."""


class FileRecord(Struct, frozen=True):
    """One record of the key, as its file has it.

    ``segment`` is None in a file that is none. ``horizon_ms`` is the delete horizon that the batch
    carries, None without one. ``outcome`` is None where it is not known how a transaction ended.
    """

    record: Record
    segment: int | None
    position: int
    outcome: TransactionOutcome | None
    horizon_ms: int | None

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        return self.record.offset

    @property
    def is_tombstone(self) -> bool:
        """True when the record deletes its key."""
        return self.record.key is not None and self.record.value is None


class KeyRecord(FileRecord, frozen=True):
    """The same in a segment that was searched whole.

    ``header`` is its batch's row of the batch table, ``ranks`` the flags and the version that the
    record has by each strategy; ``mtime_ms`` is the file's.
    """

    segment: int
    outcome: TransactionOutcome
    mtime_ms: int
    header: NDArray[np.int64]
    ranks: Mapping[Strategy, tuple[int, int]]


def find_key_records(
    segments: Sequence[SearchedSegment],
    key: bytes,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
    values_bytes_max: int | None = None,
    sample: KeySample | None = None,
) -> tuple[KeyRecord, ...]:
    """Return the records of ``key`` in ``segments``, which are those of one log, in log order.

    ``rankings`` say by what versions are read. ``sample`` gets some of the keys that are passed.
    CorruptError where a batch cannot be read or has a wrong CRC; InvalidError when there are more
    than :data:`RECORDS_MAX`, or when their values take more than ``values_bytes_max``. What
    ``progressed`` raises ends the search; it hears of each window, also of those that are read
    again for transactions.
    """
    search = _Search((key,), rankings, workspace, sample)
    found: list[KeyRecord] = []
    values_bytes = 0
    for segment in segments:
        if segment.lacks_key:
            continue
        for each in search.records_of(segment, files, progressed):
            _keep(found, each, segment)
            values_bytes += len(each.record.value or b"")
            if values_bytes_max is not None and values_bytes > values_bytes_max:
                raise InvalidError(
                    "the values of this key's records take more than is kept here; ask keeplast "
                    f"explain. limit={values_bytes_max} path={segment.log_path}",
                    code="K156",
                )
    return _judged(found, segments, files, progressed)


def find_records_of_keys(
    segments: Sequence[SearchedSegment],
    keys: Collection[bytes],
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
    passed: Passed = lambda segment, window: None,
) -> tuple[KeyRecord, ...]:
    """Return the records of all of ``keys``, in log order, without values and headers.

    One stream of keys for all of them. A tombstone has no value, every other record an empty one.
    ``passed`` hears of each window. Errors as for :func:`find_key_records`.
    """
    search = _Search(keys, rankings, workspace)
    found: list[KeyRecord] = []
    for segment in segments:
        for each in search.records_of(segment, files, progressed, passed):
            value = None if each.record.value is None else b""
            bare = replace(each.record, value=value, headers=())
            _keep(found, replace(each, record=bare), segment)
    return _judged(found, segments, files, progressed)


def find_keys(
    segments: Sequence[SearchedSegment],
    is_wanted: Callable[[bytes], bool],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
) -> set[bytes]:
    """Return the keys of a log that are wanted: for who knows them by another hash than ours.

    Every key is asked about, so that this takes longer than a search. CorruptError where a batch
    cannot be read or has a wrong CRC.
    """
    found: set[bytes] = set()
    for segment in segments:
        if not segment.valid_bytes:
            continue
        path, collector = segment.log_path, ColumnCollector()
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, workspace.buffers, end=segment.valid_bytes, checks_crc=True
            ):
                window.table[: window.batches, t.STATE] = 0
                retained.select_indexed(window.table, 0, window.batches)
                for first, last in workspace.uncovered(window):
                    for columns in collector.add(
                        window, workspace.scratch, first, last, ALL.bounds()
                    ):
                        found.update(filter(is_wanted, _keys_of(columns)))
                progressed(window.length)
        for columns in collector.finish():
            found.update(filter(is_wanted, _keys_of(columns)))
    return found


def _keys_of(columns: RecordColumns) -> set[bytes]:
    """Return the keys of some records, each once."""
    ends = columns.ends[arrow_columns.KEYS, : columns.rows + 1].tolist()
    data = columns.keys[: ends[-1]].tobytes()
    has_key = columns.marks[arrow_columns.HAS_KEY, : columns.rows].tolist()
    return {data[ends[row] : ends[row + 1]] for row, has in enumerate(has_key) if has}


def _keep(found: list[KeyRecord], each: KeyRecord, segment: SearchedSegment) -> None:
    if not segment.has(each.record.offset):
        return
    if len(found) >= RECORDS_MAX:
        raise InvalidError(
            f"the log has more than {RECORDS_MAX} records of what is asked for; have a round clean "
            f"it first, or ask for less. path={segment.log_path}",
            code="K156",
        )
    found.append(each)


def _judged(
    found: Sequence[KeyRecord],
    segments: Sequence[SearchedSegment],
    files: FileSystem,
    progressed: Progressed,
) -> tuple[KeyRecord, ...]:
    """Return what was found with how transactions ended."""
    outcomes = _outcomes(found, segments, files, progressed)
    return tuple(
        replace(each, outcome=outcome) for each, outcome in zip(found, outcomes, strict=True)
    )


def find_record_at(
    segments: Sequence[SearchedSegment], offset: int, files: FileSystem
) -> Record | None:
    """Return the record at ``offset``, None when there is none (any more); no control record."""
    holding = [s for s in segments if s.files.base_offset <= offset and s.has(offset)][-1:]
    for segment in holding:
        if not segment.valid_bytes:
            continue
        for batch in read_segment(files, segment.log_path, end=segment.valid_bytes):
            if batch.last_offset < offset or batch.is_control:
                continue
            return next((each for each in batch.records() if each.offset == offset), None)
    return None


class _Search:
    """Keys, each hashed once; the workspace has the rows of the window at hand."""

    def __init__(
        self,
        keys: Collection[bytes],
        rankings: Mapping[Strategy, Ranking],
        w: Workspace,
        sample: KeySample | None = None,
    ) -> None:
        self._sample = sample
        self._keys = frozenset(keys)
        self._rankings = rankings
        self._w = w
        self._hash_key = new_hash_key()
        hashes = np.zeros((len(self._keys), 2), np.uint64)
        for number, key in enumerate(self._keys):
            data = np.frombuffer(bytearray(key), np.uint8)
            hash_of(data, *map(np.uint64, self._hash_key), hashes[number])
        # Half of a hash is enough to look closer, and bytes decide then.
        self._hashes = np.sort(hashes[:, 0])

    def records_of(
        self,
        segment: SearchedSegment,
        files: FileSystem,
        progressed: Progressed,
        passed: Passed = lambda segment, window: None,
    ) -> Iterator[KeyRecord]:
        """Yield the records of the keys in one segment; how transactions ended is not known yet."""
        if not segment.valid_bytes:
            return
        path = segment.log_path
        cache = DecompressedCache(0)
        with reading(files, path) as handle:
            for window in read_windows(
                handle, path, self._w.buffers, end=segment.valid_bytes, checks_crc=True
            ):
                window.table[: window.batches, t.STATE] = 0
                retained.select_indexed(window.table, 0, window.batches)
                for part in self._w.slices(
                    window, segment.files.base_offset, self._hash_key, cache, keeps=True
                ):
                    if self._sample is not None:
                        self._sample.add(window, part, self._w)
                    yield from self._records_in(window, part, segment.files)
                passed(segment, window)
                progressed(window.length)

    def _records_in(
        self, window: Window, part: Slice, segment: SegmentFiles
    ) -> Iterator[KeyRecord]:
        if not len(self._hashes):
            return
        w, rows = self._w, slice(0, part.rows)
        has_key = w.flags[rows] & HAS_KEY != 0
        halves = w.hashes[rows, 0]
        nearest = np.searchsorted(self._hashes, halves)
        nearest[nearest == len(self._hashes)] = 0
        w.marks[rows] = has_key & (self._hashes[nearest] == halves)
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
            if record is not None and record.key in self._keys:
                header = window.table[number].copy()
                # How its transaction ended is asked later, of all that were found.
                yield KeyRecord(
                    record, segment.base_offset, window.position + int(header[t.POSITION]),
                    TransactionOutcome.OPEN, horizon_ms, segment.mtime_ns // 1_000_000, header,
                    {strategy: each[at] for strategy, each in ranks.items()},
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
    found: Sequence[KeyRecord],
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
    first = min(found[number].segment for its in waiting.values() for number in its)
    buffers = WindowBuffers()
    for segment in segments:
        if segment.files.base_offset < first or not segment.valid_bytes or segment.is_quiet:
            continue
        path = segment.log_path
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
