"""The daemon by a manual clock: which rounds it does when, and what it makes of trouble.

CM and CI ids are those of Kafka's LogCleanerManagerTest and its integration tests (cleaning.md
sections 8.2 and 8.3), X ids those of section 8.7.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from keeplast.api.open_log import open_log
from keeplast.cleaner.log_order import PASSED_OVER_MAX, Choice, Order
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.log.files import ReadHandle, WriteHandle
from keeplast.log.lock import is_locked
from keeplast.log.root_files import RECEIPTS_NAME as RECEIPTS
from keeplast.model.partition import TopicPartition
from keeplast.service import schedule
from keeplast.service.gauges import GAUGES, GaugeObserver
from keeplast.service.live import Control, Deed
from keeplast.service.metrics import CleanerCollector, exposition
from keeplast.service.schedule import RETRY_MS_MAX
from keeplast.service.snapshot import Snapshot
from keeplast.service.status import State
from keeplast.survey.report import RoundReport
from tests.support.daemon_world import SETTINGS, Narrated, Published, World
from tests.support.durations import HOUR_MS
from tests.support.flipped import flip
from tests.support.log_builder import START_MS
from tests.support.observed_files import Crash, ObservedFiles, StoppingFiles, UnsyncedFiles
from tests.support.partition_maker import clean_at


def bytes_below(world: World, number: int) -> int:
    active = f"{world.logs[number].active_base:020d}.log"
    return sum(p.stat().st_size for p in world.path(number).glob("*.log") if p.name != active)


def test_everything_that_is_worth_it_is_cleaned_once(world: World) -> None:
    for number in range(3):
        world.log(number, 2)
    expected = [world.state(number) for number in range(3)]
    report, narrated, published = world.once()
    assert (3, {}, ()) == (report.rounds, report.failures, report.left)
    assert ["t-0", "t-1", "t-2"] == narrated.of("chosen")
    assert [10, 10, 10] == [world.checkpoint(number) for number in range(3)]
    assert expected == [world.state(number) for number in range(3)]
    assert {State.NOT_DUE} == {x.state for x in published.snapshots[-1].partitions}
    assert report.bytes_read > report.bytes_written > 0


def test_it_waits_for_the_back_off_and_looks_again(world: World) -> None:
    world.settings(SETTINGS + "[cluster]\n'log.cleaner.backoff.ms' = 4000\n")
    world.log(0, 2)

    def write_more(times: int) -> None:
        if times == 2:
            world.fill(0)
            world.fill(0)

    report, narrated, _ = world.until_idle(3, write_more)
    assert [4.0] * 3 == narrated.idle_seconds
    assert ["idle", "idle", "idle"] == [line[0] for line in narrated.lines if line[0] == "idle"]
    assert 2 == report.rounds
    # The third pause is cut short by the stop.
    assert START_MS + 8000 == world.clock.now_ms()


def test_the_lock_is_held_from_start_to_end(world: World) -> None:
    world.log(0, 2)
    seen = []
    world.until_idle(2, lambda _: seen.append(is_locked(world.root)))
    assert [True, True] == seen
    assert not is_locked(world.root)


def test_a_directory_in_use_is_refused(world: World) -> None:
    world.log(0, 2)

    def second(_: int) -> None:
        with pytest.raises(RefusedError):
            world.once()

    world.until_idle(1, second)


@pytest.mark.parametrize("order", Order)
def test_cm02_the_dirtiest_log_is_cleaned_first(tmp_path: Path, order: Order) -> None:
    world = World(tmp_path / "data")
    for number, segments in enumerate((4, 5, 6)):
        world.log(number, segments)
        world.set_checkpoint(number, 20)
    world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 0.05\n')
    _, narrated, _ = world.once(order=order)
    assert ["t-2", "t-1"] == narrated.of("chosen")


def test_cm03_cm21_a_log_that_is_set_aside_is_not_chosen(world: World) -> None:
    for number in range(2):
        world.log(number, 2 + number)
    damage(world, 1)
    _, narrated, _ = world.once()
    assert [("set aside", "t-1")] == [line[:2] for line in narrated.lines if line[0] == "set aside"]
    _, again, _ = world.once()
    assert [] == again.of("chosen")


def test_cm06_a_checkpoint_beyond_the_log_makes_everything_dirty_again(world: World) -> None:
    world.log(0, 4)
    world.set_checkpoint(0, 200)
    _, _, published = world.once()
    figures = published.snapshots[0].partitions[0].figures
    assert figures is not None
    assert 0 == figures.first_dirty
    assert 20 == world.checkpoint(0)


def test_cm30_a_checkpoint_is_repaired_where_nothing_is_cleaned(world: World) -> None:
    log = world.log(0)
    log.roll(20)
    (world.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    world.set_checkpoint(0, 15)
    report, _, _ = world.once()
    assert (0, 20) == (report.rounds, world.checkpoint(0))


def test_cm31_a_checkpoint_is_repaired_of_a_log_that_is_not_chosen(world: World) -> None:
    world.log(0, 4)
    world.log(1, 5)
    (world.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 15\n")
    world.set_checkpoint(0, 10)
    world.set_checkpoint(1, 5)
    narrated, published = Narrated(), Published()
    daemon = world.daemon(narrated, published, order=Order.KAFKA)
    repaired = []

    def stop(choices: Sequence[Choice]) -> None:
        repaired.append(world.checkpoint(0))
        daemon.stop()

    narrated.on_chosen = stop
    daemon.run()
    assert ["t-1"] == narrated.of("chosen")
    assert [15] == repaired


def test_x09_an_overdue_log_comes_first_and_by_kafka_s_order_the_dirtiest(tmp_path: Path) -> None:
    for order, expected in ((Order.OVERDUE_FIRST, ["t-0", "t-1"]), (Order.KAFKA, ["t-1", "t-0"])):
        world = World(tmp_path / order)
        world.log(0, 8)
        world.set_checkpoint(0, 35)
        world.clock.advance(2 * HOUR_MS)
        world.log(1, 2)
        world.settings(SETTINGS + f'"max.compaction.lag.ms" = {HOUR_MS}\n')
        _, narrated, _ = world.once(order=order)
        assert expected == narrated.of("chosen")


def go_on() -> None:
    """Ask for nothing."""


class Hot(Narrated):
    """Writes to t-0 after each of its rounds, so that it is the dirtiest again."""

    def __init__(self, world: World, turns: int) -> None:
        super().__init__()
        self._world = world
        self._turns = turns
        self.stop: Callable[[], None] = go_on

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        super().finished(partition, report)
        if partition.partition == 0:
            for _ in range(3):
                self._world.fill(0)
        if len(self.of("finished")) >= self._turns:
            self.stop()

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        raise AssertionError("there is always something to clean")


@pytest.mark.parametrize("order", Order)
def test_a_hot_log_starves_the_rest_by_kafka_s_order_only(tmp_path: Path, order: Order) -> None:
    world = World(tmp_path / "data")
    world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 0.1\n')
    world.log(0, 3)
    for number in (1, 2):
        world.log(number)
        for first_key in range(0, 25, 5):
            world.fill(number, first_key=first_key)
        world.set_checkpoint(number, 20)
    turns = 2 * (PASSED_OVER_MAX + 2)
    narrated = Hot(world, turns)
    daemon = world.daemon(narrated, Published(), order=order)
    narrated.stop = daemon.stop
    daemon.run()
    rest = {"t-1", "t-2"} & set(narrated.of("chosen"))
    assert (set() if order is Order.KAFKA else {"t-1", "t-2"}) == rest
    if rest:
        assert PASSED_OVER_MAX == narrated.of("chosen").index("t-1")


def damage(world: World, number: int) -> Path:
    """Change a byte in the first closed segment; returns its path."""
    path = sorted(world.path(number).glob("*.log"))[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return path


def test_ci01_a_damaged_log_is_set_aside_and_stops_no_other(world: World) -> None:
    for number in range(4):
        world.log(number, 2)
    path = damage(world, 0)
    damage(world, 1)
    report, narrated, published = world.once()
    assert ["t-0", "t-1"] == narrated.of("set aside")
    assert [None, None, 10, 10] == [world.checkpoint(number) for number in range(4)]
    states = [facts.state for facts in published.snapshots[-1].partitions]
    aside, waiting = State.SET_ASIDE, State.NOT_DUE
    assert [aside, aside, waiting, waiting] == states
    assert all(isinstance(error, CorruptError) for error in report.failures.values())
    marks = schedule.read_set_aside(world.files, world.root)
    assert {"t-0", "t-1"} == {str(partition) for partition in marks}
    mark = marks[published.facts(0).partition]
    assert (str(path), "CorruptError", START_MS) == (mark.path, mark.error_class, mark.since_ms)
    # A partition that is gone is forgotten.
    shutil.rmtree(world.path(0))
    _, _, later = world.once()
    assert 1 == sum(x.state is aside for x in later.snapshots[-1].partitions)
    assert {"t-1"} == {str(x) for x in schedule.read_set_aside(world.files, world.root)}


def test_a_partition_set_aside_stays_so_after_a_restart(world: World) -> None:
    world.log(0, 2)
    damage(world, 0)
    world.once()
    before = (world.root / schedule.FILE_NAME).read_bytes()
    world.clock.advance(HOUR_MS)
    _, narrated, published = world.once()
    assert [] == narrated.of("chosen")
    assert START_MS == published.facts(0).set_aside_since_ms
    assert before == (world.root / schedule.FILE_NAME).read_bytes()


def test_other_files_are_tried_again(world: World) -> None:
    world.log(0, 2)
    path = damage(world, 0)
    world.once()
    flip(path)
    report, narrated, _ = world.once()
    assert ["t-0"] == narrated.of("chosen")
    assert ({}, 10) == (report.failures, world.checkpoint(0))
    assert not (world.root / schedule.FILE_NAME).exists()


def test_retry_tries_what_was_set_aside(world: World) -> None:
    world.log(0, 2)
    damage(world, 0)
    world.once()
    report, narrated, _ = world.once(retries=True)
    assert ["t-0"] == narrated.of("set aside")
    assert 1 == len(report.failures)


def test_a_damaged_list_of_partitions_set_aside_is_reported_and_made_again(world: World) -> None:
    world.log(0, 2)
    damage(world, 0)
    (world.root / schedule.FILE_NAME).write_text('{"version": 1, "partitions": [{')
    _, narrated, _ = world.once()
    assert any("is damaged" in message for message in narrated.of("warned"))
    assert ["t-0"] == narrated.of("set aside")
    assert 1 == len(schedule.read_set_aside(world.files, world.root))


def test_a_list_of_a_newer_version_is_refused(world: World) -> None:
    world.log(0, 2)
    (world.root / schedule.FILE_NAME).write_text('{"version": 99}')
    with pytest.raises(InvalidError, match="newer keeplast"):
        world.once()


class NarrowFiles(UnsyncedFiles):
    """A volume that has ``free`` bytes left, as it says when it is asked."""

    def __init__(self) -> None:
        self.free = 1 << 40

    def free_bytes(self, path: Path) -> int:
        return self.free


def block_by_a_directory(world: World, is_blocked: bool) -> None:
    """Put a directory in the place of the receipts, or take it away."""
    path = world.root / RECEIPTS
    if is_blocked:
        path.mkdir()
    else:
        path.rmdir()


def block_by_a_full_disk(world: World, is_blocked: bool) -> None:
    """Fill the disk, or make room; what is free differs from look to look."""
    assert isinstance(world.files, NarrowFiles)
    world.files.free = 1000 if is_blocked else 1 << 40


@pytest.mark.parametrize("block", [block_by_a_directory, block_by_a_full_disk])
@pytest.mark.parametrize("segments", [1, 2], ids=["nothing due", "a round due"])
def test_a_receipt_that_cannot_be_written_is_awaited_and_a_gauge_says_so(
    tmp_path: Path, block: Callable[[World, bool], None], segments: int
) -> None:
    world = World(tmp_path / "data", files=NarrowFiles())
    world.log(0, segments)
    world.log(1)
    if segments == 1:
        world.set_checkpoint(0, 5)
    block(world, True)
    control = Control(world.clock)
    gauges = GaugeObserver(control)
    scraped: list[bool] = []

    def act(times: int) -> None:
        if isinstance(world.files, NarrowFiles) and world.files.free < 1 << 20:
            world.files.free += 1
        text_ = exposition(CleanerCollector(gauges, world.clock, "here")).decode()
        scraped.append("keeplast_blocked 1.0" in text_)
        assert ("receipt" in (control.trouble or "")) is scraped[-1]
        if times == 3:
            block(world, False)

    report, narrated, published = world.until_idle(5, act, control)
    assert [True] * 3 + [False] * 2 == scraped
    first, last = (line for line in narrated.of("warned") if "be worked on" in line)
    assert "cannot be worked on now" in first
    assert "can be worked on again" in last
    assert max(narrated.idle_seconds) <= RETRY_MS_MAX / 1000
    assert ({}, ()) == (report.failures, report.left)
    assert 2 == len(published.snapshots[-1].partitions)
    assert 5 * segments == world.checkpoint(0)


def test_once_a_receipt_that_cannot_be_written_is_refused(world: World) -> None:
    world.log(0, 2)
    block_by_a_directory(world, True)
    with pytest.raises(RefusedError, match="receipt is a directory"):
        world.once()


def test_a_wish_that_cannot_be_written_down_is_granted_when_it_can(world: World) -> None:
    world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 0.9\n')
    world.log(0, 3)
    world.set_checkpoint(0, 10)
    block_by_a_directory(world, True)
    control = Control(world.clock)

    def act(times: int) -> None:
        if times == 1:
            for number in range(2):
                control.ask(Deed.CLEAN, TopicPartition("t", number), "a test")
            control.ask(Deed.RETRY, None, "a test")
        if times == 4:
            control.ask(Deed.RETRY, None, "a test")
        if times == 6:
            block_by_a_directory(world, False)

    report, narrated, _ = world.until_idle(8, act, control)
    assert [15.0] * 8 == narrated.idle_seconds
    assert (1, 15) == (report.rounds, world.checkpoint(0))
    kept = (world.root / RECEIPTS).read_bytes().splitlines()
    assert [b"clean now", b"clean now", b"retry", b"retry"] == [
        json.loads(line)["action"]["name"].encode() for line in kept if b'"action"' in line
    ]


class FlakyFiles(UnsyncedFiles):
    """Fails to open the first segment of t-0 so many times, as a bad disk would."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def open_read(self, path: Path) -> ReadHandle:
        if path.parent.name == "t-0" and path.name.endswith("0000.log") and self.left:
            self.left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().open_read(path)


