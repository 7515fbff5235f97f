"""PLACE, and the options of ``clean`` and ``plan``, over every kind of place.

Every verb takes :class:`PlaceOptions`, PLACE with the two options that add to what is known of it,
and asks the place that :meth:`PlaceOptions.open` returns. The options of rounds say which rounds
are asked for. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cleaner.log_order import Order
from keeplast.cli.frame.options import (
    MEMORY_DEFAULT,
    ROUND,
    RUN,
    TASK_MEMORY_DEFAULT,
    Expired,
    FactOptions,
    Flags,
    RunnerOptions,
    ScopeOptions,
    Selection,
    To,
    despite_option,
)
from keeplast.cli.frame.wiring import RunnerName
from keeplast.config.place_properties import WITH
from keeplast.errors import Despite, InvalidError

if TYPE_CHECKING:
    from keeplast.api.place import AskedPlace, SearchTerms
    from keeplast.api.round_terms import AskedRounds, WorkTerms
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.places import FoundPlace
    from keeplast.model.hold import GroupReader
    from keeplast.pipeline.runner import SparkRunner
    from keeplast.run.events import Events, StopSwitch
    from keeplast.run.local_runner import LocalRunner
    from keeplast.service.search_tasks import SearchRunner

PlaceName = Annotated[
    str,
    typer.Argument(
        metavar="PLACE", show_default=False,
        help="A data directory or a partition in it (s3://, gs://, az:// too). A store: "
        "sqlite:///FILE, postgresql://HOST/DATABASE. A live cluster: kafka://HOST:PORT. Or a "
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


class PlaceOptions(Struct, frozen=True, kw_only=True):
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
    found: FoundPlace, events: Events, switch: StopSwitch, *, compiles: bool = True,
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
    from keeplast.model.topic_config import Shape

    workers, shape = runner_of(found), found.text("shape")
    wiring.check_runner(workers.chosen_runner, master=workers.master)
    return WorkTerms(
        open_runner=lambda: open_workers(workers, compiles=compiles),
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
def open_workers(workers: RunnerOptions, *, compiles: bool) -> Iterator[LocalRunner | SparkRunner]:
    """Open threads of this process or tasks of Spark; ``compiles`` as for :func:`work_of`."""
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


TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", rich_help_panel=RUN,
        help="Take a partition of a store or a live cluster from another process, which can change "
        "nothing from then on.",
    ),
]  # fmt: skip


Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Do what loses data. Without it, say what would be lost, and exit with 4.",
    ),
]


class RoundCountOptions(Struct, frozen=True, kw_only=True):
    """How many rounds of a data directory there are, and what comes before and after them."""

    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", metavar="N", min=1, rich_help_panel=ROUND,
            help="Rounds to do, one after the other. Default: 1.",
        ),
    ] = None  # fmt: skip
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", rich_help_panel=ROUND,
            help="Rounds until all is clean that may be cleaned now.",
        ),
    ] = False  # fmt: skip
    roll_active: Annotated[
        bool,
        typer.Option(
            "--roll-active", rich_help_panel=ROUND,
            help="Start a new active segment first, so that the present one can be cleaned.",
        ),
    ] = False  # fmt: skip
    selection: Selection = Order.OVERDUE_FIRST
    retention: Annotated[
        bool,
        typer.Option(
            "--retention/--no-retention", rich_help_panel=ROUND,
            help="Afterwards remove the segments that retention.ms, retention.bytes (policy "
            "delete) or the log start offset let go, as a broker's cleaner does for compacted "
            "topics.",
        ),
    ] = True  # fmt: skip

    @property
    def count(self) -> int | None:
        """Return the number of rounds, None for as many as it takes; InvalidError for both."""
        if self.rounds is not None and self.until_done:
            raise InvalidError(
                f"--rounds and --until-done contradict each other; leave one out. "
                f"--rounds={self.rounds}",
                code="K101",
            )
        return None if self.until_done else self.rounds or 1


class CleanOptions(Struct, frozen=True, kw_only=True):
    """What ``clean`` and ``plan`` take."""

    where: PlaceOptions
    scope: ScopeOptions
    to: To = None
    facts: FactOptions
    count: RoundCountOptions
    expired: Expired = False
    despite: Annotated[
        tuple[Despite, ...],
        despite_option(Despite.DIRTY_RATIO, Despite.LOG_BOUNDS, Despite.EXISTING_TARGET),
    ] = ()
    take_over: TakeOver = False

    def terms(self, found: FoundPlace) -> AskedRounds:
        """Return which rounds are asked for; InvalidError for what contradicts itself."""
        from keeplast.api.round_terms import AskedRounds, DirectoryTerms
        from keeplast.model.topic_config import Keyless

        facts, count = self.facts, self.count
        return AskedRounds(
            force=Despite.DIRTY_RATIO in self.despite, expired=self.expired,
            keyless=Keyless(found.text("keyless") or Keyless.FAIL), takes_over=self.take_over,
            keep_sources_ms=found.milliseconds("keep-sources") or 0,
            directory=DirectoryTerms(
                now_ms=facts.now_ms, high_watermark=facts.high_watermark,
                log_start_offset=facts.log_start_offset,
                first_dirty_offset=facts.first_dirty_offset,
                uncleanable_offset=facts.uncleanable_offset,
                is_unsafe=Despite.LOG_BOUNDS in self.despite,
                rounds=count.count, roll_active=count.roll_active, order=count.selection,
                retention=count.retention, target=self.to,
                overwrites=Despite.EXISTING_TARGET in self.despite,
            ),
        )  # fmt: skip
