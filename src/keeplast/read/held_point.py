"""What has to stay of a log so that its states as of a point, and of every later one, can be read.

The rule, for every place: **the states as of a point and later can be read as long as nothing is
cleaned from the limit on. The limit is where the first transaction begins that is in flight at the
point**. One that is in flight at a later point, too, begins there or above. A cleaner that went
further could believe how one of them ended.

A later reader must see that it is so. It believes a producer snapshot between the cleaned part and
the point. Where none would lie there, the limit is at the last one below; where there is none
either nothing can be kept.

A point whose state is gone by now cannot be kept. A caller that asks for the end of what is decided
gets the first point above it that can: above the markers of what was believed.
"""

from __future__ import annotations

from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.log.checkpoints import said_end
from keeplast.log.files import FileSystem
from keeplast.log.readers import settled_partition
from keeplast.model.hold import HoldPoint, KeptPoint
from keeplast.model.partition import TopicPartition
from keeplast.read.log_view import LogView
from keeplast.read.points import first_offset_from
from keeplast.read.state_end import (
    InFlight,
    find_in_flight,
    is_being_cleaned,
    require_disbelieved,
    require_in_front_of_cleaner,
    require_known_time,
    require_no_signs,
    round_end_words,
)


def keep_point(
    view: LogView, point: HoldPoint, files: FileSystem, clock: Clock, *, is_noted: bool = False
) -> KeptPoint:
    """Return how the states from ``point`` on are kept.

    ``is_noted`` says that nothing is cleaned without being written down before. Then the end of the
    log is kept without a look at the records below it. InvalidError for an offset that the log does
    not have, or that is not replicated. RefusedError where the state as of the point can no longer
    be read. UnavailableError, unless the point is the end, while a round is half done.
    """
    if point.offset is not None:
        end = view.end_for(committed=False, replicated=True)
        require_offset(view.partition, point.offset, log_start=view.log_start, end=end)
        return keep_offset(view, point.offset, files, clock)
    if point.time_ms is not None:
        return _keep_time(view, point.time_ms, files, clock, is_noted=is_noted)
    return keep_end(view, decided_end(view), files, clock, is_noted=is_noted)


def keep_again(
    view: LogView, point: HoldPoint, kept: KeptPoint, files: FileSystem, clock: Clock
) -> KeptPoint:
    """Return what is kept of ``kept``, which was found for ``point``, of a log that went on.

    The limit is the same. The point may lie higher, where it was the log's end. Errors as for
    :func:`keep_point`.
    """
    if point.time_ms is not None:
        again = _keep_time(view, point.time_ms, files, clock)
    elif point.offset is not None:
        again = keep_offset(view, kept.offset, files, clock)
    else:
        again = keep_end(view, kept.offset, files, clock)
    return KeptPoint(max(kept.offset, again.offset), kept.limit)


def require_offset(partition: TopicPartition, offset: int, *, log_start: int, end: int) -> None:
    """Raise InvalidError unless ``offset`` is one of [``log_start``, ``end``]."""
    if not log_start <= offset <= end:
        raise InvalidError(
            "the log has no state as of this offset; give one from where it starts to where it "
            f"ends. offset={offset} log_start={log_start} log_end={end} partition={partition}",
            code="K150",
        )


def decided_end(view: LogView) -> int:
    """Return where what is decided and replicated ends: no cleaner passes it."""
    return view.end_for(committed=True, replicated=True)


def keep_offset(view: LogView, offset: int, files: FileSystem, clock: Clock) -> KeptPoint:
    """Return how the states from ``offset`` on are kept, which the log has; errors as for
    :func:`keep_point`.
    """
    listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
    cleaned_to = require_in_front_of_cleaner(view.partition, listing, offset, files)
    if is_being_cleaned(listing):
        raise UnavailableError(
            "whether the state as of this offset stays is not known while "
            f"{round_end_words(view.path)}. That may clean past the offset; clean --only-expire "
            "does not. Add the hold after that, or hold the log as of now. "
            f"partition={view.partition} offset={offset}",
            code="K604",
        )
    require_no_signs(view, offset, cleaned_to, files, clock)
    found = find_in_flight(view, offset, cleaned_to, files, clock)
    require_disbelieved(view, offset, found)
    return _kept(view, offset, found, cleaned_to)


