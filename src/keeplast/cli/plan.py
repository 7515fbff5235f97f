"""``keeplast plan``: say what ``clean`` would do, and change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import CleanOptions
from keeplast.cli.frame.parameters import ROUND, Json

Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Read everything and rewrite without output: exact counts instead of estimates.",
        rich_help_panel=ROUND,
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Say instead which keys would keep another record by the strategy of --config than "
        "by the one in force, and which records have no usable version.",
        rich_help_panel=ROUND,
    ),
]
First = Annotated[
    int,
    typer.Option(
        "--first",
        metavar="N",
        min=0,
        max=10_000,
        help="With --compare: how many of those keys to show with both candidates.",
        rich_help_panel=ROUND,
    ),
]


@command(first=("topics", "runner", "exact"), example="keeplast plan DATA_DIR --topic orders")
def plan(
    options: CleanOptions,
    exact: Exact = False,
    compare: Compare = False,
    first: First = 10,
    as_json: Json = False,
) -> Result:
    """Say what clean would do with the same arguments: exact bounds, estimates marked ~.

    Reads without the directory's lock and writes nothing; a broker may be running, and what it
    changes meanwhile makes the answer old. Of a large log a sample is read: damage elsewhere in it
    shows with --exact.
    """
    if compare:
        from keeplast.cli.compare import compare_strategies

        return compare_strategies(options, first=first, as_json=as_json)
    return say_plan(options, exact=exact, as_json=as_json)


def say_plan(options: CleanOptions, *, exact: bool, as_json: bool) -> Result:
    """Say what a clean with these options would do; returns exit code and document."""
    from keeplast.cli.frame.call import report_call
    from keeplast.cli.frame.verdict import report_errors, report_exit_code
    from keeplast.cli.show.expiry import expiry_table
    from keeplast.cli.show.outcome import closing_line
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.tables import (
        bounds_table,
        estimates_tables,
        note_lines,
        reasons_table,
        summary_table,
    )

    report = report_call(
        options,
        "planning",
        lambda coordinator, request: coordinator.plan(request, exact=exact),
        writes=False,
    )
    if not as_json:
        print_result(bounds_table(report))
        notes = note_lines(report)
        if notes:
            print_result("", *notes)
        if any(each.stats for partition in report.partitions for each in partition.rounds):
            print_result("", summary_table(report))
        expiry = expiry_table(report, "would expire", explains=True)
        for table in (*estimates_tables(report), reasons_table(report), expiry):
            if table is not None:
                print_result("", table)
        print_result("", closing_line(report, done="to be cleaned"))
    for message in report_errors(report):
        say(message, kind="error")
    return report_exit_code(report), report
