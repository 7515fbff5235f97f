"""What ``keeplast tier`` shows: a table and a picture of each partition, findings, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.cli.show.sizes import format_bytes
from keeplast.cli.show.status import erased_sentence
from keeplast.cli.show.tier_picture import draw_tiers
from keeplast.clock import SystemClock
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.service.status import ErasedBy
from keeplast.store.erasure import TierErasure
from keeplast.store.status import TierStatus
from keeplast.store.verification import TierFinding

PICTURES_MAX = 3
"""More partitions than this are shown as a table alone."""


def status_parts(found: Sequence[TierStatus], width: int) -> list[RenderableType]:
    """Return a table of all partitions, and pictures of a few that fit ``width`` columns."""
    if not found:
        return ["no partitions"]
    table = new_table(
        "partition", "owner", ">epoch", ">log", ">first dirty", ">segments", ">remote", ">local",
        ">ratio", ">to remove", "notes",
    )  # fmt: skip
    for s in found:
        notes = [s.uncleanable_reason] if s.uncleanable_reason else []
        if s.is_drifted:
            notes.append("the cached size has drifted from the sum: run tier verify")
        if s.holder is not None and s.held_since_ms is not None:
            notes.append(f"held by process {s.holder.pid} on {s.holder.host}")
        table.add_row(
            Text(printable(str(s.partition))), Text(printable(s.owner)), str(s.leader_epoch),
            f"{s.log_start}..{s.log_end}", str(s.first_dirty), str(len(s.segments)),
            format_bytes(s.remote_bytes),
            "" if s.local_bytes is None else format_bytes(s.local_bytes), f"{s.ratio:.3f}",
            format_bytes(s.orphan_bytes) if s.orphans else "",
            Text(printable("; ".join(notes))),
        )  # fmt: skip
    parts: list[RenderableType] = [table]
    if len(found) <= PICTURES_MAX:
        for s in found:
            parts += ["", printable(str(s.partition)), draw_tiers(s, screen=width)]
    return parts


def status_document(s: TierStatus) -> dict[str, Any]:
    """Return a partition's status for the document."""
    return {
        "topic": s.partition.topic, "partition": s.partition.partition, "owner": s.owner,
        "leader_epoch": s.leader_epoch, "log_start": s.log_start, "remote_end": s.remote_end,
        "log_end": s.log_end, "first_dirty": s.first_dirty, "cleanable_to": s.cleanable_to,
        "ratio": s.ratio, "kip_ratio": s.kip_ratio, "clean_bytes": s.clean_bytes,
        "cleanable_bytes": s.cleanable_bytes, "bytes": s.remote_bytes,
        "local_bytes": s.local_bytes,
        "is_drifted": s.is_drifted, "orphans": s.orphans, "orphan_bytes": s.orphan_bytes,
        "uncleanable_reason": s.uncleanable_reason, "holder": _holder_document(s),
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


def erased_lines(erasures: Mapping[TopicPartition, TierErasure]) -> list[str]:
    """Return a line a partition: by when old values are gone, or why nobody can say."""
    now_ms = SystemClock().now_ms()
    lines = [
        f"{printable(str(partition))}: erased by: "
        + erased_sentence(
            ErasedBy(found.by_ms, found.eligible_by_ms, found.basis),
            now_ms,
            loop="keeplast tier run",
        )
        for partition, found in erasures.items()
    ]
    return ["", *lines] if lines else []


def given_up_lines(partitions: Sequence[TopicPartition]) -> list[str]:
    """Return a line for each partition that was given up and is not gone yet."""
    lines = [
        f"{printable(str(each))}: given up; keeplast tier collect, or tier run, removes its objects"
        for each in partitions
    ]
    return ["", *lines] if lines else []


def erased_document(found: TierErasure | None) -> dict[str, Any]:
    """Return the bound for the document, nothing when it was not asked for."""
    if found is None:
        return {}
    bound = {"by_ms": found.by_ms, "eligible_by_ms": found.eligible_by_ms, "why": found.why}
    return {"erased_by": bound}


def findings_lines(found: Mapping[TopicPartition, tuple[TierFinding, ...]]) -> list[str]:
    """Return a line a partition that holds, and one a finding."""
    lines = []
    for partition, findings in found.items():
        name = printable(str(partition))
        if not findings:
            lines.append(f"{name}: holds")
        for f in findings:
            where = f" segment={f.segment_id}" if f.segment_id else ""
            lines.append(f"{name}: broken, {f.invariant}: {printable(f.problem)}{where}")
    return lines


def findings_document(
    found: Mapping[TopicPartition, tuple[TierFinding, ...]],
) -> list[dict[str, Any]]:
    """Return the findings of each partition for the document."""
    return [
        {
            "topic": partition.topic, "partition": partition.partition,
            "verdict": "broken" if findings else "holds",
            "findings": [
                {
                    "invariant": f.invariant, "segment": f.segment_id, "problem": f.problem,
                    "object": f.object_key, "offset": f.offset, "table": f.table,
                    "key": f.row_key,
                }
                for f in findings
            ],
        }
        for partition, findings in found.items()
    ]  # fmt: skip
