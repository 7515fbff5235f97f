"""The threads of a runner share one limit on what they read and write."""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import StoppedError
from keeplast.model.topic_config import CleanerConfig
from tests.support.manual_clock import ManualClock
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS, clean_request, coordinator, last_round
from tests.support.replay import tree

RATE = 10_000.0


def contents(directory: Path) -> dict[str, str]:
    return {name: content for name, (content, _) in tree(directory).items()}


def test_a_round_takes_as_long_as_its_bytes_need(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path / "limited")
    clock = ManualClock(NOW_MS)
    limited = CleanerConfig(io_bytes_per_second=RATE)
    cleaning = coordinator(clock=clock)
    report = last_round(cleaning.clean(clean_request(directory, cleaner=limited)))
    assert report.stats is not None
    free = write_mixed_log(tmp_path / "free")
    coordinator(clock=clock).clean(clean_request(free))
    assert contents(free) == contents(directory)
    # Both passes read, the second one writes, and what was written is read once more; indexes come
    # on top and are small.
    stats = report.stats
    moved = stats.map_bytes_read + stats.bytes_read + 2 * stats.bytes_written
    # Where a batch is not plain, the first pass looks at the rest of its window once more; and this
    # log has transactions, so that it is read for its markers.
    again = stats.map_bytes_read + stats.bytes_read
    assert 0.9 * (moved + stats.bytes_read) < stats.total_seconds * RATE < 1.1 * (moved + again)


def test_a_stop_does_not_wait_for_the_limit(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    before = tree(directory)

    class Stopping(ManualClock):
        def sleep(self, seconds: float) -> None:
            cleaning.stop()
            super().sleep(seconds)

    clock = Stopping(NOW_MS)
    cleaning = coordinator(clock=clock)
    request = clean_request(directory, cleaner=CleanerConfig(io_bytes_per_second=1))
    report = last_round(cleaning.clean(request))
    assert isinstance(report.failure, StoppedError)
    assert clock.seconds() - NOW_MS / 1000 < 1
    assert before == tree(directory)