def test_an_error_of_the_disk_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    world = World(tmp_path / "data", files=FlakyFiles(3))
    world.settings(SETTINGS + "[cluster]\n'log.cleaner.backoff.ms' = 1000\n")
    for number in range(2):
        world.log(number, 2)
    report, narrated, published = world.until_idle(9)
    assert ["1", "2", "4"] == [line[2] for line in narrated.lines if line[0] == "retrying"]
    assert [] == narrated.of("set aside")
    assert {"t-0", "t-1"} == set(narrated.of("finished"))
    assert ({}, 10, 10) == (report.failures, world.checkpoint(0), world.checkpoint(1))
    assert 0 == published.facts(0).failures


@pytest.mark.parametrize("ahead_ms", [24 * HOUR_MS, 365 * 24 * HOUR_MS])
def test_a_clock_that_was_ahead_holds_nothing_up_when_it_is_right_again(
    tmp_path: Path, ahead_ms: int
) -> None:
    """A partition that fails, one that is looked at, and one that was cleaned while it was so."""
    world = World(tmp_path / "data", files=FlakyFiles(1))
    world.settings(SETTINGS + "[cluster]\n'log.cleaner.backoff.ms' = 60000\n")
    for number in range(2):
        world.log(number, 2)
    world.clock.advance(ahead_ms)

    def act(times: int) -> None:
        if times == 1:
            world.clock.advance(-ahead_ms)
            world.fill(1)

    report, narrated, _ = world.until_idle(3, act)
    assert ["retrying"] == [line[0] for line in narrated.lines if line[0] == "retrying"]
    assert ({}, 10, 15) == (report.failures, world.checkpoint(0), world.checkpoint(1))
    assert world.clock.now_ms() < START_MS + HOUR_MS


