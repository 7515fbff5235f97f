"""What ``keeplast attach run`` wires together.

The order is the rule: what an argument can be wrong about is found before anything is opened, and a
decision log and a port before a Spark session is paid for.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
from keeplast.cli.attach.options import why_wait_of
from keeplast.cli.attach.run_options import AttachedRunOptions
from keeplast.cli.frame import wiring
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.console import console_served, say_console
from keeplast.cli.frame.loop import metrics_served, run_until_signal, say_end
from keeplast.cli.show.attach_run import AttachedLines, attached_sentences
from keeplast.cli.show.output import say
from keeplast.clock import Clock, SystemClock
from keeplast.cluster.layouts.paced import PacedLayout, RequestPace, pace_of
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.service.attached_settings import INTERVAL_MS_DEFAULT, AttachedSettings
from keeplast.service.attached_work import AttachedWork
from keeplast.service.control import Control
from keeplast.service.daemon import Daemon
from keeplast.service.gauges import GaugeObserver
from keeplast.service.live import LiveTierProgress, TierTeller
from keeplast.service.schedule import LOOK_MS_MIN
from keeplast.service.snapshot import Observer


def look_after(options: AttachedRunOptions, *, as_json: bool) -> Result:
    """Look after attached partitions until somebody ends it; returns exit code and document."""
    clock, files = SystemClock(), LocalFiles()
    control, console_at = Control(clock), options.console.check()
    gauges = GaugeObserver(control)
    options.console.check_receipt(options.receipt)
    observer: Observer = gauges
    settings, limits, workers = _settings(options), options.caps.pace(), options.workers
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    layout = options.tier.open_layout()
    cluster = options.cluster.connect()
    with ExitStack() as stack:
        log = stack.enter_context(options.tier.open_log())
        served_at = stack.enter_context(
            metrics_served(options.metrics.address, gauges, clock, settings.address)
        )
        lines = stack.enter_context(AttachedLines(clock))
        teller: TierTeller = lines
        wiring.say_start(workers.chosen_runner)
        runner = stack.enter_context(
            wiring.open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores)
        )
        # Threads keep to one pace; what runs elsewhere knows of no other's.
        paced = PacedLayout(
            layout, pace_of(limits if runner.shares_memory else limits.shared_by(runner.slots))
        )
        if console_at is not None:
            teller, observer = _watched(
                stack, options, console_at, paced.pace, lines, control, gauges, clock
            )
        work = AttachedWork(
            cluster, log, paced, runner, clock, files, settings, narrator=teller, events=teller
        )
        lines.started(settings.address, work.slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        daemon = Daemon(
            work, clock, narrator=teller, observer=observer, is_once=options.once, control=control
        )
        ended = run_until_signal(daemon, ends_at_second=True)
    return say_end(ended, attached_sentences(ended.report), {}, as_json=as_json)


def _watched(
    stack: ExitStack,
    options: AttachedRunOptions,
    console_at: tuple[str, int],
    pace: RequestPace,
    lines: AttachedLines,
    control: Control,
    gauges: GaugeObserver,
    clock: Clock,
) -> tuple[TierTeller, Observer]:
    """Serve the console while the stack lasts; returns who is told, and who hears of snapshots.

    Its searches keep to the loop's ``pace``.
    """
    from keeplast.cli.attach.watching import (
        attached_finder,
        attached_scanner,
        attached_watcher,
    )
    from keeplast.service.console.view import LoopFeed, Observers

    live, asked = LiveTierProgress(lines, clock, control), options.console
    watcher = stack.enter_context(
        attached_watcher(
            options.cluster, options.tier.store, clock, wanted=options.wanted,
            partitions=options.partitions, receipt=options.receipt, endures=True,
        )
    )  # fmt: skip
    feed = LoopFeed(live, control, gauges, LocalFiles(), watcher.shelf, store=watcher)
    server = stack.enter_context(
        console_served(
            feed, console_at, asked.entrance, clock, allows_actions=asked.allow_actions,
            search=asked.search,
            scan=attached_scanner(
                options.cluster, options.tier, pace, partitions=options.partitions
            ),
            find=attached_finder(
                options.cluster, options.tier.store, options.tier, options.wanted, clock, pace,
                partitions=options.partitions, grace_ms=options.grace_ms,
            ),
        )
    )  # fmt: skip
    say_console(server, asked.entrance)
    return live, Observers((gauges, feed))


def _settings(options: AttachedRunOptions) -> AttachedSettings:
    """Return what the options say; InvalidError for what cannot be used."""
    interval_ms = INTERVAL_MS_DEFAULT if options.interval_ms is None else options.interval_ms
    if interval_ms < LOOK_MS_MIN:
        raise InvalidError(f"give {LOOK_MS_MIN} ms at least. --interval={interval_ms}")
    grace_ms = GRACE_MS_DEFAULT if options.grace_ms is None else options.grace_ms
    return AttachedSettings(
        address=options.cluster.bootstrap_server,
        settings_of=options.wanted.settings_of,
        topics=options.cluster.topics,
        partitions=options.partitions,
        interval_ms=interval_ms,
        grace_ms=check_grace(grace_ms, is_object_store=options.tier.is_object_store),
        keep_sources_ms=options.keep_sources or 0,
        why_wait=why_wait_of(options.broker_metrics),
        caps=options.caps.day(),
        keyless=options.keyless,
        takes_over=options.take_over,
        memory_bytes=options.work.memory_bytes,
        task_memory_bytes=options.work.task_memory_bytes,
        shape=options.work.shape,
        receipt=options.receipt,
    )
