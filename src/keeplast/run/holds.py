"""Adds and releases holds of a data directory, while rounds may be under way in it.

The order is the rule. A round writes its staged files, then looks for holds, and only then puts
anything in place. A hold is written down first, and only then the log is looked at. So one of the
two sees the other. Either a round that would pass the hold gives up, or the log shows that one has
passed it, or may have. Then the hold is taken back; a hold as of now moves to the first point that
is kept all the same. A half-done round is waited for, a while; not for a hold as of now.

:mod:`keeplast.read.held_point` says how far rounds may go for which point.

A directory's lock is not needed, and is not taken: a daemon holds it all the time. A broker's own
cleaner knows nothing of holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.lock import appended, is_locked
from keeplast.log.paths import is_object_path
from keeplast.log.root_files import HOLDS_NAME, read_holds, write_holds
from keeplast.model.hold import (
    Hold,
    HoldPoint,
    KeptPoint,
    check_hold_age,
    check_hold_name,
    holds_named,
    require_new_name,
)
from keeplast.model.partition import TopicPartition
from keeplast.read.held_point import keep_again, keep_point
from keeplast.read.log_view import LogView, load_reader_checkpoints, look_at_log

TRIES_MAX = 60
PAUSE_SECONDS = 0.5


def choose_entries(
    directory: DataDirectory, topics: Sequence[str], partitions: Sequence[int]
) -> tuple[PartitionEntry, ...]:
    """Return the partitions of ``topics`` with one of these numbers; no numbers are all.

    InvalidError for a topic or number that is not there.
    """
    there = {each.partition: each for each in directory.partitions if each.mark is None}
    where = "the data directory"
    chosen = choose_partitions(there, topics, partitions, where, f" path={directory.root}")
    return tuple(there[each] for each in chosen)


def choose_partitions(
    there: Collection[TopicPartition],
    topics: Sequence[str],
    partitions: Sequence[int],
    where: str,
    place: str = "",
) -> tuple[TopicPartition, ...]:
    """Return those of ``there``, which is in ``where``, as :func:`choose_entries` does."""
    chosen = []
    for topic in topics:
        its = [each for each in there if each.topic == topic]
        for number in partitions:
            if TopicPartition(topic, number) not in its:
                raise InvalidError(
                    f"no such partition in {where}; choose one that is there. "
                    f"partition={topic}-{number}{place}",
                    code="K115",
                )
        if not its:
            close = difflib.get_close_matches(topic, {each.topic for each in there}, n=1)
            hint = f"; did you mean {close[0]}" if close else "; correct its name"
            raise InvalidError(f"no such topic in {where}{hint}. topic={topic}{place}", code="K114")
        chosen += [each for each in its if not partitions or each.partition in partitions]
    return tuple(sorted(set(chosen)))


def add_holds(
    directory: DataDirectory,
    entries: Sequence[PartitionEntry],
    name: str,
    point: HoldPoint,
    max_age_ms: int,
    files: FileSystem,
    clock: Clock,
) -> tuple[Hold, ...]:
    """Hold ``entries`` at ``point`` for ``max_age_ms`` from now, under one name; all or none.

    InvalidError for an impossible name, age or offset. RefusedError where the state as of the point
    can no longer be read, and where the name is taken. UnavailableError when rounds are under way
    for too long.
    """
    check_hold(name, point, max_age_ms, len(entries))
    if is_object_path(directory.root):
        raise RefusedError(
            "holds are for directories that are cleaned in place; nothing in an object store is. "
            f"path={directory.root}",
            code="K103",
        )
    now_ms, place = clock.now_ms(), f"path={directory.root}"

    def found(before: Sequence[KeptPoint | None]) -> list[KeptPoint]:
        return [
            _find_waiting(entry, point, files, clock, each)
            for entry, each in zip(entries, before, strict=True)
        ]

    def holds_of(points: Sequence[KeptPoint]) -> list[Hold]:
        return [
            Hold(name, entry.partition, each.offset, now_ms, now_ms + max_age_ms, each.limit)
            for entry, each in zip(entries, points, strict=True)
        ]

    kept = found([None] * len(entries))
    added = holds_of(kept)
    with appended(directory.root / HOLDS_NAME):
        known = read_holds(files, directory.root)
        require_new_name(name, known, now_ms, place)
        over = [each for each in known if not each.is_in_force(now_ms)]
        _replace(directory, over, added, files)
    written = set(added)
    try:
        settled = holds_of(found(kept))
        if settled != added:
            written |= set(settled)
            with appended(directory.root / HOLDS_NAME):
                _replace(directory, added, settled, files)
    except BaseException:
        with appended(directory.root / HOLDS_NAME):
            _replace(directory, written, (), files)
        raise
    return tuple(settled)


def check_hold(name: str, point: HoldPoint, max_age_ms: int, partitions: int) -> None:
    """Raise InvalidError for a hold that cannot be, whatever it is of."""
    check_hold_name(name)
    check_hold_age(max_age_ms)
    if point.offset is not None and partitions > 1:
        raise InvalidError(
            "an offset is of one partition; choose it with --partition, or give a time, or now. "
            f"partitions={partitions} offset={point.offset}",
            code="K604",
        )


def look_at_entry(entry: PartitionEntry, files: FileSystem, clock: Clock) -> LogView:
    """Return what readers may see of a log now, by the checkpoints next to it."""
    checkpoints = load_reader_checkpoints(files, entry.path.parent)
    return look_at_log(entry.partition, entry.path, checkpoints, files, clock)


def release_holds(directory: DataDirectory, name: str, files: FileSystem) -> tuple[Hold, ...]:
    """Remove all holds of a name, those that are over too; InvalidError when there is none."""
    check_hold_name(name)
    with appended(directory.root / HOLDS_NAME):
        known = read_holds(files, directory.root)
        released = holds_named(name, known, f"path={directory.root}")
        write_holds(files, directory.root, set(known) - set(released))
    return released


def _replace(
    directory: DataDirectory, old: Collection[Hold], new: Collection[Hold], files: FileSystem
) -> None:
    """Put ``new`` holds in the place of ``old`` ones, which need not be there any more."""
    known = set(read_holds(files, directory.root))
    write_holds(files, directory.root, (known - set(old)) | set(new))


def _find_waiting(
    entry: PartitionEntry,
    point: HoldPoint,
    files: FileSystem,
    clock: Clock,
    kept: KeptPoint | None = None,
) -> KeptPoint:
    """Return how states are kept, or what is left of ``kept``, when no round is half done."""
    for left in reversed(range(TRIES_MAX)):
        is_at_work = is_locked(entry.path.parent)
        try:
            view = look_at_entry(entry, files, clock)
            if kept is None:
                return keep_point(view, point, files, clock)
            return keep_again(view, point, kept, files, clock)
        except UnavailableError as error:
            if not is_at_work:
                # It does not end by itself.
                raise RefusedError(str(error), code=error.code) from error
            if not left:
                raise
        clock.sleep(PAUSE_SECONDS)
    raise AssertionError("unreachable")