@pytest.mark.parametrize("ahead_ms", [24 * HOUR_MS, 365 * 24 * HOUR_MS])
def test_a_clock_before_the_last_receipt_is_in_the_report_of_the_next_round(
    world: World, ahead_ms: int
) -> None:
    world.log(0, 2)
    world.clock.advance(ahead_ms)
    world.once()
    world.clock.advance(-ahead_ms)
    world.fill(0)
    world.fill(0)
    _, _, published = world.once()
    last = published.facts(0).last_round
    assert last is not None
    expected = f"the clock is {ahead_ms // 1000} s behind the last receipt"
    assert [expected] == [note[: len(expected)] for note in last.notes if "clock" in note]


class FullFiles(UnsyncedFiles):
    """A disk that has no room for what a round of t-0 writes, until somebody makes some."""

    def __init__(self) -> None:
        self.is_full = True

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        if path.parent.name == "t-0" and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().open_write(path, append=append)


OVERDUE = SETTINGS + '"max.compaction.lag.ms" = 3600000\n'
YEARS_MS = 1096 * 24 * HOUR_MS


def gauges_of(snapshot: Snapshot) -> dict[str, float]:
    """Return what a scrape would give of a snapshot."""
    observer = GaugeObserver()
    observer.published(snapshot)
    return {gauge.name: gauge.value(observer.observed, snapshot.looked_ms) for gauge in GAUGES}


