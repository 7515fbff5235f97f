"""Rounds of hosts: a leader's in both tiers, a follower's on its disk, and what a crash leaves."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import RefusedError
from keeplast.format.filename import CLEANED_FOR
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType
from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles, WriteHandle
from keeplast.model.hold import KeptPoint
from keeplast.model.topic_config import Strategy
from keeplast.tier.metadata.hold_rows import StoredPoint
from keeplast.tier.objects.object_store import partition_prefix
from tests.support.durations import HOUR_MS
from tests.support.hosts import TOPIC, Cluster, read_all, replicate, write
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.reader import read_partition

LATER_MS = 10 * 86_400_000


def clean(cluster: Cluster, host: PartitionHost) -> bool:
    """Do a round; says whether it did anything."""
    report = host.clean(cluster.runner, force=True, grace_ms=0)
    return not report.skipped


def local_bytes(host: PartitionHost) -> list[tuple[int, bytes]]:
    return [(s.base_offset, s.log_path.read_bytes()) for s, _ in host.closed_segments()]


def remote_bytes(cluster: Cluster) -> dict[int, bytes]:
    state = cluster.store.load(PARTITION)
    found = {}
    for route in state.routes:
        (key,) = [
            each.key
            for each in cluster.objects.list(partition_prefix(PARTITION, state.topic_id))
            if route.segment_id in each.key and each.key.endswith(".log")
        ]
        size = cluster.objects.stat(key).size_bytes
        found[route.base_offset] = bytes(cluster.objects.read_range(key, 0, size))
    return found


def test_a_leaders_round_replaces_the_overlap_in_both_tiers(cluster: Cluster) -> None:
    host = cluster.led(60)
    host.copy()
    expected = read_all(host)
    assert clean(cluster, host)
    state = host.state()
    remote = remote_bytes(cluster)
    clean_part = {base: data for base, data in remote.items() if base < state.first_dirty()}
    local = dict(local_bytes(host))
    assert clean_part
    assert clean_part == {base: local[base] for base in clean_part}
    assert expected == read_all(host)
    for start in range(host.log_end_offset):
        assert read_all(host, start).items() <= expected.items()
    assert host._remote_to(state) == 0


class RefusingFiles(LocalFiles):
    """A disk that refuses to write next to the log, as one that is full."""

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        if path.name.endswith(".deleted"):
            raise OSError(28, "No space left on device")
        return super().open_write(path, append=append)


def test_local_half_that_failed_is_read_remotely_and_follows_later(cluster: Cluster) -> None:
    """A crash between the two tiers: object storage is committed, the local copy is not."""
    host = cluster.host("a", RefusingFiles())
    host.become_leader(0)
    write(host, 60)
    host.copy()
    expected = read_all(host)
    before = local_bytes(host)
    with pytest.raises(OSError, match="No space"):
        clean(cluster, host)
    state = host.state()
    assert state.first_dirty() > 0
    assert before == local_bytes(host)
    assert host._remote_to(state) == state.first_dirty()
    assert expected == read_all(host)
    host.close()
    again = cluster.host("a", recovers=True)
    assert expected == read_all(again)
    again.become_leader(0)
    assert again.local_start >= state.first_dirty() or not again.closed_segments()
    assert expected == read_all(again)


def test_local_half_follows_in_the_next_round(cluster: Cluster) -> None:
    host = cluster.led(60)
    host.copy()
    cluster.clean()
    state = host.state()
    assert host._remote_to(state) == state.first_dirty() > 0
    assert not clean(cluster, host)
    assert host._remote_to(state) == 0
    assert {base for base, _ in local_bytes(host)} >= set(remote_bytes(cluster))


def test_a_followers_round_ends_where_a_hold_of_the_store_is(cluster: Cluster) -> None:
    """What is left on its disk is copied when it leads."""
    a, b = cluster.pair(60)
    a.copy()
    point = StoredPoint(cluster.store.load(PARTITION), KeptPoint(20, 20))
    cluster.store.hold_rows.add_stored([point], "h", HOUR_MS)

    def offsets() -> set[int]:
        found = (batch for _, data in local_bytes(b) for batch in read_batches(data))
        return {record.offset for batch in found for record in batch.records()}

    clean(cluster, b)
    assert set(range(16, 20)) <= offsets()
    cluster.clock.advance(HOUR_MS)
    clean(cluster, b)
    assert not set(range(16, 20)) & offsets()


def test_a_leader_takes_what_has_expired_and_leaves_receipts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replace(TOPIC, delete_retention_ms=HOUR_MS))
    a, b = cluster.led(20), cluster.host("b")
    a.append([NewRecord(b"k0", None, NOW_MS)])
    write(a, 20, keys=2, start=21)
    a.append([NewRecord(b"k0", None, NOW_MS)])
    a.roll()
    a.acknowledge(a.log_end_offset)
    replicate(a, b)
    a.copy()
    receipts: list[bytes] = []

    def round_of(host: PartitionHost) -> bool:
        return not host.clean(
            cluster.runner, grace_ms=0, expired=True, receipt=receipts.append
        ).skipped

    assert [True, False] == [round_of(a), round_of(a)]
    chunks = len(receipts)
    assert chunks > 0
    assert (b"k0", None) in read_all(a).items()
    cluster.clock.advance(HOUR_MS + 1)
    first_dirty = a.state().first_dirty()
    assert [True, False] == [round_of(a), round_of(a)]
    assert [chunks + 1, first_dirty] == [len(receipts), a.state().first_dirty()]
    assert b"k0" not in read_all(a)
    assert dict(local_bytes(a)) == remote_bytes(cluster)
    # What a follower has on its disk keeps its tombstones, whatever it is asked for (ST-23).
    round_of(b)
    assert (b"k0", None) in {(r.key, r.value) for r in read_partition(b.directory).records()}
    assert chunks + 1 == len(receipts)
    cluster.store.close()


def test_what_a_followers_pass_has_taken_the_store_knows_of_when_it_leads(
    cluster: Cluster,
) -> None:
    """Its checkpoint goes back to the store's; the records do not come back."""
    a, b = cluster.leader_and_follower()
    write(a, 60)
    replicate(a, b)
    assert clean(cluster, b)
    cleaned_to = b.listing().active.base_offset
    assert 0 == b.state().earliest_as_of
    b.become_leader(1)
    assert 0 == b.state().first_dirty()
    b.copy()
    assert cleaned_to == b.state().cleaned_for > 0
    assert (b.directory / CLEANED_FOR).exists()
    assert clean(cluster, b)
    assert cleaned_to == b.state().first_dirty() == b.state().earliest_as_of
    assert not (b.directory / CLEANED_FOR).exists()


