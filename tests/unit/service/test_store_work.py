"""The partitions of a store in the loop: whose turn it is, whose they are, and what fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.errors import UnavailableError
from keeplast.format.record import ControlType
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Shape
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.service.status import State
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.receipt_book import ExpiryReceipt, read_entries, read_receipts
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import MARKS
from keeplast.tier.objects.stores import ObstoreObjects
from keeplast.tier.state.holder import Holder, new_holder
from tests.support.existing import existing
from tests.support.heard_calls import hear
from tests.support.log_builder import START_MS, Sender, text
from tests.support.partition_maker import DAY_MS, clean_at
from tests.support.reader import read_partition
from tests.support.store_world import COMPACTED, TOPIC, StoreWorld

IO_RATE = 100
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return StoreWorld(tmp_path)


class Failing(TieredStore):
    """A store one of whose methods fails as long as ``fails`` says so."""

    def __init__(self, inner: TieredStore, name: str, fails: Callable[[Any], bool]) -> None:
        self._inner = inner
        self._name = name
        self._fails = fails

    def __getattribute__(self, name: str) -> Any:
        if name in ("_inner", "_name", "_fails"):
            return object.__getattribute__(self, name)
        found = getattr(self._inner, name)
        if name != self._name:
            return found

        def act(*arguments: Any, **named: Any) -> Any:
            if self._fails(arguments[0] if arguments else None):
                raise UnavailableError("not now")
            return found(*arguments, **named)

        return act


def test_the_dirtiest_comes_first_and_nothing_is_left(world: StoreWorld) -> None:
    world.log(0, 3)
    world.run()
    for _ in range(3):
        world.fill(0)
    world.log(1, 3)
    report, narrated, _ = world.run(copies=True)
    assert ["t-1", "t-0"] == narrated.of("chosen")
    assert (2, {}, ()) == (report.rounds, report.failures, report.left)


def test_new_segments_of_a_directory_are_copied_and_cleaned(world: StoreWorld) -> None:
    world.log(0, 2)

    def gain(times: int) -> None:
        if times == 1:
            for _ in range(3):
                world.fill(0)

    report, narrated, published = world.run(idles=3, on_idle=gain, copies=True)
    assert [("copied", "t-0", "3")] == [line for line in narrated.lines if line[0] == "copied"]
    assert 2 == report.rounds
    facts = published.facts(0)
    assert facts.figures is not None
    assert (25, 25, 0.0) == (
        facts.figures.first_dirty, facts.log_end, facts.figures.cleanable.ratio,
    )  # fmt: skip
    assert report.snapshot.tier is not None
    assert 3 == report.snapshot.tier.copied_segments


def clean_as_a_broker(world: StoreWorld) -> None:
    """Let the cleaner of the first log's directory drop what a day allows, again and again."""
    for _ in range(3):
        clean_at(world.data / "t-0", world.clock.now_ms(), topic=TOPIC)
        world.clock.advance(DAY_MS)


def test_a_copy_that_could_miss_a_delete_takes_the_place_of_what_is_stored(
    world: StoreWorld,
) -> None:
    world.log(0, 2)
    world.logs[0].tombstone(0)
    world.fill(0)
    clean_as_a_broker(world)
    report, narrated, _ = world.run(copies=True)
    (line,) = [line for line in narrated.lines if line[0] == "replaced"]
    assert "deletes and transaction markers" in line[2]
    assert {} == report.failures
    assert report.snapshot.tier is not None
    assert (1, 0) == (
        report.snapshot.tier.replaced_ranges, report.snapshot.tier.refused_copies,
    )  # fmt: skip


def test_a_refused_copy_is_reported_and_is_no_damage(world: StoreWorld) -> None:
    refused = world.log(0, 2, {"compaction.strategy": "timestamp"})
    other = world.log(1, 2)
    for number in (0, 1):
        world.fill(number)
    clean_as_a_broker(world)
    report, narrated, published = world.run(idles=2, copies=True)
    assert [refused] == list(report.failures)
    assert "cleans by offset" in str(report.failures[refused])
    assert [] == narrated.of("set aside")
    assert report.snapshot.tier is not None
    assert report.snapshot.tier.refused_copies > 0
    figures = existing(published.facts(other.partition).figures)
    assert 15 == figures.first_dirty


