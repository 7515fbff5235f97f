"""The partitions of ``keeplast status`` as a table that stays one line a partition.

Where the screen is narrow the picture becomes shorter, and then columns are left out: empty ones,
and then those first that the picture or another column nearly says, which is told. Only the name of
a partition may fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.picture import draw_bar
from keeplast.cli.show.rows import new_table
from keeplast.cli.show.table_fit import NARROW_GAP, WORD_WIDTH_MAX
from keeplast.model.duration import relative_text
from keeplast.model.escapes import printable
from keeplast.model.size import format_bytes
from keeplast.service.status import ErasedBy, PartitionStatus
from keeplast.service.status_words import state_words

BAR_WIDTH, NARROW_BAR_WIDTH = 16, 8
NAME, STATE, BAR = "partition", "=state", "=log"
CLEAN, CLEANABLE, NOT_YET = ">clean", ">cleanable", ">not yet"
RATIO, FIRST_DIRTY = ">ratio", ">first dirty"
DEADLINE, ERASED_BY = "=deadline", "=erased by"
HEADINGS = (
    NAME, STATE, BAR, CLEAN, CLEANABLE, NOT_YET, RATIO, FIRST_DIRTY, DEADLINE, ERASED_BY,
)  # fmt: skip
LEFT_OUT_FIRST = (FIRST_DIRTY, NOT_YET, CLEAN, RATIO, DEADLINE)


@dataclass(frozen=True, slots=True)
class StatusTable:
    """The table, and the headings of what has no room in it."""

    table: Table
    left_out: tuple[str, ...]


def status_table(shown: Sequence[PartitionStatus], now_ms: int, width: int) -> StatusTable:
    """Return a row for each of ``shown`` that fits a screen of ``width`` columns."""
    rows = [_cells(each, now_ms) for each in shown]
    reaches = {
        heading: max(cell_len(each) for each in (heading.lstrip(">="), *(r[heading] for r in rows)))
        for heading in HEADINGS
        if heading != BAR
    }
    # A long name folds before anything is left out for it.
    reaches[NAME] = min(reaches[NAME], WORD_WIDTH_MAX)
    empty = [each for each in LEFT_OUT_FIRST if not any(row[each] for row in rows)]
    told = [each for each in LEFT_OUT_FIRST if each not in empty]
    headings = list(HEADINGS)
    bar_width = _room_for_bar(headings, reaches, width)
    for expendable in (*empty, *told):
        if bar_width >= NARROW_BAR_WIDTH:
            break
        headings.remove(expendable)
        bar_width = _room_for_bar(headings, reaches, width)
    table = new_table(*headings)
    for each, row in zip(shown, rows, strict=True):
        row[BAR] = _bar(each, max(bar_width, NARROW_BAR_WIDTH))
        table.add_row(*(Text(row[heading]) for heading in headings))
    lost = [each for each in HEADINGS if each in told and each not in headings]
    left_out = [heading.lstrip(">=") for heading in lost]
    return StatusTable(table, tuple(left_out))


def _room_for_bar(headings: Sequence[str], reaches: Mapping[str, int], width: int) -> int:
    """Return how many of ``width`` columns are left beside the texts; negative is too few."""
    texts = sum(reaches[each] for each in headings if each != BAR)
    return min(BAR_WIDTH, width - texts - NARROW_GAP * (len(headings) - 1))


def _cells(each: PartitionStatus, now_ms: int) -> dict[str, str]:
    """Return the text below each heading but the picture's."""
    cells = dict.fromkeys(HEADINGS, "") | {
        NAME: printable(str(each.partition)),
        STATE: state_words(each.state),
        ERASED_BY: _erased_cell(each.erased_by, now_ms),
    }
    log = each.log
    if log is None:
        return cells
    return cells | {
        CLEAN: format_bytes(log.figures.cleanable.clean_bytes),
        CLEANABLE: format_bytes(log.figures.cleanable.cleanable_bytes),
        NOT_YET: format_bytes(log.figures.uncleanable_bytes),
        RATIO: f"{log.figures.cleanable.ratio:.3f}",
        FIRST_DIRTY: str(log.figures.first_dirty),
        DEADLINE: "" if log.deadline_ms is None else relative_text(log.deadline_ms, now_ms),
    }


def _bar(each: PartitionStatus, width: int) -> str:
    if each.log is None:
        return ""
    found = each.log.figures.cleanable
    return draw_bar(
        found.clean_bytes, found.cleanable_bytes, each.log.figures.uncleanable_bytes, width
    )


def _erased_cell(erased: ErasedBy | None, now_ms: int) -> str:
    if erased is None:
        return ""
    if erased.is_gone:
        return "nothing left"
    if erased.is_unknown:
        return "?"
    return "no date" if erased.by_ms is None else relative_text(erased.by_ms, now_ms)
