"""KIP-1272, "Persisting cleaner-offset-checkpoint to remote storage": its table, line by line.

The KIP's columns are events of broker A (leader epoch 0) and broker B (leader epoch 1), and what is
then published. ``{LE-0: CO-100, LE-1: CO-155}`` is ``{0: 100, 1: 155}`` here. That the outcome does
not depend on the order of arrival is in ``test_vector.py`` for every order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.errors import FencedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.state.segment import SegmentKind
from keeplast.tier.state.vector import Publication, find_vector, is_valid
from tests.support.metadata_contract import LINEAGE, PARTITION, Opened, new_id, segment

B_LINEAGE = (LeaderEpoch(0, 0), LeaderEpoch(1, 120))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    yield made
    made.store.close()


def vector(opened: Opened) -> dict[int, int]:
    state = opened.state()
    return find_vector(state.publications, state.lineage, state.remote_end)


def test_kip_1272_vector_table(opened: Opened) -> None:
    # "Initial cleaner offset map: {LE-0:}"
    assert {0: 0} == vector(opened)
    # "A finishes one compaction": publishes Seg-0 with {LE-0 -> CO-100}.
    source = segment(0, 119)
    opened.copy(source)
    seg_0 = segment(0, 119, kind=SegmentKind.CLEANED)
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=0, sources=[source.segment_id], outputs=[seg_0], grace_ms=0
    )
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100)
    assert {0: 100} == vector(opened)
    # "A becomes unresponsive and B becomes leader": {LE-0 -> CO-100, LE-1 ->}; here the claim is
    # published, with what B inherits, before B cleans anything.
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=B_LINEAGE, log_end=160)
    assert {0: 100, 1: 100} == vector(opened)
    # "B finishes one compaction": Seg-2 with {LE-0 -> CO-100, LE-1 -> CO-155}.
    appended = segment(120, 159, epoch=1)
    opened.store.commit_copy(PARTITION, new_id(), epoch=1, segment=appended, lineage=B_LINEAGE)
    seg_2 = segment(0, 119, kind=SegmentKind.CLEANED)
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=1, sources=[seg_0.segment_id], outputs=[seg_2], grace_ms=0
    )
    opened.store.publish(PARTITION, new_id(), epoch=1, cleaned_to=155)
    assert {0: 100, 1: 155} == vector(opened)
    # "A becomes live and uploads its pending compaction": Seg-1 with {LE-0 -> CO-123}.
    before = opened.state()
    seg_1 = segment(0, 119, kind=SegmentKind.CLEANED)
    with pytest.raises(FencedError):
        opened.store.commit_swap(
            PARTITION, new_id(), epoch=0, sources=[seg_0.segment_id], outputs=[seg_1], grace_ms=0
        )
    with pytest.raises(FencedError):
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=123)
    assert before == opened.state()
    # "Future reads": Seg-2, {LE-0 -> CO-100, LE-1 -> CO-155}.
    assert seg_2.segment_id == opened.state().routes[0].segment_id
    assert {0: 100, 1: 155} == vector(opened)


def test_kip_1272_vector_late_map_is_invalid_wherever_it_is_published() -> None:
    """ "The cache validation rejects Seg-1 regardless of arrival order." """
    late = Publication(0, 2, {0: 123})
    others = [Publication(0, 1, {0: 100}), Publication(1, 1, {0: 100, 1: 155})]
    assert not is_valid(late, [late, *others])
    assert {0: 100, 1: 155} == find_vector([late, *others], B_LINEAGE, 160)


def test_kip_1272_vector_of_every_uploaded_segment_is_in_its_row(opened: Opened) -> None:
    """ "The leader broker will publish out this list of cleanerOffsets for each log segment." """
    made = segment(0, 9)
    opened.copy(made)
    assert {0: 0} == dict(opened.state().segments[made.segment_id].cleaner_offsets)


def test_kip_1272_vector_new_leader_asks_for_the_previous_epoch(opened: Opened) -> None:
    """ "It will look at the previous leaderEpoch and ask for the cleanerOffset for that epoch." """
    opened.copy(segment(0, 119))
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=100)
    state = opened.store.take_over(PARTITION, epoch=7, owner="b", lineage=LINEAGE, log_end=120)
    assert 100 == state.first_dirty()
