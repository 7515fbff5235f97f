"""Reads the segments of a log for ``inspect``: what is in them, and what is wrong with them.

Nothing is changed, and memory is bounded: a window of the file, the indexes of one segment, and the
batches or records that were asked for. Three kinds of finding, by what follows from them:

* ``corrupt``: bytes are not what the format says; a cleaner stops at them, or Kafka rebuilds the
  file.
* ``torn``: the active segment ends in a batch that was never finished; the log ends before it.
* ``note``: unusual and harmless.

Transaction indexes are compared with the markers. Kept are the open transactions and those that
aborted in one segment. A transaction whose data is gone may have an entry or none: it hides
nothing. Only one that left records must have one, and an entry must end at an ABORT marker.

Leader epochs of batches are compared with the checkpoint next to them. The epoch of a batch lies
outside its checksum, so nothing else notices when it has changed. A batch is written under one
leader: its epoch is the one that the checkpoint has under way at its last offset. In the active
segment an epoch above all of the checkpoint's is only noted: a broker writes the checkpoint after
the batch. Answers to ``LeaderEpochFileCache``; formats.md section 2.8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.errors import CompactionError, CorruptError
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.batch import RecordBatch
from keeplast.format.filename import INDEX, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, decode_control_type
from keeplast.format.txn_index import AbortedTransaction
from keeplast.inspect.log_rows import Row, batch_row, record_row
from keeplast.log.files import FileSystem
from keeplast.log.indexes import IndexWalk, filled_entries, read_index, read_index_start
from keeplast.model.document import shown_fields
from keeplast.model.partition import INT64_MAX, NO_TIMESTAMP, RELATIVE_OFFSET_MAX
from keeplast.read.log_reader import read_segment


class AbortedScan(Struct):
    """What the batches say, fed in log order; a segment begins and ends with :meth:`compare`."""

    _opened: dict[int, int] = field(default_factory=dict)
    _ended: dict[tuple[int, int], int] = field(default_factory=dict)
    _aborts: set[tuple[int, int]] = field(default_factory=set)

    def take(self, batch: Batch) -> None:
        """Account for a batch; one that cannot be read is reported elsewhere."""
        if not isinstance(batch, RecordBatch) or batch.producer_id < 0 or not batch.is_valid:
            return
        if not batch.is_control:
            if batch.is_transactional and batch.count > 0:
                self._opened.setdefault(batch.producer_id, batch.base_offset)
            return
        try:
            kinds = {decode_control_type(record.key) for record in batch.records()}
        except CorruptError:
            return
        if not kinds & {ControlType.ABORT, ControlType.COMMIT}:
            return
        first = self._opened.pop(batch.producer_id, None)
        if ControlType.ABORT in kinds:
            end = (batch.producer_id, batch.last_offset)
            self._aborts.add(end)
            if first is not None:
                self._ended[end] = first

    def compare(self, entries: Sequence[AbortedTransaction] | None) -> list[tuple[str, int]]:
        """Return what is wrong with the index of the segment that was read, with offsets.

        Begins the next segment. ``entries`` None is an index that there is nothing to say of.
        """
        ended, aborts = self._ended, self._aborts
        self._ended, self._aborts = {}, set()
        if entries is None:
            return []
        named = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
        found = [
            (
                f"no entry for the aborted transaction of producer {producer_id} from {first} on",
                last,
            )
            for (producer_id, last), first in ended.items()
            if named.get((producer_id, last), last) > first
        ]
        found += [
            (f"the entry of producer {producer_id} ends at no abort marker", last)
            for producer_id, last in named
            if (producer_id, last) not in aborts
        ]
        return sorted(found, key=lambda each: each[1])


EPOCH_MAGIC = 2
"""Older batches have no leader epoch."""


class WrongEpoch(Struct, frozen=True):
    """A batch whose epoch is not the checkpoint's; ``is_newer``: above all that it knows."""

    expected: int
    found: int
    is_newer: bool


