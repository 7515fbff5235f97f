"""A partition on its way through a call, its round of the moment, and what is reported of it.

It is state that :mod:`keeplast.run.round` moves on; it decides nothing. A task is made here and
nowhere else, and is complete when it is made.

Reports are of planned, done and failed rounds, and say which of several goes first. They are values
made of surveys and counts; a report decides nothing and reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.log_order import Candidate, Order, choose
from keeplast.cleaner.plan import GroupPlan, RoundPlan, plan_groups
from keeplast.cleaner.settings import hazards_of
from keeplast.cleaner.shapes import WHOLE, ShapeChoice
from keeplast.columns import retained
from keeplast.log.files import FilesRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, Strategy
from keeplast.rewrite.stats import FilterStats, Stats
from keeplast.rewrite.task import (
    NO_PAYLOADS,
    Carry,
    FilterSpec,
    PartitionTask,
    StagedGroup,
    TaskResult,
    new_hash_key,
    reasons_of,
)
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.survey.notes import LacksEstimate, LacksVersions, Note, PartlyDone
from keeplast.survey.report import (
    CleanReport,
    Estimate,
    ExpiryReport,
    GroupReport,
    PartitionReport,
    RoundReport,
    describe_error,
)
from keeplast.survey.request import PartitionRequest
from keeplast.survey.survey import Survey


class PartitionRun(Struct):
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


class Site(Struct, frozen=True):
    """Where the work of a round is done, as its place says; ``files`` opens both paths for workers.

    ``path`` is read; staged files are put at ``target``, which is the same directory or another.
    ``attempt`` is in the name of everything that is staged. ``writes`` False counts what would go
    and stages nothing. ``shares_disk`` says that staged files lie on one disk with the replaced
    ones, so that rounds must fit on it together. ``keeps_sources`` keeps the replaced segments next
    to the log, for ``keeplast undo``. ``chunk_bytes`` is how many dirty bytes the threads of one
    host work on at a time, in waves of a segment's size; None for all of them.
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


class Round(Struct):
    """A round that has a plan: how its work is cut, and what its waves gave so far.

    ``driver_seconds`` is what survey and commits took; what its workers took is in ``results``. A
    round's time is their sum: it does not wait for its turn at its own expense. ``carry`` is what
    the wave before has left, ``wave_bytes_max`` what the next one may stage, ``noted_end`` what the
    note next to the log says since the last one.
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


def shape_fields(round_: Round) -> dict[str, Any]:
    """Return the fields of a report that say how the round's work is cut, and why."""
    choice = round_.shape
    if choice.shape is not Shape.PARTITION and not round_.task(0).is_staged:
        choice = ShapeChoice(Shape.PARTITION, why="the disk has room for waves only")
    return {
        "shape": choice.shape.value,
        "buckets": choice.buckets or None,
        "shape_reason": choice.why or None,
    }


def round_report(round_: Round) -> RoundReport:
    """Return the report of a round by what its waves gave so far."""
    plan, results = round_.plan, round_.results
    last = results[-1]
    counters, index, slots = last.counters, last.index, plan.key_slots
    clean_seconds = sum(result.clean_seconds for result in results)
    payloads = sum((result.payloads for result in results), NO_PAYLOADS)
    stats = Stats(
        map_messages_read=index.messages_read,
        map_bytes_read=index.bytes_read,
        messages_read=int(counters[retained.MESSAGES_READ]),
        bytes_read=int(counters[retained.BYTES_READ]),
        messages_written=int(counters[retained.MESSAGES_WRITTEN]),
        bytes_written=int(counters[retained.BYTES_WRITTEN]),
        invalid_messages_read=int(counters[retained.INVALID]),
        tombstones_read=int(counters[retained.TOMBSTONES_READ]),
        tombstones_written=int(counters[retained.TOMBSTONES_WRITTEN]),
        batches_passed_through=int(counters[retained.PASSED_THROUGH]),
        batches_rebuilt=int(counters[retained.REBUILT]),
        batches_dropped=int(counters[retained.DROPPED]),
        batches_emptied=int(counters[retained.EMPTIED]),
        segments_left_alone=sum(result.segments_left_alone for result in results),
        copied_bytes=sum(result.copied_bytes for result in results),
        distinct_keys=index.distinct_keys,
        buffer_utilization=None if slots is None else index.distinct_keys / slots,
        index_seconds=index.seconds,
        clean_seconds=clean_seconds,
        total_seconds=round_.driver_seconds + index.seconds + clean_seconds,
        removal_seconds=round_.removal_seconds,
        peak_rss_bytes=max(result.peak_rss_bytes for result in results),
        versions_missing=index.versions_missing,
        versions_malformed=index.versions_malformed,
        batches_decompressed=payloads.decompressed,
        decompressed_bytes=payloads.decompressed_bytes,
        batches_reused=payloads.reused,
        reused_bytes=payloads.reused_bytes,
    )
    groups = tuple(group for result in results for group in result.groups)
    filters = sum((result.filters for result in results), FilterStats())
    return base_report(
        round_.survey,
        remarks=(*round_.survey.notes, *_version_notes(stats, plan.topic.strategy_header)),
        end_offset=last.end_offset,
        stats=stats,
        reasons=reasons_of(counters),
        groups=group_reports(groups),
        filters=None if round_.site.filters is None else filters,
        **shape_fields(round_),
    )


