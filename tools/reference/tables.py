"""Tables whose cells stay short: what does not fit stands below the table.

The rule that a reader must not break: no cell has more than :data:`CELL_CHARS_MAX` characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tools.reference.text import cell

CELL_CHARS_MAX = 160
SENTENCE_END = re.compile(r"(?<=[.:;]) (?=[A-Za-z0-9`-])")


def shortened(text: str) -> tuple[str, str]:
    """Return the first sentences of a text that fit a cell, and the rest; ValueError for none."""
    if len(text) <= CELL_CHARS_MAX:
        return text, ""
    ends = [each.start() for each in SENTENCE_END.finditer(text) if each.start() < CELL_CHARS_MAX]
    if not ends:
        raise ValueError(f"no part of the text fits a cell; write shorter sentences. text={text!r}")
    first = text[: ends[-1]].rstrip(":;")
    rest = text[ends[-1] + 1 :]
    return first if first.endswith(".") else f"{first}.", rest


def described(heads: Sequence[str], rows: Iterable[Sequence[str]], *, lead: str = "") -> str:
    """Return a table whose last column is text, and below it a point for each that is longer.

    The first cell of a row names it; ``lead`` begins each point.
    """
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    notes = []
    for *cells, text in rows:
        short, rest = shortened(text)
        lines.append(f"| {' | '.join(cell(each) for each in (*cells, short))} |")
        point = f"{lead}{rest}" if lead else rest[:1].upper() + rest[1:]
        notes += [f"* {cells[0]}: {point.rstrip('.')}."] if rest else []
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"
