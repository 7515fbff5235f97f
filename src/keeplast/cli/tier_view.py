"""What ``keeplast tier`` shows: a table and a picture of each partition, findings, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.escapes import printable
from keeplast.cli.picture import PicturedSegment, draw_log
from keeplast.cli.rows import new_table
from keeplast.cli.sizes import format_bytes
from keeplast.engine.tier_status import TierStatus
from keeplast.engine.tier_verification import TierFinding
from keeplast.model.partition import TopicPartition

PICTURES_MAX = 3
"""More partitions than this are shown as a table alone."""


def status_parts(found: Sequence[TierStatus]) -> list[RenderableType]:
    """Return a table of all partitions, and pictures of a few."""
    if not found:
        return ["no partitions; keeplast tier import takes some in"]
    table = new_table(
        "partition", "owner", ">epoch", ">log", ">first dirty", ">segments", ">bytes", ">ratio",
        ">to remove", "notes",
    )  # fmt: skip
    for s in found:
        notes = [s.uncleanable_reason] if s.uncleanable_reason else []
        if s.is_drifted:
            notes.append("the cached size has drifted from the sum: run tier verify")
        table.add_row(
            Text(printable(str(s.partition))), Text(printable(s.owner)), str(s.leader_epoch),
            f"{s.log_start}..{s.remote_end}", str(s.first_dirty), str(len(s.segments)),
            format_bytes(s.remote_bytes), f"{s.ratio:.3f}",
            format_bytes(s.orphan_bytes) if s.orphans else "",
            Text(printable("; ".join(notes))),
        )  # fmt: skip
    parts: list[RenderableType] = [table]
    if len(found) <= PICTURES_MAX:
        for s in found:
            parts += ["", printable(str(s.partition)), _picture(s)]
    return parts


def _picture(s: TierStatus) -> str:
    segments = [PicturedSegment(base, end, size) for base, end, size, _ in s.segments]
    segments.append(PicturedSegment(s.remote_end, s.remote_end, 0))
    lines = draw_log(segments, log_start=s.log_start, first_dirty=s.first_dirty).splitlines()
    regions = ", ".join(
        f"{r.name} {r.base_offset}..{r.end_offset} ({format_bytes(r.size_bytes)})"
        for r in s.regions
    )
    return "\n".join([*(line for line in lines if "active" not in line), regions])


def status_document(s: TierStatus) -> dict[str, Any]:
    """Return a partition's status for the document."""
    return {
        "topic": s.partition.topic, "partition": s.partition.partition, "owner": s.owner,
        "leader_epoch": s.leader_epoch, "log_start": s.log_start, "remote_end": s.remote_end,
        "first_dirty": s.first_dirty, "ratio": s.ratio, "bytes": s.remote_bytes,
        "is_drifted": s.is_drifted, "orphans": s.orphans, "orphan_bytes": s.orphan_bytes,
        "uncleanable_reason": s.uncleanable_reason,
        "regions": [
            {"name": r.name, "base_offset": r.base_offset, "end_offset": r.end_offset,
             "segments": r.segments, "bytes": r.size_bytes}
            for r in s.regions
        ],
        "segments": [
            {"base_offset": base, "end_offset": end, "bytes": size, "kind": kind}
            for base, end, size, kind in s.segments
        ],
    }  # fmt: skip


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
                {"invariant": f.invariant, "segment": f.segment_id, "problem": f.problem}
                for f in findings
            ],
        }
        for partition, findings in found.items()
    ]  # fmt: skip


def fact_line(partition: TopicPartition, facts: Mapping[str, Any]) -> str:
    """Return what was done to a partition in a line."""
    shown = []
    for name, value in facts.items():
        if isinstance(value, list):
            shown += [printable(str(each)) for each in value]
        else:
            words = format_bytes(value) if name == "bytes" else printable(str(value))
            shown.append(f"{name.replace('_', ' ')} {words}")
    return f"{printable(str(partition))}: {', '.join(shown)}"
