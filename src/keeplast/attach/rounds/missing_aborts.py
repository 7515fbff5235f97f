"""Finds served segments whose transaction index lacks an abort, and seams between segments.

A broker that builds its state from the remote tier may drop the snapshot of producers that it has
fetched (seen on Kafka 4.3.0: ``Wrote producer snapshot … with 0 producer ids``). It has then
forgotten the transactions that are open where its own log begins, which is the end of a remote
segment. It writes no entry for those whose abort marker it takes, and uploads the index so.
Consumers that read committed records are then given aborted ones, until a round has taken the
segment: a round goes by markers.

So little is read that every look can ask. It reads the snapshots of the newest segments, which say
what is open where each one ends. Of a segment that follows an open transaction it reads the log up
to the markers of those. The rule: **a finding is a proof**, of a marker that was read; its absence
proves nothing. ``verify`` reads all. Answers to ``ProducerStateManager`` and
``RemoteLogManager.collectAbortedTransactions``.

A seam is where in a remote log an offset begins that another segment serves: logs are read up to
there. The rule: **a log is cut between two batches or not at all**. Segments begin with a batch on
every broker, and a round keeps the bounds of batches; where they do not fit, nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.stored_segment import StoredSegment
from keeplast.attach.rules.sources import EffectiveRange, Source, Sources
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.layouts.layout import AuxiliaryFile, RemoteLayout
from keeplast.cluster.metadata_cache import is_compactors
from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index, producer_snapshot, txn_index
from keeplast.format.batch import HEADER_BYTES, decode_header
from keeplast.format.identifier import encode_id
from keeplast.format.record import ControlType
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.log.transactions import markers_of
from keeplast.log.windows import WindowBuffers
from keeplast.read.transactions import is_transactional_data

_K = TypeVar("_K")
_V = TypeVar("_V")
SEGMENTS_MAX = 16
"""So many of the newest segments are looked at: what is older is due by its dirty ratio."""
SEARCHED_BYTES_MAX = 32 << 20
"""So far into a segment the markers of transactions are looked for that began before it."""
REMEMBERED_MAX = 100_000


class MissingAbort(Struct, frozen=True):
    """An aborted transaction that the index of its marker's segment does not name.

    ``segment_start`` and ``segment_id`` are that segment's; all offsets are inclusive.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    segment_start: int
    segment_id: str


class _Snapshot(Struct, frozen=True):
    """Where each open transaction began, by producer, where a segment ends."""

    opened: Mapping[int, int]
    has_transactions: bool


class _Ended(Struct, frozen=True):
    """How a segment ended the transactions that were open before it, by their producers."""

    ended: frozenset[int]
    is_whole: bool
    missing: tuple[MissingAbort, ...]


_NOTHING = _Snapshot({}, has_transactions=False)


