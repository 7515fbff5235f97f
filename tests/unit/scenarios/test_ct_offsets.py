"""Kafka's LogCleanerTest: offsets far apart (cleaning.md section 8.1)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format import offset_index, txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.partition import NO_TIMESTAMP, RELATIVE_OFFSET_MAX
from tests.support.log_builder import text
from tests.support.scenario_log import FOREVER, PARTITION, SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

DEFAULT_SIZES = replace(SMALL, segment_bytes=1 << 30, segment_index_bytes=10 << 20)
FAR = RELATIVE_OFFSET_MAX + 1
"""The least distance that two offsets of one segment may not have."""


@pytest.fixture
def sparse_log(make_log: MakeLog) -> ScenarioLog:
    """Return a log of one key: three segments that span every relative offset, and the active."""
    log = make_log(DEFAULT_SIZES)
    for number in range(3):
        log.record(0, number)
        log.record(0, number, at=(number + 1) * FAR - 1)
    log.record(0, 3)
    return log


def test_ct36_emptied_segments_merge_over_any_distance(sparse_log: ScenarioLog) -> None:
    log = sparse_log
    bases = [0, FAR, 2 * FAR, 3 * FAR]
    assert bases == log.bases
    report = log.clean(0)
    assert [(0,), (FAR,), (2 * FAR,)] == [group.bases for group in report.groups or ()]
    assert bases == list(log.segments())
    assert 0 == log.segments()[0] == log.segments()[FAR]
    report = log.clean(0)
    assert [(0, FAR), (2 * FAR,)] == [group.bases for group in report.groups or ()]
    assert [0, 2 * FAR, 3 * FAR] == list(log.segments())
    assert [3 * FAR - 1, 3 * FAR] == [record.offset for record in log.records()]


def overflow(log: ScenarioLog, offsets: list[int]) -> None:
    """Append records whose keys are the offsets to the active segment, however far away."""
    for at in offsets:
        log.add(encode_batch([Record(at, -1, text(at), text(at))]), rolls=False)


@pytest.fixture
def overflowing_log(make_log: MakeLog) -> ScenarioLog:
    """Return a log whose second segment holds offsets that its base is too far from."""
    log = make_log(DEFAULT_SIZES)
    overflow(log, [0, 1])
    log.roll(10)
    overflow(log, [10, 11, 10 + RELATIVE_OFFSET_MAX, 10 + FAR, 11 + FAR])
    log.roll()
    overflow(log, [12 + FAR, 13 + FAR])
    log.roll()
    return log


def assert_offsets_fit(log: ScenarioLog) -> None:
    """Check that every segment can be indexed, and ends before the next one begins."""
    bases = [*log.segments(), log.log_end + 1]
    for base, following in itertools.pairwise(bases):
        offsets = [b.last_offset for b in read_batches(log.path(base).read_bytes())]
        assert all(base <= at < min(following, base + FAR) for at in offsets)


def test_ct40_a_segment_whose_offsets_do_not_fit_becomes_several(
    overflowing_log: ScenarioLog,
) -> None:
    """In one round, where Kafka splits the source, gives the round up and cleans in the next."""
    log = overflowing_log
    offsets = [record.offset for record in log.records()]
    dropped = offsets[1::2]
    bases = list(log.segments())
    result = log.clean_with({text(key): FOREVER for key in dropped}, sources=[10])
    # The offset just within reach goes with the first; what remains beyond it begins the second.
    assert [(10, (10,)), (11 + FAR, ())] == [(s.base_offset, s.sources) for s in result.staged]
    assert sorted([*bases, 11 + FAR]) == list(log.segments())
    assert_offsets_fit(log)
    kept = [at for at in offsets if at not in dropped or not 10 <= at < 12 + FAR]
    assert kept == [record.offset for record in log.records()]


def test_ct40_a_whole_round_keeps_what_nothing_supersedes(overflowing_log: ScenarioLog) -> None:
    log = overflowing_log
    before = log.records()
    mtime_ns = log.path(10).stat().st_mtime_ns
    report = log.clean(0)
    assert [(0,), (10,), (12 + FAR,)] == [group.bases for group in report.groups or ()]
    assert [0, 10, 10 + FAR, 12 + FAR, 14 + FAR] == list(log.segments())
    assert before == log.records()
    assert_offsets_fit(log)
    for kind in (LOG, INDEX, TIME_INDEX):
        assert mtime_ns == log.path(10 + FAR, kind).stat().st_mtime_ns
    # Split once, the offsets fit: the next round has one output a group, and merges what it can.
    assert [(0,), (10,), (10 + FAR, 12 + FAR)] == [g.bases for g in log.clean(0).groups or ()]
    assert before == log.records()
    assert_offsets_fit(log)


def test_ct40_a_segment_is_split_wherever_its_offsets_jump(make_log: MakeLog) -> None:
    log = make_log(replace(DEFAULT_SIZES, index_interval_bytes=0))
    offsets = [0, 1, FAR, FAR + 1, 3 * FAR, 4 * FAR - 1, 4 * FAR]
    # A broker would not have written such an index either; it is made when the log is cleaned.
    overflow(log, offsets[:2])
    log.roll(at=2)
    data = b"".join(encode_batch([Record(at, -1, text(at), text(at))]) for at in offsets)
    log.path(0).write_bytes(data)
    for base in (FAR, 3 * FAR, 4 * FAR):
        assert not log.path(base).exists()
    log.bases[-1] = log.log_end = 5 * FAR
    for kind in (LOG, SNAPSHOT):
        log.path(2, kind).rename(log.path(5 * FAR, kind))
    log.path(0, INDEX).unlink()
    log.clean(0)
    assert [0, FAR, 3 * FAR, 4 * FAR, 5 * FAR] == list(log.segments())
    assert offsets == [record.offset for record in log.records()]
    entries = {base: offset_index.decode(log.path(base, INDEX).read_bytes()) for base in (0, FAR)}
    assert {0: [1], FAR: [1]} == {base: e[:, 0].tolist() for base, e in entries.items()}
    assert_offsets_fit(log)


def test_ct40_an_abort_is_indexed_where_its_marker_is(make_log: MakeLog) -> None:
    log = make_log(DEFAULT_SIZES)
    log.now_ms = NO_TIMESTAMP
    p1, p2 = log.producer(1), log.producer(2)
    p1.send(1)
    p2.send(2)
    p1.abort()
    overflow(log, [FAR])
    p2.abort(rolls=False)
    log.roll()
    entries = [AbortedTransaction(1, 0, 2, 1), AbortedTransaction(2, 1, FAR + 1, FAR + 2)]
    assert entries == log.aborted()
    log.clean(0)
    assert {0: [entries[0]], FAR: [entries[1]]} == {
        base: list(txn_index.decode(log.path(base, TXN_INDEX).read_bytes())) for base in (0, FAR)
    }


def test_ct40_snapshots_stay_where_a_segment_still_begins(make_log: MakeLog) -> None:
    log = make_log(DEFAULT_SIZES)
    overflow(log, [0])
    log.roll(at=1)
    overflow(log, [1])
    log.roll(at=FAR)
    overflow(log, [FAR])
    log.roll()
    log.clean_with({}, sources=[0, 1, FAR])
    assert [0, FAR, FAR + 1] == list(log.segments())
    assert [FAR, FAR + 1] == sorted(int(p.stem) for p in log.directory.glob(f"*{SNAPSHOT}"))


def test_ct40_a_log_is_split_on_its_way_to_another_place(
    overflowing_log: ScenarioLog, tmp_path: Path
) -> None:
    log = overflowing_log
    before = log.files()
    log.clean_to(tmp_path / "target")
    assert before == log.files()
    there = tmp_path / "target" / str(PARTITION)
    bases = [int(path.stem) for path in sorted(there.glob(f"*{LOG}"))]
    assert [0, 10, 10 + FAR, 12 + FAR, 14 + FAR] == bases


def test_ct40_a_segment_that_reaches_into_the_next_is_corrupt(make_log: MakeLog) -> None:
    """Splitting it would replace a segment that is not part of the group."""
    log = make_log(DEFAULT_SIZES)
    overflow(log, [0, FAR])
    log.roll(at=FAR)
    overflow(log, [FAR])
    log.roll()
    before = log.files()
    with pytest.raises(CorruptError) as caught:
        log.clean(0)
    assert str(log.path(0)) == caught.value.path
    assert before == log.files()
