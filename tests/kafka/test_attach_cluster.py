"""Three brokers under rounds: leaders change in every step, die, freeze, and upload over a round.

The metadata topic and the topic have three replicas, two in sync. What consumers read is judged by
what was acknowledged (:mod:`tests.support.acknowledged`). Each test has a partition of its own;
the last ones look at all of them, and restart everything.

By ``make test-attach-cluster``, not with the others: it takes minutes. A cluster is started once a
version; what is ``slow`` is left out where ``LONG=`` is given to ``make``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.clock import Clock, SystemClock
from keeplast.cluster import client as client_module
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.cluster.metadata_cache import RemotePartitionStatus, is_compactors, name_of
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvariantError,
    UnavailableError,
)
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.decisions import DecisionLog
from tests.kafka.broker import VERSIONS
from tests.kafka.test_attach_removal import MovedClock
from tests.kafka.tiered_cluster import SEGMENT_BYTES, TieredCluster, rack_of
from tests.support.acknowledged import Acknowledged, Watch
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.cluster]

TOPIC, REMOVED = "ledger", "departed"
LOCAL_MS = 1_000
DELETE_RETENTION_MS = 3_600_000
STEPS = (
    ("log", "register"), ("cluster", "append"), ("cluster", "append 2"), ("log", "mark_published"),
    ("cluster", "append 3"),
)  # fmt: skip
"""Before which calls leaders change. Batches of a round and of a collection are the announcement,
the swap, and the end of the deletion."""
SWAP_STEP = 2
KILLED, FROZEN, OVERLAID, SLOW = range(len(STEPS), len(STEPS) + 4)
PARTITIONS = len(STEPS) + 4
RECORDS = 3000
LASTING = 200
EARLY = 600
ATTEMPTS_MAX = 10
ARRANGED_MAX = 5
"""How often what a machine's pace decides is arranged again."""
DELAY_SECONDS = 0.1
WISH = RoundWish(
    topic=TopicConfig(
        cleanup_policy=frozenset({"compact"}), segment_bytes=SEGMENT_BYTES,
        min_cleanable_dirty_ratio=0.0,
    ),
    margin_bytes=2 * SEGMENT_BYTES, force=True, memory_bytes=MEMORY_BYTES_MIN,
)  # fmt: skip


class World(Struct, frozen=True):
    """What runs, what producers got acknowledged, and one decision log."""

    brokers: TieredCluster
    acknowledged: Acknowledged
    store: str
    topic: str = TOPIC
    settled: set[int] = field(default_factory=set)
    removed: list[Acknowledged] = field(default_factory=list)
    """What producers got acknowledged of topics whose tombstones have gone."""
    clock: Clock = field(default_factory=SystemClock)

    def compactor(self, partition: int) -> Compactor:
        """Return who compacts a partition, which is filled first."""
        self.acknowledged.send(partition, RECORDS)
        self.acknowledged.send_in_transactions(partition, 6)
        # From a producer that stays open, whatever happens to the partition.
        self.acknowledged.go_on(partition, LASTING)
        self.brokers.wait_until_remote(self.topic, partition)
        return Compactor(self, partition)

    def wait_until_compacted(self, partition: int) -> None:
        """Judge what readers get, until it is clearly less than was sent.

        A broker serves what was before until it has heard of a swap, which takes it longer when
        the leader that it listened to has changed.
        """
        limit = 0.7 * self.acknowledged.count(partition)
        wait_until(
            lambda: self.acknowledged.judge(partition, is_starting=True) < limit,
            words=self.brokers.complaints,
        )


@dataclass
class Compactor:
    """One partition's rounds by this process; ``calls`` happen before calls of its parts."""

    world: World
    partition: int

    def __post_init__(self) -> None:
        """Let nothing happen."""
        self.calls: dict[tuple[str, str], Callable[[], None]] = {}
        self.met: list[tuple[str, str]] = []
        self.delay = 0.0
        self.wish = WISH

    def claim(self) -> Publisher:
        """Hold the partition; its parts are those of a process, with what happens before calls."""
        address = self.world.brokers.address
        client = ClusterClient(address)
        facts = client.read_facts([self.world.topic])
        log = DecisionLog(open_database(self.world.store), self.world.clock)
        layout = LocalStorage(self.world.brokers.remote)
        parts = [
            Calls(each, name, self)
            for each, name in ((client, "cluster"), (log, "log"), (layout, "layout"))
        ]
        return claim(
            cast(LiveCluster, parts[0]), cast(DecisionLog, parts[1]), cast(RemoteLayout, parts[2]),
            name_of(facts.topics[0], self.partition), facts.cluster_id,
            AttachTerms(address=address), takes_over=True,
        )  # fmt: skip

    def clean(self) -> None:
        """Repair, and do a round."""
        publisher, clock = self.claim(), self.world.clock
        try:
            repair(publisher)
            with LocalRunner(1, clock=clock) as runner:
                clean_attached(
                    publisher, self.wish, lambda _: nullcontext(runner), clock,
                    progressed=lambda _: None,
                )  # fmt: skip
        finally:
            publisher.close()

    def collect(self) -> None:
        """Repair, and collect without a grace."""
        publisher = self.claim()
        try:
            repair(publisher)
            collect(publisher, 0)
        finally:
            publisher.close()

    def until_done(self, work: Callable[[], None]) -> list[CompactionError]:
        """Do ``work`` again while it fails as keeplast fails; return what it met."""
        errors: list[CompactionError] = []
        while True:
            try:
                work()
            except (CorruptError, InvariantError):
                raise
            except CompactionError as error:
                errors.append(error)
            else:
                return errors
            assert len(errors) < ATTEMPTS_MAX, errors


