"""A log without transactions, in segments that stay groups of their own."""

from __future__ import annotations

from pathlib import Path

from tests.support.partition_maker import one, write_partition


def write_plain_log(root: Path) -> Path:
    """Write 61 records of eight keys, ten a segment; the last is in the active one."""
    segments = {
        first: b"".join(one(first + i, b"%d" % (i * first % 7)) for i in range(10))
        for first in range(0, 60, 10)
    }
    return write_partition(root, {**segments, 60: one(60, b"k")})
