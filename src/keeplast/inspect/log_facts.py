"""What ``verify`` holds against each other of a log: headers, indexes, batches, hidden records.

One pass over the batch headers finds order, transactions, producers, sizes and checksums of
segments. Every CRC is checked on the way, and no record is looked into.

Indexes of a segment are proven against its batches, by what they claim and not by a rule. An offset
index entry must name a batch that begins at its position and ends at its offset. A time index entry
must name a batch that is the first to reach its timestamp, and the last entry of a closed segment
the segment's greatest. How dense an index is, no entry claims. What the batches say in place of an
entry is :mod:`keeplast.log.indexes`'s.

Cleaning keeps a batch's base and last offset, leader epoch, producer fields and all attributes. It
may set a delete horizon once, take the codec off an emptied batch, and lower the greatest timestamp
with the record that had it. A batch of an old format comes out as magic 2 without any of it (F1 of
cleaning-findings). Answers to ``MemoryRecords.buildRetainedRecordsInto``; cleaning.md 3.7, 3.8.

A read-committed consumer does not see what the transaction indexes of the right log hide. They must
hide exactly the data of transactions that the markers of the left one say were aborted. An entry
too few shows an aborted record, one too many hides a committed one. Answers to ``CompletedFetch``
of the consumer and ``TransactionIndex.collectAbortedTxns``.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import offset_index, time_index
from keeplast.format.batch import decode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.record import ControlType, decode_control_type
from keeplast.inspect.verified_log import (
    BASE_SEQUENCE,
    LEADER_EPOCH,
    WINDOW_BYTES,
    Findings,
    VerifiedLog,
    VerifiedPart,
)
from keeplast.log.indexes import IndexWalk, filled_entries
from keeplast.log.partition_log import INDEX_BYTES_MAX, SegmentFiles, load_aborted
from keeplast.log.windows import Window, WindowBuffers
from keeplast.model.partition import INT64_MAX
from keeplast.read.transactions import (
    TransactionOutcome,
    TransactionOutcomes,
    is_transactional_data,
)

_NO_BATCH = "no batch begins at position {}"


class IndexProof:
    """The indexes of one segment while its batches go by."""

    def __init__(self, log: VerifiedLog, segment: SegmentFiles, findings: Findings) -> None:
        """Load both indexes; what cannot be loaded is a finding."""
        self._log, self._segment, self._findings = log, segment, findings
        self._base = segment.base_offset
        # The active segment's indexes may be cut, padded with zeros or not written yet.
        self._is_active = segment is log.listing.active
        self._is_unusable = False
        self._offsets = self._load(INDEX)
        self._times = self._load(TIME_INDEX)
        self._walk = IndexWalk(self._base, self._offsets, self._times)
        self._offset_answered = np.zeros(len(self._offsets), np.bool_)
        self._time_answered = np.zeros(len(self._times), np.bool_)

    def _load(self, kind: Kind) -> NDArray[np.int64]:
        decode = offset_index.decode if kind == INDEX else time_index.decode
        find_problem = offset_index.find_problem if kind == INDEX else time_index.find_problem
        path = self._segment.path(kind)
        self._is_unusable = True
        empty = np.empty((0, 2), np.int64)
        if not self._log.files.exists(path):
            if not self._is_active:
                self._findings.cannot_judge(f"there is no {path.name}; a broker rebuilds it")
            return empty
        try:
            entries = decode(self._log.files.read_bytes(path, INDEX_BYTES_MAX))
        except CorruptError as error:
            self._say(kind, str(error), self._base)
            return empty
        size_bytes = self._segment.size_bytes
        if self._is_active:
            # What lies after its last batch is reported there, entry by entry.
            entries, size_bytes = filled_entries(entries), INT64_MAX
        problem = find_problem(entries, size_bytes)
        if problem is not None:
            self._say(kind, problem, self._base)
            return empty
        self._is_unusable = False
        return entries

    def _say(self, kind: Kind, problem: str, offset: int) -> None:
        self._findings.add(f"{segment_file(self._base, kind)}: {problem}", offset=offset)

    def add(self, position: int, table: NDArray[np.int64]) -> None:
        """Hold the batches of one window against the entries that fall into it."""
        starts = table[:, t.POSITION] + position
        offsets, times = self._walk.add(
            starts, int(starts[-1] + table[-1, t.SIZE]), table[:, t.LAST_OFFSET],
            table[:, t.MAX_TIMESTAMP],
        )  # fmt: skip
        self._offset_answered[offsets.numbers] = True
        self._time_answered[times.numbers] = True
        is_inside = offsets.starts != offsets.positions
        for i in np.flatnonzero(is_inside | (offsets.lasts != offsets.offsets)).tolist():
            at = offsets.positions[i]
            ends = f"the batch at position {at} ends at {offsets.lasts[i]}"
            problem = _NO_BATCH.format(at) if is_inside[i] else ends
            self._say(INDEX, problem, int(offsets.offsets[i]))
        is_first = (times.owns == times.stamps) & (times.before < times.stamps)
        for i in np.flatnonzero(~is_first).tolist():
            self._say(
                TIME_INDEX,
                f"the batch is not the first to reach {times.stamps[i]}: its greatest timestamp is "
                f"{times.owns[i]}, before it {times.before[i]}",
                int(times.offsets[i]),
            )

    def finish(self) -> None:
        """Account for entries that no batch has answered."""
        for relative, at in self._offsets[~self._offset_answered].tolist():
            self._say(INDEX, _NO_BATCH.format(at), self._base + relative)
        for stamp, relative in self._times[~self._time_answered].tolist():
            self._say(TIME_INDEX, f"no batch has timestamp {stamp}", self._base + relative)
        last = int(self._times[-1, 0]) if len(self._times) else -1
        is_reported = self._is_active or self._is_unusable or not self._time_answered.all()
        if not is_reported and last != self._walk.greatest_ms:
            self._say(
                TIME_INDEX,
                f"the last entry is of {last}, the segment's greatest is {self._walk.greatest_ms}",
                self._base,
            )


ENDS_TRANSACTION = (ControlType.ABORT, ControlType.COMMIT)


class LastBatch(Struct, frozen=True):
    """The newest of a producer: last data offset (-1: only markers known), epoch, time."""

    last_offset: int
    epoch: int
    timestamp: int


class SegmentFacts(Struct):
    """Sums over the batches of one segment; the CRC-32C is of the whole file as read."""

    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    largest_timestamp: int = -1
    crc32c: int = 0
    has_old_format: bool = False


class LogFacts(Struct):
    """The outcome of the pass."""

    transactions: TransactionOutcomes = field(default_factory=TransactionOutcomes)
    producers: dict[int, LastBatch] = field(default_factory=dict)
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    order: Findings = field(default_factory=Findings)
    indexes: Findings = field(default_factory=Findings)


def find_facts(log: VerifiedLog) -> LogFacts:
    """Read all batches of ``log``; CorruptError where that is not possible."""
    facts = LogFacts()
    buffers = WindowBuffers(WINDOW_BYTES)
    bases = [s.base_offset for s in log.segments]
    facts.segments = {base: SegmentFacts() for base in bases}
    ends = dict(zip(bases, [*bases[1:], 1 << 63], strict=True))
    previous = (-1, -1)
    for segment in log.segments:
        base = segment.base_offset
        proof = IndexProof(log, segment, facts.indexes)
        for window in log.windows_of(segment, buffers, checks_crc=True):
            table = window.table[: window.batches]
            _add_sums(facts.segments[base], window, table)
            previous = _check_order(facts.order, window, table, previous, ends[base])
            _follow(facts, window, table)
            proof.add(window.position, table)
        proof.finish()
    return facts


def _add_sums(sums: SegmentFacts, window: Window, table: NDArray[np.int64]) -> None:
    sums.size_bytes += window.length
    sums.batches += len(table)
    sums.records += int(table[:, t.COUNT].sum())
    if sums.first_offset is None:
        sums.first_offset = int(table[0, t.BASE_OFFSET])
    sums.last_offset = int(table[-1, t.LAST_OFFSET])
    sums.largest_timestamp = max(sums.largest_timestamp, int(table[:, t.MAX_TIMESTAMP].max()))
    sums.has_old_format |= bool((table[:, t.MAGIC] < 2).any())
    sums.crc32c = crc32c(window.data.data[: window.length], sums.crc32c)


def _check_order(
    findings: Findings,
    window: Window,
    table: NDArray[np.int64],
    previous: tuple[int, int],
    end: int,
) -> tuple[int, int]:
    """Find batches that do not begin above the one before; ``previous`` is (base, last)."""
    lasts = table[:, t.LAST_OFFSET]
    before = np.maximum.accumulate(np.concatenate([[previous[1]], lasts]))
    bases_before = np.concatenate([[previous[0]], table[:, t.BASE_OFFSET]])
    strays = (table[:, t.BASE_OFFSET] <= before[:-1]) | (lasts >= end)
    for i in np.flatnonzero(strays).tolist():
        base = int(table[i, t.BASE_OFFSET])
        at = f"path={window.path} position={window.position + int(table[i, t.POSITION])}"
        if base == bases_before[i]:
            findings.add(f"the batch comes twice. {at}", offset=base)
        elif lasts[i] >= end:
            findings.add(f"the batch reaches into the next segment. {at}", offset=base)
        else:
            findings.add(f"the batch is out of order, it follows {before[i]}. {at}", offset=base)
    return int(bases_before[-1]), int(before[-1])


def _follow(facts: LogFacts, window: Window, table: NDArray[np.int64]) -> None:
    """Account for everything that a producer with an id has sent."""
    chosen = (table[:, t.PRODUCER_ID] >= 0) & (table[:, t.MAGIC] == 2)
    for i in np.flatnonzero(chosen).tolist():
        base, last, attributes, stamp, producer_id, epoch = table[
            i,
            [
                t.BASE_OFFSET, t.LAST_OFFSET, t.ATTRIBUTES, t.MAX_TIMESTAMP, t.PRODUCER_ID,
                t.PRODUCER_EPOCH,
            ],
        ].tolist()  # fmt: skip
        if attributes & t.CONTROL == 0:
            facts.producers[producer_id] = LastBatch(last, epoch, stamp)
            if attributes & t.TRANSACTIONAL:
                facts.transactions.add_data(producer_id, base)
            continue
        kind = control_type(window, i)
        if kind in ENDS_TRANSACTION:
            known = facts.producers.get(producer_id)
            is_same_epoch = known is not None and known.epoch == epoch
            kept = known.last_offset if known is not None and is_same_epoch else -1
            facts.producers[producer_id] = LastBatch(kept, epoch, stamp)
            facts.transactions.add_marker(producer_id, last, commits=kind is ControlType.COMMIT)


def control_type(window: Window, number: int) -> ControlType | None:
    """Return what a control batch says, None when it has been emptied."""
    start = int(window.table[number, t.POSITION])
    raw = window.data[start : start + int(window.table[number, t.SIZE])].tobytes()
    try:
        record = next(decode_batch(raw).records(), None)
        return None if record is None else decode_control_type(record.key)
    except CorruptError as error:
        raise window.corrupt(number, error.problem, error.expected, error.found).placed(
            code=error.code
        ) from error


class FieldComparison:
    """Compares matched batches and says what differs."""

    def __init__(self, findings: Findings, *, are_replicas: bool) -> None:
        """Report to ``findings``; of replicas either may be the cleaner one."""
        self._findings = findings
        self._are_replicas = are_replicas

    def add(
        self,
        left: VerifiedPart,
        found: NDArray[np.int64],
        right: VerifiedPart,
        numbers: NDArray[np.int64],
    ) -> None:
        """Compare left's batches ``found`` with right's ``numbers``, pair by pair."""
        ours, theirs = left.table[found], right.table[numbers]
        ours_extra, theirs_extra = left.extra[found], right.extra[numbers]
        is_converted = (ours[:, t.MAGIC] < 2) & (theirs[:, t.MAGIC] == 2)
        both = (ours[:, t.MAGIC] == 2) & (theirs[:, t.MAGIC] == 2)
        is_back = (ours[:, t.MAGIC] == 2) & (theirs[:, t.MAGIC] < 2)
        if not self._are_replicas:
            self._say("the format went back to an old one", is_back, theirs)
            self._say(
                "a batch of an old format has a producer now",
                is_converted & (theirs[:, t.PRODUCER_ID] != -1),
                theirs,
            )
        for name, column in (
            ("base offset", t.BASE_OFFSET),
            ("last offset", t.LAST_OFFSET),
            ("producer id", t.PRODUCER_ID),
            ("producer epoch", t.PRODUCER_EPOCH),
        ):
            self._differ(name, both, ours[:, column], theirs[:, column], theirs)
        for name, column in (("leader epoch", LEADER_EPOCH), ("base sequence", BASE_SEQUENCE)):
            self._differ(name, both, ours_extra[:, column], theirs_extra[:, column], theirs)
        for name, mask in (
            ("timestamp type", t.LOG_APPEND_TIME),
            ("transactional flag", t.TRANSACTIONAL),
            ("control flag", t.CONTROL),
        ):
            self._differ(
                name, both, ours[:, t.ATTRIBUTES] & mask, theirs[:, t.ATTRIBUTES] & mask, theirs
            )
        is_filled = (ours[:, t.COUNT] > 0) & (theirs[:, t.COUNT] > 0)
        self._differ(
            "codec",
            both & is_filled,
            ours[:, t.ATTRIBUTES] & t.CODEC_MASK,
            theirs[:, t.ATTRIBUTES] & t.CODEC_MASK,
            theirs,
        )
        if not self._are_replicas:
            self._check_horizons(both & (theirs[:, t.COUNT] > 0), ours, theirs)
            self._check_timestamps(both, ours, theirs)

    def _check_horizons(
        self, both: NDArray[np.bool_], ours: NDArray[np.int64], theirs: NDArray[np.int64]
    ) -> None:
        had = ours[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
        has = theirs[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
        moved = ours[:, t.BASE_TIMESTAMP] != theirs[:, t.BASE_TIMESTAMP]
        self._say("the delete horizon moved", both & had & (~has | moved), theirs)

    def _check_timestamps(
        self, both: NDArray[np.bool_], ours: NDArray[np.int64], theirs: NDArray[np.int64]
    ) -> None:
        """The greatest timestamp stays, or is that of the records that are left."""
        differs = ours[:, t.MAX_TIMESTAMP] != theirs[:, t.MAX_TIMESTAMP]
        is_fixed = (theirs[:, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0) | (theirs[:, t.COUNT] == 0)
        is_wrong = is_fixed | (theirs[:, t.MAX_TIMESTAMP] != theirs[:, t.OUT_MAX_TIMESTAMP])
        self._say("greatest timestamp changed", both & differs & is_wrong, theirs)

    def _differ(
        self,
        name: str,
        both: NDArray[np.bool_],
        ours: NDArray[np.int64],
        theirs: NDArray[np.int64],
        table: NDArray[np.int64],
    ) -> None:
        for i in np.flatnonzero(both & (ours != theirs)).tolist():
            self._findings.add(
                f"{name} of the batch changed from {ours[i]} to {theirs[i]}",
                offset=int(table[i, t.BASE_OFFSET]),
            )

    def _say(self, problem: str, chosen: NDArray[np.bool_], table: NDArray[np.int64]) -> None:
        for i in np.flatnonzero(chosen).tolist():
            self._findings.add(problem, offset=int(table[i, t.BASE_OFFSET]))


class HiddenRecords:
    """A consumer that reads from the log start and knows aborted transactions from indexes."""

    def __init__(self, log: VerifiedLog, outcomes: TransactionOutcomes, findings: Findings) -> None:
        """Load the transaction indexes of ``log``; ``outcomes`` is what is true."""
        self._outcomes = outcomes
        self._findings = findings
        self._entries: list[tuple[int, int]] = []
        self._at = 0
        self._hides: set[int] = set()
        bases = [segment.base_offset for segment in log.segments]
        for segment, end in zip(log.segments, [*bases[1:], 1 << 63], strict=True):
            try:
                entries = load_aborted(segment, log.files)
            except CorruptError as error:
                findings.add(str(error), offset=segment.base_offset)
                continue
            for entry in entries:
                if entry.last_offset >= end:
                    findings.add(
                        f"transaction index of segment {segment.base_offset}: the entry of "
                        f"producer {entry.producer_id} ends in another segment",
                        offset=entry.last_offset,
                    )
                self._entries.append((entry.first_offset, entry.producer_id))
        active = log.listing.active
        rebuilt = outcomes.aborted_from(active.base_offset)
        if rebuilt and not log.files.exists(active.path(TXN_INDEX)):
            findings.cannot_judge(
                "the active segment has no transaction index; a broker makes it at its start"
            )
            self._entries.extend(rebuilt)
        self._entries.sort()

    def add(self, part: VerifiedPart, first: int, last: int) -> None:
        """Read batches ``[first, last)`` of a part."""
        table = part.table[first:last]
        chosen = (table[:, t.PRODUCER_ID] >= 0) & (
            table[:, t.ATTRIBUTES] & (t.TRANSACTIONAL | t.CONTROL) != 0
        )
        if not chosen.any():
            return
        is_data = is_transactional_data(table)
        truth = self._outcomes.of_batches(table)
        for i in np.flatnonzero(chosen & (table[:, t.MAGIC] == 2)).tolist():
            base, last_offset, producer_id, count = table[
                i, [t.BASE_OFFSET, t.LAST_OFFSET, t.PRODUCER_ID, t.COUNT]
            ].tolist()
            while self._at < len(self._entries) and self._entries[self._at][0] <= last_offset:
                self._hides.add(self._entries[self._at][1])
                self._at += 1
            if not is_data[i]:
                if (
                    producer_id in self._hides
                    and control_type(part.window, part.first + first + i) is ControlType.ABORT
                ):
                    self._hides.discard(producer_id)
                continue
            is_hidden = producer_id in self._hides
            is_right = is_hidden == (truth[i] == TransactionOutcome.ABORTED)
            if count == 0 or is_right or truth[i] == TransactionOutcome.OPEN:
                continue
            problem = (
                f"a committed record of producer {producer_id} is hidden by the transaction index"
                if is_hidden
                else f"an aborted record of producer {producer_id} is shown: the transaction index "
                "has no entry for it"
            )
            self._findings.add(problem, offset=base)
