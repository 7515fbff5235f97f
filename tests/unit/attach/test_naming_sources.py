"""Why there is no round of a live partition is named by what ends its sources, never a stand-in."""

from __future__ import annotations

import pytest

from keeplast.attach.rounds.attached_place import naming_sources
from keeplast.attach.rules.sources import Sources
from keeplast.cleaner.reasons import (
    ActiveLimit,
    AllClean,
    Decision,
    EmptyLog,
    NothingBelow,
    OnlyActive,
    RatioTooLow,
    SourcesEnd,
    SourcesLimit,
    TransactionLimit,
)

END = 100
LIMIT = SourcesLimit(END, SourcesEnd.MARGIN)
SOURCES = Sources((), END, LIMIT)


@pytest.mark.parametrize(
    "decision", [EmptyLog(), AllClean(END), OnlyActive(END), NothingBelow(ActiveLimit(END))]
)
def test_empty_or_clean_sources_are_said_to_end_where_the_rest_stays_raw(
    decision: Decision,
) -> None:
    """A broker's cleaner leaves segments without a record: the log behind them is not empty."""
    assert NothingBelow(LIMIT) == naming_sources(decision, SOURCES)


@pytest.mark.parametrize(
    "decision",
    [RatioTooLow(0.1, 0.5), NothingBelow(TransactionLimit(7)), NothingBelow(ActiveLimit(END - 1))],
)
def test_what_waits_within_the_sources_keeps_its_own_reason(decision: Decision) -> None:
    assert decision == naming_sources(decision, SOURCES)
