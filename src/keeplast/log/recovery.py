"""Finishes or undoes a swap that a crash interrupted, exactly as a broker's start-up would.

Run under the lock, before anything is read. Kafka: ``LogLoader.removeTempFilesAndCollectSwapFiles``
and what follows; cleaning.md section 4.3:

1. ``.deleted`` files go; with ``.cleaned`` present, every ``.swap`` at or above the least of their
   bases is incomplete and goes; then the ``.cleaned`` go;
2. what is left of ``.swap`` is complete: every other file whose number lies in
   ``[least base, greatest next offset)`` of the ``.log.swap`` files is superseded and goes. So does
   an index without a log, as when a broker loads the segments;
3. ``.swap`` is stripped, ascending, the log first.

A crash in here may keep any subset of the changes since the directory was last made durable. It is
made durable between the steps and after each log of step 3. What lies between two ``.log.swap``
looks superseded, an output that has its name already included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from keeplast.columns import batches as t
from keeplast.format.filename import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    SegmentFile,
    parse_segment_file,
)
from keeplast.log.files import FileSystem, reading
from keeplast.log.windows import WindowBuffers, read_windows

INDEXES = (INDEX, TIME_INDEX, TXN_INDEX)


def is_settled(files: FileSystem, directory: Path) -> bool:
    """Say whether no staged file is there, so that there is nothing to recover."""
    return not any(parsed.stage for _, parsed in _parse(files, directory))


def recover_swap(files: FileSystem, directory: Path) -> tuple[str, ...]:
    """Leave no staged file; returns the names that were dealt with.

    CorruptError when a completed ``.log.swap`` cannot be read.
    """
    names = _parse(files, directory)
    done = [name for name, parsed in names if parsed.stage]
    if not done:
        return ()
    cleaned = [parsed.base_offset for _, parsed in names if parsed.stage == CLEANED]
    for name, parsed in names:
        is_incomplete = parsed.stage == SWAP and cleaned and parsed.base_offset >= min(cleaned)
        if parsed.stage == DELETED or is_incomplete:
            # Executors that have lost their driver may still be removing what they staged.
            with contextlib.suppress(FileNotFoundError):
                files.unlink(directory / name)
    files.fsync_directory(directory)
    for name, parsed in names:
        if parsed.stage == CLEANED:
            files.unlink(directory / name)
    files.fsync_directory(directory)
    names = _parse(files, directory)
    for name in _find_superseded(files, directory, names):
        files.unlink(directory / name)
    files.fsync_directory(directory)
    for name, parsed in sorted(names, key=lambda item: (item[1].base_offset, item[1].kind != LOG)):
        if parsed.stage == SWAP:
            files.rename(directory / name, directory / name.removesuffix(SWAP))
            if parsed.kind == LOG:
                files.fsync_directory(directory)
    files.fsync_directory(directory)
    return tuple(done)


def _find_superseded(
    files: FileSystem, directory: Path, names: Sequence[tuple[str, SegmentFile]]
) -> list[str]:
    swaps = [item for item in names if item[1].stage == SWAP and item[1].kind == LOG]
    low = min((parsed.base_offset for _, parsed in swaps), default=0)
    high = max((_next_offset(files, directory / name, parsed) for name, parsed in swaps), default=0)
    logs = {parsed.base_offset for _, parsed in names if parsed.kind == LOG}
    return [
        name
        for name, parsed in names
        if not parsed.stage
        and (
            low <= parsed.base_offset < high
            or (parsed.kind in INDEXES and parsed.base_offset not in logs)
        )
    ]


def _parse(files: FileSystem, directory: Path) -> list[tuple[str, SegmentFile]]:
    parsed = ((name, parse_segment_file(name)) for name in files.listdir(directory))
    return [(name, file) for name, file in parsed if file is not None]


def _next_offset(files: FileSystem, path: Path, parsed: SegmentFile) -> int:
    end = parsed.base_offset
    with reading(files, path) as handle:
        for window in read_windows(handle, path, WindowBuffers(1 << 20)):
            end = int(window.table[window.batches - 1, t.LAST_OFFSET]) + 1
    return end
