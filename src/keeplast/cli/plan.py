"""``keeplast plan``: say what ``clean`` would do, and change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import ROUND, Json
from keeplast.cli.frame.round_options import CleanOptions, say_note, work_of

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


@command(
    first=(
        "topics", "partitions", "exact", "despite", "compare", "to", "until_done", "roll_active",
        "expired", "given", "flags",
    ),
    example="keeplast plan DATA_DIR --topic orders",
)  # fmt: skip
def plan(
    options: CleanOptions,
    exact: Exact = False,
    compare: Compare = False,
    first: First = 10,
    as_json: Json = False,
) -> Result:
    """Say what clean would do with the same arguments: exact bounds, estimates marked ~.

    Takes no lock, claims nothing and writes nothing; a broker or a loop may be running, and what it
    changes meanwhile makes the answer old. Of a large log a sample is read: damage elsewhere in it
    shows with --exact.
    """
    if compare:
        from keeplast.cli.compare import compare_strategies

        return compare_strategies(options, first=first, as_json=as_json)
    return say_plan(options, exact=exact, as_json=as_json)


def say_plan(options: CleanOptions, *, exact: bool, as_json: bool) -> Result:
    """Say what a clean with these options would do; returns exit code and document."""
    from keeplast.cli.frame.command import report_errors, report_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.show.rounds import large_note, plan_parts
    from keeplast.run.events import StopSwitch

    found, place = options.where.open()
    with ProgressEvents("planning") as events:
        work = work_of(found, events, StopSwitch(), compiles=exact)
        plan = place.plan(options.scope, options.terms(found), work, exact=exact)
    say_note(large_note(plan.report), found)
    if not as_json:
        print_result(*plan_parts(plan))
    say(*report_errors(plan.report), kind="error")
    document = {
        **place.head,
        **plan.report.as_document(),
        "costs": [
            {"topic": at.topic, "partition": at.partition, "costs": cost} for at, cost in plan.costs
        ],
        "tombstones": plan.tombstones,
        "assumed_of_brokers": plan.assumed,
    }
    return report_exit_code(plan.report), document
