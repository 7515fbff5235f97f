"""``python -m benchmarks.shape_model``: one partition by shape and cores, as the planner sees it.

Arithmetic on :mod:`keeplast.cleaner.shapes`, whose slopes were measured on two cores: it says
from where on a shape is ahead, not what a cluster was seen to do. Memory is taken to be enough.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from msgspec.structs import replace

from benchmarks.run import RESULTS
from keeplast.cleaner.shapes import (
    JOINT_OFFSETS_MAX,
    StageSeconds,
    WorkCounts,
    index_seconds,
    map_bytes,
    predict_seconds,
    rewrite_seconds,
)
from keeplast.model.topic_config import Shape, Strategy

GIB = 1 << 30
RECORD_BYTES = 122
"""A value of 100 B with its key, in batches of 140."""
SEGMENTS_MIN = 8
CORES = (2, 16, 64, 256)
LOGS = ((1, 9), (100, 9), (1024, 9), (100, 1000), (1024, 1000))
"""GiB, and records a key."""


def counts_of(gib: int, records_per_key: int) -> WorkCounts:
    """Return what the stages of a log of plain records are made of, all of it dirty."""
    size = gib * GIB
    rows = size // RECORD_BYTES
    keys = rows // records_per_key
    segments = max(SEGMENTS_MIN, gib)
    return WorkCounts(
        StageSeconds(
            index_seconds(size, rows, keys), rewrite_seconds(size, rows, size / records_per_key)
        ),
        rows=rows, dirty_rows=rows, dirty_keys=keys, row_bytes=Strategy.OFFSET.slot_bytes,
        map_bytes=map_bytes(Strategy.OFFSET, keys), dirty_segments=segments, groups=segments,
        largest_part=1 / segments,
    )  # fmt: skip


def table() -> str:
    """Return the predictions as Markdown."""
    lines = [
        "| log | keys | shape | " + " | ".join(f"{cores} cores" for cores in CORES) + " |",
        "|---|--:|---|" + "--:|" * len(CORES),
    ]
    for gib, records_per_key in LOGS:
        counts = counts_of(gib, records_per_key)
        first = f"| {gib} GiB | {counts.dirty_keys / 1e6:,.1f} M"
        for shape in Shape:
            lines.append(f"{first} | {shape} | {' | '.join(_cells(shape, counts))} |")
        joint = replace(counts, is_joint=True)
        lines.append(f"{first} | either in one job | {' | '.join(_cells(Shape.BUCKET, joint))} |")
    return "\n".join(lines)


def _cells(shape: Shape, counts: WorkCounts) -> list[str]:
    """Return the seconds for each number of cores; nothing where notes would not fit a task."""
    return [
        "-"
        if counts.is_joint and counts.rows > cores * JOINT_OFFSETS_MAX
        else f"{predict_seconds(shape, counts, tasks=cores, buckets=cores):,.1f} s"
        for cores in CORES
    ]


def main() -> None:
    """Print the predictions; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "shape_model.md")
    out = parser.parse_args().out
    text = table()
    out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
