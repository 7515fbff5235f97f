"""The documents of what is known of partitions: what ``--json`` prints and the console serves.

Whoever shows a status, a run or a store as JSON takes it from here, so that all of them say the
same. Values are encoded by :mod:`keeplast.model.document`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keeplast.cleaner.section import LogFigures
from keeplast.cluster.facts import ASSUMED_OF_BROKERS
from keeplast.cluster.status import RemotePartitionStatus
from keeplast.errors import error_text
from keeplast.inspect.stages import StageCounts, Stages
from keeplast.inspect.status import LogStatus
from keeplast.model.document import shown_fields
from keeplast.model.hold import Hold
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import ReaderWait
from keeplast.service.set_aside import SetAside
from keeplast.service.status import DirectoryStatus, PartitionStatus, State
from keeplast.survey.wording import sentences

if TYPE_CHECKING:  # whoever shows a directory's logs needs none of a store's
    from keeplast.inspect.header_scan import LogHeaders
    from keeplast.service.snapshot import PartitionFacts
    from keeplast.store.erasure import TierErasure
    from keeplast.store.status import TierStatus


PARTITIONS = "partitions"
"""What the list of them is called, in every document that has one."""


def figures_document(figures: LogFigures | None) -> dict[str, Any]:
    """Return the figures of a log as every document shows them; all null without any."""
    if figures is None:
        return dict.fromkeys(_FIGURES)
    cleanable = figures.cleanable
    values = (
        figures.first_dirty, cleanable.bound, cleanable.clean_bytes, cleanable.cleanable_bytes,
        figures.uncleanable_bytes, cleanable.ratio, figures.compaction_delay_ms,
    )  # fmt: skip
    return dict(zip(_FIGURES, values, strict=True))


_FIGURES = (
    "first_dirty", "bound", "clean_bytes", "cleanable_bytes", "uncleanable_bytes", "ratio",
    "compaction_delay_ms",
)  # fmt: skip


def hold_document(hold: Hold) -> dict[str, Any]:
    """Return a hold without the partition that it is about."""
    return {
        "name": hold.name,
        "offset": hold.offset,
        "limit": hold.limit,
        "since_ms": hold.since_ms,
        "until_ms": hold.until_ms,
    }


def status_document(status: DirectoryStatus) -> dict[str, Any]:
    """Return the document that ``--json`` prints."""
    rows = [partition_document(each) for each in status.partitions]
    return {**status_head(status, status.partitions), PARTITIONS: rows}


def status_head(status: DirectoryStatus, shown: Sequence[PartitionStatus]) -> dict[str, Any]:
    """Return what the document says beside its partitions, those that are ``shown``."""
    counts = Counter(each.state for each in shown)
    return {
        "path": str(status.root),
        "now_ms": status.now_ms,
        "is_locked": status.is_locked,
        "states": {state.value: counts[state] for state in State},
    }


def partition_document(each: PartitionStatus) -> dict[str, Any]:
    """Return what the document says of one partition of a directory."""
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "state": each.state.value,
        "reason": each.reason,
        **_log_document(each.log),
        "set_aside": _mark_document(each.set_aside),
        "failing": _mark_document(each.failing),
        "last_round": None
        if each.last_round is None
        else {
            "now_ms": each.last_round.at_ms,
            "first_dirty": each.last_round.first_dirty,
            "end_offset": each.last_round.end_offset,
            "bytes_read": each.last_round.bytes_read,
            "bytes_written": each.last_round.bytes_written,
            "messages_read": each.last_round.records_read,
            "messages_written": each.last_round.records_written,
            "seconds": each.last_round.seconds,
            "verdict": each.last_round.verdict or None,
        },
        "erased_by": None
        if each.erased_by is None
        else {
            "by_ms": each.erased_by.by_ms,
            "eligible_by_ms": each.erased_by.eligible_by_ms,
            "is_gone": each.erased_by.is_gone,
            "is_unknown": each.erased_by.is_unknown,
            "why": each.erased_by.why,
        },
        "error": None
        if each.error is None
        else {"class": type(each.error).__name__, "message": error_text(each.error)},
    }


def _mark_document(mark: SetAside | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {
        "reason": mark.reason,
        "class": mark.error_class,
        "path": mark.path,
        "position": mark.position,
        "since_ms": mark.since_ms,
    }


def _log_document(log: LogStatus | None) -> dict[str, Any]:
    stages = None if log is None else log.stages
    return {
        "log_start": None if log is None else log.log_start,
        "log_end": None if log is None else log.log_end,
        **figures_document(None if log is None else log.figures),
        "deadline_ms": None if log is None else log.deadline_ms,
        "leftover_bytes": None if log is None else log.leftover_bytes,
        "kept_until_ms": None if log is None else log.kept_until_ms,
        "told_from": None if log is None else log.told_from,
        "holds": None if log is None else [hold_document(each) for each in log.holds],
        "readers": None if log is None else log.readers,
        "notes": None if log is None else list(sentences(log.notes)),
        "tombstones": None if stages is None else _stage_document(stages.tombstones, stages),
        "markers": None if stages is None else _stage_document(stages.markers, stages),
    }


def headers_document(found: LogHeaders) -> dict[str, Any]:
    """Return what the batch headers of a log tell, in sum and by segment."""
    return {
        "tombstones": _stage_document(found.stages.tombstones, found.stages),
        "markers": _stage_document(found.stages.markers, found.stages),
        "headers": [{"base_offset": base} | asdict(each) for base, each in found.segments.items()],
    }


def _stage_document(counts: StageCounts, stages: Stages) -> dict[str, Any]:
    return {
        "unit": "records" if stages.counts_records else "batches",
        "without_horizon": counts.unstamped,
        "retained": counts.retained,
        "removable": counts.removable,
        "first_horizon_ms": counts.first_ms,
        "last_horizon_ms": counts.last_ms,
    }


def facts_document(facts: PartitionFacts) -> dict[str, Any]:
    """Return what a run tells of one partition."""
    figures = figures_document(facts.figures)
    return {
        "topic": facts.partition.topic,
        "partition": facts.partition.partition,
        "state": facts.state.value,
        "reason": facts.reason,
        "first_dirty": figures.pop("first_dirty"),
        "bound": figures.pop("bound"),
        "log_start": facts.log_start,
        "log_end": facts.log_end,
        **figures,
        "surveyed_ms": facts.surveyed_ms,
        "rounds": facts.rounds,
        "failures": facts.failures,
        "retry_at_ms": facts.retry_at_ms,
        "set_aside_since_ms": facts.set_aside_since_ms,
        "last_round_ms": facts.last_round_ms,
        "last_round": facts.last_round,
        **({} if facts.tier is None else {"tier": facts.tier}),
    }


def tier_document(s: TierStatus) -> dict[str, Any]:
    """Return a partition's status for the document."""
    return {
        "topic": s.partition.topic, "partition": s.partition.partition, "owner": s.owner,
        "leader_epoch": s.leader_epoch, "log_start": s.log_start, "remote_end": s.remote_end,
        "log_end": s.log_end, "first_dirty": s.first_dirty, "told_from": s.told_from,
        "cleanable_to": s.cleanable_to,
        "ratio": s.ratio, "kip_ratio": s.kip_ratio, "clean_bytes": s.clean_bytes,
        "cleanable_bytes": s.cleanable_bytes, "bytes": s.remote_bytes,
        "local_bytes": s.local_bytes,
        "is_drifted": s.is_drifted, "orphans": s.orphans, "orphan_bytes": s.orphan_bytes,
        "collected_from_ms": s.collected_from_ms,
        "uncleanable_reason": s.uncleanable_reason, "holder": _holder_document(s),
        "vector": s.vector, "settings": s.settings, "readers": s.readers,
        "holds": [hold_document(each) for each in s.holds],
        "regions": [
            {"name": r.name, "base_offset": r.base_offset, "end_offset": r.end_offset,
             "segments": r.segments, "bytes": r.size_bytes, "remote_only_bytes": r.remote_bytes,
             "both_bytes": r.both_bytes, "local_only_bytes": r.local_bytes}
            for r in s.regions
        ],
        "segments": [
            {"base_offset": each.base_offset, "end_offset": each.end_offset,
             "bytes": each.size_bytes, "kind": each.kind, "region": each.region,
             "place": each.place}
            for each in s.segments
        ],
    }  # fmt: skip


