"""How partitions stand, in whatever kind of place: one value, most urgent first, and until when.

The status of a data directory joins what each log says (:mod:`keeplast.inspect.status`) with what
only the directory knows. It knows partitions that are set aside, what the last rounds did, and how
many logs share the daemon. That number bounds how long a log may wait for its turn. Reads without
the lock and writes nothing.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import CleanableRange, find_hold
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.erasure import BasisKind, ErasureBasis, Pace, find_turn_ms
from keeplast.cleaner.reasons import Decision, DueReason, HoldLimit, Limit, NothingBelow
from keeplast.clock import SystemClock
from keeplast.config.definitions import BY_KEY
from keeplast.config.precedence import Settings
from keeplast.errors import InterruptedSwapError, error_text
from keeplast.format.filename import LOG, parse_segment_file
from keeplast.inspect.status import ErasedBy, LogStatus, TombstoneReading
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory
from keeplast.log.files import FileSystem
from keeplast.log.paths import child_path
from keeplast.log.root_files import PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME
from keeplast.model.hold import GroupReader
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.service.schedule import SetAside, is_about
from keeplast.survey.receipt_book import (
    Entry,
    RoundReceipt,
    beside_rounds,
    last_line,
    read_entries,
    rounds_of,
    subject_of,
)
from keeplast.survey.report import PartitionReport, describe_error
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import decision_words

if TYPE_CHECKING:  # a directory's status needs nothing of a store's or a cluster's
    from keeplast.rewrite.task import Runner
    from keeplast.service.attached_outlook import PartitionOutlook
    from keeplast.service.attached_status import AttachedStatus
    from keeplast.store.status import TierStatus


class State(StrEnum):
    """Where a partition stands; what needs a person's attention comes first."""

    HOLES = "holes"
    """Brokers serve nothing of some offsets; of a live cluster only."""
    SET_ASIDE = "set aside"
    UNREADABLE = "unreadable"
    INTERRUPTED = "interrupted"
    FAILING = "failing"
    RETRYING = "retrying"
    """The same, in the words of a loop over a store or a live cluster."""
    REFUSED = "refused"
    """Its settings or its name keep it from being looked at, or from rounds."""
    OVERDUE = "overdue"
    ELIGIBLE = "eligible"
    EXPIRED = "expired"
    DIRTY = "dirty"
    """Whether a round is worth it is not known, as without objects or a decision log."""
    PAUSED = "paused"
    """Of a live cluster only."""
    NOT_DUE = "not due"
    HELD_BACK = "held back"
    NOT_ATTACHED = "not attached"
    """The decision log that was asked has it not attached; of a live cluster only."""
    ELSEWHERE = "owned elsewhere"
    """Another host owns it; of a store and a live cluster only."""
    CLEAN = "clean"
    NOT_COMPACTED = "not compacted"


_DUE = (State.OVERDUE, State.ELIGIBLE, State.EXPIRED)
URGENCY = {state: rank for rank, state in enumerate(State)}


