"""Byte sizes and counts, as people read them; sizes are powers of 1024, as a broker's are."""

from __future__ import annotations

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
