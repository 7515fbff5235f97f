"""The status of a directory for people.

A table of the most urgent partitions, a sentence for each, and all that is known of a few of them;
above it a summary of everything, so that thousands of partitions stay readable.
"""

from __future__ import annotations

from collections.abc import Collection

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.picture import PicturedSegment, draw_log
from keeplast.cli.show.status_table import status_table
from keeplast.inspect.status import LogStatus
from keeplast.model.escapes import printable
from keeplast.model.size import format_count
from keeplast.service.status import DirectoryStatus, State
from keeplast.service.status_words import detail_lines, state_words, status_summary

DETAILS_MAX = 3
"""So many partitions are told of in full without being asked."""

MEANINGS = {
    State.SET_ASIDE: "a damaged file, or a defect of keeplast; until files change, or run --retry",
    State.INTERRUPTED: "a swap was cut off; keeplast clean, or the broker's start, ends it",
    State.FAILING: "its last round failed, and it is tried again",
    State.EXPIRED: "only tombstones and markers are left to go, and their time has come",
}


def render_status(
    status: DirectoryStatus, *, limit: int | None, has_details: bool, width: int
) -> list[RenderableType]:
    """Return what a person is shown on ``width`` columns; ``limit`` None shows all partitions."""
    shown = status.partitions if limit is None else status.partitions[:limit]
    parts: list[RenderableType] = [Text(printable(status_summary(status)))]
    if status.is_locked:
        parts.append(
            "A broker or another keeplast holds the directory: what is read may change meanwhile."
        )
    found = status_table(shown, status.now_ms, width)
    parts += ["", found.table, ""]
    if found.left_out:
        parts += [f"no room for: {', '.join(found.left_out)}; a wider screen or --json has it", ""]
    left = len(status.partitions) - len(shown)
    if left:
        parts += [f"… and {format_count(left)} less urgent; --all or --limit shows more", ""]
    legend = _legend({each.state for each in shown})
    parts += [legend, ""] if legend else []
    for each in shown:
        parts.append(Text(printable(f"{each.partition}: {each.reason}")))
        if has_details or len(shown) <= DETAILS_MAX:
            parts += [Text(printable(f"  {line}")) for line in detail_lines(each, status.now_ms)]
    if len(shown) == 1 and shown[0].log is not None:
        parts += ["", Text(_picture(shown[0].log, width))]
    return parts


def _legend(states: Collection[State]) -> str:
    """Say what those of the states mean that neither their names nor the reasons explain."""
    return "; ".join(
        f"{state_words(state)}: {words}" for state, words in MEANINGS.items() if state in states
    )


def _picture(log: LogStatus, width: int) -> str:
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end]
    return draw_log(
        [
            PicturedSegment(segment.base_offset, end, segment.size_bytes)
            for segment, end in zip(log.segments, ends, strict=True)
        ],
        log_start=log.log_start,
        first_dirty=log.figures.first_dirty,
        screen=width,
    )
