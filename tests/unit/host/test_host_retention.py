"""The ends of a tiered log: log start and retention in both tiers, recovery, and who leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import ConflictError, CorruptError, FencedError, InvalidError, RefusedError
from keeplast.format.batch import encode_batch
from keeplast.format.filename import LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from keeplast.format.record import Record
from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from tests.support.durations import HOUR_MS
from tests.support.hosts import TOPIC, Cluster, read_all, replicate, write
from tests.support.partition_maker import NOW_MS

BOTH = frozenset({"compact", "delete"})


def cluster_of(root: Path, **settings: object) -> Cluster:
    return Cluster(root, replace(TOPIC, cleanup_policy=BOTH, **settings))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = cluster_of(tmp_path, retention_ms=-1)
    yield made
    made.store.close()


def test_local_segments_that_were_copied_leave_the_disk(tmp_path: Path) -> None:
    """ST-16: reading R-A on a leader and a follower; the log is read as before."""
    cluster = cluster_of(tmp_path, retention_ms=-1, local_retention_ms=HOUR_MS)
    a, b = cluster.pair(40)
    expected = read_all(a)
    assert a.retain_local().segments == 0
    cluster.clock.advance(2 * HOUR_MS)
    kept = a.retain_local()
    assert (kept.segments, kept.kept) == (0, "segment 0 stays: not in object storage yet")
    a.copy()
    assert a.retain_local().segments == len(a.state().routes)
    assert a.local_start == a.state().remote_end
    b.retain_local()
    assert b.local_start == a.local_start
    assert expected == read_all(a) == read_all(b)
    write(a, 10, start=40)
    assert a.log_end_offset == 50
    cluster.store.close()


def test_log_start_moves_in_both_tiers_and_on_followers(cluster: Cluster) -> None:
    a, b = cluster.pair(40)
    a.copy()
    before = len(a.state().routes)
    assert a.delete_records(20) == 20
    state = a.state()
    assert (state.log_start, len(state.routes) < before) == (20, True)
    assert a.local_start <= 20 < a.closed_segments()[0][1]
    for host in (a, b):
        with pytest.raises(InvalidError):
            host.fetch(19)
    b.replicate(b"", high_watermark=40, log_start=20)
    assert (b.local_log_start, b.local_start) == (20, a.local_start)
    assert read_all(a, 20) == read_all(b, 20)
    with pytest.raises(RefusedError):
        a.delete_records(41)
    a.close()
    assert cluster.host("a", recovers=True).local_log_start == 20


def test_log_start_after_object_storage_leaves_the_local_log_alone(cluster: Cluster) -> None:
    host = cluster.led(40)
    host.copy()
    end = host.state().remote_end
    assert host.delete_records(end + 1) == end + 1
    assert host.state().routes == ()
    write(host, 40, start=40)
    assert host.copy() > 0
    assert host.state().remote_end > end
    assert read_all(host, end + 1)


def test_a_log_start_inside_of_a_batch_leaves_no_replica_without_the_rest_of_it(
    cluster: Cluster,
) -> None:
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(0)
    a.append([NewRecord(b"k%d" % i, b"v", NOW_MS) for i in range(4)])
    write(a, 4, start=4)
    a.delete_records(2)
    b.replicate(b"", high_watermark=2, log_start=2)
    assert 2 == b.log_end_offset
    replicate(a, b)
    assert (0, 8) == (b.local_start, b.log_end_offset)
    assert read_all(a, 2) == read_all(b, 2)
    with pytest.raises(InvalidError):
        b.replicate(
            encode_batch([Record(7, NOW_MS, b"k", b"v"), Record(8, NOW_MS, b"k", b"v")]),
            high_watermark=8,
        )
    b.become_leader(1)
    assert {b"k%d" % i for i in range(4)} == set(read_all(b, 2))


def test_a_follower_below_the_log_start_begins_again(cluster: Cluster) -> None:
    a, b = cluster.pair(4)
    write(a, 40, start=4)
    a.delete_records(30)
    b.replicate(b"", high_watermark=30, log_start=30)
    assert b.log_end_offset == b.local_start == 30
    replicate(a, b)
    assert read_all(a, 30) == read_all(b, 30)


def test_retention_counts_both_tiers(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, retention_ms=-1, retention_bytes=1000)
    host = cluster.led(40)
    host.copy()
    remote = host.state().effective_bytes()
    lines: list[bytes] = []
    done = host.expire(receipt=lines.append)
    assert remote - done.bytes == host.state().effective_bytes()
    assert [done.log_start] == [json.loads(line)["expiry"]["log_start"] for line in lines]
    left = host.state().effective_bytes()
    only_local = sum(s.size_bytes for s in host.listing().segments) - left
    assert 1000 <= left + only_local < 1400 < remote
    assert host.state().log_start == host.local_start > 0
    with pytest.raises(RefusedError):
        cluster.host("b").expire()
    cluster.store.close()


def test_records_torn_by_a_crash_are_cut_on_request(cluster: Cluster) -> None:
    host = cluster.led(10)
    host.roll()
    write(host, 5, start=10)
    host.flush()
    path = host.listing().active.log_path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptError):
        cluster.host("a")
    again = cluster.host("a", recovers=True)
    assert (again.log_end_offset, again.recovered.cut_bytes > 0) == (14, True)
    assert again.high_watermark <= 14


def test_a_log_that_ends_below_its_start_begins_there(cluster: Cluster) -> None:
    """The log start was durable, the records behind it were not."""
    root = cluster.root / "a"
    host = cluster.led(10)
    host.close()
    (root / LOG_START_CHECKPOINT).write_text("0\n1\nt 0 50\n")
    (root / REPLICATION_CHECKPOINT).write_text("0\n1\nt 0 70\n")
    again = cluster.host("a", recovers=True)
    assert again.recovered.restarted_at == 50
    assert (again.log_end_offset, again.high_watermark) == (50, 50)


def test_an_empty_replica_catches_up_from_object_storage(cluster: Cluster) -> None:
    a = cluster.led(40)
    a.copy()
    cluster.clean()
    b = cluster.host("b")
    with pytest.raises(ConflictError):
        b.become_leader(1)
    assert a.append([NewRecord(b"k", b"still the leader", NOW_MS)]) == 40
    assert b.catch_up() == a.state().remote_end
    replicate(a, b)
    b.become_leader(1)
    assert b.lineage[0] == a.lineage[0]
    assert read_all(a) == read_all(b)


def test_a_new_replica_begins_at_the_leaders_local_start(cluster: Cluster) -> None:
    """KIP-405: what lies below stays in object storage; epochs and producers come from there."""
    a, b = cluster.host("a"), cluster.host("b")

    def send(host: PartitionHost, sequence: int) -> int:
        records = [NewRecord(b"p%d" % sequence, b"v", NOW_MS)]
        return host.append(records, producer_id=7, producer_epoch=0, base_sequence=sequence)

    a.become_leader(0)
    write(a, 20)
    a.become_leader(1)
    assert [20, 21] == [send(a, 0), send(a, 1)]
    write(a, 20, start=22)
    a.roll()
    a.copy()
    a.drop_below(30)
    start = a.local_start
    with pytest.raises(InvalidError):
        b.catch_up(start - 1)
    assert b.catch_up(start) == a.log_end_offset
    assert (b.local_start, b.lineage) == (start, a.lineage)
    b.close()
    b = cluster.host("b", recovers=True)
    write(a, 5, start=42)
    replicate(a, b)
    b.become_leader(2)
    assert send(b, 1) == 21
    assert send(b, 2) == b.log_end_offset - 1
    b.acknowledge(b.log_end_offset)
    b.roll()
    assert b.copy() > 0
    a.become_follower(2)
    a.truncate_to(b.lineage, b.log_end_offset)
    replicate(b, a)
    assert read_all(a) == read_all(b)


def test_st_18_an_epoch_without_cleaning_carries_the_checkpoint_on(cluster: Cluster) -> None:
    """ST-18: A cleans, B leads and does nothing, C begins where A ended."""
    a, b, c = (cluster.host(name) for name in "abc")
    a.become_leader(0)
    write(a, 40)
    for host in (b, c):
        replicate(a, host)
    a.copy()
    a.clean(cluster.runner, force=True, grace_ms=0)
    cleaned_to = a.state().first_dirty()
    assert cleaned_to > 0
    b.become_leader(1)
    state = c.become_leader(2)
    assert cleaned_to == state.first_dirty()
    assert {0: cleaned_to, 1: cleaned_to, 2: cleaned_to} == dict(state.publications[-1].offsets)


def test_st_20_a_copy_of_the_old_leader_changes_nothing(cluster: Cluster) -> None:
    """ST-20: an upload after the takeover is fenced, and the remote end stays."""
    a, b = cluster.pair(40)
    a.copy()
    b.become_leader(1)
    before = b.state()
    write(a, 40, start=40)
    a.roll()
    with pytest.raises(FencedError):
        a.copy()
    assert before == b.state()
    for act in (lambda: a.clean(cluster.runner, force=True), a.expire):
        with pytest.raises(FencedError):
            act()
    assert before.routes == b.state().routes
