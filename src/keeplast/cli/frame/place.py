"""PLACE, and the two options by which a command line adds to what is known of it.

Every verb takes :class:`PlaceOptions` and asks the place that :meth:`PlaceOptions.open` returns.
Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.parameters import MEMORY_DEFAULT, TASK_MEMORY_DEFAULT, Flags
from keeplast.cli.frame.wiring import RunnerName
from keeplast.config.place_properties import WITH

if TYPE_CHECKING:
    from keeplast.api.place import AskedPlace, SearchTerms
    from keeplast.api.round_terms import WorkTerms
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.places import FoundPlace
    from keeplast.model.reader_wait import GroupReader
    from keeplast.rewrite.runner import Runner
    from keeplast.run.stop_switch import StopSwitch
    from keeplast.service.search_tasks import SearchRunner

PlaceName = Annotated[
    str,
    typer.Argument(
        metavar="PLACE", show_default=False,
        help="A data directory or a partition in it (s3://, gs://, az:// too), a store "
        "(sqlite:///FILE, postgresql://HOST/DATABASE), a live cluster (kafka://HOST:PORT), or a "
        "name from keeplast.toml.",
    ),
]  # fmt: skip
OptionalPlace = Annotated[
    str | None,
    typer.Argument(
        metavar="PLACE", show_default=False,
        help="A data directory, a store, a live cluster, or a name from keeplast.toml.",
    ),
]  # fmt: skip
Given = Annotated[
    tuple[str, ...],
    typer.Option(
        WITH, metavar="KEY=VALUE",
        help="A property of the place, such as memory=4g or decisions=URL; repeatable. --memory 4g "
        "says the same. It beats the place's table in keeplast.toml. keeplast place list "
        "--properties shows all.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Which place a command is about."""

    place: PlaceName
    given: Given = ()
    flags: Flags = ()

    def found(self) -> FoundPlace:
        """Return the place; InvalidError for what is none."""
        from keeplast.config.places import find_place

        return find_place(self.place, self.given)

    def open(self) -> tuple[FoundPlace, AskedPlace]:
        """Return the place and its logs; its warnings and its progress are shown."""
        from keeplast.api.open_place import open_found
        from keeplast.api.place import PlaceEvents
        from keeplast.cli.show.output import say
        from keeplast.config.layers import flag_pairs

        found = self.found()
        events = PlaceEvents(warned=lambda message: say(message, kind="warning"), folding=_folding)
        return found, open_found(found, config=flag_pairs(self.flags), events=events)


def runner_of(found: FoundPlace) -> RunnerOptions:
    """Return where the work of a place is done."""
    runner, cores = found.text("runner"), found.text("cores")
    return RunnerOptions(
        runner=None if runner is None else RunnerName(runner), master=found.text("master"),
        cores=None if cores is None else int(cores),
    )  # fmt: skip


def say_note(words: str | None, found: FoundPlace) -> None:
    """Say that a cluster could share the work, where no runner was chosen."""
    from keeplast.cli.show.output import say

    workers = runner_of(found)
    if words and workers.runner is None and workers.chosen_runner is RunnerName.LOCAL:
        say(words, kind="note")


def work_of(
    found: FoundPlace, events: ProgressEvents, switch: StopSwitch, *, compiles: bool = True,
    brokers: GroupReader | None = None,
) -> WorkTerms:  # fmt: skip
    """Return who does the rounds of a place; mistakes are found before anything is opened.

    ``compiles`` says that the work may call every kernel. ``brokers`` are those that were asked
    before, None to reach those of the place.
    """
    from keeplast.api.open_place import brokers_of
    from keeplast.api.round_terms import WorkTerms
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.options import memory_size, task_memory_size
    from keeplast.cli.show.output import say
    from keeplast.model.shape import Shape

    workers, shape = runner_of(found), found.text("shape")
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    return WorkTerms(
        open_runner=lambda: _opened(workers, compiles=compiles),
        events=events,
        noted=lambda message: say(message, kind="note"),
        switch=switch,
        memory_bytes=memory_size(found.text("memory") or MEMORY_DEFAULT),
        task_memory_bytes=task_memory_size(found.text("task-memory") or TASK_MEMORY_DEFAULT),
        key_map_bytes=found.size("key-map-bytes"),
        shape=None if shape is None else Shape(shape),
        receipt=found.path("receipt"),
        brokers=brokers_of(found) if brokers is None else brokers,
    )


def search_of(
    found: FoundPlace, events: ProgressEvents, runner: SearchRunner | None,
    brokers: GroupReader | None, now_ms: int | None = None,
) -> SearchTerms:  # fmt: skip
    """Return how a place is searched: by whom, as of when, None for now."""
    from keeplast.api.place import SearchTerms

    return SearchTerms(
        now_ms=now_ms, runner=runner, receipt=found.path("receipt"), brokers=brokers,
        planned=events.planned, progressed=events.progressed,
    )  # fmt: skip


@contextlib.contextmanager
def _opened(workers: RunnerOptions, *, compiles: bool) -> Iterator[Runner]:
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.ahead import compiled_ahead

    wiring.say_start(workers.chosen_runner)
    with contextlib.ExitStack() as stack:
        if compiles and workers.chosen_runner is RunnerName.LOCAL:
            # Spark's tasks have kernels of their own.
            stack.enter_context(compiled_ahead(workers.cores))
        yield stack.enter_context(
            wiring.open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores)
        )


def _folding() -> AbstractContextManager[Callable[[int], object]]:
    from keeplast.cli.show.attach import folding

    return folding()
