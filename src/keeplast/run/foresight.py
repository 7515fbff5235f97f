"""What rounds will take, before they run: how their work is cut, and what a plan tells of them.

Reads a sample of bounded size where sizes alone do not say. Damage found there fails a plan; how
work is cut it does not decide, because the pass that meets it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.cleaner.plan import find_chunk_end
from keeplast.cleaner.shapes import (
    WHOLE,
    Ground,
    Workload,
    choose_shapes,
    may_be_cut,
    share_of,
)
from keeplast.cleaner.stage_costs import StageSeconds
from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.model.shape import Shape
from keeplast.rewrite.runner import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.round_reports import (
    disk_needed_bytes,
    failed_report,
    planned_report,
    with_shape,
)
from keeplast.run.round_state import Round
from keeplast.survey.estimate import estimate_round
from keeplast.survey.report import Estimate, RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.sample import SampleChoice, read_sample


def cut(
    rounds: Sequence[Round], request: CleanRequest, runner: Runner, files: FileSystem, clock: Clock
) -> None:
    """Decide for every round of a call how its work is cut, and what memory a task of it has."""
    ground = Ground(
        runner.slots,
        None if runner.shares_memory else request.task_memory_bytes,
        is_cold=runner.is_cold,
    )
    bounds = [Workload.at_most(round_.plan) for round_ in rounds]
    share = share_of(bounds, ground.slots)
    workloads = [
        _look_at(round_, bound, ground, files, clock)
        if _depends_on_keys(bound, share, ground, request.shape)
        else bound
        for round_, bound in zip(rounds, bounds, strict=True)
    ]
    choices = choose_shapes(workloads, ground, asked=request.shape)
    for round_, choice in zip(rounds, choices, strict=True):
        round_.memory_bytes = max(request.memory_bytes // runner.slots, MEMORY_BYTES_MIN)
        round_.shape = choice
        if round_.site.chunk_bytes is not None:
            _cut_chunk(round_, round_.site.chunk_bytes, request, runner)


def _cut_chunk(round_: Round, chunk_bytes: int, request: CleanRequest, runner: Runner) -> None:
    """Have threads of one host do a chunk in waves; what is cut into stages is done at once."""
    if runner.shares_memory and request.shape is None:
        round_.shape = WHOLE
    if round_.shape.shape is not Shape.PARTITION:
        return
    plan = round_.plan
    round_.wave_bytes_max = plan.topic.segment_bytes
    if runner.shares_memory and not plan.is_expired_round:
        round_.plan = replace(plan, chunk_end=find_chunk_end(plan, chunk_bytes))


def foreseen(
    round_: Round, request: CleanRequest, files: FileSystem, clock: Clock, workspace: Workspace
) -> RoundReport:
    """Return bounds, groups and, from a sample, an estimate.

    Where the sample cannot be read the round would fail: the report has the error.
    """
    survey, plan = round_.survey, round_.plan
    disk_bytes = disk_needed_bytes(survey, plan, is_in_place=request.target is None)
    estimate, lacking = None, None
    if survey.sample is not None:
        try:
            estimate = _estimate(round_, survey.sample, files, clock, workspace)
        except (CompactionError, OSError) as error:
            return failed_report(survey, 0, error)
        except MemoryError as error:
            lacking = error
    return with_shape(round_, planned_report(survey, plan, disk_bytes, estimate, lacking))


def _depends_on_keys(bound: Workload, share: int, ground: Ground, asked: Shape | None) -> bool:
    """Say whether the choice for a round takes more than what its sizes and offsets allow."""
    if not ground.has_room_for(bound):
        return True
    is_free = ground.task_memory_bytes is not None and bound.plan.key_capacity is None
    return asked is None and is_free and may_be_cut(bound, share, ground)


def _look_at(
    round_: Round, bound: Workload, ground: Ground, files: FileSystem, clock: Clock
) -> Workload:
    """Return a round as a sample shows it, or ``bound`` where there is none that tells."""
    if round_.survey.sample is None:
        return bound
    try:
        estimate = _estimate(round_, round_.survey.sample, files, clock)
    except (CompactionError, OSError, MemoryError):
        return bound  # what is damaged will be said by the pass that meets it
    if estimate is None:
        return bound
    seconds = StageSeconds(estimate.index_seconds, estimate.seconds - estimate.index_seconds)
    keys = estimate.distinct_keys
    if keys is None and ground.has_room_for(bound):
        keys = bound.dirty_keys
    return Workload(round_.plan, estimate.messages_read, keys, seconds)


def _estimate(
    round_: Round,
    chosen: SampleChoice,
    files: FileSystem,
    clock: Clock,
    workspace: Workspace | None = None,
) -> Estimate | None:
    sample = read_sample(
        chosen, round_.plan, round_.site.path, round_.hash_key, files, clock, workspace
    )
    return estimate_round(sample, round_.plan)