def _holder_document(s: TierStatus) -> dict[str, Any] | None:
    if s.holder is None or s.held_since_ms is None:
        return None
    return {"process": s.holder.pid, "host": s.holder.host, "since_ms": s.held_since_ms}


def erased_document(found: TierErasure | None) -> dict[str, Any]:
    """Return the bound for the document, nothing when it was not asked for."""
    if found is None:
        return {}
    bound = {"by_ms": found.by_ms, "eligible_by_ms": found.eligible_by_ms, "why": found.why}
    return {"erased_by": bound}


def store_document(
    found: Sequence[TierStatus],
    given_up: Sequence[TopicPartition],
    erasures: Mapping[TopicPartition, TierErasure] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the status of a store: its partitions, and those whose objects wait to be removed."""
    rows = [
        {**tier_document(each), **erased_document(erasures.get(each.partition))} for each in found
    ]
    return {PARTITIONS: rows, **store_head(given_up)}


def store_head(given_up: Sequence[TopicPartition]) -> dict[str, Any]:
    """Return what that document says beside its partitions."""
    return {"given_up": [{"topic": each.topic, "partition": each.partition} for each in given_up]}


def attached_row(remote: RemotePartitionStatus, readers: ReaderWait | None) -> dict[str, Any]:
    """Return what brokers serve of one partition, and whom its tombstones wait for."""
    return shown_fields(remote) | {"readers": readers}


def attached_head(cluster_id: str, metadata_ends: Mapping[int, int]) -> dict[str, Any]:
    """Return what that document says beside its partitions."""
    return {
        "cluster_id": cluster_id,
        "metadata_offsets": {str(number): end for number, end in metadata_ends.items()},
        "assumed": ASSUMED_OF_BROKERS,
    }
