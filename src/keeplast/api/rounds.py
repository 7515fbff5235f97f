"""``keeplast.plan`` and ``keeplast.clean``: rounds of a request, by threads or a given runner."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from keeplast.clock import Clock, SystemClock
from keeplast.model.hold import GroupReader
from keeplast.rewrite.task import Runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import Events, NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest
from keeplast.tier.objects.places import recipe_of


def plan(
    request: CleanRequest,
    *,
    exact: bool = False,
    cores: int | None = None,
    runner: Runner | None = None,
    events: Events | None = None,
    clock: Clock | None = None,
    object_options: Mapping[str, str] | None = None,
    brokers: GroupReader | None = None,
) -> CleanReport:
    """Return what :func:`clean` would do for all partitions of ``request``; nothing is written."""
    with running(cores, runner) as chosen:
        coordinator = coordinator_of(request, chosen, events, clock, object_options, brokers)
        return coordinator.plan(request, exact=exact)


def clean(
    request: CleanRequest,
    *,
    cores: int | None = None,
    runner: Runner | None = None,
    events: Events | None = None,
    clock: Clock | None = None,
    object_options: Mapping[str, str] | None = None,
    brokers: GroupReader | None = None,
) -> CleanReport:
    """Clean all partitions of ``request``; faults of one partition are in its report.

    ``runner`` None means threads of this process, ``cores`` of them (None: all). ``object_options``
    are those of the object store that a directory is in. ``brokers`` (:func:`ask_brokers`) read
    what the groups of ``tombstones.wait.for.groups`` have committed; None where files do. Raises
    RefusedError when a data directory is in use.
    """
    with running(cores, runner) as chosen:
        return coordinator_of(request, chosen, events, clock, object_options, brokers).clean(
            request
        )


def running(cores: int | None, runner: Runner | None) -> contextlib.AbstractContextManager[Runner]:
    """Return who does the work: threads of this process, or a runner that stays open."""
    return LocalRunner(cores) if runner is None else contextlib.nullcontext(runner)


def coordinator_of(
    request: CleanRequest,
    runner: Runner,
    events: Events | None,
    clock: Clock | None,
    object_options: Mapping[str, str] | None = None,
    brokers: GroupReader | None = None,
) -> Coordinator:
    """Return what does a request's rounds; arguments as for :func:`clean`."""
    places = [request.target, *(partition.path for partition in request.partitions)]
    recipe = recipe_of(places, object_options or {})
    return Coordinator(
        runner,
        SystemClock() if clock is None else clock,
        recipe.open(),
        NoEvents() if events is None else events,
        recipe,
        brokers,
    )
