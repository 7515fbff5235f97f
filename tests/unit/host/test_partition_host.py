"""Leader and follower over one object store: what is read, what is fenced, what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    RefusedError,
)
from keeplast.format import time_index
from keeplast.format.filename import TIME_INDEX
from keeplast.format.record import ControlType
from keeplast.log.append import NewRecord
from keeplast.tier.metadata.collection import collect
from tests.support.counting_objects import CountingObjects
from tests.support.hosts import Cluster, read_all, replicate, write
from tests.support.partition_maker import NOW_MS, PARTITION


def test_a_log_is_read_through_both_tiers(cluster: Cluster) -> None:
    host = cluster.led(40)
    assert host.copy() > 3
    expected = read_all(host)
    cluster.clean()
    assert expected == read_all(host)
    assert host.state().first_dirty() > 0
    host.become_leader(1)
    assert host.local_start > 0
    for start in range(host.log_end_offset):
        assert read_all(host, start).items() <= expected.items()
    assert expected == read_all(host)
    assert host.copy() == 0


def test_follower_takes_over_where_the_leader_was(cluster: Cluster) -> None:
    """ST-15: stale local segments below the first dirty offset go; the log goes on."""
    a, b = cluster.leader_and_follower()
    write(a, 40)
    replicate(a, b)
    a.copy()
    cluster.clean()
    expected = read_all(a)
    state = b.become_leader(1)
    assert b.local_start >= state.first_dirty() or b.local_start == b.log_end_offset
    assert expected == read_all(b)
    write(b, 10, start=40)
    assert a.log_end_offset == 40
    write(a, 30, start=90)
    with pytest.raises(FencedError):
        a.copy()
    a.become_follower(1)
    a.truncate(40)
    replicate(b, a)
    assert b.log_end_offset == a.log_end_offset == 50
    b.copy()
    cluster.clean()
    assert read_all(a) == read_all(b)


def test_i_4_a_copy_without_its_oldest_batches_has_the_times_of_those_it_has(
    cluster: Cluster,
) -> None:
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(1)
    a.append([NewRecord(b"k", b"v", NOW_MS + 1000)])
    a.acknowledge(1)
    a.roll()
    replicate(a, b)
    a.copy()
    b.become_leader(2)
    for back in (20, 10, 30):
        b.append([NewRecord(b"k", b"v", NOW_MS + 500 - back)])
    b.acknowledge(4)
    b.roll()
    assert 1 == b.copy()
    state = b.state()
    made = state.segments[state.routes[-1].segment_id]
    assert (1, NOW_MS + 490) == (made.base_offset, made.max_timestamp_ms)
    assert time_index.ENTRY_BYTES <= made.files[TIME_INDEX].size_bytes


def test_a_host_that_is_fenced_when_it_takes_over_replicates_as_before(cluster: Cluster) -> None:
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(1)
    write(a, 10)
    cluster.store.take_over(PARTITION, epoch=5, owner="c", lineage=a.lineage, log_end=10)
    with pytest.raises(FencedError):
        b.become_leader(3)
    replicate(a, b)
    assert a.lineage == b.lineage


def test_only_the_leader_appends_and_copies(cluster: Cluster) -> None:
    host = cluster.host("a")
    with pytest.raises(RefusedError):
        host.append([NewRecord(b"k", b"v", NOW_MS)])
    with pytest.raises(RefusedError):
        host.copy()


def test_a_batch_that_is_sent_again_is_there_once(cluster: Cluster) -> None:
    host = cluster.host("a")
    host.become_leader(0)

    def send(sequence: int, count: int = 2) -> int:
        records = [NewRecord(b"k", b"v", NOW_MS)] * count
        return host.append(records, producer_id=7, producer_epoch=0, base_sequence=sequence)

    assert [send(0), send(0), send(2), send(2)] == [0, 0, 2, 2]
    assert host.log_end_offset == 4
    with pytest.raises(InvalidError):
        send(5)


def test_open_transaction_is_not_copied(cluster: Cluster) -> None:
    host = cluster.led(8)
    host.append(
        [NewRecord(b"t", b"v", NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    write(host, 20, start=8)
    host.roll()
    host.copy()
    assert host.state().remote_end <= 8
    host.end_transaction(ControlType.COMMIT, producer_id=7, producer_epoch=0)
    host.roll()
    host.acknowledge(host.log_end_offset)
    host.copy()
    assert host.state().remote_end == host.log_end_offset


def test_offset_for_time_is_found_in_either_tier(cluster: Cluster) -> None:
    host = cluster.led(40, keys=40)
    host.copy()
    host.become_leader(1)
    for i in range(40):
        assert host.offset_for_time(NOW_MS + i) == (i, NOW_MS + i)
    assert host.offset_for_time(NOW_MS + 40) is None


def test_offset_for_time_is_found_after_an_earlier_end_of_the_log(cluster: Cluster) -> None:
    host = cluster.led(2)
    host.close()
    again = cluster.host("a")
    again.become_leader(1)
    write(again, 2, start=2)
    assert (3, NOW_MS + 3) == again.offset_for_time(NOW_MS + 3)


def test_reader_whose_segment_was_replaced_and_removed_meanwhile_reads_the_new_one(
    tmp_path: Path,
) -> None:
    """With a grace of nothing a swap and a collection can fit between metadata and object."""
    overtaken: list[int] = []
    made = Cluster(tmp_path)

    class Overtaken(CountingObjects):
        def read_range(self, key: str, start: int, end: int) -> memoryview:
            if key.endswith(".log") and overtaken == [0]:
                overtaken.append(1)
                made.clean()
                state = made.store.load(PARTITION)
                collect(
                    made.store, self._objects, PARTITION, epoch=state.leader_epoch,
                    garbage_age_ms=0, clock=made.clock,
                )  # fmt: skip
            return super().read_range(key, start, end)

    made.objects = Overtaken(made.objects)
    host = made.led(40)
    host.roll()
    host.copy()
    expected = read_all(host)
    host.drop_below(host.state().remote_end)
    overtaken.append(0)
    assert expected == read_all(host)
    assert [0, 1] == overtaken
    gone = next(iter(made.objects.list(f"{PARTITION}"))).key
    made.objects.delete([gone.rsplit(".", 1)[0] + ".log"])
    with pytest.raises(CorruptError):
        read_all(host)
    made.store.close()


@pytest.mark.parametrize("reopens", [False, True])
def test_a_transaction_whose_end_is_not_replicated_is_not_stable(
    cluster: Cluster, reopens: bool
) -> None:
    """The next leader may end it otherwise; also after a restart, behind a snapshot."""
    host = cluster.led(4)
    host.append([NewRecord(b"t", b"1")], producer_id=7, producer_epoch=0, base_sequence=0,
                is_transactional=True)  # fmt: skip
    host.append([NewRecord(b"k", b"%d" % number) for number in range(3)])
    host.end_transaction(ControlType.ABORT, producer_id=7, producer_epoch=0)
    host.acknowledge(7)
    assert host.last_stable_offset == 4
    host.roll()
    if reopens:
        host.close()
        host = cluster.host("a")
    assert (host.high_watermark, host.last_stable_offset) == (7, 4)
    host.become_leader(1)
    host.acknowledge(9)
    assert host.last_stable_offset == 9


def test_a_replica_with_other_records_at_the_same_offsets_is_not_elected(cluster: Cluster) -> None:
    """ST-30: both have five records, and those of object storage are of another leader's."""
    a, b = cluster.host("a"), cluster.host("b")
    b.become_leader(1)
    write(b, 3)
    replicate(b, a)
    b.append([NewRecord(b"k", b"b3", NOW_MS)])
    b.append([NewRecord(b"k", b"b4", NOW_MS)])
    a.become_leader(2)
    a.append([NewRecord(b"k", b"a3", NOW_MS)])
    a.append([NewRecord(b"k", b"a4", NOW_MS)])
    a.acknowledge(5)
    a.roll()
    assert 1 == a.copy()
    before = cluster.store.load(PARTITION)
    b.become_follower(2)
    with pytest.raises(ConflictError, match="offset=3 epoch=1 stored_epoch=2"):
        b.become_leader(3)
    assert before == cluster.store.load(PARTITION)
    b.truncate_to(before.lineage, before.remote_end)
    b.catch_up()
    b.become_leader(3)
    assert read_all(a) == read_all(b)


