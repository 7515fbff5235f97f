"""What the readers of compressed payloads share: the greatest size, and the ways to fail.

Every size that a payload declares passes :func:`check_limit` before memory is taken for it.
"""

from __future__ import annotations

from keeplast.errors import CorruptError

DECOMPRESSED_BYTES_MAX = 1 << 30
"""Most that one payload may decompress to, whatever the caller allows."""


def check_limit(size: int, limit: int, position: int) -> None:
    """Raise :class:`CorruptError` when ``size`` is above ``limit`` (inclusive)."""
    if size > limit:
        raise CorruptError(
            "data too large when decompressed",
            position=position,
            expected=f"at most {limit} bytes",
            found=f"{size} bytes",
        )


def cut(position: int, expected: object, found: int) -> CorruptError:
    """Return the error for a unit at ``position`` of which only ``found`` bytes are there."""
    return CorruptError(
        "compressed data ends early",
        position=position,
        expected=expected,
        found=f"{max(0, found)} bytes",
    )


def undecodable(codec: str, position: int, found: object) -> CorruptError:
    """Return the error for data at ``position`` that the codec's library refuses."""
    return CorruptError(
        f"{codec} data cannot be decompressed",
        position=position,
        expected=f"valid {codec} data",
        found=found,
    )