class EpochCheck:
    """Looks at batches in ascending order; says the first of a run that is wrong in the same way.

    Without entries, and below the first of them, nothing is known and nothing is wrong.
    """

    def __init__(self, entries: Sequence[LeaderEpoch] = ()) -> None:
        """Take the entries as the file has them; a later one removes what it contradicts."""
        known: list[LeaderEpoch] = []
        for entry in entries:
            while known and (
                known[-1].epoch >= entry.epoch or known[-1].start_offset >= entry.start_offset
            ):
                known.pop()
            known.append(entry)
        self._known = known
        self._starts = [entry.start_offset for entry in known]
        self._last: WrongEpoch | None = None

    def take(self, batch: Batch) -> WrongEpoch | None:
        """Return what is wrong with the epoch of ``batch``, once for a run of such batches."""
        wrong = self._compare(batch)
        is_reported = wrong is not None and wrong == self._last
        self._last = wrong
        return None if is_reported else wrong

    def _compare(self, batch: Batch) -> WrongEpoch | None:
        place = bisect_right(self._starts, batch.last_offset)
        if batch.magic < EPOCH_MAGIC or batch.leader_epoch < 0 or place == 0:
            return None
        expected = self._known[place - 1].epoch
        if batch.leader_epoch == expected:
            return None
        is_newer = batch.leader_epoch > self._known[-1].epoch
        return WrongEpoch(expected, batch.leader_epoch, is_newer)


PROBLEMS_MAX = 1000
"""Findings kept of one path; the rest is counted."""

_ROWS_MAX = 1024
"""Batches that are compared with the offset index at a time."""

_NOTHING = np.empty((0, 2), np.int64)


class ScanFinding(Struct, frozen=True):
    """Something to know about a file; ``severity`` is corrupt, torn or note."""

    severity: str
    path: str
    problem: str
    position: int | None = None
    expected: str | None = None
    found: str | None = None

    def as_document(self) -> dict[str, object]:
        """Return it for the document."""
        head = {"severity": self.severity, "path": self.path, "position": self.position}
        return head | shown_fields(self)


class ScanFindings(Struct):
    """What was found, the first of each path in full."""

    items: list[ScanFinding] = field(default_factory=list)
    left_out: int = 0

    def add(
        self,
        severity: str,
        path: Path,
        problem: str,
        *,
        position: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        """Add a finding, or count it when there are enough."""
        if len(self.items) >= PROBLEMS_MAX:
            self.left_out += 1
            return
        self.items.append(
            ScanFinding(
                severity,
                str(path),
                problem,
                position,
                None if expected is None else str(expected),
                None if found is None else str(found),
            )
        )

    def add_error(self, severity: str, path: Path, error: CompactionError) -> None:
        """Add a finding of an error, with position, expected and found where it has them."""
        if isinstance(error, CorruptError):
            self.add(
                severity,
                path,
                error.problem,
                position=error.position,
                expected=error.expected,
                found=error.found,
            )
        else:
            self.add(severity, path, str(error))

    @property
    def is_corrupt(self) -> bool:
        """True when a finding is of damage, or findings were left out for their number."""
        return self.left_out > 0 or any(item.severity == "corrupt" for item in self.items)


class SegmentView(Struct):
    """What one segment holds; ``end_offset`` is exclusive, ``valid_bytes`` what could be read."""

    base_offset: int
    path: Path
    size_bytes: int
    modified_ms: int
    is_active: bool
    batches: int = 0
    records: int = 0
    end_offset: int = 0
    valid_bytes: int = 0
    max_timestamp: int = NO_TIMESTAMP
    magics: Counter[int] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)

    def index_path(self, kind: Kind) -> Path:
        """Return where an index of the segment lies, whatever its own file is called."""
        return self.path.with_name(segment_file(self.base_offset, kind))

    def as_document(self) -> dict[str, object]:
        """Return it for the document."""
        return {
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "path": self.path,
            "size_bytes": self.size_bytes,
            "valid_bytes": self.valid_bytes,
            "modified_ms": self.modified_ms,
            "is_active": self.is_active,
            "batches": self.batches,
            "records": self.records,
            "max_timestamp": self.max_timestamp,
            "magics": dict(sorted(self.magics.items())),
            "codecs": dict(sorted(self.codecs.items())),
        }


class RowSample(Struct):
    """Rows of the batches or records to show: the first ``limit`` at or above ``from_offset``.

    ``topic`` is set once it is known whose records they are. ``key`` leaves out the records that
    have another one, or none.
    """

    wants_records: bool
    from_offset: int
    limit: int
    topic: str | None = None
    key: bytes | None = None
    rows: list[Row] = field(default_factory=list)
    is_cut: bool = False

    def offer(self, batch: Batch) -> None:
        """Take what is wanted of ``batch``; CorruptError when its records cannot be read."""
        if batch.last_offset < self.from_offset or self.is_cut:
            return
        if not self.wants_records:
            if not self._is_full():
                self.rows.append(batch_row(batch))
            return
        for record in batch.records():
            is_wanted = self.key is None or (record.key == self.key and not batch.is_control)
            if is_wanted and record.offset >= self.from_offset:
                if self._is_full():
                    return
                self.rows.append(record_row(batch, record, self.topic))

    def _is_full(self) -> bool:
        self.is_cut = len(self.rows) >= self.limit
        return self.is_cut