def test_a_longer_log_that_goes_on_from_another_one_is_not_elected(cluster: Cluster) -> None:
    a, b, c = cluster.host("a"), cluster.host("b"), cluster.host("c")
    b.become_leader(1)
    write(b, 3)
    for other in (a, c):
        replicate(b, other)
    b.append([NewRecord(b"k", b"b3", NOW_MS)])
    a.become_leader(2)
    a.append([NewRecord(b"k", b"a3", NOW_MS)])
    a.acknowledge(4)
    a.roll()
    a.copy()
    replicate(a, c)
    c.become_leader(3)
    write(c, 4, start=4)
    b.become_follower(3)
    replicate(c, b)  # Without having been cut: offset 3 is still its own.
    assert b.log_end_offset == c.log_end_offset
    with pytest.raises(ConflictError, match="offset=3 epoch=1 stored_epoch=2"):
        b.become_leader(4)
    b.truncate(3)
    replicate(c, b)
    b.become_leader(4)
    assert read_all(c) == read_all(b)


def test_a_follower_takes_nothing_of_a_later_leader_from_one_that_was_replaced(
    cluster: Cluster,
) -> None:
    """Below the first dirty offset ``a`` serves object storage, which is its successor's by now."""
    a, b, c = cluster.host("a"), cluster.host("b"), cluster.host("c")
    a.become_leader(1)
    write(a, 3)
    b.become_follower(1)
    for other in (b, c):
        replicate(a, other)
    a.append([NewRecord(b"k", b"a3", NOW_MS)])
    a.append([NewRecord(b"k", b"a4", NOW_MS)])
    replicate(a, b)
    c.become_leader(2)
    write(c, 4, start=3)
    c.roll()
    c.copy()
    cluster.clean()
    a.append([NewRecord(b"k", b"a5", NOW_MS)])
    a.append([NewRecord(b"k", b"a6", NOW_MS)])
    with pytest.raises(FencedError, match="epoch=1 batch_epoch=2 base_offset=5"):
        replicate(a, b)
    assert 5 == b.log_end_offset
    b.become_follower(2)
    assert 3 == b.truncate_to(c.lineage, c.log_end_offset)
    replicate(c, b)
    assert read_all(c) == read_all(b)
    b.become_leader(3)


