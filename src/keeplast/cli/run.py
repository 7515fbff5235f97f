"""``keeplast run``: round after round, as a broker's cleaner threads would do them."""

from __future__ import annotations

import os
from typing import Any

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.wiring import RunnerName


def run(
    data_dir: options.DataDir,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    once: options.Once = False,
    retry: options.Retry = False,
    selection: options.Selection = options.SelectionName.OVERDUE_FIRST,
    runner: options.Runner = RunnerName.SPARK,
    master: options.Master = None,
    cores: options.Cores = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    shape: options.Shape = None,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    key_map_bytes: options.KeyMapBytes = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    broker_config: options.BrokerConfig = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = options.LOOPBACK,
    as_json: options.Json = False,
) -> None:
    """Clean whatever becomes worth it, until SIGTERM or SIGINT, or with --once until nothing is.

    The broker must be stopped, or the directory be a copy: its lock is taken and held. Settings are
    read again before each turn. A damaged partition is set aside and stops no other. Each round
    leaves a receipt in DATA_DIR/keeplast-receipts (see keeplast receipt show).
    """
    values = options.RunOptions(
        data_dir=data_dir,
        topics=tuple(topic or ()),
        partitions=tuple(partition or ()),
        runner=runner,
        master=master,
        cores=cores,
        config=tuple(config or ()),
        config_file=config_file,
        broker_config=broker_config,
        key_map_bytes=key_map_bytes,
        memory=memory,
        selection=selection,
        as_json=as_json,
        shape=shape,
        task_memory=task_memory,
    )
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    run_guarded(lambda: _ran(values, is_once=once, retries=retry, metrics=metrics), as_json=as_json)


def _ran(
    values: options.RunOptions, *, is_once: bool, retries: bool, metrics: tuple[str, int] | None
) -> tuple[int, dict[str, Any]]:
    from contextlib import ExitStack

    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.call import make_request, say_assumed, select
    from keeplast.cli.frame.loop import metrics_served, run_until_signal, say_end
    from keeplast.cli.show.output import say
    from keeplast.cli.show.run import RunLines, run_sentences
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles
    from keeplast.model.size import parse_size
    from keeplast.service.daemon import Daemon
    from keeplast.service.directory_work import DirectorySettings, DirectoryWork
    from keeplast.service.gauges import GaugeObserver

    memory_bytes = parse_size(values.memory, "--memory")
    wiring.check_runner(values.runner, master=values.master)
    first = select(values)
    assumed = say_assumed(values, first, expires=True)
    settings = DirectorySettings(
        root=first.directory.root,
        select=lambda: select(values),
        request=make_request(values, first, memory_bytes),
        retries=retries,
    )
    clock, observer = SystemClock(), GaugeObserver()
    with ExitStack() as stack:
        # Before a Spark session is paid for: a port that is taken is a mistake in an argument.
        served_at = stack.enter_context(
            metrics_served(metrics, observer, clock, str(settings.root))
        )
        lines = stack.enter_context(RunLines(clock))
        wiring.say_start(values.runner, None)
        coordinator = stack.enter_context(
            wiring.open_coordinator(
                values.runner, master=values.master, cores=values.cores, events=lines
            )
        )
        lines.started(settings.root, coordinator.slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        work = DirectoryWork(coordinator, clock, LocalFiles(), settings, narrator=lines)
        order = settings.request.order
        daemon = Daemon(
            work, clock, narrator=lines, observer=observer, order=order, is_once=is_once
        )
        ended = run_until_signal(daemon)
    return say_end(ended, run_sentences(ended.report), assumed, as_json=values.as_json)
