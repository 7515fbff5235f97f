"""What ``keeplast status`` shows of a store: a table of its partitions, and facts of one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from keeplast.cli.show.tables import new_table
from keeplast.model.text import format_bytes, printable
from keeplast.service.status import PartitionStatus
from keeplast.service.status_words import (
    as_of_words,
    erased_sentence,
    hold_lines,
    shown_state,
)
from keeplast.store.status import TierStatus
from keeplast.survey.wording import wait_words


def store_table(shown: Sequence[PartitionStatus]) -> Table:
    """Return a row for each partition, without facts of one that cannot be read."""
    table = new_table(
        "partition", "=state", "owner", ">epoch", ">log", ">first dirty", ">segments", ">remote",
        ">local", ">ratio", ">to remove",
    )  # fmt: skip
    for each in shown:
        name, s = Text(printable(str(each.partition))), each.stored
        if s is None:
            table.add_row(name, shown_state(each), *[""] * 9)
            continue
        table.add_row(
            name, shown_state(each), Text(printable(s.owner)), str(s.leader_epoch),
            f"{s.log_start}..{s.log_end}", str(s.first_dirty), str(len(s.segments)),
            format_bytes(s.remote_bytes),
            "" if s.local_bytes is None else format_bytes(s.local_bytes), f"{s.ratio:.3f}",
            format_bytes(s.orphan_bytes) if s.orphans else "",
        )  # fmt: skip
    return table


def stored_lines(each: PartitionStatus, s: TierStatus, now_ms: int) -> list[str]:
    """Return all that is known of one partition except its row, a line each."""
    lines = []
    if s.is_drifted:
        lines.append("the cached size has drifted from the sum: run keeplast verify")
    if s.holder is not None and s.held_since_ms is not None:
        lines.append(f"held by process {s.holder.pid} on {s.holder.host}")
    lease = s.lease
    if lease is not None and lease.epoch == s.leader_epoch:
        lines.append(
            f"led in epoch {lease.epoch} by {s.owner}: its lease is for {lease.lease_ms / 1000:g} "
            f"s and was renewed {lease.number} times; acknowledged up to {lease.acknowledged}"
        )
    if each.erased_by is not None:
        by = erased_sentence(each.erased_by, now_ms, in_store=True)
        lines.append(f"erased by: {by}")
    if s.earliest_as_of > s.log_start or s.holds:
        lines.append(as_of_words(s.earliest_as_of, s.cleanable_to))
    lines += hold_lines(s.holds, now_ms)
    return lines if s.readers is None else [*lines, wait_words(s.readers)]
