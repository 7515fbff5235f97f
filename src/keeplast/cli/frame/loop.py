"""What ``keeplast run`` and ``keeplast tier run`` do with a daemon: serve metrics, run, say how it
ended.

The order is the rule: what was served and drawn while it ran is closed before the end is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.show.output import print_result, say
from keeplast.cli.show.run import run_document, run_table
from keeplast.clock import Clock
from keeplast.service.daemon import Daemon
from keeplast.service.gauges import GaugeObserver
from keeplast.service.run_report import RunReport


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended; ``signal_code`` is the exit code of the signal that ended it, if one did."""

    report: RunReport
    signal_code: int | None


@contextmanager
def metrics_served(
    address: tuple[str, int] | None, observer: GaugeObserver, clock: Clock, place: str
) -> Iterator[str | None]:
    """Serve what ``observer`` hears of at a host and port; gives the address, None without one."""
    if address is None:
        yield None
        return
    from keeplast.service.metrics import CleanerCollector, MetricsServer

    host, port = address
    with MetricsServer(CleanerCollector(observer, clock, place), host=host, port=port) as server:
        yield server.address


def run_until_signal(daemon: Daemon, *, ends_at_second: bool = False) -> Ended:
    """Run until the daemon is done, or SIGTERM or SIGINT ends it at its next safe point.

    ``ends_at_second`` is as in :class:`~keeplast.cli.frame.guard.StopSignals`.
    """
    with StopSignals(daemon.stop, ends_at_second=ends_at_second) as signals:
        report = daemon.run()
    return Ended(report, signals.exit_code)


def say_end(
    ended: Ended, sentences: Sequence[str], assumed: Mapping[str, str], *, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Say what was done and how the partitions stand; returns exit code and document.

    ``assumed`` are the defaults that the run rests on because no source says them.
    """
    report = ended.report
    for sentence in sentences:
        say(sentence)
    if not as_json:
        print_result(run_table(report))
    worst = max((error_exit_code(error) for error in report.failures.values()), default=DONE)
    code = worst if ended.signal_code is None else ended.signal_code
    document = run_document(report, is_stopped=ended.signal_code is not None)
    return code, {**document, "assumed": dict(assumed)}
