"""The receipts of a place, kept in short while it is watched: what grew is read, never all again.

A file may have 64 MiB, and a round of it thousands of segments: kept are figures, of the newest
rounds. A line that is no receipt is counted and left out: pages show what there is. Reads without
any lock; a last line that is not whole yet waits for its end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem, reading
from keeplast.model.partition import INT64_MAX, TopicPartition, delete_horizon
from keeplast.model.text import format_counted
from keeplast.run.receipt import previous_receipts
from keeplast.service.status import LastRound, last_round_of
from keeplast.survey.receipt_book import (
    ActionReceipt,
    CollectionReceipt,
    Entry,
    ExpiryReceipt,
    RemovalReceipt,
    RoundName,
    RoundReceipt,
    UndoReceipt,
    VerdictReceipt,
    beside_rounds,
    join_waves,
    parse_entry,
)

LINES_MAX = 5000
"""So many of the newest lines are kept; the files have all."""
OPEN_ROUNDS_MAX = 64
"""Rounds that await more waves; older ones were cut off by a crash."""
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
HEAD_BYTES = 256
"""By its first bytes a file is known for the one that was read before."""
REASONS = ("superseded", "tombstone", "aborted", "keyless", "marker")


ACTION = "action"
"""The kind of what a person asked a loop for: of a partition, but no round of it."""


class ReceiptLine(Struct, frozen=True):
    """A round, an expiry, a removal, a collection, an action or a verdict, in short.

    Offsets are ``[first, end)``. ``removed`` are records by the reason they went, those that are
    not 0. ``partition`` None is of an action that is about no partition; ``words`` say what a line
    is about that is no round. ``subject`` is which round it is of, or the verdict that it is;
    ``verdict`` what ``verify`` said of the round and when, empty where none was noted.
    ``tombstones`` is how many the round left, of a directory alone: elsewhere a round need not read
    all. ``horizon_ms`` is what it gave those that had no delete horizon, None for never.
    """

    kind: str
    at_ms: int
    partition: TopicPartition | None
    first: int | None = None
    end: int | None = None
    round: LastRound | None = None
    removed: tuple[tuple[str, int], ...] = ()
    has_ended: bool = True
    words: str = ""
    subject: RoundName | VerdictReceipt | None = None
    verdict: str = ""
    tombstones: int | None = None
    horizon_ms: int | None = None


class _ReadSoFar(Struct):
    """How far a file was read; ``head`` is what it began with."""

    offset: int = 0
    head: bytes = b""
    rest: bytes = b""


class ReceiptShelf:
    """Receipts of the files that a loop writes; :meth:`refresh` reads what came since."""

    def __init__(self, files: FileSystem, path: Path | None) -> None:
        """Take the file that rounds append to, None for none; the one before it lies next to it."""
        self._files = files
        self._path = path
        self._now = _ReadSoFar()
        self._open: dict[tuple[TopicPartition, str], RoundReceipt] = {}
        self._lines: deque[ReceiptLine] = deque(maxlen=LINES_MAX)
        self._shown: tuple[ReceiptLine, ...] | None = None
        self._lock = threading.RLock()
        self.last_rounds: dict[TopicPartition, LastRound] = {}
        self.unreadable = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files, the older one first; they need not be there."""
        if self._path is None:
            return ()
        return (previous_receipts(self._path), self._path)

    def lines(self) -> tuple[ReceiptLine, ...]:
        """Return the newest lines, oldest first; a verdict is shown with the rounds it is of."""
        with self._lock:
            if self._shown is None:
                self._shown = tuple(
                    line if verdict is None else replace(line, verdict=verdict.words)
                    for line, verdict in beside_rounds(self._lines, lambda line: line.subject)
                )
            return self._shown

    def refresh(self) -> Mapping[TopicPartition, LastRound]:
        """Read what was appended; returns the newest round of each partition. Raises OSError.

        A loop and a console next to it may ask at once: one of them reads.
        """
        with self._lock:
            if self._path is not None:
                self._refresh(self._path)
            return dict(self.last_rounds)

    def _refresh(self, path: Path) -> None:
        size = self._size(path)
        head = self._head(path) if size else b""
        known = self._now
        if size < known.offset or not head.startswith(known.head):
            # Put aside by the writer, or another file: begin again, with the one before.
            self._forget()
            known = self._now
        if not known.offset:
            older = self.paths[0]
            if self._size(older):
                self._read(older, _ReadSoFar(), self._size(older))
        self._read(path, known, size)
        known.head = head
        is_judged = any(isinstance(each.subject, VerdictReceipt) for each in self._lines)
        if self._shown is None and is_judged:
            self._judge_last()

    def _judge_last(self) -> None:
        """Let the newest rounds have the verdicts that count of them."""
        for line in self.lines():
            if line.partition is None or not line.verdict:
                continue
            last = self.last_rounds[line.partition]
            if line.round == replace(last, verdict=""):
                self.last_rounds[line.partition] = replace(last, verdict=line.verdict)

    def _forget(self) -> None:
        self._now = _ReadSoFar()
        self._open.clear()
        self._lines.clear()
        self._shown = None
        self.last_rounds = {}
        self.unreadable = 0

    def _size(self, path: Path) -> int:
        return self._files.stat(path).size_bytes if self._files.exists(path) else 0

    def _head(self, path: Path) -> bytes:
        with reading(self._files, path) as handle:
            data = bytearray(min(HEAD_BYTES, handle.size_bytes))
            del data[handle.pread_into(memoryview(data), 0) :]
        return bytes(data)

    def _read(self, path: Path, at: _ReadSoFar, end: int) -> None:
        if at.offset >= end:
            return
        with reading(self._files, path) as handle:
            while at.offset < end:
                data = bytearray(min(CHUNK_BYTES, end - at.offset))
                count = handle.pread_into(memoryview(data), at.offset)
                if not count:
                    return
                at.offset += count
                *whole, at.rest = (at.rest + bytes(data[:count])).split(b"\n")
                for line in whole:
                    self._take(line)
                if len(at.rest) > LINE_BYTES_MAX:
                    at.rest = b""
                    self.unreadable += 1

    def _take(self, line: bytes) -> None:
        try:
            entry = parse_entry(line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CompactionError):
            self.unreadable += 1
            return
        if isinstance(entry, RoundReceipt):
            entry = self._whole(entry)
        try:
            found = receipt_line(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.unreadable += 1
            return
        if found.round is not None and found.partition is not None:
            self.last_rounds[found.partition] = found.round
        self._lines.append(found)
        self._shown = None

    def _whole(self, wave: RoundReceipt) -> RoundReceipt:
        """Return a round with its earlier waves, whose line goes."""
        if wave.attempt is None:
            return wave
        name = (wave.partition, wave.attempt)
        earlier = self._open.pop(name, None)
        if earlier is not None:
            before = receipt_line(earlier)
            self._lines = deque((x for x in self._lines if x != before), LINES_MAX)
            wave = join_waves(earlier, wave)
        if not wave.has_ended:
            self._open[name] = wave
            if len(self._open) > OPEN_ROUNDS_MAX:
                del self._open[next(iter(self._open))]
        return wave


def receipt_line(entry: Entry) -> ReceiptLine:
    """Return a receipt in short; KeyError, ValueError or TypeError when its figures are not."""
    if isinstance(entry, ExpiryReceipt):
        segments = len(entry.bases)
        return ReceiptLine(
            "expiry", entry.now_ms, entry.partition, entry.log_start_before, entry.log_start,
            words=f"{segments} segment{'' if segments == 1 else 's'} expired",
        )  # fmt: skip
    if isinstance(entry, RemovalReceipt):
        kind = str(entry.document["removal"]["kind"])
        return ReceiptLine(
            "removal", entry.now_ms, entry.partition, entry.start, entry.end,
            words=f"taken out of the store: {kind}",
        )  # fmt: skip
    if isinstance(entry, CollectionReceipt):
        return ReceiptLine(
            "collection", entry.now_ms, entry.partition, entry.start, entry.end,
            words=f"{format_counted(entry.segments, 'replaced segment')} collected",
        )  # fmt: skip
    if isinstance(entry, UndoReceipt):
        return ReceiptLine(
            "undo", entry.now_ms, entry.partition,
            words=f"round {entry.attempt} undone, {format_counted(entry.segments, 'segment')} back",
        )  # fmt: skip
    if isinstance(entry, ActionReceipt):
        return ReceiptLine(ACTION, entry.now_ms, entry.partition, words=entry.words)
    if isinstance(entry, VerdictReceipt):
        return ReceiptLine(
            "verdict", entry.now_ms, entry.partition,
            words=f"{entry.words}, of rounds before these", subject=entry,
        )  # fmt: skip
    reasons = entry.document["round"].get("reasons") or {}
    config = entry.document.get("config") or {}
    horizon_ms = delete_horizon(entry.now_ms, int(config.get("delete.retention.ms", INT64_MAX)))
    return ReceiptLine(
        "round",
        entry.now_ms,
        entry.partition,
        entry.first_dirty,
        entry.end_offset,
        last_round_of(entry),
        tuple(
            (name, int(reasons[f"{name}_records"]))
            for name in REASONS
            if reasons.get(f"{name}_records")
        ),
        entry.has_ended,
        subject=(entry.partition, entry.name),
        tombstones=entry.document["round"]["stats"].get("tombstones_written"),
        horizon_ms=horizon_ms if horizon_ms >= 0 else None,
    )
