"""``keeplast clean``: clean the logs of a place."""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, StopSignals, command
from keeplast.cli.frame.options import ROUND, Json
from keeplast.cli.frame.round_options import CleanOptions, say_note, work_of
from keeplast.errors import InvalidError

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Change nothing, and say what would be done: the same as keeplast plan."
    ),
]


OnlyExpire = Annotated[
    bool,
    typer.Option(
        "--only-expire", rich_help_panel=ROUND,
        help="Do no round: remove what retention.ms, retention.bytes (policy delete) and the log "
        "start let go, and nothing else.",
    ),
]  # fmt: skip


@command(
    first=(
        "topics", "partitions", "to", "despite", "dry_run", "until_done", "roll_active", "expired",
        "take_over", "given", "flags",
    ),
    example="keeplast clean DATA_DIR --topic orders --to COPY",
)  # fmt: skip
def clean(
    options: CleanOptions,
    only_expire: OnlyExpire = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> Result:
    """Drop the records that another one with the same key supersedes, as Kafka's cleaner does.

    Of a data directory the broker must be stopped, or the directory be a copy: its lock is taken
    and held. A store is cleaned as the partitions' owner. A live cluster goes on serving the topic;
    what it serves changes at once, and the replaced segments stay until keeplast collect. A round
    that fails leaves the partition as it was.
    """
    if dry_run and only_expire:
        raise InvalidError(
            "plan says what would expire; leave one out. --dry-run=true --only-expire=true",
            code="K101",
        )
    if dry_run:
        from keeplast.cli.plan import say_plan

        return say_plan(options, exact=False, as_json=as_json)
    from keeplast.cli.frame.command import is_stopped, report_errors, report_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.show.rounds import clean_parts, expiry_parts, large_note
    from keeplast.run.events import StopSwitch

    found, place = options.where.open()
    switch = StopSwitch()
    act, parts = (place.expire, expiry_parts) if only_expire else (place.clean, clean_parts)
    with ProgressEvents("cleaning") as events, StopSignals(switch.stop) as signals:
        work = work_of(found, events, switch, compiles=not only_expire)
        report = act(options.scope, options.terms(found), work)
    say_note(large_note(report), found)
    if not as_json:
        print_result(*parts(report))
    say(*report_errors(report), kind="error")
    code = report_exit_code(report)
    if signals.exit_code is not None and is_stopped(report):
        code = signals.exit_code
    return code, {**place.head, **report.as_document()}