def test_what_object_storage_has_is_not_appended_to_another_leaders_records(
    cluster: Cluster,
) -> None:
    """Its epoch at the end would say to the next truncation that both logs are the same."""
    a, b = cluster.host("a"), cluster.host("b")
    b.become_leader(1)
    write(b, 3)
    replicate(b, a)
    b.append([NewRecord(b"k", b"b3", NOW_MS)])
    a.become_leader(2)
    write(a, 3, start=3)
    a.roll()
    a.copy()
    b.become_follower(2)
    with pytest.raises(ConflictError, match="offset=3 epoch=1 stored_epoch=2"):
        b.catch_up()
    assert 4 == b.log_end_offset
    b.truncate_to(a.lineage, a.log_end_offset)
    assert 6 == b.catch_up()
    assert read_all(a) == read_all(b)


def test_a_replica_that_begins_after_object_storage_is_not_elected(cluster: Cluster) -> None:
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(1)
    write(a, 5)
    a.roll()
    a.copy()
    b.restart(9)
    with pytest.raises(ConflictError, match="local_start=9 remote_end=5"):
        b.become_leader(2)
    assert "a" == cluster.store.load(PARTITION).owner


def test_a_replica_that_never_saw_a_cleaned_epoch_is_elected(cluster: Cluster) -> None:
    """Of epoch 2 nothing is left in object storage but the end of a segment."""
    a, b = cluster.host("a"), cluster.host("b")
    for epoch in (1, 2, 3):
        a.become_leader(epoch)
        write(a, 4, keys=2)
        a.roll()
    a.copy()
    cluster.clean()
    b.catch_up()
    assert a.lineage != b.lineage
    b.become_leader(4)
    assert read_all(a) == read_all(b)


def test_what_another_leader_copies_while_a_replica_is_compared_is_compared_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = cluster.host("a"), cluster.host("b")
    a.become_leader(1)
    write(a, 4)
    a.roll()
    replicate(a, b)
    write(a, 4, start=4)
    a.roll()
    compared: list[int] = []

    def find(*arguments: object) -> None:
        compared.append(int(str(arguments[-1])))
        if len(compared) == 1:
            a.copy()

    monkeypatch.setattr("keeplast.host.partition_host.find_divergent_batch", find)
    with pytest.raises(ConflictError, match="ends below"):
        b.become_leader(2)
    assert ([0], "a") == (compared, cluster.store.load(PARTITION).owner)
