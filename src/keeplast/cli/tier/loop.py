"""What ``keeplast tier run`` wires together.

The order is the rule: what an argument can be wrong about is found before a store is opened, and a
store and a port before a Spark session is paid for. Imported only when it is known that the
packages of the tier are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.cleaner.selection import Order
from keeplast.cleaner.shapes import Shape
from keeplast.cli.frame import wiring
from keeplast.cli.frame.loop import metrics_served, run_until_signal, say_end
from keeplast.cli.frame.options import SelectionName, ShapeName
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.show.output import say
from keeplast.cli.show.tier_run import TierLines, tier_sentences
from keeplast.cli.tier.options import ROUNDS_MAX, StoreCall
from keeplast.clock import SystemClock
from keeplast.config.sources import read_cleaner_config, read_layers, read_settings
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.size import parse_size
from keeplast.service.daemon import Daemon
from keeplast.service.gauges import GaugeObserver
from keeplast.service.store_settings import StoreSettings
from keeplast.service.store_work import StoreWork
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, GRACE_MS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCall:
    """The values of the options of one call; None is what nobody has said."""

    store: StoreCall
    data_dir: Path | None
    is_once: bool
    retries: bool
    takes_over: bool
    selection: SelectionName
    runner: RunnerName
    master: str | None
    cores: int | None
    memory: str
    shape: ShapeName | None
    task_memory: str
    config: tuple[str, ...]
    config_file: Path | None
    grace_ms: int | None
    garbage_age_ms: int | None
    receipt: Path | None
    metrics: tuple[str, int] | None
    as_json: bool


def look_after(call: RunCall) -> tuple[int, dict[str, Any]]:
    """Look after the chosen partitions until somebody ends it; returns exit code and document."""
    clock, files, observer = SystemClock(), LocalFiles(), GaugeObserver()
    settings = _settings(call, files)
    wiring.check_runner(call.runner, master=call.master)
    if call.data_dir is not None:
        open_data_directory(call.data_dir, files)
    with ExitStack() as stack:
        opened = stack.enter_context(call.store.opened())
        assumed = call.store.say_assumed(
            opened, call.store.chosen(opened),
            layers=read_layers(files, flags=call.config, config_file=call.config_file),
        )  # fmt: skip
        served_at = stack.enter_context(
            metrics_served(call.metrics, observer, clock, call.store.shown)
        )
        lines = stack.enter_context(TierLines(clock))
        wiring.say_start(call.runner, None)
        runner = stack.enter_context(
            wiring.open_runner(call.runner, master=call.master, cores=call.cores)
        )
        # A chosen shape cuts each round for all there is; else partitions take a slot each.
        slots = min(runner.slots, ROUNDS_MAX) if call.shape is None else 1
        settings = replace(settings, slots=slots)
        work = StoreWork(opened, runner, clock, files, settings, narrator=lines, events=lines)
        lines.started(call.store.shown, slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        daemon = Daemon(
            work, clock, narrator=lines, observer=observer,
            order=Order(call.selection.value), is_once=call.is_once,
        )  # fmt: skip
        ended = run_until_signal(daemon)
    return say_end(ended, tier_sentences(ended.report), assumed, as_json=call.as_json)


def _retention(call: RunCall, files: FileSystem) -> Callable[[str], int]:
    """Return what ``delete.retention.ms`` the broker of the data directory has, as of now."""
    root = open_data_directory(call.data_dir or Path(), files).root
    found = read_settings(
        root, files, flags=call.config, config_file=call.config_file,
        broker_config=call.store.broker_config,
    )  # fmt: skip
    return lambda topic: found.topic_config(topic).delete_retention_ms


def _settings(call: RunCall, files: FileSystem) -> StoreSettings:
    """Return what the options say; how many rounds are done at once is the runner's to say."""
    return StoreSettings(
        name=call.store.shown,
        owner=call.store.owner_name,
        is_about=call.store.is_about,
        cleaner=lambda: read_cleaner_config(
            files,
            flags=call.config,
            config_file=call.config_file,
            broker_config=call.store.broker_config,
        ),
        data_dir=call.data_dir,
        retention=None if call.data_dir is None else partial(_retention, call, files),
        takes_over=call.takes_over,
        retries=call.retries,
        memory_bytes=parse_size(call.memory, "--memory"),
        task_memory_bytes=parse_size(call.task_memory, "--task-memory"),
        shape=None if call.shape is None else Shape(call.shape),
        grace_ms=GRACE_MS_DEFAULT if call.grace_ms is None else call.grace_ms,
        garbage_age_ms=(
            GARBAGE_AGE_MS_DEFAULT if call.garbage_age_ms is None else call.garbage_age_ms
        ),
        receipt=call.receipt,
    )
