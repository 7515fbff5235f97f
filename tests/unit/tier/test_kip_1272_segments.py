"""KIP-1272's picture of a log before and after compaction, and its tables of segments.

    region       cleaned   dirty    uncleanable  unstable  active
    remote       A A       B B      C
    local                    B      C            D         E

A and B are in object storage; of B the later part is still on the leader's disk, as are C, whose
records are younger than ``min.compaction.lag.ms``, D, which holds a transaction that is not
decided, and E, the active segment. A round rewrites A and B, reads of B what is local there, and
moves the checkpoint to the end of B.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.format.filename import LOG
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from keeplast.tier.objects.object_store import object_key, segment_of_key
from keeplast.tier.state.segment import SegmentState
from tests.support.counting_objects import CountingObjects
from tests.support.hosts import Cluster, read_all
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION

LAG_MS = 60_000
OLD_MS = NOW_MS - 10 * LAG_MS
TOPIC = replace(COMPACT, segment_bytes=1 << 20, min_compaction_lag_ms=LAG_MS)
RECORDS = 4
"""Of each segment, all of the same keys: whatever is older is superseded by the next segment."""


class Picture(Struct, frozen=True):
    """The log of the picture: its leader, and the first offset of each part."""

    cluster: Cluster
    objects: CountingObjects
    host: PartitionHost
    a: int
    b: int
    b2: int
    c: int
    d: int
    e: int


@pytest.fixture
def picture(tmp_path: Path) -> Iterator[Picture]:
    cluster = Cluster(tmp_path, TOPIC)
    objects = CountingObjects(cluster.objects)
    cluster.objects = objects
    host = cluster.host("leader")
    host.become_leader(0)
    starts: dict[str, int] = {}

    def part(name: str, timestamp_ms: int, *, times: int = 1) -> None:
        starts.setdefault(name, host.log_end_offset)
        for _ in range(times):
            for key in range(RECORDS):
                value = b"%s of %d" % (name.encode(), key)
                host.append([NewRecord(b"k%d" % key, value, timestamp_ms)])
            host.roll()
        host.acknowledge(host.log_end_offset)

    part("a", OLD_MS, times=2)
    host.copy()
    assert not host.clean(cluster.runner, force=True, grace_ms=0).skipped
    part("b", OLD_MS)
    part("b2", OLD_MS)
    part("c", NOW_MS)
    host.copy()
    host.drop_below(starts["b2"])
    starts["d"] = host.log_end_offset
    host.append(
        [NewRecord(b"k0", b"undecided", OLD_MS)], producer_id=9, producer_epoch=0,
        base_sequence=0, is_transactional=True,
    )  # fmt: skip
    host.roll()
    host.acknowledge(host.log_end_offset)
    host.copy()
    starts["e"] = host.log_end_offset
    host.append([NewRecord(b"k0", b"newest", NOW_MS)])
    host.acknowledge(host.log_end_offset)
    objects.forget()
    yield Picture(cluster, objects, host, **starts)
    cluster.store.close()


def values(picture: Picture, start: int, end: int) -> list[tuple[int, bytes | None]]:
    """Return offset and value of the records of object storage in ``[start, end)``."""
    state = picture.host.state()
    found = []
    for route in state.routes:
        segment = state.segments[route.segment_id]
        key = object_key(PARTITION, state.topic_id, segment.segment_id, segment.base_offset, LOG)
        for batch in read_batches(bytes(picture.objects.read_range(key, 0, segment.size_bytes))):
            found += [(r.offset, r.value) for r in batch.records() if start <= r.offset < end]
    return found


def test_kip_1272_segments_before(picture: Picture) -> None:
    """Which tier has what, and where the checkpoint and the bounds are."""
    state = picture.host.state()
    assert (picture.a, picture.d) == (state.log_start, state.remote_end)
    assert picture.b2 == picture.host.local_start
    assert picture.b == state.first_dirty()
    assert picture.d == picture.host.last_stable_offset
    assert picture.host.log_end_offset == picture.e + 1


def test_kip_1272_segments_after(picture: Picture) -> None:
    """ "Both region A and B are cleaned with no duplicate message keys and checkpoint location is
    moved to the end of B." C, D and E are what they were."""
    young = values(picture, picture.c, picture.d)
    read = read_all(picture.host)
    assert not picture.host.clean(picture.cluster.runner, force=True, grace_ms=0).skipped
    found = values(picture, picture.a, picture.c)
    assert [(picture.b2 + k, b"b2 of %d" % k) for k in range(RECORDS)] == found
    assert picture.c == picture.host.state().first_dirty()
    assert young == values(picture, picture.c, picture.d)
    assert picture.d == picture.host.state().remote_end
    assert read == read_all(picture.host)


