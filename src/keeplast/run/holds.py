"""Adds and releases holds of a data directory, while rounds may be under way in it.

The order is the rule. A round writes its staged files, then looks for holds, and only then puts
anything in place; who adds a hold writes it down, and only then looks at the log. So one of the two
sees the other: a round that would pass the hold gives up, or the log shows that one has, or may
have, and the hold is taken back. What is left half done is waited for, a while.

A state as of a point has no transaction that is in flight there, while a cleaner believes how it
ended. So cleaning is kept from where the first of them begins, and not from the point alone.

A directory's lock is not needed, and is not taken: a daemon holds it all the time. A broker's own
cleaner knows nothing of holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.holds import HOLDS_NAME, read_holds, write_holds
from keeplast.log.lock import appended
from keeplast.log.object_paths import is_object_path
from keeplast.log.settled import settled_partition
from keeplast.model.hold import (
    Hold,
    HoldPoint,
    check_hold_age,
    check_hold_name,
    holds_named,
    require_new_name,
)
from keeplast.model.partition import TopicPartition
from keeplast.read.log_view import LogView, load_reader_checkpoints, look_at_log
from keeplast.read.offset_of_time import first_offset_from
from keeplast.read.state_end import is_half_done, require_state_at, require_time_told

TRIES_MAX = 60
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HeldPoint:
    """A point of a log that can be told: ``asked``, and ``offset``, which cleaning may not pass.

    ``is_latest`` says that nothing behind ``asked`` is decided yet: no round passes that.
    """

    entry: PartitionEntry
    asked: int
    offset: int
    is_latest: bool


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
                    f"no such partition in {where}. partition={topic}-{number}{place}"
                )
        if not its:
            close = difflib.get_close_matches(topic, {each.topic for each in there}, n=1)
            hint = f"; did you mean {close[0]}" if close else ""
            raise InvalidError(f"no such topic in {where}{hint}. topic={topic}{place}")
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

    InvalidError for a name, age or offset that cannot be, RefusedError where the state as of the
    point cannot be told any more, and where the name is taken; UnavailableError when rounds are
    under way for too long.
    """
    check_hold(name, point, max_age_ms, len(entries))
    if is_object_path(directory.root):
        raise RefusedError(
            "holds are for directories that are cleaned in place; nothing in an object store is. "
            f"path={directory.root}"
        )
    points = find_points(directory.root, entries, point, files, clock)
    now_ms, place = clock.now_ms(), f"path={directory.root}"
    added = [
        Hold(name, each.entry.partition, each.offset, now_ms, now_ms + max_age_ms)
        for each in points
    ]
    with appended(directory.root / HOLDS_NAME):
        known = read_holds(files, directory.root)
        require_new_name(name, known, now_ms, place)
        kept = [each for each in known if each.is_in_force(now_ms)]
        write_holds(files, directory.root, [*kept, *added])
    try:
        for each in points:
            # No round passes what is decided, so that none can pass its end.
            if not each.is_latest:
                _require_told(each.entry, each.asked, files, clock)
    except BaseException:
        _take_back(directory, added, files)
        raise
    return tuple(added)


def check_hold(name: str, point: HoldPoint, max_age_ms: int, partitions: int) -> None:
    """Raise InvalidError for a hold that cannot be, whatever it is of."""
    check_hold_name(name)
    check_hold_age(max_age_ms)
    if point.offset is not None and partitions > 1:
        raise InvalidError(
            "an offset is of one partition; choose it with --partition, or give a time, or now. "
            f"partitions={partitions} offset={point.offset}"
        )


def find_points(
    root: Path,
    entries: Sequence[PartitionEntry],
    point: HoldPoint,
    files: FileSystem,
    clock: Clock,
) -> list[HeldPoint]:
    """Return where cleaning has to be kept from, so that the state as of ``point`` can be told.

    ``entries`` are logs of the data directory ``root``, or of what ``files`` show as one.
    RefusedError where it cannot be told any more; otherwise as of :func:`add_holds`.
    """
    checkpoints = load_reader_checkpoints(files, root)
    found = []
    for entry in entries:
        view = look_at_log(entry.partition, entry.path, checkpoints, files, clock)
        asked = _offset_of(view, point, files, clock)
        is_latest = asked >= view.last_stable
        offset = asked if is_latest else _require_told(entry, asked, files, clock)
        found.append(HeldPoint(entry, asked, offset, is_latest))
    return found


def release_holds(directory: DataDirectory, name: str, files: FileSystem) -> tuple[Hold, ...]:
    """Remove all holds of a name, those that are over too; InvalidError when there is none."""
    check_hold_name(name)
    with appended(directory.root / HOLDS_NAME):
        known = read_holds(files, directory.root)
        released = holds_named(name, known, f"path={directory.root}")
        write_holds(files, directory.root, set(known) - set(released))
    return released


def _take_back(directory: DataDirectory, added: Collection[Hold], files: FileSystem) -> None:
    with appended(directory.root / HOLDS_NAME):
        write_holds(files, directory.root, set(read_holds(files, directory.root)) - set(added))


def _offset_of(view: LogView, point: HoldPoint, files: FileSystem, clock: Clock) -> int:
    latest = view.last_stable
    if point.offset is not None:
        if not view.log_start <= point.offset <= latest:
            raise InvalidError(
                "the log has no state as of this offset; give one from where it starts to where "
                f"what is decided ends. offset={point.offset} log_start={view.log_start} "
                f"last_stable={latest} partition={view.partition}"
            )
        return point.offset
    if point.time_ms is None:
        return latest
    found = first_offset_from(view, point.time_ms + 1, files, clock)
    offset = latest if found is None else min(found, latest)
    require_time_told(view, offset, files, clock)
    return offset


def _require_told(entry: PartitionEntry, offset: int, files: FileSystem, clock: Clock) -> int:
    """Return when the state as of ``offset`` can be told, and no round is under way that may end
    that: where the first transaction begins that is in flight there, else ``offset``."""
    for _ in range(TRIES_MAX):
        checkpoints = load_reader_checkpoints(files, entry.path.parent)
        view = look_at_log(entry.partition, entry.path, checkpoints, files, clock)
        listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
        if not any(is_half_done(each) for each in listing.leftovers):
            latest = view.last_stable
            return require_state_at(view, offset, latest=latest, files=files, clock=clock)
        clock.sleep(PAUSE_SECONDS)
    raise UnavailableError(
        "a round of this log is under way, or was interrupted, so that nobody knows whether the "
        "state as of this offset stays; add the hold when it is over, or hold the log as of now. "
        f"partition={entry.partition} offset={offset}"
    )
