"""Hosts that lead by a lease of the store, and follow: who leads, what is kept, what is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keeplast.api.open_store import host_partition
from keeplast.errors import FencedError, InvalidError, RefusedError
from keeplast.format import partition_metadata
from keeplast.format.filename import PARTITION_METADATA, REPLICATION_CHECKPOINT
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.host.leased_host import LeasedHost, check_lease_ms
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import HostRole
from keeplast.tier.metadata.facts import Leases
from tests.support.durations import HOUR_MS
from tests.support.existing import existing
from tests.support.leased_hosts import (
    LEASE_MS,
    SETTINGS,
    Entry,
    LeaseWorld,
    local_names,
    read,
    state_of,
    write,
)
from tests.support.partition_maker import NOW_MS, PARTITION

Make = Callable[..., LeaseWorld]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[LeaseWorld] = []

    def world(**settings: str) -> LeaseWorld:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        made.append(LeaseWorld(tmp_path, names))
        return made[-1]

    yield world
    for each in made:
        each.close()


def below(entries: list[Entry], end: int) -> list[Entry]:
    return [each for each in entries if each[0] < end]


def leases(hosted: LeasedHost) -> Leases:
    return hosted._metadata.leases


# Who leads.


@pytest.fixture
def world(make: Make) -> LeaseWorld:
    return make()


def test_the_first_host_leads_and_the_next_one_follows(world: LeaseWorld) -> None:
    a, b = world.host("a"), world.host("b")
    assert "leads at epoch 0" == a.step().words
    assert "leads at epoch 0" == a.step().words
    standing = b.step()
    assert (False, "follows a at epoch 0") == (standing.leads, standing.words)


def test_a_host_that_only_follows_never_leads(world: LeaseWorld) -> None:
    b = world.host("b", HostRole.FOLLOWER)
    assert "follows: no host leads" == b.step().words
    world.host("a").step()
    world.silence(b)
    world.clock.advance(10 * LEASE_MS)
    assert "follows a at epoch 0" == b.step().words
    with pytest.raises(RefusedError):
        b.host.append([NewRecord(b"k", b"v", NOW_MS)])


def test_a_host_that_only_leads_takes_nothing_of_what_another_leads(world: LeaseWorld) -> None:
    a, b = world.led(), world.host("b", HostRole.LEADER)
    write(a, 40)
    a.turn()
    turn = b.turn()
    assert (False, "follows a at epoch 0", None) == (
        turn.standing.leads, turn.standing.words, turn.retention,
    )  # fmt: skip
    assert 0 == b.host.log_end_offset
    a.close()
    a.give_back()
    assert b.step().leads
    assert 40 == b.host.log_end_offset


def test_a_leader_that_renews_its_lease_is_not_taken_over(world: LeaseWorld) -> None:
    a, b = world.led(), world.host("b")
    for _ in range(10):
        assert not b.step().leads
        world.clock.advance(LEASE_MS // 3)
        a.renew()
    world.clock.advance(LEASE_MS - 1)
    assert not b.step().leads


def test_a_leader_that_is_silent_for_its_lease_is_taken_over_and_fenced(world: LeaseWorld) -> None:
    a, b = world.led(), world.host("b")
    written = write(a, 40)
    a.turn()
    world.silence(b)
    assert "leads at epoch 1" == b.step().words
    kept = below(written, b.host.log_end_offset)
    assert state_of(kept) == state_of(read(b))
    a.renew()  # Which it cannot: nothing of the new lease changes.
    lease = existing(leases(b).find(b.host.state().row_id))
    assert (1, 0) == (lease.epoch, lease.number)
    with pytest.raises(FencedError):
        a.copy()
    assert "follows b at epoch 1" == a.step().words
    assert state_of(kept) == state_of(read(a))


def test_a_clock_that_jumps_ends_no_lease_of_another_time(world: LeaseWorld) -> None:
    """What counts is how long the number was the same, seen by one clock; no times are compared."""
    world.host("a").step()
    world.clock.advance(100 * LEASE_MS)
    # It looks for the first time, and has seen nothing for a moment only.
    assert not world.host("b").step().leads


def test_a_leader_that_ends_in_good_order_hands_over_at_once_all_that_it_has(
    world: LeaseWorld,
) -> None:
    a, b = world.led(), world.host("b")
    written = write(a, 43)
    a.turn()
    assert a.host.log_end_offset > a.host.state().remote_end
    a.close()
    a.give_back()
    assert "leads at epoch 1" == b.step().words
    assert written[-1] == read(b)[-1]
    assert state_of(written) == state_of(read(b))


def test_what_is_held_without_a_lease_is_followed_and_taken_over_only_when_asked(
    world: LeaseWorld,
) -> None:
    with world.store("runs") as runs:
        runs.own(PARTITION, takes_over=False)
        b = world.host("b")
        world.silence(b)
        assert b.step().words.startswith("owned by runs at epoch 0, without a lease; stop it")
        assert "leads at epoch 1" == b.step(takes_over=True).words
        with pytest.raises(RefusedError):
            runs.own(PARTITION, takes_over=False)


def test_a_command_by_hand_that_took_a_leader_over_gives_it_back_to_its_owner(
    world: LeaseWorld,
) -> None:
    a = world.led()
    with world.store("a") as by_hand:
        by_hand.own(PARTITION, takes_over=True)
        assert a.step().words.startswith("another process of the same owner works on the partition")
    assert "leads at epoch 1" == a.step().words


# What counts as replicated.


def test_records_are_acknowledged_once_object_storage_has_them(world: LeaseWorld) -> None:
    a = world.led()
    write(a, 43)
    assert 0 == a.host.high_watermark
    assert a.turn().copied > 0
    assert a.host.high_watermark == a.host.state().remote_end > 0
    assert a.host.high_watermark < a.host.log_end_offset


def test_what_no_other_host_has_is_cut_when_its_leader_comes_back(world: LeaseWorld) -> None:
    a, b = world.led(), world.host("b")
    kept = write(a, 43)
    a.turn()
    end = a.host.state().remote_end
    world.silence(b)
    assert b.step().leads
    assert end == b.host.log_end_offset
    kept = below(kept, end) + write(b, 20, start=60)
    b.turn()
    again = world.host("a")
    assert "follows b at epoch 1" == again.step().words
    remote = b.host.state().remote_end
    assert state_of(below(kept, remote)) == state_of(read(again))
    assert state_of(kept) == state_of(read(b))


def test_a_host_with_less_than_was_acknowledged_leads_only_when_asked(world: LeaseWorld) -> None:
    """An open transaction keeps what was promised from object storage."""
    a, b = world.led(), world.host("b")
    a.host.append(
        [NewRecord(b"k", b"open", NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    write(a, 40)
    assert 0 == a.turn().copied
    a.host.acknowledge(30)
    a.renew()
    world.silence(b)
    words = b.step().words
    assert words.startswith("does not lead: the leader before, a, acknowledged offsets below 30")
    assert "this host has those below 0" in words
    assert b.step(takes_over=True).leads


def test_records_that_were_acknowledged_are_never_cut(world: LeaseWorld) -> None:
    a, b = world.led(), world.host("b")
    write(a, 43)
    a.turn()
    a.host.acknowledge(42)
    a.host.close()
    before = local_names(a)
    world.silence(b)
    assert b.step(takes_over=True).leads
    again = world.host("a")
    with pytest.raises(RefusedError, match="replicated by what it knows, that are not in the log"):
        again.step()
    assert before == local_names(again)
    assert 43 == again.host.log_end_offset


def test_a_log_without_a_high_watermark_is_taken_whole_and_copied_at_once(
    world: LeaseWorld,
) -> None:
    a = world.led()
    written = write(a, 43)
    a.host.close()
    (world.root / "a" / REPLICATION_CHECKPOINT).unlink()
    world.clock.advance(1)
    again = world.host("a")
    world.silence(again)
    assert again.step().leads
    again.copy()
    assert 43 == again.host.state().remote_end
    b = world.host("b")
    b.step()
    assert state_of(written) == state_of(read(b))


def test_a_followers_pass_cleans_its_disk_and_changes_nothing_in_the_store(
    world: LeaseWorld,
) -> None:
    a, b = world.led(), world.host("b")
    written = write(a, 83)
    a.copy()
    before = a.host.state()
    b.step()
    size = sum(path.stat().st_size for path in b.host.directory.glob("*.log"))
    turn = b.turn()
    assert turn.round is not None
    assert turn.round.stats is not None
    assert size > sum(path.stat().st_size for path in b.host.directory.glob("*.log"))
    assert before == b.host.state()
    assert state_of(below(written, before.remote_end)) == state_of(read(b))


def test_a_new_leader_drops_what_is_clean_and_goes_on_where_the_one_before_was(
    world: LeaseWorld,
) -> None:
    a, b = world.led(), world.host("b")
    written = write(a, 83)
    a.copy()
    b.step()
    a.turn(grace_ms=0)
    first_dirty = a.host.state().first_dirty()
    assert first_dirty > 0
    world.silence(b)
    standing = b.step()
    assert (True, first_dirty) == (standing.leads, standing.state.first_dirty())
    assert all(end > first_dirty for _, end in b.host.closed_segments())
    assert state_of(below(written, b.host.log_end_offset)) == state_of(read(b))
    written = below(written, b.host.log_end_offset) + write(b, 40, start=200)
    b.turn(grace_ms=0)
    assert b.host.state().first_dirty() > first_dirty
    assert state_of(written) == state_of(read(b))


# What leaves the disk.


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_local_segments_leave_by_age_and_size_once_they_are_copied(make: Make, policy: str) -> None:
    """KIP-1272: ``compact``, cleaned or not; ``compact,delete``, as append-only logs."""
    world = make(
        cleanup_policy=policy, local_retention_ms=str(HOUR_MS),
        min_compaction_lag_ms=str(10 * HOUR_MS),
    )  # fmt: skip
    a, b = world.led(), world.host("b")
    written = write(a, 43)
    turn = a.turn()
    assert turn.retention is not None
    assert 0 == turn.retention.segments
    b.turn()
    world.clock.advance(2 * HOUR_MS)
    a.renew()
    for hosted in (a, b):
        retention = existing(hosted.turn().retention)
        assert retention.segments > 0
        assert hosted.host.local_start == hosted.host.listing().active.base_offset
    assert a.host.local_start == a.host.state().remote_end
    assert state_of(written) == state_of(read(a))
    end = b.host.log_end_offset
    assert state_of(below(written, end)) == state_of(read(b))


def test_a_segment_waits_for_the_cleaner_where_that_is_asked_for(make: Make) -> None:
    """R-B: below the first dirty offset, or beyond the limit that a failing cleaner has."""
    world = make(
        local_retention_bytes="0", local_delete_requires_clean="true",
        local_delete_max_extra_bytes="100000", min_compaction_lag_ms=str(HOUR_MS),
    )  # fmt: skip
    a = world.led()
    written = write(a, 43)
    retention = existing(a.turn().retention)
    assert (0, "segment 0 stays: not cleaned yet") == (retention.segments, retention.kept)
    assert 0 == a.host.local_start
    world.clock.advance(2 * HOUR_MS)
    turn = a.turn()
    assert turn.round is not None
    assert not turn.round.skipped
    a.turn()
    assert a.host.local_start == a.host.state().remote_end
    assert state_of(written) == state_of(read(a))


def test_compact_delete_does_not_wait_for_the_cleaner(make: Make) -> None:
    """KIP-1272: its local segments go as those of append-only logs do."""
    world = make(
        cleanup_policy="compact,delete", local_retention_bytes="0",
        local_delete_requires_clean="true", min_compaction_lag_ms=str(HOUR_MS),
    )  # fmt: skip
    a = world.led()
    written = write(a, 43)
    retention = existing(a.turn().retention)
    assert retention.segments > 0
    assert a.host.local_start == a.host.state().remote_end
    assert 0 == a.host.state().first_dirty()
    assert state_of(written) == state_of(read(a))


def test_a_leader_that_was_overtaken_removes_nothing(make: Make) -> None:
    world = make(local_retention_ms=str(HOUR_MS))
    a, b = world.led(), world.host("b")
    write(a, 43)
    a.turn()
    before = local_names(a)
    world.silence(b)
    assert b.step().leads
    world.clock.advance(2 * HOUR_MS)
    with pytest.raises(FencedError):
        a.host.retain_local()
    assert before == local_names(a)


def test_a_follower_keeps_what_object_storage_has_of_another_leader(make: Make) -> None:
    world = make(local_retention_ms=str(HOUR_MS))
    a, b = world.led(), world.host("b")
    write(a, 20)
    a.turn()
    common = a.host.state().remote_end
    b.step()
    write(a, 40, start=20)
    a.host.roll()
    before = local_names(a)
    world.silence(b)
    b.step()
    write(b, 40, start=100)
    b.host.roll()
    b.turn()
    # It has heard of its successor, and has not cut its own records yet.
    a.host.become_follower(1)
    a.host._high_watermark = a.host.log_end_offset
    world.clock.advance(2 * HOUR_MS)
    plan = a.host.retain_local()
    assert common >= plan.to
    assert [n for n in before if n[:20].isdigit() and int(n[:20]) >= common] == [
        n for n in local_names(a) if n[:20].isdigit() and int(n[:20]) >= common
    ]


def test_a_new_follower_begins_after_records_that_local_retention_would_remove(make: Make) -> None:
    world = make(local_retention_bytes="500")
    a = world.led()
    written = write(a, 83)
    a.close()
    world.clock.advance(1)
    a.give_back()
    b = world.host("b", HostRole.FOLLOWER)
    b.turn()
    assert 0 < b.host.local_start < b.host.log_end_offset == 83
    assert state_of(written) == state_of(read(b))


def test_settings_of_the_store_count_from_the_next_turn_on(world: LeaseWorld) -> None:
    a = world.led()
    write(a, 43)
    a.turn()
    assert 0 == a.host.local_start
    with world.store("a") as store:
        store.configure(PARTITION, {"local.retention.bytes": "0"})
    a.turn()
    assert a.host.local_start == a.host.state().remote_end
    with world.store("a") as store:
        store.configure(PARTITION, {"undo.retention.ms": "1000"})
    with pytest.raises(RefusedError, match="no round of a host can be undone"):
        a.turn()


# What is asked wrongly.


def test_a_log_of_another_topic_of_the_same_name_is_refused_and_stays(world: LeaseWorld) -> None:
    a = world.led()
    write(a, 43)
    a.host.close()
    metadata = PartitionMetadata(bytes.fromhex("12" * 16))
    path = a.host.directory / PARTITION_METADATA
    path.write_bytes(partition_metadata.encode(metadata))
    with world.store("a") as store:
        other = TopicPartition("t", 7)
        store.create(other, SETTINGS, topic_id="34" * 16)
    a.host.directory.rename(world.root / "a" / str(other))
    before = sorted((world.root / "a" / str(other)).iterdir())
    with pytest.raises(RefusedError, match="an earlier topic's of the same name"):
        LeasedHost(world.store("a"), other, world.root / "a", lease_ms=LEASE_MS)
    assert before == sorted((world.root / "a" / str(other)).iterdir())


def test_a_role_that_no_host_has_is_refused(world: LeaseWorld) -> None:
    with (
        pytest.raises(InvalidError, match="no role of a host"),
        host_partition(world.store("a"), PARTITION, world.root / "a", role="king"),
    ):
        raise AssertionError


@pytest.mark.parametrize("lease_ms", [-1, 0, 999, 3_600_001])
def test_a_lease_has_a_time_between_a_second_and_an_hour(lease_ms: int) -> None:
    with pytest.raises(InvalidError):
        check_lease_ms(lease_ms)


def test_a_log_that_is_a_link_is_refused(world: LeaseWorld) -> None:
    (world.root / "broker").mkdir()
    (world.root / "a").mkdir()
    (world.root / "a" / str(PARTITION)).symlink_to(world.root / "broker")
    with pytest.raises(RefusedError, match="is a link"):
        world.host("a")