def led_and_followed(cluster: Cluster) -> tuple[PartitionHost, PartitionHost]:
    """Return a leader that has copied twelve records, and its follower."""
    a, b = cluster.leader_and_follower()
    write(a, 12)
    a.roll()
    a.copy()
    return a, b


def test_st_23_a_followers_pass_drops_no_tombstone(cluster: Cluster) -> None:
    """ST-23: the follower's horizon passes, the leader dies, the deleted key must not come back."""
    a, b = led_and_followed(cluster)
    clean(cluster, a)
    a.append([NewRecord(b"k1", None, NOW_MS)])
    write(a, 20, keys=40, start=100)
    a.roll()
    write(a, 1, start=200)
    replicate(a, b)
    b.drop_below(12)
    assert clean(cluster, b)
    cluster.clock.advance(LATER_MS)
    write(a, 20, keys=40, start=300)
    replicate(a, b)
    b.roll()
    clean(cluster, b)
    assert 12 in {r.offset for batch in batches(b, 12) for r in batch.records()}
    b.become_leader(1)
    assert read_all(b)[b"k1"] is None
    b.copy()
    assert clean(cluster, b)
    cluster.clock.advance(LATER_MS)
    write(b, 20, keys=40, start=300)
    b.roll()
    b.copy()
    clean(cluster, b)
    assert read_all(b).get(b"k1") is None


@pytest.mark.parametrize("name", ["b", "c"])
def test_st_23_a_followers_pass_keeps_what_an_aborted_transaction_is_known_by(
    cluster: Cluster, name: str
) -> None:
    """Object storage has its data; who leads next, or has it from a follower, has its marker."""
    a, b = cluster.leader_and_follower()
    a.append([NewRecord(b"t", b"1")], producer_id=7, producer_epoch=0, base_sequence=0,
             is_transactional=True)  # fmt: skip
    a.roll()
    a.end_transaction(ControlType.ABORT, producer_id=7, producer_epoch=0)
    a.acknowledge(a.log_end_offset)
    assert a.copy() == 1
    write(a, 20)
    replicate(a, b)
    b.replicate(b"", high_watermark=a.high_watermark)
    b.roll()
    report = b.clean(cluster.runner, force=True)
    assert report.reason is not None
    assert "a transaction from 0 on was aborted" in report.reason
    cluster.clock.advance(LATER_MS)
    b.become_leader(1)
    leader = b
    if name == "c":
        leader = cluster.host("c")
        leader.become_follower(1)
        replicate(b, leader)
        leader.become_leader(2)
        leader.acknowledge(leader.log_end_offset)
    leader.roll()
    leader.copy()
    assert clean(cluster, leader)
    assert {b"k0", b"k1", b"k2", b"k3"} <= set(read_all(leader))
    assert b"t" not in read_all(leader)
    if name == "c":
        # Object storage is clean behind it: so may be every other disk.
        b.become_follower(2)
        b.replicate(b"", high_watermark=leader.high_watermark)
        assert clean(cluster, b)


