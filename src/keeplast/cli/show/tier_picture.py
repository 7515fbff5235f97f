"""Draws a log that lies in two tiers: what each part is to the cleaner, and where it is.

::

    ████████████│██████│▓▓▓▓▓▓▓▓│╱╱╱╱│░░░░
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━              remote
                 ━━━━━━━━━━━━━━━━━━━━━━━━━    local
    ^ log start 0
                        ^ first dirty offset 1204
                                         ^ log end 2310
                            remote only      both  local only
    █ cleaned     0..1204      12.0 MiB  4.00 MiB
    ▓ dirty       1204..1900             8.00 MiB
    ╱ unstable    1900..2100                         1.00 MiB
    ░ active      2100..2310                         1.00 MiB

Lengths are bytes, as in :mod:`~keeplast.cli.show.picture`; each offset is drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.cli.show.picture import (
    ACTIVE,
    CLEAN,
    DIRTY,
    WALL,
    WIDTH,
    Drawable,
    draw_mark,
    share_cells,
)
from keeplast.model.size import format_bytes
from keeplast.store.status import Place, RegionName, TierStatus

MARKS = {
    RegionName.CLEANED: CLEAN,
    RegionName.DIRTY: DIRTY,
    RegionName.UNCLEANABLE: "▒",
    RegionName.UNSTABLE: "╱",
    RegionName.ACTIVE: ACTIVE,
}
LINE = "━"


def draw_tiers(status: TierStatus, *, screen: int | None = None) -> str:
    """Return the picture of a partition, without a trailing newline; see ``draw_log``."""
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
    return "\n".join([*drawn, *_legend(status), _ratio(status)])


def draw_places(
    segments: Sequence[Drawable],
    marks: Sequence[str],
    lines: Sequence[tuple[str, Sequence[bool]]],
    offsets: Sequence[tuple[str, int]],
    screen: int | None,
) -> list[str]:
    """Return a bar of ``segments``, at least one, and what is told below it, in ``screen`` columns.

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


def _legend(status: TierStatus) -> list[str]:
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
        f"ratio {status.ratio:.3f}: {format_bytes(status.cleanable_bytes)} cleanable beside "
        f"{format_bytes(status.clean_bytes)} clean"
    )
    if status.local_bytes is None:
        return words
    return f"{words}; KIP-1272 counts what is in both tiers twice: {status.kip_ratio:.3f}"
