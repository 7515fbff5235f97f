"""Byte sizes as people write them, ``256m`` for 256 · 2^20, and as they read them, ``256 MiB``.

Sizes are powers of 1024, as a broker's are.
"""

from __future__ import annotations

import re

from keeplast.errors import InvalidError

_SIZE = re.compile(r"([0-9]{1,18})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_FACTORS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str, option: str, *, least: int = 0) -> int:
    """Return the bytes that ``text`` means (``4096``, ``256m``, ``4g``); InvalidError otherwise.

    Also when they are fewer than ``least``, a whole number of MiB, which the message gives.
    """
    size = find_size(text)
    if size is None:
        raise InvalidError(
            f"not a size; write bytes, or a number with k, m, g or t. {option}={text!r}"
        )
    if size < least:
        raise InvalidError(
            f"too little to work with; give at least {least >> 20}m. {option}={text!r}"
        )
    return size


def find_size(text: str) -> int | None:
    """Return the bytes that ``text`` means, with a unit or without; None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _FACTORS.get((match[2] or "").lower(), 1)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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
