"""Which segments are part of a lineage."""

from __future__ import annotations

import pytest

from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, SegmentKind, is_within_lineage

LINEAGE = (LeaderEpoch(3, 37), LeaderEpoch(5, 60))
LOG_END = 100


def segment(base_offset: int, last_offset: int, *epochs: tuple[int, int]) -> RemoteSegment:
    return RemoteSegment(
        segment_id="a" * 32, base_offset=base_offset, last_offset=last_offset,
        epochs=tuple(LeaderEpoch(epoch, start) for epoch, start in epochs), size_bytes=1,
        max_timestamp_ms=-1, mtime_ms=0, kind=SegmentKind.RAW, leader_epoch=5, number=1,
        cleaner_offsets={}, files={".log": RemoteFile(1, 0)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (segment(40, 59, (3, 40)), True),
        (segment(40, 60, (3, 40)), False),  # reaches into the next epoch
        (segment(40, 99, (3, 40), (5, 60)), True),
        (segment(40, 99, (3, 40), (5, 61)), False),
        (segment(60, 100, (5, 60)), False),  # ends beyond the log
        (segment(50, 59, (5, 50)), False),  # before that leader led
        (segment(40, 59, (4, 40)), False),  # none of this lineage
        (segment(0, 36, (3, 0)), True),  # before the checkpoint begins, as after an upgrade
        (segment(0, 50, (3, 37)), True),
    ],
)
def test_a_segment_is_within_the_lineage(made: RemoteSegment, expected: bool) -> None:
    assert is_within_lineage(made, LINEAGE, LOG_END) is expected
