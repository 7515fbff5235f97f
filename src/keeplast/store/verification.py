"""Checks a live store against its invariants, by reading every live object once; changes nothing.

Each finding names the invariant (tiering.md section 10), so that an operator can distinguish a lost
object from a wrong row. It names the object's key, the offset, what was expected and what was
found. What lies next to a segment is read before it and compared with its batches as they pass.
What is open of transactions goes from one segment to the next. So memory is that of a window, of
one segment's small objects, and of the producers of the log.

The rule: a check *holds* only where it could look at everything that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.batches import HAS_EVENTS
from keeplast.errors import CorruptError
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.inspect.receipt_proof import Print, rounds_behind, rounds_within
from keeplast.inspect.verified_log import Findings, VerificationReport
from keeplast.log.indexes import IndexCheck
from keeplast.log.transactions import TransactionFold, markers_of
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.document import JudgedBy
from keeplast.model.partition import TopicPartition
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.filters import (
    HEAD_BYTES,
    KEY_FACT,
    FilterKey,
    SegmentBytes,
    check_words,
    decode_head,
)
from keeplast.tier.objects.object_store import FILTER, ObjectStore, object_key
from keeplast.tier.objects.transfer import EPOCHS, PART_BYTES
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, Route, is_within_lineage

METADATA = "metadata"
"""In place of an invariant: a row is not what keeplast has written."""
CLAIMS = {
    METADATA: "every row is as keeplast wrote it",
    "I-1": "batches and routes lie within their segments, in the order of offsets",
    "I-5": "every batch can be read and has the right checksum",
    "I-6": "every segment ends with its last batch",
    "I-8": "the transaction indexes name what was aborted, and nothing else",
    "I-9": "objects are as they were written, and the indexes lead to the batches that they name",
    "I-14": "every offset is served by one live segment, whose objects are there",
    "I-18": "the first dirty offset lies in the log",
    "I-21": "sizes and timestamps in rows are those of the logs",
    "I-23": "segments belong to the leader epochs of the log",
}
"""What is judged, by invariant."""
OF_THE_PARTITION = frozenset({METADATA, "I-18"})
"""Checks that look into no segment."""
JUDGED_BY = "verify of a store"


class TierFinding(Struct, frozen=True):
    """Something that is not as it must be; ``problem`` says all of it in a sentence.

    ``object_key`` and ``offset`` are where an object is wrong. Of a row that is, ``table`` and
    ``row_key``, which distinguishes it from the partition's others there. None where it is about
    neither.
    """

    invariant: str
    segment_id: str | None
    problem: str
    object_key: str | None = None
    offset: int | None = None
    table: str | None = None
    row_key: str | None = None

    @property
    def where(self) -> dict[str, str]:
        """Return where it is, by what documents call each."""
        named = {
            "segment": self.segment_id, "object": self.object_key, "table": self.table,
            "row": self.row_key,
        }  # fmt: skip
        return {name: text for name, text in named.items() if text is not None}

    @property
    def hides_objects(self) -> bool:
        """Return whether what an object says of the log could not be looked at."""
        key = self.object_key
        is_of_log = key is not None and not key.endswith(FILTER)
        return is_of_log and self.invariant in ("I-5", "I-9", "I-14")


class TierJudgement(Struct, frozen=True):
    """What is wrong with a partition, and which segments the judgement is about.

    ``segments`` were live before they were read and, where something was found, after it too.
    Without a ``state`` rows could not be read, and there are none.
    """

    partition: TopicPartition
    findings: tuple[TierFinding, ...]
    segments: tuple[RemoteSegment, ...] = ()
    state: PartitionState | None = None
    unread: int = 0

    def report(self, receipts: Sequence[RoundReceipt] = ()) -> VerificationReport:
        """Return a check for each invariant; a check that could not look at everything says so.

        The report names those of ``receipts``, all of the partition, that what is live has come of.
        """
        checks = {name: Findings() for name in CLAIMS}
        for each in self.findings:
            checks[each.invariant].add_at(each.problem, each.offset, each.where)
        for name, found in checks.items():
            if not found.count:
                found.reasons += self._unseen(name)
        live = {
            each.base_offset: Print(each.size_bytes, each.files[LOG].crc32c)
            for each in self.segments
            if LOG in each.files
        }
        # A replaced segment is not what is broken.
        rounds = (rounds_within if self.findings else rounds_behind)(receipts, live)
        state = self.state
        return VerificationReport(
            str(self.partition),
            tuple(found.check(name, CLAIMS[name]) for name, found in checks.items()),
            rounds=tuple(each.name for each in rounds),
            judged_by=None
            if state is None
            else JudgedBy(JUDGED_BY, state.leader_epoch, state.first_dirty()),
        )

    def _unseen(self, name: str) -> Iterator[str]:
        """Yield why a check has not looked at everything."""
        if name == METADATA:
            return
        if self.state is None:
            yield "rows of the partition cannot be read: see check metadata"
        elif self.unread and name not in OF_THE_PARTITION:
            yield f"rows of segments cannot be read: see check metadata. segments={self.unread}"
        damaged = {each.segment_id for each in self.findings if each.hides_objects}
        if damaged and name not in OF_THE_PARTITION:
            yield f"objects of segments are gone or damaged. segments={len(damaged)}"


_T = TypeVar("_T")
_NO_ENTRIES = np.empty((0, 2), np.int64)
_NO_TRANSACTIONS: tuple[AbortedTransaction, ...] = ()
_NO_PRODUCERS: tuple[producer_snapshot.ProducerEntry, ...] = ()
Progressed = Callable[[int], None]
WINDOW_BYTES = 4 << 20


KEPT_BYTES_MAX = 64 << 20
"""What is kept of an object next to a segment, to be understood."""
FILTER_READS = 2
"""A filter may be written again while it is read."""


def judge_partition(
    store: MetadataStore,
    objects: ObjectStore,
    partition: TopicPartition,
    progressed: Progressed,
    planned: Progressed,
) -> TierJudgement:
    """Return everything that is wrong with a partition: its rows, and what is live in objects.

    A row that cannot be read is a finding, and the rest is looked at without it. ``planned`` hears
    first how many bytes ``progressed`` will hear of, if all of them can be read.
    """
    seen = store.inspect(partition)
    found = [
        TierFinding(
            METADATA, None,
            f"{each.problem}. table={each.table} partition={partition} key={each.key}",
            table=each.table, row_key=each.key,
        )
        for each in seen.problems
    ]  # fmt: skip
    if seen.state is None:
        return TierJudgement(partition, tuple(found))
    planned(seen.state.effective_bytes())
    live = seen.state.segments
    key = store.facts.find(KEY_FACT)
    broken = verify_remote(
        objects, seen.state, progressed, unread=seen.unread,
        filter_key=None if key is None else FilterKey.of_fact(key),
    )  # fmt: skip
    if broken:
        # A segment that was replaced while it was read may be gone by now, and belongs to nothing.
        now = store.inspect(partition).state
        live = live if now is None else now.segments
        found += [each for each in broken if each.segment_id is None or each.segment_id in live]
    segments = tuple(each for each in seen.state.segments.values() if each.segment_id in live)
    return TierJudgement(partition, tuple(found), segments, seen.state, len(seen.unread))


def verify_remote(
    objects: ObjectStore,
    state: PartitionState,
    progressed: Progressed,
    *,
    unread: Collection[str] = (),
    filter_key: FilterKey | None = None,
) -> tuple[TierFinding, ...]:
    """Return everything that is wrong with the live log of ``state``; nothing when all holds.

    ``unread`` are segments whose rows could not be read: nothing is said of what follows from that.
    Filters hash with ``filter_key``; None where the store has none yet.
    """
    found = [*_check_rows(state, unread)]
    transactions = _Transactions()
    for route in state.routes:
        segment = state.segments.get(route.segment_id)
        if segment is not None:
            found += _SegmentCheck(objects, state, route, segment, transactions, filter_key).run()
            progressed(segment.size_bytes)
    return tuple(found)


def _check_rows(state: PartitionState, unread: Collection[str]) -> Iterator[TierFinding]:
    at = state.routes[0].base_offset if state.routes else state.log_start
    if at > state.log_start:
        yield TierFinding(
            "I-14", None, f"offsets {state.log_start}..{at} are not served",
            offset=state.log_start,
        )  # fmt: skip
    for route in state.routes:
        segment = state.segments.get(route.segment_id)
        if route.base_offset != at:
            yield TierFinding(
                "I-14", route.segment_id, f"a hole or overlap at offset {at}", offset=at
            )
        at = route.last_offset + 1
        if route.segment_id in unread:
            continue
        if segment is None:
            yield TierFinding("I-14", route.segment_id, "a route without a segment")
        elif not is_within_lineage(segment, state.lineage, state.remote_end):
            yield TierFinding("I-23", route.segment_id, "outside of the leader epochs' lineage")
        elif segment.base_offset > route.base_offset or segment.last_offset < route.last_offset:
            yield TierFinding("I-1", route.segment_id, "a route reaches beyond its segment")
        elif segment.files.get(LOG) is None or segment.files[LOG].size_bytes != segment.size_bytes:
            yield TierFinding("I-21", route.segment_id, "its row and its log differ in size")
    if state.log_start > state.remote_end:
        yield TierFinding("I-14", None, f"the log start {state.log_start} lies beyond the end")
    if not unread and state.remote_bytes != state.effective_bytes():
        yield TierFinding(
            "I-21", None,
            f"the cached size is {state.remote_bytes}, the sum {state.effective_bytes()}",
        )  # fmt: skip
    if state.routes and state.first_dirty() > state.remote_end:
        yield TierFinding("I-18", None, f"the first dirty offset is {state.first_dirty()}")


class _Transactions:
    """What the markers say, carried through the log: what is open, and each producer's last one."""

    def __init__(self) -> None:
        self._fold = TransactionFold()
        self._last: dict[int, int] = {}
        self._aborted: dict[tuple[int, int], int] = {}
        self._aborts: dict[tuple[int, int], int] = {}

    def add(self, window: Window, first: int, last: int) -> None:
        """Account for the batches of a window that end in [first, last]."""
        if not window.marks & HAS_EVENTS:
            return
        rows = window.table[: window.batches]
        is_live = (rows[:, t.LAST_OFFSET] >= first) & (rows[:, t.LAST_OFFSET] <= last)
        # A header without records has nothing that an index could hide.
        is_live &= rows[:, t.COUNT] > 0
        table = np.ascontiguousarray(rows[is_live])
        live = replace(window, table=table, batches=len(table))
        for producer_id, offset, kind in markers_of(live).tolist():
            if kind == ControlType.ABORT:
                self._aborts[producer_id, offset] = self._last.get(producer_id, -1)
            self._last[producer_id] = offset
        for entry in self._fold.add(live):
            self._aborted[entry.producer_id, entry.last_offset] = entry.first_offset

    def compare(self, entries: Sequence[AbortedTransaction]) -> Iterator[tuple[int, str, int, int]]:
        """Yield what is wrong with the index of the segment that was read: offset, problem,
        expected and found; and begin the next segment.
        """
        aborted, aborts = self._aborted, self._aborts
        self._aborted, self._aborts = {}, {}
        named = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
        for (producer_id, last), first in aborted.items():
            found = named.get((producer_id, last))
            if found is None or found > first:
                problem = f"aborted records of producer {producer_id} are not indexed"
                yield last, problem, first, -1 if found is None else found
        for (producer_id, last), first in named.items():
            before = aborts.get((producer_id, last))
            if before is None:
                yield last, f"no abort marker of producer {producer_id} ends an entry", last, -1
            elif first <= before:
                problem = f"an entry of producer {producer_id} hides an earlier transaction"
                yield last, problem, before + 1, first


