"""The markers are asked when a round meets a transaction, not before, and with the same outcome."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.shapes import WHOLE, ShapeChoice
from keeplast.clock import SystemClock
from keeplast.format import txn_index
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.transactions import MarkedPlan
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.cleanings import Alteration, Altered, expects_no_transactions
from tests.support.observed_files import ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import (
    NOW_MS,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    data_batch,
    last_round,
    marker,
    one,
    records_of,
    write_partition,
    write_segment,
)
from tests.support.replay import tree

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
BY_TIMESTAMP = replace(SMALL_SEGMENTS, strategy=Strategy.TIMESTAMP)
SHAPES = [
    WHOLE,
    ShapeChoice(Shape.BROADCAST),
    ShapeChoice(Shape.BUCKET, 3),
]


def expects_transactions_always(task: PartitionTask) -> PartitionTask:
    return replace(task, plan=replace(task.plan, expects_transactions=True))


def marked_first(task: PartitionTask) -> PartitionTask:
    """The markers have been asked before anything is read."""
    marked = MarkedPlan(task.plan, task.path, LocalFiles(), lambda _: None)
    return replace(task, plan=marked.ask())


class ReadingFiles(UnsyncedFiles):
    """Counts how often each log file is opened to be read."""

    def __init__(self) -> None:
        self.opened: Counter[int] = Counter()

    def open_read(self, path: Path) -> ReadHandle:
        if path.suffix == ".log":
            self.opened[int(path.stem)] += 1
        return super().open_read(path)


def cleaned(
    directory: Path,
    choice: ShapeChoice,
    alter: Alteration,
    *,
    topic: TopicConfig = SMALL_SEGMENTS,
    dirty: int = 0,
    workers: UnsyncedFiles | None = None,
) -> RoundReport:
    request = replace(clean_request(directory, topic=topic), first_dirty_offset=dirty)
    with LocalRunner(cores=2, files=workers or UnsyncedFiles()) as threads:
        runner = Altered(threads, choice, alter)
        coordinator = Coordinator(runner, SystemClock(), UnsyncedFiles(), NoEvents())
        report = last_round(coordinator.clean(request))
    assert report.failure is None, report.failure
    return report


def contents(directory: Path) -> dict[str, str]:
    return {name: digest for name, (digest, _) in tree(directory).items()}


def random_segments(dice: random.Random, events_below: int) -> dict[int, bytes]:
    """Segments of which the first and the last may be plain; timestamps do not ascend."""
    segments, offset, open_ = dict[int, bytes](), 0, set[int]()
    events_from, events_to = sorted(dice.sample(range(events_below), 2))
    for _ in range(6):
        base, data = offset, b""
        for _ in range(dice.randrange(1, 12)):
            key, producer = dice.choice([b"a", b"b", b"c", b"d"]), dice.randrange(1, 4)
            if offset >= events_to and open_:
                data += marker(offset, open_.pop(), dice.choice([ABORT, COMMIT]))
                offset += 1
                continue
            step = dice.randrange(5) if events_from <= offset < events_to else 4
            if step == 4:
                data += one(offset, key, b"%d" % offset, NOW_MS - dice.randrange(50))
            elif step and producer not in open_:
                data += data_batch(offset, producer, [key])
                open_.add(producer)
            else:
                data += marker(offset, producer, dice.choice([ABORT, COMMIT]))
                open_.discard(producer)
            offset += dice.choice([1, 1, 3])
        segments[base] = data
    # A transaction that stays open would keep the round from what lies behind it.
    for producer in sorted(open_):
        segments[base] += marker(offset, producer, dice.choice([ABORT, COMMIT]))
        offset += 1
    segments[offset] = one(offset, b"a", b"last", NOW_MS)
    return segments


@pytest.mark.rotates(3)
@pytest.mark.parametrize("alter", [expects_no_transactions, expects_transactions_always])
@pytest.mark.parametrize("topic", [SMALL_SEGMENTS, BY_TIMESTAMP], ids=["offset", "timestamp"])
@pytest.mark.parametrize("choice", SHAPES, ids=lambda choice: choice.shape.name)
def test_a_round_leaves_what_one_leaves_that_asked_before_it_read(
    choice: ShapeChoice, topic: TopicConfig, alter: Alteration, tmp_path: Path
) -> None:
    for seed in range(8):
        dice = random.Random(seed)
        segments = random_segments(dice, 60 if seed % 2 else 20)
        # With few transactions the dirty section has none of them, or next to none.
        dirty = dice.choice([0, dice.randrange(40)]) if seed % 2 else [*segments][-2]
        asked = write_partition(tmp_path / f"{seed}-asked", segments)
        first = write_partition(tmp_path / f"{seed}-first", segments)
        cleaned(first, WHOLE, marked_first, topic=topic, dirty=dirty)
        cleaned(asked, choice, alter, topic=topic, dirty=dirty)
        assert contents(first) == contents(asked), (seed, dirty)


PLAIN = {0: one(0, b"a"), 1: one(1, b"b"), 2: one(2, b"a"), 3: one(3, b"c"), 4: one(4, b"z")}


@pytest.mark.parametrize("choice", SHAPES, ids=lambda choice: choice.shape.name)
def test_a_log_without_transactions_is_read_once_to_index_and_once_to_rewrite(
    choice: ShapeChoice, tmp_path: Path
) -> None:
    directory, files = write_partition(tmp_path, PLAIN), ReadingFiles()
    report = cleaned(directory, choice, lambda task: task, dirty=2, workers=files)
    # Buckets are asked about the clean section too.
    clean_reads = 2 if choice.shape is Shape.BUCKET else 1
    log_reads = {base: files.opened[base] for base in PLAIN}
    assert {0: clean_reads, 1: clean_reads, 2: 2, 3: 2, 4: 0} == log_reads
    assert 4 == report.end_offset
    assert [1, 2, 3, 4] == [record.offset for record in records_of(directory)]


@pytest.mark.parametrize("base", [0, 2], ids=["clean", "dirty"])
def test_a_log_is_read_once_more_where_a_transaction_is_met(base: int, tmp_path: Path) -> None:
    segments = {**PLAIN, base: data_batch(base, 7, [b"a"])}
    segments[3] = marker(3, 7, ABORT)
    directory, files = write_partition(tmp_path, segments), ReadingFiles()
    cleaned(directory, WHOLE, expects_no_transactions, dirty=2, workers=files)
    assert {0: 2, 1: 2, 2: 3} == {at: files.opened[at] for at in (0, 1, 2)}
    left = [record.offset for record in records_of(directory)]
    assert ([1, 2, 4] if base == 0 else [0, 1, 4]) == left


@pytest.mark.parametrize("room", [1 << 30, 150])
def test_a_wave_asks_when_those_before_it_met_nothing(room: int, tmp_path: Path) -> None:
    """The dirty section has no transactions, the clean one has them in its last segment."""
    segments = {
        **{base: one(base, b"a", b"v" * 60) for base in range(3)},
        3: data_batch(3, 7, [b"k"]) + marker(4, 7, ABORT),
        5: one(5, b"a", b"v" * 60),
        6: one(6, b"z"),
    }
    directory = write_partition(tmp_path, segments)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room)
    request = replace(clean_request(directory, topic=SMALL_SEGMENTS), first_dirty_offset=5)
    assert clean(request, files=files).error is None
    assert (files.waves() > 1) == (room == 150)
    assert [5, 6] == [record.offset for record in records_of(directory)]


@pytest.mark.parametrize("room", [1 << 30, 400])
def test_every_wave_keeps_what_an_index_says_of_data_that_went_long_ago(
    room: int, tmp_path: Path
) -> None:
    known = AbortedTransaction(7, 1, 30, 31)
    segments = {
        **{base: one(base, b"a", b"v" * 200) for base in (0, 5)},
        10: data_batch(10, 7, [b"k"]),
        30: marker(30, 7, ABORT) + one(31, b"a", b"v" * 200),
        40: one(40, b"a"),
        50: one(50, b"z"),
    }
    directory = write_partition(tmp_path, segments)
    write_segment(directory, 30, segments[30], aborted=[known])
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room)
    clean(clean_request(directory, topic=SMALL_SEGMENTS), files=files)
    assert (files.waves() > 1) == (room == 400)
    entries = txn_index.decode((directory / f"{30:020d}.txnindex").read_bytes())
    assert (known,) == entries