def test_kip_1272_segments_that_are_local_are_not_fetched(picture: Picture) -> None:
    """ "For the log segments which still have a local presence (e.g. B2), we don't have to fetch
    remote log segments." """
    state = picture.host.state()
    (local,) = [r.segment_id for r in state.routes if r.base_offset == picture.b2]
    picture.host.clean(picture.cluster.runner, force=True, grace_ms=0)
    logs = {segment_of_key(key) for key in picture.objects.read if key.endswith(LOG)}
    assert local not in logs
    assert {r.segment_id for r in state.routes if r.base_offset < picture.b2} <= logs


def test_kip_1272_segments_of_a_group_become_one(picture: Picture) -> None:
    """ "If the old log segments are called 0001.log and 1000.log, LogCleaner can group them
    together to do the cleaning, the output is just one file 0001.log." """
    before = picture.host.state()
    assert len([r for r in before.routes if r.base_offset < picture.c]) > 1
    picture.host.clean(picture.cluster.runner, force=True, grace_ms=0)
    (only,) = [r for r in picture.host.state().routes if r.base_offset < picture.c]
    assert (before.routes[0].base_offset, picture.c - 1) == (only.base_offset, only.last_offset)


def test_kip_1272_segments_dirty_ratio_counts_the_overlap_once(picture: Picture) -> None:
    """ "Calculate dirty ratio as cleanableBytes / (localBytes + remoteBytes)": B2 and C would be in
    the sum twice; here each offset counts once, and only what a round can reach (ST-17)."""
    state = picture.host.state()
    sizes = {r.base_offset: state.segments[r.segment_id].size_bytes for r in state.routes}
    clean = sum(size for base, size in sizes.items() if base < picture.b)
    dirty = sum(size for base, size in sizes.items() if picture.b <= base < picture.c)
    topic = replace(TOPIC, min_cleanable_dirty_ratio=dirty / (clean + dirty) + 0.01)
    picture.host.topic = topic
    assert picture.host.clean(picture.cluster.runner, grace_ms=0).skipped
    picture.host.topic = replace(topic, min_cleanable_dirty_ratio=dirty / (clean + dirty) - 0.01)
    report = picture.host.clean(picture.cluster.runner, grace_ms=0)
    assert not report.skipped


def test_kip_1272_segments_unstable_ones_are_cleaned_when_they_are_decided(
    picture: Picture,
) -> None:
    """ "We do not clean beyond the last stable offset." """
    picture.host.clean(picture.cluster.runner, force=True, grace_ms=0)
    picture.host.end_transaction(ControlType.ABORT, producer_id=9, producer_epoch=0)
    picture.host.roll()
    picture.host.acknowledge(picture.host.log_end_offset)
    picture.cluster.clock.advance(2 * LAG_MS)
    picture.host.copy()
    picture.host.clean(picture.cluster.runner, force=True, grace_ms=0)
    assert picture.host.log_end_offset == picture.host.state().first_dirty()
    remaining = dict(values(picture, 0, picture.host.log_end_offset))
    assert b"undecided" not in remaining.values()
    assert b"newest" in remaining.values()


def test_kip_1272_segments_are_swapped_in_the_order_of_the_document(picture: Picture) -> None:
    """Upload under a new id; publish; route; the old ones are unreferenced and deleted later."""
    before = picture.host.state()
    picture.host.clean(picture.cluster.runner, force=True, grace_ms=1000)
    after = picture.host.state()
    made = set(after.segments) - set(before.segments)
    assert made
    assert made.isdisjoint(before.segments)
    orphans = picture.cluster.store.orphans(PARTITION)
    assert set(before.segments) - set(after.segments) <= {o.segment.segment_id for o in orphans}
    assert {SegmentState.REPLACED} == {o.state for o in orphans}
    there = {segment_of_key(found.key) for found in picture.objects.list(f"{PARTITION}")}
    assert {o.segment.segment_id for o in orphans} | made <= there
