"""From options to a report: what ``plan`` and ``clean`` have in common.

Settings and partitions are decided before a runner is started, so that a mistake in an argument
costs no Spark session. Partitions that were refused or skipped then appear in the report like the
others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from keeplast.cleaner.selection import Order
from keeplast.cleaner.shapes import Shape
from keeplast.cli.frame import wiring
from keeplast.cli.frame.options import RunOptions, SelectionName
from keeplast.cli.frame.places import recipe_for
from keeplast.cli.frame.wiring import CoordinatorPort
from keeplast.cli.show.output import say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.config.assumed import assumed_defaults, assumed_sentence
from keeplast.config.selection import Selection, select_partitions
from keeplast.errors import InvalidError
from keeplast.format.filename import LOG
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.size import parse_size
from keeplast.run.target import check_places
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest


def report_call(
    options: RunOptions,
    what: str,
    act: Callable[[CoordinatorPort, CleanRequest], CleanReport],
    *,
    writes: bool,
) -> CleanReport:
    """Return the report of ``act`` on the chosen partitions, refused and skipped ones included.

    What cannot be written is refused before anything is started.
    """
    memory_bytes = parse_size(options.memory, "--memory")
    recipe = recipe_for((options.data_dir, options.to), options.object_options)
    files = recipe.open()
    selection = select(options, files)
    for warning in selection.warnings:
        say(warning, kind="warning")
    wiring.check_runner(options.runner, master=options.master)
    assumed = say_assumed(options, selection, expires=options.retention)
    report = CleanReport(())
    if selection.partitions:
        request = make_request(options, selection, memory_bytes)
        if writes:
            check_places(request, files)
        wiring.say_start(options.runner, log_bytes(selection, files, wiring.SMALL_BYTES))
        with (
            ProgressEvents(what) as events,
            wiring.open_coordinator(
                options.runner,
                master=options.master,
                cores=options.cores,
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


def say_assumed(options: RunOptions, selection: Selection, *, expires: bool) -> dict[str, str]:
    """Say which defaults the call rests on because no source says them, and return them."""
    topics = {request.partition.topic: request.topic for request in selection.partitions}
    assumed = assumed_defaults(selection.settings, topics, is_forced=options.force, expires=expires)
    if assumed:
        say(assumed_sentence(assumed), kind="note")
    return assumed


def select(options: RunOptions, files: FileSystem | None = None) -> Selection:
    """Return the partitions of the call and their settings; ``files`` None is this host's."""
    if options.rounds is not None and options.until_done:
        raise InvalidError(
            f"--rounds and --until-done contradict each other; leave one out. "
            f"--rounds={options.rounds}"
        )
    key_map_bytes = options.key_map_bytes
    return select_partitions(
        options.data_dir,
        LocalFiles() if files is None else files,
        topics=options.topics,
        partitions=options.partitions,
        flags=options.config,
        config_file=options.config_file,
        broker_config=options.broker_config,
        environment=os.environ,
        key_map_bytes=None
        if key_map_bytes is None
        else parse_size(key_map_bytes, "--key-map-bytes"),
    )


def make_request(options: RunOptions, selection: Selection, memory_bytes: int) -> CleanRequest:
    """Return the request for the partitions that are worked on."""
    rounds = 1 if options.rounds is None else options.rounds
    return CleanRequest(
        partitions=selection.partitions,
        now_ms=options.now_ms,
        high_watermark=options.high_watermark,
        log_start_offset=options.log_start_offset,
        first_dirty_offset=options.first_dirty_offset,
        uncleanable_offset=options.uncleanable_offset,
        is_unsafe=options.unsafe,
        memory_bytes=memory_bytes,
        rounds=None if options.until_done else rounds,
        roll_active=options.roll_active,
        rolls_idle=options.selection is SelectionName.OVERDUE_FIRST,
        retention=options.retention,
        force=options.force,
        expired=options.expired,
        order=Order(options.selection),
        target=options.to,
        overwrites=options.overwrite,
        receipt=options.receipt,
        shape=None if options.shape is None else Shape(options.shape),
        task_memory_bytes=parse_size(options.task_memory, "--task-memory"),
    )
