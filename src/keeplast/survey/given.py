"""What a caller gives in place of what a directory says may hold a round back, and lifts nothing.

A high watermark, a first dirty or uncleanable offset may only be lower than the directory's own, a
log start not higher, a clock not ahead. Anything else would let a round take what somebody still
needs, so who writes asks :func:`check_lifts` first; ``is_unsafe`` lets it stand, and is written
down with the round. Sentences name the option, the value given and the one that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keeplast.errors import CompactionError, RefusedError
from keeplast.survey.request import CleanRequest, PartitionRequest


def clock_lifts(given_ms: int | None, clock_ms: int) -> tuple[str, ...]:
    """Say what a clock in the future lifts: horizons, lags and retention end early."""
    if given_ms is None or given_ms <= clock_ms:
        return ()
    return (f"--now-ms {given_ms} is ahead of the clock, {clock_ms}",)


def log_start_lifts(given: int | None, actual: int) -> tuple[str, ...]:
    """Say what a log start above the actual one lifts: what lies between is taken for deleted."""
    if given is None or given <= actual:
        return ()
    return (f"--log-start-offset {given} is above the log start, {actual}",)


def watermark_lifts(given: int | None, actual: int, *, log_end: int) -> tuple[str, ...]:
    """Say what a high watermark above the actual one lifts; nothing lies above the log end."""
    if given is None or min(given, log_end) <= actual:
        return ()
    return (f"--high-watermark {given} is above the high watermark, {actual}",)


def first_dirty_lifts(given: int | None, actual: int) -> tuple[str, ...]:
    """Say what a first dirty offset above the actual one lifts: what lies between stays unclean."""
    if given is None or given <= actual:
        return ()
    return (f"--first-dirty-offset {given} is above the first dirty offset, {actual}",)


def uncleanable_lifts(
    given: int | None, *, bound: int, actual: int, actual_bound: int, limit: str
) -> tuple[str, ...]:
    """Say what an uncleanable offset above the actual one lifts; ``limit`` is why that is there.

    A bound is the offset rounded down to its segment: where both are the same, nothing is lifted.
    """
    if given is None or bound <= actual_bound:
        return ()
    return (
        f"--uncleanable-offset {given} is above the first uncleanable offset, {actual}: {limit}",
    )


def check_lifts(lifts: Sequence[str], request: CleanRequest, where: object) -> None:
    """Raise RefusedError when something would be lifted at ``where`` and nobody insists on it."""
    if lifts and not request.is_unsafe:
        raise RefusedError(
            f"what was given lifts a limit of the log: {'; '.join(lifts)}; leave it out, or give "
            f"--unsafe to take it as it is. path={where}"
        )


def check_given(
    request: CleanRequest, lifts_of: Callable[[PartitionRequest], Sequence[str]]
) -> None:
    """Raise RefusedError when what was given lifts a limit of any partition.

    For before anything is written anywhere. What ``lifts_of`` cannot say now, with CompactionError
    or OSError, is left to the partition's round, which asks again.
    """
    given = (
        request.now_ms,
        request.high_watermark,
        request.log_start_offset,
        request.first_dirty_offset,
        request.uncleanable_offset,
    )
    if request.is_unsafe or all(each is None for each in given):
        return
    for partition in request.partitions:
        try:
            lifts = lifts_of(partition)
        except (CompactionError, OSError):
            continue
        check_lifts(lifts, request, partition.path)


def lift_notes(lifts: Sequence[str], *, writes: bool) -> tuple[str, ...]:
    """Return what a report says of lifts: that they stood, or that clean would refuse them."""
    if writes:
        return tuple(f"unsafe: {lift}" for lift in lifts)
    return tuple(f"clean does this with --unsafe only: {lift}" for lift in lifts)
