"""A state as of a point of an attached topic is that of a plain replay, or it is refused.

Random logs of every strategy, with transactions and tombstones, that leaders copy piece by piece,
with rounds, collections, log starts that move, segments that retention takes, and new leaders that
copy over what a round wrote. The model keeps every record that was ever written.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import shown_log, told_from
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.cluster.facts import OffsetRange
from keeplast.errors import RefusedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.model.strategy import Strategy
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.state.attached import AttachedName
from tests.property.test_state_as_of import World, values
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.turns import examples
from tests.support.verified_world import VerifiedWorld

PIECES = 3
"""So many segments are left for later copies."""


def write(world: World, dice: random.Random) -> None:
    """Write some segments; every transaction ends in the log, most of them soon."""
    world.go_on(dice, dice.randrange(40, 90), 0.3)
    for producer in (1, 2):
        world.end(producer, commits=True)
    for _ in range(PIECES + 1):
        world.put(0, deletes=False)
        world.log.roll()
    world.log.close()


class Attached:
    """What leaders have copied of a log, and what was done with it."""

    def __init__(self, world: World, tier: VerifiedWorld) -> None:
        self.world = world
        self.tier = tier
        self.left = list(pairwise(tier.bases))[-PIECES:]

    @property
    def remote_end(self) -> int:
        return self.tier.tier.served()[-1].end_offset + 1

    @property
    def log_start(self) -> int:
        return self.tier.cluster.log.start

    def act(self, what: str) -> None:
        """Let something happen; what cannot is left out."""
        tier, served = self.tier, self.tier.tier.served()
        moves_start = what in ("cut", "expire")
        if moves_start and self.world.topic.strategy is not Strategy.OFFSET:
            return  # what was lost to what is deleted then would be missed
        if what == "clean":
            tier.clean(replace(self.world.topic, segment_bytes=600), margin=150)
        elif what == "collect":
            tier.collect()
        elif what == "copy" and self.left:
            base, following = self.left.pop(0)
            tier.tier.copy_one(tier.directory, base, following - 1)
        elif what == "cut":
            tier.cluster.log = replace(tier.cluster.log, start=served[0].start_offset + 1)
        elif what == "expire" and len(served) > 2:
            tier.world.expire(served[0])
            tier.tier.cache = tier.cluster.cache()
        elif what == "overlay" and len(served) > 2:
            *_, last, newest = served
            batches = list(read_batches(tier.tier.log_of(last)))
            if last.broker_id >= 0 and newest.broker_id >= 0:
                first = batches[len(batches) // 2].base_offset
                tier.tier.copy_over(tier.directory, first, newest.end_offset)

    def open(self) -> OpenLog:
        """Open what brokers serve, as readers do."""
        log = self.tier.world.log()
        known = log.find(AttachedName(CLUSTER_ID, PARTITION))
        found = shown_log(
            self.tier.tier.layout, PARTITION, self.tier.cluster.log, self.tier.cluster.cache(),
            log, known,
        )  # fmt: skip
        path = attached_path(PARTITION)
        return OpenLog(path, files=LogDirectoryRecipe(path.parent, (found,)).open())

    def told(self, log: OpenLog, end_offset: int) -> dict[bytes, bytes] | None:
        """Return the state as it is told, None when it is refused."""
        try:
            state = log.state(self.world.topic, end_offset=end_offset)
        except RefusedError:
            return None
        return {key: each.value for key, each in state.items() if each.value is not None}

    @property
    def last_stable(self) -> int:
        end = self.remote_end
        known = self.world.transactions
        return min([end, *(each.first for each in known if not 0 <= each.marker < end)])

    def told_from(self) -> int:
        log = self.tier.world.log()
        known = log.find(AttachedName(CLUSTER_ID, PARTITION))
        return told_from(self.tier.cluster.cache(), log, known, log_start=self.log_start)

    def must_refuse(self, at: int) -> bool:
        """Say whether a round has seen what an observer at an offset has not."""
        first = self.told_from()
        if at >= self.last_stable or first == self.log_start:
            return at < first
        return at < first or any(
            each.commits and each.first < first and each.marker >= at
            for each in self.world.transactions
        )

    def replay(self, at: int) -> dict[bytes, bytes]:
        """Return the plain fold of what lies in front of an offset, of all that was written."""
        decided = at if at < self.last_stable else self.remote_end
        return values(self.world.winners(self.log_start, at, decided))


@settings(max_examples=examples(12, long=1000))
@given(
    seed=st.integers(0, 1 << 32),
    strategy=st.sampled_from(Strategy),
    steps=st.lists(
        st.sampled_from(["clean", "clean", "collect", "copy", "cut", "expire", "overlay"]),
        max_size=6,
    ),
)
def test_a_state_as_of_an_offset_is_the_replay_or_refused(
    seed: int, strategy: Strategy, steps: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World.make(Path(folder) / "logs", strategy)
        write(world, random.Random(seed))
        tier = VerifiedWorld(Path(folder), world.log.directory, [LeaderEpoch(0, 0)], left=PIECES)
        tier.cluster.log = OffsetRange(0, world.log.log_end)
        try:
            attached = Attached(world, tier)
            for what in ("", *steps):
                attached.act(what)
            log, stable = attached.open(), attached.last_stable
            for end in range(attached.log_start, attached.remote_end + 1):
                at, told = min(end, stable), attached.told(log, end)
                if attached.must_refuse(at):
                    assert told is None, f"end={end} told={told}"
                else:
                    assert attached.replay(at) == told, f"end={end}"
        finally:
            tier.close()
