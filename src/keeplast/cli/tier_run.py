"""``keeplast tier run``: copy, clean, expire and collect whatever partitions of a store need it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli import options
from keeplast.cli import tier_options as shared
from keeplast.cli.guard import StopSignals, run_guarded
from keeplast.cli.tier_options import Result, StoreCall, store_call
from keeplast.cli.wiring import RunnerName

DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Copy what the store's partitions gain in this Kafka log.dirs directory. It is only "
        "read; its broker may be running.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class RunCall:
    """The values of the options of one call."""

    store: StoreCall
    data_dir: Path | None
    is_once: bool
    retries: bool
    takes_over: bool
    selection: options.SelectionName
    runner: RunnerName
    master: str | None
    cores: int | None
    memory: str
    shape: options.ShapeName | None
    task_memory: str
    config: tuple[str, ...]
    config_file: Path | None
    grace_ms: int | None
    garbage_age_ms: int | None
    receipt: Path | None
    metrics: tuple[str, int] | None
    as_json: bool


def run(
    store: shared.Store,
    data_dir: DataDirectory = None,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    once: options.Once = False,
    retry: options.Retry = False,
    selection: options.Selection = options.SelectionName.OVERDUE_FIRST,
    runner: options.Runner = RunnerName.LOCAL,
    master: shared.Master = None,
    cores: options.Cores = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    shape: options.Shape = None,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    grace_ms: shared.GraceMs = None,
    garbage_age_ms: shared.GarbageAgeMs = None,
    receipt: options.Receipt = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = options.LOOPBACK,
    as_json: options.Json = False,
) -> None:
    """Copy, clean, expire and collect until SIGTERM or SIGINT, or with --once until nothing is due.

    For all partitions that nobody owns or this host does; another's only with --take-over, and who
    is fenced later leaves the partition alone. The partitions' settings are those in the store,
    `--config` is about the cleaner. A damaged partition is set aside and stops no other.
    """
    call = RunCall(
        store_call(store, topic, partition, object_option, owner),
        data_dir,
        once,
        retry,
        take_over,
        selection,
        runner,
        master,
        cores,
        memory,
        shape,
        task_memory,
        tuple(config or ()),
        config_file,
        grace_ms,
        garbage_age_ms,
        receipt,
        None if metrics_port is None else (metrics_host, metrics_port),
        as_json,
    )
    run_guarded(lambda: _ran(call), as_json=as_json)


def _ran(call: RunCall) -> Result:
    from contextlib import ExitStack

    from keeplast.cleaner.selection import Order
    from keeplast.cleaner.shapes import Shape
    from keeplast.cli import wiring
    from keeplast.cli.exit_codes import DONE, error_exit_code
    from keeplast.cli.output import print_result, say
    from keeplast.cli.run_view import run_document, run_table
    from keeplast.cli.sizes import parse_size
    from keeplast.cli.tier_run_view import TierLines, tier_sentences
    from keeplast.clock import SystemClock
    from keeplast.config.sources import read_cleaner_config
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.service.daemon import Daemon
    from keeplast.service.gauges import GaugeObserver

    memory_bytes = parse_size(call.memory, "--memory")
    task_memory_bytes = parse_size(call.task_memory, "--task-memory")
    wiring.check_runner(call.runner, master=call.master)
    clock, files, observer = SystemClock(), LocalFiles(), GaugeObserver()
    if call.data_dir is not None:
        open_data_directory(call.data_dir, files)
    with ExitStack() as stack:
        opened = stack.enter_context(call.store.opened())
        call.store.chosen(opened)
        # Imported only here: the packages of the tier may be missing, which opening has told.
        from keeplast.service.store_work import StoreSettings, StoreWork

        server = None
        if call.metrics is not None:
            from keeplast.service.metrics import CleanerCollector, MetricsServer

            collector = CleanerCollector(observer, clock, call.store.shown)
            host, port = call.metrics
            server = stack.enter_context(MetricsServer(collector, host=host, port=port))
        lines = stack.enter_context(TierLines(clock))
        runner = stack.enter_context(
            wiring.open_runner(call.runner, master=call.master, cores=call.cores)
        )
        settings = StoreSettings(
            name=call.store.shown,
            owner=call.store.owner_name,
            is_about=call.store.is_about,
            cleaner=lambda: read_cleaner_config(
                files, flags=call.config, config_file=call.config_file
            ),
            # A chosen shape cuts each round for all there is; else partitions take a slot each.
            slots=min(runner.slots, shared.ROUNDS_MAX) if call.shape is None else 1,
            data_dir=call.data_dir,
            takes_over=call.takes_over,
            retries=call.retries,
            memory_bytes=memory_bytes,
            task_memory_bytes=task_memory_bytes,
            shape=None if call.shape is None else Shape(call.shape),
            receipt=call.receipt,
            **_given(grace_ms=call.grace_ms, garbage_age_ms=call.garbage_age_ms),
        )
        work = StoreWork(opened, runner, clock, files, settings, narrator=lines, events=lines)
        lines.started(call.store.shown, settings.slots, process_id=os.getpid())
        if server is not None:
            say(f"metrics at {server.address}")
        daemon = Daemon(
            work, clock, narrator=lines, observer=observer,
            order=Order(call.selection.value), is_once=call.is_once,
        )  # fmt: skip
        with StopSignals(daemon.stop) as signals:
            report = daemon.run()
    for sentence in tier_sentences(report):
        say(sentence)
    if not call.as_json:
        print_result(run_table(report))
    worst = max((error_exit_code(error) for error in report.failures.values()), default=DONE)
    code = worst if signals.exit_code is None else signals.exit_code
    return code, run_document(report, is_stopped=signals.exit_code is not None)


def _given(**values: int | None) -> dict[str, int]:
    """Return what somebody has said; the rest are the defaults of whoever takes it."""
    return {name: value for name, value in values.items() if value is not None}