def keep_end(
    view: LogView, at: int, files: FileSystem, clock: Clock, *, is_noted: bool = False
) -> KeptPoint:
    """Return how the states from the first point on are kept that lies at ``at`` or above it.

    ``at`` is where what is decided ended. A round that is half done is taken for one that goes as
    far as any may, and believes all that has ended by now. Errors as for :func:`keep_point`.
    """
    listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
    if is_being_cleaned(listing):
        cleaned_to: int | None = decided_end(view)
    else:
        cleaned_to = said_end(view.partition, listing, files)
        if not is_noted:
            require_no_signs(view, at, cleaned_to, files, clock)
    at = max(at, cleaned_to or 0)
    found = find_in_flight(view, at, cleaned_to, files, clock)
    if found.believed_to is not None:
        at = found.believed_to
        found = find_in_flight(view, at, cleaned_to, files, clock)
        require_disbelieved(view, at, found)
    return _kept(view, at, found, cleaned_to)


def _keep_time(
    view: LogView, time_ms: int, files: FileSystem, clock: Clock, *, is_noted: bool = False
) -> KeptPoint:
    """Return how states as of a time in ms since 1970, and later, are kept.

    So is the last record that belongs to it. Without one between the cleaned part and the point,
    nothing would show that the time lies there.
    """
    found = first_offset_from(view, time_ms + 1, files, clock)
    end = view.end_for(committed=False, replicated=True)
    if found is None or found >= end:
        kept = keep_end(view, decided_end(view), files, clock, is_noted=is_noted)
        found = max(kept.offset, end)
    else:
        require_known_time(view, found, files, clock)
        kept = keep_offset(view, found, files, clock)
    _require_time_kept(view, found, files, clock)
    return KeptPoint(kept.offset, max(view.log_start, min(kept.limit, found - 1)))


def _require_time_kept(view: LogView, offset: int, files: FileSystem, clock: Clock) -> None:
    """Raise RefusedError when the log is cleaned up to the first record after a time."""
    listing = settled_partition(view.path, files, clock, if_empty=view.log_start)
    cleaned_to = said_end(view.partition, listing, files)
    if cleaned_to is not None and view.log_start < cleaned_to and offset <= cleaned_to:
        raise RefusedError(
            "the log was cleaned up to the first record after this time. When the record before "
            "it goes, the place of this time is not known any more. Hold the offset, or the log "
            f"as of now. offset={offset} partition={view.partition} path={view.path}",
            code="K604",
        )


def _kept(view: LogView, offset: int, found: InFlight, cleaned_to: int | None) -> KeptPoint:
    limit = offset if found.first_offset is None else min(offset, found.first_offset)
    # Rounds end where segments begin: this is as far as any of them may get.
    base = max((each.base_offset for each in view.segments if each.base_offset <= limit), default=0)
    if not found.has_producers or (found.snapshot is not None and base <= found.snapshot):
        return KeptPoint(offset, limit)
    if found.snapshot is None and cleaned_to is not None and view.log_start < cleaned_to:
        raise RefusedError(
            "no producer snapshot lies between the cleaned part and this point, so that readers "
            "will not know which transactions are in flight. Add the hold when a further segment "
            f"is closed, or copied with its snapshot. cleaned_to={cleaned_to} offset={offset} "
            f"partition={view.partition} path={view.path}",
            code="K604",
        )
    return KeptPoint(
        offset, min(limit, view.log_start if found.snapshot is None else found.snapshot)
    )
