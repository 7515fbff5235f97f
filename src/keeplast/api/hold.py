"""``keeplast.add_hold``, ``holds``, ``release_hold``: keep rounds from passing a point, a while."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, named
from keeplast.errors import InvalidError
from keeplast.model.hold import Hold, HoldBook, HoldPoint


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
    without either, now. States as of it and of later points can be told until the hold is over.
    ``partitions`` empty are all numbers. All of them are held, or none.

    InvalidError for what is not there and for a name, age or point that cannot be; RefusedError
    where cleaning has passed the point, and where the name is taken; UnavailableError when a round
    is under way for too long.
    """
    if offset is not None and time_ms is not None:
        raise InvalidError(
            f"one point at a time; leave offset or time_ms out. offset={offset} time_ms={time_ms}"
        )
    chosen = named(topics)
    if not chosen:
        raise InvalidError("name the topics that are held. topics=()")
    point = HoldPoint(offset=offset, time_ms=time_ms)
    return _plain(placed(place).add_hold(name, chosen, tuple(partitions), point, max_age_ms))


def holds(place: AskedPlace | str | Path) -> tuple[Hold, ...]:
    """Return every hold of ``place``, by name; those that are over stay until the next is added.

    :meth:`Hold.is_in_force` tells which are. Changes nothing.
    """
    return tuple(sorted(_plain(placed(place).holds())))


def release_hold(place: AskedPlace | str | Path, name: str) -> tuple[Hold, ...]:
    """End a hold before its time, for all partitions that it is of, and return what it was.

    InvalidError when there is none of this name.
    """
    return _plain(placed(place).release_hold(name))


def _plain(book: HoldBook) -> tuple[Hold, ...]:
    return tuple(each.hold for each in book.holds)
