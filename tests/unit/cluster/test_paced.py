"""A layout at a pace: what is asked for stays below the caps, and a store that refuses is heard."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.cluster.layouts.paced import (
    OPEN_REQUESTS,
    PAUSE_MS_MAX,
    PacedLayout,
    PaceLimits,
    RequestPace,
    pace_of,
    says_slow_down,
)
from keeplast.errors import UnavailableError
from tests.support.attached_world import PARTITION, START_MS, AttachedWorld, files_of, log_of
from tests.support.manual_clock import ManualClock

LIMITS = PaceLimits(requests_per_second=10, bytes_per_second=1 << 20, pause_ms=1000)
REFUSED = UnavailableError("the store failed. url=s3://b key=k error=SlowDown: reduce your rate")


def paced(layout: Any, limits: PaceLimits = LIMITS) -> tuple[PacedLayout, ManualClock]:
    clock = ManualClock(START_MS)
    return PacedLayout(layout, RequestPace(limits, clock)), clock


class Refusing:
    """A layout that answers so many times that it is asked too much, then as it should."""

    def __init__(self, times: int, error: Exception = REFUSED) -> None:
        self.times = times
        self.error = error

    def read_own(self, name: str) -> bytes | None:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return b"here"

    def list(self, partition: object) -> Iterator[object]:
        yield from range(1000)


def test_requests_and_bytes_stay_below_their_caps() -> None:
    layout, clock = paced(Refusing(0))
    started = clock.seconds()
    for _ in range(100):
        layout.read_own("name")
    assert 100 == layout.pace.requests
    assert 9 <= clock.seconds() - started <= 10.5
    layout.pace.take(0, 5 << 20)
    assert 14 <= clock.seconds() - started <= 15.5
    assert layout.pace.waited_seconds == pytest.approx(clock.seconds() - started)


def test_a_wait_ends_at_a_stop_and_its_requests_are_owed() -> None:
    class LeftError(Exception):
        pass

    slow = PaceLimits(requests_per_second=0.001, bytes_per_second=1 << 20, pause_ms=60_000)
    layout, clock = paced(Refusing(1), slow)
    impatient = replace(layout, waiting=Mock(side_effect=LeftError))
    for _ in range(2):
        with pytest.raises(LeftError):
            impatient.read_own("name")
    # What is to wait a minute does so, and it holds no other up when it leaves.
    assert 2 == layout.pace.requests
    started = clock.seconds()
    with pytest.raises(UnavailableError):
        layout.read_own("name")
    assert clock.seconds() - started >= 2000
    with pytest.raises(LeftError):
        impatient.read_own("name")


def test_a_listing_asks_page_by_page() -> None:
    layout, _ = paced(Refusing(0))
    assert 1000 == len(list(layout.list(PARTITION)))
    assert 4 == layout.pace.requests


def test_a_store_that_asks_for_less_makes_every_request_wait_longer_each_time() -> None:
    layout, clock = paced(Refusing(9))
    pauses = []
    for _ in range(10):
        before = clock.now_ms()
        with contextlib.suppress(UnavailableError):
            layout.read_own("name")
        pauses.append(clock.now_ms() - before)
    assert 9 == layout.pace.refusals
    # The first asks at once, the last comes through; each between them waits twice as long.
    expected = [0, 1000, 2000, 4000, 8000, 16000, 32000, PAUSE_MS_MAX, PAUSE_MS_MAX, PAUSE_MS_MAX]
    assert all(a <= b <= a + 300 for a, b in zip(expected, pauses, strict=True)), pauses
    before = clock.now_ms()
    layout.read_own("name")
    assert clock.now_ms() - before < 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key=k error=SlowDown: Please reduce your request rate.", True),
        ("key=k error=Server returned non-2xx status code: 503 Service Unavailable", True),
        ("key=k error=status code: 429: TooManyRequests", True),
        ("key=k error=ServerBusy", True),
        ("key=orders-503/503/00429-SlowDown.log error=connection refused", False),
        ("key=k error=status code: 500 Internal Server Error", False),
        ("a file system that failed", False),
    ],
)
def test_only_what_the_store_says_is_a_wish_for_less(text: str, expected: bool) -> None:
    assert expected is says_slow_down(UnavailableError(text))


def test_other_errors_are_passed_on_without_a_pause() -> None:
    layout, clock = paced(Refusing(1, UnavailableError("url=x error=connection refused")))
    before = clock.now_ms()
    with pytest.raises(UnavailableError):
        layout.read_own("name")
    layout.read_own("name")
    assert (0, True) == (layout.pace.refusals, clock.now_ms() - before < 1000)


def test_a_segment_is_written_and_read_as_without_it_and_all_of_it_is_counted(
    tmp_path: Path,
) -> None:
    (tmp_path / SEGMENTS).mkdir()
    layout, _ = paced(LocalStorage(tmp_path))
    world = AttachedWorld(tmp_path, segments=0)
    log = log_of(range(5), 4)
    segment = world.segment(0, 4, log)
    files: dict[AuxiliaryFile, bytes] = files_of(segment, log)
    writer = layout.create_log(segment.id, 0, segment)
    writer.write(log)
    layout.complete(segment, writer.close(), files, segment)
    reader = layout.open(segment)
    assert log == bytes(reader.read_log(0, 1 << 30))
    assert files[AuxiliaryFile.SNAPSHOT] == reader.read_auxiliary(AuxiliaryFile.SNAPSHOT)
    assert len(log) == reader.log_bytes
    moved = 2 * len(log) + sum(map(len, files.values())) + len(files[AuxiliaryFile.SNAPSHOT])
    assert moved == layout.pace.bytes
    assert layout.pace.requests >= 2 * OPEN_REQUESTS + 4
    (found,) = layout.list(PARTITION)
    layout.delete_found(PARTITION, found)
    assert [] == list(layout.list(PARTITION))
    layout.check_conditions()
    assert layout.put_new("x", b"1")
    assert layout.replace_own("x", b"2", b"1")
    assert b"2" == layout.read_own("x")
    assert layout.put_new("work/y", b"1")
    assert ["work/y"] == [each.name for each in layout.list_own("work")]
    layout.delete_own("x")
    assert layout.read_own("x") is None


def test_it_travels_as_limits_and_all_of_a_process_keep_to_one_pace(tmp_path: Path) -> None:
    layout = PacedLayout(LocalStorage(tmp_path), pace_of(LIMITS))
    arrived = cast(PacedLayout, pickle.loads(pickle.dumps(layout)))
    assert layout.pace is arrived.pace
    assert PaceLimits(
        requests_per_second=2.5, bytes_per_second=(1 << 20) / 4, pause_ms=1000
    ) == LIMITS.shared_by(4)
