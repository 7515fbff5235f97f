"""Derived scenarios: whether a round happens, and that its outcome depends on the log alone.

Not on buffers, groups, waves, or on how often it was tried (cleaning.md section 8.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format import checkpoint, txn_index
from keeplast.format.compression import Codec
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG, TXN_INDEX
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support import legacy_sets
from tests.support.log_builder import START_MS, record_of, tombstone_of
from tests.support.scenario_log import DAY_MS, PARTITION, SMALL, ScenarioLog, small_workspace
from tests.unit.scenarios.conftest import MakeLog

A, B, C = b"a", b"b", b"c"
ALONE = replace(SMALL, segment_bytes=14)
"""Every segment is a group of its own."""


def stored_checkpoint(log: ScenarioLog) -> int | None:
    """Return the partition's line of the cleaner checkpoint."""
    path = log.directory.parent / CLEANER_CHECKPOINT
    return checkpoint.decode_offsets(path.read_bytes()).get(PARTITION) if path.exists() else None


def store_checkpoint(log: ScenarioLog, offset: int) -> None:
    """Write the cleaner checkpoint."""
    path = log.directory.parent / CLEANER_CHECKPOINT
    path.write_bytes(checkpoint.encode_offsets({PARTITION: offset}))


@pytest.mark.parametrize(
    ("ratio", "first_dirty"),
    [
        pytest.param(0.5, 1, id="equal to the threshold"),
        pytest.param(1.0, 0, id="threshold 1, everything dirty"),
        pytest.param(0.0, 2, id="threshold 0, nothing dirty"),
    ],
)
def test_x02_a_ratio_must_exceed_the_threshold(
    log: ScenarioLog, ratio: float, first_dirty: int
) -> None:
    for _ in range(2):
        log.append(record_of(A))
        log.roll()
    store_checkpoint(log, first_dirty)
    before = log.files()
    report = log.judge(topic=replace(SMALL, min_cleanable_dirty_ratio=ratio))
    assert report.skipped
    assert (before, first_dirty) == (log.files(), stored_checkpoint(log))


def test_x02_a_ratio_above_the_threshold_is_enough(log: ScenarioLog) -> None:
    for _ in range(2):
        log.append(record_of(A))
        log.roll()
    store_checkpoint(log, 1)
    assert 2 == log.judge(topic=replace(SMALL, min_cleanable_dirty_ratio=0.499)).end_offset


def test_x08_an_overdue_log_needs_something_cleanable(log: ScenarioLog) -> None:
    log.append(record_of(A, timestamp_ms=START_MS))
    log.roll()
    log.now_ms += 2000
    overdue = replace(SMALL, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    held_back = log.judge(topic=overdue, high_watermark=0)
    assert held_back.skipped
    assert (1000, 0) == (held_back.compaction_delay_ms, held_back.cleanable_bytes)
    assert 1 == log.judge(topic=overdue).end_offset


def test_x11_a_segment_after_the_last_stable_offset_is_left_alone(log: ScenarioLog) -> None:
    for _ in range(3):
        log.append(record_of(A))
        log.append(record_of(B))
        log.roll()
    before = log.path(2).read_bytes()
    report = log.judge(high_watermark=3)
    assert (3, 2, 2) == (report.uncleanable, report.bound, report.end_offset)
    assert before == log.path(2).read_bytes()


def test_x12_the_active_segment_is_cleaned_once_an_append_has_rolled_it(make_log: MakeLog) -> None:
    log = make_log(replace(SMALL, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0))
    log.append(record_of(A, timestamp_ms=START_MS))
    log.now_ms += DAY_MS
    assert log.judge().skipped
    log.append(record_of(A, timestamp_ms=START_MS + 1001))
    assert [0, 1] == log.bases
    assert 1 == log.judge().end_offset


@pytest.fixture
def plain_log(log: ScenarioLog) -> ScenarioLog:
    """Return a log of four closed segments whose keys repeat; no transactions."""
    for number in range(4):
        log.append(record_of(A), record_of(b"%d" % number), codec=Codec.ZSTD)
        log.append(tombstone_of(C), record_of(B))
        log.roll()
    return log


def test_x42_a_round_cut_off_between_groups_ends_as_a_whole_one(
    plain_log: ScenarioLog, tmp_path: Path
) -> None:
    log = plain_log
    whole = log.copy_to(tmp_path / "whole")
    whole.clean(0, topic=ALONE)
    log.topic = ALONE
    cut_off = log.clean_first_wave(wave_bytes_max=1)
    assert ((0,), False) == (cut_off.staged[0].sources, cut_off.carry is None)
    assert whole.closed_files() != log.closed_files()
    assert stored_checkpoint(log) is None
    log.clean(0)
    assert whole.closed_files() == log.closed_files()
    assert 16 == stored_checkpoint(log)


def test_x43_a_round_cut_off_before_its_checkpoint_ends_the_same(
    plain_log: ScenarioLog, tmp_path: Path
) -> None:
    log = plain_log
    whole = log.copy_to(tmp_path / "whole")
    whole.clean(0)
    log.clean_first_wave()
    assert whole.closed_files() == log.closed_files()
    assert stored_checkpoint(log) is None
    log.clean()
    assert whole.closed_files() == log.closed_files()
    assert stored_checkpoint(whole) == stored_checkpoint(log) == 16


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"1\n1\nlog 0 0\n", id="version"),
        pytest.param(b"0\n2\nlog 0 0\n", id="count"),
        pytest.param(b"0\n1\nlog 0\n", id="two fields"),
    ],
)
def test_x45_a_malformed_checkpoint_stops_the_round(log: ScenarioLog, content: bytes) -> None:
    log.append(record_of(A))
    log.roll()
    path = log.directory.parent / CLEANER_CHECKPOINT
    path.write_bytes(content)
    before = log.files()
    with pytest.raises(CorruptError) as caught:
        log.clean()
    assert str(path) == caught.value.path
    assert (before, content) == (log.files(), path.read_bytes())


