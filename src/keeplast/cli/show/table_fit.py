"""Gives a table the width of the screen: which column is how wide, so that no letter is lost.

A column is as wide as its widest cell where all of them fit. Otherwise numbers, pictures and times
stay whole (``no_wrap``), gaps become narrow, and texts fold, the widest first: between words, and
inside a word only where one is longer than :data:`WORD_WIDTH_MAX`. A screen that is too small even
for that gets a table that is wider than it, which the screen folds.

rich has a rule of its own, which takes from the widest column first whatever stands in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table

WORD_WIDTH_MAX = 24
"""A longer word, such as a topic's name or a key, may be cut into lines."""
GAP, NARROW_GAP = 2, 1
UNBOUNDED = 10_000
"""More columns than any table needs."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How wide a column must be, and how wide it is when nothing in it folds."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table whose columns have their widths: ``width`` in all, without blanks at line ends."""

    table: Table
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=UNBOUNDED)
        for line in console.render_lines(self.table, wide, pad=False):
            yield from _without_blanks(line)
            yield Segment.line()


def fit_table(table: Table, console: Console, width: int) -> FittedTable:
    """Set the widths of the columns of ``table`` for a screen of ``width``."""
    reaches = _reaches(table, console)
    gap = find_gap(reaches, width)
    widths = share_width(reaches, width - gap * (len(reaches) - 1))
    for column, chosen in zip(table.columns, widths, strict=True):
        column.width = chosen
    table.padding = (0, gap, 0, 0)
    return FittedTable(table, sum(widths) + gap * len(widths))


def find_gap(reaches: Sequence[Reach], width: int) -> int:
    """Return how many blanks stand between columns: fewer where that keeps texts or words whole."""
    gaps = len(reaches) - 1
    for wanted in (sum(each.most for each in reaches), sum(each.least for each in reaches)):
        for gap in (GAP, NARROW_GAP):
            if wanted + gap * gaps <= width:
                return gap
    return NARROW_GAP


def share_width(reaches: Sequence[Reach], width: int) -> list[int]:
    """Return the width of each column; in all ``width`` at the most, unless the least is more.

    What is left over the least goes to the narrowest columns first, so that a long text gives way
    to many short ones.
    """
    widths = [each.least for each in reaches]
    spare = max(width - sum(widths), 0)
    growing = [index for index, each in enumerate(reaches) if each.most > each.least]
    while spare and growing:
        index = min(growing, key=lambda each: widths[each])
        widths[index] += 1
        spare -= 1
        if widths[index] == reaches[index].most:
            growing.remove(index)
    return widths


def _reaches(table: Table, console: Console) -> list[Reach]:
    options = console.options.update(width=UNBOUNDED)
    reaches = []
    for column in table.columns:
        found = [console.measure(each, options=options) for each in (column.header, *column.cells)]
        most = max(each.maximum for each in found)
        word = max(each.minimum for each in found)
        least = most if column.no_wrap else min(word, WORD_WIDTH_MAX)
        reaches.append(Reach(least, most))
    return reaches


def _without_blanks(line: Sequence[Segment]) -> list[Segment]:
    """Return a line without the blanks at its end."""
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        last = kept[-1]
        kept[-1] = Segment(last.text.rstrip(), last.style, last.control)
    return kept