def test_a_log_whose_rounds_fail_is_as_overdue_and_dirty_as_it_is(tmp_path: Path) -> None:
    files = FullFiles()
    world = World(tmp_path / "data", files=files)
    world.settings(OVERDUE)
    world.log(0, 2)
    world.clock.advance(YEARS_MS + HOUR_MS)

    def make_room(times: int) -> None:
        files.is_full = times < 4

    _, _, published = world.until_idle(8, make_room)
    waiting = [x for x in published.snapshots if x.partitions[0].state is State.RETRYING]
    found = gauges_of(waiting[0])
    assert YEARS_MS // 1000 == found["max-compaction-delay-secs"]
    assert 100 == found["max-dirty-percent"]
    assert 0 == found["uncleanable-partitions-count"]
    known = [x.partitions[0].figures for x in waiting]
    grown = [0 if figures is None else figures.compaction_delay_ms for figures in known]
    assert [YEARS_MS + x.looked_ms - waiting[0].looked_ms for x in waiting] == grown
    assert grown[-1] > grown[0]
    assert 0 == gauges_of(published.snapshots[-1])["max-compaction-delay-secs"]


def test_which_partitions_fail_is_written_down_until_a_round_ends_well(tmp_path: Path) -> None:
    files = FullFiles()
    world = World(tmp_path / "data", files=files)
    for number in range(2):
        world.log(number, 2)
    partition = TopicPartition("t", 0)

    def written() -> dict[TopicPartition, schedule.SetAside]:
        return schedule.read_set_aside(files, world.root, schedule.FAILING_NAME)

    world.once()
    (mark,) = written().values()
    assert (partition, START_MS, "OSError") == (mark.partition, mark.since_ms, mark.error_class)
    assert "no space left" in mark.reason
    world.clock.advance(HOUR_MS)
    world.once()
    assert START_MS == written()[partition].since_ms
    files.is_full = False
    report, _, _ = world.once()
    assert (1, {}) == (report.rounds, written())


