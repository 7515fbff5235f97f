"""Commands on attached partitions: one that fails, or whose topic is gone, leaves the others be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keeplast.attach.held.outputs import BEGUN, SWEPT, work_name
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.words import KEPT_MS
from keeplast.cli.attach.options import OrphansWish
from keeplast.cli.attach.steps import (
    collection_step,
    detach_step,
    each_attached,
    forget_gone,
    with_unknown,
)
from keeplast.cli.frame.exit_codes import DONE
from keeplast.config.mapping import topic_config
from keeplast.errors import CompactionError, FencedError, RefusedError
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.tier.metadata.decisions import DecisionLog
from tests.support.attached_world import (
    CLUSTER_ID,
    PARTITION,
    AttachedWorld,
    CrashError,
    Steps,
    log_of,
)


class Client:
    """The cluster of a world, with what commands ask besides."""

    def __init__(self, world: AttachedWorld) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.cluster, name)

    def read_cluster_id(self) -> str:
        return CLUSTER_ID

    def find_topic_id(self, topic: str) -> bytes | None:
        return self.read_topic_ids({topic}).get(topic)

    def read_topic_ids(self, topics: set[str]) -> dict[str, bytes]:
        topic = self._world.cluster.topic
        return {topic.name: topic.topic_id} if topic.name in topics else {}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AttachedWorld]:
    made = AttachedWorld(tmp_path)
    made.claim().close()
    yield made
    made.close()


def call_of(world: AttachedWorld) -> Any:
    @contextmanager
    def open_log() -> Iterator[DecisionLog]:
        yield world.log()

    settings = SimpleNamespace(
        topic_config=lambda topic: topic_config({"cleanup.policy": "compact"})
    )
    return SimpleNamespace(
        cluster=SimpleNamespace(
            connect=lambda: Client(world), topics=(), bootstrap_server="localhost:9092"
        ),
        tier=SimpleNamespace(open_layout=lambda: world.tier, open_log=open_log),
        wanted=SimpleNamespace(settings_of=lambda topics: settings),
        take_over=True,
    )


def rows_of(found: tuple[int, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found[1]["partitions"]
    return rows


def test_a_topic_that_was_created_again_ends_no_command(world: AttachedWorld) -> None:
    def never(publisher: Publisher) -> Mapping[str, object]:
        raise AssertionError("nothing is done to a topic that is gone")

    world.cluster.topic_id = bytes(range(1, 17))
    code, _ = found = each_attached(call_of(world), never, as_json=True)
    assert (DONE, [True]) == (code, [row["is_gone"] for row in rows_of(found)])
    assert [None] == [each.detached_ms for each in world.log().partitions(CLUSTER_ID)]
    assert DONE == each_attached(call_of(world), never, as_json=True, of_gone=forget_gone)[0]
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is not None


def test_a_disk_that_fails_is_told_of_its_partition(world: AttachedWorld) -> None:
    def fails(publisher: Publisher) -> Mapping[str, object]:
        raise OSError(28, "No space left on device", "/mnt/tier/x")

    code, _ = found = each_attached(call_of(world), fails, as_json=True)
    assert code != DONE
    (row,) = rows_of(found)
    assert (PARTITION.topic, PARTITION.partition) == (row["topic"], row["partition"])
    assert "no space left" in row["error"]


def test_a_topic_that_is_hidden_is_not_forgotten(world: AttachedWorld) -> None:
    """The list of topics leaves it out; asked by name, brokers say why."""

    class Blind(Client):
        def read_topic_ids(self, topics: set[str]) -> dict[str, bytes]:
            return {}

        def find_topic_id(self, topic: str) -> bytes | None:
            raise RefusedError("the principal may not do that; it needs Describe")

    call = call_of(world)
    call.cluster.connect = lambda: Blind(world)
    code, _ = found = each_attached(call, lambda _: {}, as_json=True, of_gone=forget_gone)
    assert code != DONE
    assert "Describe" in rows_of(found)[0]["error"]
    (row,) = world.log().partitions(CLUSTER_ID)
    assert row.detached_ms is None


def begun_by_a_round_that_ended(world: AttachedWorld) -> tuple[RemoteLogSegment, ...]:
    """Return an output that was written, one of which there is but the word, and a stranger's."""
    log = log_of((0,), 0)
    written, nothing, unknown = made = tuple(world.segment(0, 0, log) for _ in range(3))
    for each in (written, nothing):
        world.tier.put_new(work_name(each.id), BEGUN)
    for each in (written, unknown):
        world.tier.put(each, log)
    return made


