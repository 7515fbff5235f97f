"""How a live cluster's tiered topics are shown: a picture of one partition, a line each of many.

::

    ████████████│██████│▓▓▓▓▓▓▓▓│╱╱╱╱│░░░░
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━        remote
                                      ━━━━   brokers only
    ^ log start 0
                        ^ first dirty offset 1204
                                         ^ log end 2310
    █ clean         0..1204      2 segments  4.00 MiB
    ▓ dirty         1204..1900   1 segment   8.00 MiB
    ╱ margin        1900..2100   1 segment   1.00 MiB
    ░ brokers only  2100..2310

Lengths are bytes, as in :mod:`~keeplast.cli.show.picture`. The bytes of what brokers alone have are
not known: it is drawn as long as its offsets would be in the newest segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from keeplast.attach.rounds.round import RoundCosts
from keeplast.cli.show.output import stderr_console
from keeplast.cli.show.picture import MARKS, PicturedSegment, draw_bar, draw_places
from keeplast.cli.show.tables import new_table
from keeplast.clock import utc_text
from keeplast.cluster.live_cluster import METADATA_TOPIC
from keeplast.cluster.metadata_cache import SegmentSum
from keeplast.errors import error_text
from keeplast.model.partition import LogRegion, TopicPartition
from keeplast.model.text import (
    format_bytes,
    format_count,
    format_counted,
    precise_relative_text,
    printable,
    relative_text,
)
from keeplast.service.attached_outlook import PartitionOutlook, PartitionTombstones
from keeplast.service.attached_status import holes_words
from keeplast.service.status import PartitionStatus
from keeplast.service.status_words import as_of_words, state_words
from keeplast.survey.wording import wait_words

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


def tombstone_lines(found: Sequence[PartitionTombstones]) -> Iterator[str]:
    """Yield with which rounds tombstones go."""
    sentences = ((each.partition, each.words) for each in found)
    yield from shared_lines(sentences, "tombstones and markers")


def shared_lines(sentences: Iterable[tuple[TopicPartition, str]], about: str) -> Iterator[str]:
    """Yield the words of each partition; partitions with the same words share a line."""
    by_words: dict[str, list[str]] = {}
    for partition, words in sentences:
        by_words.setdefault(words, []).append(printable(str(partition)))
    for words, names in by_words.items():
        more = len(names) - NAMES_SHOWN
        who = ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield f"{who}: {about}: {words}"


def costs_table(costs: Sequence[tuple[TopicPartition, RoundCosts]]) -> Table:
    """Return what rounds cost at most; the records stay in the metadata topic."""
    return new_table(
        "partition",
        ">sources",
        ">outputs",
        ">read at most",
        ">written at most",
        ">requests, about",
        ">metadata records",
        rows=(
            (
                Text(printable(str(partition))),
                format_count(each.sources),
                format_count(each.outputs),
                format_bytes(each.bytes_to_read),
                format_bytes(each.bytes_to_write),
                format_count(each.requests),
                format_count(each.metadata_records),
            )
            for partition, each in costs
        ),
    )


BAR_WIDTH = 16
_DUE = {True: "due now", False: "not now", None: "not known"}


def cluster_parts(
    shown: Sequence[PartitionStatus], now_ms: int, screen: int, *, has_details: bool
) -> Iterator[RenderableType]:
    """Yield what brokers have of partitions, and what comes next: pictures, or a table of many."""
    yield from ("", _served_table(shown), "")
    attached = [each.attached for each in shown if each.attached is not None]
    outlooks = [each.outlook for each in shown if each.outlook is not None]
    for served in attached:
        for words in holes_words(served):
            yield f"{printable(str(served.partition))}: {words}"
    yield from _outlook_parts(outlooks, now_ms, screen, has_details=has_details)
    yield ""
    for each in outlooks:
        if each.earliest_as_of is not None:
            yield f"{printable(str(each.partition))}: {as_of_words(each.earliest_as_of)}"
    yield from tombstone_lines([e.tombstones for e in outlooks if e.tombstones is not None])
    for served in attached:
        if served.readers is not None:
            yield f"{printable(str(served.partition))}: {wait_words(served.readers)}"
    yield from _saving_parts(outlooks)


def _served_table(shown: Sequence[PartitionStatus]) -> Table:
    table = new_table(
        "partition", "=state", ">log", ">remote", ">served", ">compacted", ">hidden", ">copying",
        ">deleting",
    )  # fmt: skip
    for each in shown:
        if each.attached is None:
            continue
        found = each.attached.remote
        remote = "" if found.remote_start is None else f"{found.remote_start}..{found.remote_end}"
        log = found.log
        table.add_row(
            Text(printable(str(each.partition))), state_words(each.state),
            f"{log.start}..{log.end - 1}" if log.end > log.start else "empty", remote,
            *map(
                _sum_text,
                (found.served, found.compacted, found.hidden, found.copying, found.deleting),
            ),
        )  # fmt: skip
    return table


def _sum_text(found: SegmentSum) -> str:
    return "-" if found.count == 0 else f"{found.count}, {format_bytes(found.bytes)}"


def _saving_parts(outlooks: Sequence[PartitionOutlook]) -> Iterator[RenderableType]:
    """Yield what rounds would save now, counted, and why some partitions have no count."""
    table = new_table("partition", ">to save", ">of", ">records")
    said: list[str] = []
    for each in outlooks:
        saving, who = each.saving, printable(str(each.partition))
        if saving is None:
            continue
        why = saving.reason if saving.error is None else error_text(saving.error)
        if why is not None:
            said.append(f"{who}: {printable(why)}")
            continue
        table.add_row(
            Text(who), format_bytes(saving.bytes), format_bytes(saving.of_bytes),
            format_count(saving.records),
        )  # fmt: skip
    if table.row_count:
        yield from ("", table)
    yield from said


def _outlook_parts(
    found: Sequence[PartitionOutlook], now_ms: int, screen: int, *, has_details: bool
) -> Iterator[RenderableType]:
    """Yield a picture of each with what comes next, or a table."""
    if not has_details:
        yield ""
        yield _table(found, now_ms)
        sentences = [(each.partition, each.old.why) for each in found if each.old is not None]
        yield from shared_lines(sentences, "erased by")
        for each in found:
            name = printable(str(each.partition))
            yield from (f"{name}: {line}" for line in _missing_lines(each))
        return
    for each in found:
        yield ""
        yield printable(str(each.partition))
        if each.error is not None:
            yield f"cannot be looked at: {printable(error_text(each.error))}"
            continue
        yield draw_attached(each, screen=screen)
        yield from _lines(each, now_ms)


def draw_attached(found: PartitionOutlook, *, screen: int | None = None) -> str:
    """Return the picture of a partition, without a trailing newline, in ``screen`` columns."""
    drawn = [
        PicturedSegment(each.base_offset, each.end_offset, each.size_bytes)
        for each in found.segments
    ]
    marks = [MARKS[each.region] for each in found.segments]
    if found.brokers_from is not None:
        drawn.append(_guessed(drawn, found.brokers_from, found.log.end))
        marks.append(MARKS[LogRegion.BROKERS_ONLY])
    if not drawn:
        return "nothing is in it"
    remote = len(found.segments)
    lines = [
        ("remote", [number < remote for number in range(len(drawn))]),
        ("brokers only", [number >= remote for number in range(len(drawn))]),
    ]
    offsets = (
        ("log start", found.log.start), ("first dirty offset", found.first_dirty),
        ("log end", found.log.end),
    )  # fmt: skip
    # Next to the bar there are the names of the places.
    bar_screen = None if screen is None else max(screen - len("  brokers only"), 1)
    return "\n".join([*draw_places(drawn, marks, lines, offsets, bar_screen), *_legend(found)])


def _guessed(drawn: Sequence[PicturedSegment], start: int, end: int) -> PicturedSegment:
    newest = drawn[-1] if drawn else PicturedSegment(0, 1, 1)
    span = max(newest.end_offset - newest.base_offset, 1)
    return PicturedSegment(start, end, max(newest.size_bytes * (end - start) // span, 1))


def _legend(found: PartitionOutlook) -> Iterator[str]:
    for each in found.regions():
        size = ""
        if each.segments is not None and each.bytes is not None:
            segments = format_counted(each.segments, "segment")
            size = f"{segments:>16}{format_bytes(each.bytes):>12}"
        span = f"{each.base_offset}..{each.end_offset}"
        yield f"{MARKS[each.name]} {each.name.words:<14}{span:<22}{size}".rstrip()


def _lines(each: PartitionOutlook, now_ms: int) -> Iterator[str]:
    figures = each.figures
    if figures is not None:
        cleanable = figures.cleanable
        yield (
            f"dirty ratio {cleanable.ratio:.3f}: {format_bytes(cleanable.cleanable_bytes)} "
            f"cleanable next to {format_bytes(cleanable.clean_bytes)} clean"
        )
    at_latest = ""
    if each.deadline_ms is not None and not each.is_due:
        at_latest = (
            f"; max.compaction.lag.ms ends {utc_text(each.deadline_ms)} "
            f"({precise_relative_text(each.deadline_ms, now_ms)})"
        )
    yield f"next round: {_DUE[each.is_due]}, {printable(each.why)}{at_latest}"
    if each.old is not None:
        yield f"erased by: {each.old.why}"
    yield from _missing_lines(each)


def _missing_lines(found: PartitionOutlook) -> Iterator[str]:
    for each in found.missing_aborts:
        yield (
            f"broken: the transaction index of the segment at offset {each.segment_start} lacks "
            f"the abort at offset {each.marker_offset} of the transaction of producer "
            f"{each.producer_id} that began at {each.first_offset}: read-committed consumers are "
            "given its records until a round has taken them"
        )


def _table(found: Sequence[PartitionOutlook], now_ms: int) -> Table:
    table = new_table(
        "partition", "=log", ">clean", ">dirty", ">not yet", ">ratio", "=deadline", "next round"
    )
    for each in found:
        name = Text(printable(str(each.partition)))
        if each.error is not None:
            table.add_row(name, "", "", "", "", "", "", Text(printable(error_text(each.error))))
            continue
        clean, dirty = each.bytes_of(LogRegion.CLEAN), each.bytes_of(LogRegion.DIRTY)
        rest = each.bytes_of(LogRegion.UNCLEANABLE, LogRegion.MARGIN)
        ratio = "" if each.figures is None else f"{each.figures.cleanable.ratio:.3f}"
        deadline = "" if each.deadline_ms is None else relative_text(each.deadline_ms, now_ms)
        table.add_row(
            name, draw_bar(clean, dirty, rest, BAR_WIDTH), format_bytes(clean),
            format_bytes(dirty), format_bytes(rest), ratio, deadline,
            Text(printable(f"{'due now: ' if each.is_due else ''}{each.why}")),
        )  # fmt: skip
    return table
