"""``keeplast tier clean``: one round for each chosen partition of a store."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import RenderableType

from keeplast.cleaner.shapes import Shape
from keeplast.cli.frame import wiring
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.frame.verdict import is_stopped, report_errors, report_exit_code
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.show.outcome import closing_line
from keeplast.cli.show.output import JSON_VERSION, print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.sizes import format_bytes, format_count
from keeplast.cli.show.tables import note_lines, reasons_table, summary_table
from keeplast.cli.tier.options import ROUNDS_MAX
from keeplast.errors import CompactionError, StoppedError
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.runner import Runner
from keeplast.run.receipt import Receipt
from keeplast.store.round import Progressed
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCall:
    """What the rounds of one call are asked for, and what does them.

    ``assumed`` are the defaults that they rest on because no source says them.
    """

    runner: RunnerName
    master: str | None
    cores: int | None
    memory_bytes: int
    task_memory_bytes: int
    shape: Shape | None
    grace_ms: int
    force: bool
    expired: bool
    takes_over: bool
    receipt: Receipt | None
    cleaner: CleanerConfig
    assumed: Mapping[str, str]


def clean_partitions(
    store: TieredStore, partitions: Sequence[TopicPartition], call: CleanCall, *, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Do the rounds on one runner; a fault of one partition is in its report and stops no other."""
    wiring.check_runner(call.runner, master=call.master)
    stopping = threading.Event()
    reports: list[PartitionReport] = []
    warnings = store.hazards(partitions)
    for warning in warnings:
        say(warning, kind="warning")
    wiring.say_start(call.runner, None)
    with (
        ProgressEvents("cleaning") as events,
        wiring.open_runner(call.runner, master=call.master, cores=call.cores) as runner,
    ):
        # A chosen shape cuts each round for all there is; otherwise partitions run side by side.
        width = 1 if call.shape is not None else min(len(partitions), runner.slots, ROUNDS_MAX)

        def progressed(read_bytes: int) -> None:
            events.progressed(read_bytes)
            if stopping.is_set():
                raise StoppedError("stopped on request; what is published stays, run again")

        do_round = partial(_round, store, call, runner, progressed)
        with (
            StopSignals(stopping.set) as signals,
            ThreadPoolExecutor(max(width, 1), "keeplast-round") as pool,
        ):
            for each, report in zip(partitions, pool.map(do_round, partitions), strict=True):
                events.finished(each, report)
                reports.append(PartitionReport(each.topic, each.partition, (report,)))
    done = CleanReport(tuple(reports), warnings, call.assumed)
    if not as_json:
        print_result(*_report_parts(done))
    for message in report_errors(done):
        say(message, kind="error")
    code = report_exit_code(done)
    if signals.exit_code is not None and is_stopped(done):
        code = signals.exit_code
    return code, {**done.to_json(), "version": JSON_VERSION}


def _round(
    store: TieredStore, call: CleanCall, runner: Runner, progressed: Progressed,
    partition: TopicPartition,
) -> RoundReport:  # fmt: skip
    """Do a round in whatever thread; what is no defect of ours is in its report."""
    try:
        progressed(0)
        return store.clean(
            partition, lambda files: nullcontext(runner), cleaner=call.cleaner,
            memory_bytes=call.memory_bytes, progressed=progressed, force=call.force,
            takes_over=call.takes_over, grace_ms=call.grace_ms, shape=call.shape,
            task_memory_bytes=call.task_memory_bytes, expired=call.expired, receipt=call.receipt,
        )  # fmt: skip
    except (CompactionError, OSError) as error:
        return RoundReport(error=describe_error(error), failure=error)


def _report_parts(done: CleanReport) -> list[RenderableType]:
    """Return the summary, and what there is to know besides."""
    parts: list[RenderableType] = [summary_table(done)]
    reasons = reasons_table(done)
    for more in (
        note_lines(done),
        [] if reasons is None else [reasons],
        [*chunk_lines(done), *filter_lines(done)],
    ):
        if more:
            parts += ["", *more]
    return [*parts, "", closing_line(done)]


def chunk_lines(report: CleanReport) -> list[str]:
    """Return a line for each partition whose round had more than one chunk."""
    return [
        f"{partition.topic}-{partition.partition}: cleaned in {partition.rounds[-1].chunks} chunks;"
        " a later one reads again what an earlier one kept, so bytes and records count again"
        for partition in report.partitions
        if (partition.rounds[-1].chunks or 0) > 1
    ]


def filter_lines(report: CleanReport) -> list[str]:
    """Return a line a partition: what filters let its round leave out, and what they took."""
    lines = []
    for partition in report.partitions:
        stats = partition.rounds[-1].filters
        if stats is None or not stats.clean_segments:
            continue
        line = (
            f"{partition.topic}-{partition.partition}: filters left out "
            f"{format_count(stats.skipped_segments)} of {format_count(stats.clean_segments)} clean "
            f"segments ({format_bytes(stats.skipped_bytes)} of {format_bytes(stats.clean_bytes)}), "
            f"reading {format_bytes(stats.bytes_read)}"
        )
        if stats.share_of_segments is not None:
            line += f"; they are {stats.share_of_segments:.2%} of their segments"
        lines.append(line)
    return lines