def test_a_log_that_was_set_aside_before_the_start_is_overdue_all_the_same(world: World) -> None:
    world.settings(OVERDUE)
    world.log(0, 2)
    damage(world, 0)
    world.once()
    world.clock.advance(YEARS_MS + HOUR_MS)
    report, narrated, published = world.once()
    assert (0, []) == (report.rounds, narrated.of("set aside"))
    assert State.SET_ASIDE is published.facts(0).state
    found = gauges_of(published.snapshots[-1])
    assert YEARS_MS // 1000 == found["max-compaction-delay-secs"]
    assert (1, 0) == (found["uncleanable-partitions-count"], found["max-dirty-percent"])
    assert bytes_below(world, 0) == found["uncleanable-bytes"]


def test_once_ends_although_something_failed_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "data", files=FlakyFiles(1000))
    for number in range(2):
        world.log(number, 2)
    report, _, published = world.once()
    assert ["t-0"] == [str(partition) for partition in report.failures]
    assert State.RETRYING is published.facts(0).state
    assert 10 == world.checkpoint(1)


def test_changed_settings_apply_from_the_next_turn(world: World) -> None:
    world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 0.9\n')
    world.log(0, 4)
    world.set_checkpoint(0, 5)

    def relax(times: int) -> None:
        if times == 2:
            world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 0.1\n')

    report, narrated, _ = world.until_idle(3, relax)
    kinds = [line[0] for line in narrated.lines]
    assert ["idle", "idle", "chosen", "finished", "idle"] == kinds
    assert 1 == report.rounds


