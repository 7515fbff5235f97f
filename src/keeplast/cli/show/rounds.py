"""What ``clean`` and ``plan`` print of a report, whatever the kind of place.

The last line of a command says how many partitions ended how, and why where there is one reason.
Exit code 0 also means that everything was skipped, or that nothing could be judged: this line says
so in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.tables import (
    bounds_table,
    estimates_tables,
    filter_lines,
    new_table,
    note_lines,
    reasons_table,
    summary_table,
)
from keeplast.inspect.verified_log import VerificationReport
from keeplast.model.document import Verdict
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes, format_count, format_counted, printable
from keeplast.survey.report import CleanReport, ExpiredReport, ExpiryReport, PartitionReport

if TYPE_CHECKING:
    from keeplast.api.place import PlanReport

FAILED, SKIPPED = "failed", "skipped"
WHY_MANY = "the reasons stand above"
WHY_FAILED = "the errors follow on stderr"
WHY_FAILED_BEFORE = "the errors stand on stderr"


def closing_line(report: CleanReport, *, done: str = "cleaned") -> str:
    """Return ``1 cleaned, 2 skipped: why``; ``done`` is what happened to the others."""
    ends = Counter(_end(each, done) for each in report.partitions)
    reasons = {
        each.rounds[-1].reason or "nothing to do"
        for each in report.partitions
        if _end(each, done) == SKIPPED
    }
    parts = []
    for end in (done, SKIPPED, FAILED):
        if not ends[end]:
            continue
        words = f"{format_count(ends[end])} {end}"
        if end == SKIPPED:
            words += f": {reasons.pop() if len(reasons) == 1 else WHY_MANY}"
        parts.append(f"{words}: {WHY_FAILED}" if end == FAILED else words)
    gone = sum(len(each.expiry.segments) for each in report.partitions if each.expiry is not None)
    if gone:
        words = "expired" if done == "cleaned" else "would expire"
        parts.append(f"{format_counted(gone, 'segment')} {words}")
    return printable("; ".join(parts)) if parts else "no partition was looked at"


def ends_line(ends: Mapping[str, int], *, failed: int) -> str:
    """Return ``1 expired (2 segments, 8 KiB); 1 failed: …``: how many partitions ended how.

    ``ends`` are counts by what happened; one that no partition met is left out.
    """
    parts = [f"{format_count(count)} {words}" for words, count in ends.items() if count]
    if failed:
        parts.append(f"{format_count(failed)} {FAILED}: {WHY_FAILED_BEFORE}")
    return "; ".join(parts) if parts else "no partition was looked at"


def checks_line(reports: Iterable[VerificationReport], *, is_strict: bool) -> str:
    """Return how many partitions hold, are broken or cannot be judged, and what that means."""
    verdicts = Counter(each.verdict for each in reports)
    words = ", ".join(
        f"{format_count(verdicts[verdict])} {_VERDICTS[verdict]}"
        for verdict in Verdict
        if verdicts[verdict]
    )
    if not words:
        return "no partition was checked"
    if verdicts[Verdict.UNJUDGED] and not is_strict:
        words += ": the reasons stand above; with --strict that is exit code 1"
    return words


def _end(partition: PartitionReport, done: str) -> str:
    expiry = partition.expiry
    if any(each.error is not None for each in partition.rounds):
        return FAILED
    if expiry is not None and expiry.error is not None:
        return FAILED
    if partition.rounds and all(each.skipped for each in partition.rounds):
        return SKIPPED
    return done


_VERDICTS = {
    Verdict.HOLDS: "verified",
    Verdict.BROKEN: "broken",
    Verdict.UNJUDGED: "cannot be judged",
}


RULES = {"log_start": "log start offset", "size": "retention.bytes", "time": "retention.ms"}
LARGE_BYTES = 64 << 30
"""From here on one host works for minutes, and a cluster is worth naming."""


def clean_parts(report: CleanReport) -> Iterator[RenderableType]:
    """Yield what rounds did: a row a partition, notes, reasons, and a closing line."""
    yield summary_table(report)
    yield from _spaced(
        note_lines(report), _there(reasons_table(report)), _there(expiry_table(report, "expired")),
        [*chunk_lines(report), *filter_lines(report)], [closing_line(report)],
    )  # fmt: skip


def plan_parts(plan: PlanReport) -> Iterator[RenderableType]:
    """Yield what rounds would do, and what they would cost."""
    report = plan.report
    yield bounds_table(report)
    is_counted = any(each.stats for partition in report.partitions for each in partition.rounds)
    costs: list[RenderableType] = []
    tombstones: list[str] = []
    if plan.costs or plan.tombstones:
        from keeplast.cli.show.attach import costs_table, tombstone_lines

        costs = [costs_table(plan.costs)] if plan.costs else []
        tombstones = [*tombstone_lines(plan.tombstones)]
    yield from _spaced(
        note_lines(report),
        [summary_table(report)] if is_counted else [],
        *([each] for each in estimates_tables(report)),
        _there(reasons_table(report)),
        _there(expiry_table(report, "would expire", explains=True)),
        tombstones,
        costs,
        [closing_line(report, done="to be cleaned")],
    )
    if plan.assumed is not None:
        yield f"assumed: {plan.assumed}"


def expiry_parts(report: CleanReport) -> Iterator[RenderableType]:
    """Yield what expired of each partition, what keeps the rest, and how many had something."""
    done = {
        TopicPartition(each.topic, each.partition): each.expiry
        for each in report.partitions
        if each.expiry is not None and each.expiry.error is None
    }
    idle = [
        f"{printable(str(at))}: nothing expires: no limit of its policy applies, and nothing lies "
        f"below the log start {found.log_start}"
        for at, found in done.items()
        if not found.segments and not found.notes
    ]
    gone = [each for each in done.values() if each.segments]
    amount = (
        f"{format_counted(sum(len(each.segments) for each in gone), 'segment')}, "
        f"{format_bytes(sum(each.bytes for each in gone))}"
    )
    ends = {f"expired ({amount})": len(gone), "had nothing to expire": len(done) - len(gone)}
    failed = sum(
        each.expiry is not None and each.expiry.error is not None for each in report.partitions
    )
    yield from _spaced(
        note_lines(report), _there(reasons_table(report)),
        _there(expiry_table(report, "expired", explains=True)), idle,
        [ends_line(ends, failed=failed)],
    )  # fmt: skip


def expiry_table(report: CleanReport, heading: str, *, explains: bool = False) -> Table | None:
    """Return the table, None when it has no line; ``heading`` says whether it has happened.

    ``explains`` adds a line for each partition that loses nothing although its policy has limits:
    what keeps the first segment.
    """
    table = new_table("partition", heading, ">segments", ">bytes", ">log start", "why")
    for partition in report.partitions:
        expiry = partition.expiry
        if expiry is None or expiry.error is not None:
            continue
        name = Text(printable(f"{partition.topic}-{partition.partition}"))
        if not expiry.segments and explains and expiry.notes:
            notes = Text(printable("; ".join(expiry.notes)))
            table.add_row(name, "nothing", "0", "0 B", str(expiry.log_start), notes)
        for rule, (count, size) in expiry.by_rule().items():
            mine = [segment for segment in expiry.segments if segment.rule == rule]
            table.add_row(
                name,
                f"by {RULES[rule]}",
                str(count),
                format_bytes(size),
                f"{expiry.log_start_before} -> {expiry.log_start}",
                Text(printable(_why(mine, expiry))),
            )
    return table if table.row_count else None


def large_note(report: CleanReport) -> str | None:
    """Return that a cluster could share the work, where there is much of it."""
    total = sum(
        (first.clean_bytes or 0) + (first.cleanable_bytes or 0)
        for partition in report.partitions
        for first in partition.rounds[:1]
        if not first.skipped
    )
    if total < LARGE_BYTES:
        return None
    return (
        f"{format_bytes(total)} for the threads of one process; --with master=URL shares such logs "
        "among the hosts of a Spark cluster"
    )


def chunk_lines(report: CleanReport) -> list[str]:
    """Return a line for each partition whose round had more than one chunk."""
    return [
        f"{partition.topic}-{partition.partition}: cleaned in {partition.rounds[-1].chunks} chunks "
        "(tier.chunk.bytes); a later one reads again what an earlier one kept, "
        f"{format_bytes(stats.bytes_read)} in all"
        for partition in report.partitions
        if partition.rounds
        and (partition.rounds[-1].chunks or 0) > 1
        and (stats := partition.rounds[-1].stats)
    ]


def _there(table: RenderableType | None) -> list[RenderableType]:
    return [] if table is None else [table]


def _spaced(*parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Yield parts that are not empty, each after a blank line."""
    for part in parts:
        found = list(part)
        if found:
            yield ""
            yield from found


def _why(segments: list[ExpiredReport], expiry: ExpiryReport) -> str:
    """Return what let the last of the segments go, and what keeps the next one."""
    last = segments[-1]
    words = [f"segment {last.base}: {last.why}"]
    if last is expiry.segments[-1]:
        words += expiry.notes
        if expiry.rolled_active:
            words.append("all of the log: an empty segment at its end takes its place")
    return "; ".join(words)
