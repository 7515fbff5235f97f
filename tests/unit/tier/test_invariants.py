"""The invariants of a log in object storage (I-*), on logs with something of everything.

What several hosts and crashes must not break is in ``tests/simulation`` and ``tests/services``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import ConflictError, InvalidError
from keeplast.format import offset_index, time_index
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import ControlType, decode_control_type
from keeplast.model.partition import NO_PRODUCER_ID
from keeplast.tier.objects.object_store import (
    FILTER,
    ObjectStore,
    ObjectWriter,
    object_key,
    segment_of_key,
)
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.objects.transfer import EPOCHS
from keeplast.tier.state.segment import SEGMENT_BYTES_MAX, SegmentKind
from tests.support.counting_objects import CountingObjects
from tests.support.crash_logs import CRASH_LOGS
from tests.support.metadata_contract import Opened, new_id, segment
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS, PARTITION, one, write_partition
from tests.support.remote_log import RemoteLog, newest_offsets

LOGS = ["merged", "vanishing tails", "emptied and merged", "split"]


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteLog]:
    made = CRASH_LOGS[request.param]
    topic = replace(made.topic, index_interval_bytes=64)
    found = RemoteLog(tmp_path, made.write(tmp_path / "data"), topic)
    yield found
    found.store.close()


def log_of(tmp_path: Path, segments: dict[int, bytes]) -> RemoteLog:
    return RemoteLog(tmp_path, write_partition(tmp_path / "data", segments), COMPACT)


def test_i_1_outputs_cover_what_their_sources_covered(log: RemoteLog) -> None:
    before = log.state
    log.clean()
    after = log.state
    assert before.routes[0].base_offset == after.routes[0].base_offset
    assert before.remote_end == after.remote_end
    ends = {s.last_offset for s in before.segments.values()}
    for found, following in zip(log.live, [*log.live[1:], None], strict=True):
        assert following is None or found.next_offset == following.base_offset
        if found.kind is SegmentKind.CLEANED and following is not None:
            # A segment whose offsets are too far apart ends where its second half begins.
            assert found.last_offset in ends or following.kind is SegmentKind.CLEANED


def test_i_2_no_leader_epoch_is_dropped_or_moved(log: RemoteLog) -> None:
    def epochs() -> dict[int, int]:
        starts: dict[int, int] = {}
        for entry in (entry for s in log.live for entry in s.epochs):
            starts.setdefault(entry.epoch, entry.start_offset)
        return starts

    before = epochs()
    log.clean()
    assert before == epochs()


def test_i_3_sizes_are_exact_and_never_nothing(log: RemoteLog) -> None:
    log.clean()
    for found in log.live:
        assert len(log.file(found, LOG)) == found.size_bytes > 0
    for size in (0, SEGMENT_BYTES_MAX + 1):
        with pytest.raises(InvalidError):
            replace(log.live[0], size_bytes=size)


def test_i_4_largest_timestamp_is_that_of_the_batches_that_stay(log: RemoteLog) -> None:
    log.clean()
    for found in log.live:
        stamps = [b.max_timestamp for b in log.batches(found) if b.count]
        assert max(stamps, default=-1) == found.max_timestamp_ms


def test_i_5_what_stays_is_what_was_written(log: RemoteLog) -> None:
    before = log.records()
    log.clean()
    after = log.records()
    assert 0 < len(after) < len(before)
    for offset, stored in after.items():
        assert before[offset].record == stored.record
        assert before[offset].timestamp_type == stored.timestamp_type
        assert before[offset].leader_epoch == stored.leader_epoch
        assert before[offset].producer == stored.producer
    assert all(batch.is_valid for found in log.live for batch in log.batches(found))


def test_i_6_last_batch_ends_where_the_segment_does(log: RemoteLog) -> None:
    """Only a half of a segment whose offsets were too far apart may end in a gap."""
    log.clean()
    found = log.live
    for each, following in zip(found, [*found[1:], None], strict=True):
        is_half = following is not None and following.last_offset - each.base_offset >= 2**31
        assert is_half or each.last_offset == log.batches(each)[-1].last_offset


def test_i_7_newest_record_of_every_key_is_there(log: RemoteLog) -> None:
    visible = {record.offset for record in log.read().records()}
    before = {o: stored for o, stored in log.records().items() if o in visible}
    cleaned_to = log.clean().end_offset or 0
    after = log.records()
    for key, offset in newest_offsets(before, cleaned_to).items():
        # A tombstone may be gone that had its horizon before; what it deleted is gone too then.
        is_gone_for_good = before[offset].record.value is None and not any(
            stored.record.key == key for stored in after.values()
        )
        assert offset in after or is_gone_for_good


def test_i_8_last_batch_of_every_producer_stays(tmp_path: Path) -> None:
    """Also where nothing of it survives: its sequence number is how a duplicate is noticed."""
    log = RemoteLog(
        tmp_path, write_mixed_log(tmp_path / "data"), replace(COMPACT, segment_bytes=14)
    )

    def last_batches() -> dict[int, tuple[int, int, int]]:
        return {
            batch.producer_id: (batch.producer_epoch, batch.last_sequence, batch.last_offset)
            for found in log.live
            for batch in log.batches(found)
            if batch.producer_id != NO_PRODUCER_ID and not batch.is_control
        }

    before = last_batches()
    log.clean()
    assert {7: (0, 2, 54), 8: (0, 1, 31)} == before == last_batches()
    log.store.close()


def test_i_8_marker_stays_until_its_data_is_gone_in_an_earlier_round(tmp_path: Path) -> None:
    made = CRASH_LOGS["merged"]
    log = RemoteLog(tmp_path, made.write(tmp_path / "data"), made.topic)

    def aborts() -> int:
        return sum(
            decode_control_type(record.key) is ControlType.ABORT
            for found in log.live
            for batch in log.batches(found)
            if batch.is_control
            for record in batch.records()
        )

    assert aborts() == 1
    log.clean()
    assert aborts() == 1
    assert b"x" not in {stored.record.key for stored in log.records().values()}
    log.store.close()


def test_i_9_nothing_is_written_twice_under_one_key(tmp_path: Path) -> None:
    class Once(CountingObjects):
        def __init__(self, objects: ObjectStore) -> None:
            super().__init__(objects)
            self.opened: list[str] = []

        def open_write(self, key: str) -> ObjectWriter:
            self.opened.append(key)
            return super().open_write(key)

    made = CRASH_LOGS["merged"]
    objects = Once(open_objects("memory://"))
    log = RemoteLog(tmp_path, made.write(tmp_path / "data"), made.topic, objects)
    log.clean()
    log.clock.advance(2 * DAY_MS)
    log.clean()
    assert len(objects.opened) == len(set(objects.opened)) > 0
    log.store.close()


def test_i_10_epochs_and_producers_are_those_of_the_last_source(log: RemoteLog) -> None:
    sources = {s.last_offset: s for s in log.live}
    files = {
        (end, suffix): log.file(source, suffix)
        for end, source in sources.items()
        for suffix in (SNAPSHOT, EPOCHS)
        if suffix in source.files
    }
    log.clean()
    for found in log.live:
        for suffix in (SNAPSHOT, EPOCHS):
            if found.last_offset in sources and (found.last_offset, suffix) in files:
                assert files[found.last_offset, suffix] == log.file(found, suffix)


def test_i_11_indexes_are_what_a_broker_accepts(log: RemoteLog) -> None:
    log.clean()
    for found in log.live:
        offsets = offset_index.decode(log.file(found, INDEX))
        times = time_index.decode(log.file(found, TIME_INDEX))
        assert offset_index.find_problem(offsets, found.size_bytes) is None
        assert time_index.find_problem(times, found.size_bytes) is None
        starts = {batch.position for batch in log.batches(found)}
        assert {int(position) for position in offsets[:, 1]} <= starts
        for relative in offsets[:, 0]:
            assert 0 <= relative <= found.last_offset - found.base_offset


def test_i_15_sources_go_after_decision_and_grace_and_only_they(tmp_path: Path) -> None:
    class Deletions(CountingObjects):
        def __init__(self, objects: ObjectStore) -> None:
            super().__init__(objects)
            self.deleted: set[str | None] = set()

        def delete(self, keys: Iterable[str]) -> None:
            waiting = list(keys)
            self.deleted |= {segment_of_key(key) for key in waiting}
            super().delete(waiting)

    made = CRASH_LOGS["merged"]
    objects = Deletions(open_objects("memory://"))
    log = RemoteLog(tmp_path, made.write(tmp_path / "data"), made.topic, objects)
    before = set(log.state.segments)
    log.clean(grace_ms=1000)
    # A later chunk of the round may have replaced what an earlier one made.
    replaced = {orphan.segment.segment_id for orphan in log.store.orphans(PARTITION)}
    assert before - set(log.state.segments) <= replaced
    assert replaced
    for waiting_ms in (0, 999):
        log.clock.advance(waiting_ms)
        assert log.tiered.collect(PARTITION).segments == 0
        assert set() == objects.deleted
    log.clock.advance(1)
    assert log.tiered.collect(PARTITION).segments == len(replaced)
    assert replaced == objects.deleted
    log.store.close()


def test_what_comes_late_under_the_id_of_a_deleted_segment_is_garbage(tmp_path: Path) -> None:
    """As a filter does that an old owner's round has built for a segment that is gone by then."""
    made = CRASH_LOGS["merged"]
    log = RemoteLog(tmp_path, made.write(tmp_path / "data"), made.topic)
    source = log.live[0]
    log.clean()
    log.tiered.collect(PARTITION)
    late = object_key(PARTITION, log.state.topic_id, source.segment_id, 0, FILTER)
    writer = log.objects.open_write(late)
    writer.write(b"late")
    writer.close()
    log.tiered.collect(PARTITION)
    assert log.objects.stat(late).size_bytes == 4  # Its writer may not be done.
    log.clock.advance(10_000 * DAY_MS)
    log.tiered.collect(PARTITION)
    with pytest.raises(FileNotFoundError):
        log.objects.stat(late)
    assert () == log.tiered.verify(PARTITION, lambda count: None)
    log.store.close()


