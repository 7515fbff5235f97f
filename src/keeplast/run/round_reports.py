"""What is reported of rounds: planned, done, failed; and which of several goes first.

Makes values out of what was surveyed and counted; it decides nothing and reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keeplast.cleaner.hazards import hazards_of
from keeplast.cleaner.plan import GroupPlan, RoundPlan, plan_groups
from keeplast.cleaner.selection import Candidate, Order, choose
from keeplast.cleaner.shapes import ShapeChoice
from keeplast.columns import verdicts
from keeplast.model.partition import TopicPartition
from keeplast.model.shape import Shape
from keeplast.rewrite.payloads import NO_PAYLOADS
from keeplast.rewrite.stats import FilterStats, Stats
from keeplast.rewrite.task import reasons_of
from keeplast.run.round_state import PartitionRun, Round
from keeplast.survey.notes import LacksEstimate, LacksVersions, PartlyDone
from keeplast.survey.report import (
    CleanReport,
    Estimate,
    GroupReport,
    RoundReport,
    describe_error,
)
from keeplast.survey.survey import Survey


def with_shape(round_: Round, report: RoundReport) -> RoundReport:
    """Return the report with how the round's work is cut, and why."""
    choice = round_.shape
    if choice.shape is not Shape.PARTITION and not round_.task(0).is_staged:
        choice = ShapeChoice(Shape.PARTITION, why="the disk has room for waves only")
    return replace(
        report,
        shape=choice.shape.value,
        buckets=choice.buckets or None,
        shape_reason=choice.why or None,
    )


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
        messages_read=int(counters[verdicts.MESSAGES_READ]),
        bytes_read=int(counters[verdicts.BYTES_READ]),
        messages_written=int(counters[verdicts.MESSAGES_WRITTEN]),
        bytes_written=int(counters[verdicts.BYTES_WRITTEN]),
        invalid_messages_read=int(counters[verdicts.INVALID]),
        tombstones_read=int(counters[verdicts.TOMBSTONES_READ]),
        tombstones_written=int(counters[verdicts.TOMBSTONES_WRITTEN]),
        batches_passed_through=int(counters[verdicts.PASSED_THROUGH]),
        batches_rebuilt=int(counters[verdicts.REBUILT]),
        batches_dropped=int(counters[verdicts.DROPPED]),
        batches_emptied=int(counters[verdicts.EMPTIED]),
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
    base = base_report(round_.survey)
    groups = tuple(group for result in results for group in result.groups)
    filters = sum((result.filters for result in results), FilterStats())
    report = replace(
        base,
        remarks=(*base.remarks, *_version_notes(stats, plan.topic.strategy_header)),
        end_offset=last.end_offset,
        stats=stats,
        reasons=reasons_of(counters),
        groups=group_reports(groups),
        filters=None if round_.site.filters is None else filters,
    )
    return with_shape(round_, report)


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


def base_report(survey: Survey) -> RoundReport:
    """Return what a survey alone says of a round."""
    return RoundReport(
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
        remarks=survey.notes,
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
) -> RoundReport:
    """Return the report of a plan that nobody has run; groups unless a bounded map decides them.

    ``lacking`` is why there is no estimate.
    """
    groups = None if plan.key_capacity is not None else plan_groups(plan, plan.bound)
    report = replace(
        base_report(survey),
        groups=group_reports(groups),
        disk_bytes=disk_bytes,
        estimate=estimate,
    )
    if lacking is None:
        return report
    return replace(report, remarks=(*report.remarks, LacksEstimate(str(lacking))))


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
