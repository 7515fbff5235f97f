"""KIP-1272, "Errors/Crashes during log compaction and later file swapping", sentence by sentence.

Crashes of a process at every step are in ``tests/services`` and ``tests/simulation``; the crash
between the two tiers is in ``tests/unit/host/test_host_rounds.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CompactionError, FencedError, UnavailableError
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.segment import SegmentState
from tests.support.crash_logs import CRASH_LOGS
from tests.support.faulty_objects import REQUESTS, FaultyObjects
from tests.support.hosts import TOPIC, Cluster, read_all
from tests.support.metadata_contract import LINEAGE, Opened, new_id, segment
from tests.support.metadata_contract import PARTITION as P
from tests.support.partition_maker import DAY_MS, PARTITION
from tests.support.remote_log import RemoteLog


@pytest.fixture
def objects() -> FaultyObjects:
    return FaultyObjects(open_objects("memory://"))


@pytest.fixture
def log(tmp_path: Path, objects: FaultyObjects) -> Iterator[RemoteLog]:
    made = CRASH_LOGS["one by one"]
    found = RemoteLog(tmp_path, made.write(tmp_path / "data"), made.topic, objects)
    objects.forget()
    yield found
    found.store.close()


@pytest.mark.rotates(3)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99], ids=["first", "middle", "last"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_kip_1272_failures_abort_the_operation_which_is_retried_later(
    tmp_path: Path, objects: FaultyObjects, log: RemoteLog, kind: str, share: float
) -> None:
    """ "When there are errors during log compaction, the operation will be aborted and retried
    later." What was committed stays; what was not leaves nothing that is read."""
    expected = log.read().final_values()
    twin_root = tmp_path / "twin"
    twin_root.mkdir()
    made = CRASH_LOGS["one by one"]
    counted = FaultyObjects(open_objects("memory://"))
    twin = RemoteLog(twin_root, made.write(twin_root / "data"), made.topic, counted)
    counted.forget()
    twin.clean()
    requests = counted.seen[kind]
    assert requests > 0
    twin_values = twin.read().final_values()
    twin.store.close()

    before = log.state.first_dirty()
    objects.fail(kind, 1 + int(requests * share))
    with pytest.raises(UnavailableError):
        log.clean()
    assert objects.failed == 1
    objects.forget()
    assert before <= log.state.first_dirty() < log.state.remote_end
    assert () == log.tiered.verify(PARTITION, lambda count: None)
    assert expected == log.read().final_values()
    log.clean()
    assert log.state.first_dirty() == log.state.remote_end
    assert () == log.tiered.verify(PARTITION, lambda count: None)
    assert expected == twin_values == log.read().final_values()
    log.clock.advance(10_000 * DAY_MS)  # Objects are as old as the machine's clock says.
    log.tiered.collect(PARTITION, garbage_age_ms=0)
    live = {s.segment_id for s in log.live}
    assert live == {found.key.split("/")[-2] for found in objects.list(str(PARTITION))}


@pytest.mark.parametrize("kind", ["list", "delete"])
def test_kip_1272_failures_of_a_collection_leave_the_rest_for_the_next(
    objects: FaultyObjects, log: RemoteLog, kind: str
) -> None:
    log.clean()
    objects.fail(kind, 1)
    with pytest.raises(UnavailableError):
        log.tiered.collect(PARTITION)
    assert () == log.tiered.verify(PARTITION, lambda count: None)
    log.tiered.collect(PARTITION)
    live = {s.segment_id for s in log.live}
    assert live == {found.key.split("/")[-2] for found in objects.list(str(PARTITION))}


def test_kip_1272_failures_upload_that_lost_something_is_not_believed(tmp_path: Path) -> None:
    """The local segment is still there when it is noticed."""
    cluster = Cluster(tmp_path)
    objects = FaultyObjects(cluster.objects)
    cluster.objects = objects
    host = cluster.led(20)
    host.roll()
    objects.loses_bytes = True
    with pytest.raises(UnavailableError):
        host.copy()
    assert 0 == host.state().remote_end
    objects.loses_bytes = False
    assert host.copy() > 0
    assert host.log_end_offset == host.state().remote_end
    cluster.store.close()


def test_kip_1272_failures_zombie_upload_is_not_read(tmp_path: Path) -> None:
    """ "Similar fencing protection also needs to happen to the remote log segment upload from the
    old broker." """
    cluster = Cluster(tmp_path)
    a, b = cluster.pair(20)
    b.become_leader(1)
    before = b.state()
    a.roll()
    with pytest.raises(FencedError):
        a.copy()
    assert before == b.state()
    b.roll()
    b.copy()
    assert read_all(a) == read_all(b)
    cluster.store.close()


def test_kip_1272_failures_zombie_deletion_is_refused_and_the_owner_validates_first(
    tmp_path: Path,
) -> None:
    """ "That deletion request can come from a zombie broker A while active broker B still needs to
    read the data": the state says that it goes, in a fenced transaction, before an object does."""
    opened = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    source = segment(0, 9)
    opened.copy(source)
    opened.store.commit_swap(
        P, new_id(), epoch=0, sources=[source.segment_id], outputs=[segment(0, 9)], grace_ms=0
    )
    opened.store.take_over(P, epoch=1, owner="b", lineage=LINEAGE, log_end=10)
    with pytest.raises(FencedError):
        opened.store.start_delete(P, epoch=0, segment_id=source.segment_id)
    assert SegmentState.REPLACED == opened.store.known_ids(P)[source.segment_id]
    live = opened.state().routes[0].segment_id
    assert not opened.store.start_delete(P, epoch=1, segment_id=live)
    assert opened.store.start_delete(P, epoch=1, segment_id=source.segment_id)
    assert SegmentState.DELETING == opened.store.known_ids(P)[source.segment_id]
    with pytest.raises(FencedError):
        opened.store.finish_delete(P, epoch=0, segment_id=source.segment_id)
    opened.store.close()


def broken_store(host_clean: Callable[[], object], objects: FaultyObjects) -> None:
    objects.fail("open", 1)
    with pytest.raises(CompactionError):
        host_clean()


def test_kip_1272_failures_of_cleaning_do_not_keep_local_segments(tmp_path: Path) -> None:
    """ "Local disk management is predictable and not blocked by the async compaction process." """
    topic = replace(TOPIC, local_retention_ms=DAY_MS)
    cluster = Cluster(tmp_path, topic)
    objects = FaultyObjects(cluster.objects)
    cluster.objects = objects
    host = cluster.led(40)
    host.roll()
    host.copy()
    expected = read_all(host)
    broken_store(lambda: host.clean(cluster.runner, force=True), objects)
    assert 0 == host.retain_local().segments
    cluster.clock.advance(2 * DAY_MS)
    broken_store(lambda: host.clean(cluster.runner, force=True), objects)
    assert host.retain_local().segments > 0
    assert host.local_start == host.state().remote_end
    assert expected == read_all(host)
    cluster.store.close()
