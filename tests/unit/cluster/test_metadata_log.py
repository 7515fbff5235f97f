"""The metadata topic folded record by record, and what stands of a partition after it."""

from __future__ import annotations

import pytest

from keeplast.cluster.check import check_marks
from keeplast.cluster.live_cluster import METADATA_TOPIC, MetadataValue, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import SegmentSum, name_of, partition_status
from keeplast.cluster.metadata_log import FoldedMetadata, fold_values, partitions_of
from keeplast.errors import RefusedError
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    encode,
)

TOPIC = TopicFacts("orders", bytes(range(16)), 2, 1, {})
METADATA = TopicFacts(METADATA_TOPIC, bytes(16), 50, 1, {})
FINISH, KILL = (
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)


def announced(number: int, start: int, end: int, broker: int = 1) -> bytes:
    return encode(
        RemoteLogSegment(
            id=RemoteLogSegmentId(name_of(TOPIC, 0), number.to_bytes(16, "big")),
            start_offset=start, end_offset=end, broker_id=broker, max_timestamp_ms=0,
            event_timestamp_ms=0, epochs=(EpochStart(0, start),), size_bytes=100 + number,
            custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )
    )  # fmt: skip


def moved(number: int, state: RemoteLogSegmentState, broker: int = 1) -> bytes:
    return encode(
        RemoteLogSegmentUpdate(
            id=RemoteLogSegmentId(name_of(TOPIC, 0), number.to_bytes(16, "big")), broker_id=broker,
            event_timestamp_ms=0, custom_metadata=None, state=state,
        )
    )  # fmt: skip


def folded(*values: bytes | int | None) -> FoldedMetadata:
    found = FoldedMetadata()
    fold_values(
        found,
        7,
        (
            each if isinstance(each, int) else MetadataValue(at, each)
            for at, each in enumerate(values)
        ),
    )
    return found


HISTORY = (
    announced(1, 0, 49), moved(1, FINISH), announced(2, 50, 99), moved(2, FINISH),
    announced(3, 100, 149),
)  # fmt: skip


def test_status_counts_what_is_served_hidden_and_on_its_way() -> None:
    found = folded(*HISTORY, announced(4, 0, 99, -1001), moved(4, FINISH, -1001), moved(1, KILL))
    cache = found.cache.partitions[name_of(TOPIC, 0)]
    status = partition_status(TOPIC, 0, OffsetRange(0, 200), cache)
    assert [] == found.faults
    assert 8 == found.record_count
    assert SegmentSum(1, 104) == status.served == status.compacted
    assert SegmentSum(1, 102) == status.hidden
    assert SegmentSum(1, 103) == status.copying
    assert SegmentSum(1, 101) == status.deleting
    assert (0, 99) == (status.remote_start, status.remote_end)
    assert () == status.holes
    (mark,) = check_marks(found.cache, {"orders"})
    assert "foreign-marks" == mark.rule
    assert [] == list(check_marks(found.cache, {"payments"}))
    own = {each.id.segment_id for each in cache.segments}
    assert [] == list(check_marks(found.cache, {"orders"}, own))


def test_a_partition_of_which_nothing_was_announced_has_nothing() -> None:
    status = partition_status(TOPIC, 1, OffsetRange(0, 5), None)
    assert status.remote_start is None
    assert SegmentSum(0, 0) == status.served


@pytest.mark.parametrize("value", [None, b"\0", b"\1\x07\0"])
def test_nothing_is_concluded_from_records_after_an_unreadable_one(value: bytes | None) -> None:
    """AT-22."""
    found = folded(*HISTORY[:2], value, *HISTORY[2:])
    (fault,) = found.faults
    assert (7, 2) == (fault.partition, fault.offset)
    assert 1 == len(found.cache.partitions[name_of(TOPIC, 0)].segments)
    with pytest.raises(RefusedError, match=r"partition=7 offset=2"):
        found.require_sound()


def test_an_offset_without_a_record_is_a_fault() -> None:
    """AT-21: a marker of a transaction is one."""
    found = folded(*HISTORY[:2], 2)
    assert [2] == [each.offset for each in found.faults]
    assert "marker" in found.faults[0].problem


def test_an_update_that_brokers_drop_is_reported_and_no_fault() -> None:
    found = folded(moved(9, FINISH))
    found.require_sound()
    assert "is not known" in found.dropped[0].problem


def test_only_the_partitions_with_records_of_a_topic_are_read() -> None:
    found = partitions_of([TOPIC], METADATA)
    assert 1 <= len(found) <= 2
    assert found == sorted(found)
    assert [0] == partitions_of([TOPIC], TopicFacts(METADATA_TOPIC, bytes(16), 1, 1, {}))
