"""Neighbouring outputs that hold no record become one.

When all records of a segment were superseded, it is a closing batch without a record. A broker
answers from one remote segment at a time, and librdkafka takes an answer without a record for one
that was cut off. It doubles the size that it asks for. At 1 GiB, after ten of them in a row, it
gives up with MSG_SIZE_TOO_LARGE. The rule: **no reader meets two answers without a record in a
row** because of a round. Seen on 4.3.0 with 60 such segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from keeplast.attach.rounds.attached_files import AttachedFiles
from keeplast.columns import batches as t
from keeplast.errors import CompactionError
from keeplast.format import offset_index, time_index
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, Kind, segment_file
from keeplast.log.files import reading
from keeplast.log.indexes import IndexBuilder
from keeplast.log.windows import WindowBuffers, read_windows
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.rewrite.output import staged_name
from keeplast.rewrite.task import StagedFile, StagedGroup

SOURCES_MAX = 300
"""Of one such segment: a swap has to fit one batch. Ten in a row are 3,000 sources, and the next
round joins them."""


def is_hollow(output: StagedGroup) -> bool:
    """Return whether no batch of an output has a record."""
    return output.size_bytes == output.batches * t.HEADER_BYTES


def join_hollow(
    files: AttachedFiles, outputs: Sequence[StagedGroup], *, attempt: str, interval: int,
    begins_at: Container[int] = (),
) -> list[StagedGroup]:  # fmt: skip
    """Return ``outputs`` with runs of hollow ones joined; ``attempt`` is a fresh one.

    An output that begins at one of ``begins_at`` is joined to nothing before it. The joined outputs
    are still there, and are the caller's to remove. A source that was left alone is joined too,
    where a neighbour was not. When it fails nothing that it wrote stays: an overtaken process has
    no word of it any more, so that no other process would find it.
    """
    joined: list[StagedGroup] = []
    logs: list[Path] = []
    try:
        for run in _runs(files, outputs, begins_at):
            is_changed = any(each.files for each in run)
            if len(run) > 1 and is_changed and all(is_hollow(each) for each in run):
                logs.append(files.path / staged_name(run[0].base_offset, LOG, attempt))
                joined.append(_join(files, run, attempt, interval))
            else:
                joined.extend(run)
    except (CompactionError, OSError):
        for log in logs:
            # A store that refuses does not hide why.
            with contextlib.suppress(CompactionError, OSError):
                if files.exists(log):
                    files.unlink(log)
        raise
    return joined


def _runs(
    files: AttachedFiles, outputs: Sequence[StagedGroup], begins_at: Container[int]
) -> Iterator[list[StagedGroup]]:
    """Yield hollow outputs that may become one segment together, and each other one alone."""
    run: list[StagedGroup] = []
    for each in outputs:
        end = files.end_of(each.sources)
        count = sum(len(other.sources) for other in (*run, each))
        fits = (
            run
            and each.base_offset not in begins_at
            and files.follows(run[-1], each)
            and end - run[0].base_offset <= RELATIVE_OFFSET_MAX
            and count <= SOURCES_MAX
        )
        if run and not (fits and is_hollow(each) and is_hollow(run[-1])):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _join(
    files: AttachedFiles, run: Sequence[StagedGroup], attempt: str, interval: int
) -> StagedGroup:
    base = run[0].base_offset
    names: dict[Kind, str] = {
        kind: staged_name(base, kind, attempt) for kind in (LOG, INDEX, TIME_INDEX)
    }
    builder, buffers = IndexBuilder(base, interval), WindowBuffers()
    with_log = files.open_write(files.path / names[LOG])
    try:
        for each in run:
            logs = [file.name for file in each.files if file.kind == LOG]
            path = files.path / (logs[0] if logs else segment_file(each.base_offset, LOG))
            with reading(files, path) as handle:
                for window in read_windows(handle, path, buffers):
                    with_log.write(window.data.data[: window.length])
                    rows = window.table[: window.batches, [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]]
                    builder.add(np.ascontiguousarray(rows))
        with_log.fsync()
    finally:
        with_log.close()
    offsets, times = builder.finish()
    contents = {INDEX: offset_index.encode(offsets), TIME_INDEX: time_index.encode(times)}
    for kind in (INDEX, TIME_INDEX):
        files.write_durable(files.path / names[kind], contents[kind])
    output = replace(
        run[-1],
        base_offset=base,
        sources=tuple(source for each in run for source in each.sources),
        files=(
            StagedFile(LOG, names[LOG], builder.size_bytes),
            StagedFile(INDEX, names[INDEX], len(contents[INDEX])),
            StagedFile(TIME_INDEX, names[TIME_INDEX], len(contents[TIME_INDEX])),
        ),
        size_bytes=builder.size_bytes,
        batches=sum(each.batches for each in run),
    )
    files.complete([output])
    return output
