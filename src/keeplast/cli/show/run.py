"""What ``keeplast run`` shows: a line for each round while it works, and what was done at the end.

On a terminal a bar shows how far the rounds under way are, and an idle line when the next look is;
elsewhere becoming idle is said once. All of that goes to stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.status import Status
from rich.table import Table

from keeplast.cleaner.log_order import Choice
from keeplast.cli.show.output import say, stderr_console
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.tables import cells, new_table
from keeplast.clock import Clock, time_text
from keeplast.config.place_properties import PlaceKind
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes, format_count, format_counted, printable
from keeplast.service.daemon import RunReport
from keeplast.service.documents import facts_document
from keeplast.service.snapshot import (
    AttachedTotals,
    PartitionFacts,
    Snapshot,
    TierTotals,
)
from keeplast.service.status import State
from keeplast.service.status_words import state_words
from keeplast.survey.report import ExpiryReport, RoundReport

_NAMED_WHEN_IDLE = (
    State.RETRYING,
    State.SET_ASIDE,
    State.REFUSED,
    State.ELSEWHERE,
)
NAME_WIDTH = 20
REASON_WIDTH = 22
_SKIPPED_UNTIL = {
    PlaceKind.DIRECTORY: "its files change, or --retry",
    PlaceKind.STORE: "--retry or a clean by hand",
    PlaceKind.CLUSTER: "keeplast clean has done it, its log begins elsewhere, or the loop begins "
    "again",
}


class RunLines(ProgressEvents):
    """Receiver of everything that happens during a run, for people."""

    def __init__(self, clock: Clock, kind: PlaceKind) -> None:
        """Take the clock that lines are dated with, and the kind of place that they are about."""
        super().__init__("cleaning", stderr_console())
        self._clock = clock
        self._kind = kind
        self._why: dict[TopicPartition, str] = {}
        self._is_idle = False
        self._status: Status | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_idle()
        super().__exit__(kind, error, trace)

    def started(self, place: Path | str, slots: int, *, process_id: int) -> None:
        """Say what has begun, and how to end it."""
        workers = "1 worker" if slots == 1 else f"{slots} workers"
        self._line(f"watching {place} with {workers}; SIGTERM or Ctrl-C ends it. pid={process_id}")

    def chosen(self, choices: Sequence[Choice]) -> None:
        """Remember why, for the line that says how it went."""
        self._end_idle()
        self._empty_bar()
        self._is_idle = False
        self._why = {choice.partition: choice.why for choice in choices}

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Say how a round went: which, why, where, bytes, seconds."""
        name = str(partition).ljust(NAME_WIDTH)
        why = self._why.get(partition, "").ljust(REASON_WIDTH)
        if report.stats is None:
            # Failures are reported with what follows from them.
            if report.skipped:
                self._line(f"{name}  {why}  skipped: {report.reason}")
            return
        before, after = report.log_bytes or (0, 0)
        saving = f" (-{100 * (before - after) / before:.0f} %)" if before else ""
        self._line(
            f"{name}  {why}  {report.first_dirty}..{report.end_offset}  "
            f"{format_bytes(before)} -> {format_bytes(after)}{saving}  "
            f"{report.stats.total_seconds:.1f} s"
        )

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        """Say that nothing is worth a round; once where lines stay."""
        words = f"{_idle_words(snapshot)}; next look in {seconds:g} s"
        if self._console.is_terminal:
            if self._status is None:
                self._pause_bar()
                self._status = self._console.status(printable(words))
                self._status.start()
            else:
                self._status.update(printable(words))
        elif not self._is_idle:
            self._line(f"{_idle_words(snapshot)}; looking again every {seconds:g} s")
        self._is_idle = True

    def expired(self, partition: TopicPartition, report: ExpiryReport) -> None:
        """Say what retention or the log start let go."""
        more = f"; the log starts at {report.log_start}"
        self._report(partition, "expired", len(report.segments), "segment", report.bytes, more)

    def copied(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what a partition has gained."""
        self._report(partition, "copied", segments, "segment", size_bytes)

    def replaced(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition was copied again as a whole, and why."""
        self._line(f"{partition}  {reason}")

    def collected(self, partition: TopicPartition, objects: int, size_bytes: int) -> None:
        """Say what was removed: objects of a store, replaced segments of a cluster."""
        noun = "segment" if self._kind is PlaceKind.CLUSTER else "object"
        self._report(partition, "collected", objects, noun, size_bytes)

    def left_disk(self, partition: TopicPartition, segments: int, size_bytes: int) -> None:
        """Say what local retention has removed from this host's disk."""
        self._report(partition, "left disk", segments, "segment", size_bytes)

    def stands(self, partition: TopicPartition, words: str) -> None:
        """Say whether this host leads a partition, or whom it follows."""
        self._line(f"{partition}  {words}")

    def left_alone(self, partition: TopicPartition, reason: str) -> None:
        """Say that another host owns a partition."""
        self._line(f"{partition}  left alone: {reason}")

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        """Say that a partition will not be cleaned any more, and what helps."""
        self._line(f"{partition}  skipped until {_SKIPPED_UNTIL[self._kind]}: {reason}")

    def retrying(self, partition: TopicPartition, reason: str, seconds: float) -> None:
        """Say that something failed and will be tried again."""
        self._line(f"{partition}  failed, again in {seconds:g} s: {reason}")

    def _report(
        self, partition: TopicPartition, what: str, count: int, noun: str, size_bytes: int,
        more: str = "",
    ) -> None:  # fmt: skip
        name = str(partition).ljust(NAME_WIDTH)
        words = f"{format_counted(count, noun)}, {format_bytes(size_bytes)}"
        self._line(f"{name}  {what.ljust(REASON_WIDTH)}  {words}{more}")

    def _line(self, text: str) -> None:
        moment = time_text(self._clock.now_ms()).partition(".")[0].partition(" ")[2]
        if self._console.is_terminal:
            self._above(f"{moment}  {text}")
        else:
            say(f"{moment}  {text}")

    def _end_idle(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
            self._resume_bar()


def _idle_words(snapshot: Snapshot) -> str:
    count = len(snapshot.partitions)
    words = f"idle: {count} partition{'' if count == 1 else 's'}"
    known = [each.figures for each in snapshot.partitions if each.figures is not None]
    ratios = [figures.cleanable.ratio for figures in known]
    if ratios:
        words += f", at most {100 * max(ratios):.0f} % dirty"
    for state in _NAMED_WHEN_IDLE:
        number = sum(each.state is state for each in snapshot.partitions)
        if number:
            words += f", {number} {state_words(state)}"
    return words


def run_sentences(report: RunReport) -> list[str]:
    """Return what was done to logs and to what lies in object storage, and what was not."""
    sentences = [
        f"{format_count(report.rounds)} round{'' if report.rounds == 1 else 's'} in "
        f"{report.seconds:.1f} s: read {format_bytes(report.bytes_read)}, wrote "
        f"{format_bytes(report.bytes_written)}"
    ]
    if report.left:
        names = ", ".join(str(partition) for partition in report.left)
        sentences.append(f"not done, the next run does: {names}")
    totals = report.snapshot.tier
    if isinstance(totals, AttachedTotals):
        sentences += _attached_sentences(totals)
    elif totals is not None:
        sentences += _store_sentences(totals)
    return sentences


def _store_sentences(totals: TierTotals) -> list[str]:
    parts = [
        (totals.copied_segments, "segment", totals.copied_bytes, "copied"),
        (totals.expired_segments, "segment", totals.expired_bytes, "expired"),
        (totals.collected_objects, "object", totals.collected_bytes, "collected"),
    ]
    words = [
        f"{format_counted(count, noun)} ({format_bytes(size)}) {what}"
        for count, noun, size, what in parts
        if count
    ]
    if totals.replaced_ranges:
        words.append(f"{format_counted(totals.replaced_ranges, 'partition')} copied again")
    if totals.refused_copies:
        copies = "1 copy" if totals.refused_copies == 1 else f"{totals.refused_copies} copies"
        words.append(f"{copies} refused")
    return [", ".join(words)] if words else []


def _attached_sentences(totals: AttachedTotals) -> list[str]:
    sentences = []
    if totals.collected_objects:
        sentences.append(
            f"{format_counted(totals.collected_objects, 'replaced segment')} "
            f"({format_bytes(totals.collected_bytes)}) collected"
        )
    sentences.append(
        f"in the last 24 hours {format_count(totals.swaps)} of "
        f"{format_counted(totals.swaps_max, 'swap')} and {format_count(totals.metadata_records)} "
        f"of {format_counted(totals.metadata_records_max, 'record')} of the metadata topic"
    )
    return sentences


def run_table(report: RunReport) -> Table:
    """Return the partitions as the run leaves them."""
    return new_table(
        "partition",
        ">rounds",
        ">clean to",
        ">dirty",
        "state",
        "why",
        rows=(
            (
                *cells([each.partition]),
                str(each.rounds),
                _clean_to(each),
                "" if each.figures is None else f"{100 * each.figures.cleanable.ratio:.0f} %",
                # A log that waits has the word of ``keeplast status``.
                *cells(
                    [state_words(State.HELD_BACK if each.is_held_back else each.state), each.reason]
                ),
            )
            for each in report.snapshot.partitions
        ),
    )


def _clean_to(facts: PartitionFacts) -> str:
    last = facts.last_round
    if last is not None and last.end_offset is not None and not last.is_expired_round:
        return str(last.end_offset)
    return "" if facts.figures is None else str(facts.figures.first_dirty)


def run_document(report: RunReport, *, is_stopped: bool) -> dict[str, Any]:
    """Return the document of a run."""
    return {
        "stopped": is_stopped,
        "seconds": report.seconds,
        "turns": report.snapshot.turn,
        "rounds": report.rounds,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "left": [str(partition) for partition in report.left],
        **({} if report.snapshot.tier is None else {"tier": report.snapshot.tier}),
        "partitions": [facts_document(each) for each in report.snapshot.partitions],
    }
