"""Objects that no broker serves go when the topic is gone for sure; in doubt they stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from keeplast.attach.held.metadata_view import KeptFolds
from keeplast.attach.held.outputs import BEGUN, filter_name, work_name
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.words import KEPT_MS, Words, words_of_live
from keeplast.attach.upkeep.orphans import (
    FoundOrphans,
    collect_gone,
    orphans_of_gone,
    unknown_of_live,
)
from keeplast.cluster.live_cluster import BrokerFacts, ClusterFacts
from keeplast.errors import CompactionError, FencedError, RefusedError, StoppedError
from keeplast.format.remote_log_metadata import RemoteLogSegmentState
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName
from tests.support.attached_world import (
    BROKER,
    BROKER_SETTINGS,
    CLUSTER_ID,
    PARTITION,
    START_MS,
    AttachedWorld,
    CrashError,
    Stepping,
    Steps,
    log_of,
    moved,
)
from tests.support.existing import existing

GRACE_MS = 1000
WORLD_SEGMENTS = 4
NAME = AttachedName(CLUSTER_ID, PARTITION)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Gone:
    """The world's cluster behind the deletion of its topic; brokers say ``answer`` by name."""

    def __init__(self, world: AttachedWorld, answer: bytes | Exception | None = None) -> None:
        self._cluster = world.cluster
        self._answer = answer
        self.cluster_id = CLUSTER_ID

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def find_topic_id(self, topic: str) -> bytes | None:
        assert topic == PARTITION.topic
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def read_facts(self, topics: object = ()) -> ClusterFacts:
        assert topics == ()
        brokers = (BrokerFacts(BROKER, BROKER_SETTINGS),)
        return ClusterFacts(self.cluster_id, brokers, (), self._cluster.metadata_topic)


