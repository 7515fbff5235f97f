"""The status of a data directory: every partition, what needs attention first, and until when.

Joins what each log says (:mod:`keeplast.inspect.status`) with what only the directory knows: which
partitions are set aside, what the last rounds did, and how many logs share the daemon, which bounds
how long a log can have to wait for its turn. Reads without the lock and writes nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from keeplast.cleaner.erasure import BasisKind, ErasureBasis, Pace, find_turn_ms
from keeplast.cleaner.reasons import Decision, DueReason, NothingBelow
from keeplast.config.definitions import BY_KEY
from keeplast.config.settings import Settings
from keeplast.errors import InterruptedSwapError
from keeplast.format.filename import LOG, parse_segment_file
from keeplast.inspect.status import LogStatus
from keeplast.log.child_path import child_path
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory
from keeplast.log.files import FileSystem
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.receipt_names import FILE_NAME, PREVIOUS_NAME
from keeplast.service.schedule import LOOK_MS_MIN
from keeplast.service.set_aside import SetAside, is_about
from keeplast.survey.receipt_book import (
    Entry,
    RoundReceipt,
    beside_rounds,
    last_line,
    read_entries,
    rounds_of,
    told_of,
)
from keeplast.survey.report import PartitionReport, describe_error
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import basis_words, decision_words

ROUND_BYTES_PER_SECOND = 32 << 20
"""Bytes of a log that a worker gets through in a second, at the least: both passes over compressed
batches, and the writing, on one slow disk."""
ROUND_MS_MIN = 2000


class State(StrEnum):
    """Where a partition stands; what needs somebody's attention comes first."""

    SET_ASIDE = "set aside"
    UNREADABLE = "unreadable"
    INTERRUPTED = "interrupted"
    FAILING = "failing"
    OVERDUE = "overdue"
    ELIGIBLE = "eligible"
    EXPIRED = "expired"
    NOT_DUE = "not due"
    HELD_BACK = "held back"
    CLEAN = "clean"
    REFUSED = "refused"
    NOT_COMPACTED = "not compacted"


_DUE = (State.OVERDUE, State.ELIGIBLE, State.EXPIRED)
_URGENCY = {state: rank for rank, state in enumerate(State)}


@dataclass(frozen=True, slots=True)
class ErasedBy:
    """By when every value that is overwritten or deleted in the log now is gone from the disk.

    It assumes that rounds succeed from now on; ``is_unknown`` while they fail. ``by_ms`` None means
    that there is no bound, ``is_gone`` that there is nothing left to go; ``basis`` is what says
    so, or what the bound rests on. ``eligible_by_ms`` is when the round is due, ``undo_ms`` how
    long what it replaces is kept, and the rest of the time is what it may have to wait and take.
    """

    by_ms: int | None
    eligible_by_ms: int | None
    basis: ErasureBasis
    is_gone: bool = False
    is_unknown: bool = False
    undo_ms: int = 0

    @property
    def why(self) -> str:
        """Return the basis in words."""
        return basis_words(self.basis)


@dataclass(frozen=True, slots=True)
class LastRound:
    """The newest round of a partition that left a receipt.

    ``verdict`` is what ``verify`` said of it and when, empty where nobody noted it.
    """

    at_ms: int
    first_dirty: int
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    seconds: float
    verdict: str = ""
    bound: int | None = None
    """What it could have cleaned up to, exclusive; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; ``log`` is None where it was not or could not be looked at.

    ``reason`` is a sentence: why it is in its state; ``decision`` is the same
    as a value where its log says so.
    """

    partition: TopicPartition
    state: State
    reason: str
    log: LogStatus | None = None
    decision: Decision | None = None
    error: Exception | None = None
    set_aside: SetAside | None = None
    failing: SetAside | None = None
    last_round: LastRound | None = None
    erased_by: ErasedBy | None = None


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """All partitions that were asked for, the most urgent first, as of ``now_ms``.

    ``is_locked`` says that a broker or another keeplast holds the directory, so that what was read
    may have changed meanwhile.
    """

    root: Path
    now_ms: int
    is_locked: bool
    pace: Pace
    partitions: tuple[PartitionStatus, ...]

    def in_state(self, state: State) -> list[PartitionStatus]:
        """Return the partitions in one state."""
        return [each for each in self.partitions if each.state is state]


