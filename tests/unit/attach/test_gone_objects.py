"""What a round reads may go while it reads: the cause is reported, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.attach.rules.swap import Swap
from keeplast.attach.upkeep.replaced_segments import collect
from keeplast.clock import SystemClock
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.errors import CompactionError, ConflictError, CorruptError, FencedError
from keeplast.format import leader_epoch
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.model.topic_config import TopicConfig
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.state.attached import Decision
from tests.support.attached_world import BROKER, PARTITION, AttachedWorld, files_of

GRACE_MS = 1000
WISH = RoundWish(
    topic=TopicConfig(cleanup_policy=frozenset({"compact"})), margin_bytes=0, force=True
)


class StoredTier(LocalStorage, frozen=True):
    """Kafka's own layout in a directory, filled as the model's remote tier is."""

    def put(self, segment: RemoteLogSegment, log: bytes) -> None:
        """Store a segment, whole, with the epochs of a log that one leader wrote."""
        epochs = {AuxiliaryFile.LEADER_EPOCHS: leader_epoch.encode([LeaderEpoch(0, 0)])}
        writer = self.create_log(segment.id, segment.start_offset, segment)
        writer.write(log)
        self.complete(segment, writer.close(), files_of(segment, log) | epochs, segment)

    @property
    def segments(self) -> set[bytes]:
        """Return the ids under which anything lies."""
        return {each.segment_id for each in self.list(PARTITION)}

    @property
    def own(self) -> list[str]:
        """Return the names of keeplast's own objects."""
        files = (self.dir / ".keeplast").rglob("*")
        return [path.name for path in files if path.is_file()]


@dataclass
class Waking:
    """A remote tier where something happens before the segment at ``start`` is first opened."""

    tier: Any
    start: int
    happens: Callable[[], None]
    is_over: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)

    def open(self, segment: RemoteLogSegment) -> Any:
        """Open a segment, which may be gone by then."""
        if segment.start_offset == self.start and not self.is_over:
            self.is_over = True
            self.happens()
        return self.tier.open(segment)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    made = AttachedWorld(tmp_path, 0)
    tier: Any = StoredTier(tmp_path)
    (tmp_path / SEGMENTS).mkdir()
    made.tier = tier
    for number in range(4):
        made.upload(10 * number, 10 * number + 9)
    yield made
    made.close()


def clean(publisher: Publisher) -> None:
    clock = SystemClock()
    with LocalRunner(1, clock=clock) as runner:
        clean_attached(
            publisher, WISH, lambda _: nullcontext(runner), clock, progressed=lambda _: None
        )


def replace_all(world: AttachedWorld) -> None:
    """Let another process take over, replace what is there, and collect it."""
    other = world.claim()
    sources = world.served()[:3]
    output = world.write_output(other, sources)
    other.decide_and_publish(Swap(output.id.partition, tuple(sources), (output,), 30))
    world.clock.advance(GRACE_MS)
    assert 1 == collect(other, GRACE_MS).decisions
    other.close()


def expire_first(world: AttachedWorld) -> None:
    """Let brokers delete the oldest segments."""
    world.expire(*world.served()[:3])


def remove_by_hand(world: AttachedWorld) -> None:
    """Let somebody remove an object that brokers serve."""
    for each in world.served()[:3]:
        world.tier.delete(each)


@pytest.mark.parametrize("start", [0, 10, 20])
@pytest.mark.parametrize(
    ("happens", "expected", "words"),
    [
        (replace_all, FencedError, "taken the partition over"),
        (expire_first, ConflictError, "was replaced, or expired"),
        (remove_by_hand, CorruptError, "by hand"),
    ],
)
def test_a_round_whose_sources_went_says_whose_doing_that_was(
    world: AttachedWorld, happens: Callable[[AttachedWorld], None],
    expected: type[CompactionError], words: str, start: int,
) -> None:  # fmt: skip
    """A process that slept in its round wakes when another one has collected, or brokers have."""
    sleeper = world.claim()
    tier: Any = Waking(world.tier, start, lambda: happens(world))
    sleeper.layout = tier
    before = set(world.tier.segments)
    with pytest.raises(expected, match=words):
        clean(sleeper)
    known = {each.id.segment_id for each in world.cluster.cache().segments}
    assert set(world.tier.segments) <= known
    assert [] == [each for each in world.tier.own if not each.startswith("owner-")]
    assert before - set(world.tier.segments)


def test_damage_that_is_found_after_a_swap_of_the_round_is_damage(world: AttachedWorld) -> None:
    """What the round itself has replaced was not taken by anybody else."""
    publisher = world.claim()
    publish = publisher.decide_and_publish

    def damaged(swap: Swap) -> Decision:
        publish(swap)
        raise CorruptError("found behind it")

    publisher.decide_and_publish = damaged  # type: ignore[method-assign]
    with pytest.raises(CorruptError, match="found behind it"):
        clean(publisher)
    assert {each.broker_id for each in world.served()} == {BROKER, publisher.mark}
