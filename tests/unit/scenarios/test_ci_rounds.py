"""Kafka's integration tests of the cleaner, as rounds with a clock of their own.

CI: LogCleanerIntegrationTest, CL: LogCleanerLagIntegrationTest, CP:
LogCleanerParameterizedIntegrationTest (cleaning.md section 8.3). ``dups(keys x times)`` are passes
over the keys, one record a batch, whose values count up; every record is dated by the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.compression import Codec
from tests.support.durations import HOUR_MS
from tests.support.log_builder import record_of, text
from tests.support.scenario_log import SMALL, ScenarioLog

EAGER = replace(SMALL, min_cleanable_dirty_ratio=0.0, segment_bytes=512)
LAGGING = replace(EAGER, min_compaction_lag_ms=HOUR_MS)
CODECS = list(Codec)


class Rounds:
    """A log of dups, and what its keys should have."""

    def __init__(self, log: ScenarioLog, codec: Codec) -> None:
        """Start with an empty log."""
        self.log = log
        self.codec = codec
        self.counter = 0
        self.expected: dict[int, tuple[bytes, int]] = {}

    def dups(self, keys: Iterable[int], times: int, *, value: bytes | None = None) -> None:
        """Append ``times`` passes over ``keys``."""
        for _ in range(times):
            for key in keys:
                content = text(self.counter) if value is None else value
                record = record_of(text(key), content, self.log.now_ms)
                self.expected[key] = (content, self.log.append(record, codec=self.codec))
                self.counter += 1

    def found(self) -> dict[int, tuple[bytes, int]]:
        """Return the last value and offset of every key."""
        return {
            int(record.key): (record.value, record.offset)
            for record in self.log.records()
            if record.key is not None and record.value is not None
        }

    def round(self) -> int | None:
        """Clean if that is worth it; return the offset up to which the log is clean then."""
        report = self.log.judge()
        if report.failure is not None:
            raise report.failure
        return None if report.skipped else report.end_offset

    def bytes_below(self, offset: int) -> int:
        """Return the size of the segments below ``offset``."""
        return sum(size for base, size in self.log.segments().items() if base < offset)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_cl01_cl02_cl03_cl04_cl05_what_is_younger_than_the_lag_waits(
    tmp_path: Path, codec: Codec
) -> None:
    rounds = Rounds(ScenarioLog(tmp_path, LAGGING), codec)
    rounds.dups(range(100), 3)
    rounds.log.roll()
    active_at_t0 = rounds.log.active_base
    size = rounds.bytes_below(active_at_t0)
    rounds.log.now_ms += HOUR_MS // 2
    assert None is rounds.round()
    assert size == rounds.bytes_below(active_at_t0)
    rounds.log.now_ms += HOUR_MS // 2 + 1
    rounds.dups(range(100), 3)
    assert active_at_t0 == rounds.round()
    assert rounds.bytes_below(active_at_t0) < size
    assert rounds.expected == rounds.found()
    rounds.log.close()


def test_ci02_what_is_overdue_is_cleaned_whatever_its_ratio(tmp_path: Path) -> None:
    """Half of the greatest lag is not enough, and what came later stays as it is."""
    topic = replace(
        EAGER,
        min_cleanable_dirty_ratio=1.0,
        min_compaction_lag_ms=HOUR_MS,
        max_compaction_lag_ms=6 * HOUR_MS,
    )
    rounds = Rounds(ScenarioLog(tmp_path, topic), Codec.NONE)
    rounds.dups(range(100), 3)
    rounds.log.roll()
    active_at_t0 = rounds.log.active_base
    size = rounds.bytes_below(active_at_t0)
    rounds.log.now_ms += 3 * HOUR_MS
    assert None is rounds.round()
    rounds.log.now_ms += 3 * HOUR_MS + 1
    rounds.dups(range(100), 1, value=b"0")
    rounds.log.roll()
    assert active_at_t0 == rounds.round()
    assert rounds.bytes_below(active_at_t0) < size
    assert len(rounds.log.records()) == 200
    rounds.log.now_ms += 6 * HOUR_MS + 1
    assert rounds.log.active_base == rounds.round()
    assert [b"0"] * 100 == [record.value for record in rounds.log.records()]
    rounds.log.close()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_cp01_cp02_cp03_cp04_cp05_keys_keep_their_last_value_and_offset(
    tmp_path: Path, codec: Codec
) -> None:
    """Also with a record larger than every segment among them."""
    rounds = Rounds(ScenarioLog(tmp_path, EAGER), codec)
    rounds.dups(range(100), 3)
    rounds.log.roll()
    size = rounds.log.closed_bytes()
    assert rounds.log.active_base == rounds.round()
    assert rounds.log.closed_bytes() < size
    assert rounds.expected == rounds.found()
    large = bytes(number % 251 for number in range(3000))
    rounds.dups([20], 1, value=large)
    rounds.dups(range(21, 121), 3)
    rounds.log.roll()
    assert rounds.log.active_base == rounds.round()
    assert rounds.expected == rounds.found()
    assert large == rounds.found()[20][0]
    assert len(rounds.expected) == len(rounds.log.records())
    rounds.log.close()
