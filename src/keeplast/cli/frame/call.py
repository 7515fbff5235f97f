"""From options to a report: what ``plan`` and ``clean`` have in common.

Settings and partitions are decided before a runner is started, so that a mistake in an argument
costs no Spark session. Partitions that were refused or skipped then appear in the report like the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keeplast.cleaner.selection import Order
from keeplast.cli.frame import wiring
from keeplast.cli.frame.options import CleanOptions
from keeplast.cli.frame.places import recipe_for
from keeplast.cli.frame.wiring import CoordinatorPort
from keeplast.cli.show.output import say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.config.assumed import assumed_defaults, assumed_sentence
from keeplast.config.selection import Selection, select_partitions
from keeplast.format.filename import LOG
from keeplast.log.files import FileSystem
from keeplast.model.size import parse_size
from keeplast.run.target import check_places
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest


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
    recipe = recipe_for((options.data_dir, options.target.to), options.object_options)
    files = recipe.open()
    selection = select(options, files)
    for warning in selection.warnings:
        say(warning, kind="warning")
    workers = options.workers
    wiring.check_runner(workers.runner, master=workers.master)
    assumed = say_assumed(selection, is_forced=request.force, expires=request.retention)
    report = CleanReport(())
    if selection.partitions:
        request = replace(request, partitions=selection.partitions)
        if writes:
            check_places(request, files)
        wiring.say_start(workers.runner, log_bytes(selection, files, wiring.SMALL_BYTES))
        with (
            ProgressEvents(what) as events,
            wiring.open_coordinator(
                workers.runner,
                master=workers.master,
                cores=workers.cores,
                events=events,
                recipe=recipe,
            ) as coordinator,
        ):
            report = act(coordinator, request)
    together = sorted(
        (*report.partitions, *selection.decided), key=lambda each: (each.topic, each.partition)
    )
    return replace(report, partitions=tuple(together), warnings=selection.warnings, assumed=assumed)


def log_bytes(selection: Selection, files: FileSystem, most: int) -> int | None:
    """Return the bytes of the chosen logs; None when they are more than ``most`` or not known."""
    total = 0
    for each in selection.partitions:
        try:
            names = [name for name in files.listdir(each.path) if name.endswith(LOG)]
            for name in names:
                total += files.stat(each.path / name).size_bytes
                if total > most:
                    return None
        except OSError:
            # What is wrong with it is the round's to say.
            return None
    return total


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