class _SegmentCheck:
    """One live segment: its objects, each read once, against its row and each other."""

    def __init__(
        self,
        objects: ObjectStore,
        state: PartitionState,
        route: Route,
        segment: RemoteSegment,
        transactions: _Transactions,
        filter_key: FilterKey | None,
    ) -> None:
        self._filter_key = filter_key
        self._objects = objects
        self._state = state
        self._route = route
        self._segment = segment
        self._transactions = transactions
        self._found: list[TierFinding] = []

    def run(self) -> list[TierFinding]:
        """Return what is wrong."""
        segment = self._segment
        beside = {
            suffix: self._read(suffix, expected)
            for suffix, expected in segment.files.items()
            if suffix != LOG
        }
        self._understand(beside)
        self._check_filter()
        offsets = self._decode(beside, INDEX, offset_index.decode, _NO_ENTRIES)
        times = self._decode(beside, TIME_INDEX, time_index.decode, _NO_ENTRIES)
        entries = self._decode(beside, TXN_INDEX, txn_index.decode, _NO_TRANSACTIONS)
        if LOG in segment.files:
            self._check_log(offsets, times)
        live = self._route
        for entry in entries:
            if not segment.base_offset <= entry.last_offset <= segment.last_offset:
                self._report(
                    "I-8", TXN_INDEX, "an entry ends in another segment", entry.last_offset,
                    f"[{segment.base_offset}, {segment.last_offset}]", entry.last_offset,
                )  # fmt: skip
        for offset, problem, expected, found in self._transactions.compare(
            [e for e in entries if live.base_offset <= e.last_offset <= live.last_offset]
        ):
            self._report("I-8", TXN_INDEX, problem, offset, expected, found)
        return self._found

    def _key(self, suffix: str) -> str:
        segment = self._segment
        return object_key(
            self._state.partition, self._state.topic_id, segment.segment_id, segment.base_offset,
            suffix,
        )  # fmt: skip

    def _report(
        self,
        invariant: str,
        suffix: str,
        problem: str,
        offset: int,
        expected: object,
        found: object,
    ) -> None:
        self._found.append(
            TierFinding(
                invariant, self._segment.segment_id,
                f"{problem}. key={self._key(suffix)} offset={offset} expected={expected} "
                f"found={found}",
                object_key=self._key(suffix), offset=offset,
            )
        )  # fmt: skip

    def _read(self, suffix: str, expected: RemoteFile) -> bytes | None:
        """Return an object that is what was written, as far as it is kept, else None."""
        kept = bytearray()
        try:
            handle = _Summed(self._objects, self._key(suffix))
        except FileNotFoundError:
            self._compare(suffix, expected, None)
            return None
        buffer = memoryview(bytearray(min(max(handle.size_bytes, 1), PART_BYTES)))
        position = 0
        while count := handle.pread_into(buffer, position):
            if len(kept) < KEPT_BYTES_MAX:
                kept += buffer[:count]
            position += count
        found = handle.finished()
        self._compare(suffix, expected, found)
        return bytes(kept) if found == expected else None

    def _compare(self, suffix: str, expected: RemoteFile, found: RemoteFile | None) -> None:
        base = self._segment.base_offset
        if found is None:
            self._report("I-14", suffix, "the object is gone", base, expected.size_bytes, None)
        elif found != expected:
            self._report(
                "I-9", suffix, "the object is not what was written", base,
                f"{expected.size_bytes} bytes, crc32c {expected.crc32c:#010x}",
                f"{found.size_bytes} bytes, crc32c {found.crc32c:#010x}",
            )  # fmt: skip

    def _decode(
        self,
        beside: Mapping[str, bytes | None],
        suffix: str,
        decode: Callable[[bytes], _T],
        nothing: _T,
    ) -> _T:
        data = beside.get(suffix)
        if data is None:
            return nothing
        try:
            return decode(data)
        except CorruptError as error:
            self._report(
                "I-9", suffix, error.problem, self._segment.base_offset, error.expected, error.found
            )
            return nothing

    def _understand(self, beside: Mapping[str, bytes | None]) -> None:
        """Check what no batch is needed for: producers and leader epochs."""
        segment = self._segment
        self._decode(beside, SNAPSHOT, producer_snapshot.decode, _NO_PRODUCERS)
        epochs = self._decode(beside, EPOCHS, leader_epoch.decode, segment.epochs)
        starts = {each.epoch: each.start_offset for each in self._state.lineage}
        # What a broker wrote before its first epoch counts as that one's, and no list has it yet.
        begun = {e.epoch for e in segment.epochs if starts.get(e.epoch, 0) <= segment.last_offset}
        if begun - {each.epoch for each in epochs}:
            self._report(
                "I-23", EPOCHS, "leader epochs of the segment are missing", segment.base_offset,
                sorted(each.epoch for each in segment.epochs), [each.epoch for each in epochs],
            )  # fmt: skip

    def _check_filter(self) -> None:
        """Read the filter whole, where there is one: it has no row, and its sums are its own."""
        error: CorruptError | None = None
        for _ in range(FILTER_READS):
            try:
                self._read_filter()
            except FileNotFoundError:
                return  # A segment without one is read.
            except CorruptError as found:
                error = found
            else:
                return
        if error is not None:
            self._report(
                "I-9", FILTER, error.problem, self._segment.base_offset, error.expected, error.found
            )

    def _read_filter(self) -> None:
        """Raise CorruptError for a filter that a round would not believe."""
        key = self._key(FILTER)
        size_bytes = self._objects.stat(key).size_bytes
        data = bytes(self._objects.read_range(key, 0, min(HEAD_BYTES, size_bytes)))
        head = decode_head(data, key)
        log = self._segment.files.get(LOG)
        if log is not None:
            its = SegmentBytes(self._segment.segment_id, log.size_bytes, log.crc32c)
            if head.segment != its:
                raise CorruptError(
                    "the filter is another segment's", expected=its, found=head.segment, code="K311"
                )
        if self._filter_key is not None and head.key_mark != self._filter_key.mark:
            raise CorruptError(
                "the filter hashes with another key than the store's",
                expected=self._filter_key.mark.hex(), found=head.key_mark.hex(), code="K311",
            )  # fmt: skip
        if head.size_bytes != size_bytes:
            raise CorruptError(
                "the filter is not whole", expected=head.size_bytes, found=size_bytes, code="K311"
            )
        crc = crc32c(data[head.words_at :])
        for at in range(len(data), size_bytes, PART_BYTES):
            end = min(at + PART_BYTES, size_bytes)
            crc = crc32c(bytes(self._objects.read_range(key, at, end)), crc)
        check_words(head, size_bytes - head.words_at, crc, key)

    def _check_log(self, offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Read the log: its batches against the row, the indexes against the batches."""
        segment, route = self._segment, self._route
        try:
            handle = _Summed(self._objects, self._key(LOG))
        except FileNotFoundError:
            self._compare(LOG, segment.files[LOG], None)
            return
        path = Path(self._key(LOG))
        indexes = IndexCheck(
            offsets, times, base_offset=segment.base_offset, last_offset=segment.last_offset,
            size_bytes=segment.size_bytes,
        )  # fmt: skip
        at = segment.base_offset
        try:
            for window in read_windows(handle, path, WindowBuffers(WINDOW_BYTES)):
                rows = window.table[: window.batches]
                lasts = rows[:, t.LAST_OFFSET]
                starts = np.where(rows[:, t.MAGIC] < 2, lasts, rows[:, t.BASE_OFFSET])
                floors = np.concatenate([[at], lasts[:-1] + 1])
                bad = np.flatnonzero((starts < floors) | (lasts < starts))
                if len(bad):
                    self._report(
                        "I-1", LOG, "a batch begins below the end of what lies before it",
                        int(starts[bad[0]]), f">= {floors[bad[0]]}", int(starts[bad[0]]),
                    )  # fmt: skip
                indexes.add(window)
                self._transactions.add(window, route.base_offset, route.last_offset)
                at = int(lasts.max()) + 1
        except CorruptError as error:
            self._found.append(
                TierFinding(
                    "I-5", segment.segment_id, str(error), object_key=self._key(LOG), offset=at
                )
            )
        else:
            if at != segment.next_offset:
                self._report(
                    "I-6", LOG, "its last batch ends elsewhere than the segment", at - 1,
                    segment.last_offset, at - 1,
                )  # fmt: skip
            indexes.finish()
            if segment.max_timestamp_ms != indexes.latest_ms:
                self._report(
                    "I-21", LOG, "the row has another greatest timestamp", segment.last_offset,
                    indexes.latest_ms, segment.max_timestamp_ms,
                )  # fmt: skip
        for each in indexes.problems:
            self._report("I-9", each.kind, each.problem, each.offset, each.expected, each.found)
        self._compare(LOG, segment.files[LOG], handle.finished())


class _Summed:
    """An object that is read ahead, window by window, and summed on the way."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self.size_bytes = objects.stat(key).size_bytes
        self._crc = 0
        self._summed_to = 0

    def pread_into(self, buffer: memoryview, position: int) -> int:
        end = min(position + len(buffer), self.size_bytes)
        data = self._objects.read_range(self._key, position, end)
        buffer[: len(data)] = data
        # Windows overlap by the batch that was cut off at the end of the one before.
        if position <= self._summed_to < position + len(data):
            self._crc = crc32c(data[self._summed_to - position :], self._crc)
            self._summed_to = position + len(data)
        return len(data)

    def close(self) -> None:
        """Do nothing: a range is one request."""

    def finished(self) -> RemoteFile:
        """Read what damage kept from being read; return what the whole object is."""
        while self._summed_to < self.size_bytes:
            end = min(self._summed_to + WINDOW_BYTES, self.size_bytes)
            data = self._objects.read_range(self._key, self._summed_to, end)
            if not data:
                break
            self._crc = crc32c(data, self._crc)
            self._summed_to += len(data)
        return RemoteFile(self._summed_to, self._crc)
