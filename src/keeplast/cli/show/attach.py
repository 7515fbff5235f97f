"""How a live cluster's tiered topics are shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from keeplast.attach.rounds.round import RoundCosts
from keeplast.cli.show.output import stderr_console
from keeplast.cli.show.rows import new_table
from keeplast.clock import time_text
from keeplast.cluster.facts import ASSUMED_OF_BROKERS, METADATA_TOPIC, ClusterFacts
from keeplast.cluster.status import RemotePartitionStatus, SegmentSum
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count
from keeplast.service.tombstone_dates import PartitionTombstones

NAMES_SHOWN = 10
"""Partitions that one line names."""


@contextlib.contextmanager
def folding() -> Iterator[Callable[[int], object]]:
    """Show on a terminal how many records of the metadata topic were read."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda count: None
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), console=console,
        transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task(f"records of {METADATA_TOPIC}", total=None)
        yield lambda count: progress.advance(task, count)


def attached_parts(rows: Sequence[Mapping[str, object]]) -> Iterator[RenderableType]:
    """Yield what was done with attached partitions: one line each, what is not zero."""
    for row in rows:
        who = f"{printable(str(row['topic']))}-{row['partition']}"
        done = [
            _count_words(name, value, row.get("waiting_until_ms"))
            for name, value in row.items()
            if isinstance(value, int) and value and name in _COUNTS
        ]
        done += [name.removeprefix("is_") for name, value in row.items() if value is True]
        done += ["still attached"] if row.get("is_detached") is False else []
        done += [str(row["held_back"])] if "held_back" in row else []
        words = printable(str(row["error"])) if "error" in row else ", ".join(done)
        yield f"{who}: {words or 'nothing to do'}"


def _count_words(name: str, value: int, until_ms: object) -> str:
    """Return a count of ``_COUNTS`` in words; what waits for its grace has a date."""
    if name.endswith("_bytes"):
        return f"{format_bytes(value)} {name.removesuffix('_bytes').replace('_', ' ')}"
    words = f"{value} {name.replace('_', ' ')}"
    if name != "waiting" or not isinstance(until_ms, int):
        return words
    return f"{words} for the grace, the first until {time_text(until_ms)[:19]}"


_COUNTS = frozenset(
    {
        "published", "published_again", "discarded", "collected_segments", "collected_bytes",
        "rebuilt_decisions", "uncollected", "orphan_segments", "orphan_bytes", "unknown_segments",
        "unknown_bytes", "still_served_segments", "still_served_bytes", "unwritten",
        "unwritten_removed", "unwritten_waiting", "waiting",
    }
)  # fmt: skip


def status_parts(
    facts: ClusterFacts, found: Sequence[RemotePartitionStatus]
) -> Iterator[RenderableType]:
    """Yield what ``attach status`` says: a table of partitions, and the holes."""
    table = new_table(
        "partition", ">log", ">remote", ">served", ">compacted", ">hidden", ">copying", ">deleting"
    )
    for each in found:
        remote = "" if each.remote_start is None else f"{each.remote_start}..{each.remote_end}"
        sums = (each.served, each.compacted, each.hidden, each.copying, each.deleting)
        table.add_row(
            Text(printable(f"{each.topic}-{each.partition}")),
            f"{each.log.start}..{each.log.end - 1}" if each.log.end > each.log.start else "empty",
            remote,
            *map(_sum_text, sums),
        )
    if not found:
        yield f"cluster {facts.cluster_id}: no tiered topic"
        return
    yield table
    for each in found:
        for first, last in each.holes:
            yield (
                f"{printable(each.topic)}-{each.partition}: nothing serves offsets {first} to "
                f"{last}; who reads them is sent elsewhere, or stops"
            )
    yield f"assumed: {ASSUMED_OF_BROKERS}"


@dataclass(frozen=True, slots=True)
class Saving:
    """What a round would save of a partition now: bytes and records of ``of_bytes`` that it reads.

    ``reason`` says why nothing, and ``error`` why that could not be told; None where it was.
    """

    topic: str
    partition: int
    bytes: int = 0
    records: int = 0
    of_bytes: int = 0
    reason: str | None = None
    error: str | None = None


def savings_parts(savings: Sequence[Saving]) -> Iterator[RenderableType]:
    """Yield what rounds would save now, counted, and why of some partitions nothing is told."""
    table = new_table("partition", ">to save", ">of", ">records")
    said: list[str] = []
    for each in savings:
        who = printable(f"{each.topic}-{each.partition}")
        if each.error is not None or each.reason is not None:
            said.append(f"{who}: {printable(each.error or each.reason or '')}")
            continue
        table.add_row(
            Text(who), format_bytes(each.bytes), format_bytes(each.of_bytes),
            format_count(each.records),
        )  # fmt: skip
    if table.row_count:
        yield table
    yield from said


def tombstone_lines(found: Sequence[PartitionTombstones]) -> Iterator[str]:
    """Yield with which rounds tombstones go."""
    told = ((each.partition, each.words) for each in found)
    yield from shared_lines(told, "tombstones and markers")


def shared_lines(told: Iterable[tuple[TopicPartition, str]], about: str) -> Iterator[str]:
    """Yield what is told of each partition; those of which the same is said share a line."""
    by_words: dict[str, list[str]] = {}
    for partition, words in told:
        by_words.setdefault(words, []).append(printable(str(partition)))
    for words, names in by_words.items():
        more = len(names) - NAMES_SHOWN
        who = ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield f"{who}: {about}: {words}"


def costs_table(costs: Sequence[tuple[TopicPartition, RoundCosts]]) -> Table:
    """Return what rounds cost at most; the records stay in the metadata topic."""
    table = new_table(
        "partition", ">sources", ">outputs", ">read at most", ">written at most",
        ">requests, about", ">metadata records",
    )  # fmt: skip
    for partition, each in costs:
        table.add_row(
            Text(printable(str(partition))), format_count(each.sources),
            format_count(each.outputs), format_bytes(each.bytes_to_read),
            format_bytes(each.bytes_to_write), format_count(each.requests),
            format_count(each.metadata_records),
        )  # fmt: skip
    return table


def _sum_text(found: SegmentSum) -> str:
    return "-" if found.count == 0 else f"{found.count}, {format_bytes(found.bytes)}"
