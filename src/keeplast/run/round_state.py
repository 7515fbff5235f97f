"""What is under way: a partition on its way through a call, and its round of the moment.

State that the page (:mod:`keeplast.run.round`) moves on; it decides nothing. A task is made here
and nowhere else, and is complete when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from keeplast.cleaner.plan import RoundPlan, plan_groups
from keeplast.cleaner.shapes import WHOLE, ShapeChoice
from keeplast.log.files import FilesRecipe
from keeplast.model.strategy import Strategy
from keeplast.read.log_state import new_hash_key
from keeplast.rewrite.filter_spec import FilterSpec
from keeplast.rewrite.task import Carry, PartitionTask, StagedGroup, TaskResult
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.survey.notes import Note
from keeplast.survey.report import ExpiryReport, PartitionReport, RoundReport
from keeplast.survey.request import PartitionRequest
from keeplast.survey.survey import Survey


@dataclass(slots=True)
class PartitionRun:
    """One partition during a call."""

    request: PartitionRequest
    rounds: list[RoundReport] = field(default_factory=list)
    is_done: bool = False
    notes: tuple[Note, ...] = ()
    expiry: ExpiryReport | None = None

    @property
    def has_failed(self) -> bool:
        """True when the last round ended with an error."""
        return bool(self.rounds) and self.rounds[-1].error is not None

    def report(self) -> PartitionReport:
        """Return all rounds of the partition, and what expired after them."""
        partition = self.request.partition
        return PartitionReport(
            partition.topic, partition.partition, tuple(self.rounds), self.expiry
        )


@dataclass(frozen=True, slots=True)
class Site:
    """Where the work of a round is done, as its place says; ``files`` opens both paths for workers.

    ``path`` is read; staged files are put at ``target``, which is the same directory or another.
    ``attempt`` is in the name of everything that is staged. ``writes`` False counts what would go
    and stages nothing. ``shares_disk`` says that what is staged lies on a disk beside what it
    replaces, so that rounds must fit on it together. ``keeps_sources`` has what is replaced stay
    beside it, for ``keeplast undo``. ``chunk_bytes`` is how many dirty bytes the
    threads of one host work on at a time, in waves of a segment's size; None for all of them.
    """

    path: Path
    target: Path
    attempt: str
    files: FilesRecipe
    writes: bool
    takes_crcs: bool
    shares_disk: bool
    keeps_sources: bool = False
    chunk_bytes: int | None = None
    filters: FilterSpec | None = None


@dataclass(slots=True)
class Round:
    """A round that has a plan: how its work is cut, and what its waves gave so far.

    ``driver_seconds`` is what survey and commits took; what its workers took is in ``results``. A
    round's time is their sum: it does not wait for its turn at its own expense. ``carry`` is what
    the wave before has left, ``wave_bytes_max`` what the next one may stage, ``noted_end`` what the
    note beside the log says since the last one.
    """

    run: PartitionRun
    survey: Survey
    plan: RoundPlan
    site: Site
    driver_seconds: float = 0.0
    hash_key: tuple[int, int] = field(default_factory=new_hash_key)
    shape: ShapeChoice = WHOLE
    memory_bytes: int = MEMORY_BYTES_MIN
    wave_bytes_max: int | None = None
    carry: Carry | None = None
    committed: list[StagedGroup] = field(default_factory=list)
    results: list[TaskResult] = field(default_factory=list)
    removal_seconds: float = 0.0
    noted_end: int | None = None

    def task(self, number: int) -> PartitionTask:
        """Return the task of the next wave; the runner's result will have ``number``."""
        site = self.site
        return PartitionTask(
            number=number,
            plan=self.plan,
            path=site.path,
            target=site.target,
            attempt=site.attempt,
            hash_key=self.hash_key,
            memory_bytes=self.memory_bytes,
            wave_bytes_max=self.wave_bytes_max,
            writes=site.writes,
            carry=self.carry,
            takes_crcs=site.takes_crcs,
            io_bytes_per_second=self.run.request.cleaner.io_limit,
            shape=self.shape,
            files=site.files,
            filters=site.filters,
        )

    @property
    def is_in_place(self) -> bool:
        """Say whether the log that is read is the one that changes."""
        return self.site.target == self.site.path

    @property
    def has_reached_bound(self) -> bool:
        """Say whether nothing below the bound is left for another round."""
        return self.results[-1].end_offset >= self.plan.bound

    def bytes_to_read(self) -> int:
        """Return the bytes that all passes will read; the bar's length."""
        below = [s for s in self.plan.segments if s.base_offset < self.plan.bound]
        return self.bytes_to_index() + sum(segment.size_bytes for segment in below)

    def bytes_to_index(self) -> int:
        """Return those of them that are read to find the winners, before anything is rewritten."""
        plan = self.plan
        dirty = sum(segment.size_bytes for segment in plan.dirty_segments())
        if plan.topic.strategy is Strategy.OFFSET:
            return dirty - plan.start_position
        ends = min(plan.first_dirty, plan.bound)
        return dirty + sum(s.size_bytes for s in plan.segments if s.base_offset < ends)

    def bytes_to_stage(self) -> int:
        """Return the most that the rest of the round can stage at once."""
        rest = self.carry
        groups = plan_groups(self.plan, self.plan.bound) if rest is None else rest.groups
        return sum(group.size_bytes for group in groups)
