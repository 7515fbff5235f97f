"""Spans of time in words, as people say them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
"""Names and milliseconds, the largest first."""
NEAR_MS = 2000
SPAN_MS_MAX = 1 << 62
"""A span that may be added to any time of today; it is longer than anything lasts."""

_DURATION = re.compile(r"([0-9]{1,15})\s*(d|h|min|s|ms)")


def find_duration(text: str) -> int | None:
    """Return the milliseconds that ``text`` means as :func:`duration_text` writes it, or None.

    The blank may be left out: ``7d``, ``12h``, ``30min``, ``90s``.
    """
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else int(match[1]) * dict(DURATION_UNITS).get(match[2], 1)


def find_span(text: str, unit_ms: int = 1) -> int | None:
    """Return the milliseconds of a span with a unit, or of a number that counts ``unit_ms``."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal() and len(stripped) < 20:
        return int(stripped) * unit_ms
    return find_duration(stripped)


def duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 in its largest unit, rounded down: ``4 min``, ``7 d``, ``90 s``.

    A unit is used from two of it on, or when it says the span exactly.
    """
    for unit, size in DURATION_UNITS:
        if milliseconds >= 2 * size or milliseconds == size:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def precise_duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 in its largest unit and the next, rounded down: ``6 d 23 h``.

    The next one is left out where it is zero, and below it nothing is said.
    """
    for (unit, size), (less, part) in pairwise(DURATION_UNITS):
        if milliseconds >= size:
            rest = milliseconds % size // part
            return f"{milliseconds // size} {unit}" + (f" {rest} {less}" if rest else "")
    return duration_text(milliseconds)


def nearest_duration_text(milliseconds: int) -> str:
    """Return a span of at least 0 as :func:`precise_duration_text` does, the second unit rounded to
    the nearest: what is two seconds short of five days is not ``4 d 23 h``.
    """
    part = next((part for (_, size), (_, part) in pairwise(DURATION_UNITS)
                 if milliseconds >= size), 1000)  # fmt: skip
    return precise_duration_text((milliseconds + part // 2) // part * part)


def precise_relative_text(at_ms: int, now_ms: int) -> str:
    """Return the same as :func:`relative_text` in two units, what is to come to the nearest, what
    is over rounded down, and what is nearer than two seconds as now, or just now: who counts on,
    as a page does, counts seconds.
    """
    if abs(at_ms - now_ms) < NEAR_MS:
        return "now" if at_ms >= now_ms else "just now"
    span = nearest_duration_text if at_ms > now_ms else precise_duration_text
    return _relative(at_ms, now_ms, span)


def relative_text(at_ms: int, now_ms: int) -> str:
    """Return how long until a moment, or since."""
    return _relative(at_ms, now_ms, duration_text)


def _relative(at_ms: int, now_ms: int, span: Callable[[int], str]) -> str:
    if at_ms > now_ms:
        return f"in {span(at_ms - now_ms)}"
    return "now" if at_ms == now_ms else f"{span(now_ms - at_ms)} ago"
