"""The status of a place for people.

A table has the most urgent partitions, one line a partition. There is a sentence for each, and all
that is known of a few of them. Above it a summary covers everything, so that thousands of
partitions stay readable.

Where the screen is narrow the picture becomes shorter, and then columns are left out, which is
said. Empty ones go first, then those that the picture or another column nearly says. Only the name
of a partition may fold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.output import NARROW_GAP, WORD_WIDTH_MAX
from keeplast.cli.show.picture import PicturedSegment, draw_bar, draw_log
from keeplast.cli.show.tables import new_table
from keeplast.inspect.status import ErasedBy, LogStatus
from keeplast.model.text import format_bytes, format_count, printable, relative_text
from keeplast.service.status import PartitionStatus, PlaceStatus, State
from keeplast.service.status_words import (
    detail_lines,
    release_command,
    release_words,
    shown_state,
    state_words,
    status_summary,
)

BAR_WIDTH, NARROW_BAR_WIDTH = 16, 8
NAME, STATE, BAR = "partition", "=state", "=log"
CLEAN, CLEANABLE, NOT_YET = ">clean", ">cleanable", ">not yet"
RATIO, FIRST_DIRTY = ">ratio", ">first dirty"
DEADLINE, ERASED_BY = "=deadline", "=erased by"
HEADINGS = (
    NAME, STATE, BAR, CLEAN, CLEANABLE, NOT_YET, RATIO, FIRST_DIRTY, DEADLINE, ERASED_BY,
)  # fmt: skip
LEFT_OUT_FIRST = (FIRST_DIRTY, NOT_YET, CLEAN, RATIO, DEADLINE)


class StatusTable(Struct, frozen=True):
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
    filled = [each for each in LEFT_OUT_FIRST if each not in empty]
    headings = list(HEADINGS)
    bar_width = _room_for_bar(headings, reaches, width)
    for expendable in (*empty, *filled):
        if bar_width >= NARROW_BAR_WIDTH:
            break
        headings.remove(expendable)
        bar_width = _room_for_bar(headings, reaches, width)
    table = new_table(*headings)
    for each, row in zip(shown, rows, strict=True):
        row[BAR] = _bar(each, max(bar_width, NARROW_BAR_WIDTH))
        table.add_row(*(Text(row[heading]) for heading in headings))
    lost = [each for each in HEADINGS if each in filled and each not in headings]
    left_out = [heading.lstrip(">=") for heading in lost]
    return StatusTable(table, tuple(left_out))


def _room_for_bar(headings: Sequence[str], reaches: Mapping[str, int], width: int) -> int:
    """Return how many of ``width`` columns are left next to the texts; negative is too few."""
    texts = sum(reaches[each] for each in headings if each != BAR)
    return min(BAR_WIDTH, width - texts - NARROW_GAP * (len(headings) - 1))


def _cells(each: PartitionStatus, now_ms: int) -> dict[str, str]:
    """Return the text below each heading but the picture's."""
    cells = dict.fromkeys(HEADINGS, "") | {
        NAME: printable(str(each.partition)),
        STATE: shown_state(each),
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


DETAILS_MAX = 3
"""So many partitions are shown in full without being asked."""

MEANINGS = {
    State.SET_ASIDE: "a damaged file, or a defect of keeplast; until files change, or run --retry",
    State.INTERRUPTED: "a swap was cut off; keeplast clean, or the broker's start, ends it",
    State.FAILING: "its last round failed, and it is tried again",
    State.EXPIRED: "only tombstones and markers are left to go, and their time has come",
}


def render_status(
    status: PlaceStatus, address: str, *, limit: int | None, has_details: bool, width: int
) -> list[RenderableType]:
    """Return what a person is shown on ``width`` columns; ``limit`` None shows all partitions."""
    shown = status.partitions if limit is None else status.partitions[:limit]
    has_details = has_details or len(shown) <= DETAILS_MAX
    now_ms, left = status.now_ms, len(status.partitions) - len(shown)
    parts: list[RenderableType] = [Text(printable(status_summary(status, address)))]
    parts += status.notes()
    if any(each.attached is not None for each in shown):
        from keeplast.cli.show.attach import cluster_parts

        parts += cluster_parts(shown, now_ms, width, has_details=has_details)
    elif shown:
        parts += _table_parts(shown, now_ms, width)
    if left:
        parts += [f"… and {format_count(left)} less urgent; --all or --limit shows more", ""]
    legend = _legend({each.state for each in shown})
    parts += [legend, ""] if legend else []
    for each in shown:
        if each.stored is not None and has_details and each is not shown[0]:
            parts.append("")
        if each.attached is None:
            parts += _own_parts(each, address, now_ms, width, has_details=has_details)
    if len(shown) == 1 and shown[0].log is not None:
        parts += ["", Text(_picture(shown[0].log, width))]
    return parts


def _table_parts(
    shown: Sequence[PartitionStatus], now_ms: int, width: int
) -> Iterator[RenderableType]:
    if any(each.stored is not None for each in shown):
        from keeplast.cli.show.tier_status import store_table

        yield from ("", store_table(shown), "")
        return
    found = status_table(shown, now_ms, width)
    yield from ("", found.table, "")
    if found.left_out:
        yield f"no room for: {', '.join(found.left_out)}; a wider screen or --json has it"
        yield ""


def _own_parts(
    each: PartitionStatus, address: str, now_ms: int, width: int, *, has_details: bool
) -> Iterator[RenderableType]:
    """Yield why a partition is in its state and, with details, all that is known of it."""
    yield Text(printable(f"{each.partition}: {each.reason}"))
    if each.hold is not None:
        command = release_command(each.hold, address)
        yield Text(printable(f"  {release_words(each.hold)}: {command}"))
    if not has_details:
        return
    if each.stored is None:
        lines = detail_lines(each, now_ms)
    else:
        from keeplast.cli.show.tier_status import stored_lines

        lines = stored_lines(each, each.stored, now_ms)
    for line in lines:
        yield Text(printable(f"  {line}"))
    if each.stored is not None:
        from keeplast.cli.show.picture import draw_tiers

        yield from ("", draw_tiers(each.stored, screen=width))


def _legend(states: Collection[State]) -> str:
    """Say what those of the states mean that neither their names nor the reasons explain."""
    return "; ".join(
        f"{state_words(state)}: {words}" for state, words in MEANINGS.items() if state in states
    )


def _picture(log: LogStatus, width: int) -> str:
    return draw_log(
        [
            PicturedSegment(segment.base_offset, end, segment.size_bytes)
            for segment, end in zip(log.segments, log.ends, strict=True)
        ],
        regions=log.regions,
        log_start=log.log_start,
        first_dirty=log.figures.first_dirty,
        screen=width,
    )