def test_st_23_a_followers_pass_sets_no_horizon(cluster: Cluster) -> None:
    """A reader has ``delete.retention.ms`` from the leader's round on, not ours."""
    a, b = led_and_followed(cluster)
    a.append([NewRecord(b"k1", None, NOW_MS)])
    write(a, 20, keys=40, start=100)
    replicate(a, b)
    b.replicate(b"", high_watermark=a.high_watermark)
    b.roll()
    assert clean(cluster, b)
    assert [None] == list({batch.delete_horizon_ms for batch in batches(b, 0)})
    cluster.clock.advance(LATER_MS)
    b.become_leader(1)
    b.copy()
    assert clean(cluster, b)
    assert read_all(b)[b"k1"] is None
    cluster.clock.advance(LATER_MS)
    write(b, 20, keys=40, start=300)
    b.roll()
    b.copy()
    assert clean(cluster, b)
    assert b"k1" not in read_all(b)


def batches(host: PartitionHost, start: int) -> Iterator[Batch]:
    offset = start
    while offset < host.log_end_offset:
        found = host.fetch(offset)
        yield from read_batches(found.data)
        offset = found.next_offset


def test_kip280_a_follower_that_got_the_empty_batch_leads_at_the_same_offset(
    tmp_path: Path,
) -> None:
    """Three replicas, the last record is a loser, the leader cleans, a new follower fetches the
    empty batch and leads: the next record has the same offset everywhere."""
    topic = replace(TOPIC, strategy=Strategy.TIMESTAMP)
    cluster = Cluster(tmp_path, topic)
    a, b, c = (cluster.host(name) for name in "abc")
    a.become_leader(0)
    for i in range(10):
        a.append([NewRecord(b"k", b"new", NOW_MS + 100 - i)])
    a.roll()
    a.acknowledge(a.log_end_offset)
    replicate(a, b)
    a.copy()
    assert clean(cluster, a)
    assert a.local_start == 0
    replicate(a, c)
    stored = [(b_.base_offset, b_.last_offset, len(list(b_.records()))) for b_ in batches(c, 0)]
    assert (9, 0) == (stored[-1][1], stored[-1][2])
    assert [10, 10, 10] == [each.log_end_offset for each in (a, b, c)]
    c.become_leader(1)
    assert c.append([NewRecord(b"k", b"next", NOW_MS + 200)]) == 10
    a.become_follower(1)
    for follower in (a, b):
        assert follower.truncate_to(c.lineage, c.log_end_offset) == 10
        replicate(c, follower)
        assert follower.log_end_offset == 11
    assert {b"k": b"next"} == read_all(a) == read_all(b) == read_all(c)
    cluster.store.close()


def test_a_follower_takes_a_cleaned_log_with_its_gaps(cluster: Cluster) -> None:
    a, b = cluster.led(60), cluster.host("b")
    a.copy()
    clean(cluster, a)
    replicate(a, b)
    assert b.log_end_offset == a.log_end_offset
    assert read_all(a) == read_all(b)
    b.close()
    assert cluster.host("b", recovers=True).log_end_offset == a.log_end_offset


def test_a_topic_that_is_not_compacted_is_not_cleaned(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replace(TOPIC, cleanup_policy=frozenset({"delete"})))
    host = cluster.host("a")
    host.become_leader(0)
    with pytest.raises(RefusedError):
        clean(cluster, host)
    host.become_follower(0)
    with pytest.raises(RefusedError):
        clean(cluster, host)
    cluster.store.close()


def test_nothing_of_a_round_is_live_before_its_line_is_written(cluster: Cluster) -> None:
    """Whatever ends the call between the two, no group is live that no receipt names."""
    host = cluster.led(60)
    host.copy()
    lines: list[bytes] = []
    noted: set[int] = set()

    def replaced() -> set[int]:
        now = remote_bytes(cluster)
        return {base for base, data in copied.items() if now.get(base) != data}

    def note(line: bytes) -> None:
        assert replaced() <= noted
        if len(lines) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        lines.append(line)
        noted.update(base for group in json.loads(line)["outputs"] for base in group["sources"])

    copied = remote_bytes(cluster)
    with pytest.raises(OSError, match="No space left"):
        host.clean(cluster.runner, force=True, grace_ms=0, receipt=note)
    assert replaced() <= noted
    assert 0 < len(replaced()) < len(copied) - 1
