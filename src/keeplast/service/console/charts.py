"""What the page of time shows: a place's history, or one topic's, as charts and as a table. Pure.

Each chart has a sentence that says what it shows: whether it is getting better is read, not
guessed. The lines are of slots, and each is the greatest of its slot; bars and the table are of
hours, days or weeks. Where nothing was measured a line has a gap; where no round ended a bar is 0.
Below the axis lies what rounds added. Shapes are in a box of as many units as a span has slots, and
100 high: templates stretch it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from keeplast.clock import time_text
from keeplast.model.text import format_bytes, format_count, format_counted
from keeplast.service.history import (
    DIRTY,
    FREED,
    LONGEST,
    NAMES,
    OVERDUE,
    ROUNDS,
    SECONDS,
    SIZE,
    Figures,
    Series,
    Span,
)
from keeplast.service.status_words import seconds_text

HEIGHT = 100
BAR_MIN = 1.5
"""So high is a bar at least that is not 0."""
STEPS = tuple(
    step * power
    for power in (1, 10, 100)
    for step in (1, 1.5, 2, 3, 4, 6, 8)
    if step * power < 1000
)
_BYTES = tuple(1024.0**power for power in range(6))
_SECONDS = (0.1, 1.0, 60.0, 3600.0, 86_400.0)
_FIGURES: dict[int, tuple[str, Callable[[float], str], tuple[float, ...]]] = {
    SIZE: ("Size", lambda value: format_bytes(round(value)), _BYTES),
    DIRTY: ("Dirty ratio", lambda value: f"{100 * value:.3g} %", (0.01,)),
    FREED: ("Freed by rounds", lambda value: format_bytes(round(value)), _BYTES),
    LONGEST: ("Longest round", lambda value: seconds_text(value) if value else "0 s", _SECONDS),
    OVERDUE: ("Most overdue log", lambda value: seconds_text(value) if value else "0 s", _SECONDS),
    ROUNDS: ("Rounds", lambda value: format_count(int(value)), (1.0,)),
    SECONDS: ("All rounds together", lambda value: seconds_text(value), _SECONDS),
}  # fmt: skip
"""What a figure is called, its words, and the units of its axis."""
_SHOWN = {"24h": slice(11, 16), "30d": slice(5, 10), "1y": slice(10)}
"""What of a time says when a bar begins, UTC."""
_TICKS = {"24h": (6, 0), "30d": (7, 3), "1y": (13, 0)}
"""A tick stands at each so many bars since 1970, and so many before: at 0, 6, 12 and 18 o'clock, at
each Monday, and at each quarter of 52 weeks.
"""
CHANGE_SHARE = 0.1
CHANGE_MIN = {OVERDUE: 900.0, DIRTY: 0.05}
"""What changes by less than a tenth of its first value, or than this, is as it was: a slot's time
in seconds, a ratio.
"""
DRAWN = 5
SPARKS = 3


class Chart(Struct, frozen=True):
    """One figure: its sentence, its shapes, the ends of its axis, and what it was at each bar.

    ``begins`` say when each bar begins, UTC, ``ticks`` which of them the axis names: those at round
    times. ``bars`` are height and upper end of each, none of what is a line. The axis is at the
    height ``zero`` from above; ``low`` is empty where it is the lower end.
    """

    span: Span
    ticks: tuple[int, ...]
    begins: tuple[str, ...]
    name: str
    sentence: str
    line: str
    bars: tuple[tuple[float, float], ...]
    zero: float
    top: str
    low: str
    words: tuple[str, ...]


def charts_of(series: Series, columns: Iterable[int] = _FIGURES) -> tuple[Chart, ...]:
    """Return how these figures of a series are shown.

    Of all of them :data:`DRAWN` are drawn, and all are in the table.
    """
    bar_ms, bars = series.span.slot_ms * series.span.bar_slots, series.bars
    shown = _SHOWN[series.span.name]
    begins = tuple(time_text(series.first_ms + at * bar_ms)[shown] for at in range(len(bars)))
    step, before = _TICKS[series.span.name]
    first = series.first_ms // bar_ms + before
    ticks = tuple(at for at in range(len(bars)) if (first + at) % step == 0)
    return tuple(_chart(column, series, bars, begins, ticks) for column in columns)


def sparks_of(series: Series) -> list[Chart]:
    """Return the charts that a list's head has room for, without those that would be empty."""
    return [
        each
        for each in charts_of(series, [*_FIGURES][:SPARKS])
        if each.line or any(h for h, _ in each.bars)
    ]


