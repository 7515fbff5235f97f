"""The attached partitions of a live cluster in the loop: whose turn it is, what waits or fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from keeplast.attach.answers.shown_logs import AttachedHolds, HeldCluster
from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import claim
from keeplast.attach.rounds.attached_place import DAY_MS
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.errors import (
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.log.files import LocalFiles
from keeplast.model.hold import HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.run.events import RoundWork
from keeplast.service.schedule import RETRY_MS_MAX
from keeplast.service.snapshot import AttachedTotals, PartitionFacts
from keeplast.service.status import State
from keeplast.survey.receipt_book import CollectionReceipt, RoundReceipt, read_entries
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import DecisionState
from tests.support.attached_loop import INTERVAL_MS, LoopWorld, caps
from tests.support.attached_world import CLUSTER_ID
from tests.support.daemon_world import Published
from tests.support.existing import existing
from tests.support.flipped import flip
from tests.support.store_world import NarratedStore

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LoopWorld]:
    with closing(LoopWorld(tmp_path)) as made:
        yield made


def facts_of(published: Published, partition: TopicPartition) -> PartitionFacts:
    (found,) = [x for x in published.snapshots[-1].partitions if x.partition == partition]
    return found


def totals_of(published: Published) -> AttachedTotals:
    found = published.snapshots[-1].tier
    assert isinstance(found, AttachedTotals)
    return found


def _alone(published: Published) -> Iterator[Published]:
    """Yield each snapshot as the last one."""
    for each in published.snapshots:
        one = Published()
        one.snapshots.append(each)
        yield one


def states(world: LoopWorld, topic: str) -> list[DecisionState]:
    log = world.log()
    found = existing(log.find(world.name_of(topic)))
    return [each.state for each in log.decisions(found)]


def test_each_topic_that_is_due_is_compacted_and_the_refused_one_left_alone(
    world: LoopWorld,
) -> None:
    world.topics("a", "b")
    world.topic("c").settings["retention.bytes"] = "1000000"
    before = world.served("c")
    report, narrated, published = world.run("a", "b", "c")
    for topic in ("a", "b"):
        world.require_compacted(topic)
    assert before == world.served("c")
    assert 2 == report.rounds
    refused = TopicPartition("c", 0)
    assert [refused] == list(report.failures)
    error = report.failures[refused]
    assert isinstance(error, RefusedError)
    assert "retention-bytes" in str(error)
    assert "kafka-configs.sh" in str(error)
    assert State.REFUSED is facts_of(published, refused).state
    assert any("c is refused" in line for line in narrated.of("warned"))
    assert facts_of(published, A).tier is not None


def test_replaced_segments_are_collected_when_their_grace_is_over_and_nothing_else_is_due(
    world: LoopWorld, tmp_path: Path
) -> None:
    world.topic("a")
    receipt = tmp_path / "receipts"
    world.run("a", grace_ms=10_000, receipt=receipt)
    stored = world.stored("a")
    assert len(world.served("a")) < stored
    assert 0 == world.run("a", grace_ms=10_000, receipt=receipt)[0].rounds
    assert stored == world.stored("a")
    world.clock.advance(10_000)
    report, narrated, published = world.run("a", grace_ms=10_000, receipt=receipt)
    assert (0, {}) == (report.rounds, report.failures)
    assert len(world.served("a")) == world.stored("a") < stored
    assert ["a-0"] == narrated.of("collected")
    assert stored - world.stored("a") == totals_of(published).collected_objects
    rounds, (collection,) = (
        [x for x in read_entries(receipt, LocalFiles()) if isinstance(x, kind)]
        for kind in (RoundReceipt, CollectionReceipt)
    )
    assert 1 == len(rounds)
    assert isinstance(collection, CollectionReceipt)
    assert (A, stored - world.stored("a")) == (collection.partition, collection.segments)
    world.require_compacted("a")


def test_nothing_is_deleted_while_a_broker_is_behind_and_one_warning_says_so(
    world: LoopWorld,
) -> None:
    world.topic("a")
    answers: list[str | None] = ["a broker lacks 4 records"]
    world.run("a", grace_ms=0, why_wait=lambda *_: answers[-1])
    stored = world.stored("a")
    assert len(world.served("a")) < stored
    _, narrated, _ = world.run("a", grace_ms=0, why_wait=lambda *_: answers[-1], idles=2)
    assert stored == world.stored("a")
    (line,) = [each for each in narrated.of("warned") if "a broker lacks" in each]
    assert "a-0: nothing is deleted yet" in line
    answers.append(None)
    world.run("a", grace_ms=0, why_wait=lambda *_: answers[-1])
    assert len(world.served("a")) == world.stored("a") < stored


def test_a_round_reports_how_far_it_is_and_in_which_pass(
    world: LoopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.topic("a")
    works: list[tuple[int, RoundWork | None]] = []
    read: list[int] = []
    monkeypatch.setattr(
        NarratedStore, "planned", lambda _, total, work=None: works.append((total, work))
    )
    monkeypatch.setattr(
        NarratedStore, "progressed",
        lambda _, count, partition=None: read.append(count if partition == A else 0),
    )  # fmt: skip
    assert 1 == world.run("a")[0].rounds
    ((total, work),) = works
    assert work is not None
    assert A == work.partition
    assert 0 < (work.index_bytes or 0) < sum(read) <= total


def test_without_a_grace_one_pass_compacts_and_collects(world: LoopWorld) -> None:
    world.topic("a")
    _, narrated, _ = world.run("a", grace_ms=0)
    assert ["a-0"] == narrated.of("collected")
    assert [DecisionState.COLLECTED] == states(world, "a")
    world.require_compacted("a")


def test_it_goes_on_with_what_the_decision_log_has_and_a_topic_that_gains_is_done_again(
    world: LoopWorld,
) -> None:
    world.topics("a", "b")
    world.run("a")
    report, narrated, _ = world.run(
        idles=2, on_idle=lambda times: world.fill("a", 8) if times == 1 else None
    )
    assert ["a-0"] == narrated.of("chosen")
    assert 1 == report.rounds
    world.require_compacted("a")
    assert 80 == len(world.read("b"))


def test_a_copy_that_was_begun_keeps_apart_what_a_late_end_of_it_would_hide(
    world: LoopWorld,
) -> None:
    """R-4: the leader that began it was overtaken, and finishes it when all is compacted."""
    world.topic("a", segments=24)
    world.wanted["segment.bytes"] = "900"
    late = world.begin("a", 15, 34)
    world.run("a")
    bounds = [each.start_offset for each in world.served("a") if each.broker_id < 0]
    assert [0, 30] == bounds
    world.finish(late)
    world.require_compacted("a")


def test_a_hole_that_a_late_copy_leaves_makes_a_round_due_and_is_reported(world: LoopWorld) -> None:
    """AT-10: below the ratio, and nothing is collected before."""
    world.topic("a", segments=24)
    world.wanted["segment.bytes"] = "900"
    world.run("a", grace_ms=10**6)
    world.wanted["min.cleanable.dirty.ratio"] = "0.99"
    world.finish(world.begin("a", 15, 34))
    ((first, last),) = world.cluster.cache_of("a").holes(0)
    stored = world.stored("a")
    report, narrated, published = world.run("a", grace_ms=10**6)
    assert ["a-0"] == narrated.of("chosen")
    assert 1 == report.rounds
    world.require_compacted("a")
    assert stored < world.stored("a")
    found = [facts_of(each, A) for each in _alone(published)]
    assert last - first + 1 == next(t.unserved_offsets for f in found if (t := f.tier) is not None)
    assert any(f"serve nothing at offsets {first} to {last}" in each.reason for each in found)
    assert found[-1].tier is not None
    assert 0 == found[-1].tier.unserved_offsets


def test_a_hole_that_is_ended_by_word_alone_is_ended_when_nothing_is_due(world: LoopWorld) -> None:
    """AT-7, Z2: a batch that came once more has hidden a newer copy."""
    world.topic("a")
    world.run("a")
    *_, newest = (e for e in world.served("a") if e.broker_id < 0)
    world.finish(world.begin("a", newest.start_offset, 79))
    world.finish(newest)
    assert [] != world.cluster.cache_of("a").holes(0)
    world.wanted["min.cleanable.dirty.ratio"] = "0.99"
    report, _, _ = world.run("a")
    assert 0 == report.rounds
    assert [] == world.cluster.cache_of("a").holes(0)


def test_a_deadline_makes_a_round_due_below_the_ratio_and_a_lag_holds_one_back(
    world: LoopWorld,
) -> None:
    hour_ms = 3_600_000
    world.topic("a")
    world.wanted |= {"max.compaction.lag.ms": str(hour_ms), "min.cleanable.dirty.ratio": "0.99"}
    world.run("a")
    world.fill("a", 2)
    report, _, published = world.run()
    assert 0 == report.rounds
    assert "min.cleanable.dirty.ratio" in facts_of(published, A).reason
    world.wanted["min.compaction.lag.ms"] = str(hour_ms)
    world.clock.advance(hour_ms - 1000)
    report, _, published = world.run()
    assert 0 == report.rounds
    assert "min.compaction.lag.ms" in facts_of(published, A).reason
    world.clock.advance(1001)
    report, narrated, _ = world.run()
    assert 1 == report.rounds
    assert any("overdue" in line[2] for line in narrated.lines if line[0] == "chosen")
    world.require_compacted("a")


def test_nothing_attached_and_nothing_named_is_reported(world: LoopWorld) -> None:
    world.topic("a")
    with pytest.raises(InvalidError, match="--topic"):
        world.run()
    with pytest.raises(InvalidError, match="no such topic"):
        world.run("elsewhere")


def test_partitions_that_are_not_attached_are_left_alone_and_counted(
    world: LoopWorld,
) -> None:
    world.topic("a")
    world.run("a", partitions=(0,))
    world.cluster.topics["a"].partitions = 3
    _, narrated, published = world.run()
    assert [A] == [each.partition for each in published.snapshots[-1].partitions]
    assert any("count=2" in line for line in narrated.of("warned"))


def test_a_paused_partition_waits_until_it_is_resumed(world: LoopWorld) -> None:
    world.topics("a", "b")
    world.run("a", "b")
    for topic in ("a", "b"):
        world.fill(topic, 8)
    log = world.log()
    held = existing(log.find(world.name_of("a")))
    log.set_paused(held, is_paused=True)

    def resume(times: int) -> None:
        if times == 2:
            log.set_paused(held, is_paused=False)

    report, narrated, published = world.run(idles=2, on_idle=resume)
    assert ["b-0"] == narrated.of("chosen")
    assert "paused" in facts_of(published, A).reason
    assert {} == report.failures
    assert ["a-0"] == world.run()[1].of("chosen")


def test_a_partition_of_another_process_is_left_to_it_and_the_others_are_done(
    world: LoopWorld,
) -> None:
    world.topics("a", "b")
    world.run("a", "b", grace_ms=10_000)
    for topic in ("a", "b"):
        world.fill(topic, 8)
    other = claim_as(world, world.log(), "a")

    def give_back(times: int) -> None:
        if times == 1:
            other.close()

    report, narrated, published = world.run(idles=2, on_idle=give_back)
    assert ["b-0", "a-0"] == narrated.of("chosen")
    assert {} == report.failures
    first = published.snapshots[0].partitions[0]
    assert (A, State.ELSEWHERE) == (first.partition, first.state)
    assert "another process has it" in first.reason


def claim_as(world: LoopWorld, log: DecisionLog, topic: str) -> Any:
    terms = AttachTerms(address="localhost:9092")
    partition = world.cluster.topics[topic].partition
    return claim(world.cluster, log, world.layout, partition, CLUSTER_ID, terms)


def test_a_lost_race_is_reported_once_and_the_partition_left_alone_for_a_while(
    world: LoopWorld,
) -> None:
    world.topics("a", "b")
    world.run("a", "b")
    for topic in ("a", "b"):
        world.fill(topic, 8)
    rivals: list[Any] = []

    @dataclass
    class Raced:
        """The log of a process that somebody overtakes between its look and its claim."""

        inner: DecisionLog

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def claim(self, known: Any, *, epoch: int) -> Any:
            if known.name == world.name_of("a") and not rivals:
                rivals.append(claim_as(world, world.log(), "a"))
                rivals[0].close()
            return self.inner.claim(known, epoch=epoch)

    world.wrap = lambda part: Raced(part) if isinstance(part, DecisionLog) else part
    report, narrated, published = world.run(idles=3)
    assert ["a-0"] == narrated.of("left alone")
    assert ["a-0", "b-0", "a-0"] == narrated.of("chosen")
    assert {} == report.failures
    seen = [x.partitions[0] for x in published.snapshots]
    assert any(State.ELSEWHERE is each.state and each.retry_at_ms for each in seen)
    world.require_compacted("a")


def test_a_topic_that_refuses_is_asked_again_after_pauses_that_grow(world: LoopWorld) -> None:
    topic = world.topic("a")
    topic.settings["retention.bytes"] = "1"

    def mend(times: int) -> None:
        if times == 40:
            topic.settings["retention.bytes"] = "-1"

    report, narrated, published = world.run("a", idles=60, on_idle=mend)
    asked = [x.partitions[0].retry_at_ms for x in published.snapshots]
    found = sorted({each for each in asked if each is not None})
    pauses = [after - before for before, after in pairwise(found)]
    assert pauses == sorted(pauses)
    assert RETRY_MS_MAX <= pauses[-1] <= RETRY_MS_MAX + 2 * INTERVAL_MS
    assert pauses[0] < RETRY_MS_MAX / 4
    assert 1 == len([line for line in narrated.of("warned") if "is refused" in line])
    assert any("refuses no more" in line for line in narrated.of("warned"))
    assert (1, {}) == (report.rounds, report.failures)
    world.require_compacted("a")


def test_a_cluster_that_is_away_is_reported_as_trouble_and_awaited(world: LoopWorld) -> None:
    world.topic("a")
    troubles: list[str | None] = []

    def come_back(times: int) -> None:
        troubles.append(world.control.trouble)
        if times == 3:
            world.cluster.fails = None

    world.cluster.fails = UnavailableError("no broker answers")
    report, narrated, _ = world.run("a", idles=4, on_idle=come_back)
    assert ["no broker answers" in (each or "") for each in troubles] == [True] * 3 + [False]
    assert any("can be worked on again" in line for line in narrated.of("warned"))
    assert 1 == report.rounds
    world.cluster.fails = UnavailableError("no broker answers")
    with pytest.raises(UnavailableError):
        world.run("a")


def test_a_remote_tier_that_is_away_is_trouble_and_nothing_is_put_in_its_place(
    world: LoopWorld,
) -> None:
    world.topic("a")
    world.run("a")
    world.fill("a", 8)
    away = world.root / "away"

    def change(times: int) -> None:
        if times == 1:
            assert "owner objects" in (world.control.trouble or "")
            assert [] == [each for each in world.storage.rglob("*") if each.is_file()]
            shutil.rmtree(world.storage)
            away.rename(world.storage)

    world.storage.rename(away)
    world.storage.mkdir()
    report, _, _ = world.run("a", idles=2, on_idle=change)
    assert (1, None) == (report.rounds, world.control.trouble)
    world.require_compacted("a")


def test_a_permission_that_is_taken_away_ends_no_loop(world: LoopWorld) -> None:
    world.topic("a")

    def change(times: int) -> None:
        world.cluster.fails = None if times > 1 else RefusedError("the principal may not do that")

    _, narrated, _ = world.run("a", idles=3, on_idle=change)
    assert any("the principal may not" in line for line in narrated.of("warned"))
    assert world.control.trouble is None


def test_swaps_of_a_day_are_counted_over_restarts_and_go_on_a_day_later(world: LoopWorld) -> None:
    world.topics("a", "b")
    report, _, published = world.run("a", "b", caps=caps(swaps=1), grace_ms=0)
    assert 1 == report.rounds
    done = [each for each in published.snapshots[-1].partitions if each.rounds]
    (left,) = [each for each in published.snapshots[-1].partitions if not each.rounds]
    assert 1 == len(done)
    assert "--swaps-per-day" in left.reason
    assert (1, 1) == (totals_of(published).swaps, totals_of(published).swaps_max)
    assert totals_of(published).metadata_records > 0
    report, _, published = world.run("a", "b", caps=caps(swaps=1), grace_ms=0)
    assert 0 == report.rounds
    assert "--swaps-per-day" in facts_of(published, left.partition).reason
    world.clock.advance(DAY_MS + 1)
    assert 1 == world.run("a", "b", caps=caps(swaps=1))[0].rounds
    world.require_compacted(left.partition.topic)


def test_a_round_that_is_larger_than_a_day_allows_begins_on_a_fresh_day_and_swaps_nothing_beyond(
    world: LoopWorld,
) -> None:
    world.topic("a")
    report, _, published = world.run("a", caps=caps(records=4))
    assert (0, {}) == (report.rounds, report.failures)
    assert "--records-per-day" in facts_of(published, A).reason
    assert 0 == totals_of(published).swaps
    assert 80 == len(world.read("a"))
    # What was made for it is gone again.
    assert 8 == world.stored("a")


def test_a_topic_that_is_gone_or_was_detached_ends_nothing(world: LoopWorld) -> None:
    world.topics("a", "b", "c")
    world.run("a", "b", "c", grace_ms=0)
    detached = claim_as(world, world.log(), "b")
    detached.detach()
    world.cluster.topics["a"].topic_id = bytes(range(16))
    for topic in ("b", "c"):
        world.fill(topic, 8)
    report, narrated, published = world.run()
    assert ["c-0"] == narrated.of("chosen")
    assert {} == report.failures
    assert "the topic is gone" in facts_of(published, A).reason
    assert [A, TopicPartition("c", 0)] == [
        each.partition for each in published.snapshots[-1].partitions
    ]
    _, narrated, published = world.run("b", "c")
    assert "given up" in facts_of(published, B).reason
    assert [] == narrated.of("chosen")


def test_a_topic_that_is_held_before_its_first_round_is_not_attached_by_that(
    world: LoopWorld,
) -> None:
    world.topics("a", "b")
    world.run("b")
    log = world.log()
    held = AttachedHolds(cast(HeldCluster, world.cluster), log, world.layout, world.clock)
    held.add([(world.name_of("a"), AttachTerms())], "h", HoldPoint(35), 3_600_000)
    _, narrated, published = world.run(idles=1)
    assert [B] == [each.partition for each in published.snapshots[-1].partitions]
    assert [] == narrated.of("chosen")
    _, narrated, published = world.run("a", idles=1)
    assert (["a-0"], 30) == (narrated.of("chosen"), cleaned_to(world, "a"))
    world.clock.advance(3_600_000)
    world.run("a", idles=1)
    assert cleaned_to(world, "a") > 35


def cleaned_to(world: LoopWorld, topic: str) -> int:
    found = existing(world.log().find(world.name_of(topic)))
    return found.cleaned_to


def test_damage_sets_a_partition_aside_and_the_others_go_on(world: LoopWorld) -> None:
    world.topics("a", "b")
    (first, *_) = world.served("a")
    (damaged,) = world.storage.glob(f"*/a-0-*/{first.start_offset:020d}-*.log")
    flip(damaged)
    report, narrated, published = world.run("a", "b", idles=3)
    assert isinstance(report.failures[A], CorruptError)
    assert ["a-0"] == narrated.of("set aside")
    assert State.SET_ASIDE is facts_of(published, A).state
    assert 2 == len(narrated.of("chosen"))
    world.require_compacted("b")


def test_a_stop_ends_the_round_and_the_next_run_does_it(world: LoopWorld) -> None:
    world.topic("a")
    world.run("a")
    world.fill("a", 8)

    class Stopping:
        """A layout whose reader is stopped at the first log that is read."""

        def __init__(self, inner: Any, stop: Callable[[], None]) -> None:
            self._inner, self._stop = inner, stop

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def create_log(self, *arguments: Any) -> Any:
            self._stop()
            return self._inner.create_log(*arguments)

    def stop() -> None:
        assert world.daemon is not None
        world.daemon.stop()

    before = world.served("a")
    world.wrap = lambda part: Stopping(part, stop) if part is world.layout else part
    report, _, _ = world.run(idles=5)
    assert (0, {}) == (report.rounds, report.failures)
    assert before == world.served("a")
    world.wrap = lambda part: part
    assert 1 == world.run()[0].rounds
    world.require_compacted("a")


class KilledError(BaseException):
    """The process is over."""


STEPS = (
    ("store_id", 1), ("claim", 1), ("put_new", 1), ("create_log", 2), ("complete", 2),
    ("register", 1), ("note_announced", 1), ("append", 1), ("decide", 1), ("append", 2),
    ("mark_published", 1), ("advance", 1), ("give_back", 1), ("mark_collecting", 1),
    ("append", 3), ("mark_collected", 1), ("give_back", 2),
)  # fmt: skip
"""What a process was about to do for the so-manieth time; the third batch ends a deletion."""


@pytest.mark.rotates(5)
@pytest.mark.parametrize(("name", "time"), STEPS)
def test_whatever_a_process_was_at_when_it_was_killed_the_next_one_ends_it(
    world: LoopWorld, name: str, time: int
) -> None:
    world.topics("a", "b")
    left = time

    class Mortal:
        """A part of a process that is killed before one of its steps, and does nothing more."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, step: str) -> Any:
            found = getattr(self._inner, step)
            if not callable(found):
                return found

            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                left -= step == name
                if left <= 0:
                    raise KilledError(step)
                return found(*arguments, **named)

            return call

    world.wrap = Mortal
    with pytest.raises(KilledError):
        world.run("a", "b", grace_ms=0, idles=2)
    world.wrap = lambda part: part
    report, _, _ = world.run("a", "b", grace_ms=0, takes_over=True)
    assert {} == report.failures
    for topic in ("a", "b"):
        world.require_compacted(topic)
        assert len(world.served(topic)) == world.stored(topic)
        served = world.served(topic)
        assert all(world.layout.open(x).read_auxiliary(AuxiliaryFile.SNAPSHOT) for x in served)