def left(world: AttachedWorld) -> tuple[Publisher, set[bytes]]:
    """Leave all kinds of things, and let brokers delete the topic; return the unnamed ones."""
    publisher = world.swapped()
    # Given out, written, never announced: no broker knows of it.
    log = log_of((30,), 39)
    made = world.segment(30, 39, log)
    publisher.register([(made.id.segment_id, 30)])
    world.tier.put(made, log)
    # Begun by a round that ended before the first byte: there is nothing but the word of it.
    world.tier.put_new(work_name(world.segment(30, 39, log).id), BEGUN)
    # Begun by a round that ended before it was given out.
    begun = world.segment(30, 39, log)
    world.tier.put(begun, log)
    world.tier.put_new(work_name(begun.id), BEGUN)
    unknown = world.segment(30, 39, log)
    world.tier.put(unknown, log)
    world.tier.put_new(filter_name(world.served()[0].id), b"a filter")
    publisher.close()
    for each in world.cluster.cache().segments:
        if each.state is FINISHED:
            world.cluster.announce(moved(each, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
            world.tier.delete(each)
            world.cluster.announce(moved(each, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
    world.clock.advance(GRACE_MS)
    return publisher, {unknown.id.segment_id}


def asked(
    world: AttachedWorld, cluster: Gone, grace_ms: int = GRACE_MS, log: DecisionLog | None = None
) -> FoundOrphans:
    chosen = world.log() if log is None else log
    known = existing(chosen.find(NAME))
    folds = KeptFolds(chosen.folds)
    return orphans_of_gone(cast(Any, cluster), chosen, world.tier, known, grace_ms, folds)  # type: ignore[arg-type]


def collected(
    world: AttachedWorld, cluster: Gone, steps: Steps | None = None, grace_ms: int = GRACE_MS,
    **options: bool,
) -> FoundOrphans:  # fmt: skip
    parts: tuple[Any, ...] = (cluster, world.log(), world.tier)
    if steps is not None:
        parts = tuple(Stepping(each, steps) for each in parts)
    known = parts[1].find(NAME)
    return collect_gone(
        parts[0], parts[1], parts[2], known, grace_ms, KeptFolds(parts[1].folds), takes_over=True,
        **options,
    )  # fmt: skip


def test_named_segments_go_and_unnamed_ones_stay(world: AttachedWorld) -> None:
    publisher, unknown = left(world)
    before = dict(world.tier.segments)
    found = asked(world, Gone(world))
    assert before == world.tier.segments
    # Two sources on their way out, one that was given out, one that was begun.
    assert (4, 0, unknown) == (
        len(found.named), len(found.waiting), {each.segment_id for each in found.unknown},
    )  # fmt: skip
    assert (1, 0) == (len(found.words.due), len(found.words.waiting))
    assert found == collected(world, Gone(world))
    assert unknown == set(world.tier.segments)
    assert [publisher.owner.key] == list(world.tier.own)
    assert FoundOrphans(unknown=found.unknown) == collected(world, Gone(world))
    world.tier.segments.clear()
    assert FoundOrphans() == collected(world, Gone(world))
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is not None
    assert {} == world.tier.own


def test_segments_that_a_round_announced_after_the_deletion_go_too(world: AttachedWorld) -> None:
    """AT-26: no broker will ever say of it that it is to go."""
    publisher = world.claim()
    late = world.write_output(publisher, world.served()[3:])
    publisher.close()
    _, unknown = left(world)
    known = existing(world.cluster.cache().find(late.id))
    assert RemoteLogSegmentState.COPY_SEGMENT_STARTED is known.state
    assert late.id.segment_id in {each.segment_id for each in collected(world, Gone(world)).named}
    assert unknown == set(world.tier.segments)


def test_segments_written_within_the_grace_wait(world: AttachedWorld) -> None:
    left(world)
    before = set(world.tier.segments)
    found = collected(world, Gone(world), grace_ms=GRACE_MS + 1)
    assert (0, 4) == (len(found.named), len(found.waiting))
    assert (0, 1) == (len(found.words.due), len(found.words.waiting))
    assert 2 == len([each for each in world.tier.own if each.startswith("work/")])
    assert before == set(world.tier.segments)
    assert START_MS == found.waiting[0].modified_ms


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("hidden", "needs Describe"), ("there", "the topic is there"),
        ("served", "never said"), ("copying", "never said"), ("other cluster", "another cluster"),
        ("cut", "not the one that was seen"), ("other log", "another decision log owns"),
        ("later epoch", "later epoch"), ("no owner", "owner object is gone"),
    ],
)  # fmt: skip
def test_in_doubt_everything_stays(world: AttachedWorld, what: str, words: str) -> None:
    publisher, _ = left(world)
    cluster = Gone(world)
    if what == "hidden":
        cluster = Gone(world, RefusedError("it needs Describe on the topic"))
    elif what == "there":
        cluster = Gone(world, PARTITION.topic_id)
    elif what == "served":
        world.upload(0, 9)
    elif what == "copying":
        world.cluster.announce(world.segment(0, 9, b"x"))
    elif what == "other cluster":
        cluster.cluster_id = "b-cluster"
    elif what == "cut":
        del world.cluster.values[2:]
    elif what == "no owner":
        world.tier.own.clear()
    elif what == "other log":
        publisher.owner._store_id = "0" * 32
        world.tier.own[publisher.owner.key] = publisher.owner._at(publisher.epoch).to_bytes()
    else:
        world.tier.own[publisher.owner.key] = publisher.owner._at(publisher.epoch + 5).to_bytes()
    before, own = set(world.tier.segments), dict(world.tier.own)
    with pytest.raises(CompactionError, match=words):
        collected(world, cluster)
    assert before == set(world.tier.segments)
    assert own == world.tier.own
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is None


def test_objects_still_shown_as_served_go_on_request(world: AttachedWorld) -> None:
    """Brokers ended before they let go of the topic: no broker will ever say that it is to go."""
    _, unknown = left(world)
    served = world.upload(0, 9)
    log = log_of((50,), 59)
    copying = world.segment(50, 59, log)
    world.tier.put(copying, log)
    world.cluster.announce(copying)
    found = asked(world, Gone(world))
    ids = {served.id.segment_id, copying.id.segment_id}
    assert ids == {each.segment_id for each in found.served}
    assert not ids & {each.segment_id for each in found.named}
    with pytest.raises(RefusedError, match="collect-served"):
        collected(world, Gone(world))
    assert ids < set(world.tier.segments)
    young = collected(world, Gone(world), takes_served=True, grace_ms=GRACE_MS + 1)
    assert ((), 6) == (young.served, len(young.waiting))
    assert ids < set(world.tier.segments)
    assert found == collected(world, Gone(world), takes_served=True)
    assert unknown == set(world.tier.segments)


@pytest.mark.parametrize("what", ["there", "hidden", "no owner"])
def test_the_topic_must_be_gone_and_ours(world: AttachedWorld, what: str) -> None:
    left(world)
    world.upload(0, 9)
    cluster = Gone(world)
    if what == "there":
        cluster = Gone(world, PARTITION.topic_id)
    elif what == "hidden":
        cluster = Gone(world, RefusedError("it needs Describe on the topic"))
    else:
        world.tier.own.clear()
    before = set(world.tier.segments)
    with pytest.raises(RefusedError):
        collected(world, cluster, takes_served=True)
    assert before == set(world.tier.segments)


def test_words_of_what_was_never_written_go_of_a_topic_that_lives(world: AttachedWorld) -> None:
    publisher = world.claim()
    log = log_of((70,), 79)
    nothing, written, announced = (world.segment(70, 79, log) for _ in range(3))
    for each in (nothing, written, announced):
        world.tier.put_new(work_name(each.id), BEGUN)
    other = replace(nothing.id, partition=replace(PARTITION, partition=1))
    world.tier.put_new(work_name(other), BEGUN)
    world.tier.put(written, log)
    world.cluster.announce(announced)
    before = dict(world.tier.own)
    assert ((), 1) == counted(words_of_live(publisher, removes=True))
    assert before == world.tier.own
    world.clock.advance(KEPT_MS)
    assert ((work_name(nothing.id),), 0) == counted(words_of_live(publisher, removes=False))
    assert before == world.tier.own
    overtaken, publisher = publisher, world.claim()
    with pytest.raises(FencedError):
        words_of_live(overtaken, removes=True)
    before = dict(world.tier.own)
    words_of_live(publisher, removes=True)
    assert before.keys() - world.tier.own.keys() == {work_name(nothing.id)}


def counted(words: Words) -> tuple[tuple[str, ...], int]:
    """Return the names of what may go, and how many wait."""
    return tuple(each.name for each in words.due), len(words.waiting)


def test_a_new_topic_of_the_same_name_keeps_the_objects_of_the_old_one(
    world: AttachedWorld,
) -> None:
    _, unknown = left(world)
    assert 4 == len(collected(world, Gone(world, bytes(range(1, 17)))).named)
    assert unknown == set(world.tier.segments)


def test_a_pause_stops_this_too(world: AttachedWorld) -> None:
    publisher, _ = left(world)
    publisher.log.set_paused(publisher.held, is_paused=True)
    before = set(world.tier.segments)
    with pytest.raises(StoppedError):
        collected(world, Gone(world))
    assert before == set(world.tier.segments)


def test_a_crash_or_a_rival_at_every_step_removes_nothing_else(tmp_path: Path) -> None:
    crash = Mock(side_effect=CrashError)
    counted = Steps()
    for number in range(-1, 100):
        if number >= 0 and number >= len(counted.names):
            break
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root, segments=4)
        publisher, unknown = left(world)
        cluster = Gone(world)
        is_rival = number % 2 == 1

        def rival(world: AttachedWorld = world, cluster: Gone = cluster) -> None:
            collected(world, cluster)

        steps = counted if number < 0 else Steps(number, rival if is_rival else crash)
        ended: type[BaseException] | None = None
        try:
            collected(world, cluster, steps)
        except (CrashError, CompactionError) as error:
            ended = type(error)
        assert unknown <= set(world.tier.segments)
        if ended is CrashError and publisher.owner.find() is not None:
            collected(world, cluster)
        assert unknown == set(world.tier.segments)
        world.close()
    assert len(counted.names) > 10


def test_unnamed_segments_of_a_live_topic_are_only_reported(world: AttachedWorld) -> None:
    publisher = world.swapped()
    world.write_output(publisher, world.served()[1:2])
    assert () == unknown_of_live(publisher)
    log = log_of((70,), 79)
    strange = world.segment(70, 79, log)
    world.tier.put(strange, log)
    (found,) = unknown_of_live(publisher)
    assert strange.id.segment_id == found.segment_id
    assert strange.id.segment_id in world.tier.segments