def test_settings_that_cannot_be_used_are_said_once_and_the_last_ones_stay(world: World) -> None:
    world.log(0, 2)

    def spoil(times: int) -> None:
        if times == 1:
            world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 7\n')
            world.fill(0)
            world.fill(0)

    report, narrated, _ = world.until_idle(4, spoil)
    (complaint,) = narrated.of("warned")
    assert "the last good settings stay" in complaint
    assert "min.cleanable.dirty.ratio" in complaint
    assert (2, 20) == (report.rounds, world.checkpoint(0))


def test_bad_settings_at_the_start_are_an_error(world: World) -> None:
    world.log(0, 2)
    world.settings(SETTINGS + '"min.cleanable.dirty.ratio" = 7\n')
    with pytest.raises(InvalidError):
        world.once()


def test_new_partitions_are_found_and_others_vanish(world: World) -> None:
    world.log(0, 2)

    def change(times: int) -> None:
        if times == 1:
            shutil.rmtree(world.path(0))
            world.log(1, 2)

    _, narrated, published = world.until_idle(2, change)
    assert ["t-0", "t-1"] == narrated.of("chosen")
    assert ["t-1"] == [str(facts.partition) for facts in published.snapshots[-1].partitions]


def test_the_directory_s_own_checkpoint_cannot_be_guessed(world: World) -> None:
    world.log(0, 2)
    (world.root / CLEANER_CHECKPOINT).write_text("what?\n")
    with pytest.raises(CorruptError, match=CLEANER_CHECKPOINT):
        world.once()
    assert not (world.root / schedule.FILE_NAME).exists()


def test_an_idle_segment_is_rolled_and_cleaned_when_it_is_overdue(world: World) -> None:
    world.settings(SETTINGS + f'"max.compaction.lag.ms" = {HOUR_MS}\n')
    log = world.log(0, 1)
    log.append(NewRecord(b"0", b"8", world.clock.now_ms()))
    log.close()
    world.once()
    assert 5 == world.checkpoint(0)
    world.clock.advance(HOUR_MS + 1)
    _, narrated, _ = world.once()
    assert ["t-0"] == narrated.of("chosen")
    assert 6 == world.checkpoint(0)


