"""The limit on bytes a second: exact by a manual clock, within 10 % on a real one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError, StoppedError
from keeplast.log.files import FileSystem, LocalFiles, reading
from keeplast.log.throttle import PIECE_BYTES, SAVED_SECONDS, Throttle, ThrottledFiles
from tests.support.manual_clock import ManualClock

MIB = 1 << 20
TOLERANCE = 0.1


def go_on() -> None:
    """Let a wait be."""


def throttled(throttle: Throttle, waiting: Callable[[], None] = go_on) -> FileSystem:
    return ThrottledFiles(LocalFiles(), throttle, waiting)


def read_all(files: FileSystem, path: Path) -> bytes:
    with reading(files, path) as handle:
        buffer = bytearray(handle.size_bytes)
        assert len(buffer) == handle.pread_into(memoryview(buffer), 0)
    return bytes(buffer)


def write_all(files: FileSystem, path: Path, data: bytes) -> None:
    handle = files.open_write(path)
    handle.write(data)
    handle.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


def test_reads_and_writes_count_alike(tmp_path: Path, clock: ManualClock) -> None:
    files = throttled(Throttle(clock, MIB))
    data = bytes(range(256)) * (5 * MIB // 256)
    write_all(files, tmp_path / "a", data)
    assert 5 == pytest.approx(clock.seconds(), rel=TOLERANCE)
    assert data == read_all(files, tmp_path / "a")
    assert 10 == pytest.approx(clock.seconds(), rel=TOLERANCE)


def test_a_copy_inside_the_kernel_counts_as_read_and_as_written(
    tmp_path: Path, clock: ManualClock
) -> None:
    data = bytes(range(256)) * (3 * MIB // 256)
    (tmp_path / "a").write_bytes(data)
    files = throttled(Throttle(clock, MIB))
    with reading(files, tmp_path / "a") as source:
        target = files.open_write(tmp_path / "b")
        target.copy_from(source, 5, len(data) - 5)
        target.close()
    assert data[5:] == (tmp_path / "b").read_bytes()
    assert 6 == pytest.approx(clock.seconds(), rel=TOLERANCE)


def test_small_files_count_too(tmp_path: Path, clock: ManualClock) -> None:
    files = throttled(Throttle(clock, 1000))
    files.write_durable(tmp_path / "a", b"x" * 1000)
    files.append_durable(tmp_path / "a", b"x" * 500)
    assert 1500 == len(files.read_bytes(tmp_path / "a", 2000))
    assert 3 == pytest.approx(clock.seconds(), rel=TOLERANCE)


def test_no_piece_is_larger_than_what_waits_are_made_of(tmp_path: Path, clock: ManualClock) -> None:
    waits: list[float] = []
    files = throttled(Throttle(clock, PIECE_BYTES), lambda: waits.append(clock.seconds()))
    write_all(files, tmp_path / "a", bytes(4 * PIECE_BYTES))
    assert max(b - a for a, b in itertools.pairwise(waits)) < 1


def test_what_was_not_used_is_saved_for_a_moment_only(tmp_path: Path, clock: ManualClock) -> None:
    files = throttled(Throttle(clock, 1000))
    clock.advance(3_600_000)
    began = clock.seconds()
    write_all(files, tmp_path / "a", bytes(2000))
    assert 2 - SAVED_SECONDS == pytest.approx(clock.seconds() - began, rel=TOLERANCE)


def test_without_a_limit_there_is_no_wait(tmp_path: Path, clock: ManualClock) -> None:
    throttle = Throttle(clock)
    write_all(throttled(throttle), tmp_path / "a", bytes(MIB))
    assert (None, 0) == (throttle.bytes_per_second, clock.seconds())


def test_ct49_the_limit_can_be_changed_while_it_works(tmp_path: Path, clock: ManualClock) -> None:
    throttle = Throttle(clock, 10_000_000)
    files = throttled(throttle)
    write_all(files, tmp_path / "a", bytes(10_000_000))
    assert 1 == pytest.approx(clock.seconds(), rel=TOLERANCE)
    throttle.limit(20_000_000)
    assert 20_000_000 == throttle.bytes_per_second
    write_all(files, tmp_path / "a", bytes(10_000_000))
    assert 1.5 == pytest.approx(clock.seconds(), rel=TOLERANCE)


def test_a_wait_ends_at_a_stop(tmp_path: Path, clock: ManualClock) -> None:
    def stop() -> None:
        if clock.seconds() > 10:
            raise StoppedError("enough")

    with pytest.raises(StoppedError):
        write_all(throttled(Throttle(clock, 1), stop), tmp_path / "a", bytes(MIB))
    assert clock.seconds() < 11


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_limit_of_nothing_is_refused(rate: float, clock: ManualClock) -> None:
    with pytest.raises(InvalidError):
        Throttle(clock, rate)
    with pytest.raises(InvalidError):
        Throttle(clock).limit(rate)


def test_threads_stay_below_one_limit_together(tmp_path: Path) -> None:
    clock = SystemClock()
    rate, count = 4 * MIB, 2
    throttle = Throttle(clock, rate)

    def work(number: int) -> None:
        files = throttled(throttle)
        write_all(files, tmp_path / str(number), bytes(2 * MIB))
        read_all(files, tmp_path / str(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    began = clock.seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = clock.seconds() - began
    # A machine that is slower than the limit is below it too.
    assert count * 4 * MIB / seconds < (1 + TOLERANCE) * rate
