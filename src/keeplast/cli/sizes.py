"""Byte sizes and counts, as people write and read them.

``256m`` means 256 · 2^20: sizes are powers of 1024, as a broker's are.
"""

from __future__ import annotations

import re

from keeplast.errors import InvalidError

_SIZE = re.compile(r"([0-9]{1,18})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_FACTORS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str, option: str) -> int:
    """Return the bytes that ``text`` means (``4096``, ``256m``, ``4g``); InvalidError otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidError(
            f"not a size; write bytes, or a number with k, m, g or t. {option}={text!r}"
        )
    return int(match[1]) * _FACTORS.get((match[2] or "").lower(), 1)


def format_bytes(count: int) -> str:
    """Return ``count`` bytes with three digits and a unit; exact below 10 KiB."""
    if abs(count) < 10 << 10:
        return f"{count:,} B"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def format_count(count: int) -> str:
    """Return ``count`` with separators between thousands."""
    return f"{count:,}"


def format_counted(count: int, noun: str) -> str:
    """Return ``count`` and what is counted; one of it, or several."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"
