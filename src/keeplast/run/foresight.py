"""What rounds will take, before they run: how their work is cut, and what a plan tells of them.

Reads a sample of bounded size where sizes alone do not say. Damage found there decides nothing: the
pass that meets it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.cleaner.shapes import Ground, Workload, choose_shapes
from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.rewrite.runner import Runner
from keeplast.run.committer import Work
from keeplast.run.rounds import Round, disk_needed_bytes, planned_report
from keeplast.survey.estimate import estimate_round
from keeplast.survey.report import Estimate, RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.sample import SampleChoice, read_sample


class Foresight:
    """Looks ahead at rounds that ``runner`` will do on ``files``."""

    def __init__(self, runner: Runner, files: FileSystem, clock: Clock) -> None:
        """Take the components."""
        self._runner = runner
        self._files = files
        self._clock = clock

    def shape(self, works: Sequence[Work], request: CleanRequest) -> None:
        """Decide for every round of a call how its work is cut."""
        rounds = [round_ for _, round_ in works]
        ground = Ground(
            self._runner.slots,
            None if self._runner.shares_memory else request.task_memory_bytes,
        )
        workloads = [self._workload(round_, ground) for round_ in rounds]
        choices = choose_shapes(workloads, ground, asked=request.shape)
        for round_, choice in zip(rounds, choices, strict=True):
            round_.task = replace(round_.task, shape=choice)

    def planned(self, round_: Round, request: CleanRequest) -> RoundReport:
        """Return bounds, groups and, from a sample, an estimate; damage found there is a note."""
        survey, plan = round_.survey, round_.plan
        disk_bytes = disk_needed_bytes(survey, plan, is_in_place=request.target is None)
        estimate, damage = None, None
        if survey.sample is not None:
            try:
                estimate = self._estimate(round_, survey.sample)
            except (CompactionError, OSError, MemoryError) as error:
                damage = error
        return round_.with_shape(planned_report(survey, plan, disk_bytes, estimate, damage))

    def _workload(self, round_: Round, ground: Ground) -> Workload:
        """Return a round as the planner sees it; a sample is read where keys may be too many."""
        workload = Workload.at_most(round_.plan)
        if ground.has_room_for(workload) or round_.survey.sample is None:
            return workload
        try:
            estimate = self._estimate(round_, round_.survey.sample)
        except (CompactionError, OSError, MemoryError):
            return workload  # what is damaged will be said by the pass that meets it
        if estimate is None:
            return workload
        return Workload(round_.plan, estimate.messages_read, estimate.distinct_keys)

    def _estimate(self, round_: Round, chosen: SampleChoice) -> Estimate | None:
        task = round_.task
        sample = read_sample(
            chosen, round_.plan, task.path, task.hash_key, self._files, self._clock
        )
        return estimate_round(sample, round_.plan)
