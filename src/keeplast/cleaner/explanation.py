"""Why a log is cleaned as far as it is, and no further, in words.

Every reason that a plan, a run or a status gives is made here, so that the same fact is always said
in the same sentence: offsets as they are, spans of time in human units, the setting by its name.
A sentence is a fragment in lower case without a full stop; the caller says which partition.

Pure: the clock is in the numbers. The rules themselves are those of
:mod:`~keeplast.cleaner.eligibility`; KIP-58, KIP-354, cleaning.md 1.3 to 1.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from keeplast.model.duration import duration_text
from keeplast.model.offsets import INT64_MAX
from keeplast.model.segment import SegmentSummary

MIN_LAG = "min.compaction.lag.ms"
MAX_LAG = "max.compaction.lag.ms"
MIN_RATIO = "min.cleanable.dirty.ratio"


def active_limit(active_base: int) -> str:
    """Say that the active segment is never cleaned."""
    return f"the active segment starts at {active_base}"


def watermark_limit(high_watermark: int) -> str:
    """Say that what is not replicated may not be cleaned."""
    return f"the high watermark is {high_watermark}, what follows may not be on every replica"


def transaction_limit(first_offset: int) -> str:
    """Say that an undecided transaction may not be cleaned."""
    return f"a transaction is open since offset {first_offset}"


def kept_limit(transaction: int) -> str:
    """Say that an aborted transaction must be cleaned elsewhere first."""
    return (
        f"a transaction from {transaction} on was aborted, and the rest of the log is not clean "
        "up to its end"
    )


def given_limit(uncleanable: int) -> str:
    """Say that the caller drew the line."""
    return f"{uncleanable} was given as the first uncleanable offset"


def lag_limit(segment: SegmentSummary, *, min_compaction_lag_ms: int, now_ms: int) -> str:
    """Say how young a segment is that the least lag protects: its age is below the lag."""
    age = now_ms - segment.age_timestamp_ms
    missing = duration_text(min_compaction_lag_ms - age)
    lag = f"{MIN_LAG} ({duration_text(min_compaction_lag_ms)})"
    name = f"segment {segment.base_offset}"
    if segment.largest_timestamp_ms < 0:
        return f"{name} has no timestamps, and its file is {missing} younger than {lag}"
    if age < 0:
        return f"{name} is dated {duration_text(-age)} in the future and waits {missing} for {lag}"
    return f"{name} is {missing} younger than {lag}"


def bound_sentence(*, bound: int, uncleanable: int, limit: str) -> str:
    """Say where a round ends; ``uncleanable`` is the limit before rounding to a segment."""
    rounded = ", and a segment is cleaned as a whole" if bound < uncleanable else ""
    return f"not cleaned past offset {bound}: {limit}{rounded}"


def nothing_sentence(*, first_dirty: int, first_base: int, active_base: int, limit: str) -> str:
    """Say why there is nothing to clean below ``limit``."""
    if first_base == active_base:
        return (
            f"nothing to clean: there is only the active segment, from {active_base}; "
            "--roll-active closes it"
        )
    if first_dirty >= active_base:
        return f"nothing to clean: all is clean up to the active segment at {active_base}"
    return f"nothing to clean: {limit}"


def ratio_sentence(*, ratio: float, threshold: float) -> str:
    """Say that too little is dirty; equal to the threshold is too little."""
    return f"dirty ratio {ratio:.3f} is not above {MIN_RATIO} {threshold}; --force cleans anyway"


def eligible_sentence(
    *, ratio: float, threshold: float, delay_ms: int, max_compaction_lag_ms: int
) -> str:
    """Say why a log is worth a round: it is overdue, dirty enough, or the caller insists."""
    if delay_ms > 0:
        lag = duration_text(max_compaction_lag_ms)
        return f"eligible: {duration_text(delay_ms)} overdue, {MAX_LAG} is {lag}"
    if ratio > threshold:
        return f"eligible: dirty ratio {ratio:.3f} is above {MIN_RATIO} {threshold}"
    return f"eligible: forced, dirty ratio {ratio:.3f} with {MIN_RATIO} {threshold}"


@dataclass(frozen=True, slots=True)
class Dating:
    """Closed dirty segments whose dates cannot be taken for their age.

    ``future`` are dated after now, by at most ``ahead_ms``; ``missing`` have no timestamp at all;
    ``backdated`` are dated before what was appended earlier. Segments are counted, by their
    greatest timestamp, which is all that a lag looks at.
    """

    future: int = 0
    missing: int = 0
    backdated: int = 0
    ahead_ms: int = 0


def find_dating(segments: Sequence[SegmentSummary], *, first_dirty: int, now_ms: int) -> Dating:
    """Return what is odd about the dates of the closed segments from ``first_dirty`` on."""
    future = missing = backdated = ahead_ms = 0
    latest = -1
    for segment, following in pairwise(segments):
        stamp = segment.largest_timestamp_ms
        if following.base_offset > first_dirty:
            missing += stamp < 0
            future += stamp > now_ms
            backdated += 0 <= stamp < latest
            ahead_ms = max(ahead_ms, stamp - now_ms)
        # One date in the future does not make those behind it old.
        latest = max(latest, min(stamp, now_ms))
    return Dating(future, missing, backdated, ahead_ms)


def dating_sentences(
    dating: Dating, *, min_compaction_lag_ms: int, max_compaction_lag_ms: int
) -> list[str]:
    """Return what follows from odd dates for the lags that are set; nothing without a lag."""
    has_min, has_max = min_compaction_lag_ms > 0, max_compaction_lag_ms < INT64_MAX
    found: list[str] = []
    if dating.future and (has_min or has_max):
        effects = [f"{MIN_LAG} holds back what follows until then"] if has_min else []
        effects += [f"{MAX_LAG} counts from then"] if has_max else []
        found.append(
            f"{_dirty(dating.future)} dated in the future, by up to "
            f"{duration_text(dating.ahead_ms)}: {', '.join(effects)}"
        )
    if dating.missing and (has_min or has_max):
        effects = [f"the file's time counts for {MIN_LAG}"] if has_min else []
        effects += [f"{MAX_LAG} never makes them overdue"] if has_max else []
        found.append(f"{_dirty(dating.missing)} without timestamps: {', '.join(effects)}")
    if dating.backdated and has_min:
        found.append(
            f"{_dirty(dating.backdated)} dated before what is in front of it: {MIN_LAG} protects "
            f"for less than {duration_text(min_compaction_lag_ms)} after the append"
        )
    return found


def _dirty(count: int) -> str:
    return f"{count} dirty segment{' is' if count == 1 else 's are'}"
