"""For programs: holds, which keep rounds from passing a point, and undo, which puts rounds back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, UndoTerms, named
from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.model.hold import Hold, HoldBook, HoldPoint
from keeplast.run.undo import UndoRound
from keeplast.run.undoing import UndoReport


def add_hold(
    place: AskedPlace | str | Path,
    name: str,
    *,
    topics: Collection[str],
    partitions: Collection[int] = (),
    offset: int | None = None,
    time_ms: int | None = None,
    max_age_ms: int,
) -> tuple[Hold, ...]:
    """Keep every host's rounds in ``place`` from passing a point of ``topics``, for ``max_age_ms``.

    The point is ``offset``, of one partition, or ``time_ms`` in milliseconds since 1970, or,
    without either, now. Its state and those of later points can be read until the hold is over.
    ``partitions`` empty are all numbers. All of them are held, or none.

    InvalidError for what is not there and for a name, age or point that cannot be. RefusedError
    where cleaning has passed the point, and where the name is taken. UnavailableError when a round
    is under way for too long.
    """
    if offset is not None and time_ms is not None:
        raise InvalidError(
            f"one point at a time; leave offset or time_ms out. offset={offset} time_ms={time_ms}",
            code="K101",
        )
    chosen = named(topics)
    if not chosen:
        raise InvalidError("name the topics that are held. topics=()", code="K102")
    point = HoldPoint(offset=offset, time_ms=time_ms)
    return _plain(placed(place).add_hold(name, chosen, tuple(partitions), point, max_age_ms))


def holds(place: AskedPlace | str | Path) -> tuple[Hold, ...]:
    """Return every hold of ``place``, by name; those that are over stay until the next is added.

    :meth:`Hold.is_in_force` says whether one is over. Changes nothing.
    """
    return tuple(sorted(_plain(placed(place).holds())))


def release_hold(place: AskedPlace | str | Path, name: str) -> tuple[Hold, ...]:
    """End a hold before its time, for all partitions that it is of, and return what it was.

    InvalidError when there is none of this name.
    """
    return _plain(placed(place).release_hold(name))


def _plain(book: HoldBook) -> tuple[Hold, ...]:
    return tuple(each.hold for each in book.holds)


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
