"""Topics that become tiered, compacted, or neither any more."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from keeplast.config.mapping import topic_config
from keeplast.errors import InvalidError, RefusedError
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.host import partition_host
from keeplast.host.partition_host import PartitionHost
from keeplast.host.partition_reader import Overlap
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.coordinator import Coordinator
from keeplast.store import tiered_store
from keeplast.store.migration import new_settings
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.objects.object_store import partition_prefix
from keeplast.tier.state.segment import SegmentKind
from tests.support.durations import HOUR_MS
from tests.support.hosts import TOPIC, Cluster, read_all, replicate, write
from tests.support.partition_maker import NOW_MS, PARTITION

DELETE = {"cleanup.policy": "delete", "segment.bytes": "400", "retention.ms": "-1"}


class World(Cluster):
    """A cluster with its store as an object; hosts take the settings that the store has."""

    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root, topic_config(settings), settings)
        self.tiered = TieredStore(
            self.store, self.objects, owner="a", topic_of=topic_config, clock=self.clock,
            files=LocalFiles(),
        )  # fmt: skip

    def settle(self) -> None:
        """Give hosts that are opened from now on what the store says."""
        self.topic = topic_config(dict(self.store.load(PARTITION).settings))

    def clean(self) -> None:
        report = self.tiered.clean(
            PARTITION, self.runner, cleaner=CleanerConfig(), memory_bytes=1 << 24,
            progressed=lambda count: None, force=True, grace_ms=0,
        )  # fmt: skip
        assert not report.skipped

    def stored(self) -> dict[str, bytes]:
        """Return every object of the partition."""
        prefix = partition_prefix(PARTITION, self.store.load(PARTITION).topic_id)
        return {
            each.key: bytes(self.objects.read_range(each.key, 0, each.size_bytes))
            for each in self.objects.list(prefix)
        }


def write_mixed(host: PartitionHost, count: int) -> None:
    """Write records, every fifth without a key."""
    for i in range(count):
        key = None if i % 5 == 0 else b"k%d" % (i % 4)
        host.append([NewRecord(key, b"v%d" % i, NOW_MS + i)])
    host.acknowledge(host.log_end_offset)


def test_a_compacted_local_log_becomes_tiered_and_goes_on(tmp_path: Path) -> None:
    source = Cluster(tmp_path, TOPIC)
    host = source.led(60)
    host.become_follower(0)
    host.clean(source.runner, force=True)
    host.close()
    source.store.close()
    expected = read_all(source.host("a"))

    (tmp_path / "meta.db").unlink()
    settings = {"cleanup.policy": "compact", "segment.bytes": "400"}
    world = World(tmp_path, settings)
    directory = tmp_path / "a" / str(PARTITION)
    state = world.tiered.import_directory(
        PARTITION, directory, settings, progressed=lambda count: None
    )
    assert state.first_dirty() > 0
    again = world.host("a", recovers=True)
    again.become_leader(state.leader_epoch + 1)
    assert expected == read_all(again)
    write(again, 30, start=60)
    assert again.copy() > 0
    again.clean(world.runner, force=True, grace_ms=0)
    follower = world.host("b")
    replicate(again, follower)
    newest = dict(expected)
    newest.update((b"k%d" % (i % 4), b"v%d" % i) for i in range(60, 90))
    assert newest == read_all(again) == read_all(follower)
    world.store.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, DELETE)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_keyless_records_go_only_when_that_was_confirmed(world: World, policy: str) -> None:
    """Tiered ``delete`` to ``compact`` or ``compact,delete``: all dirty, keyless counted first."""
    host = world.host("a")
    host.become_leader(0)
    write_mixed(host, 40)
    host.roll()
    host.copy()
    change = {"cleanup.policy": policy}
    with pytest.raises(RefusedError):
        world.tiered.clean(
            PARTITION, world.runner, cleaner=CleanerConfig(),
            memory_bytes=1 << 24, progressed=lambda count: None,
        )  # fmt: skip
    before = world.stored()
    found = world.tiered.plan_settings(PARTITION, change, world.runner)
    assert (found.records, found.keyless_records, found.becomes_compacted) == (40, 8, True)
    with pytest.raises(RefusedError, match="keyless_records=8"):
        world.tiered.configure(PARTITION, change, world.runner)
    with pytest.raises(RefusedError, match="keyless_records=8"):
        world.tiered.configure(PARTITION, change)  # counted by threads of its own
    assert world.stored() == before
    assert world.store.load(PARTITION).settings == DELETE
    world.tiered.configure(PARTITION, change, drops_keyless=True)
    world.settle()
    host.close()
    assert world.store.load(PARTITION).first_dirty() == 0
    world.clean()
    again = world.host("a")
    again.become_leader(0)
    expected: dict[bytes | None, bytes | None] = {
        b"k%d" % (i % 4): b"v%d" % i for i in range(36, 40)
    }
    assert expected == read_all(again)
    world.store.close()


def test_a_topic_whose_records_have_keys_needs_no_confirmation(world: World) -> None:
    host = world.led(40)
    host.copy()
    expected = read_all(host)
    done = world.tiered.configure(PARTITION, {"cleanup.policy": "compact"}, world.runner)
    assert (done.keyless_records, done.records) == (0, host.state().remote_end)
    world.settle()
    host.close()
    world.clean()
    assert {SegmentKind.CLEANED} == {s.kind for s in world.store.load(PARTITION).segments.values()}
    again = world.host("a")
    again.become_leader(0)
    assert expected == read_all(again)
    # And back: from here on nothing is rewritten.
    world.tiered.configure(PARTITION, {"cleanup.policy": "delete"})
    world.settle()
    with pytest.raises(RefusedError):
        world.host("a").clean(world.runner, force=True)
    world.store.close()


def test_settings_of_a_partition_are_changed_by_its_owner(world: World) -> None:
    world.host("b").become_leader(3)
    with pytest.raises(RefusedError):
        world.tiered.configure(PARTITION, {"retention.ms": "1"})
    world.tiered.configure(PARTITION, {"retention.ms": "1"}, takes_over=True)
    state = world.store.load(PARTITION)
    assert (state.settings["retention.ms"], state.leader_epoch) == ("1", 4)
    with pytest.raises(InvalidError):
        world.tiered.configure(PARTITION, {"retention.ms": "never"})
    assert "retention.ms" not in new_settings(state.settings, {"retention.ms": None})
    with pytest.raises(RefusedError, match="export"):
        world.tiered.configure(PARTITION, {"remote.storage.enable": "false"})
    world.store.close()


def test_no_host_takes_a_time_for_undo(tmp_path: Path) -> None:
    """What it has replaced on its own disk would not come back."""
    policy = {"cleanup.policy": "compact", "segment.bytes": "400"}
    world = World(tmp_path, policy)
    world.topic = topic_config({**policy, "undo.retention.ms": "1000"})
    with pytest.raises(RefusedError, match=r"leave undo\.retention\.ms out"):
        world.host("a")
    world.store.close()


def test_delete_topics_are_never_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They copy, read and expire with no compaction code on their path."""
    for home, name in (
        (partition_host, "clean_remote"), (tiered_store, "clean_remote"), (Coordinator, "__init__"),
        (Overlap, "replace"),
    ):  # fmt: skip
        monkeypatch.setattr(
            home, name, Mock(side_effect=AssertionError("compaction code was called"))
        )
    world = World(tmp_path, {**DELETE, "retention.ms": str(HOUR_MS), "local.retention.ms": "1000"})
    a, b = world.host("a"), world.host("b")
    a.become_leader(0)
    write_mixed(a, 40)
    replicate(a, b)
    a.copy()
    first = world.stored()
    world.clock.advance(HOUR_MS // 2)
    assert a.retain_local().segments == b.retain_local().segments > 0
    kept = {r.offset for batch in _batches(a) for r in batch}
    assert kept == set(range(40))
    for i in range(20):
        a.append([NewRecord(b"k", b"later", world.clock.now_ms() + i)])
    a.acknowledge(a.log_end_offset)
    a.copy()
    assert first.items() <= world.stored().items()
    world.clock.advance(HOUR_MS // 2 + 1000)
    assert a.expire(grace_ms=0).segments
    start = a.state().log_start
    assert 0 < start <= 40
    assert {r.offset for batch in _batches(a, start) for r in batch} == set(range(start, 60))
    world.tiered.collect(PARTITION, garbage_age_ms=0)
    left = world.stored()
    assert left.keys() < first.keys() | left.keys()
    assert {key: first[key] for key in left.keys() & first.keys()}.items() <= left.items()
    assert all(s.kind is SegmentKind.RAW for s in a.state().segments.values())
    world.store.close()


def _batches(host: PartitionHost, start: int = 0) -> list[list[Record]]:
    found, offset = [], start
    while offset < host.log_end_offset:
        part = host.fetch(offset)
        found += [list(batch.records()) for batch in read_batches(part.data)]
        offset = part.next_offset
    return found


def test_an_owner_that_was_fenced_configures_nothing(world: World) -> None:
    state = world.tiered.own(PARTITION, takes_over=False)
    world.host("b").become_leader(state.leader_epoch + 1)
    with pytest.raises(RefusedError):
        world.tiered.configure(PARTITION, {"retention.ms": "1"})
    world.store.close()
