"""A log as ``verify`` reads it, and the checks with which it answers.

The rule that a reader must not break: *holds* is said only of what was looked at in full. What a
check could not look at makes it *cannot be judged*, with the reason, unless something is broken. A
reason is never shown as holds.

A log is read in parts of a segment, with columns of batches and of records. A part is valid until
the next one is asked for. The window reader and the parsers of records and their versions are the
cleaner's, and nothing that decides is. Keys and contents have fingerprints of their own, old
formats go through the codec of one value, and a sort says which version is greater.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.fingerprints import fingerprint_batches, fingerprint_rows
from keeplast.columns.kernel import OK, PROBLEMS, TOO_MANY
from keeplast.columns.rows import HAS_VALUE
from keeplast.columns.version_ranks import HAS_VERSION, read_header_versions, read_timestamps
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.compression import Codec, decompress
from keeplast.format.message_set import Batch
from keeplast.format.record import Record, encode_record
from keeplast.inspect.key_search import batch_at
from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    HORIZON,
    IS_TOMBSTONE,
    KEY_HIGH,
    KEY_LOW,
    KEY_SHIFT,
    OFFSET,
    VERSION,
    Rows,
)
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_end import noted_high_watermark, require_log_end
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, find_tail, list_partition
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.document import JudgedBy, Verdict
from keeplast.model.topic_config import Strategy, TopicConfig

FINDINGS_MAX = 10
REASONS_MAX = 5


class Finding(Struct, frozen=True):
    """One thing that is not as it must be; ``key`` None when it is about no key.

    ``where`` names the segment, object or row of a store.
    """

    problem: str
    offset: int | None = None
    key: bytes | None = None
    where: Mapping[str, str] = field(default_factory=dict)


class Findings(Struct):
    """What a check has found so far: the first few, and how many in all."""

    first: list[Finding] = field(default_factory=list)
    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, problem: str, *, offset: int | None = None, key: bytes | None = None) -> None:
        """Count a finding; keep it if it is one of the first."""
        self.count += 1
        if len(self.first) < FINDINGS_MAX:
            self.first.append(Finding(problem, offset, key))

    def add_at(self, problem: str, offset: int | None, where: Mapping[str, str]) -> None:
        """Keep a finding of a store, however many there are: each names what is to be restored."""
        self.count += 1
        self.first.append(Finding(problem, offset, where=where))

    def add_all(self, other: Findings) -> None:
        """Take over what another pass has found."""
        self.first = [*self.first, *other.first][:FINDINGS_MAX]
        self.count += other.count
        for reason in other.reasons:
            self.cannot_judge(reason)

    def cannot_judge(self, reason: str) -> None:
        """Remember why something was not looked at."""
        if reason not in self.reasons and len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason)

    def check(self, name: str, claim: str) -> Check:
        """Return the check that rests on these findings."""
        verdict = Verdict.HOLDS
        if self.count:
            verdict = Verdict.BROKEN
        elif self.reasons:
            verdict = Verdict.UNJUDGED
        return Check(name, claim, verdict, self.count, tuple(self.first), tuple(self.reasons))


class Check(Struct, frozen=True):
    """One claim and the verdict on it; ``findings`` are the first of ``count``."""

    name: str
    claim: str
    verdict: Verdict
    count: int
    findings: tuple[Finding, ...]
    reasons: tuple[str, ...]


class VerificationReport(Struct, frozen=True):
    """All checks of one partition, and facts that explain them.

    ``rounds`` are the names of the rounds that were judged, oldest first, as a receipt has them;
    ``judged_by`` says as of what, where the log has an owner.
    """

    name: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    judged_by: JudgedBy | None = None

    def names(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the names of the checks with this verdict."""
        return tuple(check.name for check in self.checks if check.verdict is verdict)

    @property
    def check_names(self) -> tuple[str, ...]:
        """Return the names of all checks."""
        return tuple(check.name for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict of the checks: broken, then cannot be judged, then holds."""
        found = {check.verdict for check in self.checks}
        for verdict in (Verdict.BROKEN, Verdict.UNJUDGED):
            if verdict in found:
                return verdict
        return Verdict.HOLDS

    def check(self, name: str) -> Check:
        """Return the check of that name."""
        return next(check for check in self.checks if check.name == name)

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "partition": self.name, "verdict": self.verdict, "checks": self.checks,
            "notes": self.notes,
        }  # fmt: skip


WINDOW_BYTES = 4 << 20
ROWS = 1 << 16
SCRATCH_BYTES = 16 << 20

LEADER_EPOCH = 0
BASE_SEQUENCE = 1
"""Columns of :attr:`Part.extra`: header fields that the batch table has no column for."""


class VerifiedPart(Struct, frozen=True):
    """Batches ``[first, last)`` of a window and the records in them.

    ``table`` and ``extra`` have a row a batch; ``offsets``, ``keys``, ``contents``, ``flags``,
    ``versions`` and ``batch_of`` (number within the part) one a record. Versions are 0 where the
    strategy has none.
    """

    window: Window
    first: int
    table: NDArray[np.int64]
    extra: NDArray[np.int64]
    offsets: NDArray[np.int64]
    keys: NDArray[np.int64]
    contents: NDArray[np.int64]
    flags: NDArray[np.uint8]
    versions: NDArray[np.int64]
    batch_of: NDArray[np.int64]

    @property
    def last_offset(self) -> int:
        """Return the greatest last offset of the batches."""
        return int(self.table[:, t.LAST_OFFSET].max())

    def horizons(self) -> NDArray[np.int64]:
        """Return the delete horizon of each batch, -1 without."""
        has = self.table[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
        return np.where(has, self.table[:, t.BASE_TIMESTAMP], -1)

    def rows(self, chosen: NDArray[np.int64], sides: int) -> Rows:
        """Return a row to sort for each of the records ``chosen``, which are on ``sides``."""
        flags = self.flags[chosen]
        rows = np.empty((len(chosen), COLUMNS), np.int64)
        rows[:, KEY_HIGH] = self.keys[chosen, 0]
        rows[:, KEY_LOW] = (self.keys[chosen, 1] << KEY_SHIFT) | (flags & HAS_VERSION != 0)
        rows[:, VERSION] = self.versions[chosen]
        rows[:, OFFSET] = self.offsets[chosen]
        rows[:, HORIZON] = self.horizons()[self.batch_of[chosen]]
        rows[:, FLAGS] = sides | (flags & HAS_VALUE == 0) * IS_TOMBSTONE
        return rows

    def batch(self, number: int) -> Batch:
        """Return batch ``number`` as a value, from the bytes alone."""
        return batch_at(self.window, self.first + number)

    def record(self, number: int, offset: int) -> Record | None:
        """Return the record at ``offset`` of batch ``number``, None when it is not in there."""
        return next((r for r in self.batch(number).records() if r.offset == offset), None)

    def digests(self, numbers: NDArray[np.int64], seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return fingerprints of all bytes of some batches."""
        found = np.empty((len(numbers), 2), np.int64)
        chosen = np.ascontiguousarray(numbers + self.first)
        fingerprint_batches(self.window.data, self.window.table, chosen, seeds, found)
        return found


class VerifiedLog:
    """One partition directory that no process writes to while it is read."""

    def __init__(self, path: Path, files: FileSystem) -> None:
        """List the directory and find where the log ends."""
        self.path = path
        self.files = files
        start = noted_log_start(files, path)
        self.listing: PartitionFiles = list_partition(path, files, if_empty=start)
        self.tail = find_tail(self.listing, files)

    def require_end(self) -> None:
        """Raise CorruptError where the log does not end as its files do."""
        watermark = noted_high_watermark(self.files, self.path)
        require_log_end(self.listing, self.tail, watermark, self.files)

    @property
    def segments(self) -> tuple[SegmentFiles, ...]:
        """Return the segments, the last one active."""
        return self.listing.segments

    @property
    def start(self) -> int:
        """Return the base offset of the first segment."""
        return self.segments[0].base_offset

    @property
    def end(self) -> int:
        """Return the offset after the last batch."""
        return self.tail.log_end

    def windows_of(
        self, segment: SegmentFiles, buffers: WindowBuffers, *, checks_crc: bool
    ) -> Iterator[Window]:
        """Yield the batches of one segment; CorruptError where it cannot be read on."""
        if not segment.size_bytes:
            return  # the only one of an empty log may have no file
        is_active = segment is self.listing.active
        end = self.tail.valid_bytes if is_active else segment.size_bytes
        path = segment.log_path
        with reading(self.files, path) as handle:
            yield from read_windows(handle, path, buffers, end=end, checks_crc=checks_crc)

    def windows(self, buffers: WindowBuffers, *, checks_crc: bool = False) -> Iterator[Window]:
        """Yield all batches in order; ``checks_crc`` False when that was done before."""
        for segment in self.segments:
            yield from self.windows_of(segment, buffers, checks_crc=checks_crc)

    def parts(
        self, seeds: NDArray[np.uint64], topic: TopicConfig, *, checks_crc: bool = False
    ) -> Iterator[VerifiedPart]:
        """Yield all batches with their records, in order, and the versions ``topic`` ranks by."""
        reader = PartReader(seeds, topic)
        for window in self.windows(WindowBuffers(WINDOW_BYTES), checks_crc=checks_crc):
            yield from reader.parts(window)

    def records_at(self, offsets: set[int]) -> dict[int, Record]:
        """Return the records at some offsets; reads the segments that hold them."""
        found: dict[int, Record] = {}
        buffers = WindowBuffers(WINDOW_BYTES)
        if not offsets:
            return found
        wanted = np.array(sorted(offsets), np.int64)
        for window in self.windows(buffers):
            rows = window.table[: window.batches]
            lasts = rows[:, t.LAST_OFFSET]
            if int(lasts.max()) < wanted[0]:
                continue
            bases = rows[:, t.BASE_OFFSET].copy()
            # The wrapper of an old format says only where it ends.
            bases[rows[:, t.MAGIC] < 2] = wanted[0]
            holds = np.searchsorted(wanted, bases) < np.searchsorted(wanted, lasts, "right")
            for i in np.flatnonzero(holds).tolist():
                for record in batch_at(window, i).records():
                    if record.offset in offsets:
                        found.setdefault(record.offset, record)
        return found


class PartReader:
    """The arrays that parts are made in; two logs that are read at once need one each."""

    def __init__(self, seeds: NDArray[np.uint64], topic: TopicConfig) -> None:
        """Take the points of the fingerprints, and by what records rank."""
        self._seeds = seeds
        self._strategy = topic.strategy
        self._header = np.frombuffer(bytearray((topic.strategy_header or "").encode()), np.uint8)
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        self._make_rows(ROWS)

    def _make_rows(self, count: int) -> None:
        self._offsets = np.empty(count, np.int64)
        self._keys = np.empty((count, 2), np.int64)
        self._contents = np.empty((count, 2), np.int64)
        self._flags = np.empty(count, np.uint8)
        self._versions = np.zeros(count, np.int64)
        self._all = np.ones(count, np.uint8)

    def parts(self, window: Window) -> Iterator[VerifiedPart]:
        """Yield the parts of one window."""
        first = 0
        while first < window.batches:
            last = self._uncover(window, first)
            stop, count, code = fingerprint_rows(
                window.data, self._scratch, window.table, first, last, self._seeds,
                self._offsets, self._keys, self._contents, self._flags,
            )  # fmt: skip
            if code == TOO_MANY and stop == first:
                self._make_rows(int(window.table[first, t.COUNT]))
                continue
            if code not in (OK, TOO_MANY):
                raise window.corrupt(stop, PROBLEMS[code], "records that fill the batch", "others")
            self._read_versions(window, first, stop)
            table = window.table[first:stop]
            yield VerifiedPart(
                window, first, table, _extra(window, table),
                self._offsets[:count], self._keys[:count], self._contents[:count],
                self._flags[:count], self._versions[:count],
                np.repeat(np.arange(stop - first), table[:, t.ROWS]),
            )  # fmt: skip
            first = stop

    def _read_versions(self, window: Window, first: int, last: int) -> None:
        """Read what the records rank by, where that is more than the offset."""
        if self._strategy is Strategy.TIMESTAMP:
            read_timestamps(
                window.data, self._scratch, window.table, first, last,
                self._all, self._flags, self._versions,
            )  # fmt: skip
        elif self._strategy is Strategy.HEADER:
            read_header_versions(
                window.data, self._scratch, window.table, first, last, self._header,
                self._all, self._flags, self._versions,
            )  # fmt: skip

    def _uncover(self, window: Window, first: int) -> int:
        """Put compressed and old-format records from ``first`` on into scratch.

        Returns the batch at which scratch was full.
        """
        rest = window.table[first : window.batches]
        rest[rest[:, t.PAYLOAD_IN] == 1, t.PAYLOAD_IN] = -1
        at = 0
        for i in (np.flatnonzero(rest[:, t.PAYLOAD_IN] < 0) + first).tolist():
            payload = np.frombuffer(_payload(window, i), np.uint8)
            if at + len(payload) > len(self._scratch):
                if at:
                    return int(i)
                self._scratch = np.empty(len(payload), np.uint8)
            self._scratch[at : at + len(payload)] = payload
            window.table[i, t.PAYLOAD_IN] = 1
            window.table[i, t.PAYLOAD_START] = at
            at += len(payload)
            window.table[i, t.PAYLOAD_END] = at
        return window.batches


def _payload(window: Window, number: int) -> bytes | bytearray | memoryview:
    """Return the records of a hidden batch in the layout of magic 2."""
    row = window.table[number]
    try:
        if row[t.MAGIC] == 2:
            start = int(row[t.POSITION])
            data = window.data.data[start + t.HEADER_BYTES : start + int(row[t.SIZE])]
            return decompress(Codec(int(row[t.ATTRIBUTES]) & t.CODEC_MASK), data)
        records = list(batch_at(window, number).records())
        row[t.BASE_OFFSET] = records[0].offset
        row[t.COUNT] = len(records)
        row[t.BASE_TIMESTAMP] = records[0].timestamp
        return b"".join(
            encode_record(r, base_offset=records[0].offset, base_timestamp=records[0].timestamp)
            for r in records
        )
    except CorruptError as error:
        raise window.corrupt(number, error.problem, error.expected, error.found) from error
    except InvalidError as error:  # offsets of an old set that no record of magic 2 can have
        raise window.corrupt(
            number, "records do not fit their batch", "ascending offsets", error
        ) from error


def _extra(window: Window, table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return leader epochs and base sequences; -1 where the format has none."""
    extra = np.full((len(table), 2), -1, np.int64)
    chosen = np.flatnonzero(table[:, t.MAGIC] == 2)
    starts = table[chosen, t.POSITION]
    for column, at in ((LEADER_EPOCH, 12), (BASE_SEQUENCE, 53)):
        raw = window.data[starts[:, None] + np.arange(at, at + 4)]
        extra[chosen, column] = raw.copy().view(">i4").ravel()
    return extra
