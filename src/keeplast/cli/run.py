"""``keeplast run``: round after round, as a broker's cleaner threads would do them.

The order is the rule: what an argument can be wrong about is found before anything is opened. A
place and a port are checked before a Spark session is paid for.
"""

from __future__ import annotations

import os

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.console import ConsoleOptions, console_served, say_console, search_limits
from keeplast.cli.frame.options import HostOptions, Json, LoopOptions, MetricsOptions, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver, work_of


@command(
    first=(
        "once", "topics", "partitions", "console", "metrics_port", "retry", "selection", "host_dir",
        "take_over", "given", "flags",
    ),
    example="keeplast run DATA_DIR --once",
)  # fmt: skip
def run(
    where: PlaceOptions,
    scope: ScopeOptions,
    loop: LoopOptions,
    host: HostOptions,
    metrics: MetricsOptions,
    console: ConsoleOptions,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Clean whatever becomes worth it, until SIGTERM or SIGINT, or with --once until nothing is.

    Of a data directory the broker must be stopped, or the directory be a copy: its lock is taken
    and held. Partitions of a store are copied, cleaned, expired and collected as their owner. Of a
    live cluster the topics that the decision log has as attached are compacted and collected;
    --topic attaches others. A damaged partition is skipped and stops no other. Settings are read
    again before each turn. Rounds leave receipts: in DATA_DIR/keeplast-receipts, elsewhere with
    --receipt.
    """
    from contextlib import ExitStack

    from keeplast.api.open_place import brokers_of
    from keeplast.cli.frame.command import DONE, StopSignals, error_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.run import RunLines, run_document, run_sentences, run_table
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles
    from keeplast.model.topic_config import Keyless
    from keeplast.run.events import NoEvents, StopSwitch
    from keeplast.service.daemon import Daemon
    from keeplast.service.gauges import GaugeObserver
    from keeplast.service.history_file import PlaceHistory
    from keeplast.service.live import Control, RunNarrator
    from keeplast.service.place_loop import LoopTerms, ViewTerms
    from keeplast.service.receipt_shelf import ReceiptShelf
    from keeplast.service.snapshot import Observer, Observers

    found, place = where.open()
    console_at, clock = console.check(found), SystemClock()
    brokers = brokers_of(found)
    work = work_of(found, NoEvents(), StopSwitch(), brokers=brokers)
    terms = LoopTerms(
        order=loop.selection, retries=loop.retry, takes_over=take_over,
        keyless=Keyless(found.text("keyless") or Keyless.FAIL),
        keep_sources_ms=found.milliseconds("keep-sources") or 0,
        host_dir=host.host_dir, role=host.role, lease_ms=host.lease_ms,
        is_watched=console_at is not None,
        unanswered=tuple if brokers is None else brokers.problems,
    )  # fmt: skip
    control = Control(clock)
    gauges, files = GaugeObserver(control), LocalFiles()
    with ExitStack() as stack:
        opened = stack.enter_context(place.loop(scope, terms, work))
        served_at: str | None = None
        if metrics.metrics_port is not None:
            from keeplast.service.metrics import CleanerCollector, MetricsServer

            collector = CleanerCollector(gauges, clock, opened.name)
            host_at, port = metrics.metrics_host, metrics.metrics_port
            exporter = stack.enter_context(MetricsServer(collector, host=host_at, port=port))
            served_at = exporter.address
        lines = stack.enter_context(RunLines(clock, found.kind))
        narrator: RunNarrator = lines
        kept = PlaceHistory(files, ReceiptShelf(files, opened.receipt), clock, lines.warned)
        observers: tuple[Observer, ...] = (gauges, stack.enter_context(kept))
        if console_at is not None:
            from keeplast.service.console.view import LoopFeed
            from keeplast.service.live import LiveProgress

            narrator = live = LiveProgress(lines, clock, control)
            view = opened.view(
                ViewTerms(clock=clock, receipt=work.receipt, brokers=brokers, endures=True)
            )
            watcher = stack.enter_context(view.watcher)
            feed = LoopFeed(live, control, gauges, files, clock, watcher, kept)
            observers += (feed,)
            server = stack.enter_context(
                console_served(
                    feed,
                    view,
                    console_at,
                    console.entrance,
                    clock,
                    limits=search_limits(found),
                    place=found.shown,
                    allows_actions=console.allow_actions,
                )
            )
            say_console(server, console.entrance)
        working = opened.start(stack.enter_context(work.open_runner()), lines, narrator)
        lines.started(opened.name, working.slots, process_id=os.getpid())
        if served_at is not None:
            say(f"metrics at {served_at}")
        daemon = Daemon(
            working, clock, narrator=narrator, observer=Observers(observers), order=loop.selection,
            is_once=loop.once, control=control,
        )  # fmt: skip
        with StopSignals(daemon.stop, ends_at_second=opened.ends_at_second) as signals:
            report = daemon.run()
    # What was served and drawn is closed before the end is said.
    say(*run_sentences(report))
    if not as_json:
        print_result(run_table(report))
    worst = max((error_exit_code(error) for error in report.failures.values()), default=DONE)
    code = worst if signals.exit_code is None else signals.exit_code
    document = run_document(report, is_stopped=signals.exit_code is not None)
    return code, {**place.head, **document, "assumed": dict(opened.assumed)}
