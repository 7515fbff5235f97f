"""The simulation is worth something: without any one of these rules it fails, and soon.

Each case takes one rule of the tier away and names a few seeds, found by running from 0 on, of
which one at least must fail; with the rule in place they pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Engine

from keeplast.engine import tier_round
from keeplast.engine.partition_host import PartitionHost
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.append import LogAppender
from keeplast.model.partition import TopicPartition
from keeplast.tier import vector
from keeplast.tier.metadata import MetadataStore
from keeplast.tier.vector import Publication
from tests.support.tier_world import Failure, simulate
from tests.support.tier_world_stores import SimulatedStore, open_database_in_memory

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_database_in_memory()


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """An old leader's transactions are as good as the new one's."""
    owned = MetadataStore._owned

    def anybody(self: SimulatedStore, partition: TopicPartition, epoch: int) -> Any:
        with self._tasks.unobserved():
            current = self.load(partition).leader_epoch
        return owned(self, partition, current)

    patch.setattr(MetadataStore, "_owned", anybody)
    patch.setattr(PartitionHost, "_own_state", lambda self: self.state())


def with_a_claim_that_forgets(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not take over how far the log was clean."""

    def take_over(
        publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int, *,
        epoch: int, log_start: int,
    ) -> Publication:  # fmt: skip
        return Publication(epoch, 0, {epoch: log_start})

    patch.setattr(vector, "take_over", take_over)


def without_ends_of_segments(patch: pytest.MonkeyPatch) -> None:
    """I-6: an output may end below its range."""

    def without(made: Any, **changes: Any) -> Any:
        changes.pop("keeps_group_ends", None)
        return replace(made, **changes)

    patch.setattr(tier_round, "replace", without)


def without_the_state_of_producers(patch: pytest.MonkeyPatch) -> None:
    """A producer's batch that is sent again is not known again."""
    patch.setattr(LogAppender, "find_duplicate", lambda *args: None)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule taken away, and seeds of which one at least fails then."""

    patch: Patch
    seeds: tuple[int, ...]


MUTATIONS = (
    Mutation(without_fencing, (18,)),
    Mutation(with_a_claim_that_forgets, (4,)),
    Mutation(without_ends_of_segments, (1, 3)),
    Mutation(without_the_state_of_producers, (1,)),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.patch.__name__)
def test_a_rule_that_is_gone_is_missed(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, mutation: Mutation
) -> None:
    mutation.patch(monkeypatch)
    failed = []
    for seed in mutation.seeds:
        try:
            simulate(seed, engine)
        except Failure:
            failed.append(seed)
    assert failed