def scan_segment(
    view: SegmentView,
    files: FileSystem,
    findings: ScanFindings,
    sample: RowSample,
    aborted: AbortedScan,
    epochs: EpochCheck,
    progressed: Callable[[int], None],
) -> None:
    """Fill ``view`` by reading its file to the end, or to where it cannot be read.

    ``aborted`` and ``epochs`` have seen the segments before, if any are read.
    """
    checker = _IndexChecker.load(view, files, findings)
    view.end_offset = view.base_offset
    previous_last: int | None = None
    try:
        for batch in read_segment(files, view.path):
            _check_batch(batch, view, previous_last, findings)
            _check_epoch(batch, view, epochs, findings)
            checker.take(batch)
            aborted.take(batch)
            _count(batch, view, findings)
            try:
                sample.offer(batch)
            except CorruptError as error:
                findings.add_error("corrupt", view.path, error)
            previous_last = batch.last_offset
            progressed(batch.size_bytes)
    except CorruptError as error:
        _end_early(view, error, findings)
    checker.finish()
    problems = aborted.compare(checker.aborted)
    if view.valid_bytes == view.size_bytes:
        for problem, offset in problems:
            findings.add("corrupt", view.index_path(TXN_INDEX), f"{problem} (log offset {offset})")


def _end_early(view: SegmentView, error: CorruptError, findings: ScanFindings) -> None:
    left = view.size_bytes - view.valid_bytes
    if view.is_active:
        findings.add(
            "torn",
            view.path,
            f"torn tail of {left} bytes: {error.problem}",
            position=view.valid_bytes,
            expected=error.expected,
            found=error.found,
        )
    else:
        findings.add_error("corrupt", view.path, error)


def _count(batch: Batch, view: SegmentView, findings: ScanFindings) -> None:
    view.batches += 1
    view.valid_bytes = batch.position + batch.size_bytes
    view.end_offset = max(view.end_offset, batch.last_offset + 1)
    view.max_timestamp = max(view.max_timestamp, batch.max_timestamp)
    view.magics[batch.magic] += 1
    try:
        view.codecs[batch.codec.name.lower()] += 1
        view.records += max(batch.count, 0)
    except CorruptError as error:
        findings.add(
            "corrupt",
            view.path,
            error.problem,
            position=batch.position,
            expected=error.expected,
            found=error.found,
        )


def _check_batch(
    batch: Batch, view: SegmentView, previous_last: int | None, findings: ScanFindings
) -> None:
    if not batch.is_valid:
        findings.add(
            "corrupt",
            view.path,
            "crc mismatch",
            position=batch.position,
            expected=f"{batch.crc:#010x}",
            found=f"{batch.computed_crc:#010x}",
        )
        return
    first = view.base_offset if previous_last is None else previous_last + 1
    if batch.last_offset < first:
        findings.add(
            "corrupt",
            view.path,
            "offsets do not ascend",
            position=batch.position,
            expected=f"at least {first}",
            found=batch.last_offset,
        )
    elif batch.last_offset - view.base_offset > RELATIVE_OFFSET_MAX:
        findings.add(
            "corrupt",
            view.path,
            "offset too far from the segment's base",
            position=batch.position,
            expected=f"at most {view.base_offset + RELATIVE_OFFSET_MAX}",
            found=batch.last_offset,
        )


def _check_epoch(
    batch: Batch, view: SegmentView, epochs: EpochCheck, findings: ScanFindings
) -> None:
    wrong = epochs.take(batch)
    if wrong is None:
        return
    is_late = wrong.is_newer and view.is_active
    findings.add(
        "note" if is_late else "corrupt",
        view.path,
        "leader epoch is newer than leader-epoch-checkpoint, which a broker may not have written"
        if is_late
        else "leader epoch contradicts leader-epoch-checkpoint; no checksum protects either",
        position=batch.position,
        expected=wrong.expected,
        found=wrong.found,
    )


