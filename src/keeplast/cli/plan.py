"""``keeplast plan``: say what ``clean`` would do, and change nothing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.wiring import RunnerName

Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Read everything and rewrite without output: exact counts instead of estimates.",
        rich_help_panel=options.ROUND,
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Say instead which keys would keep another record by the strategy of --config than "
        "by the one in force, and which records have no usable version.",
        rich_help_panel=options.ROUND,
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
        rich_help_panel=options.ROUND,
    ),
]


def plan(
    data_dir: options.DataDir,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    to: options.To = None,
    overwrite: options.Overwrite = False,
    object_option: options.ObjectOptions = None,
    runner: options.Runner = RunnerName.SPARK,
    master: options.Master = None,
    cores: options.Cores = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    broker_config: options.BrokerConfig = None,
    now_ms: options.RoundNowMs = None,
    high_watermark: options.HighWatermark = None,
    log_start_offset: options.LogStartOffset = None,
    first_dirty_offset: options.FirstDirtyOffset = None,
    uncleanable_offset: options.UncleanableOffset = None,
    unsafe: options.Unsafe = False,
    key_map_bytes: options.KeyMapBytes = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    shape: options.Shape = None,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    rounds: options.Rounds = None,
    until_done: options.UntilDone = False,
    roll_active: options.RollActive = False,
    selection: options.Selection = options.SelectionName.OVERDUE_FIRST,
    retention: options.Retention = True,
    force: options.Force = False,
    expired: options.Expired = False,
    receipt: options.Receipt = None,
    exact: Exact = False,
    compare: Compare = False,
    first: First = 10,
    as_json: options.Json = False,
) -> None:
    """Say what clean would do with the same arguments: exact bounds, estimates marked ~.

    Reads without the directory's lock and writes nothing; a broker may be running, and what it
    changes meanwhile makes the answer old.
    """
    values = options.RunOptions(
        data_dir=data_dir,
        topics=tuple(topic or ()),
        partitions=tuple(partition or ()),
        to=to,
        overwrite=overwrite,
        runner=runner,
        master=master,
        cores=cores,
        config=tuple(config or ()),
        config_file=config_file,
        broker_config=broker_config,
        now_ms=now_ms,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        first_dirty_offset=first_dirty_offset,
        uncleanable_offset=uncleanable_offset,
        unsafe=unsafe,
        key_map_bytes=key_map_bytes,
        memory=memory,
        rounds=rounds,
        until_done=until_done,
        roll_active=roll_active,
        selection=selection,
        retention=retention,
        force=force,
        expired=expired,
        receipt=receipt,
        as_json=as_json,
        shape=shape,
        task_memory=task_memory,
        object_options=tuple(object_option or ()),
    )
    if compare:
        run_guarded(lambda: _compared(values, first), as_json=as_json)
    run_guarded(lambda: _planned(values, exact=exact), as_json=as_json)


def _compared(values: options.RunOptions, first: int) -> tuple[int, dict[str, Any]]:
    from keeplast.cli.compare import compared

    return compared(values, first=first)


def _planned(values: options.RunOptions, *, exact: bool) -> tuple[int, dict[str, Any]]:
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
        values,
        "planning",
        lambda coordinator, request: coordinator.plan(request, exact=exact),
        writes=False,
    )
    if not values.as_json:
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
    return report_exit_code(report), report.to_json()
