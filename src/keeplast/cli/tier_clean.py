"""``keeplast tier clean``: one round for each chosen partition of a store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from keeplast.cleaner.shapes import Shape
from keeplast.cli import wiring
from keeplast.cli.exit_codes import DONE, error_exit_code
from keeplast.cli.guard import JSON_VERSION, StopSignals
from keeplast.cli.output import print_result, say
from keeplast.cli.progress import ProgressEvents
from keeplast.cli.sizes import format_bytes, format_count, parse_size
from keeplast.cli.tables import note_lines, reasons_table, summary_table
from keeplast.cli.tier_options import ROUNDS_MAX
from keeplast.cli.verdict import is_stopped, report_errors
from keeplast.cli.wiring import RunnerName
from keeplast.engine.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.engine.tiered_store import GRACE_MS_DEFAULT, TieredStore
from keeplast.errors import CompactionError, StoppedError
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.receipts import receipt_to


def clean_partitions(
    store: TieredStore,
    partitions: Sequence[TopicPartition],
    *,
    force: bool,
    memory: str,
    runner: RunnerName,
    master: str | None,
    cores: int | None,
    shape: Shape | None,
    task_memory: str,
    grace_ms: int | None,
    takes_over: bool,
    expired: bool,
    receipt: Path | None,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Do the rounds on one runner; a fault of one partition is in its report and stops no other."""
    memory_bytes = parse_size(memory, "--memory")
    task_memory_bytes = parse_size(task_memory, "--task-memory")
    wiring.check_runner(runner, master=master)
    stopping = threading.Event()
    write_line = receipt_to(LocalFiles(), receipt)

    with (
        ProgressEvents("cleaning") as events,
        wiring.open_runner(runner, master=master, cores=cores) as started,
    ):
        # A chosen shape cuts each round for all there is; otherwise partitions run side by side.
        width = 1 if shape is not None else min(len(partitions), started.slots, ROUNDS_MAX)

        def progressed(read_bytes: int) -> None:
            events.progressed(read_bytes)
            if stopping.is_set():
                raise StoppedError("stopped on request; what is published stays, run again")

        def one(each: TopicPartition) -> RoundReport:
            try:
                progressed(0)
                return store.clean(
                    each, lambda files: nullcontext(started), cleaner=CleanerConfig(),
                    memory_bytes=memory_bytes, progressed=progressed, force=force,
                    takes_over=takes_over,
                    grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
                    shape=shape, task_memory_bytes=task_memory_bytes, expired=expired,
                    receipt=write_line,
                )  # fmt: skip
            except (CompactionError, OSError) as error:
                return RoundReport(error=describe_error(error), failure=error)

        code = DONE
        reports: list[PartitionReport] = []
        with (
            StopSignals(stopping.set) as signals,
            ThreadPoolExecutor(max(width, 1), "keeplast-round") as pool,
        ):
            for each, report in zip(partitions, pool.map(one, partitions), strict=True):
                if report.failure is not None:
                    code = max(code, error_exit_code(report.failure))
                events.finished(each, report)
                reports.append(PartitionReport(each.topic, each.partition, (report,)))
    done = CleanReport(tuple(reports))
    if signals.exit_code is not None and is_stopped(done):
        code = signals.exit_code
    if not as_json:
        print_result(summary_table(done))
        notes = note_lines(done)
        if notes:
            print_result("", *notes)
        table = reasons_table(done)
        if table is not None:
            print_result("", table)
        lines = [*chunk_lines(done), *filter_lines(done)]
        if lines:
            print_result("", *lines)
    for message in report_errors(done):
        say(message, kind="error")
    return code, {**done.to_json(), "version": JSON_VERSION}


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
