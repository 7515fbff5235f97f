"""Draws a log as a bar, and one that lies in two tiers: what each part is to the cleaner.

::

    ████████████│██████│▓▓▓▓▓▓▓▓│╱╱╱╱│░░░░
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━              remote
                 ━━━━━━━━━━━━━━━━━━━━━━━━━    local
    ^ log start 0
                        ^ first dirty offset 1204
                                         ^ log end 2310
                            remote only      both  local only
    █ clean       0..1204      12.0 MiB  4.00 MiB
    ▓ dirty       1204..1900             8.00 MiB
    ╱ unstable    1900..2100                         1.00 MiB
    ░ active      2100..2310                         1.00 MiB

Lengths are bytes; each offset is drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keeplast.model.partition import LogRegion
from keeplast.model.text import format_bytes

if TYPE_CHECKING:
    from keeplast.store.status import TierStatus

CLEAN, DIRTY, ACTIVE, DELETED = "█", "▓", "░", "·"
MARKS = {
    LogRegion.CLEAN: CLEAN, LogRegion.DIRTY: DIRTY, LogRegion.UNCLEANABLE: "▒",
    LogRegion.UNSTABLE: "╱", LogRegion.MARGIN: "╱", LogRegion.ACTIVE: ACTIVE,
    LogRegion.BROKERS_ONLY: ACTIVE,
}  # fmt: skip
"""How the parts of a log are drawn; those that look alike are never in one picture."""
WALL = "│"
WIDTH = 72


class Drawable(Protocol):
    """What gets a place in a picture: offsets ``[base_offset, end_offset)`` and a size."""

    @property
    def base_offset(self) -> int:
        """Return the first offset."""

    @property
    def end_offset(self) -> int:
        """Return the offset after the last."""

    @property
    def size_bytes(self) -> int:
        """Return the size, which a place is proportional to."""


class PicturedSegment(Struct, frozen=True):
    """One segment: offsets ``[base_offset, end_offset)`` and its size."""

    base_offset: int
    end_offset: int
    size_bytes: int


def draw_log(
    segments: Sequence[PicturedSegment],
    *,
    log_start: int | None = None,
    first_dirty: int | None = None,
    regions: Sequence[LogRegion] | None = None,
    width: int = WIDTH,
    screen: int | None = None,
) -> str:
    """Return the picture of ``segments`` (ascending, the last one active).

    ``regions`` has that of each; None where only the checkpoint says what is clean.
    ``first_dirty`` None means that there is no cleaner checkpoint: all that is closed is dirty.
    With ``screen`` bar and offsets stay within so many columns.
    """
    if not segments:
        return "no segments"
    width = width if screen is None else min(width, screen)
    start = segments[0].base_offset if log_start is None else log_start
    dirty = start if first_dirty is None else first_dirty
    has_walls = len(segments) * 2 <= width
    shares = share_cells(segments, width - (len(segments) - 1 if has_walls else 0))
    marks: list[str | None] = [*[None] * (len(segments) - 1), ACTIVE]
    if regions is None:
        closed = segments[:-1]
        parts = [LogRegion.CLEAN if s.base_offset < dirty else LogRegion.DIRTY for s in closed]
        regions = [*parts, LogRegion.ACTIVE]
    else:
        marks = [MARKS[each] for each in regions]
    bar: list[str] = []
    edges: list[tuple[int, int, PicturedSegment]] = []
    for segment, cells, mark in zip(segments, shares, marks, strict=True):
        if edges and has_walls:
            bar.append(WALL)
        edges.append((len(bar), cells, segment))
        bar.extend(_fill(segment, cells, start, dirty, mark))
    lines = ["".join(bar), draw_mark(edges, "log start", start, screen)]
    if first_dirty is not None:
        lines.append(draw_mark(edges, "first dirty offset", first_dirty, screen))
    lines.append(draw_mark(edges, "log end", segments[-1].end_offset, screen))
    return "\n".join([*lines, *_legend(segments, regions)])


def draw_bar(clean_bytes: int, dirty_bytes: int, rest_bytes: int, width: int) -> str:
    """Return a log in one line of ``width`` cells: clean, dirty, and what cannot be cleaned yet.

    What is there gets a cell at least; an empty log is blank.
    """
    parts = ((CLEAN, clean_bytes), (DIRTY, dirty_bytes), (ACTIVE, rest_bytes))
    segments = [PicturedSegment(0, 0, size) for _, size in parts if size > 0]
    marks = [mark for mark, size in parts if size > 0]
    if not segments:
        return " " * width
    cells = share_cells(segments, width)
    return "".join(mark * count for mark, count in zip(marks, cells, strict=True))


def share_cells(segments: Sequence[Drawable], room: int) -> list[int]:
    """Return how many cells each segment gets; at least one while there is room for all."""
    room = max(room, 1)
    total = sum(segment.size_bytes for segment in segments)
    if len(segments) >= room:
        # One cell for each of `room` runs of neighbours.
        return [
            (index + 1) * room // len(segments) - index * room // len(segments)
            for index in range(len(segments))
        ]
    wanted = [segment.size_bytes * room / total if total else 1.0 for segment in segments]
    cells = [max(1, int(share)) for share in wanted]
    while (missing := room - sum(cells)) != 0:
        # The segment with least for its size gets one more; the one with most for it gives one.
        step = 1 if missing > 0 else -1
        index = max(
            (i for i in range(len(cells)) if cells[i] + step >= 1),
            key=lambda i: step * (wanted[i] - cells[i]),
        )
        cells[index] += step
    return cells


def draw_mark(
    edges: Sequence[tuple[int, int, Drawable]], words: str, offset: int, screen: int | None
) -> str:
    """Return the line that says below a bar where ``offset`` is, in ``screen`` columns.

    ``edges`` are the parts of the bar, each with the column where it begins and its width.
    """
    column = _column(edges, offset)
    after = f"{' ' * column}^ {words} {offset}"
    before = f"{words} {offset} ^"
    if screen is None or len(after) <= screen or len(before) > column + 1:
        return after
    return before.rjust(column + 1)


def _column(edges: Sequence[tuple[int, int, Drawable]], offset: int) -> int:
    for column, cells, segment in edges:
        if offset < segment.end_offset:
            span = max(segment.end_offset - segment.base_offset, 1)
            inside = max(offset - segment.base_offset, 0) * cells // span
            return column + min(inside, max(cells - 1, 0))
    column, cells, _ = edges[-1]
    return column + max(cells - 1, 0)


def _fill(
    segment: PicturedSegment, cells: int, start: int, dirty: int, mark: str | None
) -> list[str]:
    """Return the cells of a segment; with ``mark`` None offsets decide between clean and dirty."""
    span = max(segment.end_offset - segment.base_offset, 1)
    marks = []
    for cell in range(cells):
        offset = segment.base_offset + span * cell // max(cells, 1)
        if offset < start:
            marks.append(DELETED)
        elif mark is not None:
            marks.append(mark)
        else:
            marks.append(CLEAN if offset < dirty else DIRTY)
    return marks


_NAMES = {
    LogRegion.CLEAN: "clean (tail)", LogRegion.DIRTY: "dirty (head)", LogRegion.ACTIVE: "active",
}  # fmt: skip
"""What a legend names whether there is any of it or not."""


def _legend(segments: Sequence[PicturedSegment], regions: Sequence[LogRegion]) -> list[str]:
    lines = []
    for region in LogRegion:
        its = [s for s, where in zip(segments, regions, strict=True) if where is region]
        if its or region in _NAMES:
            words = f"{MARKS[region]} {_NAMES.get(region, region.words)}"
            plural = " " if len(its) == 1 else "s"
            size = format_bytes(sum(each.size_bytes for each in its))
            lines.append(f"{words:<16}{len(its):>6,} segment{plural}{size:>12}")
    return lines


LINE = "━"


def draw_tiers(status: TierStatus, *, screen: int | None = None) -> str:
    """Return the picture of a partition, without a trailing newline; see ``draw_log``."""
    from keeplast.store.status import Place

    if not status.segments:
        return "nothing was copied yet"
    segments = status.segments
    lines = [
        (tier.value, [each.place in (tier, Place.BOTH) for each in segments])
        for tier in (Place.REMOTE, Place.LOCAL)
        if status.local_bytes is not None
    ]
    offsets = (
        ("log start", status.log_start), ("first dirty offset", status.first_dirty),
        ("log end", status.log_end),
    )  # fmt: skip
    drawn = draw_places(segments, [MARKS[each.region] for each in segments], lines, offsets, screen)
    return "\n".join([*drawn, *_tier_legend(status), _ratio(status)])


def draw_places(
    segments: Sequence[Drawable],
    marks: Sequence[str],
    lines: Sequence[tuple[str, Sequence[bool]]],
    offsets: Sequence[tuple[str, int]],
    screen: int | None,
) -> list[str]:
    """Return a bar of ``segments``, at least one, and the lines below it, in ``screen`` columns.

    ``marks`` fill each one's cells; each of ``lines`` is a place, and which of them it has.
    """
    width = WIDTH if screen is None else min(WIDTH, screen)
    has_walls = len(segments) * 2 <= width
    shares = share_cells(segments, width - (len(segments) - 1 if has_walls else 0))
    bar, edges = _bar(segments, marks, shares, has_walls=has_walls)
    return [
        bar,
        *(f"{_line(edges, len(bar), has)}  {words}" for words, has in lines),
        *(draw_mark(edges, words, offset, screen) for words, offset in offsets),
    ]


Edge = tuple[int, int, Drawable]
"""A segment with the column where it begins and its width."""


def _bar(
    segments: Sequence[Drawable], marks: Sequence[str], shares: Sequence[int], *, has_walls: bool
) -> tuple[str, list[Edge]]:
    bar, edges = "", []
    for segment, mark, cells in zip(segments, marks, shares, strict=True):
        if bar and has_walls:
            bar += WALL
        edges.append((len(bar), cells, segment))
        bar += mark * cells
    return bar, edges


def _line(edges: Sequence[Edge], width: int, has: Sequence[bool]) -> str:
    """Return a line below the parts that a place ``has``, through the walls between them."""
    cells = [" "] * width
    for (column, count, _), is_there in zip(edges, has, strict=True):
        if is_there:
            first = column - 1 if column and cells[max(column - 2, 0)] == LINE else column
            cells[first : column + count] = LINE * (column + count - first)
    return "".join(cells)


def _tier_legend(status: TierStatus) -> list[str]:
    has_local = status.local_bytes is not None
    heads = ("remote only", "both", "local only") if has_local else ("remote",)
    lines = [f"{'':<36}" + "".join(f"{head:>13}" for head in heads)]
    for region in status.regions:
        sizes = (region.remote_bytes, region.both_bytes, region.local_bytes)[: len(heads)]
        shown = "".join(f"{format_bytes(size) if size else '':>13}" for size in sizes)
        offsets = f"{region.base_offset}..{region.end_offset}"
        lines.append(f"{MARKS[region.name]} {region.name.value:<12}{offsets:<22}{shown}".rstrip())
    return lines


def _ratio(status: TierStatus) -> str:
    words = (
        f"ratio {status.ratio:.3f}: {format_bytes(status.cleanable_bytes)} cleanable next to "
        f"{format_bytes(status.clean_bytes)} clean"
    )
    if status.local_bytes is None:
        return words
    return f"{words}; KIP-1272 counts what is in both tiers twice: {status.kip_ratio:.3f}"
