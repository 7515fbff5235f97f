"""What a plan says of dates and limits of a real log: one sentence each, counted in the report."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from keeplast.cleaner.dirty_section import Dating
from tests.support.log_builder import record_of
from tests.support.scenario_log import SMALL, ScenarioLog

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LAGGING = replace(SMALL, min_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=0.0)


def segment(log: ScenarioLog, *, dated_ms: int | None) -> int:
    """Append a segment of two records with this date and close it; return its base."""
    base = log.active_base
    for key in (b"a", b"b"):
        log.append(record_of(key, b"v", -1 if dated_ms is None else dated_ms))
    log.roll()
    return base


def test_a_young_segment_ends_the_round_and_says_so(tmp_path: Path) -> None:
    log = ScenarioLog(tmp_path, LAGGING)
    segment(log, dated_ms=log.now_ms - 2 * HOUR_MS)
    young = segment(log, dated_ms=log.now_ms - 56 * MINUTE_MS)
    report = log.measure()
    assert young == report.bound
    assert (
        "due for a round: dirty ratio 1.000 is above min.cleanable.dirty.ratio 0.0",
        f"not cleaned past offset {young}: segment {young} is held back for another 4 min by "
        "min.compaction.lag.ms (1 h)",
    ) == report.notes
    assert Dating() == report.dating
    log.close()


def test_dates_in_the_future_missing_and_back_dated_are_counted_and_said(tmp_path: Path) -> None:
    log = ScenarioLog(tmp_path, LAGGING)
    segment(log, dated_ms=log.now_ms - 2 * HOUR_MS)
    segment(log, dated_ms=log.now_ms - 5 * HOUR_MS)
    undated = segment(log, dated_ms=None)
    segment(log, dated_ms=log.now_ms + 3 * HOUR_MS)
    log.set_mtime(undated, log.now_ms - HOUR_MS // 2)
    report = log.measure()
    assert Dating(future=1, missing=1, backdated=1, ahead_ms=3 * HOUR_MS) == report.dating
    text = " / ".join(report.notes)
    for words in (
        f"segment {undated} has no timestamps; its file keeps it back for another 30 min",
        "1 dirty segment is dated in the future, by up to 3 h",
        "1 dirty segment is without timestamps",
        "1 dirty segment is dated before what is in front of it",
    ):
        assert words in text
    log.close()


def test_high_watermark_and_open_transaction_are_named_apart(tmp_path: Path) -> None:
    log = ScenarioLog(tmp_path, replace(SMALL, min_cleanable_dirty_ratio=0.0))
    segment(log, dated_ms=log.now_ms)
    log.producer(7).send(1)
    log.roll()
    assert any("a transaction is open since offset 2" in note for note in log.measure().notes)
    report = log.measure(high_watermark=1)
    assert "nothing to clean: the high watermark is 1" in (report.reason or "")
    assert any("a segment is cleaned as a whole" in note for note in report.notes)
    log.close()