def test_a_detach_leaves_nothing_of_what_rounds_have_begun(world: AttachedWorld) -> None:
    served = set(world.tier.segments)
    _, _, unknown = begun_by_a_round_that_ended(world)
    (row,) = rows_of(each_attached(call_of(world), detach_step(0), as_json=True))
    assert row["is_detached"]
    assert served | {unknown.id.segment_id} == set(world.tier.segments)
    assert {} == world.tier.own


def test_who_was_overtaken_removes_nothing_before_it_detaches(world: AttachedWorld) -> None:
    begun_by_a_round_that_ended(world)
    overtaken = world.claim()
    world.claim()
    segments, own = set(world.tier.segments), dict(world.tier.own)
    with pytest.raises(FencedError):
        detach_step(0)(overtaken)
    assert (segments, own) == (set(world.tier.segments), world.tier.own)


def test_a_crash_or_a_rival_at_every_step_of_a_detach_leaves_what_is_served(tmp_path: Path) -> None:
    def crash() -> None:
        raise CrashError

    counted = Steps()
    for number in range(-1, 200):
        if number >= len(counted.names) > 0:
            break
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root)
        world.claim().close()
        served = set(world.tier.segments)
        _, _, unknown = begun_by_a_round_that_ended(world)

        def rival(world: AttachedWorld = world) -> None:
            world.claim()

        steps = counted if number < 0 else Steps(number, rival if number % 2 else crash)
        try:
            detach_step(0)(world.claim(steps=steps))
        except (CrashError, CompactionError):
            (row,) = world.log().partitions(CLUSTER_ID)
            if row.detached_ms is None:
                assert detach_step(0)(world.claim())["is_detached"]
        assert served | {unknown.id.segment_id} == set(world.tier.segments)
        assert not [each for each in world.tier.own if each.startswith("work/")]
        world.close()
    assert len(counted.names) > 30


def test_what_a_round_has_begun_goes_by_collection_too_and_a_list_removes_nothing(
    world: AttachedWorld,
) -> None:
    served = set(world.tier.segments)
    written, nothing, unknown = begun_by_a_round_that_ended(world)
    found = {}
    for wish in (OrphansWish.LIST, OrphansWish.COLLECT):
        before = set(world.tier.segments)
        step = with_unknown(collection_step(0), wish)
        (found[wish],) = rows_of(each_attached(call_of(world), step, as_json=True))
        assert 1 == found[wish]["unknown_segments"]
        if wish is OrphansWish.LIST:
            assert before == set(world.tier.segments)
    assert served | {unknown.id.segment_id} == set(world.tier.segments)
    assert SWEPT == world.tier.own[work_name(written.id)]
    assert BEGUN == world.tier.own[work_name(nothing.id)]
    assert (1, 2) == tuple(found[wish]["unwritten_waiting"] for wish in found)


def test_words_that_are_due_are_told_when_they_go(world: AttachedWorld) -> None:
    _, nothing, _ = begun_by_a_round_that_ended(world)
    world.clock.advance(KEPT_MS)
    step = with_unknown(collection_step(0), OrphansWish.COLLECT)
    (row,) = rows_of(each_attached(call_of(world), step, as_json=True))
    assert (1, 1) == (row["unwritten_removed"], row["unwritten_waiting"])
    assert work_name(nothing.id) not in world.tier.own
