"""``keeplast tier run``: copy, clean, expire and collect whatever partitions of a store need it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import Result, check_packages, store_call

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
    broker_config: options.BrokerConfig = None,
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

    def body() -> Result:
        check_packages()
        from keeplast.cli.tier.loop import RunCall, look_after

        return look_after(
            RunCall(
                store=store_call(store, topic, partition, object_option, owner, broker_config),
                data_dir=data_dir, is_once=once, retries=retry, takes_over=take_over,
                selection=selection, runner=runner, master=master, cores=cores, memory=memory,
                shape=shape, task_memory=task_memory, config=tuple(config or ()),
                config_file=config_file, grace_ms=grace_ms, garbage_age_ms=garbage_age_ms,
                receipt=receipt, as_json=as_json,
                metrics=None if metrics_port is None else (metrics_host, metrics_port),
            )
        )  # fmt: skip

    run_guarded(body, as_json=as_json)