def test_i_16_tombstone_stays_two_rounds_and_its_horizon(tmp_path: Path) -> None:
    segments = {0: one(0, b"k", b"1", NOW_MS), 1: one(1, b"k", None, NOW_MS)}
    log = log_of(tmp_path, segments)

    def round_after(milliseconds: int, offset: int) -> set[int]:
        """A round has something to do when something was written."""
        log.clock.advance(milliseconds)
        segments[offset] = one(offset, b"other", b"v", NOW_MS)
        log.tiered.import_directory(
            PARTITION, write_partition(tmp_path / f"with-{offset}", segments), {},
            progressed=lambda count: None,
        )  # fmt: skip
        log.clean()
        return set(log.records())

    assert {1, 2} == round_after(0, 2)
    assert {1, 3} == round_after(DAY_MS - 1, 3)
    assert {4} == round_after(2, 4)
    assert {b"other": b"v"} == log.read().final_values()
    log.store.close()


def test_i_17_highest_offset_of_each_epoch_is_never_changed(log: RemoteLog) -> None:
    def highest() -> dict[int, int]:
        found: dict[int, int] = {}
        for each in log.live:
            ends = [entry.start_offset - 1 for entry in each.epochs[1:]] + [each.last_offset]
            for entry, end in zip(each.epochs, ends, strict=True):
                found[entry.epoch] = max(end, found.get(entry.epoch, -1))
        return found

    before = highest()
    log.clean()
    log.clock.advance(2 * DAY_MS)
    log.clean()
    assert before == highest()