def test_replaced_segments_and_garbage_are_collected(world: StoreWorld) -> None:
    world.log(0, 3)
    garbage = world.objects(0)[0]
    lost = garbage.parent.with_name("f" * 32) / garbage.name
    lost.parent.mkdir()
    lost.write_bytes(b"left by a crash")
    os.utime(lost, (1, 1))
    world.clock.advance(1)
    _, narrated, published = world.run()
    assert ["t-0"] == narrated.of("collected")
    assert 1 == len(world.objects(0))
    tier = existing(published.facts(0).tier)
    assert (0, "a") == (tier.orphans, tier.owner)


def deleted(world: StoreWorld) -> None:
    """Give ``t-0`` a clean log with a tombstone that may go an hour later."""
    world.log(0, 2, {"delete.retention.ms": "3600000"})
    log = world.logs[0]
    log.append(NewRecord(text(0), None, world.clock.now_ms()))
    log.roll()
    report, _, _ = world.run(copies=True)
    assert 1 == report.rounds


def records(world: StoreWorld) -> list[tuple[bytes | None, bytes | None]]:
    directory = world.root / f"out-{world.clock.now_ms()}" / "t-0"
    with world.open() as store:
        store.export(T0, directory, lambda count: None)
    return [(record.key, record.value) for record in read_partition(directory).records()]


def test_expired_segments_go_without_anything_new(world: StoreWorld) -> None:
    deleted(world)
    assert (text(0), None) in records(world)
    world.clock.advance(3_599_000)
    report, _, _ = world.run(expired=True)
    assert 0 == report.rounds
    world.clock.advance(2_000)
    report, _, _ = world.run()
    assert 0 == report.rounds
    with world.open() as store:
        before = store.state(T0)
    report, _, published = world.run(expired=True)
    facts = published.snapshots[0].partitions[0]
    assert (1, True) == (report.rounds, facts.is_expired_round)
    assert "a round for what has expired: 1 tombstone batch" == facts.reason
    assert (text(0), None) not in records(world)
    with world.open() as store:
        after = store.state(T0)
    assert before.first_dirty() == after.first_dirty()
    assert [p.number for p in before.publications] == [p.number for p in after.publications]
    report, _, _ = world.run(expired=True, idles=3)
    assert 0 == report.rounds


@pytest.mark.parametrize("shape", [Shape.BROADCAST, Shape.BUCKET])
def test_expired_segments_go_in_a_round_that_is_cut(world: StoreWorld, shape: Shape) -> None:
    deleted(world)
    world.clock.advance(3_601_000)
    with world.open() as store, world.runner as runner:
        before = store.state(T0).first_dirty()
        report = store.clean(
            T0, lambda files: nullcontext(runner), cleaner=CleanerConfig(),
            memory_bytes=MEMORY_BYTES_MIN, progressed=lambda count: None, shape=shape, expired=True,
        )  # fmt: skip
        assert (True, before) == (report.is_expired_round, store.state(T0).first_dirty())
        assert () == store.verify(T0, lambda count: None)
    assert (text(0), None) not in records(world)


def test_markers_that_may_go_are_found_although_filters_know_no_horizon_of_theirs(
    world: StoreWorld,
) -> None:
    world.log(0, 1, {"delete.retention.ms": "3600000"})
    log = world.logs[0]
    producer = log.producer(1000)
    for _ in range(2):  # an empty batch of the producer stays, and with it its own marker
        producer.send_records(NewRecord(text(0), text(1), world.clock.now_ms()))
        producer.commit()
    log.roll()
    for _ in range(2):  # the first round removes the data, the second dates the marker
        for _ in range(4):
            world.fill(0)
        report, _, _ = world.run(copies=True)
        assert 1 == report.rounds
    world.clock.advance(3_601_000)
    report, _, published = world.run(expired=True)
    facts = published.snapshots[0].partitions[0]
    assert (1, "a round for what has expired: 1 marker batch") == (report.rounds, facts.reason)


