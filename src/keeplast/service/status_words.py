"""A status in sentences: the summary, and all that is known of one partition.

Plain text for terminals and pages alike; who shows it escapes it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable

from keeplast.cleaner.reasons import BoundNote, DueReason, HoldLimit
from keeplast.clock import utc_text
from keeplast.inspect.stages import StageCounts, Stages
from keeplast.inspect.status import ErasedBy, LogStatus
from keeplast.model.hold import Hold
from keeplast.model.partition import range_text
from keeplast.model.text import (
    duration_text,
    format_bytes,
    format_count,
    format_counted,
    precise_duration_text,
    precise_relative_text,
)
from keeplast.service.status import PartitionStatus, PlaceStatus, State
from keeplast.survey.wording import sentences

_SHOWN = {State.SET_ASIDE.value: "skipped"}
"""What people are shown for a state whose name in documents and metrics says less to them."""
DAMAGE = ("CorruptError", "BrokenRowError")
"""Classes of the errors that say that a file, an object or a row is damaged."""


def state_words(state: str) -> str:
    """Return a state as it is shown; documents, metrics and addresses have its name."""
    return _SHOWN.get(state, str(state))


def shown_state(each: PartitionStatus) -> str:
    """Return the state of a partition as it is shown; one that is late says so in any state."""
    found = state_words(each.state)
    return f"{found}, overdue" if each.is_overdue and each.state is not State.OVERDUE else found


def release_command(hold: HoldLimit, place: str) -> str:
    """Return the command that ends a hold of ``place``."""
    return f"keeplast hold release {shlex.quote(place)} {shlex.quote(hold.name)}"


def release_words(hold: HoldLimit) -> str:
    """Say which hold keeps rounds from what is overdue; :func:`release_command` is to follow."""
    return f"it is overdue, and the hold {hold.name} keeps rounds from it; to end the hold"


def skipped_words(error_class: str | None) -> str:
    """Say that a log is skipped and what for; None where the class of the error is not known."""
    if error_class is None:
        return state_words(State.SET_ASIDE)
    what = "damaged file" if error_class in DAMAGE else "defect of keeplast"
    return f"{state_words(State.SET_ASIDE)}: {what}"


def status_summary(status: PlaceStatus, address: str) -> str:
    """Return one sentence about all partitions of the place at ``address``."""
    counts = [
        f"{format_count(count)} {state_words(state)}"
        for state in State
        if (count := len(status.in_state(state)))
    ]
    known = [each.figures for each in status.partitions if each.figures is not None]
    clean = sum(each.cleanable.clean_bytes for each in known)
    cleanable = sum(each.cleanable.cleanable_bytes for each in known)
    rest = sum(each.uncleanable_bytes for each in known)
    states = f" ({', '.join(counts)})" if counts else ""
    late = sum(each.is_overdue for each in status.partitions)
    if late > len(status.in_state(State.OVERDUE)):
        states += f", {format_count(late)} overdue in sum"
    return (
        f"{address}: {format_counted(len(status.partitions), 'partition')}{states}; "
        f"{format_bytes(clean)} clean, {format_bytes(cleanable)} cleanable, "
        f"{format_bytes(rest)} not cleanable yet"
    )


def detail_lines(each: PartitionStatus, now_ms: int, *, names_options: bool = True) -> list[str]:
    """Return all that is known of one partition except its row, a line each."""
    lines = []
    log = each.log
    if each.set_aside is not None:
        mark = each.set_aside
        what = skipped_words(mark.error_class)
        lines.append(f"{what}, since {utc_text(mark.since_ms)} ({mark.error_class})")
    if each.failing is not None:
        mark = each.failing
        lines.append(f"failing since {utc_text(mark.since_ms)} ({mark.error_class})")
    if log is not None:
        # Where there is nothing to clean, the bound's note says the same as the reason.
        has_nothing = not log.figures.cleanable.cleanable_bytes
        lines += sentences(
            note
            for note in log.notes
            if note != each.decision and not (has_nothing and isinstance(note, BoundNote))
        )
    if each.erased_by is not None and names_options:
        lines.append(f"old values: {old_values_words(each, each.erased_by, now_ms)}")
    elif each.erased_by is not None:
        lines += old_values_lines(each, each.erased_by, now_ms)
    if log is not None:
        lines += _point_lines(log, now_ms)
        if log.stages is not None:
            lines += stage_lines(log.stages, now_ms, names_options=names_options)
        if log.kept_until_ms is not None:
            lines.append(
                "what rounds have replaced is kept for keeplast undo, until "
                f"{moment_text(max(log.kept_until_ms, now_ms), now_ms)}"
            )
        if log.leftover_bytes:
            lines.append(f"{format_bytes(log.leftover_bytes)} in files that a crash left")
    if each.last_round is not None:
        last = each.last_round
        lines.append(
            f"last round {moment_text(last.at_ms, now_ms)}: {format_bytes(last.bytes_read)} -> "
            f"{format_bytes(last.bytes_written)}, {format_count(last.records_read)} -> "
            f"{format_count(last.records_written)} records, "
            f"{range_text(last.first_dirty, last.end_offset)}, {seconds_text(last.seconds)}"
            + (f"; verdict: {last.verdict}" if last.verdict else "")
        )
    return lines


def seconds_text(seconds: float) -> str:
    """Return how long something took, rounded up where it is minutes or more."""
    if seconds < 0.05:
        return "< 0.1 s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return precise_duration_text(math.ceil(seconds) * 1000)


def old_values_lines(each: PartitionStatus, erased: ErasedBy, now_ms: int) -> list[str]:
    """Say the same as :func:`old_values_words`: both dates in one sentence, and in another what the
    last one rests on.
    """
    log = each.log
    if log is None or erased.is_gone or erased.is_unknown:
        return [f"old values: {erased_sentence(erased, now_ms)}"]
    if erased.by_ms is None or erased.eligible_by_ms is None:
        return [f"old values: {old_values_words(each, erased, now_ms)}"]
    joined = _joined(_first_to_go(each, log, now_ms), log)
    waits = precise_duration_text(erased.by_ms - erased.eligible_by_ms - erased.undo_ms)
    kept = f", then {duration_text(erased.undo_ms)} for undo" if erased.undo_ms else ""
    return [
        f"old values: {joined} {moment_text(erased.by_ms, now_ms)}, while keeplast run goes on and "
        "its rounds succeed",
        "the round that takes the last of them is due by "
        f"{moment_text(erased.eligible_by_ms, now_ms)}, {erased.why}; then {waits} at most "
        f"{FOR_ROUNDS}{kept}",
    ]


def old_values_words(each: PartitionStatus, erased: ErasedBy, now_ms: int) -> str:
    """Say in the order of time when what is overwritten or deleted in a log now goes.

    First what the next round can take, with the deadline of ``max.compaction.lag.ms``; then all of
    it, what lies in the active segment or is held back included. A log that has only the latter
    has one date.
    """
    words = erased_sentence(erased, now_ms)
    log = each.log
    if log is None or erased.is_gone or erased.is_unknown:
        return words
    first = _first_to_go(each, log, now_ms)
    if erased.by_ms is None:
        return f"{first}; for {above_words(log)} {words}" if first else words
    return f"{_joined(first, log)} {words}"


def _joined(first: str, log: LogStatus) -> str:
    """Join what goes first to when everything is gone, which the caller adds."""
    if not first:
        return "gone by"
    if log.figures.cleanable.bound >= log.log_end:
        return f"{first}; gone by"
    return f"{first}; all that was overwritten until now, {above_words(log)} included, is gone by"


def _first_to_go(each: PartitionStatus, log: LogStatus, now_ms: int) -> str:
    """Say when the next round is due, and what it takes; empty where it would take nothing."""
    cleanable = log.figures.cleanable
    if not cleanable.cleanable_bytes:
        return ""
    what = (
        "all"
        if cleanable.bound >= log.log_end
        else (f"those in closed segments, below offset {cleanable.bound},")
    )
    lag = "the deadline of max.compaction.lag.ms"
    if log.figures.compaction_delay_ms and log.deadline_ms is not None:
        return f"{what} were due for a round by {moment_text(log.deadline_ms, now_ms)}, {lag}"
    if isinstance(each.decision, DueReason):
        return f"{what} go with the next round, which is due now"
    if log.deadline_ms is None:
        return ""
    return f"{what} are due for a round by {moment_text(log.deadline_ms, now_ms)}, {lag}"


def above_words(log: LogStatus) -> str:
    """Say what the next round cannot take."""
    bound = log.figures.cleanable.bound
    if log.segments and bound >= log.segments[-1].base_offset:
        return f"the active segment from {bound} on"
    return f"what is held back from {bound} on"


def _point_lines(log: LogStatus, now_ms: int) -> list[str]:
    """Return which earlier states can still be read, and what keeps them."""
    lines = []
    bound = log.figures.cleanable.bound
    if log.earliest_as_of > log.log_start or log.holds:
        lines.append(as_of_words(log.earliest_as_of, bound))
    return lines + hold_lines(log.holds, now_ms)


def hold_lines(holds: Iterable[Hold], now_ms: int) -> list[str]:
    """Return what keeps cleaning from passing which point of a log, a line each."""
    return [
        f"hold {each.name}: not cleaned past {each.limit}"
        + ("" if each.limit == each.offset else f", for the state as of {each.offset},")
        + f" until {moment_text(each.until_ms, now_ms)}"
        for each in sorted(holds)
    ]


def as_of_words(earliest_as_of: int, bound: int = 0) -> str:
    """Say which offsets have a state that can be read, and what a round up to ``bound`` leaves.

    0 is no round.
    """
    moved = f"; after the next round, as of {bound} or later" if bound > earliest_as_of else ""
    return f"its earlier state can be exported as of offset {earliest_as_of} or later{moved}"


def stage_lines(stages: Stages, now_ms: int, *, names_options: bool = True) -> list[str]:
    """Return tombstones and markers by stage, a line each, and which option would show more."""
    what = "tombstones" if stages.counts_records else "batches with tombstones"
    option = " (--tombstones records counts them)" if names_options else ""
    return [
        _stage_line(what, stages.tombstones, now_ms, option),
        _stage_line("transaction markers", stages.markers, now_ms, option),
    ]


def _stage_line(what: str, counts: StageCounts, now_ms: int, option: str) -> str:
    words = [
        f"? without a delete horizon yet{option}"
        if counts.unstamped is None
        else f"{format_count(counts.unstamped)} without a delete horizon yet"
    ]
    retained = f"{format_count(counts.retained)} retained"
    if counts.first_ms is not None and counts.last_ms is not None:
        retained += f" until {moment_text(counts.first_ms, now_ms)}"
        if counts.last_ms != counts.first_ms:
            retained += f" to {moment_text(counts.last_ms, now_ms)}"
    return f"{what}: {', '.join([*words, retained])}, {format_count(counts.removable)} removable"


FOR_ROUNDS = "for the rounds before it and its own"
FOR_STORE = "for rounds, the grace, and the age of garbage"


def erased_sentence(erased: ErasedBy, now_ms: int, *, in_store: bool = False) -> str:
    """Return by when old values are gone and what that rests on, a loop going on."""
    if erased.is_gone or erased.by_ms is None or erased.eligible_by_ms is None:
        return erased.why
    waits = precise_duration_text(erased.by_ms - erased.eligible_by_ms - erased.undo_ms)
    kept = f", then {duration_text(erased.undo_ms)} for undo" if erased.undo_ms else ""
    what = FOR_STORE if in_store else FOR_ROUNDS
    return (
        f"{moment_text(erased.by_ms, now_ms)}: due {moment_text(erased.eligible_by_ms, now_ms)} "
        f"({erased.why}), then {waits} at most {what}{kept}, while keeplast run goes on and its "
        "rounds succeed"
    )


def moment_text(at_ms: int, now_ms: int) -> str:
    """Return a time, and how far away it is."""
    return f"{utc_text(at_ms)} ({precise_relative_text(at_ms, now_ms)})"
