"""``keeplast.undo``: the rounds that can be undone, and how they are put back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, UndoTerms, named
from keeplast.config.choice import PartitionChoice
from keeplast.run.undo import UndoRound
from keeplast.run.undoing import UndoReport


def kept_rounds(
    place: AskedPlace | str | Path,
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
) -> tuple[UndoRound, ...]:
    """Return the rounds of ``place`` that can be undone, of each partition the newest first.

    ``topics`` and ``partitions``, numbers, empty for all, are as for :func:`undo`. Takes no lock
    and reads no segment. InvalidError where there is no such partition; RefusedError of a live
    cluster, whose rounds are not undone.
    """
    return placed(place).kept_rounds(_scope(topics, partitions)).rounds


def undo(
    place: AskedPlace | str | Path,
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    rounds: Collection[str] = (),
    writes: bool = True,
    receipt: str | Path | None = None,
) -> UndoReport:
    """Put back the replaced segments of the newest round of each partition, or of ``rounds``.

    With names a call that was interrupted may be made again: what has come back is left alone.
    ``writes`` False compares every byte and changes nothing. ``receipt`` is a file that takes a
    line of each round, None is where a directory keeps its receipts. What a partition refuses is in
    the report, and keeps no other from it. RefusedError when a directory is in use, or in an object
    store, and of a live cluster; InvalidError where there is no such partition.
    """
    terms = UndoTerms(
        rounds=tuple(rounds), writes=writes, receipt=None if receipt is None else Path(receipt)
    )
    return placed(place).undo(_scope(topics, partitions), terms).report


def _scope(topics: Collection[str], partitions: Collection[int]) -> PartitionChoice:
    return PartitionChoice(topics=named(topics), partitions=tuple(partitions))
