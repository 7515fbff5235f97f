"""A round of a partition whose history is in object storage: one or more chunks, and one report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from keeplast.run.events import ProgressOnly
from keeplast.run.place import RunnerFor
from keeplast.run.round import Rounds
from keeplast.run.round_reports import base_report, planned_report
from keeplast.run.round_state import PartitionRun
from keeplast.store.store_place import StorePlace
from keeplast.survey.report import RoundReport, joined_reports
from keeplast.tier.metadata.absence import explained

Progressed = Callable[[int], None]


def clean_remote(place: StorePlace, runner_for: RunnerFor, progressed: Progressed) -> RoundReport:
    """Do one round as the owner of a partition; the report says what it did or why nothing.

    An error ends the round at the chunk that it is in; the chunks before it are done and published.
    FencedError when a newer leader owns the partition and ConflictError when what was read has been
    replaced meanwhile: nothing but garbage is left behind. UnavailableError and OSError pass:
    try again. CorruptError and InvariantError do not.
    """
    request = replace(place.request, rounds=None)
    (partition,) = request.partitions
    run = PartitionRun(partition)
    with explained(place.store, partition.partition, epoch=place.state.leader_epoch):
        events = ProgressOnly(progressed)
        Rounds(request, place, runner_for, place.clock, events, _go_on).clean([run])
        last = run.rounds[-1]
        if last.failure is not None:
            raise place.files.named(last.failure)
        if last.skipped:
            return last
    place.examined()
    return replace(reduce(joined_reports, run.rounds), chunks=len(run.rounds))


def plan_remote(place: StorePlace) -> RoundReport:
    """Return what a round would do; reads indexes and rows, and changes nothing."""
    (partition,) = place.request.partitions
    run = PartitionRun(partition)
    survey = place.announce(run, place.survey(run))
    if survey.plan is None:
        return replace(base_report(survey), skipped=True)
    return planned_report(survey, survey.plan, 0, None, None)


def _go_on() -> None:
    """Stop by what ``progressed`` raises, and by nothing else."""
