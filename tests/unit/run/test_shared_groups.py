"""A group that several threads rewrite is what one leaves, in whatever order its parts are done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.errors import StoppedError, UnavailableError
from keeplast.format import offset_index
from keeplast.format.batch import encode_batch
from keeplast.format.checksum import Buffer
from keeplast.format.compression import Codec
from keeplast.format.filename import INDEX, segment_file
from keeplast.format.record import ControlType, Record
from keeplast.log.files import (
    FileSystem,
    LocalFiles,
    LocalReadHandle,
    LocalWriteHandle,
    ReadHandle,
    WriteHandle,
)
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.rewrite import shared_group
from keeplast.rewrite.stage_work import index, rewrite, rewritten_by
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.rewrite.units import IndexUnit
from keeplast.run import local_runner
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner, StagedJob, Work, Workbench
from keeplast.survey.report import RoundReport
from tests.support.flipped import flip
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    clean_request,
    data_batch,
    last_round,
    marker,
    one,
    write_partition,
    write_snapshot,
)
from tests.support.replay import tree

SEGMENTS = 5
Order = Callable[[list[Work]], list[Work]]
ORDERS: dict[str, Order] = {
    "as they come": list,
    "from the end": lambda works: works[::-1],
    "odd ones first": lambda works: works[1::2] + works[::2],
    "the first one last": lambda works: works[1:] + works[:1],
}


class OneThread:
    """Runs every task in stages, and the work of a stage in an order of its own."""

    def __init__(self, order: Order, files: FileSystem | None = None) -> None:
        self._order = order
        self._files = files

    slots = 2
    shares_memory = True

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        bench = Workbench(self._files, SystemClock(), 1)
        for task in tasks:
            staged = replace(task, shape=ShapeChoice(Shape.BROADCAST))
            job = StagedJob(staged, bench, progressed, self.slots, 2.0)
            while works := list(iter(job.next, None)):
                for work in self._order(works):
                    work()
            yield job.result()

    def __enter__(self) -> OneThread:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How groups with parts ended: ``shared``, or ``in order`` by one thread."""
    found: list[str] = []

    def note_again(*args: object) -> object:
        found.append("in order")
        return rewrite(*args)  # type: ignore[arg-type]

    def note_shared(*args: object) -> object:
        found.append("shared")
        return rewritten_by(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_group, "rewrite", note_again)
    monkeypatch.setattr(shared_group, "rewritten_by", note_shared)
    return found


