"""What ``keeplast tier`` shows: a table and a picture of each partition, findings, facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.cli.show.tier_picture import draw_tiers
from keeplast.clock import SystemClock
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes
from keeplast.service.status import ErasedBy
from keeplast.service.status_words import erased_sentence, hold_lines, told_words
from keeplast.store.erasure import TierErasure
from keeplast.store.status import TierStatus
from keeplast.survey.wording import wait_words

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
            notes.append("the cached size has drifted from the sum: run keeplast verify")
        if s.holder is not None and s.held_since_ms is not None:
            notes.append(f"held by process {s.holder.pid} on {s.holder.host}")
        if s.holds and len(found) > PICTURES_MAX:
            notes += [f"hold {each.name} at {each.offset}" for each in sorted(s.holds)]
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
            if s.told_from > s.log_start or s.holds:
                parts.append(told_words(s.told_from, s.cleanable_to))
            parts += hold_lines(s.holds, SystemClock().now_ms())
    return parts


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


def wait_lines(found: Sequence[TierStatus]) -> list[str]:
    """Return a line a partition whose tombstones wait for readers: for whom."""
    lines = [
        f"{printable(str(each.partition))}: {wait_words(each.readers)}"
        for each in found
        if each.readers is not None
    ]
    return ["", *lines] if lines else []


def given_up_lines(partitions: Sequence[TopicPartition]) -> list[str]:
    """Return a line for each partition that was given up and is not gone yet."""
    lines = [
        f"{printable(str(each))}: given up; keeplast tier collect, or tier run, removes its objects"
        for each in partitions
    ]
    return ["", *lines] if lines else []
