"""How far a round is: one per cent of what both passes read, and which pass it is in."""

from __future__ import annotations

import pytest

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.log_order import Choice
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.run.events import NoEvents, RoundsProgress, RoundWork
from keeplast.service.live import Control, LiveProgress, Pass, RoundProgress
from keeplast.service.schedule import planned_round
from keeplast.survey.report import RoundReport
from tests.support.daemon_world import Narrated
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def live() -> LiveProgress:
    """A turn of two rounds, of 300 bytes to index and 700 to rewrite, and of 100 and 100."""
    clock = ManualClock(0)
    found = LiveProgress(Narrated(), clock, Control(clock))
    found.chosen((Choice(ONE, "dirty"), Choice(OTHER, "dirty")))
    found.planned(1000, RoundWork(ONE, 300))
    found.planned(200, RoundWork(OTHER, 100))
    return found


def at(live: LiveProgress, partition: TopicPartition) -> tuple[int, Pass | None]:
    found = existing(live.progress.of(partition))
    return found.percent, found.at


def test_each_round_has_its_own_per_cent_and_pass(live: LiveProgress) -> None:
    assert [(0, Pass.INDEX), (0, Pass.INDEX)] == [at(live, ONE), at(live, OTHER)]
    live.progressed(299, ONE)
    live.progressed(150, OTHER)
    assert [(29, Pass.INDEX), (75, Pass.REWRITE)] == [at(live, ONE), at(live, OTHER)]
    live.progressed(1, ONE)
    assert (30, Pass.REWRITE) == at(live, ONE)
    assert 37 == live.progress.percent


def test_no_round_is_done_before_it_is_in_place(live: LiveProgress) -> None:
    live.progressed(1000, ONE)
    assert (99, Pass.REWRITE) == at(live, ONE)
    assert not live.progress.has_ended(ONE)
    live.finished(ONE, RoundReport())
    assert [True, False] == [live.progress.has_ended(each) for each in (ONE, OTHER)]


def test_bytes_of_no_partition_are_of_no_round(live: LiveProgress) -> None:
    live.progressed(0)
    assert (0, Pass.INDEX) == at(live, ONE)
    live.progressed(600)
    assert [None, None] == [live.progress.of(each) for each in (ONE, OTHER)]
    assert 50 == live.progress.percent


def test_where_only_one_round_is_done_all_bytes_are_its_own() -> None:
    clock = ManualClock(0)
    live = LiveProgress(Narrated(), clock, Control(clock))
    live.chosen((Choice(ONE, "dirty"),))
    assert live.progress.of(ONE) is None
    live.planned(1000, RoundWork(ONE, 300))
    live.progressed(400)
    assert (40, Pass.REWRITE) == at(live, ONE)


def test_passes_that_alternate_have_no_name() -> None:
    assert RoundProgress(100, None, 50).at is None
    assert 0 == RoundProgress(0, None, 50).percent


def test_a_turn_begins_with_nothing_read(live: LiveProgress) -> None:
    live.progressed(500, ONE)
    live.chosen((Choice(ONE, "dirty"),))
    assert (0, None) == (live.progress.percent, live.progress.of(ONE))


def test_a_runner_that_knows_whose_bytes_they_are_says_so() -> None:
    heard: list[tuple[int, TopicPartition | None]] = []
    stops: list[None] = []

    class Heard(NoEvents):
        def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
            heard.append((read_bytes, partition))

    progress = RoundsProgress(Heard(), {0: ONE, 1: OTHER}, lambda: stops.append(None))
    progress.of(1)(5)
    progress(7)
    progress.of(9)(11)
    assert [(5, OTHER), (7, None), (11, None)] == heard
    # Each call may end the work.
    assert len(heard) == len(stops)


@pytest.mark.parametrize(
    ("strategy", "total", "index"),
    [(Strategy.OFFSET, 200, 50), (Strategy.TIMESTAMP, 300, 150), (Strategy.HEADER, 300, 150)],
)
def test_a_round_that_is_planned_by_its_look_has_both_passes(
    strategy: Strategy, total: int, index: int
) -> None:
    """Stores and attached topics know no more before their round begins."""
    ranges = CleanableRange(10, clean_bytes=100, cleanable_bytes=50)
    assert (total, RoundWork(ONE, index)) == planned_round(ONE, ranges, strategy)