def verdict_of(series: Series) -> str:
    """Say in a sentence whether it is getting better: by how late the most overdue log is.

    Where no log has a deadline the dirty ratio counts. What changes less than :data:`CHANGE_SHARE`
    and :data:`CHANGE_MIN` is as it was.
    """
    column = DIRTY if np.isnan(series.slots[:, OVERDUE]).all() else OVERDUE
    values = [each for each in series.slots[:, column].tolist() if not math.isnan(each)]
    (chart,) = charts_of(series, [column])
    if not values:
        return chart.sentence
    change = values[-1] - values[0]
    word = "late, and no better" if column == OVERDUE and values[-1] else "keeping up"
    if abs(change) > max(CHANGE_MIN[column], CHANGE_SHARE * values[0]):
        word = "getting worse" if change > 0 else "getting better"
    return f"{chart.sentence[:-1]}: {word}."


def _text(column: int, value: float) -> str:
    return "not measured" if math.isnan(value) else _FIGURES[column][1](value)


def _axis_end(column: int, value: float) -> float:
    """Return a round figure from which on an axis has room for a value."""
    units = _FIGURES[column][2]
    unit = max((each for each in units if each <= value), default=units[0])
    return next((each * unit for each in STEPS if each * unit >= value), value)


def _chart(
    column: int, series: Series, bars: Figures, begins: tuple[str, ...], ticks: tuple[int, ...]
) -> Chart:
    is_line = column < LONGEST
    values = (series.slots if is_line else bars)[:, column].tolist()
    known = [0.0, *(each for each in values if not math.isnan(each))]
    top = _axis_end(column, max(known))
    low = _axis_end(column, -min(known)) if min(known) < 0 else 0.0
    scale = HEIGHT / (top + low)
    heights = [each and math.copysign(max(abs(each * scale), BAR_MIN), each) for each in values]
    return Chart(
        series.span, ticks, begins, _FIGURES[column][0], _sentence(column, series, bars, begins),
        _line([each * scale for each in values]) if is_line else "",
        tuple(
            (round(abs(each), 1), round(top * scale - max(each, 0), 1))
            for each in heights
            if not is_line and not math.isnan(each)
        ),
        round(top * scale, 1), _text(column, top), _text(column, -low) if low else "",
        tuple(_text(column, each) for each in bars[:, column].tolist()),
    )  # fmt: skip


def _line(heights: Sequence[float]) -> str:
    """Return the steps of what was measured; a gap ends one run of them."""
    path, is_on = [], False
    for at, height in enumerate(heights):
        if not math.isnan(height):
            path.append(f"{'V' if is_on else f'M{at} '}{HEIGHT - height:.1f}H{at + 1}")
        is_on = not math.isnan(height)
    return "".join(path)


def _sentence(column: int, series: Series, bars: Figures, begins: Sequence[str]) -> str:
    """Say what a chart shows; of a line its first value and its last one."""
    count, during = int(np.nan_to_num(bars[:, ROUNDS]).sum()), f"in {series.span.words}"
    values = bars[:, column] if column > OVERDUE else series.slots[:, column]
    known = np.flatnonzero(~np.isnan(values))
    if not known.size:
        why = "no log has a deadline, or " if column == OVERDUE else ""
        return f"Not known {during}: {why}nothing was measured."
    rounds, total = format_counted(count, "round"), float(bars[:, column].sum())
    if column > OVERDUE and not count:
        return f"No round ended {during}."
    if column == FREED:
        did = "freed" if total >= 0 else "made logs larger by"
        return f"{rounds} {did} {_text(column, abs(total))} {during}."
    if column > OVERDUE:
        longest, took = (
            _text(LONGEST, each) for each in (bars[:, LONGEST].max(), bars[:, SECONDS].sum())
        )
        return f"The longest round took {longest}; {rounds} took {took} together, {during}."
    if known[0] >= 2 * series.span.bar_slots:
        during = f"since {begins[known[0] // series.span.bar_slots]}"
    first, last = (_text(column, float(values[known[at]])) for at in (0, -1))
    subject, *moves = {
        SIZE: ("The size", "grew", "shrank"),
        DIRTY: ("The dirty ratio", "rose", "fell"),
        OVERDUE: ("The most overdue log", "went", "came down"),
    }[column]  # fmt: skip
    if column == OVERDUE and not np.nanmax(values):
        return f"Nothing was overdue {during}."
    if first == last:
        return f"{subject} stayed at {last} {during}."
    is_less = bool(values[known[0]] > values[known[-1]])
    return f"{subject} {moves[is_less]} from {first} to {last} {during}."


def time_document(topic: str, series: Series) -> dict[str, Any]:
    """Return the document of the page; what was not measured is null."""
    bars = [
        {name: None if math.isnan(each) else each for name, each in zip(NAMES, bar, strict=True)}
        for bar in series.bars.tolist()
    ]
    return {
        "topic": topic or None, "span": series.span.name, "first_ms": series.first_ms,
        "bar_ms": series.span.slot_ms * series.span.bar_slots, "bars": bars,
    }  # fmt: skip
