"""A look goes on from the fold that was kept, and stops where the topic does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import KeptFolds
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.metadata_log import encode_checkpoint
from keeplast.errors import RefusedError
from keeplast.format.remote_log_metadata import RemoteLogSegmentUpdate, decode
from tests.support.attached_world import CLUSTER_ID, AttachedWorld
from tests.support.existing import existing
from tests.support.heard_calls import hear

GRACE_MS = 1000


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachedWorld]:
    monkeypatch.setattr("keeplast.attach.held.metadata_view.WRITTEN_RECORDS_MIN", 1)
    monkeypatch.setattr("keeplast.attach.held.metadata_view.GAP_MAX", 0)
    with closing(AttachedWorld(tmp_path, segments=20)) as made:
        yield made


@pytest.fixture
def reads(world: AttachedWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets that are read of the metadata topic from now on."""
    found: list[int] = []
    hear(
        monkeypatch, type(world.cluster), "read_metadata",
        lambda cluster, partition, held: found.extend(range(held.start, held.end)),
    )  # fmt: skip
    return found


def kept(world: AttachedWorld) -> bytes | None:
    return world.log().folds.read(CLUSTER_ID, 0)


def test_a_second_look_reads_one_record_more_than_is_new(
    world: AttachedWorld, reads: list[int]
) -> None:
    end = len(world.cluster.values)
    publisher = world.claim()
    assert [*range(end)] == reads
    reads.clear()
    expected = publisher.look().cache.state()
    assert [end - 1] == reads
    publisher.close()
    reads.clear()
    world.upload(200, 209)
    again = world.claim()
    assert [end - 1, end, end + 1] == reads
    assert 21 == again.look().cache.segment_count
    assert expected.segments == again.look().cache.state().segments[:20]


def test_what_was_looked_for_is_found_where_it_was_and_where_it_was_repeated(
    world: AttachedWorld, reads: list[int]
) -> None:
    publisher = world.claim()
    decision = publisher.decide_and_publish(world.swap(publisher))
    assert decision.first_offset is not None
    for number in range(20, 30):
        world.upload(10 * number, 10 * number + 9)
    publisher.look()
    publisher.close()
    reads.clear()
    again = world.claim()
    reads.clear()
    world.clock.advance(GRACE_MS)
    assert 1 == collect(again, GRACE_MS).decisions
    assert min(reads) == decision.first_offset
    assert len(reads) < 10
    world.settle()


def test_a_kept_fold_that_is_lost_or_damaged_is_made_again(
    world: AttachedWorld, reads: list[int]
) -> None:
    world.claim().close()
    data = existing(kept(world))
    for wrong in (None, b"", data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        world.log().folds.write(CLUSTER_ID, 0, wrong)
        reads.clear()
        publisher = world.claim()
        assert [*range(len(world.cluster.values))] == reads
        publisher.decide_and_publish(world.swap(publisher))
        publisher.close()
        assert kept(world) is not None
    world.settle()


def test_a_fold_of_another_partition_or_cluster_is_not_gone_on_with(
    world: AttachedWorld, reads: list[int]
) -> None:
    publisher = world.claim()
    made = existing(publisher.folds.find(CLUSTER_ID, 0))
    for other in (replace(made.point, partition=1), replace(made.point, cluster_id="b-cluster")):
        data = encode_checkpoint(replace(made, point=other))
        world.log().folds.write(CLUSTER_ID, 0, data)
        assert KeptFolds(world.log().folds).find(CLUSTER_ID, 0) is None


@pytest.mark.parametrize("what", ["shorter", "other record", "other leader", "made again"])
def test_a_metadata_topic_that_does_not_go_on_from_the_fold_stops_everything(
    world: AttachedWorld, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this partition has seen itself lies before it: the fold alone can decide."""
    publisher = world.swapped()
    early = existing(publisher.log.find(publisher.name))
    world.upload(200, 209)
    publisher.look()
    publisher.close()
    assert early.seen.offset < len(world.cluster.values)
    if what == "shorter":
        del world.cluster.values[-1]
    elif what == "other record":
        event = decode(world.cluster.values[-1])
        assert isinstance(event, RemoteLogSegmentUpdate)
        del world.cluster.values[-1]
        world.cluster.announce(replace(event, event_timestamp_ms=event.event_timestamp_ms + 1))
    elif what == "other leader":
        world.cluster.leader_epoch -= 1
    else:
        other = replace(world.cluster.metadata_topic, topic_id=bytes(15) + b"2")
        monkeypatch.setattr(type(world.cluster), "metadata_topic", other)
    objects = set(world.tier.segments)
    world.clock.advance(GRACE_MS)
    before = kept(world)
    with pytest.raises(RefusedError, match="--accept-metadata"):
        world.claim()
    assert objects == set(world.tier.segments)
    assert before == kept(world)
    again = world.claim(accepts_metadata=True)
    repair(again, accepts_metadata=True)
    assert 1 == collect(again, GRACE_MS).decisions
    again.close()
    world.require_readable()
    world.claim().look()


def test_a_metadata_topic_that_lost_its_beginning_is_refused_with_a_fold_too(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.claim().close()
    ends = type(world.cluster).read_ranges
    monkeypatch.setattr(
        type(world.cluster), "read_ranges",
        lambda cluster, topic: [OffsetRange(5, each.end) for each in ends(cluster, topic)],
    )  # fmt: skip
    with pytest.raises(RefusedError, match="no longer begins at offset 0"):
        world.claim()


def test_the_first_attachment_is_not_stopped_by_the_fold_of_a_topic_that_was_made_again(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log().folds.write(CLUSTER_ID, 0, None)
    publisher = world.claim()
    made = existing(publisher.folds.find(CLUSTER_ID, 0))
    other = replace(made, point=replace(made.point, topic_id=bytes(16)))
    fresh = world.log("fresh.db")
    fresh.folds.write(CLUSTER_ID, 0, encode_checkpoint(other))
    world.tier.own.clear()
    claimed = world.claim(fresh)
    found = existing(KeptFolds(fresh.folds).find(CLUSTER_ID, 0))
    assert claimed.look().metadata_topic.topic_id == found.point.topic_id
