"""Draws a log as a bar: what is clean, what is dirty, what is still being appended to.

::

    ████████████│██████████│▓▓▓▓▓▓▓▓│▓▓▓▓│░░░░
    ^ log start 0
                           ^ first dirty offset 1204
                                              ^ log end 2310
    █ clean (tail)   2 segments   12.0 MiB
    ▓ dirty (head)   2 segments   8.00 MiB
    ░ active         1 segment    1.00 MiB

Lengths are bytes, but every segment gets a cell, so that none disappears; with more segments than
cells neighbours share them and the walls between segments are left out. A segment that contains the
first dirty offset is split where the offset lies between its ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from keeplast.model.size import format_bytes

CLEAN, DIRTY, ACTIVE, DELETED = "█", "▓", "░", "·"
WALL = "│"
WIDTH = 72


class Drawable(Protocol):
    """What gets a place in a picture: offsets ``[base_offset, end_offset)`` and a size."""

    @property
    def base_offset(self) -> int:
        """Return the first offset."""

    @property
    def end_offset(self) -> int:
        """Return the offset behind the last."""

    @property
    def size_bytes(self) -> int:
        """Return the size, which a place is proportional to."""


@dataclass(frozen=True, slots=True)
class PicturedSegment:
    """One segment: offsets ``[base_offset, end_offset)`` and its size."""

    base_offset: int
    end_offset: int
    size_bytes: int


def draw_log(
    segments: Sequence[PicturedSegment],
    *,
    log_start: int | None = None,
    first_dirty: int | None = None,
    width: int = WIDTH,
    screen: int | None = None,
) -> str:
    """Return the picture of ``segments`` (ascending, the last one active).

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
    bar: list[str] = []
    edges: list[tuple[int, int, PicturedSegment]] = []
    for index, (segment, cells) in enumerate(zip(segments, shares, strict=True)):
        if index and has_walls:
            bar.append(WALL)
        edges.append((len(bar), cells, segment))
        bar.extend(_fill(segment, cells, start, dirty, is_active=index == len(segments) - 1))
    lines = ["".join(bar), draw_mark(edges, "log start", start, screen)]
    if first_dirty is not None:
        lines.append(draw_mark(edges, "first dirty offset", first_dirty, screen))
    lines.append(draw_mark(edges, "log end", segments[-1].end_offset, screen))
    return "\n".join([*lines, *_legend(segments, dirty)])


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
        # Whoever got least for its size gets one more; whoever got most for it gives one.
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
    segment: PicturedSegment, cells: int, start: int, dirty: int, *, is_active: bool
) -> list[str]:
    span = max(segment.end_offset - segment.base_offset, 1)
    marks = []
    for cell in range(cells):
        offset = segment.base_offset + span * cell // max(cells, 1)
        if offset < start:
            marks.append(DELETED)
        elif is_active:
            marks.append(ACTIVE)
        else:
            marks.append(CLEAN if offset < dirty else DIRTY)
    return marks


def _legend(segments: Sequence[PicturedSegment], dirty: int) -> list[str]:
    closed = segments[:-1]
    parts = (
        (f"{CLEAN} clean (tail)", [each for each in closed if each.base_offset < dirty]),
        (f"{DIRTY} dirty (head)", [each for each in closed if each.base_offset >= dirty]),
        (f"{ACTIVE} active", [segments[-1]]),
    )
    return [
        f"{words:<16}{len(members):>6,} segment{' ' if len(members) == 1 else 's'}"
        f"{format_bytes(sum(each.size_bytes for each in members)):>12}"
        for words, members in parts
    ]