class AbortSearch:
    """Looks for such segments in one remote tier, and remembers of each what was found."""

    def __init__(self, layout: RemoteLayout) -> None:
        """Know nothing yet."""
        self._layout = layout
        self._snapshots: dict[bytes, _Snapshot] = {}
        self._ended: dict[tuple[bytes, int, frozenset[tuple[int, int]]], _Ended] = {}

    def find(
        self, ranges: Sequence[EffectiveRange], *, log_start: int, first_dirty: int
    ) -> tuple[MissingAbort, ...]:
        """Return what the newest of ``ranges`` lack, of those that reach to ``first_dirty``.

        Ranges ascend. An object that is missing or cannot be read ends the search: rounds and
        ``verify`` report it. UnavailableError when the store fails.
        """
        try:
            return tuple(self._find(ranges, log_start, first_dirty))
        except (FileNotFoundError, CorruptError):
            return ()

    def _find(
        self, ranges: Sequence[EffectiveRange], log_start: int, first_dirty: int
    ) -> Iterator[MissingAbort]:
        dirty = sum(each.end >= first_dirty for each in ranges)
        # The one before says what is open where they begin.
        chosen = ranges[-(min(dirty, SEGMENTS_MAX) + 1) :] if dirty else ()
        if not chosen or not self._snapshot(chosen[-1].segment).has_transactions:
            return
        opened: dict[int, int] = {}
        for each in chosen:
            if is_compactors(each.segment):
                opened.clear()  # Its index was made by the markers, and nothing in it is open.
            elif opened:
                found = self._search(each, opened, log_start)
                yield from found.missing
                if found.is_whole:
                    opened = {p: at for p, at in opened.items() if p not in found.ended}
                else:
                    opened.clear()
            for producer_id, first in self._snapshot(each.segment).opened.items():
                if first <= each.end:
                    opened.setdefault(producer_id, first)

    def _snapshot(self, segment: RemoteLogSegment) -> _Snapshot:
        read = partial(self._read_snapshot, segment)
        return _remembered(self._snapshots, segment.id.segment_id, read)

    def _read_snapshot(self, segment: RemoteLogSegment) -> _Snapshot:
        data = self._layout.open(segment).read_auxiliary(AuxiliaryFile.SNAPSHOT)
        if data is None:
            return _NOTHING
        entries = producer_snapshot.decode(data)
        opened = {e.producer_id: e.current_txn_first_offset for e in entries}
        opened = {producer: first for producer, first in opened.items() if first >= 0}
        # A coordinator's epoch is that of the last marker: others write without transactions.
        is_transactional = any(each.coordinator_epoch >= 0 for each in entries)
        return _Snapshot(opened, has_transactions=bool(opened) or is_transactional)

    def _search(self, at: EffectiveRange, opened: Mapping[int, int], log_start: int) -> _Ended:
        key = at.segment.id.segment_id, at.end, frozenset(opened.items())
        read = partial(self._read_markers, at, opened, log_start)
        return _remembered(self._ended, key, read)

    def _read_markers(
        self, at: EffectiveRange, opened: Mapping[int, int], log_start: int
    ) -> _Ended:
        waiting, missing = dict(opened), list[MissingAbort]()
        seen = {producer for producer, first in opened.items() if first >= log_start}
        named = None
        is_whole = True
        for window in StoredSegment(self._layout, at.segment).headers(WindowBuffers()):
            data = window.table[: window.batches]
            data = data[is_transactional_data(data) & (data[:, t.LAST_OFFSET] >= log_start)]
            for producer, marker, kind in markers_of(window).tolist():
                first = waiting.get(producer) if at.start <= marker <= at.end else None
                if first is None:
                    continue
                del waiting[producer]
                before = data[data[:, t.LAST_OFFSET] < marker]
                is_seen = producer in seen or bool((before[:, t.PRODUCER_ID] == producer).any())
                if kind != ControlType.ABORT or not is_seen:
                    continue
                if named is None:
                    named = self._named(at.segment)
                if named.get((producer, marker), marker) > first:
                    name = encode_id(at.segment.id.segment_id)
                    missing.append(
                        MissingAbort(producer, first, marker, at.segment.start_offset, name)
                    )
            seen.update(data[:, t.PRODUCER_ID].tolist())
            is_whole = window.position + window.length < SEARCHED_BYTES_MAX
            if not waiting or not is_whole:
                break
        return _Ended(frozenset(opened) - waiting.keys(), not waiting or is_whole, tuple(missing))

    def _named(self, segment: RemoteLogSegment) -> dict[tuple[int, int], int]:
        """Return where each transaction begins that the index names, by producer and marker."""
        # Brokers ask for no index that was announced as empty.
        data = (
            None
            if segment.is_txn_index_empty
            else self._layout.open(segment).read_auxiliary(AuxiliaryFile.TXN_INDEX)
        )
        return {
            (each.producer_id, each.last_offset): each.first_offset
            for each in txn_index.decode(data or b"")
        }


def _remembered(known: dict[_K, _V], key: _K, read: Callable[[], _V]) -> _V:
    """Return what is known of ``key``, which is read where nothing is."""
    if key not in known:
        if len(known) >= REMEMBERED_MAX:
            known.clear()
        known[key] = read()
    return known[key]


def measure_sources(layout: RemoteLayout, found: Sources) -> Sources:
    """Return ``found`` with the bytes that are served of each part; it ends where none fit."""
    measured: list[Source] = []
    for source in found.segments:
        sizes = [
            _bytes_before(layout, part, source.last_of(number) + 1)
            for number, part in enumerate(source.parts)
        ]
        if None in sizes:
            limit = SourcesLimit(source.start_offset, SourcesEnd.SHADOWED)
            return replace(found, segments=tuple(measured), end=source.start_offset, limit=limit)
        measured.append(replace(source, sizes=tuple(each or 0 for each in sizes)))
    return replace(found, segments=tuple(measured))


def _bytes_before(layout: RemoteLayout, segment: RemoteLogSegment, offset: int) -> int | None:
    """Return where in a segment's log the first batch from ``offset`` on begins.

    None when a batch lies on both sides. CorruptError for a log that cannot be followed.
    """
    if offset > segment.end_offset:
        return segment.size_bytes
    reader = layout.open(segment)
    data = reader.read_auxiliary(AuxiliaryFile.OFFSET_INDEX) or b""
    # An entry has the last offset of the batch at its position.
    below = [
        int(position)
        for relative, position in offset_index.decode(data)
        if segment.start_offset + int(relative) < offset
    ]
    at = below[-1] if below else 0
    while at < segment.size_bytes:
        header = decode_header(bytes(reader.read_log(at, at + HEADER_BYTES)), 0)
        if header.base_offset >= offset:
            break
        if header.last_offset >= offset:
            return None
        at += header.size_bytes
    return at
