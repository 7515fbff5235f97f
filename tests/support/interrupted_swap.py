"""Crashes in the middle of a swap: what has the names of a log then is only a part of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem
from keeplast.run.undo import undo_newest
from tests.support.observed_files import Crash, ObservedFiles
from tests.support.partition_maker import NOW_MS

Act = Callable[[FileSystem, Path], object]
"""Does something to the partition directory that it is given."""


def undo(files: FileSystem, directory: Path) -> None:
    """Undo the newest round of the only partition of a data directory."""
    (entry,) = open_data_directory(directory.parent, files).partitions
    undo_newest(files, entry, receipt=None, now_ms=NOW_MS, warned=lambda _: None)


def crash_points(act: Act, directory: Path, scratch: Path) -> range:
    """Return the operations of ``act`` in front of which a swap is under way, or what is staged for
    it has its names; ``scratch`` is for a copy of the data directory."""
    files = ObservedFiles()
    act(files, copied(directory, scratch))
    swaps = [
        number
        for number, line in enumerate(files.operations)
        if line.startswith("rename ") and (".swap" in line or ".cleaned" in line)
    ]
    return range(swaps[0], swaps[-1] + 2) if swaps else range(0)


def crash_at(point: int, act: Act, directory: Path) -> None:
    """Do it until the operation number ``point``, and no further."""
    with contextlib.suppress(Crash):
        act(ObservedFiles(crash_at=point), directory)


def copied(directory: Path, scratch: Path) -> Path:
    """Return a partition directory in a copy of its data directory, which replaces ``scratch``."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(directory.parent, scratch)
    return scratch / directory.name


def is_open(directory: Path) -> bool:
    """Say whether a swap is under way in a directory, or was cut off."""
    return any(path.name.endswith(".swap") for path in directory.iterdir())
