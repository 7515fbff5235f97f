"""``keeplast clean``: clean the logs of a data directory, in place or to a new place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import StopSignals, run_guarded
from keeplast.cli.frame.wiring import CoordinatorPort, RunnerName

if TYPE_CHECKING:
    from keeplast.survey.report import CleanReport
    from keeplast.survey.request import CleanRequest


def clean(
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
    as_json: options.Json = False,
) -> None:
    """Drop the records that a later one with the same key supersedes, as Kafka's cleaner does.

    The broker must be stopped, or the directory be a copy: its lock is taken and held. A round that
    fails leaves the partition as it was.
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
    run_guarded(lambda: _cleaned(values), as_json=as_json)


def _cleaned(values: options.RunOptions) -> tuple[int, dict[str, Any]]:
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

    report = report_call(values, "cleaning", act, writes=True)
    if not values.as_json:
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
    return code, report.to_json()
