"""Spans of time as people write them on a command line: a number, or one with a unit.

A bare number counts in the unit of the option's name, as settings of Kafka's do.
"""

from __future__ import annotations

import typer

from keeplast.model.duration import SPAN_MS_MAX, find_span

SPAN_WORDS = "90s, 30min, 12h or 7d"


def span_ms(text: str) -> int:
    """Return the milliseconds that ``text`` means, at least 0; for Typer, a mistake is of usage."""
    return _read_span(text, "milliseconds", 1)


def span_seconds(text: str) -> int:
    """Return the whole seconds that ``text`` means, at least 1; for Typer as :func:`span_ms`."""
    seconds, rest = divmod(_read_span(text, "seconds", 1000), 1000)
    if rest or not seconds:
        raise typer.BadParameter(f"not a number of whole seconds; give at least 1. value={text!r}")
    return seconds


def _read_span(text: str, unit: str, unit_ms: int) -> int:
    span = find_span(text, unit_ms)
    if span is None:
        raise typer.BadParameter(
            f"not a span of time; write {unit}, or {SPAN_WORDS}. value={text!r}"
        )
    if span > SPAN_MS_MAX:
        raise typer.BadParameter(f"too long; give at most {SPAN_MS_MAX} ms. value={text!r}")
    return span
