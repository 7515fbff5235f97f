"""Derived scenarios: what becomes of a batch (cleaning.md section 8.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, Record, encode_control_key
from keeplast.log.append import NewRecord
from keeplast.model.partition import INT64_MAX
from tests.support import legacy_sets
from tests.support.log_builder import START_MS, Sender, record_of, tombstone_of
from tests.support.scenario_log import DAY_MS, FOREVER, SMALL, ScenarioLog
from tests.unit.scenarios.conftest import MakeLog

A, B, C = b"a", b"b", b"c"
HORIZON = START_MS + DAY_MS
EMPTY_BATCH_BYTES = 61


def shape(batch: Batch) -> tuple[int, int, int]:
    """Return base offset, last offset and number of records."""
    return batch.base_offset, batch.last_offset, batch.count


def test_x27_a_rebuilt_batch_keeps_its_own_codec(log: ScenarioLog) -> None:
    log.append(record_of(A), record_of(B), codec=Codec.GZIP)
    log.append(record_of(A), codec=Codec.ZSTD)
    log.roll_and_clean()
    assert [(0, 1, 1), (2, 2, 1)] == [shape(batch) for batch in log.batches()]
    assert [Codec.GZIP, Codec.ZSTD] == [batch.codec for batch in log.batches()]


@pytest.mark.parametrize("codec", Codec)
def test_x28_a_batch_that_loses_nothing_keeps_its_bytes(log: ScenarioLog, codec: Codec) -> None:
    headers = ((b"h", None), (b"h", b""), (b"\xff", b"1"))
    log.append(NewRecord(A, b"1", 5, headers), record_of(B, b"", 3), codec=codec)
    log.append(record_of(C))
    log.append(record_of(C))
    log.roll()
    before = log.batches()
    log.clean(0)
    after = log.batches()
    assert [bytes(before[0].data), bytes(before[2].data)] == [bytes(b.data) for b in after]


def test_x28_a_batch_that_has_its_horizon_is_not_rebuilt_for_it(log: ScenarioLog) -> None:
    log.append(tombstone_of(A))
    log.record(1, 1)
    log.roll()
    for rebuilt, passed_through in ((1, 1), (0, 2)):
        report = log.clean(0)
        assert report.stats is not None
        assert (rebuilt, passed_through) == (
            report.stats.batches_rebuilt, report.stats.batches_passed_through
        )  # fmt: skip
    assert HORIZON == log.batches()[0].delete_horizon_ms


def transaction_of_one_batch(log: ScenarioLog) -> None:
    """Append a compressed transaction of producer 1 and, behind it, what supersedes it."""
    p = log.producer(1)
    records = (record_of(A, b"1", START_MS), record_of(B, b"1", START_MS + 7))
    p.send_records(*records, codec=Codec.GZIP)
    p.commit()
    log.append(record_of(A), record_of(B))
    log.roll()


def test_x29_the_last_batch_of_a_producer_stays_as_an_empty_header(log: ScenarioLog) -> None:
    transaction_of_one_batch(log)
    log.clean(0)
    batch = log.batches()[0]
    assert (0, 1, 0) == shape(batch)
    assert (EMPTY_BATCH_BYTES, Codec.NONE) == (batch.size_bytes, batch.codec)
    assert (True, False) == (batch.is_transactional, batch.is_control)
    assert (-1, START_MS + 7) == (batch.base_timestamp, batch.max_timestamp)
    assert (1, 0, 0, 1) == (
        batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
    )  # fmt: skip
    assert batch.is_valid


def test_x30_the_empty_header_goes_when_the_producer_has_expired(log: ScenarioLog) -> None:
    transaction_of_one_batch(log)
    log.clean(0)
    log.clean(0, expiration_ms=DAY_MS, now_ms=START_MS + DAY_MS - 1)
    assert (0, 1, 0) == shape(log.batches()[0])
    log.clean(0, expiration_ms=DAY_MS, now_ms=START_MS + DAY_MS)
    assert 2 == log.base_offsets[0]


def test_x31_a_marker_with_a_newer_epoch_clears_the_producers_data(log: ScenarioLog) -> None:
    for key in range(5):
        log.record(key, key)
    p = log.producer(1)
    p.send(9)
    p.abort(epoch=1)
    log.record(9, 9)
    log.roll()
    # The data batch at 5 is not protected; the marker is, for its epoch, and ends up empty.
    log.clean(0)
    assert [0, 1, 2, 3, 4, 6, 7] == log.base_offsets
    log.clean(0)
    assert HORIZON == log.batches()[5].delete_horizon_ms
    log.clean(0, now_ms=HORIZON)
    marker = log.batches()[5]
    assert (6, 6, 0) == shape(marker)
    assert (True, 1, 1) == (marker.is_control, marker.producer_id, marker.producer_epoch)


def test_x31_only_markers_of_the_newest_epoch_are_kept(log: ScenarioLog) -> None:
    p = log.producer(1)
    p.send(1)
    p.commit()
    p.send(1)
    p.abort(epoch=1)
    log.record(1, 1)
    log.roll_and_clean()
    log.clean(0)
    assert [HORIZON, HORIZON] == [b.delete_horizon_ms for b in log.batches() if b.is_control]
    log.clean(0, now_ms=HORIZON)
    assert [(3, 3, 0), (4, 4, 1)] == [shape(batch) for batch in log.batches()]


def control_batch(offset: int, key: bytes) -> bytes:
    """Return a control batch without producer, as a leader writes one."""
    return encode_batch([Record(offset, START_MS, key, b"\x00\x00")], is_control=True)


def test_x32_a_leader_change_stays(log: ScenarioLog) -> None:
    log.add(control_batch(0, encode_control_key(ControlType.LEADER_CHANGE)))
    log.record(1, 1)
    log.roll()
    before = log.path(0).read_bytes()
    for now_ms in (START_MS, HORIZON, INT64_MAX):
        log.clean(0, now_ms=now_ms)
        assert before == log.path(0).read_bytes()


@pytest.mark.parametrize("is_aborted", [True, False])
def test_x33_the_batch_that_ends_a_round_stays_empty_for_that_round(
    log: ScenarioLog, is_aborted: bool
) -> None:
    log.record(0, 0)
    p = log.producer(1, is_transactional=is_aborted)
    p.send_records(record_of(A if is_aborted else None, b"1", START_MS))
    log.roll()
    if is_aborted:
        p.abort()
    p.send(2)
    log.clean(0, bound=2)
    assert [(0, 0, 1), (1, 1, 0)] == [shape(batch) for batch in log.batches()][:2]
    log.record(3, 3)
    log.roll_and_clean()
    assert 2 == log.base_offsets[1]


def test_x34_no_batch_is_kept_for_a_round_that_ends_in_a_gap(log: ScenarioLog) -> None:
    for key in range(10):
        log.record(key, key)
    log.roll(11)
    log.record(9, 9)
    log.clean_with({b"9": FOREVER}, end_offset=11, sources=[0])
    assert list(range(9)) == log.base_offsets[:-1]
    assert 11 == log.clean(0, bound=11).end_offset


def test_x36_emptied_segments_become_one(make_log: MakeLog) -> None:
    log = make_log()
    for _ in range(3):
        log.append(record_of(A))
        log.roll()
    alone = replace(SMALL, segment_bytes=14)
    log.clean(0, topic=alone)
    sizes = log.segments()
    assert (0, 0) == (sizes[0], sizes[1])
    assert sizes[2] > 14
    report = log.clean(0, topic=alone)
    assert [(0, 1), (2,)] == [group.bases for group in report.groups or ()]
    assert {0: 0, 2: sizes[2], 3: 0} == log.segments()
    # With room for it the following segment joins them.
    assert [(0, 2)] == [group.bases for group in log.clean(0).groups or ()]
    assert {0: sizes[2], 3: 0} == log.segments()


def test_x37_an_output_has_the_time_of_its_last_source(log: ScenarioLog) -> None:
    for number in range(3):
        log.append(record_of(A, timestamp_ms=number))
        log.roll()
        log.set_mtime(number, START_MS + 10_000 * number)
    log.clean(0)
    paths = sorted(log.directory.glob(f"{0:020d}.*"))
    assert [".index", ".log", ".timeindex"] == [path.suffix for path in paths]
    assert {(START_MS + 20_000) * 10**6} == {path.stat().st_mtime_ns for path in paths}


def test_x39_an_old_batch_that_would_become_empty_is_kept(log: ScenarioLog) -> None:
    """Kafka's round fails here for ever; docs/explanation/differences.md (b)."""
    log.record(0, 0)
    keyless = legacy_sets.encode_message_set([Record(1, 5, None, b"x")], magic=1)
    log.add(keyless)
    log.roll()
    assert 2 == log.clean(0).end_offset
    assert keyless == bytes(log.batches()[-1].data)


