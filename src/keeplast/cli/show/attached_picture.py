"""Draws an attached partition: what each part of it is to a round, and what brokers alone have.

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

Lengths are bytes, as in :mod:`~keeplast.cli.show.picture`. Of what brokers alone have no bytes are
known: it is drawn as long as its offsets would be in the newest segment. More partitions than
``PICTURES_MAX`` are a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.attach import shared_lines
from keeplast.cli.show.picture import ACTIVE, CLEAN, DIRTY, PicturedSegment, draw_bar
from keeplast.cli.show.rows import new_table
from keeplast.cli.show.tier_picture import MARKS, draw_places
from keeplast.cli.show.tier_status import PICTURES_MAX
from keeplast.clock import utc_text
from keeplast.model.duration import precise_relative_text, relative_text
from keeplast.model.escapes import printable
from keeplast.model.size import format_bytes, format_counted
from keeplast.service.attached_outlook import LogZone, PartitionOutlook
from keeplast.store.status import RegionName

ZONES = {
    LogZone.CLEAN: CLEAN, LogZone.DIRTY: DIRTY, LogZone.UNCLEANABLE: MARKS[RegionName.UNCLEANABLE],
    LogZone.MARGIN: MARKS[RegionName.UNSTABLE], LogZone.BROKERS_ONLY: ACTIVE,
}  # fmt: skip
BAR_WIDTH = 16
_DUE = {True: "due now", False: "not now", None: "not known"}


def outlook_parts(
    found: Sequence[PartitionOutlook], now_ms: int, screen: int, *, has_log: bool
) -> Iterator[RenderableType]:
    """Yield pictures of a few partitions with what comes next, or a table of many."""
    if not found:
        return
    if not has_log:
        yield "all counts as dirty: the decision log, --store, says what is clean"
    if len(found) > PICTURES_MAX:
        yield ""
        yield _table(found, now_ms)
        told = [(each.partition, each.old.why) for each in found if each.old is not None]
        yield from shared_lines(told, "erased by")
        for each in found:
            name = printable(str(each.partition))
            yield from (f"{name}: {line}" for line in _missing_lines(each))
        return
    for each in found:
        yield ""
        yield printable(str(each.partition))
        if each.error is not None:
            yield f"cannot be looked at: {printable(each.error)}"
            continue
        yield draw_attached(each, screen=screen)
        yield from _lines(each, now_ms)


def draw_attached(found: PartitionOutlook, *, screen: int | None = None) -> str:
    """Return the picture of a partition, without a trailing newline, in ``screen`` columns."""
    drawn = [
        PicturedSegment(each.base_offset, each.end_offset, each.size_bytes)
        for each in found.segments
    ]
    marks = [ZONES[each.zone] for each in found.segments]
    if found.brokers_from is not None:
        drawn.append(_guessed(drawn, found.brokers_from, found.log.end))
        marks.append(ZONES[LogZone.BROKERS_ONLY])
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
    # Beside the bar there are the names of the places.
    bar_screen = None if screen is None else max(screen - len("  brokers only"), 1)
    return "\n".join([*draw_places(drawn, marks, lines, offsets, bar_screen), *_legend(found)])


def _guessed(drawn: Sequence[PicturedSegment], start: int, end: int) -> PicturedSegment:
    newest = drawn[-1] if drawn else PicturedSegment(0, 1, 1)
    span = max(newest.end_offset - newest.base_offset, 1)
    return PicturedSegment(start, end, max(newest.size_bytes * (end - start) // span, 1))


def _legend(found: PartitionOutlook) -> Iterator[str]:
    for zone, mark in ZONES.items():
        its = [each for each in found.segments if each.zone is zone]
        start, end, size = 0, 0, ""
        if its:
            start, end = its[0].base_offset, max(each.end_offset for each in its)
            size = (
                f"{format_counted(len(its), 'segment'):>16}{format_bytes(found.bytes_of(zone)):>12}"
            )
        elif zone is LogZone.BROKERS_ONLY and found.brokers_from is not None:
            start, end = found.brokers_from, found.log.end
        else:
            continue
        yield f"{mark} {_words(zone):<14}{f'{start}..{end}':<22}{size}".rstrip()


def _words(zone: LogZone) -> str:
    return zone.value.replace("_", " ")


def _lines(each: PartitionOutlook, now_ms: int) -> Iterator[str]:
    figures = each.figures
    if figures is not None:
        cleanable = figures.cleanable
        yield (
            f"dirty ratio {cleanable.ratio:.3f}: {format_bytes(cleanable.cleanable_bytes)} "
            f"cleanable beside {format_bytes(cleanable.clean_bytes)} clean"
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
            table.add_row(name, "", "", "", "", "", "", Text(printable(each.error)))
            continue
        clean, dirty = each.bytes_of(LogZone.CLEAN), each.bytes_of(LogZone.DIRTY)
        rest = each.bytes_of(LogZone.UNCLEANABLE, LogZone.MARGIN)
        ratio = "" if each.figures is None else f"{each.figures.cleanable.ratio:.3f}"
        deadline = "" if each.deadline_ms is None else relative_text(each.deadline_ms, now_ms)
        table.add_row(
            name, draw_bar(clean, dirty, rest, BAR_WIDTH), format_bytes(clean),
            format_bytes(dirty), format_bytes(rest), ratio, deadline,
            Text(printable(f"{'due now: ' if each.is_due else ''}{each.why}")),
        )  # fmt: skip
    return table
