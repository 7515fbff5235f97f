"""Gives a table the width of the screen: which column is how wide, so that no letter is lost.

A column is as wide as its widest cell where all of them fit. Otherwise numbers, pictures and times
stay whole (``no_wrap``), gaps become narrow, and texts fold, the widest first: between words, and
inside a word only where one is longer than :data:`WORD_WIDTH_MAX`. A screen that is too small even
for that gets a table that is wider than it, which the screen folds.

rich has a rule of its own, which takes from the widest column first whatever stands in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

WORD_WIDTH_MAX = 24
"""A longer word, such as a topic's name or a key, may be cut into lines."""
GAP, NARROW_GAP = 2, 1


@dataclass(frozen=True, slots=True)
class Reach:
    """How wide a column must be, and how wide it is when nothing in it folds."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table whose columns have their widths, without blanks at line ends.

    A line that fits is put together here: rich takes half a millisecond for a row, and a data
    directory has thousands. rich folds what does not fit.
    """

    table: Table
    widths: tuple[int, ...]
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self.table.columns
        style = self.table.header_style or ""
        headings = self._fold_row([Text(str(each.header), style) for each in columns], console)
        height = max(map(len, headings), default=0)
        yield from self._lines(
            [[*[""] * (height - len(each)), *each] for each in headings], console
        )
        for row in zip(*(each.cells for each in columns), strict=True):
            yield from self._lines(self._fold_row([_text(cell) for cell in row], console), console)

    def _fold_row(self, row: Sequence[str | Text], console: Console) -> list[list[str | Text]]:
        return [_fold(cell, width, console) for cell, width in zip(row, self.widths, strict=True)]

    def _lines(self, folded: Sequence[list[str | Text]], console: Console) -> Iterable[Segment]:
        for line in itertools.zip_longest(*folded, fillvalue=""):
            blanks, text = 0, ""
            for piece, width, column in zip(line, self.widths, self.table.columns, strict=True):
                taken = _width(piece)
                before = width - taken if column.justify == "right" else 0
                if taken:
                    text += " " * (blanks + before)
                    blanks = 0
                    if isinstance(piece, str):
                        text += piece
                    else:
                        yield Segment(text)
                        yield from piece.render(console)
                        text = ""
                else:
                    before = 0
                blanks += width - taken - before + self.gap
            yield Segment(text + "\n")


def fit_table(table: Table, width: int) -> FittedTable:
    """Give the columns of ``table`` widths for a screen of ``width``."""
    reaches = [_reach(column) for column in table.columns]
    gap = find_gap(reaches, width)
    return FittedTable(table, tuple(share_width(reaches, width - gap * (len(reaches) - 1))), gap)


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


def _reach(column: Column) -> Reach:
    most = word = 0
    for cell in (column.header, *column.cells):
        text = _text(cell)
        plain = text if isinstance(text, str) else text.plain
        most = max(most, *map(_width, plain.splitlines() or [""]))
        if not column.no_wrap:
            word = max(word, *map(_width, plain.split() or [""]))
    return Reach(most if column.no_wrap else min(word, WORD_WIDTH_MAX), most)


def _text(cell: object) -> str | Text:
    """Return a cell as letters alone, or with its styles where it has any."""
    if isinstance(cell, Text) and (cell.spans or cell.style):
        return cell
    return str(cell)


def _width(text: str | Text) -> int:
    if isinstance(text, str):
        return len(text) if text.isascii() else cell_len(text)
    return text.cell_len


def _fold(cell: str | Text, width: int, console: Console) -> list[str | Text]:
    """Return the lines of a cell, none of them wider than ``width`` nor with blanks at its end."""
    plain = cell if isinstance(cell, str) else cell.plain
    if _width(plain) <= width and plain.isprintable() and not plain.endswith(" "):
        return [cell]
    text = Text(cell) if isinstance(cell, str) else cell
    lines = text.wrap(console, width, overflow="fold")
    for line in lines:
        line.rstrip()
    return [line.plain if isinstance(cell, str) else line for line in lines]