def test_looking_for_what_has_expired_reads_no_segment_before_its_time(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter knows the earliest horizon, and is asked once."""
    deleted(world)
    read: list[str] = []

    def noting(self: ObstoreObjects, key: str, *_: int) -> None:
        if not key.startswith(MARKS):
            read.append(key.rpartition("/")[2])

    # Files are filled into the caller's memory otherwise.
    monkeypatch.setattr(ObstoreObjects, "fill", lambda *_: False)
    hear(monkeypatch, ObstoreObjects, "read_range", noting)
    report, _, _ = world.run(expired=True, idles=4)
    assert (0, ["filter"]) == (report.rounds, read)


def test_a_receipt_says_what_each_round_did(world: StoreWorld, tmp_path: Path) -> None:
    receipt = tmp_path / "receipts"
    world.log(0, 3)
    world.run(receipt=receipt)
    world.fill(0)
    world.fill(0)
    world.run(receipt=receipt, copies=True)
    found = read_receipts(receipt, LocalFiles())
    assert [(T0, 0, 15), (T0, 15, 25)] == [
        (each.partition, each.first_dirty, each.end_offset) for each in found
    ]
    *read, _active = found[0].inputs
    assert all(entry.crc32c is not None for entry in (*read, *found[0].outputs))


@pytest.mark.parametrize("slots", [1, 2])
def test_all_rounds_together_stay_below_the_limit_on_bytes(world: StoreWorld, slots: int) -> None:
    world.runner = LocalRunner(slots, clock=world.clock)
    for number in range(2):
        world.log(number, 3)
    began = world.clock.seconds()
    report, _, _ = world.run(slots=slots, io_bytes_per_second=IO_RATE)
    assert (2, {}) == (report.rounds, report.failures)
    assert report.bytes_read > 2 * IO_RATE
    assert report.bytes_read <= IO_RATE * (world.clock.seconds() - began)


def test_rounds_without_a_limit_on_bytes_wait_for_nothing(world: StoreWorld) -> None:
    world.log(0, 3)
    began = world.clock.seconds()
    report, _, _ = world.run()
    assert (1, 0) == (report.rounds, world.clock.seconds() - began)


def test_retention_lets_segments_go(world: StoreWorld, tmp_path: Path) -> None:
    world.log(0, 3, {"cleanup.policy": "delete", "retention.ms": "1000"})
    world.clock.advance(10_000)
    report, narrated, _ = world.run(receipt=tmp_path / "receipts")
    (line,) = read_entries(tmp_path / "receipts", LocalFiles())
    assert isinstance(line, ExpiryReceipt)
    assert (T0, 15, (0, 5, 10)) == (line.partition, line.log_start, line.bases)
    assert [("expired", "t-0", "3")] == [line for line in narrated.lines if line[0] == "expired"]
    assert 0 == report.rounds


def test_another_hosts_partition_is_left_alone(world: StoreWorld) -> None:
    world.log(0, 3)
    report, narrated, published = world.run(owner="b")
    assert [("left alone", "t-0", "owned by a at epoch 0")] == narrated.lines[:1]
    assert State.ELSEWHERE is published.facts(0).state
    assert (0, {}) == (report.rounds, report.failures)


def test_a_partition_is_taken_over_when_asked_to(world: StoreWorld) -> None:
    world.log(0, 3)
    report, _, published = world.run(owner="b", takes_over=True)
    tier = existing(published.facts(0).tier)
    assert (1, "b", 1) == (report.rounds, tier.owner, tier.epoch)


def test_a_fenced_process_says_so_and_does_not_fight_back(world: StoreWorld) -> None:
    world.log(0, 3)

    def fence(times: int) -> None:
        if times == 1:
            with world.open("b") as other:
                other.own(T0, takes_over=True)
            world.fill(0)

    report, narrated, published = world.run(idles=4, on_idle=fence, takes_over=True, copies=True)
    assert ["t-0"] == narrated.of("left alone")
    assert State.ELSEWHERE is published.facts(0).state
    with world.open() as store:
        assert "b" == store.state(T0).owner
    assert (1, {}) == (report.rounds, report.failures)


def test_a_process_that_is_fenced_in_the_middle_of_a_round_leaves_it(world: StoreWorld) -> None:
    world.log(0, 3)
    taken: list[TopicPartition] = []

    def take_over(partition: TopicPartition) -> bool:
        if not taken:
            taken.append(partition)
            with world.open("b") as other:
                other.own(partition, takes_over=True)
        return False

    world.wrap = lambda store: Failing(store, "clean", take_over)
    report, narrated, published = world.run(idles=2)
    assert ["t-0"] == narrated.of("left alone")
    assert State.ELSEWHERE is published.facts(0).state
    assert (0, {}) == (report.rounds, report.failures)


# Two processes with one owner's name.

ELSEWHERE = Holder("e" * 32, "pod-1", 7, "another machine", "1")
ELSEWHERE_TOO = Holder("f" * 32, "pod-2", 7, "a third machine", "1")


def over() -> Holder:
    """Return a process of this machine that has ended."""
    return replace(new_holder(), id="0" * 32, started="0")


def alive() -> Holder:
    """Return another process of this machine that runs, for certain: the first one."""
    first = Path("/proc/1/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    return replace(new_holder(), id="1" * 32, pid=1, started=first)


@pytest.mark.parametrize("holder", [over(), ELSEWHERE], ids=["known to be over", "unknown"])
def test_a_process_that_starts_again_succeeds_at_once_and_without_a_new_epoch(
    world: StoreWorld, holder: Holder
) -> None:
    world.log(0, 3)
    world.open_as(holder).own(T0, takes_over=False)
    report, narrated, published = world.run()
    tier = existing(published.facts(0).tier)
    assert (1, [], 0) == (report.rounds, narrated.of("left alone"), tier.epoch)


def test_a_process_that_runs_is_not_pushed_aside(world: StoreWorld) -> None:
    world.log(0, 3)
    world.open_as(alive()).own(T0, takes_over=False)
    report, narrated, published = world.run()
    ((_, _, reason),) = [line for line in narrated.lines if line[0] == "left alone"]
    assert "another process of the same owner works on the partition" in reason
    assert "owner=a epoch=0 process=1 host=" in reason
    assert f"since={datetime.fromtimestamp(START_MS // 1000, UTC).isoformat()}" in reason
    assert (0, State.ELSEWHERE) == (report.rounds, published.facts(0).state)
    report, narrated, _ = world.run(takes_over=True)
    assert (1, []) == (report.rounds, narrated.of("left alone"))


def test_of_two_the_later_one_stays_and_the_earlier_goes_on_when_it_has_ended(
    world: StoreWorld,
) -> None:
    """Neither takes the partition back from the other, however often it looks."""
    world.log(0, 3)
    later = world.open_as(ELSEWHERE_TOO)
    seen: list[str] = []

    def come(times: int) -> None:
        if times == 1:
            later.own(T0, takes_over=False, succeeds=True)
            for _ in range(3):
                world.fill(0)
        with world.open() as store:
            holder = store.state(T0).holder
            seen.append("" if holder is None else holder.host)
        if times == 4:
            later.__exit__(None, None, None)

    report, narrated, published = world.run(idles=6, on_idle=come, copies=True, holder=ELSEWHERE)
    ((_, _, reason),) = [line for line in narrated.lines if line[0] == "left alone"]
    assert "another process of the same owner has taken the partition" in reason
    assert "process=7 host=pod-2" in reason
    assert ["pod-2"] * 4 + ["pod-1"] * 2 == seen
    assert (2, {}) == (report.rounds, report.failures)
    assert State.NOT_DUE is published.facts(0).state


def test_what_a_slow_process_has_uploaded_is_not_live_after_it_was_collected(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same name and the same epoch; objects that are collected have no row."""
    world.log(0, 3)
    swap = MetadataStore.commit_swap

    def late(store: MetadataStore, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(MetadataStore, "commit_swap", swap)
        for path in (world.root / "objects").rglob("*"):
            os.utime(path, (1, 1))
        with world.open_as(ELSEWHERE_TOO) as second:
            collected.append(second.collect(T0, takes_over=True, garbage_age_ms=0).objects)
        return swap(store, *arguments, **named)

    collected: list[int] = []
    monkeypatch.setattr(MetadataStore, "commit_swap", late)
    world.run(holder=ELSEWHERE)
    assert collected[0] > 0
    with world.open() as store:
        assert () == store.verify(T0, lambda count: None)


@pytest.mark.parametrize("ahead_ms", [24 * 3_600_000, 365 * 24 * 3_600_000])
def test_a_clock_that_was_ahead_holds_no_partition_up_when_it_is_right_again(
    world: StoreWorld, tmp_path: Path, ahead_ms: int
) -> None:
    """On SQLite the host's clock counts; it is named, and nothing waits for it to come again."""
    receipt = tmp_path / "receipts"
    world.log(0, 2)
    world.clock.advance(ahead_ms)
    world.run(receipt=receipt)

    def gain(times: int) -> None:
        if times == 1:
            world.clock.advance(-ahead_ms)
            for _ in range(2):
                world.fill(0)

    report, narrated, published = world.run(idles=3, on_idle=gain, copies=True, receipt=receipt)
    figures = existing(published.facts(0).figures)
    assert (1, 0.0) == (report.rounds, figures.cleanable.ratio)
    assert any("behind the last receipt" in " ".join(line) for line in narrated.lines), (
        narrated.lines
    )
    assert world.clock.now_ms() < START_MS + 3_600_000


def test_an_empty_partition_is_left_to_its_maker(world: StoreWorld) -> None:
    with world.open() as store:
        store.create(T0, COMPACTED)
    _, narrated, _ = world.run()
    assert [("left alone", "t-0", "nothing was copied yet")] == narrated.lines[:1]
    with world.open() as store:
        assert "" == store.state(T0).owner


def test_damage_is_set_aside_in_the_store_until_a_user_says_so(world: StoreWorld) -> None:
    world.log(0, 3)
    world.log(1, 3)
    damaged = world.objects(0)[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    report, narrated, _ = world.run()
    assert ["t-0"] == narrated.of("set aside")
    assert [T0] == list(report.failures)
    assert 1 == report.rounds
    with world.open() as store:
        assert str(store.state(T0).uncleanable_reason).startswith("CorruptError: ")
    damaged.write_bytes(whole)
    report, _, published = world.run()
    assert (0, State.SET_ASIDE) == (report.rounds, published.facts(0).state)
    report, _, _ = world.run(retries=True)
    assert (1, {}) == (report.rounds, report.failures)
    with world.open() as store:
        assert store.state(T0).uncleanable_reason is None


def test_a_database_that_is_away_is_waited_for(world: StoreWorld) -> None:
    world.log(0, 3)
    asked: list[object] = []

    def is_away(each: object) -> bool:
        asked.append(each)
        return len(asked) <= 3

    world.wrap = lambda store: Failing(store, "partitions", is_away)
    report, narrated, _ = world.run(idles=5)
    assert [
        "the store cannot be worked on now: not now",
        "the store can be worked on again",
    ] == narrated.of("warned")
    assert 1 == report.rounds


def test_one_partitions_failure_keeps_no_other_from_its_turn(world: StoreWorld) -> None:
    world.log(0, 3)
    world.log(1, 3)
    world.wrap = lambda store: Failing(store, "clean", lambda partition: partition == T0)
    report, narrated, published = world.run(idles=4)
    pauses = [line[2] for line in narrated.lines if line[:2] == ("retrying", "t-0")]
    assert ["15", "30"] == pauses[:2]
    assert 1 == report.rounds
    assert (State.RETRYING, State.NOT_DUE) == (
        published.facts(0).state,
        published.facts(1).state,
    )


def test_a_partition_that_fails_is_as_overdue_as_it_is(world: StoreWorld) -> None:
    lag = {"max.compaction.lag.ms": "3600000"}
    for number in range(2):
        world.log(number, 3, lag)
    world.clock.advance(3_600_000 + 1_000_000)
    damaged = world.objects(1)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    world.wrap = lambda store: Failing(store, "clean", lambda partition: partition == T0)
    _, _, published = world.run(idles=4)
    found = [
        facts
        for snapshot in published.snapshots
        for facts in snapshot.partitions
        if facts.state in (State.RETRYING, State.SET_ASIDE)
    ]
    assert {T0, T1} == {facts.partition for facts in found}
    known = [facts.figures for facts in found if facts.figures is not None]
    assert len(found) == len(known)
    assert all(figures.compaction_delay_ms >= 1_000_000 for figures in known)
    assert all(figures.cleanable.ratio == 1 for figures in known)


def test_a_round_that_finds_nothing_to_do_is_not_asked_for_again(world: StoreWorld) -> None:
    """An open transaction is known to the objects only."""
    log = world.log(0, 0)
    builder = world.logs[0]
    sender = Sender(producer_id=7, epoch=0, sequence=0, is_transactional=True)
    builder.append(NewRecord(text(1), text(1), world.clock.now_ms()), sender=sender)
    builder.roll()
    with world.open() as store:
        store.import_directory(log, builder.directory, {}, progressed=lambda count: None)
    asked: list[object] = []

    def counts(each: object) -> bool:
        asked.append(each)
        return False

    world.wrap = lambda store: Failing(store, "clean", counts)
    report, _, published = world.run(idles=4)
    assert (1, 0) == (len(asked), report.rounds)
    assert "a transaction is open since offset 0" in published.facts(0).reason
    builder.marker(ControlType.COMMIT, producer_id=7)
    builder.roll()
    report, _, _ = world.run(copies=True)
    assert (2, 1) == (len(asked), report.rounds)


def test_open_transactions_of_several_partitions_let_once_end(world: StoreWorld) -> None:
    """A copy keeps when it was there, which is no news: the store is what it was."""
    sender = Sender(producer_id=7, epoch=0, sequence=0, is_transactional=True)
    for number in range(3):
        partition = world.log(number, 0)
        builder = world.logs[number]
        builder.append(NewRecord(text(1), text(1), world.clock.now_ms()), sender=sender)
        builder.roll()
        with world.open() as store:
            store.import_directory(partition, builder.directory, {}, progressed=lambda count: None)
        world.fill(number)
        world.fill(number)
    asked: list[object] = []

    def takes_time(partition: object) -> bool:
        asked.append(partition)
        assert len(asked) <= 6
        world.clock.advance(5)
        return False

    world.wrap = lambda store: Failing(store, "clean", takes_time)
    report, narrated, published = world.run(copies=True)
    assert (["t-0", "t-1", "t-2"], 0) == (narrated.of("chosen"), report.rounds)
    assert (State.NOT_DUE, ()) == (published.facts(2).state, report.left)
    world.run(copies=True, idles=3)
    # At another start each is tried once more, and then waits.
    assert 6 == len(asked)


def test_a_stop_ends_a_round_and_leaves_it_to_the_next_run(world: StoreWorld) -> None:
    world.log(0, 3)

    def stop(partition: object) -> bool:
        assert world.daemon is not None
        world.daemon.stop()
        return False

    world.wrap = lambda store: Failing(store, "clean", stop)
    report, _, published = world.run()
    assert ((T0,), {}, 0) == (report.left, report.failures, report.rounds)
    assert State.ELIGIBLE is published.facts(0).state
    world.wrap = lambda store: store
    report, _, _ = world.run()
    assert ((), 1) == (report.left, report.rounds)


def test_rounds_are_done_at_once_in_threads(world: StoreWorld) -> None:
    world.log(0, 3)
    world.log(1, 3)
    report, narrated, _ = world.run(slots=2)
    assert (2, ["t-0", "t-1"]) == (report.rounds, sorted(narrated.of("finished")))
    assert 1 == report.snapshot.turn


def test_what_was_given_up_is_not_copied_again_and_its_objects_are_collected(
    world: StoreWorld,
) -> None:
    world.log(0, 3)
    world.log(1, 3)
    world.run()
    with world.open() as store:
        store.removals.forget(T0, grace_ms=0)
    world.fill(0)
    world.clock.advance(1)
    _, narrated, _ = world.run(copies=True)
    assert (["t-0"], []) == (narrated.of("collected"), narrated.of("copied"))
    assert ([], True) == (world.objects(0), bool(world.objects(1)))


def test_metadata_from_a_backup_is_left_alone_by_name(world: StoreWorld) -> None:
    """Nothing is copied, cleaned or collected by it; what is in the place stays as it is."""
    world.log(0, 3)
    backup = world.root / "backup.db"
    shutil.copy(world.root / "meta.db", backup)
    for _ in range(3):
        world.fill(0)
    world.run(copies=True)
    before = world.objects(0)
    for path in world.root.glob("meta.db*"):
        path.unlink()
    shutil.copy(backup, world.root / "meta.db")
    report, narrated, _ = world.run(copies=True)
    (line,) = [line for line in narrated.lines if line[0] == "left alone"]
    assert "the metadata is older than its objects" in line[2]
    assert (0, before) == (report.rounds, world.objects(0))
