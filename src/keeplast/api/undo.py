"""``keeplast.undo``: what rounds have kept of what they replaced, and how it is put back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.config.choice import PartitionChoice
from keeplast.log.data_directory import DataDirectory, PartitionEntry, open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.log.object_paths import place_path
from keeplast.run.undo import UndoRound, choose_undo, find_undo, refuse_stores
from keeplast.run.undoing import UndoReport, undo_each


def kept_rounds(
    data_dir: str | Path, *, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> tuple[UndoRound, ...]:
    """Return the rounds that have kept what they replaced, of each partition the newest first.

    ``topics`` and ``partitions``, numbers, empty for all, are as for :func:`undo`. Takes no lock
    and reads no segment. InvalidError where there is no such partition.
    """
    _, entries, files = _open(data_dir, topics, partitions)
    return tuple(each for entry in entries for each in find_undo(files, entry))


def undo(
    data_dir: str | Path,
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    rounds: Collection[str] = (),
    writes: bool = True,
    receipt: str | Path | None = None,
) -> UndoReport:
    """Put back what the newest round of each partition replaced, or what ``rounds`` did, by name.

    With names a call that was interrupted may be made again: what has come back is left alone.
    ``writes`` False compares every byte and changes nothing. ``receipt`` is a file that takes a
    line of each round, None for none. What a partition refuses is in the report, and keeps no other
    from it. RefusedError when the directory is in use, or in an object store; InvalidError where
    there is no such partition.
    """
    directory, entries, files = _open(data_dir, topics, partitions)
    with locked(directory.root, writes=writes):
        return undo_each(
            files, entries, SystemClock(), rounds=rounds, writes=writes,
            receipt=None if receipt is None else Path(receipt), warned=lambda message: None,
        )  # fmt: skip


def _open(
    data_dir: str | Path, topics: Collection[str], partitions: Collection[int]
) -> tuple[DataDirectory, tuple[PartitionEntry, ...], LocalFiles]:
    path, files = place_path(str(data_dir)), LocalFiles()
    refuse_stores(path)
    directory = open_data_directory(path, files)
    chosen = PartitionChoice(topics=tuple(topics), partitions=tuple(partitions))
    return directory, choose_undo(directory, chosen.includes), files