def test_i_18_first_dirty_offset_only_grows_and_stays_below_what_may_not_be_cleaned(
    tmp_path: Path,
) -> None:
    topic = replace(COMPACT, min_compaction_lag_ms=DAY_MS)
    old, young = NOW_MS - 2 * DAY_MS, NOW_MS
    directory = write_partition(
        tmp_path / "data",
        {0: one(0, b"k", b"1", old), 1: one(1, b"k", b"2", old), 2: one(2, b"k", b"3", young)},
    )
    log = RemoteLog(tmp_path, directory, topic)
    log.clean()
    assert log.state.first_dirty() == 2
    with pytest.raises(InvalidError):
        log.store.publish(PARTITION, new_id(), epoch=log.state.leader_epoch, cleaned_to=1)
    log.clock.advance(2 * DAY_MS)
    log.clean()
    assert log.state.first_dirty() == 3
    log.store.close()


def test_i_23_what_left_the_lineage_is_no_source(tmp_path: Path) -> None:
    """An unclean leader's log ends inside a segment: it is never merged with its neighbours."""
    opened = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    inside, outside = segment(0, 9), segment(10, 19)
    opened.copy(inside)
    opened.copy(outside)
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(1, 15))
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=lineage, log_end=15)
    before = opened.routes()
    for sources in ([inside, outside], [outside]):
        output = segment(sources[0].base_offset, 19, kind=SegmentKind.CLEANED)
        with pytest.raises(ConflictError):
            opened.store.commit_swap(
                PARTITION, new_id(), epoch=1, sources=[s.segment_id for s in sources],
                outputs=[output], grace_ms=0,
            )  # fmt: skip
        assert before == opened.routes()
    opened.store.close()


def test_i_24_every_reader_finds_the_final_value_of_every_key(log: RemoteLog) -> None:
    before = log.read()
    log.clean()
    after = log.read()
    for start in sorted({r.offset for r in before.records()} | {0}):
        assert before.final_values(start) == after.final_values(start)
    offsets = [record.offset for record in after.records()]
    assert offsets == sorted(set(offsets))