class LastRound(Struct, frozen=True):
    """The newest round of a partition that left a receipt.

    ``verdict`` is what ``verify`` said of it and when, empty where none was noted.
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
    """What it could have cleaned up to, exclusive; None where that is not known."""


class PartitionStatus(Struct, frozen=True):
    """How one partition stands, wherever it lies.

    ::

        every kind     partition, state, reason, error, figures, deadline_ms
        directory      log, decision, set_aside, failing, last_round, erased_by
        store          stored, erased_by where it was asked for
        live cluster   attached, and its outlook

    ``reason`` is a sentence: why it is in its ``state``; ``decision`` is the same as a value where
    its log says so. ``error`` is why it could not be looked at, or not at all of it. ``log``,
    ``stored`` and ``attached`` are None where it was not, and ``figures`` where it is not known
    what a round would take. After ``deadline_ms`` the log is overdue; None where it never is, or
    was not looked at.
    A loop has failed ``failures`` times in a row at it, and tries again at ``retry_at_ms``.
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
    stored: TierStatus | None = None
    attached: AttachedStatus | None = None
    outlook: PartitionOutlook | None = None
    looked: LogFigures | None = None
    code: str | None = None
    failures: int = 0
    retry_at_ms: int | None = None

    @property
    def figures(self) -> LogFigures | None:
        """Return sizes and ratio, None where they are not known."""
        return self.looked if self.log is None else self.log.figures

    @property
    def deadline_ms(self) -> int | None:
        """Return when ``max.compaction.lag.ms`` ends."""
        if self.log is not None:
            return self.log.deadline_ms
        return None if self.looked is None else self.looked.overdue_from_ms

    @property
    def is_overdue(self) -> bool:
        """Say whether ``max.compaction.lag.ms`` has ended, whatever keeps a round from it."""
        return (
            self.deadline_ms is not None
            and self.figures is not None
            and self.figures.compaction_delay_ms > 0
            and self.state not in (State.CLEAN, State.NOT_COMPACTED, State.NOT_ATTACHED)
        )

    @property
    def limit(self) -> Limit | None:
        """Return what keeps rounds from all that is dirty, as its decision says; None without."""
        return self.decision.limit if isinstance(self.decision, NothingBelow) else None

    @property
    def hold(self) -> HoldLimit | None:
        """Return the lowest hold of one that is overdue and has no round, None without one."""
        found = self.log or self.stored or (self.attached.attached if self.attached else None)
        is_kept = (
            self.is_overdue
            and self.state in (State.HELD_BACK, State.NOT_DUE)
            and isinstance(self.limit, HoldLimit | None)
        )
        return find_hold(found.holds) if is_kept and found else None

    @property
    def cleanable(self) -> CleanableRange | None:
        """Return what a round would clean and what is clean, None where it was not looked at.

        Of a store by its metadata; of a live cluster all that is dirty where no figures are known.
        """
        if self.stored is not None:
            return CleanableRange(
                self.stored.cleanable_to, self.stored.clean_bytes, self.stored.cleanable_bytes
            )
        if self.figures is not None or self.attached is None:
            return None if self.figures is None else self.figures.cleanable
        its = self.attached
        end = its.served[-1].end if its.served else its.cleaned_to
        return CleanableRange(end, its.size_bytes - its.dirty_bytes, its.dirty_bytes)

    @property
    def size_bytes(self) -> int | None:
        """Return the bytes of its segments, of a store those in objects; None as for the above."""
        if self.stored is not None:
            return self.stored.remote_bytes
        found = self.log if self.attached is None else self.attached
        return None if found is None else found.size_bytes