def test_expired_segments_go_when_the_settings_say_so(world: World) -> None:
    world.settings(SETTINGS + '"delete.retention.ms" = 1000\n')
    log = world.log(0, 1)
    log.tombstone(0)
    log.roll()
    world.once()
    world.clock.advance(1000)
    report, _, _ = world.once()
    assert 0 == report.rounds
    world.settings(
        SETTINGS + '"delete.retention.ms" = 1000\n[cluster]\n"log.cleaner.expired.rounds" = true\n'
    )
    report, narrated, published = world.once()
    assert [("chosen", "t-0", "only expired tombstones and markers")] == [
        line for line in narrated.lines if line[0] == "chosen"
    ]
    assert (1, 6) == (report.rounds, world.checkpoint(0))
    last = published.facts(0).last_round
    assert last is not None
    assert last.reasons is not None
    assert 1 == last.reasons.tombstone_records


def test_every_round_leaves_a_receipt(world: World) -> None:
    for number in range(2):
        world.log(number, 2)
    world.once()
    assert 2 == len((world.root / RECEIPTS).read_bytes().splitlines())


def test_readers_go_on_during_swaps(world: World) -> None:
    """Readers opened before, between and after the rounds see every final value."""
    world.log(0, 3)
    expected = world.state(0)

    def final(records: Iterator[Record]) -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in records}

    reader = open_log(world.path(0)).records()
    begun = [next(reader)]
    world.once()
    for _ in range(2):
        world.fill(0)
    middle = open_log(world.path(0)).records()
    second = [next(middle)]
    expected_later = world.state(0)
    world.once()
    first = final(iter([*begun, *reader]))
    assert expected_later == final(iter([*second, *middle]))
    assert expected.keys() == first.keys()
    assert expected_later == final(open_log(world.path(0)).records())


def snapshot_states(world: World) -> list[dict[bytes, bytes]]:
    return [world.state(number) for number in world.logs]


def test_ct33_x41_a_stop_at_any_operation_leaves_everything_whole(tmp_path: Path) -> None:
    def make(name: str, files: ObservedFiles) -> World:
        world = World(tmp_path / name, files=files)
        for number in range(2):
            world.log(number, 2)
        return world

    counting = ObservedFiles()
    whole = make("whole", counting)
    whole.once()
    expected = snapshot_states(whole)
    outcomes = set()
    for stop_at in range(len(counting.operations)):
        files = StoppingFiles(stop_at)
        world = make(str(stop_at), files)
        narrated, published = Narrated(), Published()
        daemon = world.daemon(narrated, published)
        files.stop = daemon.stop
        report = daemon.run()
        assert expected == snapshot_states(world), stop_at
        assert {} == report.failures
        done = sum(world.checkpoint(number) == 10 for number in range(2))
        assert done == report.rounds, stop_at
        assert 2 == report.rounds + len(report.left), stop_at
        outcomes.add(done)
        for log in world.logs.values():
            log.close()
    assert {0, 1, 2} == outcomes


def test_a_crash_at_any_operation_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    def make(name: str, files: ObservedFiles) -> World:
        world = World(tmp_path / name, files=files)
        world.log(0, 2)
        world.log(1, 2)
        damage(world, 1)
        return world

    counting = ObservedFiles()
    whole = make("whole", counting)
    whole.once()
    expected = whole.state(0)
    size = bytes_below(whole, 0)
    for crash_at in range(len(counting.operations)):
        world = make(str(crash_at), ObservedFiles(crash_at=crash_at))
        with pytest.raises(Crash):
            world.once()
        world.files = UnsyncedFiles()
        _, _, published = world.once()
        assert expected == world.state(0), crash_at
        assert (10, size) == (world.checkpoint(0), bytes_below(world, 0)), crash_at
        assert State.SET_ASIDE is published.facts(1).state, crash_at
        names = os.listdir(world.path(0)) + os.listdir(world.path(1))
        assert [] == [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]
        for log in world.logs.values():
            log.close()