def plain_log(root: Path, codec: Codec = Codec.NONE) -> Path:
    """Write segments of three batches; half of the keys of each come again in the next one."""
    segments = {
        base: b"".join(
            encode_batch(
                [
                    Record(at + i, NOW_MS + at, b"k%d" % ((at + i) // 20 * 10 + i), b"v" * 30)
                    for i in range(4)
                ],
                codec=codec,
            )
            for at in range(base, base + 12, 4)
        )
        for base in range(0, 10 * SEGMENTS * 2, 20)
    }
    return write_partition(root, segments, interval=64)


def clean(directory: Path, runner: OneThread | LocalRunner, topic: TopicConfig) -> RoundReport:
    coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
    return last_round(coordinator.clean(clean_request(directory, topic=topic)))


def by_one_task(directory: Path, topic: TopicConfig) -> dict[str, object]:
    """Clean a copy of the log by one task; return the tree of its directory."""
    twin = shutil.copytree(directory.parent, directory.parent.with_name("twin")) / directory.name
    report = clean(twin, LocalRunner(cores=1), topic)
    assert report.error is None
    return dict(tree(twin))


WHOLE, PIECES = 1 << 30, 100
"""Parts are the sources of a group, or go from one batch that an index names to the next."""


@pytest.mark.parametrize(
    ("part_bytes", "shift", "end"),
    [(WHOLE, 0, "shared"), (PIECES, 0, "shared"), (PIECES, 1, "in order")],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("strategy", [Strategy.OFFSET, Strategy.TIMESTAMP])
@pytest.mark.parametrize("order", ORDERS)
def test_parts_in_any_order_leave_the_bytes_of_one_task(
    order: str,
    strategy: Strategy,
    codec: Codec,
    part_bytes: int,
    shift: int,
    end: str,
    ends: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """An index whose positions are shifted lies."""
    monkeypatch.setattr(shared_group, "PART_BYTES", part_bytes)
    topic = replace(COMPACT, strategy=strategy)
    directory = plain_log(tmp_path / "data", codec)
    index = directory / segment_file(40, INDEX)
    entries = offset_index.decode(index.read_bytes()).tolist()
    index.write_bytes(offset_index.encode([(last, at + shift) for last, at in entries]))
    expected = by_one_task(directory, topic)
    report = clean(directory, OneThread(ORDERS[order]), topic)
    assert report.error is None
    assert [end] == ends
    assert expected == tree(directory)


@pytest.mark.parametrize("part_bytes", [WHOLE, PIECES])
@pytest.mark.parametrize("share", [local_runner.HELD_SHARE, 1 << 20])
def test_threads_leave_the_bytes_of_one_task(
    share: int,
    part_bytes: int,
    ends: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A share of 1/2^20 is less than any output, so that all parts wait for their turns."""
    monkeypatch.setattr(shared_group, "PART_BYTES", part_bytes)
    monkeypatch.setattr(local_runner, "HELD_SHARE", share)
    directory = plain_log(tmp_path / "data")
    expected = by_one_task(directory, COMPACT)
    with LocalRunner(cores=2) as threads:
        report = clean(directory, Broadcast(threads), COMPACT)
    assert report.error is None
    assert ["shared"] == ends
    assert expected == tree(directory)


@pytest.mark.parametrize(("keys", "end"), [(b"abab", ["shared"]), (b"abcd", [])])
def test_a_single_segment_is_cut_only_where_something_of_it_goes(
    keys: bytes, end: list[str], ends: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared_group, "PART_BYTES", PIECES)
    batches = b"".join(one(at, keys[at : at + 1], b"v" * 90) for at in range(4))
    directory = write_partition(tmp_path / "data", {0: batches, 10: one(10, b"z")}, interval=64)
    expected = by_one_task(directory, COMPACT)
    assert clean(directory, OneThread(list), COMPACT).error is None
    assert end == ends
    assert expected == tree(directory)


FORGED = one(10**6, b"k", b"forged")
HOLDS_ANOTHER = encode_batch([Record(0, NOW_MS, b"k", b"v" * PIECES, ((b"at end", FORGED),))])
"""A batch that ends with another one in a header, of a later record of the same key."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("batches", "edge", "pieces"),
    [
        # The index leads into a header; what was read from there on counts for nothing.
        ([HOLDS_ANOTHER, one(1, b"x")], HOLDS_ANOTHER.index(FORGED), 3),
        # Offsets that do not ascend name no record; none of the notes counts.
        ([one(5, b"k", b"v" * PIECES), one(5, b"k", b"w" * PIECES)], 0, 2),
        # Whose data a piece has is not known before the markers are.
        (
            [
                data_batch(0, 7, [b"k"]) + one(1, b"x", b"v" * PIECES),
                marker(2, 7, ControlType.ABORT),
            ],
            0,
            3,
        ),
    ],
)
def test_of_pieces_of_a_segment_nothing_is_believed(
    order: str, batches: Sequence[bytes], edge: int, pieces: int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(shared_group, "PART_BYTES", PIECES)
    indexed: list[IndexUnit] = []

    def noted(unit: IndexUnit, *rest: Any) -> object:
        indexed.append(unit)
        return index(unit, *rest)

    monkeypatch.setattr(local_runner, "index", noted)
    directory = write_partition(tmp_path / "data", {0: b"".join(batches), 10: one(10, b"z")})
    entries = offset_index.encode([(1, edge or len(batches[0]))])
    (directory / segment_file(0, INDEX)).write_bytes(entries)
    # Nothing but its batches says that the log has a transaction.
    write_snapshot(directory, 10)
    expected = by_one_task(directory, COMPACT)
    assert clean(directory, OneThread(ORDERS[order]), COMPACT).error is None
    assert pieces == len(indexed)
    assert expected == tree(directory)


class Broadcast(OneThread):
    """Has threads do every task in stages."""

    def __init__(self, threads: LocalRunner) -> None:
        super().__init__(list)
        self._threads = threads

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        staged = [replace(task, shape=ShapeChoice(Shape.BROADCAST)) for task in tasks]
        return self._threads.run(staged, progressed)


def with_a_wrong_byte(directory: Path, base_offset: int) -> Path:
    path = directory / f"{base_offset:020d}.log"
    flip(path, -3)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return plain_log(tmp_path / "data")


@pytest.mark.parametrize("order", ORDERS)
def test_of_two_faults_the_first_one_of_the_log_is_reported(order: str, directory: Path) -> None:
    path = with_a_wrong_byte(directory, 40)
    with_a_wrong_byte(directory, 60)
    before = tree(directory)
    report = clean(directory, OneThread(ORDERS[order]), COMPACT)
    assert report.error is not None
    assert "CorruptError" == report.error.error_class
    assert str(path) == report.error.path
    assert before == tree(directory)


@pytest.mark.parametrize("order", ORDERS)
def test_a_group_with_transactions_is_done_in_order(
    order: str, ends: list[str], tmp_path: Path
) -> None:
    """The clean section has them, which are unknown when the dirty one is indexed."""
    segments = {
        0: data_batch(0, 7, [b"a", b"b"]) + one(2, b"x"),
        10: marker(10, 7, ControlType.ABORT) + one(11, b"y"),
        20: one(20, b"x", b"2", NOW_MS),
        30: one(30, b"y", b"2", NOW_MS) + one(31, b"z"),
    }
    directory = write_partition(tmp_path / "data", segments)
    twin = shutil.copytree(tmp_path / "data", tmp_path / "twin") / directory.name
    for runner, place in ((LocalRunner(cores=1), twin), (OneThread(ORDERS[order]), directory)):
        request = replace(clean_request(place, topic=COMPACT), first_dirty_offset=20)
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), NoEvents())
        assert last_round(coordinator.clean(request)).error is None
    assert "shared" not in ends
    assert tree(twin) == tree(directory)


class FullDisk(LocalFiles):
    """Refuses what is written to a log behind the first source."""

    def __init__(self) -> None:
        self.opened: list[Path] = []

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        self.opened.append(path)
        handle = super().open_write(path, append=append)
        if ".log." not in path.name:
            return handle
        return Refusing(handle)


class Refusing:
    """A handle that takes about what its first source gives, and no more."""

    def __init__(self, handle: WriteHandle) -> None:
        self._written = 0
        self.copy_from = handle.copy_from
        self.fsync = handle.fsync
        self.close = handle.close
        self._write = handle.write

    def write(self, data: Buffer) -> None:
        self._written += len(memoryview(data))
        if self._written > 600:
            raise UnavailableError("the disk is full")
        self._write(data)


@pytest.mark.parametrize("order", ORDERS)
def test_a_disk_that_refuses_ends_the_round_without_a_second_try(
    order: str, ends: list[str], directory: Path
) -> None:
    before = tree(directory)
    files = FullDisk()
    report = clean(directory, OneThread(ORDERS[order], files), COMPACT)
    assert report.error is not None
    assert "UnavailableError" == report.error.error_class
    assert [] == ends
    assert 1 == len(files.opened)
    assert before == tree(directory)


@pytest.mark.parametrize("calls", [4, 5, 6, 7])
@pytest.mark.parametrize("order", ORDERS)
def test_a_stop_ends_every_part_and_leaves_nothing(
    order: str, calls: int, ends: list[str], directory: Path
) -> None:
    before = tree(directory)
    runner = Stopping(ORDERS[order], calls)
    report = clean(directory, runner, COMPACT)
    assert report.error is not None
    assert "StoppedError" == report.error.error_class
    assert [] == ends
    assert before == tree(directory)


class Stopping(OneThread):
    """Is asked to stop when so many windows have been read, and still is when asked again."""

    def __init__(self, order: Order, calls: int) -> None:
        super().__init__(order)
        self._calls_left = calls

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        def report_read(read_bytes: int) -> None:
            progressed(read_bytes)
            self._calls_left -= 1
            if self._calls_left < 0:
                raise StoppedError("asked to stop")

        return super().run(tasks, report_read)


def test_threads_that_do_parts_report_every_byte(
    directory: Path, tmp_path: Path, ends: list[str]
) -> None:
    reports = []
    twin = shutil.copytree(tmp_path / "data", tmp_path / "twin") / directory.name
    for runner, place in ((LocalRunner(cores=1), twin), (OneThread(list), directory)):
        reports.append(clean(place, runner, COMPACT))
    whole, parts = (report.stats for report in reports)
    assert whole is not None
    assert parts is not None
    assert ["shared"] == ends
    for name in ("bytes_read", "bytes_written", "messages_read", "messages_written"):
        assert getattr(whole, name) == getattr(parts, name), name
    assert reports[0].reasons == reports[1].reasons


class Watched(LocalFiles):
    """Notes how much of each staged log is read, and puts wrong bytes into what is written."""

    def __init__(self, bad_write: int = -1) -> None:
        self.read_bytes_of: dict[str, int] = {}
        self._bad_write = bad_write

    def open_read(self, path: Path) -> ReadHandle:
        if not path.name.endswith(".deleted"):
            return super().open_read(path)
        self.read_bytes_of.setdefault(path.name, 0)
        return Counting(path, self.read_bytes_of)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        if ".log." in path.name and self._bad_write >= 0:
            return Damaging(path, self._bad_write)
        return super().open_write(path, append=append)


class Counting(LocalReadHandle):
    """A read handle that counts."""

    def __init__(self, path: Path, counts: dict[str, int]) -> None:
        super().__init__(path)
        self._name, self._counts = path.name, counts

    def pread_into(self, buffer: memoryview, position: int) -> int:
        count = super().pread_into(buffer, position)
        self._counts[self._name] += count
        return count


class Damaging(LocalWriteHandle):
    """Changes the last byte of one write."""

    def __init__(self, path: Path, bad_write: int) -> None:
        super().__init__(path, append=False)
        self._left = bad_write

    def write(self, data: Buffer) -> None:
        content = bytearray(memoryview(data))
        self._left -= 1
        if self._left == -1:
            content[-1] ^= 1
        super().write(content)


@pytest.mark.parametrize("order", ORDERS)
def test_what_threads_stage_is_read_again_once_all_of_it(
    order: str, ends: list[str], tmp_path: Path
) -> None:
    files = Watched()
    directory = plain_log(tmp_path / "data")
    assert clean(directory, OneThread(ORDERS[order], files), COMPACT).error is None
    assert ["shared"] == ends
    [(name, count)] = [each for each in files.read_bytes_of.items() if ".log." in each[0]]
    assert (directory / name.split(".log.")[0]).with_suffix(".log").stat().st_size == count


@pytest.mark.parametrize("bad_write", range(SEGMENTS - 1))
@pytest.mark.parametrize("order", ORDERS)
def test_a_wrong_byte_in_what_threads_stage_is_never_committed(
    order: str, bad_write: int, directory: Path
) -> None:
    before = tree(directory)
    report = clean(directory, OneThread(ORDERS[order], Watched(bad_write)), COMPACT)
    assert report.error is not None
    assert "CorruptError" == report.error.error_class
    assert before == tree(directory)