class StatusTerms(Struct, frozen=True, kw_only=True):
    """What a look at a place reads, and as of when; ``now_ms`` None is now.

    ``tombstones`` None and ``round_seconds`` None are what is usual. With ``erased_by`` a store's
    objects are read for it. ``open_runner`` is who counts what rounds would save, None to count
    nothing. ``receipt`` is a file of receipts, None what the place keeps. ``brokers`` read what
    consumer groups have committed, None where files do. Nothing is measured ahead where
    ``planned`` is None.
    """

    now_ms: int | None = None
    tombstones: TombstoneReading | None = None
    round_seconds: float | None = None
    erased_by: bool = False
    open_runner: Callable[[], AbstractContextManager[Runner]] | None = None
    receipt: Path | None = None
    brokers: GroupReader | None = None
    planned: Callable[[int], None] | None = None
    progressed: Callable[[int], None] = lambda count: None

    @property
    def at_ms(self) -> int:
        """Return the time of the look, in milliseconds since 1970."""
        return SystemClock().now_ms() if self.now_ms is None else self.now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStatus(ABC):
    """All partitions that were asked for, the most urgent first, as of ``now_ms``.

    ``warnings`` are what else the user should know.
    """

    now_ms: int
    partitions: tuple[PartitionStatus, ...]
    warnings: tuple[str, ...] = ()

    def in_state(self, state: State) -> list[PartitionStatus]:
        """Return the partitions in one state."""
        return [each for each in self.partitions if each.state is state]

    def head(self) -> dict[str, Any]:
        """Return what documents say of the place, above the partitions."""
        counts = Counter(each.state for each in self.partitions)
        return {
            "now_ms": self.now_ms,
            **self.own_head(),
            "states": {state.value: counts[state] for state in State},
            "overdue": sum(each.is_overdue for each in self.partitions),
        }

    @abstractmethod
    def own_head(self) -> dict[str, Any]:
        """Return what documents say of this kind of place alone."""

    def notes(self) -> list[str]:
        """Return what people read of the place, above its partitions, a line each."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryStatus(PlaceStatus):
    """The status of a data directory.

    ``is_locked`` says that a broker or another keeplast holds the directory, so that what was read
    may have changed meanwhile.
    """

    root: Path
    is_locked: bool
    pace: Pace

    def own_head(self) -> dict[str, Any]:
        """Say whether a broker or another keeplast holds the directory."""
        return {"is_locked": self.is_locked}

    def notes(self) -> list[str]:
        """Say that what was read may change meanwhile."""
        words = (
            "A broker or another keeplast holds the directory: what is read may change meanwhile."
        )
        return [words] if self.is_locked else []


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
    share the daemon, also of those that were not asked for.
    """
    turn_ms = find_turn_ms(sizes, pace) if sizes else 0
    statuses = [_report_decided(report) for report in decided]
    for request, log in found:
        partition = request.partition
        mark, failure = marks.get(partition), failures.get(partition)
        if mark is not None and not is_about(mark, files, request.path):
            mark = None  # other files by now: the daemon tries them again
        known = log if isinstance(log, LogStatus) else None
        state, reason, decision = (
            _look_at(log) if mark is None else (State.SET_ASIDE, mark.reason, None)
        )
        if failure is not None and state in _DUE and is_about(failure, files, request.path):
            state, reason, decision = State.FAILING, failure.reason, None
        statuses.append(
            PartitionStatus(
                partition, state, reason, known, decision,
                log if isinstance(log, Exception) and mark is None else None,
                mark, failure if state is State.FAILING else None, last_rounds.get(partition),
                _bound_erasure(state, known, turn_ms, now_ms),
            )
        )  # fmt: skip
    return DirectoryStatus(
        now_ms=now_ms, partitions=most_urgent_first(statuses), root=root, is_locked=is_locked,
        pace=pace,
    )  # fmt: skip


def read_round_receipts(
    files: FileSystem, root: Path, given: Path | None
) -> tuple[RoundReceipt, ...]:
    """Return the rounds in ``given``, else those that the daemon keeps in ``root``, in order."""
    return rounds_of(read_kept_entries(files, root, given))


def read_kept_entries(files: FileSystem, root: Path, given: Path | None) -> tuple[Entry, ...]:
    """Return the entries of ``given``, else those that the loop keeps in ``root``, in order.

    A file that the first clean has yet to make has none: a place may name it before. Neither has
    what a crash left of the very first line.
    """
    if given is not None:
        return read_entries(given, files) if files.exists(given) else ()
    paths = [root / name for name in (PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME)]
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
        return True  # The reader says what is wrong with it.


def find_last_rounds(entries: Iterable[Entry]) -> dict[TopicPartition, LastRound]:
    """Return the newest round of each partition, and its verdict; ``entries`` are in order."""
    found = {}
    for entry, verdict in beside_rounds(entries, subject_of):
        if isinstance(entry, RoundReceipt):
            last = last_round_of(entry)
            found[entry.partition] = (
                last if verdict is None else replace(last, verdict=verdict.words)
            )
    return found