def join_status(
    found: Sequence[tuple[PartitionRequest, LogStatus | Exception]],
    decided: Sequence[PartitionReport],
    *,
    root: Path,
    files: FileSystem,
    now_ms: int,
    is_locked: bool,
    pace: Pace,
    marks: Mapping[TopicPartition, SetAside],
    failures: Mapping[TopicPartition, SetAside],
    last_rounds: Mapping[TopicPartition, LastRound],
    sizes: Sequence[int],
) -> DirectoryStatus:
    """Return the status of the directory from what was found of each log.

    ``decided`` are partitions that their settings keep from being looked at. ``marks`` are those
    that are set aside, ``failures`` those whose last round failed and is tried again.
    ``last_rounds`` are the newest that left a receipt. ``sizes`` are the bytes of all logs that
    share the daemon, those included that nobody asked for.
    """
    turn_ms = find_turn_ms(sizes, pace) if sizes else 0
    statuses = [_report_decided(report) for report in decided]
    for request, log in found:
        partition = request.partition
        mark, failure = marks.get(partition), failures.get(partition)
        if mark is not None and not is_about(mark, files, request.path):
            mark = None  # other files by now: the daemon tries them again
        status = _look_at(request, log) if mark is None else _set_aside(partition, mark, log)
        if failure is not None and status.state in _DUE and is_about(failure, files, request.path):
            status = replace(
                status, state=State.FAILING, reason=failure.reason, decision=None, failing=failure
            )
        statuses.append(
            replace(
                status,
                last_round=last_rounds.get(partition),
                erased_by=_bound_erasure(status, turn_ms, now_ms),
            )
        )
    return DirectoryStatus(root, now_ms, is_locked, pace, tuple(sorted(statuses, key=_urgency)))


def read_round_receipts(
    files: FileSystem, root: Path, given: Path | None
) -> tuple[RoundReceipt, ...]:
    """Return the rounds in ``given``, else those that the daemon keeps in ``root``, in order."""
    return rounds_of(read_kept_entries(files, root, given))


def read_kept_entries(files: FileSystem, root: Path, given: Path | None) -> tuple[Entry, ...]:
    """Return all that ``given`` tells, else what the daemon keeps in ``root``, in order.

    What a crash has left of the first line of all tells of nothing that was done.
    """
    if given is not None:
        return read_entries(given, files)
    paths = [root / name for name in (PREVIOUS_NAME, FILE_NAME)]
    return tuple(
        entry
        for path in paths
        if files.exists(path) and _has_line(files, path)
        for entry in read_entries(path, files)
    )


def _has_line(files: FileSystem, path: Path) -> bool:
    try:
        return last_line(files, path) is not None
    except ValueError:
        return True  # Whoever reads it says what is wrong with it.


def find_last_rounds(entries: Iterable[Entry]) -> dict[TopicPartition, LastRound]:
    """Return the newest round of each partition, and its verdict; ``entries`` are in order."""
    found = {}
    for entry, verdict in beside_rounds(entries, told_of):
        if isinstance(entry, RoundReceipt):
            last = last_round_of(entry)
            found[entry.partition] = (
                last if verdict is None else replace(last, verdict=verdict.words)
            )
    return found


def find_sizes(
    directory: DataDirectory, files: FileSystem, known: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, int]:
    """Return the bytes of every log in the directory that a daemon may have to clean.

    Those in ``known`` are not measured again.
    """
    told = {} if known is None else known
    return {
        entry.partition: told[entry.partition]
        if entry.partition in told
        else _size_bytes(entry.path, files)
        for entry in directory.partitions
        if entry.mark is None and entry.partition.topic != METADATA_TOPIC
    }


def _size_bytes(path: Path, files: FileSystem) -> int:
    """Return the bytes of the segments in ``path``.

    What goes meanwhile counts for nothing, and what cannot be read: rounds of it fail at once.
    """
    size_bytes = 0
    with contextlib.suppress(OSError):
        for name in files.listdir(path):
            parsed = parse_segment_file(name)
            if parsed is not None and parsed.kind == LOG and not parsed.stage:
                with contextlib.suppress(OSError):
                    size_bytes += files.stat(child_path(path, name)).size_bytes
    return size_bytes


def daemon_pace(cleaner: CleanerConfig, round_seconds: float | None) -> Pace:
    """Return how fast a daemon is taken to be: one round at a time, each on a slow disk.

    ``round_seconds`` is the longest that a round may last, when somebody knows; otherwise it
    follows from the size of the log, and from the limit on bytes a second: a round reads a log
    twice and writes it once at most.
    """
    pause_ms = max(cleaner.backoff_ms, LOOK_MS_MIN)
    if round_seconds is not None:
        return Pace(math.inf, round(round_seconds * 1000), 1, pause_ms)
    limit = cleaner.io_limit
    rate = ROUND_BYTES_PER_SECOND if limit is None else min(ROUND_BYTES_PER_SECOND, limit / 3)
    return Pace(rate, ROUND_MS_MIN, 1, pause_ms)


