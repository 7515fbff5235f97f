"""``keeplast clean``: clean the logs of a data directory, in place or to a new place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.frame.options import CleanOptions
from keeplast.cli.frame.parameters import Json
from keeplast.cli.frame.wiring import CoordinatorPort

if TYPE_CHECKING:
    from keeplast.survey.report import CleanReport
    from keeplast.survey.request import CleanRequest

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Change nothing, and say what would be done: the same as keeplast plan."
    ),
]


@command(
    first=("topics", "to", "runner"), example="keeplast clean DATA_DIR --topic orders --to COPY"
)
def clean(options: CleanOptions, dry_run: DryRun = False, as_json: Json = False) -> Result:
    """Drop the records that another one with the same key supersedes, as Kafka's cleaner does.

    The broker must be stopped, or the directory be a copy: its lock is taken and held. A round that
    fails leaves the partition as it was.
    """
    if dry_run:
        from keeplast.cli.plan import say_plan

        return say_plan(options, exact=False, as_json=as_json)
    from keeplast.cli.frame.call import report_call
    from keeplast.cli.frame.verdict import is_stopped, report_errors, report_exit_code
    from keeplast.cli.show.expiry import expiry_table
    from keeplast.cli.show.outcome import closing_line
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.tables import note_lines, reasons_table, summary_table

    stopped_by: list[int] = []

    def act(coordinator: CoordinatorPort, request: CleanRequest) -> CleanReport:
        with StopSignals(coordinator.stop) as signals:
            report = coordinator.clean(request)
        if signals.exit_code is not None and is_stopped(report):
            stopped_by.append(signals.exit_code)
        return report

    report = report_call(options, "cleaning", act, writes=True)
    if not as_json:
        print_result(summary_table(report))
        notes = note_lines(report)
        if notes:
            print_result("", *notes)
        for table in (reasons_table(report), expiry_table(report, "expired")):
            if table is not None:
                print_result("", table)
        print_result("", closing_line(report))
    for message in report_errors(report):
        say(message, kind="error")
    code = stopped_by[0] if stopped_by else report_exit_code(report)
    return code, report
