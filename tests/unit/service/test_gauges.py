"""What each gauge says of a known snapshot, under the ids of Kafka's tests that pin gauges."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.errors import CorruptError
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.stats import Reasons, Stats
from keeplast.service.gauges import CLEANER, GAUGES, MANAGER, GaugeObserver
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.service.status import State
from keeplast.survey.report import RoundReport

ROOT = Path("data")
NOW_MS = 1_700_000_000_000


def facts(
    number: int,
    state: State = State.NOT_DUE,
    *,
    ratio: float | None = 0.25,
    size_bytes: int = 400,
    delay_ms: int = 0,
    last_round: RoundReport | None = None,
) -> PartitionFacts:
    partition = TopicPartition("t", number)
    cleanable_bytes = round(size_bytes * (ratio or 0.0))
    cleanable = CleanableRange(9, size_bytes - cleanable_bytes, cleanable_bytes)
    figures = None if ratio is None else LogFigures(5, cleanable, 50, delay_ms, None)
    return PartitionFacts(
        partition, ROOT / str(partition), state, "a reason", figures=figures,
        last_round=last_round,
        last_round_ms=None if last_round is None else NOW_MS,
    )  # fmt: skip


def snapshot(*partitions: PartitionFacts) -> Snapshot:
    return Snapshot(ROOT, NOW_MS - 1000, NOW_MS, 1, 2, partitions)


def round_of(**stats: float) -> RoundReport:
    return RoundReport(stats=Stats(**stats), reasons=Reasons(superseded_records=3))  # type: ignore[arg-type]


def values(observer: GaugeObserver, now_ms: int = NOW_MS) -> dict[str, float]:
    return {gauge.name: gauge.value(observer.observed, now_ms) for gauge in GAUGES}


def observed(*partitions: PartitionFacts) -> dict[str, float]:
    observer = GaugeObserver()
    observer.published(snapshot(*partitions))
    return values(observer)


def test_ct01_the_gauges_are_kafkas_five_of_the_cleaner_and_four_of_the_manager() -> None:
    assert [
        ("max-buffer-utilization-percent", CLEANER, False),
        ("cleaner-recopy-percent", CLEANER, False),
        ("max-clean-time-secs", CLEANER, False),
        ("max-compaction-delay-secs", CLEANER, False),
        ("DeadThreadCount", CLEANER, False),
        ("uncleanable-partitions-count", MANAGER, True),
        ("uncleanable-bytes", MANAGER, True),
        ("max-dirty-percent", MANAGER, False),
        ("time-since-last-run-ms", MANAGER, False),
    ] == [(gauge.name, gauge.type, gauge.by_directory) for gauge in GAUGES]


def test_ct48_before_anything_has_happened_every_gauge_is_0() -> None:
    assert {gauge.name: 0 for gauge in GAUGES} == values(GaugeObserver())


@pytest.mark.parametrize(("utilization", "percent"), [(0.9, 90), (0.005, 0.5), (None, 0)])
def test_x49_the_share_of_the_map_in_use_is_given_as_it_is(
    utilization: float | None, percent: float
) -> None:
    stats = replace(Stats(), buffer_utilization=utilization)
    found = observed(facts(0, last_round=RoundReport(stats=stats)))
    assert percent == pytest.approx(found["max-buffer-utilization-percent"])


def test_ci01_partitions_that_are_set_aside_are_counted_with_what_could_be_cleaned() -> None:
    observer = GaugeObserver()
    aside = [facts(n, State.SET_ASIDE, size_bytes=size) for n, size in ((0, 400), (1, 160))]
    observer.published(snapshot(*aside, facts(2)))
    found = values(observer)
    assert (2, 140) == (found["uncleanable-partitions-count"], found["uncleanable-bytes"])
    observer.published(snapshot(facts(0), aside[1], facts(2)))
    found = values(observer)
    assert (1, 40) == (found["uncleanable-partitions-count"], found["uncleanable-bytes"])


def test_the_delay_is_that_of_the_most_overdue_and_follows_every_look() -> None:
    observer = GaugeObserver()
    observer.published(snapshot(facts(0, delay_ms=5999), facts(1, delay_ms=1)))
    assert 5 == values(observer)["max-compaction-delay-secs"]
    observer.published(snapshot(facts(0), facts(1, delay_ms=2**40 * 1000)))
    assert 2**40 == values(observer)["max-compaction-delay-secs"]
    observer.published(snapshot(facts(0), facts(1)))
    assert 0 == values(observer)["max-compaction-delay-secs"]


def test_the_dirtiest_is_looked_for_among_those_that_can_be_cleaned() -> None:
    found = observed(
        facts(0, ratio=0.429, size_bytes=1000),
        facts(1, State.ELIGIBLE, ratio=0.428, size_bytes=1000),
        facts(2, State.SET_ASIDE, ratio=0.9),
        facts(4, State.RETRYING, ratio=0.43, size_bytes=1000),
        facts(3, State.REFUSED, ratio=None),
    )
    assert 43 == found["max-dirty-percent"]


def test_recopy_and_time_are_those_of_the_last_turns_rounds_and_stay_until_the_next() -> None:
    first = round_of(bytes_read=300, bytes_written=100, total_seconds=2.9)
    second = round_of(bytes_read=100, bytes_written=100, total_seconds=1.0)
    observer = GaugeObserver()
    observer.published(snapshot(facts(0, last_round=first), facts(1, last_round=second)))
    found = values(observer)
    assert (50, 2) == (found["cleaner-recopy-percent"], found["max-clean-time-secs"])
    observer.published(snapshot(facts(0, last_round=first), facts(1, last_round=second)))
    assert (50, 2) == (found["cleaner-recopy-percent"], found["max-clean-time-secs"])
    third = round_of(bytes_read=100, bytes_written=10, total_seconds=0.2)
    observer.published(snapshot(facts(0, last_round=third), facts(1, last_round=second)))
    found = values(observer)
    assert (10, 0) == (found["cleaner-recopy-percent"], found["max-clean-time-secs"])


def test_time_since_the_last_look_goes_on_between_looks() -> None:
    observer = GaugeObserver()
    observer.published(snapshot(facts(0)))
    assert 1234 == values(observer, NOW_MS + 1234)["time-since-last-run-ms"]


def test_a_round_is_counted_once_and_a_failed_one_apart() -> None:
    done = round_of(bytes_read=10, map_bytes_read=5, bytes_written=7, total_seconds=0.5)
    failed = replace(round_of(bytes_read=99), failure=CorruptError("bad"))
    observer = GaugeObserver()
    for _ in range(3):
        observer.published(snapshot(facts(0, last_round=done), facts(1, last_round=failed)))
    totals = observer.observed.totals
    assert (1, 1) == (totals.rounds_done, totals.rounds_failed)
    assert (15, 7, 0.5) == (totals.bytes_read, totals.bytes_written, totals.seconds)
    assert 3 == totals.removed_records["superseded"]
