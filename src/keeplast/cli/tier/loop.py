"""What ``keeplast tier run`` wires together.

The order is the rule: what an argument can be wrong about is found before a store is opened, and a
store and a port before a Spark session is paid for. Imported only when it is known that the
packages of the tier are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from keeplast.cli.frame import wiring
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.console import console_served, say_console
from keeplast.cli.frame.loop import metrics_served, run_until_signal, say_end
from keeplast.cli.show.output import say
from keeplast.cli.show.tier_run import TierLines, tier_sentences
from keeplast.cli.tier.hosting import host_settings
from keeplast.cli.tier.options import ROUNDS_MAX, TierRunOptions
from keeplast.clock import Clock, SystemClock
from keeplast.config.sources import read_cleaner_config, read_layers, read_settings
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.reader_wait import GroupReader
from keeplast.service.control import Control
from keeplast.service.daemon import Daemon, Work
from keeplast.service.gauges import GaugeObserver
from keeplast.service.host_work import HostWork
from keeplast.service.live import LiveTierProgress, TierTeller
from keeplast.service.snapshot import Observer
from keeplast.service.store_settings import StoreSettings
from keeplast.service.store_work import StoreWork
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT


def look_after(options: TierRunOptions, *, as_json: bool) -> Result:
    """Look after the chosen partitions until somebody ends it; returns exit code and document."""
    clock, files = SystemClock(), LocalFiles()
    control, console_at = Control(clock), options.console.check()
    gauges = GaugeObserver(control)
    options.console.check_receipt(options.receipt)
    brokers = options.readers.brokers()
    observer: Observer = gauges
    call, workers, sources = options.call, options.workers, options.settings
    settings = _settings(options, files)
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    if options.data_dir is not None:
        open_data_directory(options.data_dir, files)
    host = host_settings(options)
    with ExitStack() as stack:
        opened = stack.enter_context(
            call.opened(broker_config=sources.broker_config, brokers=brokers)
        )
        assumed = call.say_assumed(
            opened, call.chosen(opened), sources.broker_config, layers=read_layers(files, sources)
        )
        served_at = stack.enter_context(
            metrics_served(options.metrics.address, gauges, clock, call.shown)
        )
        lines = stack.enter_context(TierLines(clock))
        teller: TierTeller = lines
        if console_at is not None:
            teller, observer = _watched(
                stack, options, console_at, lines, control, gauges, clock, brokers
            )
        wiring.say_start(workers.chosen_runner)
        runner = stack.enter_context(
            wiring.open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores)
        )
        # A chosen shape cuts each round for all there is; else partitions take a slot each.
        slots = min(runner.slots, ROUNDS_MAX) if settings.shape is None else 1
        settings = replace(
            settings, slots=slots, untold=tuple if brokers is None else brokers.problems
        )
        work: Work
        if host is None:
            work = StoreWork(opened, runner, clock, files, settings, narrator=teller, events=teller)
        else:
            work = HostWork(
                opened, runner, clock, files, settings, narrator=teller, events=teller, host=host
            )
        lines.started(call.shown, slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        daemon = Daemon(
            work, clock, narrator=teller, observer=observer,
            order=options.loop.selection, is_once=options.loop.once, control=control,
        )  # fmt: skip
        ended = run_until_signal(daemon)
    return say_end(ended, tier_sentences(ended.report), assumed, as_json=as_json)


def _watched(
    stack: ExitStack,
    options: TierRunOptions,
    console_at: tuple[str, int],
    lines: TierLines,
    control: Control,
    gauges: GaugeObserver,
    clock: Clock,
    brokers: GroupReader | None,
) -> tuple[TierTeller, Observer]:
    """Serve the console while the stack lasts; returns who is told, and who hears of snapshots."""
    from keeplast.cli.tier.watching import store_finder, store_scanner, store_watcher
    from keeplast.service.console.view import LoopFeed, Observers

    live = LiveTierProgress(lines, clock, control)
    sources, asked = options.settings, options.console
    watcher = stack.enter_context(
        store_watcher(
            options.call, sources.broker_config, clock, options.receipt, brokers,
            local=options.data_dir or options.host.host_dir, sources=sources,
        )
    )  # fmt: skip
    feed = LoopFeed(live, control, gauges, LocalFiles(), watcher.shelf, store=watcher)
    server = stack.enter_context(
        console_served(
            feed, console_at, asked.entrance, clock, allows_actions=asked.allow_actions,
            search=asked.search, find=store_finder(options.call, sources.broker_config, brokers),
            scan=store_scanner(options.call),
        )
    )  # fmt: skip
    say_console(server, asked.entrance)
    return live, Observers((gauges, feed))


def _retention(options: TierRunOptions, files: FileSystem) -> Callable[[str], int]:
    """Return what ``delete.retention.ms`` the broker of the data directory has, as of now."""
    root = open_data_directory(options.data_dir or Path(), files).root
    found = read_settings(root, files, options.settings)
    return lambda topic: found.topic_config(topic).delete_retention_ms


def _settings(options: TierRunOptions, files: FileSystem) -> StoreSettings:
    """Return what the options say; how many rounds are done at once is the runner's to say."""
    age_ms = options.garbage_age_ms
    return StoreSettings(
        name=options.call.shown,
        owner=options.call.owner_name,
        is_about=options.call.scope.includes,
        cleaner=lambda: read_cleaner_config(files, options.settings),
        data_dir=options.data_dir,
        retention=None if options.data_dir is None else partial(_retention, options, files),
        takes_over=options.call.take_over,
        retries=options.loop.retry,
        memory_bytes=options.work.memory_bytes,
        task_memory_bytes=options.work.task_memory_bytes,
        shape=options.work.shape,
        grace_ms=options.grace.milliseconds,
        garbage_age_ms=GARBAGE_AGE_MS_DEFAULT if age_ms is None else age_ms,
        receipt=options.receipt,
    )
