"""One round of an attached partition, on what was just read of it, and its report."""

from __future__ import annotations

from collections.abc import Callable

from keeplast.attach.attached_place import AttachedPlace
from keeplast.clock import Clock
from keeplast.run.events import ProgressOnly
from keeplast.run.place import RunnerFor
from keeplast.run.round import Rounds
from keeplast.run.round_state import PartitionRun
from keeplast.survey.report import RoundReport

Progressed = Callable[[int], None]


def do_round(
    place: AttachedPlace, runner_for: RunnerFor, clock: Clock, progressed: Progressed
) -> RoundReport:
    """Do one round of a partition as who holds it; the report says what it did or why nothing.

    What ``progressed`` raises ends the round, and so does any error of the place, which is raised:
    nothing is live then but the swaps that were decided before it.
    """
    (partition,) = place.request.partitions
    run = PartitionRun(partition)
    events = ProgressOnly(progressed)
    Rounds(place.request, place, runner_for, clock, events, _go_on).clean([run])
    (report,) = run.rounds
    if report.failure is not None:
        raise report.failure
    return report


def _go_on() -> None:
    """Stop by what ``progressed`` raises, and by nothing else."""
