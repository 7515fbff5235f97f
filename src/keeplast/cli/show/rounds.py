"""What ``clean`` and ``plan`` print of a report, whatever the kind of place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from keeplast.cli.show.expiry import expiry_table
from keeplast.cli.show.outcome import closing_line
from keeplast.cli.show.tables import (
    bounds_table,
    estimates_tables,
    filter_lines,
    note_lines,
    reasons_table,
    summary_table,
)
from keeplast.model.size import format_bytes
from keeplast.survey.report import CleanReport

if TYPE_CHECKING:
    from keeplast.api.round_terms import PlanReport

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