class Calls:
    """A part of a compactor before whose calls something may happen, once each."""

    def __init__(self, target: object, name: str, compactor: Compactor) -> None:
        self._target = target
        self._name = name
        self._compactor = compactor

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            compactor = self._compactor
            if self._name == "layout":
                time.sleep(compactor.delay)
            compactor.met.append((self._name, name))
            count = compactor.met.count((self._name, name))
            key = (self._name, name if count == 1 else f"{name} {count}")
            compactor.calls.pop(key, lambda: None)()
            return found(*arguments, **named)

        return call


@pytest.fixture(scope="module", params=VERSIONS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    root = tmp_path_factory.mktemp("cluster")
    with TieredCluster(request.param, root) as brokers:
        brokers.create(TOPIC, PARTITIONS)
        acknowledged = Acknowledged(brokers.address, TOPIC)
        yield World(brokers, acknowledged, f"sqlite:///{root / 'decisions.db'}")


# Of each list the version is the only one: tests are put in another order by the places in it.
OLDEST_ALONE = pytest.mark.parametrize("world", VERSIONS[:1], indirect=True)
NEWEST_ALONE = pytest.mark.parametrize("world", VERSIONS[-1:], indirect=True)


@pytest.mark.slow
@OLDEST_ALONE
def test_leaders_change_in_the_swap_of_an_older_cluster(world: World) -> None:
    """P16, AT-11, AT-32."""
    check_change_of_leaders(world, SWAP_STEP)


@pytest.mark.slow
@OLDEST_ALONE
def test_uploads_over_a_round_by_a_new_leader_of_an_older_cluster_are_compacted_again(
    world: World,
) -> None:
    """R-4, AT-12."""
    check_overlaid(world)


@NEWEST_ALONE
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if number == SWAP_STEP else [pytest.mark.slow])
        for number in range(len(STEPS))
    ],
)
def test_leaders_of_topic_and_metadata_change_in_a_step(world: World, number: int) -> None:
    """P16, AT-11, AT-13, AT-32: both are others afterwards, and the old ones think they lead."""
    check_change_of_leaders(world, number)


def check_change_of_leaders(world: World, number: int) -> None:
    compactor, watch = world.compactor(number), Watch(world.acknowledged, number)
    changed: list[int] = []

    def change() -> None:
        world.brokers.move_both_leaders(TOPIC, number)
        changed.append(number)

    compactor.calls[STEPS[number]] = change
    compactor.until_done(compactor.clean)
    world.wait_until_compacted(number)
    compactor.until_done(compactor.collect)
    assert 0 < watch.stop()
    assert [number] == changed
    check_settled(world, number)


def check_settled(world: World, partition: int) -> None:
    found = world.brokers.status(world.topic, partition)
    assert ((), 0, 0) == (found.holes, found.copying.count, found.deleting.count)
    assert found.compacted.count
    world.wait_until_compacted(partition)
    world.settled.add(partition)


@NEWEST_ALONE
def test_a_broker_that_is_killed_in_a_round_and_comes_back_serves_the_same(world: World) -> None:
    """C3, P8: it led what the metadata topic has of the partition."""
    brokers, compactor = world.brokers, world.compactor(KILLED)
    killed: list[int] = []

    def kill() -> None:
        node = brokers.metadata_leader(TOPIC, KILLED)
        killed.append(node)
        brokers.brokers[node].kill()

    compactor.calls["cluster", "append 2"] = kill
    compactor.until_done(compactor.clean)
    world.wait_until_compacted(KILLED)
    compactor.until_done(compactor.collect)
    brokers.brokers[killed[0]].start()
    brokers.wait_for_replicas(TOPIC, KILLED)
    check_settled(world, KILLED)