def find_sizes(
    directory: DataDirectory,
    files: FileSystem,
    found: Iterable[tuple[PartitionRequest, LogStatus | Exception]] = (),
) -> dict[TopicPartition, int]:
    """Return the bytes of every log in the directory that a daemon may have to clean.

    Those that a look has ``found`` are not measured again.
    """
    known = {each.partition: log.size_bytes for each, log in found if isinstance(log, LogStatus)}
    return {
        entry.partition: known[entry.partition]
        if entry.partition in known
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


def find_timestamp_ahead_max(settings: Settings, topic: str) -> int:
    """Return how far ahead of the clock a broker lets records of ``topic`` be dated."""
    if settings.effective(BY_KEY["message.timestamp.type"], topic).value == "LogAppendTime":
        return 0
    keys = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
    limits = [int(settings.effective(BY_KEY[key], topic).number) for key in keys]
    return min(*limits, INT64_MAX)


def most_urgent_first(found: Iterable[PartitionStatus]) -> tuple[PartitionStatus, ...]:
    """Return partitions in the order in which they need attention."""
    return tuple(sorted(found, key=_urgency))


def _urgency(status: PartitionStatus) -> tuple[int, int, float, TopicPartition]:
    figures = status.figures
    delay = 0 if figures is None else figures.compaction_delay_ms
    ratio = 0.0 if figures is None else figures.cleanable.ratio
    urgency = URGENCY[State.OVERDUE] if status.is_overdue else URGENCY[State.NOT_COMPACTED]
    return min(URGENCY[status.state], urgency), -delay, -ratio, status.partition


def _report_decided(report: PartitionReport) -> PartitionStatus:
    partition = TopicPartition(report.topic, report.partition)
    last = report.rounds[-1]
    if last.failure is not None:
        return PartitionStatus(
            partition, State.REFUSED, error_text(last.failure), error=last.failure
        )
    return PartitionStatus(
        partition, State.NOT_COMPACTED, last.reason or "not compacted", decision=last.cause
    )


def _look_at(log: LogStatus | Exception) -> tuple[State, str, Decision | None]:
    """Return the state of what was found, and why: as a sentence, and as a value if it is one."""
    if isinstance(log, Exception):
        is_swap = isinstance(log, InterruptedSwapError)
        state = State.INTERRUPTED if is_swap else State.UNREADABLE
        return state, describe_error(log).message, None
    if not isinstance(log.decision, DueReason):
        state = _idle_state(log)
    elif log.is_expired_round:
        state = State.EXPIRED
    else:
        state = State.OVERDUE if log.figures.compaction_delay_ms else State.ELIGIBLE
    return state, decision_words(log.decision), log.decision


def _idle_state(log: LogStatus) -> State:
    """Return the state of a log that no round is worth now: what keeps one from it decides."""
    if log.figures.first_dirty >= log.log_end:
        return State.CLEAN
    is_held = isinstance(log.decision, NothingBelow) and log.decision.holds_back
    return State.HELD_BACK if is_held else State.NOT_DUE


def _bound_erasure(state: State, log: LogStatus | None, turn_ms: int, now_ms: int) -> ErasedBy:
    if state is State.SET_ASIDE:
        return ErasedBy(None, None, ErasureBasis(BasisKind.SET_ASIDE))
    if log is None:
        return ErasedBy(None, None, ErasureBasis(BasisKind.UNREADABLE))
    if state is State.FAILING:
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
        # What the last of those rounds replaces is kept, and goes at a look after that.
        by_ms += log.undo_retention_ms + turn_ms
    if kept_ms is not None:
        by_ms = max(by_ms, kept_ms + turn_ms)
    return ErasedBy(by_ms, due.by_ms, basis, undo_ms=by_ms - due.by_ms - wait_ms)


def last_round_of(receipt: RoundReceipt) -> LastRound:
    """Return what one receipt says of its round."""
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
