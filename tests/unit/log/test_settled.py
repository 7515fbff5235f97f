"""Readers list a partition only while no swap is under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import RefusedError, UnavailableError
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.log.readers import SWAP_SECONDS_MAX, settled_partition
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import one, write_partition

SWAP = "00000000000000000000.log.swap"


def test_a_swap_is_waited_for(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")})
    (directory / "00000000000000000000.log").rename(directory / SWAP)

    class Swapping(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.seconds() > 1 and (directory / SWAP).exists():
                (directory / SWAP).rename(directory / "00000000000000000000.log")

    with locked(tmp_path):
        listing = settled_partition(directory, LocalFiles(), Swapping(0))
    assert [0, 1] == [segment.base_offset for segment in listing.segments]


def test_a_swap_that_does_not_end_is_said(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")})
    (directory / SWAP).write_bytes(b"")
    clock = ManualClock(0)
    with locked(tmp_path), pytest.raises(UnavailableError, match="does not end"):
        settled_partition(directory, LocalFiles(), clock)
    assert SWAP_SECONDS_MAX == pytest.approx(clock.seconds(), abs=1)


def test_a_swap_that_was_interrupted_is_said_at_once(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")})
    (directory / SWAP).write_bytes(b"")
    clock = ManualClock(0)
    with pytest.raises(RefusedError, match="keeplast clean"):
        settled_partition(directory, LocalFiles(), clock)
    assert 0 == clock.seconds()


def test_a_directory_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    clock = ManualClock(0)
    with pytest.raises(FileNotFoundError):
        settled_partition(tmp_path / "t-0", LocalFiles(), clock)
    assert 0 == clock.seconds()
