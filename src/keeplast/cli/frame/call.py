"""From options to a report: what ``plan`` and ``clean`` have in common.

Settings and partitions are decided before a runner is started, so that a mistake in an argument
costs no Spark session. Partitions that were refused or skipped then appear in the report like the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from keeplast.cleaner.selection import Order
from keeplast.cli.frame import wiring
from keeplast.cli.frame.ahead import compiled_ahead
from keeplast.cli.frame.exit_codes import DONE
from keeplast.cli.frame.options import CleanOptions, RunnerOptions
from keeplast.cli.frame.places import recipe_for
from keeplast.cli.frame.verdict import report_exit_code
from keeplast.cli.frame.wiring import CoordinatorPort, RunnerName
from keeplast.cli.show.output import say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.config.assumed import assumed_defaults, assumed_sentence
from keeplast.config.selection import Selection, select_partitions
from keeplast.log.files import FileSystem
from keeplast.model.size import format_bytes, parse_size
from keeplast.run.readiness import leave_receipt
from keeplast.run.target import check_places
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest

LARGE_BYTES = 64 << 30
"""From here on one host works for minutes, and a cluster is worth naming."""


def report_call(
    options: CleanOptions,
    what: str,
    act: Callable[[CoordinatorPort, CleanRequest], CleanReport],
    *,
    writes: bool,
) -> CleanReport:
    """Return the report of ``act`` on the chosen partitions, refused and skipped ones included.

    What cannot be written is refused before anything is started.
    """
    request = make_request(options)
    brokers = options.readers.brokers()
    recipe = recipe_for((options.data_dir, options.target.to), options.object_options)
    files = recipe.open()
    selection = select(options, files)
    for warning in selection.warnings:
        say(warning, kind="warning")
    workers = options.workers
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    assumed = say_assumed(selection, is_forced=request.force, expires=request.retention)
    report = CleanReport(())
    if selection.partitions:
        request = replace(request, partitions=selection.partitions)
        if writes:
            check_places(request, files)
        wiring.say_start(workers.chosen_runner)
        with (
            kernels_ahead(workers, is_wanted=writes),
            ProgressEvents(what) as events,
            wiring.open_coordinator(
                workers.chosen_runner,
                master=workers.master,
                cores=workers.cores,
                events=events,
                recipe=recipe,
                brokers=brokers,
            ) as coordinator,
        ):
            report = act(coordinator, request)
        if writes and request.receipt is not None and report_exit_code(report) == DONE:
            leave_receipt(files, request.receipt, [each.path for each in request.partitions])
        say_large(report, workers)
    together = sorted(
        (*report.partitions, *selection.decided), key=lambda each: (each.topic, each.partition)
    )
    return replace(report, partitions=tuple(together), warnings=selection.warnings, assumed=assumed)


def kernels_ahead(workers: RunnerOptions, *, is_wanted: bool) -> AbstractContextManager[None]:
    """Return a context in which kernels are compiled beside the command, if it may call them all.

    Spark's tasks have kernels of their own.
    """
    if is_wanted and workers.chosen_runner is RunnerName.LOCAL:
        return compiled_ahead(workers.cores)
    return nullcontext()


def say_large(report: CleanReport, workers: RunnerOptions) -> None:
    """Say that a cluster could share the work, where there is much and nobody chose a runner."""
    if workers.runner is not None or workers.chosen_runner is not RunnerName.LOCAL:
        return
    total = sum(
        (first.clean_bytes or 0) + (first.cleanable_bytes or 0)
        for partition in report.partitions
        for first in partition.rounds[:1]
        if not first.skipped
    )
    if total >= LARGE_BYTES:
        say(
            f"{format_bytes(total)} for the threads of one process; --master URL shares such logs "
            "among the hosts of a Spark cluster",
            kind="note",
        )


def say_assumed(selection: Selection, *, is_forced: bool, expires: bool) -> dict[str, str]:
    """Say which defaults the call rests on because no source says them, and return them."""
    topics = {request.partition.topic: request.topic for request in selection.partitions}
    assumed = assumed_defaults(selection.settings, topics, is_forced=is_forced, expires=expires)
    if assumed:
        say(assumed_sentence(assumed), kind="note")
    return assumed


def select(options: CleanOptions, files: FileSystem) -> Selection:
    """Return the partitions of the call and their settings."""
    return select_partitions(
        options.data_dir,
        files,
        options.scope,
        options.settings,
        key_map_bytes=key_map_size(options.key_map_bytes),
    )


def key_map_size(text: str | None) -> int | None:
    """Return the bound of the key map in bytes; InvalidError when the text is no size."""
    return None if text is None else parse_size(text, "--key-map-bytes")


def make_request(options: CleanOptions) -> CleanRequest:
    """Return what is asked for, of no partition yet; InvalidError for what cannot be."""
    facts, work, rounds = options.facts, options.work, options.round
    return CleanRequest(
        partitions=(),
        now_ms=facts.now_ms,
        high_watermark=facts.high_watermark,
        log_start_offset=facts.log_start_offset,
        first_dirty_offset=facts.first_dirty_offset,
        uncleanable_offset=facts.uncleanable_offset,
        is_unsafe=facts.unsafe,
        memory_bytes=work.memory_bytes,
        rounds=rounds.count,
        roll_active=rounds.roll_active,
        rolls_idle=rounds.selection is Order.OVERDUE_FIRST,
        retention=rounds.retention,
        force=rounds.worth.force,
        expired=rounds.worth.expired,
        order=rounds.selection,
        target=options.target.to,
        overwrites=options.target.overwrite,
        receipt=rounds.receipt,
        shape=work.shape,
        task_memory_bytes=work.task_memory_bytes,
    )
