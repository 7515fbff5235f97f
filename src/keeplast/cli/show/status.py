"""The status of a directory for people and as a document.

A table of the most urgent partitions, a sentence for each, and all that is known of a few of them;
above it a summary of everything, so that thousands of partitions stay readable.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from keeplast.cleaner.reasons import BoundNote
from keeplast.cli.show.output import figures_document
from keeplast.cli.show.picture import PicturedSegment, draw_log
from keeplast.cli.show.rows import time_text
from keeplast.cli.show.sizes import format_bytes, format_count
from keeplast.cli.show.status_table import relative_text, status_table
from keeplast.errors import error_text
from keeplast.inspect.stages import StageCounts, Stages
from keeplast.inspect.status import LogStatus
from keeplast.model.duration import duration_text
from keeplast.model.escapes import printable
from keeplast.service.set_aside import SetAside
from keeplast.service.status import DirectoryStatus, ErasedBy, PartitionStatus, State
from keeplast.survey.wording import sentences

DETAILS_MAX = 3
"""So many partitions are told of in full without being asked."""

MEANINGS = {
    State.SET_ASIDE: "left alone until its files change, or run --retry",
    State.FAILING: "its last round failed, and it is tried again",
    State.EXPIRED: "only tombstones and markers are left to go, and their time has come",
}


def render_status(
    status: DirectoryStatus, *, limit: int | None, has_details: bool, width: int
) -> list[RenderableType]:
    """Return what a person is shown on ``width`` columns; ``limit`` None shows all partitions."""
    shown = status.partitions if limit is None else status.partitions[:limit]
    parts: list[RenderableType] = [Text(printable(_summary(status)))]
    if status.is_locked:
        parts.append(
            "A broker or another keeplast holds the directory: what is read may change meanwhile."
        )
    found = status_table(shown, status.now_ms, width)
    parts += ["", found.table, ""]
    if found.left_out:
        parts += [f"no room for: {', '.join(found.left_out)}; a wider screen or --json has it", ""]
    left = len(status.partitions) - len(shown)
    if left:
        parts += [f"… and {format_count(left)} less urgent; --all or --limit shows more", ""]
    legend = _legend({each.state for each in shown})
    parts += [legend, ""] if legend else []
    for each in shown:
        parts.append(Text(printable(f"{each.partition}: {each.reason}")))
        if has_details or len(shown) <= DETAILS_MAX:
            parts += [Text(printable(f"  {line}")) for line in _details(each, status.now_ms)]
    if len(shown) == 1 and shown[0].log is not None:
        parts += ["", Text(_picture(shown[0].log, width))]
    return parts


def _legend(states: Collection[State]) -> str:
    """Say what those of the states mean that neither their names nor the reasons explain."""
    return "; ".join(f"{state}: {words}" for state, words in MEANINGS.items() if state in states)


def status_document(status: DirectoryStatus) -> dict[str, Any]:
    """Return the document that ``--json`` prints."""
    return {
        "path": str(status.root),
        "now_ms": status.now_ms,
        "is_locked": status.is_locked,
        "states": {state.value: len(status.in_state(state)) for state in State},
        "partitions": [_document(each) for each in status.partitions],
    }


def _summary(status: DirectoryStatus) -> str:
    counts = [
        f"{format_count(count)} {state.value}"
        for state in State
        if (count := len(status.in_state(state)))
    ]
    logs = [each.log for each in status.partitions if each.log is not None]
    clean = sum(log.figures.cleanable.clean_bytes for log in logs)
    cleanable = sum(log.figures.cleanable.cleanable_bytes for log in logs)
    rest = sum(log.figures.uncleanable_bytes for log in logs)
    plural = "" if len(status.partitions) == 1 else "s"
    return (
        f"{status.root}: {format_count(len(status.partitions))} partition{plural} "
        f"({', '.join(counts)}); {format_bytes(clean)} clean, {format_bytes(cleanable)} "
        f"cleanable, {format_bytes(rest)} not cleanable yet"
    )


def _details(each: PartitionStatus, now_ms: int) -> list[str]:
    lines = []
    log = each.log
    if each.set_aside is not None:
        mark = each.set_aside
        lines.append(f"set aside since {time_text(mark.since_ms)}: {mark.error_class}")
    if each.failing is not None:
        mark = each.failing
        lines.append(f"failing since {time_text(mark.since_ms)}: {mark.error_class}")
    if log is not None:
        # Where there is nothing to clean, the bound's note says the same as the reason.
        has_nothing = not log.figures.cleanable.cleanable_bytes
        lines += sentences(
            note
            for note in log.notes
            if note != each.decision and not (has_nothing and isinstance(note, BoundNote))
        )
        if log.deadline_ms is not None:
            lines.append(
                f"deadline of max.compaction.lag.ms: {_moment(log.deadline_ms, now_ms)}"
                + (
                    f", overdue for {duration_text(log.figures.compaction_delay_ms)}"
                    if log.figures.compaction_delay_ms
                    else ""
                )
            )
        if log.stages is not None:
            lines += _stage_lines(log.stages, now_ms)
        if log.leftover_bytes:
            lines.append(f"{format_bytes(log.leftover_bytes)} in files that a crash left")
    if each.last_round is not None:
        last = each.last_round
        lines.append(
            f"last round {_moment(last.at_ms, now_ms)}: {format_bytes(last.bytes_read)} -> "
            f"{format_bytes(last.bytes_written)}, {format_count(last.records_read)} -> "
            f"{format_count(last.records_written)} records, offsets {last.first_dirty} to "
            f"{last.end_offset}, {last.seconds:.1f} s"
        )
    if each.erased_by is not None:
        lines.append(f"erased by: {erased_sentence(each.erased_by, now_ms)}")
    return lines


def _stage_lines(stages: Stages, now_ms: int) -> list[str]:
    is_exact = stages.counts_records
    return [
        _stage_line("tombstones" if is_exact else "batches with tombstones", stages.tombstones,
                    now_ms),
        _stage_line("transaction markers", stages.markers, now_ms),
    ]  # fmt: skip


def _stage_line(what: str, counts: StageCounts, now_ms: int) -> str:
    words = [
        "? without a delete horizon yet (--tombstones records counts them)"
        if counts.unstamped is None
        else f"{format_count(counts.unstamped)} without a delete horizon yet"
    ]
    waiting = f"{format_count(counts.waiting)} waiting"
    if counts.first_ms is not None and counts.last_ms is not None:
        waiting += f" until {_moment(counts.first_ms, now_ms)}"
        if counts.last_ms != counts.first_ms:
            waiting += f" to {_moment(counts.last_ms, now_ms)}"
    return f"{what}: {', '.join([*words, waiting])}, {format_count(counts.removable)} removable"


ABOUT = {
    "keeplast run": "for the rounds before it and its own",
    "keeplast tier run": "for rounds, the grace, and the age of garbage",
}


def erased_sentence(erased: ErasedBy, now_ms: int, *, loop: str = "keeplast run") -> str:
    """Return by when old values are gone and what that rests on, ``loop`` going on."""
    if erased.is_gone or erased.by_ms is None or erased.eligible_by_ms is None:
        return erased.why
    waits = duration_text(erased.by_ms - erased.eligible_by_ms)
    return (
        f"{_moment(erased.by_ms, now_ms)}: due {_moment(erased.eligible_by_ms, now_ms)} "
        f"({erased.why}), then {waits} at most {ABOUT[loop]}, while {loop} goes on and its rounds "
        "succeed"
    )


def _moment(at_ms: int, now_ms: int) -> str:
    return f"{time_text(at_ms)[:19]} ({relative_text(at_ms, now_ms)})"


def _picture(log: LogStatus, width: int) -> str:
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end]
    return draw_log(
        [
            PicturedSegment(segment.base_offset, end, segment.size_bytes)
            for segment, end in zip(log.segments, ends, strict=True)
        ],
        log_start=log.log_start,
        first_dirty=log.figures.first_dirty,
        screen=width,
    )


def _document(each: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "state": each.state.value,
        "reason": each.reason,
        **_log_document(each.log),
        "set_aside": _mark_document(each.set_aside),
        "failing": _mark_document(each.failing),
        "last_round": None
        if each.last_round is None
        else {
            "now_ms": each.last_round.at_ms,
            "first_dirty": each.last_round.first_dirty,
            "end_offset": each.last_round.end_offset,
            "bytes_read": each.last_round.bytes_read,
            "bytes_written": each.last_round.bytes_written,
            "messages_read": each.last_round.records_read,
            "messages_written": each.last_round.records_written,
            "seconds": each.last_round.seconds,
        },
        "erased_by": None
        if each.erased_by is None
        else {
            "by_ms": each.erased_by.by_ms,
            "eligible_by_ms": each.erased_by.eligible_by_ms,
            "is_gone": each.erased_by.is_gone,
            "is_unknown": each.erased_by.is_unknown,
            "why": each.erased_by.why,
        },
        "error": None
        if each.error is None
        else {"class": type(each.error).__name__, "message": error_text(each.error)},
    }


def _mark_document(mark: SetAside | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {
        "reason": mark.reason,
        "class": mark.error_class,
        "path": mark.path,
        "position": mark.position,
        "since_ms": mark.since_ms,
    }


def _log_document(log: LogStatus | None) -> dict[str, Any]:
    stages = None if log is None else log.stages
    return {
        "log_start": None if log is None else log.log_start,
        "log_end": None if log is None else log.log_end,
        **figures_document(None if log is None else log.figures),
        "deadline_ms": None if log is None else log.deadline_ms,
        "leftover_bytes": None if log is None else log.leftover_bytes,
        "notes": None if log is None else list(sentences(log.notes)),
        "tombstones": None if stages is None else _stage_document(stages.tombstones, stages),
        "markers": None if stages is None else _stage_document(stages.markers, stages),
    }


def _stage_document(counts: StageCounts, stages: Stages) -> dict[str, Any]:
    return {
        "unit": "records" if stages.counts_records else "batches",
        "without_horizon": counts.unstamped,
        "waiting": counts.waiting,
        "removable": counts.removable,
        "first_horizon_ms": counts.first_ms,
        "last_horizon_ms": counts.last_ms,
    }