@pytest.mark.parametrize("loses_a_record", [False, True])
def test_x40_a_wrong_checksum_stops_the_round(log: ScenarioLog, loses_a_record: bool) -> None:
    """Kafka keeps it, or rebuilds the batch with a right one; differences.md (a)."""
    log.append(record_of(A), record_of(B))
    log.append(record_of(A if loses_a_record else C))
    log.roll()
    data = bytearray(log.path(0).read_bytes())
    position = log.batches()[0].size_bytes - 2
    data[position] ^= 1
    log.path(0).write_bytes(data)
    before = log.files()
    with pytest.raises(CorruptError) as caught:
        log.clean(0)
    assert (str(log.path(0)), 0) == (caught.value.path, caught.value.position)
    assert before == log.files()


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_x55_a_timestamp_below_minus_one_cannot_be_rebuilt(
    log: ScenarioLog, is_rebuilt: bool
) -> None:
    log.add(encode_batch([Record(0, -2, A, b"1"), Record(1, 5, B, b"1")]))
    log.append(record_of(B if is_rebuilt else C))
    log.roll()
    before = log.files()
    if not is_rebuilt:
        log.clean(0)
        assert before[log.path(0).name] == log.path(0).read_bytes()
        return
    with pytest.raises(CorruptError) as caught:
        log.clean(0)
    assert (str(log.path(0)), 0) == (caught.value.path, caught.value.position)
    assert before == log.files()


@pytest.mark.parametrize(
    "key", [pytest.param(b"\x00\x00\x00", id="3 bytes"), pytest.param(b"\xff\xff\x00\x00", id="-1")]
)
def test_x62_a_malformed_control_record_stops_the_round(log: ScenarioLog, key: bytes) -> None:
    log.record(0, 0)
    log.add(control_batch(1, key))
    log.roll()
    before = log.files()
    with pytest.raises(CorruptError) as caught:
        log.clean(0)
    position = log.batches()[0].size_bytes
    assert (str(log.path(0)), position) == (caught.value.path, caught.value.position)
    assert before == log.files()


def test_x61_a_record_below_the_log_start_stays_in_its_file(log: ScenarioLog) -> None:
    log.append(record_of(A))
    log.append(record_of(B), sender=Sender(3, 0, 0))
    log.append(record_of(C))
    log.roll()
    log.clean(log_start=2)
    assert [0, 1, 2] == [record.offset for record in log.records()]
