"""``keeplast clean``: clean the logs of a place."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.frame.parameters import Json
from keeplast.cli.frame.place import say_note, work_of
from keeplast.cli.frame.round_options import CleanOptions

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Change nothing, and say what would be done: the same as keeplast plan."
    ),
]


@command(
    first=("topics", "to", "force"), example="keeplast clean DATA_DIR --topic orders --to COPY"
)
def clean(options: CleanOptions, dry_run: DryRun = False, as_json: Json = False) -> Result:
    """Drop the records that another one with the same key supersedes, as Kafka's cleaner does.

    Of a data directory the broker must be stopped, or the directory be a copy: its lock is taken
    and held. A store is cleaned as the partitions' owner. A live cluster goes on serving the topic;
    what it serves changes at once, and the replaced segments stay until keeplast collect. A round
    that fails leaves the partition as it was.
    """
    if dry_run:
        from keeplast.cli.plan import say_plan

        return say_plan(options, exact=False, as_json=as_json)
    from keeplast.cli.frame.verdict import is_stopped, report_errors, report_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.show.rounds import clean_parts, large_note
    from keeplast.run.stop_switch import StopSwitch

    found, place = options.where.open()
    switch = StopSwitch()
    with ProgressEvents("cleaning") as events, StopSignals(switch.stop) as signals:
        report = place.clean(options.scope, options.terms(found), work_of(found, events, switch))
    say_note(large_note(report), found)
    if not as_json:
        print_result(*clean_parts(report))
    for message in report_errors(report):
        say(message, kind="error")
    code = report_exit_code(report)
    if signals.exit_code is not None and is_stopped(report):
        code = signals.exit_code
    return code, report
