"""``keeplast tier clean``: one round for each chosen partition of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from rich.console import RenderableType

from keeplast.cli.frame import wiring
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.guard import StopSignals
from keeplast.cli.frame.verdict import is_stopped, report_errors, report_exit_code
from keeplast.cli.show.outcome import closing_line
from keeplast.cli.show.output import print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.tables import filter_lines, note_lines, reasons_table, summary_table
from keeplast.cli.tier.options import ROUNDS_MAX, TierCleanOptions
from keeplast.cli.tier.steps import receipt_writer
from keeplast.config.sources import read_cleaner_config, read_layers
from keeplast.errors import CompactionError, StoppedError
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.runner import Runner
from keeplast.service.tier_pace import share_of
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error

RoundOf = Callable[
    [TieredStore, TopicPartition, Callable[[int], None], Runner, CleanerConfig], RoundReport
]


def clean_store(options: TierCleanOptions, *, as_json: bool) -> Result:
    """Do a round for each chosen partition.

    What an argument can be wrong about is found before the store is opened.
    """
    call = options.call
    files, sources = LocalFiles(), options.settings
    cleaner, layers = read_cleaner_config(files, sources), read_layers(files, sources)
    round_of, brokers = _round_of(options), options.readers.brokers()
    with call.opened(broker_config=sources.broker_config, brokers=brokers) as store:
        chosen = call.chosen(store)
        assumed = call.say_assumed(
            store, chosen, sources.broker_config, layers=layers, is_forced=options.worth.force,
            expires=False,
        )  # fmt: skip
        done, signal_code = _do_rounds(store, chosen, options, round_of, cleaner)
    done = replace(done, assumed=assumed)
    if not as_json:
        print_result(*_report_parts(done))
    for message in report_errors(done):
        say(message, kind="error")
    code = report_exit_code(done)
    if signal_code is not None and is_stopped(done):
        code = signal_code
    return code, done


def _round_of(options: TierCleanOptions) -> RoundOf:
    """Return what does the round that is asked for; what is no defect of ours is in its report."""
    clean = partial(
        TieredStore.clean, memory_bytes=options.work.memory_bytes,
        task_memory_bytes=options.work.task_memory_bytes, shape=options.work.shape,
        grace_ms=options.grace.milliseconds, force=options.worth.force,
        expired=options.worth.expired, takes_over=options.call.take_over,
        receipt=receipt_writer(options.receipt),
    )  # fmt: skip

    def do_round(
        store: TieredStore, each: TopicPartition, progressed: Callable[[int], None],
        runner: Runner, cleaner: CleanerConfig,
    ) -> RoundReport:  # fmt: skip
        try:
            progressed(0)
            return clean(
                store, each, lambda files: nullcontext(runner), cleaner=cleaner,
                progressed=progressed,
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error)

    return do_round


def _do_rounds(
    store: TieredStore,
    partitions: Sequence[TopicPartition],
    options: TierCleanOptions,
    round_of: RoundOf,
    cleaner: CleanerConfig,
) -> tuple[CleanReport, int | None]:
    """Do the rounds on one runner; a fault of one partition is in its report and stops no other.

    Returns the report, and the exit code of a signal that came.
    """
    workers = options.workers
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    stopping = threading.Event()
    reports: list[PartitionReport] = []
    warnings = store.hazards(partitions)
    for warning in warnings:
        say(warning, kind="warning")
    wiring.say_start(workers.chosen_runner)
    with (
        ProgressEvents("cleaning") as events,
        wiring.open_runner(
            workers.chosen_runner, master=workers.master, cores=workers.cores
        ) as runner,
    ):
        # A chosen shape cuts each round for all there is; otherwise partitions run side by side.
        is_cut = options.work.shape is not None
        width = 1 if is_cut else min(len(partitions), runner.slots, ROUNDS_MAX)
        share = share_of(cleaner, runner, width)

        def progressed(read_bytes: int) -> None:
            events.progressed(read_bytes)
            if stopping.is_set():
                raise StoppedError("stopped on request; what is published stays, run again")

        def do_round(each: TopicPartition) -> RoundReport:
            return round_of(store, each, progressed, runner, share)

        with (
            StopSignals(stopping.set) as signals,
            ThreadPoolExecutor(max(width, 1), "keeplast-round") as pool,
        ):
            for each, report in zip(partitions, pool.map(do_round, partitions), strict=True):
                events.finished(each, report)
                reports.append(PartitionReport(each.topic, each.partition, (report,)))
    return CleanReport(tuple(reports), warnings), signals.exit_code


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
        f"{partition.topic}-{partition.partition}: cleaned in {partition.rounds[-1].chunks} chunks "
        "(tier.chunk.bytes); a later one reads again what an earlier one kept, "
        f"{format_bytes(stats.bytes_read)} in all"
        for partition in report.partitions
        if (partition.rounds[-1].chunks or 0) > 1 and (stats := partition.rounds[-1].stats)
    ]
