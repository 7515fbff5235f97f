"""A leader of the metadata topic that was cut off gives an old end: nothing wrong comes of it.

It believes that it leads, in the epoch that everybody knew. What is appended goes to the new one,
since all who are in sync must take it; what is asked is answered as it was. A broker's copy comes
meanwhile, of which the old one never hears.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from keeplast.attach.upkeep.replaced_segments import repair
from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    MetadataEnd,
    MetadataValue,
    OffsetRange,
    TopicFacts,
)
from keeplast.errors import (
    CommitUnknownError,
    CompactionError,
    CorruptError,
    InvariantError,
    RefusedError,
    UnavailableError,
)
from tests.support.attached_world import AttachedWorld, ModelCluster, Steps
from tests.support.turns import Turn

GRACE_MS = 1000


@dataclass(slots=True)
class Divided(ModelCluster):
    """Answers as its old leader does, while it is cut off."""

    old: MetadataEnd | None = None

    def cut_off(self, behind: int = 0) -> None:
        """Elect another leader; the old one is ``behind`` what it had heard was committed."""
        self.old = MetadataEnd(len(self.values) - behind, self.leader_epoch)
        self.leader_epoch += 1

    def read_end(self, partition: int) -> MetadataEnd:
        return self.old or ModelCluster.read_end(self, partition)

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        if self.old is not None and topic.name == METADATA_TOPIC:
            return [OffsetRange(0, self.old.offset)]
        return ModelCluster.read_ranges(self, topic)

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        known = held.end if self.old is None else min(held.end, self.old.offset)
        yield from ModelCluster.read_metadata(self, partition, OffsetRange(held.start, known))
        if known < held.end:
            raise UnavailableError("the metadata topic ends before its end; look again")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    with closing(divided(tmp_path)) as made:
        yield made


def divided(root: Path) -> AttachedWorld:
    """Return a world of four segments whose metadata topic can lose its leader."""
    world = AttachedWorld(root, segments=0)
    world.cluster = Divided()
    for number in range(4):
        world.upload(10 * number, 10 * number + 9)
    return world


def cluster_of(world: AttachedWorld) -> Divided:
    assert isinstance(world.cluster, Divided)
    return world.cluster


def copied(world: AttachedWorld) -> None:
    """Let the topic's leader copy what is new, of which the old leader hears nothing."""
    world.upload(40, 49)


def test_an_old_leader_that_answers_from_any_step_on_does_no_harm(
    tmp_path: Path, turn: Turn
) -> None:
    """It has all that was acknowledged, or has not heard yet that the last of it is committed."""
    (tmp_path / "count").mkdir()
    counted, steps = divided(tmp_path / "count"), Steps()
    counted.live_through(steps)
    counted.close()
    ends: dict[str, int] = {}
    for number in (each for each in range(len(steps.names)) if turn.takes(each, 3)):
        root = tmp_path / str(number)
        root.mkdir()
        world = divided(root)

        def happens(world: AttachedWorld = world, behind: int = 2 * (number % 2)) -> None:
            cluster_of(world).cut_off(behind)
            copied(world)

        try:
            world.live_through(Steps(number, happens, world.require_readable))
            end = "done"
        except (CorruptError, InvariantError):
            raise  # Neither damage nor a defect: only an old answer.
        except CompactionError as error:
            end = type(error).__name__
        ends[end] = ends.get(end, 0) + 1
        world.require_readable()
        # It has heard that it leads no more.
        cluster_of(world).old = None
        world.settle()
        world.close()
    assert {"done", "UnavailableError"} & ends.keys()
    assert {"CommitUnknownError", "RefusedError", "ConflictError"} & ends.keys()


def test_what_another_process_has_seen_of_the_new_leader_shows_the_old_one_up(
    world: AttachedWorld,
) -> None:
    """The decision log has the leader epoch that was seen last, of all hosts."""
    world.swapped().close()
    cluster_of(world).cut_off()
    old, cluster_of(world).old = cluster_of(world).old, None
    world.swapped(1, 3).close()
    announced, objects = len(world.cluster.values), set(world.tier.segments)
    cluster_of(world).old = old
    world.clock.advance(GRACE_MS)
    with pytest.raises(RefusedError, match="an older leader may have answered"):
        world.claim()
    assert (announced, objects) == (len(world.cluster.values), set(world.tier.segments))
    cluster_of(world).old = None
    world.settle()


def test_a_swap_that_only_the_new_leader_has_is_looked_for_there(world: AttachedWorld) -> None:
    """What the old one does not have is no reason to say that it is published, or is not."""
    publisher, swap = world.prepared()
    cluster_of(world).cut_off()
    with pytest.raises((CommitUnknownError, UnavailableError)):
        publisher.decide_and_publish(swap)
    publisher.close()
    cluster_of(world).old = None
    again = world.claim()
    assert 1 == repair(again).published
    batches = _places(world, swap.outputs[0].id.segment_id)
    assert 1 <= len(batches)
    again.close()
    world.settle()


def _places(world: AttachedWorld, segment_id: bytes) -> Sequence[int]:
    return [at for at, value in enumerate(world.cluster.values) if segment_id in value]
