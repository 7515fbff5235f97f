"""A file that is damaged in one byte."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, at: int = -1, bits: int = 1) -> None:
    """Invert ``bits`` of the byte at position ``at``, from the end where it is negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)
