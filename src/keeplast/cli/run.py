"""``keeplast run``: round after round, as a broker's cleaner threads would do them."""

from __future__ import annotations

import os

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.console import (
    ConsoleOptions,
    console_served,
    directory_finder,
    directory_scanner,
    say_console,
)
from keeplast.cli.frame.options import (
    LoopOptions,
    MetricsOptions,
    RunnerOptions,
    ScopeOptions,
    SettingOptions,
    WorkOptions,
)
from keeplast.cli.frame.parameters import DataDir, Json, KeyMapBytes
from keeplast.cli.frame.readers import ReaderOptions


@command(first=("once", "topics", "runner"), example="keeplast run DATA_DIR --once")
def run(
    data_dir: DataDir,
    scope: ScopeOptions,
    loop: LoopOptions,
    workers: RunnerOptions,
    work: WorkOptions,
    settings: SettingOptions,
    readers: ReaderOptions,
    metrics: MetricsOptions,
    console: ConsoleOptions,
    key_map_bytes: KeyMapBytes = None,
    as_json: Json = False,
) -> Result:
    """Clean whatever becomes worth it, until SIGTERM or SIGINT, or with --once until nothing is.

    The broker must be stopped, or the directory be a copy: its lock is taken and held. Settings are
    read again before each turn. A damaged partition is skipped and stops no other. Each round
    leaves a receipt in DATA_DIR/keeplast-receipts (see keeplast inspect).
    """
    from contextlib import ExitStack

    from keeplast.cleaner.selection import Order
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.call import kernels_ahead, key_map_size, say_assumed
    from keeplast.cli.frame.loop import metrics_served, run_until_signal, say_end
    from keeplast.cli.show.output import say
    from keeplast.cli.show.run import RunLines, run_sentences
    from keeplast.clock import SystemClock
    from keeplast.config.selection import Selection, select_partitions
    from keeplast.log.files import LocalFiles
    from keeplast.service.control import Control
    from keeplast.service.daemon import Daemon
    from keeplast.service.directory_work import DirectorySettings, DirectoryWork
    from keeplast.service.gauges import GaugeObserver
    from keeplast.service.live import Teller
    from keeplast.service.snapshot import Observer
    from keeplast.survey.request import CleanRequest

    request = CleanRequest(
        (),
        memory_bytes=work.memory_bytes,
        task_memory_bytes=work.task_memory_bytes,
        shape=work.shape,
        order=loop.selection,
        rolls_idle=loop.selection is Order.OVERDUE_FIRST,
    )
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    console_at, brokers = console.check(), readers.brokers()

    def select() -> Selection:
        bound = key_map_size(key_map_bytes)
        return select_partitions(data_dir, LocalFiles(), scope, settings, key_map_bytes=bound)

    first = select()
    assumed = say_assumed(first, is_forced=False, expires=True)
    asked = DirectorySettings(
        root=first.directory.root,
        select=select,
        request=request,
        retries=loop.retry,
        is_watched=console_at is not None,
        untold=tuple if brokers is None else brokers.problems,
    )
    clock = SystemClock()
    control = Control(clock)
    gauges = GaugeObserver(control)
    observer: Observer = gauges
    with ExitStack() as stack:
        # Before a Spark session is paid for: a port that is taken is a mistake in an argument.
        served_at = stack.enter_context(
            metrics_served(metrics.address, gauges, clock, str(asked.root))
        )
        lines = stack.enter_context(RunLines(clock))
        teller: Teller = lines
        if console_at is not None:
            from keeplast.service.console.view import LoopFeed, Observers
            from keeplast.service.live import LiveProgress
            from keeplast.service.receipt_shelf import ReceiptShelf

            teller = live = LiveProgress(lines, clock, control)
            shelf = ReceiptShelf.of_directory(LocalFiles(), asked.root)
            feed = LoopFeed(live, control, gauges, LocalFiles(), shelf)
            observer = Observers((gauges, feed))
            server = stack.enter_context(
                console_served(
                    feed, console_at, console.entrance, clock,
                    allows_actions=console.allow_actions, search=console.search,
                    find=directory_finder(data_dir, LocalFiles(), scope, settings, brokers),
                    scan=directory_scanner(data_dir, LocalFiles()),
                )
            )  # fmt: skip
            say_console(server, console.entrance)
        wiring.say_start(workers.chosen_runner)
        stack.enter_context(kernels_ahead(workers, is_wanted=True))
        coordinator = stack.enter_context(
            wiring.open_coordinator(
                workers.chosen_runner,
                master=workers.master,
                cores=workers.cores,
                events=teller,
                brokers=brokers,
            )
        )
        lines.started(asked.root, coordinator.slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        cleaning = DirectoryWork(coordinator, clock, LocalFiles(), asked, narrator=teller)
        daemon = Daemon(
            cleaning,
            clock,
            narrator=teller,
            observer=observer,
            order=loop.selection,
            is_once=loop.once,
            control=control,
        )
        ended = run_until_signal(daemon)
    return say_end(ended, run_sentences(ended.report), assumed, as_json=as_json)