class _IndexChecker:
    """Holds the offset index against the batches of its segment, and the ends of both indexes."""

    def __init__(
        self,
        view: SegmentView,
        findings: ScanFindings,
        offsets: NDArray[np.int64],
        last_time: int,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> None:
        self.aborted = aborted
        self._view = view
        self._findings = findings
        self._offsets = offsets
        self._last_time = last_time
        self._walk = IndexWalk(view.base_offset, offsets, _NOTHING)
        self._rows: list[tuple[int, int, int, int]] = []

    @classmethod
    def load(cls, view: SegmentView, files: FileSystem, findings: ScanFindings) -> _IndexChecker:
        """Read and check the index files of a segment."""
        offsets = _NOTHING
        last_time = NO_TIMESTAMP
        read = read_index_start if view.is_active else read_index
        kinds: tuple[tuple[Kind, ModuleType], ...] = (
            (INDEX, offset_index),
            (TIME_INDEX, time_index),
        )
        for kind, codec in kinds:
            path = view.index_path(kind)
            if not files.exists(path):
                findings.add("note", path, "no index: it is rebuilt when it is needed")
                continue
            try:
                entries = codec.decode(read(path, kind, view.size_bytes, files))
            except CompactionError as error:
                findings.add_error("corrupt", path, error)
                continue
            used = len(filled_entries(entries) if view.is_active else entries)
            problem = codec.find_problem(entries[:used], view.size_bytes)
            if problem is not None:
                findings.add("corrupt", path, f"wrong index: {problem}")
            elif used < files.stat(path).size_bytes // codec.ENTRY_BYTES:
                findings.add("note", path, "index is not trimmed, as a running broker has it")
            if problem is None and codec is offset_index:
                offsets = entries[:used]
            elif problem is None and used:
                last_time = int(entries[used - 1, 0])
        return cls(view, findings, offsets, last_time, _load_aborted(view, files, findings))

    def take(self, batch: Batch) -> None:
        """Take the next batch; some are compared together."""
        # The sum of two damaged fields may be beyond what an offset is.
        last = max(-1, min(batch.last_offset, INT64_MAX - 1))
        self._rows.append(
            (batch.position, batch.position + batch.size_bytes, last, batch.max_timestamp)
        )
        if len(self._rows) == _ROWS_MAX:
            self._compare()

    def _compare(self) -> None:
        starts, ends, lasts, stamps = np.array(self._rows, np.int64).reshape(-1, 4).T
        self._rows.clear()
        if not len(starts):
            return
        found, _ = self._walk.add(starts, int(ends[-1]), lasts, stamps)
        is_inside = found.starts != found.positions
        # Not above the batch's own last offset: an entry may carry that of a whole append.
        for i in np.flatnonzero(is_inside | (found.offsets < found.floors)).tolist():
            number, position = int(found.numbers[i]), int(found.positions[i])
            if is_inside[i]:
                self._wrong(f"entry {number} points inside a batch", position)
            else:
                self._wrong(
                    f"entry {number} has an earlier batch's offset",
                    position,
                    expected=f"at least {found.floors[i]}",
                    found=int(found.offsets[i]),
                )

    def finish(self) -> None:
        """Compare the ends of both indexes with the segment."""
        self._compare()
        view = self._view
        if len(self._offsets) and view.valid_bytes == view.size_bytes:
            relative, position = self._offsets[-1].tolist()
            if view.base_offset + relative >= view.end_offset:
                self._wrong(
                    "offset beyond the segment's end",
                    position,
                    expected=f"below {view.end_offset}",
                    found=view.base_offset + relative,
                )
        if self._last_time > view.max_timestamp and view.valid_bytes == view.size_bytes:
            self._findings.add(
                "corrupt",
                view.index_path(TIME_INDEX),
                "wrong index: time beyond the segment's greatest",
                expected=f"at most {view.max_timestamp}",
                found=self._last_time,
            )

    def _wrong(
        self, problem: str, position: int, *, expected: object = None, found: object = None
    ) -> None:
        self._findings.add(
            "corrupt",
            self._view.index_path(INDEX),
            f"wrong index: {problem} (log position {position})",
            expected=expected,
            found=found,
        )


def _load_aborted(
    view: SegmentView, files: FileSystem, findings: ScanFindings
) -> Sequence[AbortedTransaction] | None:
    """Return the entries of the transaction index, None where there is nothing to compare.

    Without an offset index none is expected: all are rebuilt when they are needed.
    """
    path = view.index_path(TXN_INDEX)
    if not files.exists(path):
        return () if files.exists(path.with_suffix(INDEX)) else None
    try:
        entries = txn_index.decode(read_index(path, TXN_INDEX, view.size_bytes, files))
    except CompactionError as error:
        findings.add_error("corrupt", path, error)
        return None
    for index, entry in enumerate(entries):
        if entry.last_offset < view.base_offset:
            findings.add(
                "corrupt",
                path,
                "aborted transaction ends before its segment begins",
                position=index * txn_index.ENTRY_BYTES,
                expected=f"at least {view.base_offset}",
                found=entry.last_offset,
            )
    # An entry of another segment is reported above, and once.
    return [entry for entry in entries if entry.last_offset >= view.base_offset]
