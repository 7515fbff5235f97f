"""The documents of what is known of partitions: what ``--json`` prints and the console serves.

Each JSON of a status, a run or a store is made here, so that all of them say the same. Values are
encoded by :mod:`keeplast.model.document`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from keeplast.errors import code_in, code_of, error_text
from keeplast.model.document import shown_fields
from keeplast.survey.wording import reason_code, sentences

if TYPE_CHECKING:
    from keeplast.cleaner.dirty_section import LogFigures
    from keeplast.inspect.stages import LogHeaders, StageCounts, Stages
    from keeplast.inspect.status import LogStatus
    from keeplast.model.hold import Hold
    from keeplast.service.attached_outlook import PartitionOutlook
    from keeplast.service.attached_status import AttachedStatus
    from keeplast.service.schedule import SetAside
    from keeplast.service.snapshot import PartitionFacts
    from keeplast.service.status import PartitionStatus, PlaceStatus
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


def status_document(status: PlaceStatus) -> dict[str, Any]:
    """Return what ``keeplast status --json`` prints of a place, below its name."""
    rows = [partition_document(each) for each in status.partitions]
    return {**status.head(), PARTITIONS: rows}


def partition_document(each: PartitionStatus) -> dict[str, Any]:
    """Return what the document says of one partition, wherever it lies."""
    own = _log_document(each.log)
    if each.stored is not None:
        own = tier_document(each.stored, each.figures)
    elif each.attached is not None:
        own = _attached_document(each.attached, each.outlook)
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "state": each.state.value,
        "reason": each.reason,
        "code": code_in(each.reason) or each.code or reason_code(each.decision),
        **own,
        "deadline_ms": each.deadline_ms,
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
        "erased_by": _erased_document(each),
        "error": _error_document(each.error),
    }


def _erased_document(each: PartitionStatus) -> dict[str, Any] | None:
    """Return by when old values are gone; of attached ones there is a span and no date."""
    if each.outlook is not None and each.outlook.old is not None:
        old = each.outlook.old
        return {
            "by_ms": None, "eligible_by_ms": None, "is_gone": False, "is_unknown": False,
            "why": old.why, "after_round_ms": old.after_round_ms,
            "replaced_by_ms": old.replaced_by_ms,
        }  # fmt: skip
    if each.erased_by is None:
        return None
    return {
        "by_ms": each.erased_by.by_ms,
        "eligible_by_ms": each.erased_by.eligible_by_ms,
        "is_gone": each.erased_by.is_gone,
        "is_unknown": each.erased_by.is_unknown,
        "why": each.erased_by.why,
    }


def _error_document(error: Exception | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "class": type(error).__name__,
        "message": error_text(error),
        "code": code_of(error),
    }


def _mark_document(mark: SetAside | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {
        "reason": mark.reason,
        "code": code_in(mark.reason),
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
        "leftover_bytes": None if log is None else log.leftover_bytes,
        "kept_until_ms": None if log is None else log.kept_until_ms,
        "told_from": None if log is None else log.earliest_as_of,
        "holds": None if log is None else [hold_document(each) for each in log.holds],
        "readers": None if log is None else log.readers,
        "notes": None if log is None else list(sentences(log.notes)),
        "tombstones": None if stages is None else _stage_document(stages.tombstones, stages),
        "markers": None if stages is None else _stage_document(stages.markers, stages),
    }


def headers_document(found: LogHeaders) -> dict[str, Any]:
    """Return what the batch headers of a log say, in sum and by segment."""
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
    """Return what a run says of one partition."""
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


def tier_document(s: TierStatus, figures: LogFigures | None) -> dict[str, Any]:
    """Return what a store says of a partition, and of a round where that is known."""
    return {
        "owner": s.owner,
        "leader_epoch": s.leader_epoch, "log_start": s.log_start, "remote_end": s.remote_end,
        "log_end": s.log_end, "told_from": s.earliest_as_of,
        **figures_document(figures),
        "first_dirty": s.first_dirty, "bound": s.cleanable_to,
        "ratio": s.ratio, "kip_ratio": s.kip_ratio, "clean_bytes": s.clean_bytes,
        "cleanable_bytes": s.cleanable_bytes, "bytes": s.remote_bytes,
        "local_bytes": s.local_bytes,
        "is_drifted": s.is_drifted, "orphans": s.orphans, "orphan_bytes": s.orphan_bytes,
        "collected_from_ms": s.collected_from_ms,
        "uncleanable_reason": s.uncleanable_reason, "holder": _holder_document(s),
        "lease": _lease_document(s),
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


def _lease_document(s: TierStatus) -> dict[str, Any] | None:
    if s.lease is None:
        return None
    return {
        "epoch": s.lease.epoch, "holder": s.lease.holder, "lease_ms": s.lease.lease_ms,
        "acknowledged": s.lease.acknowledged, "number": s.lease.number,
    }  # fmt: skip


def _attached_document(status: AttachedStatus, outlook: PartitionOutlook | None) -> dict[str, Any]:
    """Return what brokers serve of a partition, whom its tombstones wait for, and what is next."""
    log, attached = status.remote.log, status.attached
    found = {
        **shown_fields(status.remote),
        "log_start": log.start,
        "log_end": log.end,
        **figures_document(None if outlook is None else outlook.figures),
        "readers": status.readers,
        "holds": [] if attached is None else [hold_document(each) for each in attached.holds],
    }
    if outlook is None:
        return found
    saving = outlook.saving
    return found | {
        "first_dirty": outlook.first_dirty,
        "told_from": outlook.earliest_as_of,
        "regions": outlook.regions(),
        "is_due": outlook.is_due,
        "missing_aborts": outlook.missing_aborts,
        "tombstone_dates": outlook.tombstones,
        "saving": None
        if saving is None
        else shown_fields(saving) | {"error": _error_document(saving.error)},
    }
