"""What expired, or would, as a table: a line for each rule of each partition, and why.

Of a partition of which nothing goes there is a line when somebody should know what keeps it.
"""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from keeplast.cli.escapes import printable
from keeplast.cli.rows import new_table
from keeplast.cli.sizes import format_bytes
from keeplast.engine.report import CleanReport, ExpiredReport, ExpiryReport

RULES = {"log_start": "log start offset", "size": "retention.bytes", "time": "retention.ms"}


def expiry_table(report: CleanReport, heading: str) -> Table | None:
    """Return the table, None when nothing expires anywhere; ``heading`` says whether it has."""
    table = new_table("partition", heading, ">segments", ">bytes", ">log start", "why")
    for partition in report.partitions:
        expiry = partition.expiry
        if expiry is None or not expiry.segments or expiry.error is not None:
            continue
        for rule, (count, size) in expiry.by_rule().items():
            mine = [segment for segment in expiry.segments if segment.rule == rule]
            table.add_row(
                Text(printable(f"{partition.topic}-{partition.partition}")),
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
