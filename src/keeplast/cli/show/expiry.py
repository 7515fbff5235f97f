"""What expired, or would, as a table: a line for each rule of each partition, and why."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.model.escapes import printable
from keeplast.model.size import format_bytes
from keeplast.survey.report import CleanReport, ExpiredReport, ExpiryReport

RULES = {"log_start": "log start offset", "size": "retention.bytes", "time": "retention.ms"}


def expiry_table(report: CleanReport, heading: str, *, explains: bool = False) -> Table | None:
    """Return the table, None when it has no line; ``heading`` says whether it has happened.

    ``explains`` adds a line for each partition of which nothing goes although its policy has
    limits: what keeps the first segment.
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


def _why(segments: list[ExpiredReport], expiry: ExpiryReport) -> str:
    """Return what let the last of the segments go, and what keeps the next one."""
    last = segments[-1]
    words = [f"segment {last.base}: {last.why}"]
    if last is expiry.segments[-1]:
        words += expiry.notes
        if expiry.rolled_active:
            words.append("all of the log: an empty segment at its end takes its place")
    return "; ".join(words)