def in_order(rounds: Sequence[Round], order: Order) -> list[Round]:
    """Return the rounds of a call, the most urgent first."""
    by_partition = {round_.plan.partition: round_ for round_ in rounds}
    candidates = [candidate_of(round_.survey, round_.plan.partition) for round_ in rounds]
    return [by_partition[each.partition] for each in choose(candidates, len(rounds), order)]


def candidate_of(survey: Survey, partition: TopicPartition, *, passed_over: int = 0) -> Candidate:
    """Return what decides when an eligible partition's turn comes."""
    return Candidate(
        partition,
        survey.section.cleanable.ratio,
        survey.section.compaction_delay_ms if survey.section.cleanable.cleanable_bytes else 0,
        is_expired_round=survey.plan is not None and survey.plan.is_expired_round,
        passed_over=passed_over,
    )


def base_report(survey: Survey, **more: Any) -> RoundReport:
    """Return what a survey alone says of a round, with ``more`` fields of the report."""
    return RoundReport(
        **{"remarks": survey.notes, **more},
        first_dirty=survey.section.first_dirty.offset,
        uncleanable=survey.section.uncleanable.offset,
        bound=survey.section.cleanable.bound,
        log_start=survey.log_start,
        log_end=survey.tail.log_end,
        last_stable=survey.last_stable,
        clean_bytes=survey.section.cleanable.clean_bytes,
        cleanable_bytes=survey.section.cleanable.cleanable_bytes,
        ratio=survey.section.cleanable.ratio,
        compaction_delay_ms=survey.section.compaction_delay_ms,
        dating=survey.section.dating,
        cause=survey.reason,
        is_expired_round=survey.plan is not None and survey.plan.is_expired_round,
    )


def _version_notes(stats: Stats, header: str | None) -> tuple[LacksVersions, ...]:
    """Say how many records had no version, where the strategy asks for one."""
    if not stats.versions_missing and not stats.versions_malformed:
        return ()
    return (LacksVersions(header, stats.versions_missing, stats.versions_malformed),)


def planned_report(
    survey: Survey,
    plan: RoundPlan,
    disk_bytes: int,
    estimate: Estimate | None,
    lacking: Exception | None,
    **more: Any,
) -> RoundReport:
    """Return the report of a plan that was not run; groups unless a bounded map decides them.

    ``lacking`` is why there is no estimate. ``more`` are other fields of the report.
    """
    groups = None if plan.key_capacity is not None else plan_groups(plan, plan.bound)
    lacks = () if lacking is None else (LacksEstimate(str(lacking)),)
    return base_report(
        survey,
        remarks=(*survey.notes, *lacks),
        groups=group_reports(groups),
        disk_bytes=disk_bytes,
        estimate=estimate,
        **more,
    )


def disk_needed_bytes(survey: Survey, plan: RoundPlan, *, is_in_place: bool) -> int:
    """Return the free space a round cannot do without: its largest group, else the whole log.

    Where a round keeps what it replaces nothing becomes free meanwhile: all of its groups.
    """
    if is_in_place:
        sizes = [group.size_bytes for group in plan_groups(plan, plan.bound)]
        return sum(sizes) if plan.topic.undo_retention_ms > 0 else max(sizes, default=0)
    return sum(segment.size_bytes for segment in survey.listing.segments)


def failed_report(survey: Survey | None, committed: int, error: Exception) -> RoundReport:
    """Return the report of a round that ended with ``error`` after ``committed`` groups."""
    report = RoundReport() if survey is None else base_report(survey)
    remarks = report.remarks
    if committed:
        remarks += (PartlyDone(committed),)
    return replace(report, remarks=remarks, error=describe_error(error), failure=error)


def group_reports(groups: tuple[GroupPlan, ...] | None) -> tuple[GroupReport, ...] | None:
    """Return groups as a report shows them."""
    if groups is None:
        return None
    return tuple(
        GroupReport(tuple(s.base_offset for s in group.sources), group.size_bytes)
        for group in groups
    )


def clean_report(runs: list[PartitionRun]) -> CleanReport:
    """Return the report of a call: every partition's, and the hazards of their settings."""
    topics = ((run.request.partition.topic, run.request.topic) for run in runs)
    return CleanReport(tuple(run.report() for run in runs), hazards_of(topics))
