"""No reader and no round takes an aborted record for a committed one because an index lags."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast import open_log
from keeplast.api.open_log import OpenLog
from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.columns import batches as t
from keeplast.errors import ConflictError
from keeplast.format import txn_index
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.log.windows import Window
from keeplast.model.topic_config import Shape
from keeplast.read.log_state import read_state
from keeplast.read.log_view import ALL, Split, Wanted
from keeplast.read.record_source import read_records
from keeplast.read.transactions import AbortedData
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from tests.support.cleanings import Reshaped
from tests.support.kernel_window import window_of, workspace
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    batches_of,
    clean,
    clean_at,
    clean_request,
    data_batch,
    last_round,
    marker,
    one,
    records_of,
    write_partition,
)
from tests.support.record_rows import rows_of
from tests.support.source_reading import read_log, read_log_state

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
BOGUS = AbortedTransaction(9, 6, 7, 8)
"""An entry for what was committed."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """k is committed at 0 and aborted at 2; the marker lies in the next segment."""
    segments = {
        0: one(0, b"k") + one(1, b"x"),
        2: data_batch(2, 7, [b"k", b"x"]) + one(4, b"y"),
        5: marker(5, 7, ABORT) + data_batch(6, 9, [b"z"]) + marker(7, 9, COMMIT),
        8: one(8, b"last"),
    }
    return write_partition(tmp_path, segments)


def lost(directory: Path) -> None:
    """A crash has kept the only entry from the disk."""


def cut(directory: Path) -> None:
    entry = AbortedTransaction(7, 2, 5, 6)
    (directory / f"{5:020d}.txnindex").write_bytes(txn_index.encode([entry])[:-1])


def of_another(directory: Path) -> None:
    (directory / f"{5:020d}.txnindex").write_bytes(txn_index.encode([BOGUS]))


DAMAGES = pytest.mark.parametrize("damage", [lost, cut, of_another])
COMMITTED = [0, 1, 4, 6, 8]


@DAMAGES
def test_readers_go_by_the_markers(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory)
    assert COMMITTED == [row.offset for row in read_log(directory)]
    assert COMMITTED == [row.offset for row in read_log_state(directory)]
    assert COMMITTED == [record.offset for record in open_log(directory).state().values()]


@DAMAGES
@pytest.mark.parametrize("first", range(9))
def test_a_part_of_a_log_is_read_as_the_whole(
    directory: Path, damage: Callable[[Path], None], first: int
) -> None:
    damage(directory)
    for end in range(first, 10):
        expected = [offset for offset in COMMITTED if first <= offset < end]
        assert expected == [row.offset for row in read_log(directory, Wanted(first, end))]


@DAMAGES
@pytest.mark.parametrize(
    "shape", [None, ShapeChoice(Shape.BROADCAST), ShapeChoice(Shape.BUCKET, 3)], ids=str
)
def test_a_round_goes_by_the_markers(
    directory: Path, damage: Callable[[Path], None], shape: ShapeChoice | None
) -> None:
    damage(directory)
    if shape is None:
        clean(clean_request(directory))
    else:
        with LocalRunner(cores=2) as threads:
            runner = Reshaped(threads, shape)
            coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
            assert last_round(coordinator.clean(clean_request(directory))).failure is None
            assert 1 == runner.staged
    assert COMMITTED == [record.offset for record in records_of(directory)]
    assert COMMITTED == [row.offset for row in read_log(directory)]


def test_a_round_knows_of_an_abort_after_its_bound(directory: Path) -> None:
    clean(replace(clean_request(directory), uncleanable_offset=5))
    assert COMMITTED == [row.offset for row in read_log(directory)]


def test_a_follower_keeps_aborts_after_its_bound(directory: Path) -> None:
    """What is known of it elsewhere is its data here."""
    report = clean(replace(clean_request(directory), clean_elsewhere_to=0))
    assert report.skipped or report.bound == 2
    assert COMMITTED == [row.offset for row in read_log(directory)]


def test_our_own_appender_taken_up_again_and_killed(tmp_path: Path) -> None:
    directory, files = tmp_path / "t-0", LocalFiles()
    with LogAppender(directory, files, topic=COMPACT) as appender:
        appender.append([NewRecord(b"k", b"committed")])
    appender = LogAppender(directory, files, topic=COMPACT)
    appender.append(
        [NewRecord(b"k", b"aborted")],
        producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip
    appender.append_marker(ABORT, producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS)
    appender.append([NewRecord(b"x", b"v")])
    appender.flush()
    killed = tmp_path / "killed" / "t-0"
    shutil.copytree(directory, killed)
    appender.close()
    for left in (killed, directory):
        assert [0, 3] == [row.offset for row in read_log(left)]
        assert [0, 3] == [row.offset for row in read_log_state(left)]
        with LogAppender(left, files, topic=COMPACT) as again:
            again.roll()
        entries = txn_index.decode((left / f"{0:020d}.txnindex").read_bytes())
        assert (AbortedTransaction(7, 1, 2, 3),) == entries


class MovingLog(LocalFiles):
    """Lets something happen to a log when a reader turns to its segment 2 for the first time."""

    def __init__(self, happens: Callable[[Path], None]) -> None:
        self._happens = [happens]

    def open_read(self, path: Path) -> ReadHandle:
        if path.name == f"{2:020d}.log" and self._happens:
            self._happens.pop()(path.parent)
        return super().open_read(path)


def expire(directory: Path) -> None:
    for path in directory.glob("0*.*"):
        if int(path.stem) < 5:
            path.unlink()


def clean_thrice(directory: Path) -> None:
    """The first round takes the data, the second one dates the marker, the third one takes it."""
    topic = replace(COMPACT, delete_retention_ms=0)
    for number in range(3):
        clean_at(directory, NOW_MS + number, topic=topic)
    assert [0, 2, 4, 5] == [record.offset for record in records_of(directory)]
    assert [6] == [batch.base_offset for batch in batches_of(directory) if batch.is_control]


def make_behind_data(root: Path, *, next_producer: int = 7) -> Path:
    """k is aborted at 1 by the marker at 3; what comes last is committed."""
    segments = {
        0: one(0, b"a") + data_batch(1, 7, [b"k"]),
        2: one(2, b"y"),
        3: marker(3, 7, ABORT) + one(4, b"z"),
        5: data_batch(5, next_producer, [b"last"]) + marker(6, next_producer, COMMIT),
    }
    return write_partition(root, segments)


@pytest.mark.parametrize(
    ("happens", "left"), [(expire, [5]), (clean_thrice, [0, 2, 4, 5])], ids=["expire", "clean"]
)
@pytest.mark.parametrize("end", [2, 3, 6])
@pytest.mark.parametrize("is_state", [False, True])
def test_a_marker_that_goes_during_a_read_was_there(
    tmp_path: Path, happens: Callable[[Path], None], left: list[int], end: int, is_state: bool
) -> None:
    """The data was read of a file whose name is gone by the time that its marker is looked for."""
    split = Split(PARTITION, make_behind_data(tmp_path), Wanted(0, end), 0)
    files, clock = MovingLog(happens), SystemClock()
    found = (
        read_state(split, ALL, COMPACT, files, clock, workspace())
        if is_state
        else read_records(split, files, clock, workspace())
    )
    assert [offset for offset in left if offset < end] == [row.offset for row in rows_of(found)]


def test_a_split_that_must_be_whole_fails_where_its_markers_have_gone(tmp_path: Path) -> None:
    split = Split(PARTITION, make_behind_data(tmp_path), Wanted(0, 2), 0, must_be_whole=True)
    with pytest.raises(ConflictError, match="offset=0 log_start=5"):
        list(read_records(split, MovingLog(expire), SystemClock(), workspace()))


def test_a_state_is_not_cut_off_where_a_marker_has_gone(tmp_path: Path) -> None:
    log = OpenLog(make_behind_data(tmp_path, next_producer=8), files=MovingLog(expire))
    assert [5] == [record.offset for record in log.state(COMPACT).values()]


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_judged_as_the_whole_log_is(seed: int) -> None:
    dice = random.Random(seed)
    open_, batches, truth = dict[int, list[int]](), [], set[int]()
    offset = 0
    for _ in range(dice.randrange(1, 120)):
        producer_id, kind = dice.randrange(1, 5), dice.randrange(6)
        if kind < 2:
            batches.append(marker(offset, producer_id, COMMIT if kind else ABORT))
            truth |= set() if kind else set(open_.pop(producer_id, ()))
            open_.pop(producer_id, None)
        elif kind < 5:
            batches.append(data_batch(offset, producer_id, [b"k"]))
            open_.setdefault(producer_id, []).append(offset)
        else:
            batches.append(one(offset, b"k"))
        offset += dice.choice([1, 1, 7])
    cuts = sorted({0, len(batches), *(dice.randrange(len(batches)) for _ in range(5))})
    windows = [window_of(b"".join(batches[a:b])) for a, b in itertools.pairwise(cuts)]
    read = 0

    def ahead(at: int) -> Iterator[Window]:
        nonlocal read
        for a, b in itertools.pairwise(cuts):
            data = window_of(b"".join(batches[a:b]))
            if int(data.table[data.batches - 1, t.LAST_OFFSET]) >= at:
                read += 1
                yield data

    judge = AbortedData(ahead)
    found = set[int]()
    for window in windows:
        hidden = judge.among(window)
        if hidden is not None:
            found |= set(window.table[: window.batches][hidden, t.BASE_OFFSET].tolist())
    assert truth == found
    assert read <= len(windows)