def test_without_a_set_aside_log_the_bytes_are_those_of_clean(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    world.log(0, 3)
    other.log(0, 3)
    world.once()
    report = clean_at(other.path(0), START_MS)
    assert report.error is None
    ours = sorted((p.name, p.read_bytes()) for p in world.path(0).glob("*.log"))
    theirs = sorted((p.name, p.read_bytes()) for p in other.path(0).glob("*.log"))
    assert theirs == ours


COMPACT_DELETE = '[topic."t"]\n"cleanup.policy" = "compact,delete"\n"retention.ms" = 100000\n'


def test_cp06_a_compacted_log_that_expires_is_cleaned_and_then_expired(world: World) -> None:
    world.settings(COMPACT_DELETE)
    log = world.log(0, 2)
    log.close()
    _, narrated, _ = world.once()
    assert (["t-0"], []) == (narrated.of("chosen"), narrated.of("expired"))
    assert 10 == world.checkpoint(0)
    world.clock.advance(200_000)
    _, narrated, _ = world.once()
    assert [("expired", "t-0", "1")] == [line for line in narrated.lines if line[0] == "expired"]
    assert {} == world.state(0)
    assert ["00000000000000000010.log"] == [p.name for p in world.path(0).glob("*.log")]


def test_x46_a_log_that_is_set_aside_does_not_expire_either(world: World) -> None:
    world.settings(COMPACT_DELETE)
    world.log(0, 2).close()
    damage(world, 0)
    names = sorted(os.listdir(world.path(0)))
    world.clock.advance(200_000)
    _, narrated, _ = world.once()
    assert (["t-0"], []) == (narrated.of("set aside"), narrated.of("expired"))
    assert names == sorted(os.listdir(world.path(0)))


class CountedFiles(UnsyncedFiles):
    """Counts how often a partition directory is listed."""

    def __init__(self) -> None:
        self.listed = 0

    def listdir(self, path: Path) -> list[str]:
        self.listed += path.name.startswith("t-")
        return super().listdir(path)


def test_many_partitions_are_not_looked_at_for_every_round(tmp_path: Path) -> None:
    listed = []
    for count in (10, 20):
        files = CountedFiles()
        world = World(tmp_path / str(count), files=files)
        for number in range(count):
            world.log(number, 1).close()
        report, _, _ = world.once()
        assert count == report.rounds
        listed.append(files.listed)
    # Twice the partitions take twice the looks, not four times.
    assert listed[1] == 2 * listed[0]


class DefectiveFiles(UnsyncedFiles):
    """Behaves as a defect of ours would, for t-1 alone: when it reads, or when it writes."""

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes

    def open_read(self, path: Path) -> ReadHandle:
        if path.parent.name == "t-1" and not self._writes:
            raise IndexError("a defect")
        return super().open_read(path)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        if path.parent.name == "t-1" and self._writes:
            raise IndexError("a defect")
        return super().open_write(path, append=append)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_defect_sets_one_partition_aside_and_stops_no_other(tmp_path: Path, slots: int) -> None:
    world = World(tmp_path / "data", slots=slots, files=DefectiveFiles(writes=True))
    for number in range(3):
        world.log(number, 2)
    report, narrated, _ = world.once()
    assert ["t-1"] == narrated.of("set aside")
    assert [10, None, 10] == [world.checkpoint(number) for number in range(3)]
    assert 1 == len(report.failures)
    assert [] == [name for name in os.listdir(world.path(0)) if name.endswith(".deleted")]


def test_a_defect_while_looking_stops_no_other(tmp_path: Path) -> None:
    world = World(tmp_path / "data", files=DefectiveFiles(writes=False))
    for number in range(3):
        world.log(number, 2)
    report, _, _ = world.once()
    assert ["t-1"] == [str(partition) for partition in report.failures]
    assert [10, None, 10] == [world.checkpoint(number) for number in range(3)]
