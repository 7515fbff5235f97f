"""A later sight of the metadata topic reads what is new, and never believes another topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.attach.held.metadata_view import KeptFolds
from keeplast.cluster.live_cluster import MetadataValue, OffsetRange
from keeplast.cluster.metadata_log import FoldedMetadata, fold_metadata
from keeplast.service.attached_sight import SightFolds
from tests.support.attached_loop import LoopCluster, LoopWorld
from tests.support.attached_world import CLUSTER_ID


class Counting(LoopCluster):
    """A cluster that counts the records that are read."""

    count = 0

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        for each in super().read_metadata(partition, held):
            self.count += 1
            yield each

    def since(self) -> int:
        """Return how many were read since this was asked the last time."""
        found, self.count = self.count, 0
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LoopWorld]:
    made = LoopWorld(tmp_path)
    made.cluster = Counting()
    made.topic("a")
    made.topic("b")
    yield made
    made.close()


def refolded(world: LoopWorld) -> FoldedMetadata:
    return fold_metadata(world.cluster, world.cluster.metadata_topic, [0])


def served(folded: FoldedMetadata, world: LoopWorld, topic: str) -> list[object]:
    return list(folded.cache.partitions[world.cluster.topics[topic].partition].served())


def test_a_later_sight_reads_what_is_new_and_the_record_before_it(world: LoopWorld) -> None:
    cluster = world.cluster
    assert isinstance(cluster, Counting)
    folds = SightFolds(cluster, KeptFolds(world.log().folds))
    first = folds.fold(CLUSTER_ID, cluster.metadata_topic, [0])
    assert len(cluster.values) == cluster.since()
    before = served(first, world, "a")
    world.fill("a", 2)
    second = folds.fold(CLUSTER_ID, cluster.metadata_topic, [0])
    assert 4 + 1 == cluster.since()
    folds.fold(CLUSTER_ID, cluster.metadata_topic, [0])
    assert 1 == cluster.since()
    for topic in ("a", "b"):
        assert served(refolded(world), world, topic) == served(second, world, topic)
    # What was handed out is as it was.
    assert before == served(first, world, "a")


def test_a_topic_that_lost_its_end_is_read_from_its_beginning(world: LoopWorld) -> None:
    cluster = world.cluster
    assert isinstance(cluster, Counting)
    folds = SightFolds(cluster, KeptFolds(world.log().folds))
    folds.fold(CLUSTER_ID, cluster.metadata_topic, [0])
    del cluster.values[-4:]
    cluster.since()
    found = folds.fold(CLUSTER_ID, cluster.metadata_topic, [0])
    assert cluster.since() >= len(cluster.values)
    assert served(refolded(world), world, "b") == served(found, world, "b")
    world.fill("a", 2)
    assert served(refolded(world), world, "a") == served(
        folds.fold(CLUSTER_ID, cluster.metadata_topic, [0]), world, "a"
    )
