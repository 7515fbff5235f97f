"""Regions and ratio of a log in two tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from keeplast.cli.show.picture import draw_tiers
from keeplast.config.mapping import topic_config
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.store.status import Place, TierStatus
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import survey_partition
from keeplast.tier.metadata import schema
from tests.support.hosts import TOPIC, Cluster, write
from tests.support.partition_maker import NOW_MS, PARTITION

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "400"}


class World(Cluster):
    """A cluster whose store is asked for its status."""

    def __init__(self, root: Path, **settings: str) -> None:
        given = {**SETTINGS, **settings}
        super().__init__(root, replace(topic_config(given), segment_bytes=400), given)
        self.tiered = TieredStore(
            self.store, self.objects, owner="a", topic_of=topic_config, clock=self.clock,
            files=LocalFiles(),
        )  # fmt: skip

    def status(self, *, local: bool = True) -> TierStatus:
        return self.tiered.status(PARTITION, self.root / "a" / str(PARTITION) if local else None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def regions(status: TierStatus) -> dict[str, tuple[int, int]]:
    return {r.name.value: (r.base_offset, r.end_offset) for r in status.regions}


def test_regions_follow_each_other_in_both_tiers(tmp_path: Path) -> None:
    world = World(tmp_path, **{"min.compaction.lag.ms": "1000"})
    host = world.led(30)
    host.copy()
    cleaned_to = host.state().remote_end
    world.clock.advance(1100)
    assert not host.clean(world.runner, force=True).skipped
    write(host, 20, start=30)
    host.copy()
    world.clock.advance(1010)
    for i in range(20):
        host.append([NewRecord(b"y%d" % i, b"young", NOW_MS + 2100)])
    host.acknowledge(host.log_end_offset)
    stable = host.log_end_offset
    for i in range(12):
        host.append([NewRecord(b"u%d" % i, b"unreplicated", NOW_MS + 2100)])
    host.close()
    status = world.status()
    found = regions(status)
    assert ["clean", "dirty", "uncleanable", "unstable", "active"] == list(found)
    edges = [edge for pair in found.values() for edge in pair]
    assert edges[0] == status.log_start == 0
    assert edges[-1] == status.log_end == 82
    assert edges[1:-1:2] == edges[2:-1:2]
    assert found["clean"] == (0, cleaned_to) == (0, status.first_dirty)
    assert found["unstable"][0] <= stable < found["unstable"][1]
    assert status.cleanable_to == min(found["dirty"][1], status.remote_end)
    assert sum(r.size_bytes for r in status.regions) == sum(s.size_bytes for s in status.segments)
    for r in status.regions:
        assert r.size_bytes == r.remote_bytes + r.both_bytes + r.local_bytes
    assert "╱ unstable" in draw_tiers(status)
    world.store.close()


def test_second_column_says_in_which_tier(world: World) -> None:
    host = world.led(40)
    host.copy()
    host.drop_below(host.closed_segments()[2][1])
    write(host, 4, start=40)
    host.close()
    status = world.status()
    places = [each.place for each in status.segments]
    assert places[:3] == [Place.REMOTE] * 3
    both = places.count(Place.BOTH)
    assert both > 0
    assert places[3 : 3 + both] == [Place.BOTH] * both
    assert set(places[3 + both :]) == {Place.LOCAL}
    alone = world.status(local=False)
    assert {Place.REMOTE} == {each.place for each in alone.segments}
    assert alone.log_end == alone.remote_end == status.remote_end
    lines = draw_tiers(status).splitlines()
    assert lines[1].endswith("remote")
    assert lines[2].endswith("local")
    assert "KIP-1272 counts" in lines[-1]


def test_st_17_ratio_counts_each_offset_once(world: World) -> None:
    """ST-17: with everything in both tiers the ratio is that of one copy, the KIP's is not."""
    host = world.led(24)
    host.copy()
    host.clean(world.runner, force=True)
    write(host, 16, start=24)
    host.copy()
    both = world.status()
    host.drop_below(host.log_end_offset)
    one = world.status()
    assert 0 < both.ratio < 1
    assert (both.ratio, both.cleanable_bytes) == (one.ratio, one.cleanable_bytes)
    assert both.kip_ratio < one.kip_ratio < one.ratio
    assert both.ratio == world.status(local=False).ratio


def test_st_17_cached_size_equals_the_sum_after_every_change(world: World) -> None:
    """I-21: after copies, rounds, expiry and deletion of the log's beginning."""
    host = world.led(40)
    for act in (
        host.copy,
        lambda: host.clean(world.runner, force=True),
        lambda: host.follow_log_start(0),
        host.expire,
    ):
        act()
        status = world.status()
        assert not status.is_drifted
        assert status.remote_bytes == sum(
            s.size_bytes for s in status.segments if s.place is not Place.LOCAL
        )


def test_st_17_a_cached_size_that_drifted_is_a_finding(world: World) -> None:
    """I-21: status says so, and verify fails."""
    host = world.led(40)
    host.copy()
    assert world.tiered.verify(PARTITION, lambda count: None) == ()
    with world.store._transactions.writing() as connection:
        connection.execute(update(schema.PARTITIONS).values(remote_bytes=7))
    assert world.status().is_drifted
    found = world.tiered.verify(PARTITION, lambda count: None)
    assert ["I-21"] == [each.invariant for each in found]


@pytest.mark.parametrize("checkpoint", [None, 1, 3])
def test_an_imported_log_has_the_ratio_of_its_directory(
    tmp_path: Path, checkpoint: int | None
) -> None:
    """The first dirty offset is the base of a segment; the active one is empty."""
    (tmp_path / "source").mkdir()
    source = Cluster(tmp_path / "source", TOPIC)
    host = source.host("x")
    host.become_leader(0)
    write(host, 40)
    host.roll()
    host.close()
    directory = tmp_path / "source" / "x" / str(PARTITION)
    if checkpoint is not None:
        base = host.closed_segments()[checkpoint][0].base_offset
        (directory.parent / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {base}\n")
    survey = survey_partition(
        PartitionRequest(PARTITION, directory, TOPIC), CleanRequest((), high_watermark=40),
        load_checkpoints(LocalFiles(), directory.parent), LocalFiles(), NOW_MS,
    )  # fmt: skip
    (tmp_path / "world").mkdir()
    world = World(tmp_path / "world")
    source.store.close()
    world.tiered.import_directory(PARTITION, directory, SETTINGS, progressed=lambda count: None)
    status = world.status(local=False)
    assert survey.section.first_dirty.offset == status.first_dirty
    assert survey.section.cleanable.ratio == status.ratio
    world.store.close()


def test_an_import_believes_no_checkpoint_of_what_was_cleaned_later(tmp_path: Path) -> None:
    """What was copied before the broker's cleaner was there is dirty, whatever it says now."""
    (tmp_path / "source").mkdir()
    source = Cluster(tmp_path / "source", TOPIC)
    host = source.host("x")
    host.become_leader(0)
    write(host, 40)
    directory = tmp_path / "source" / "x" / str(PARTITION)
    host.close()
    (tmp_path / "world").mkdir()
    world = World(tmp_path / "world")

    def take_in() -> int:
        state = world.tiered.import_directory(
            PARTITION, directory, SETTINGS, progressed=lambda count: None
        )
        return state.first_dirty()

    assert take_in() == 0
    again = source.host("x")
    again.acknowledge(40)
    again.clean(source.runner, force=True)
    assert take_in() == 0
    source.store.close()
    world.store.close()
