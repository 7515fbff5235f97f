"""Old values in one sentence: first what the next round takes, then all, in order of time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.erasure import BasisKind, Eligibility, ErasureBasis
from keeplast.cleaner.reasons import (
    AllClean,
    Decision,
    DirtyEnough,
    Overdue,
    RatioTooLow,
    TransactionLimit,
)
from keeplast.inspect.status import ErasedBy, LogStatus
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import (
    old_values_lines,
    old_values_words,
    skipped_words,
    state_words,
)
from tests.support.durations import DAY_MS

NOW_MS = 1_800_000_000_000
NAME = TopicPartition("t", 0)
DUE_MS, BY_MS = NOW_MS + 6 * DAY_MS, NOW_MS + 6 * DAY_MS + 60_000
BASIS = ErasureBasis(BasisKind.MAX_LAG_AFTER_FIRST, 8)
ERASED = ErasedBy(BY_MS, DUE_MS, BASIS)
ALL = "included, is gone by 2027-01-21 08:01:00 UTC (in 6 d): due 2027-01-21 08:00:00 UTC (in 6 d)"


def status(
    decision: Decision,
    *,
    bound: int = 8,
    cleanable_bytes: int = 40,
    delay_ms: int = 0,
    deadline_ms: int | None = None,
    erased: ErasedBy = ERASED,
) -> PartitionStatus:
    """Return a log of [0, 12) that is clean to 5, with its active segment from 8 on."""
    segments = tuple(SegmentSummary(base, 50, NOW_MS, -1, 0, 0) for base in (0, 5, 8))
    figures = LogFigures(5, CleanableRange(bound, 60, cleanable_bytes), 50, delay_ms, None)
    log = LogStatus(
        NAME, Path("t-0"), segments, 0, 12, figures, deadline_ms, decision, (), False,
        Eligibility(erased.eligible_by_ms, BASIS), None, 0,
    )  # fmt: skip
    return PartitionStatus(NAME, State.NOT_DUE, "", log, decision, erased_by=erased)


def words(each: PartitionStatus) -> str:
    assert each.erased_by is not None
    return old_values_words(each, each.erased_by, NOW_MS)


TOO_CLEAN = RatioTooLow(0.4, 0.5)
ACTIVE_TOO = "all that was overwritten until now, the active segment from 8 on "


@pytest.mark.parametrize(
    ("each", "begins", "goes_on"),
    [
        (
            status(TOO_CLEAN, deadline_ms=NOW_MS + 5 * DAY_MS - 3_600_000),
            "those in closed segments, below offset 8, are due for a round by "
            "2027-01-20 07:00:00 UTC (in 4 d 23 h), the deadline of max.compaction.lag.ms; ",
            ACTIVE_TOO + ALL,
        ),
        (
            status(Overdue(1, 2), delay_ms=7, deadline_ms=NOW_MS - 2 * DAY_MS),
            "those in closed segments, below offset 8, were due for a round by "
            "2027-01-13 08:00:00 UTC (2 d ago), the deadline of max.compaction.lag.ms; ",
            ACTIVE_TOO + ALL,
        ),
        (
            status(DirtyEnough(0.6, 0.5), deadline_ms=NOW_MS + 4 * DAY_MS),
            "those in closed segments, below offset 8, go with the next round, which is due now; ",
            ACTIVE_TOO + ALL,
        ),
        (
            status(TOO_CLEAN, bound=6, deadline_ms=NOW_MS + 4 * DAY_MS),
            "those in closed segments, below offset 6, are due",
            "all that was overwritten until now, what is held back from 6 on " + ALL,
        ),
        (
            status(AllClean(8), bound=8, cleanable_bytes=0, deadline_ms=NOW_MS + 4 * DAY_MS),
            "gone by 2027-01-21 08:01:00 UTC (in 6 d): due",
            "max.compaction.lag.ms after the first record of segment 8",
        ),
        (
            status(
                Overdue(1, 2), bound=12, delay_ms=7, deadline_ms=NOW_MS - DAY_MS,
                erased=ErasedBy(NOW_MS + 5000, NOW_MS, ErasureBasis(BasisKind.NEXT_ROUND)),
            ),
            "all were due for a round by 2027-01-14 08:00:00 UTC (1 d ago)",
            "; gone by 2027-01-15 08:00:05 UTC (in 5 s): due 2027-01-15 08:00:00 UTC (now) "
            "(the next round covers it)",
        ),
        (
            status(
                TOO_CLEAN, deadline_ms=NOW_MS + DAY_MS,
                erased=ErasedBy(
                    None, None, ErasureBasis(BasisKind.HELD, limit=TransactionLimit(9))
                ),
            ),
            "those in closed segments, below offset 8, are due for a round by",
            "; for the active segment from 8 on no date, because a transaction is open",
        ),
    ],
)  # fmt: skip
def test_dates_stand_in_the_order_of_time_with_what_they_cover(
    each: PartitionStatus, begins: str, goes_on: str
) -> None:
    found = words(each)
    assert found.startswith(begins)
    assert goes_on in found


def test_where_there_is_one_fact_there_is_no_other() -> None:
    unset = ErasedBy(None, None, ErasureBasis(BasisKind.NO_MAX_LAG))
    assert "no date: max.compaction.lag.ms is not set" == words(status(TOO_CLEAN, erased=unset))
    gone = ErasedBy(NOW_MS, NOW_MS, ErasureBasis(BasisKind.NOTHING_LEFT), is_gone=True)
    assert "nothing superseded or deleted is left" == words(status(AllClean(8), erased=gone))
    failing = ErasedBy(None, None, ErasureBasis(BasisKind.FAILING), is_unknown=True)
    assert words(status(Overdue(1, 2), delay_ms=1, erased=failing)).startswith("? while its rounds")
    unread = replace(status(TOO_CLEAN), log=None)
    assert words(replace(unread, erased_by=unset)).startswith("no date")


def test_a_page_joins_both_dates_in_one_sentence_and_says_what_the_last_rests_on() -> None:
    each = status(TOO_CLEAN, deadline_ms=NOW_MS + 4 * DAY_MS)
    assert each.erased_by is not None
    joined, because = old_values_lines(each, each.erased_by, NOW_MS)
    expected = (
        "old values: those in closed segments, below offset 8, are due for a round by 2027-01-19 "
        "08:00:00 UTC (in 4 d), the deadline of max.compaction.lag.ms; all that was overwritten "
        "until now, the active segment from 8 on included, is gone by 2027-01-21 08:01:00 UTC (in "
        "6 d), while keeplast run goes on and its rounds succeed"
    )
    assert expected == joined
    assert because.startswith("the round that takes the last of them is due by ")
    assert each.erased_by.why in because
    assert "))" not in joined + because


def test_a_page_says_why_there_is_no_date() -> None:
    unknown = ErasedBy(None, None, ErasureBasis(BasisKind.HELD, limit=TransactionLimit(9)))
    each = status(TOO_CLEAN, deadline_ms=NOW_MS + DAY_MS, erased=unknown)
    found = old_values_lines(each, unknown, NOW_MS)
    assert f"8 on {unknown.why}" in found[-1]
    gone = ErasedBy(NOW_MS, NOW_MS, ErasureBasis(BasisKind.NOTHING_LEFT), is_gone=True)
    (only,) = old_values_lines(each, gone, NOW_MS)
    assert f"old values: {gone.why}" == only


def test_a_skipped_partition_is_shown_with_its_reason() -> None:
    assert "skipped: damaged file" == skipped_words("CorruptError")
    assert "skipped: defect of keeplast" == skipped_words("InvariantError")
    assert "skipped" == skipped_words(None) == state_words("set aside")
    assert "overdue" == state_words(State.OVERDUE)