@pytest.mark.slow
@NEWEST_ALONE
def test_a_compactor_that_sees_only_some_brokers_goes_on_with_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, R-5, AT-29: who leads what it writes to is frozen when it decides, and wakes up later."""
    brokers, compactor = world.brokers, world.compactor(FROZEN)
    alone = ClusterClient(brokers.brokers[1].address)
    brokers.freeze(1)
    try:
        monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 3.0)
        with pytest.raises(UnavailableError):
            alone.read_facts([TOPIC])
    finally:
        monkeypatch.undo()
        brokers.thaw()
    brokers.wait_for_replicas(TOPIC, FROZEN)
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(brokers.metadata_leader(TOPIC, FROZEN))
        brokers.freeze(frozen[0])

    compactor.calls["cluster", "append 2"] = freeze
    try:
        compactor.until_done(compactor.clean)
        # Who followed the frozen leader may not have heard of the swap, and serves the sources.
        world.acknowledged.judge(FROZEN, is_starting=True)
    finally:
        brokers.thaw()
    world.wait_until_compacted(FROZEN)
    compactor.until_done(compactor.collect)
    check_settled(world, FROZEN)


@NEWEST_ALONE
def test_uploads_over_a_round_by_a_new_leader_are_read_right_and_compacted_again(
    world: World,
) -> None:
    """R-4, AT-12: its segments begin elsewhere, and far below what was copied already."""
    check_overlaid(world)


def check_overlaid(world: World) -> None:
    brokers, acknowledged = world.brokers, world.acknowledged
    compactor = world.compactor(OVERLAID)
    # No margin but the last segment: it is sized by what segments were, not by what they become.
    compactor.wish = replace(WISH, margin_bytes=0)
    for _ in range(ARRANGED_MAX):
        let_preferred_roll_elsewhere(world)
        compactor.until_done(compactor.clean)
        world.wait_until_compacted(OVERLAID)
        before = brokers.status(TOPIC, OVERLAID)
        served = brokers.cache(TOPIC, OVERLAID).served()
        compacted_to = max(each.end_offset for each in served if is_compactors(each.segment))
        if preferred_would_upload_from(world, before) <= compacted_to:
            break
    else:
        pytest.fail("who leads next has rolled where the others did, each time")

    brokers.elect_preferred(TOPIC, OVERLAID)
    acknowledged.send(OVERLAID, 3 * RECORDS)
    brokers.wait_until_remote(TOPIC, OVERLAID)
    served = brokers.cache(TOPIC, OVERLAID).served()
    lying_over = [
        each.segment
        for each in served
        if not is_compactors(each.segment) and each.start_offset <= (before.remote_end or 0)
    ]
    assert lying_over
    assert min(each.start_offset for each in lying_over) <= compacted_to
    assert () == brokers.status(TOPIC, OVERLAID).holes
    acknowledged.judge(OVERLAID, is_starting=True)

    compactor.until_done(compactor.clean)
    world.wait_until_compacted(OVERLAID)
    left = {each.segment.id for each in brokers.cache(TOPIC, OVERLAID).served()}
    assert not left & {each.id for each in lying_over}
    assert 0 == brokers.status(TOPIC, OVERLAID).hidden.count
    compactor.until_done(compactor.collect)
    check_settled(world, OVERLAID)


def let_preferred_roll_elsewhere(world: World) -> None:
    """Let who leads first sleep through some records, and roll at another size when it wakes.

    What it misses has to be local then: it would begin where the remote tier ends. On a busy
    machine it may hear of the size too late, and roll where the others did.
    """
    brokers = world.brokers
    first = brokers.replicas(TOPIC, OVERLAID)[0]
    brokers.set_segment_bytes(TOPIC, SEGMENT_BYTES)
    brokers.elect_preferred(TOPIC, OVERLAID)
    brokers.keep_local(TOPIC, keeps=True)
    brokers.freeze(first)
    try:
        world.acknowledged.send(OVERLAID, RECORDS)
        wait_until(
            lambda: brokers.leader(TOPIC, OVERLAID) not in (-1, first), words=brokers.complaints
        )
        brokers.set_segment_bytes(TOPIC, 10 * SEGMENT_BYTES)
    finally:
        brokers.thaw(first)
    brokers.wait_for_replicas(TOPIC, OVERLAID)
    brokers.keep_local(TOPIC, keeps=False)
    brokers.wait_until_remote(TOPIC, OVERLAID)


def preferred_would_upload_from(world: World, status: RemotePartitionStatus) -> int:
    """Return where its local segment begins that has the first offset that is not remote."""
    first = world.brokers.replicas(TOPIC, OVERLAID)[0]
    folder = world.brokers.brokers[first].data / f"{TOPIC}-{OVERLAID}"
    at = (status.remote_end or 0) + 1
    bases = [int(path.name[:20]) for path in folder.glob("*.log")]
    return max((each for each in bases if each <= at), default=at)


@NEWEST_ALONE
def test_no_deleted_key_comes_back_when_tombstones_go_while_leaders_change(world: World) -> None:
    """R-4, AT-11, AT-12, AT-32: values are dropped by one round, their tombstones by the next.

    Leaders change in the swap of either and before the end of either's deletion, and wake up; no
    read lasts while the clock is moved, for that would be longer than ``delete.retention.ms``.
    """
    brokers, clock = world.brokers, MovedClock()
    brokers.create(REMOVED, 1, {"local.retention.ms": str(LOCAL_MS)})
    producers = Acknowledged(brokers.address, REMOVED, deletions_may_go=True)
    removing = replace(world, acknowledged=producers, topic=REMOVED, settled=set(), clock=clock)
    # These keys are not written again, and the first round takes them, far below the margin.
    producers.send(0, EARLY)
    deleted = producers.deleted_keys(0)
    assert deleted
    compactor = removing.compactor(0)
    compactor.wish = replace(
        WISH, topic=replace(WISH.topic, delete_retention_ms=DELETE_RETENTION_MS)
    )
    for is_kept in (True, False):
        watch, changed = Watch(producers, 0), 0

        def change() -> None:
            nonlocal changed
            brokers.move_both_leaders(REMOVED, 0)
            changed += 1

        compactor.met.clear()
        compactor.calls["cluster", "append 2"] = change
        compactor.until_done(compactor.clean)
        removing.wait_until_compacted(0)
        compactor.met.clear()
        compactor.calls["cluster", "append"] = change
        compactor.until_done(compactor.collect)
        assert 0 < watch.stop()
        assert 2 == changed
        check_settled(removing, 0)
        assert (deleted if is_kept else set()) == deleted & producers.keys_read(0)
        if is_kept:
            clock.ahead_ms += COPY_MS + DELETE_RETENTION_MS
            producers.send(0, RECORDS)
            producers.go_on(0, LASTING)
            brokers.wait_until_remote(REMOVED, 0)
    world.removed.append(producers)


@pytest.mark.slow
@NEWEST_ALONE
def test_a_slow_storage_changes_nothing(world: World) -> None:
    """A tenth of a second before each request to it, with readers meanwhile."""
    compactor, watch = world.compactor(SLOW), Watch(world.acknowledged, SLOW)
    compactor.delay = DELAY_SECONDS
    compactor.until_done(compactor.clean)
    compactor.until_done(compactor.collect)
    assert 0 < watch.stop()
    requests = [name for part, name in compactor.met if part == "layout"]
    assert len(requests) > 10
    check_settled(world, SLOW)


@NEWEST_ALONE
def test_all_brokers_restart_with_cold_caches_and_one_without_the_log(world: World) -> None:
    """P8, P17, P18, AT-19, AT-20, AT-23: it begins where the remote tier ends, and leads.

    P11, R-10: a producer goes on there that was open before the rounds, and before leaders changed.
    AT-38: at last everybody reads from the broker that is next to him.
    """
    brokers, acknowledged = world.brokers, world.acknowledged
    assert {SWAP_STEP, OVERLAID} <= world.settled
    first = brokers.replicas(TOPIC, SWAP_STEP)[0]
    brokers.brokers[first].kill()
    brokers.cluster.stop()
    brokers.clear_caches()
    shutil.rmtree(brokers.brokers[first].data / f"{TOPIC}-{SWAP_STEP}")
    brokers.cluster.__enter__()
    for partition in sorted(world.settled):
        brokers.wait_for_replicas(TOPIC, partition)
        check_settled(world, partition)
    for each in world.removed:
        brokers.wait_for_replicas(each.topic, 0)
        each.judge(0, is_starting=True)
    brokers.elect_preferred(TOPIC, SWAP_STEP)
    acknowledged.go_on(SWAP_STEP, LASTING)
    acknowledged.send(SWAP_STEP, RECORDS)
    acknowledged.go_on(SWAP_STEP, LASTING)
    folders = [each.data / f"{TOPIC}-{SWAP_STEP}" for each in brokers.brokers.values()]
    # An epoch without a record is in its leader's file alone, until the next one has some.
    files = [each / "leader-epoch-checkpoint" for each in folders]
    wait_until(
        lambda: len({each.read_text() for each in files}) == 1,
        words=lambda: str([each.read_text() for each in files]),
    )
    read = acknowledged.judge(SWAP_STEP, is_starting=True)
    brokers.wait_for_replicas(TOPIC, SWAP_STEP)
    for node in brokers.brokers:
        count, givers = acknowledged.judge_from(SWAP_STEP, rack_of(node))
        assert read == count
        assert node in givers, (node, givers)