def test_x56_a_small_output_buffer_changes_nothing(log: ScenarioLog, tmp_path: Path) -> None:
    p = log.producer(1)
    for key in (1, 2):
        p.send_records(record_of(b"%d" % key, bytes(50)), record_of(A), codec=Codec.LZ4)
    p.abort()
    for _ in range(2):
        log.append(record_of(B, bytes(500)), record_of(A))
    p.send(3)
    p.commit()
    log.append(record_of(A))
    log.roll()
    other = log.copy_to(tmp_path / "other")
    log.clean(0)
    other.clean_first_wave(workspace=small_workspace(64))
    assert log.closed_files() == other.closed_files()


def test_x57_an_abort_is_indexed_with_its_marker(log: ScenarioLog) -> None:
    p = log.producer(1)
    p.send(1)
    log.roll()
    p.abort()
    p.send(2)
    p.commit()
    log.roll()
    log.clean(0, topic=ALONE)
    assert not log.path(0, TXN_INDEX).exists()
    entries = txn_index.decode(log.path(1, TXN_INDEX).read_bytes())
    assert (AbortedTransaction(1, 0, 1, 2),) == entries


def test_x58_an_abort_that_spans_segments_is_indexed_once(log: ScenarioLog) -> None:
    p = log.producer(1)
    for key in range(3):
        p.send(key)
        log.roll()
    p.abort()
    p.send(3)
    p.commit()
    report = log.roll_and_clean()
    assert [(0, 1, 2, 3)] == [group.bases for group in report.groups or ()]
    assert [AbortedTransaction(1, 0, 3, 4)] == log.aborted()
    assert [3, 4, 5] == log.offsets


def everything(log: ScenarioLog) -> None:
    """Append some of everything: codecs, old formats, transactions, tombstones, missing keys."""
    p, q = log.producer(1), log.producer(2, is_transactional=False)
    for number, codec in enumerate([*Codec, *Codec]):
        value = b"%d" % number * 20
        log.append(record_of(A, value, number), record_of(b"%d" % number, value), codec=codec)
        p.send_records(record_of(B, value), tombstone_of(C), codec=codec)
        q.send(number % 3)
        log.append(record_of(None, value), record_of(C, b""), codec=codec)
        if codec is not Codec.ZSTD:
            old = [Record(log.log_end + i, -1, b"old%d" % (i % 2), value) for i in range(3)]
            log.add(legacy_sets.encode_message_set(old, magic=number % 2, codec=codec))
        (p.abort if number % 2 else p.commit)()
        log.append(tombstone_of(b"%d" % (number - 1)))
    log.roll()


ROUNDS: tuple[tuple[int, int | None], ...] = ((0, 12), (0, None), (DAY_MS + 1, None))
"""Delay and number of slots of one round after the other."""


def clean_rounds(log: ScenarioLog, window_bytes: int | None) -> Iterator[dict[str, bytes]]:
    """Run the rounds with buffers of this size; yield the files after each."""
    workspace = None if window_bytes is None else small_workspace(window_bytes)
    for delay_ms, capacity in ROUNDS:
        now_ms = START_MS + delay_ms
        log.clean_first_wave(workspace=workspace, capacity=capacity, now_ms=now_ms)
        yield log.closed_files()


@pytest.mark.parametrize("window_bytes", [18, 61, 100, 150, 256, 400, 1000, 5000, 20000])
def test_x60_every_size_of_the_buffers_gives_the_same_bytes(
    make_log: MakeLog, tmp_path: Path, window_bytes: int
) -> None:
    log = make_log()
    everything(log)
    assert len(log.bases) > 3
    other = log.copy_to(tmp_path / "other")
    whole, small = clean_rounds(log, None), clean_rounds(other, window_bytes)
    for expected, actual in zip(whole, small, strict=True):
        assert expected == actual


@pytest.mark.parametrize("segment_bytes", [14, 500, 1500, 4000, 1 << 20])
def test_x60_every_limit_of_a_group_gives_the_same_batches(
    make_log: MakeLog, tmp_path: Path, segment_bytes: int
) -> None:
    log = make_log()
    everything(log)
    other = log.copy_to(tmp_path / "other")
    for delay_ms, capacity in ROUNDS:
        now_ms = START_MS + delay_ms
        log.clean(0, now_ms=now_ms, capacity=capacity)
        limits = replace(SMALL, segment_bytes=segment_bytes)
        other.clean(0, now_ms=now_ms, capacity=capacity, topic=limits)
        assert [bytes(b.data) for b in log.batches()] == [bytes(b.data) for b in other.batches()]
    assert len(list(other.directory.glob(f"*{LOG}"))) == len(other.segments())
