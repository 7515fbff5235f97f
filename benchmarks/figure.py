"""Draws bars as an SVG, so that the docs need no library and no picture that cannot be checked.

One panel a group, one bar a row, all panels on a scale of their own: what is compared stands in one
panel. The same input always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

WIDTH = 760
LABEL_WIDTH = 250
VALUE_WIDTH = 110
BAR_HEIGHT = 18
BAR_STEP = 24
TITLE_HEIGHT = 34
MARGIN = 12
FONT = "font-family='system-ui, sans-serif' font-size='13'"
OURS, THEIRS, TEXT = "#2a6f97", "#b8b8b8", "#777777"
"""Grey for others; the text must be readable on a dark page too."""


class Bar(Struct, frozen=True):
    """One row of a panel; ``text`` is written next to it."""

    label: str
    value: float
    text: str
    is_ours: bool


class Panel(Struct, frozen=True):
    """Bars that may be compared with each other."""

    title: str
    bars: tuple[Bar, ...]


def draw(panels: Sequence[Panel]) -> str:
    """Return the panels, one below the other, as an SVG document."""
    parts: list[str] = []
    top = MARGIN
    for panel in panels:
        parts += _panel(panel, top)
        top += TITLE_HEIGHT + BAR_STEP * len(panel.bars) + MARGIN
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{top}' "
        f"viewBox='0 0 {WIDTH} {top}' role='img'>"
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _panel(panel: Panel, top: int) -> list[str]:
    parts = [_text(MARGIN, top + 18, panel.title, weight="bold")]
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH - MARGIN
    greatest = max((bar.value for bar in panel.bars), default=0.0)
    for number, bar in enumerate(panel.bars):
        y = top + TITLE_HEIGHT + BAR_STEP * number
        width = room * bar.value / greatest if greatest > 0 else 0.0
        middle = y + BAR_HEIGHT - 5
        parts.append(_text(MARGIN, middle, bar.label))
        parts.append(
            f"<rect x='{LABEL_WIDTH}' y='{y}' width='{width:.1f}' height='{BAR_HEIGHT}' "
            f"fill='{OURS if bar.is_ours else THEIRS}'/>"
        )
        parts.append(_text(LABEL_WIDTH + width + 6, middle, bar.text))
    return parts


def _text(x: float, y: float, text: str, *, weight: str = "normal") -> str:
    return (
        f"<text x='{x:.1f}' y='{y}' {FONT} font-weight='{weight}' fill='{TEXT}'>"
        f"{escape(text)}</text>"
    )