def find_timestamp_ahead_max(settings: Settings, topic: str) -> int:
    """Return how far ahead of the clock a broker lets records of ``topic`` be dated."""
    if settings.effective(BY_KEY["message.timestamp.type"], topic).value == "LogAppendTime":
        return 0
    keys = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
    limits = [int(settings.effective(BY_KEY[key], topic).number) for key in keys]
    return min(*limits, INT64_MAX)


def _urgency(status: PartitionStatus) -> tuple[int, int, float, TopicPartition]:
    log = status.log
    delay = 0 if log is None else log.figures.compaction_delay_ms
    ratio = 0.0 if log is None else log.figures.cleanable.ratio
    return _URGENCY[status.state], -delay, -ratio, status.partition


def _report_decided(report: PartitionReport) -> PartitionStatus:
    partition = TopicPartition(report.topic, report.partition)
    last = report.rounds[-1]
    if last.failure is not None:
        return PartitionStatus(partition, State.REFUSED, str(last.failure), error=last.failure)
    return PartitionStatus(partition, State.NOT_COMPACTED, last.reason or "not compacted")


def _look_at(request: PartitionRequest, log: LogStatus | Exception) -> PartitionStatus:
    partition = request.partition
    if isinstance(log, Exception):
        is_swap = isinstance(log, InterruptedSwapError)
        state = State.INTERRUPTED if is_swap else State.UNREADABLE
        return PartitionStatus(partition, state, describe_error(log).message, error=log)
    if not isinstance(log.decision, DueReason):
        state = _idle_state(log)
    elif log.is_expired_round:
        state = State.EXPIRED
    else:
        state = State.OVERDUE if log.figures.compaction_delay_ms else State.ELIGIBLE
    return PartitionStatus(partition, state, decision_words(log.decision), log, log.decision)


def _idle_state(log: LogStatus) -> State:
    """Return the state of a log that no round is worth now: what keeps one from it decides."""
    if log.figures.first_dirty >= log.log_end:
        return State.CLEAN
    is_held = isinstance(log.decision, NothingBelow) and log.decision.holds_back
    return State.HELD_BACK if is_held else State.NOT_DUE


def _set_aside(
    partition: TopicPartition, mark: SetAside, log: LogStatus | Exception
) -> PartitionStatus:
    known = log if isinstance(log, LogStatus) else None
    return PartitionStatus(partition, State.SET_ASIDE, mark.reason, known, set_aside=mark)


def _bound_erasure(status: PartitionStatus, turn_ms: int, now_ms: int) -> ErasedBy | None:
    if status.state is State.SET_ASIDE:
        return ErasedBy(None, None, ErasureBasis(BasisKind.SET_ASIDE))
    log = status.log
    if log is None:
        return ErasedBy(None, None, ErasureBasis(BasisKind.UNREADABLE))
    if status.state is State.FAILING:
        return ErasedBy(None, None, ErasureBasis(BasisKind.FAILING), is_unknown=True)
    due = log.eligibility
    kept_ms = None if log.kept_until_ms is None else max(log.kept_until_ms, now_ms)
    if due.is_clean and not log.leftover_bytes:
        if kept_ms is not None:
            return ErasedBy(kept_ms + turn_ms, kept_ms, ErasureBasis(BasisKind.KEPT))
        return ErasedBy(now_ms, now_ms, ErasureBasis(BasisKind.NOTHING_LEFT), is_gone=True)
    if due.by_ms is None:
        return ErasedBy(None, None, due.basis)
    wait_ms = due.rounds_max * turn_ms
    basis = ErasureBasis(BasisKind.LEFTOVERS) if due.is_clean else due.basis
    by_ms = due.by_ms + wait_ms
    if log.undo_retention_ms > 0 and not due.is_clean:
        # What the last of those rounds replaces is kept, and goes at a look behind that.
        by_ms += log.undo_retention_ms + turn_ms
    if kept_ms is not None:
        by_ms = max(by_ms, kept_ms + turn_ms)
    return ErasedBy(by_ms, due.by_ms, basis, undo_ms=by_ms - due.by_ms - wait_ms)


def last_round_of(receipt: RoundReceipt) -> LastRound:
    """Return what one receipt tells of its round."""
    stats = receipt.document["round"]["stats"]
    return LastRound(
        receipt.now_ms,
        receipt.first_dirty,
        receipt.end_offset,
        int(stats["bytes_read"]),
        int(stats["bytes_written"]),
        int(stats["messages_read"]),
        receipt.messages_written,
        float(stats["total_seconds"]),
        bound=receipt.bound,
    )
