"""A partition of a store is cut where its directory was, or given up: only what was said goes.

ST-32, ST-33.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from keeplast.errors import ConflictError, FencedError, InvalidError, RefusedError
from keeplast.format.partition_metadata import PartitionMetadata, encode
from keeplast.format.record import ControlType
from keeplast.host.leased_host import open_host
from keeplast.store.removal import Removal
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.state.partition_state import PartitionState
from tests.support.broker_directory import BrokerDirectory
from tests.support.durations import DAY_MS
from tests.support.partition_maker import PARTITION

FAR_MS = 20_000 * DAY_MS
"""The objects have times of this machine's clock."""


@pytest.fixture
def broker(tmp_path: Path) -> BrokerDirectory:
    made = BrokerDirectory(tmp_path)
    made.path.mkdir(parents=True)
    return made


def truncate(broker: BrokerDirectory, offset: int | None = None) -> Removal:
    directory = broker.path if offset is None else None
    return broker.tiered.removals.truncate(PARTITION, offset, directory=directory, grace_ms=0)


def forget(broker: BrokerDirectory) -> Removal:
    return broker.tiered.removals.forget(PARTITION, grace_ms=0)


def a_truncated_tail_was_copied(broker: BrokerDirectory) -> None:
    """Offsets 3 to 5 were copied before they were replicated; a new leader wrote others."""
    broker.append("a", "b")
    broker.append("c", "lost", "lost")
    broker.import_with("lost")
    broker.truncate(3)
    broker.append("d", "e", epoch=2)


def test_a_truncated_tail_is_cut_off_and_copies_go_on(broker: BrokerDirectory) -> None:
    a_truncated_tail_was_copied(broker)
    with pytest.raises(ConflictError, match="keeplast repair --truncate-to"):
        broker.copy()
    planned = broker.tiered.removals.plan_truncation(PARTITION, directory=broker.path)
    assert ("truncate", 3, 6, 2, 3, 2, False) == (
        planned.kind, planned.start, planned.end, planned.segments, planned.records,
        planned.cut_base, planned.done,
    )  # fmt: skip
    before = broker.state
    assert before == broker.state
    assert truncate(broker).done
    assert (3, {0: "a", 1: "b", 2: "c"}) == (broker.state.remote_end, broker.values())
    broker.copy()
    assert {0: "a", 1: "b", 2: "c", 3: "d", 4: "e"} == broker.values()
    assert () == broker.tiered.verify(PARTITION)


@pytest.mark.parametrize("offset", range(7))
def test_a_log_is_cut_at_any_offset(broker: BrokerDirectory, offset: int) -> None:
    values = dict(enumerate("abcdef"))
    broker.append("a", "b", "c")
    broker.import_with("d", "e", "f")
    found = truncate(broker, offset)
    assert (6 - offset, offset < 6) == (found.records, found.done)
    assert {k: v for k, v in values.items() if k < offset} == broker.values()
    assert () == broker.tiered.verify(PARTITION)
    assert offset == broker.state.remote_end
    broker.import_all()
    assert values == broker.values()


def test_segments_copied_again_after_a_cut_are_dirty(broker: BrokerDirectory) -> None:
    """The first dirty offset was behind the cut: what lies there now was never cleaned."""
    broker.import_with("a", "b", "c", "d")
    broker.tiered.clean(PARTITION, force=True)
    assert 4 == broker.state.first_dirty()
    truncate(broker, 2)
    broker.truncate(2)
    broker.append("e", "f", epoch=1)
    broker.append("g", epoch=1)
    broker.copy()
    assert (2, 5) == (broker.state.first_dirty(), broker.state.remote_end)
    broker.tiered.clean(PARTITION, force=True)
    assert (5, ()) == (broker.state.first_dirty(), broker.tiered.verify(PARTITION))


def test_a_cut_says_that_rounds_went_by_what_it_takes(broker: BrokerDirectory) -> None:
    """The key's only other record, which the directory has, went with a round."""
    broker.append_key("a", "old")
    broker.append_key("b", "other")
    broker.append_key("a", "lost")
    broker.import_all()
    removals = broker.tiered.removals
    assert not removals.plan_truncation(PARTITION, 2).is_cleaned_by
    broker.tiered.clean(PARTITION, force=True)
    assert {1: "other", 2: "lost"} == broker.values()
    assert removals.plan_truncation(PARTITION, 2).is_cleaned_by
    assert not removals.plan_truncation(PARTITION, 3).is_cleaned_by
    lines: list[bytes] = []
    assert removals.truncate(PARTITION, 2, grace_ms=0, receipt=lines.append).is_cleaned_by
    assert json.loads(lines[0])["removal"]["is_cleaned_by"]
    assert {1: "other"} == broker.values()


def test_a_cut_above_what_is_clean_takes_no_more_than_it_says(broker: BrokerDirectory) -> None:
    broker.append_key("a", "old")
    broker.append_key("a", "new")
    broker.import_all()
    broker.tiered.clean(PARTITION, force=True)
    broker.append_key("a", "lost")
    broker.append_key("b", "lost")
    broker.copy()
    assert not truncate(broker, 2).is_cleaned_by
    assert {1: "new"} == broker.values()


def test_a_cut_says_that_a_round_which_did_not_end_may_have_gone_by_what_it_takes(
    broker: BrokerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append_key("a", "old")
    broker.append_key("b", "other")
    broker.append_key("a", "lost")
    broker.import_all()

    with monkeypatch.context() as patch:
        patch.setattr(
            "keeplast.store.store_place.TierCommit.publish", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            broker.tiered.clean(PARTITION, force=True)
    assert (0, {1: "other", 2: "lost"}) == (broker.state.first_dirty(), broker.values())
    assert broker.tiered.removals.plan_truncation(PARTITION, 2).is_cleaned_by


def test_a_cut_segment_keeps_the_transactions_that_were_decided_below_the_cut(
    broker: BrokerDirectory,
) -> None:
    broker.append_transaction("aborted", ControlType.ABORT)
    broker.append("b", rolls=False)
    broker.append_transaction("aborted", ControlType.ABORT)
    broker.import_with("c", rolls=False)
    truncate(broker, 3)
    assert {2: "b"} == broker.values()
    assert () == broker.tiered.verify(PARTITION)


def test_a_cut_inside_of_a_log_start_leaves_an_empty_log(broker: BrokerDirectory) -> None:
    broker.append("a", "b", "c")
    broker.delete_before(2)
    broker.import_all()
    with pytest.raises(InvalidError, match="keeplast detach"):
        truncate(broker, 1)
    truncate(broker, 2)
    assert ((), 2, {}) == (broker.state.routes, broker.state.remote_end, broker.values())
    broker.import_all()
    assert {2: "c"} == broker.values()


def test_a_directory_with_the_same_log_leaves_nothing_to_cut(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    broker.append("c", epoch=3)
    before = broker.state
    assert truncate(broker).is_empty
    assert before == broker.state


def test_a_partition_that_is_held_elsewhere_is_not_cut(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    other = broker.opened("b")
    with pytest.raises(RefusedError, match="another host owns"):
        other.removals.truncate(PARTITION, 1, grace_ms=0)
    with pytest.raises(RefusedError, match="another host owns"):
        other.removals.forget(PARTITION, grace_ms=0)
    assert {0: "a", 1: "b"} == broker.values()


def test_a_round_that_began_before_a_cut_is_fenced(broker: BrokerDirectory) -> None:
    """Also of the same process: a round that runs has read what is gone."""
    broker.import_with("a", "b")
    began = broker.state
    truncate(broker, 1)
    with pytest.raises(FencedError):
        broker.store.publish(PARTITION, "c" * 32, epoch=began.leader_epoch, cleaned_to=2)


@pytest.mark.parametrize("kind", ["truncate", "forget"])
def test_a_partition_that_changed_since_it_was_looked_at_is_left_as_it_is(
    broker: BrokerDirectory, kind: str
) -> None:
    known = broker.import_with("a", "b")
    broker.append("c")
    broker.copy()
    removals = broker.store.removals
    act = (
        partial(removals.forget, known, "c" * 32)
        if kind == "forget"
        else partial(removals.truncate, known, "c" * 32, cut=0, replaced=None, made=None)
    )
    with pytest.raises(ConflictError, match="changed meanwhile"):
        act(grace_ms=0)
    assert {0: "a", 1: "b", 2: "c"} == broker.values()


def test_a_crash_before_the_transaction_leaves_the_log_and_garbage(
    broker: BrokerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.import_with("a", "b", "c")
    count = len(list(broker.objects.list("")))

    with monkeypatch.context() as patch:
        patch.setattr(
            "keeplast.tier.metadata.commits.Removals.truncate", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            truncate(broker, 1)
    assert {0: "a", 1: "b", 2: "c"} == broker.values()
    assert len(list(broker.objects.list(""))) > count
    broker.clock.advance(FAR_MS)
    broker.tiered.collect(PARTITION, garbage_age_ms=0)
    assert count == len(list(broker.objects.list("")))
    truncate(broker, 1)
    assert {0: "a"} == broker.values()


def test_a_receipt_has_a_line_of_each_removal(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    lines: list[bytes] = []
    removals = broker.tiered.removals
    removals.truncate(PARTITION, 1, grace_ms=0, receipt=lines.append)
    removals.forget(PARTITION, grace_ms=0, receipt=lines.append)
    found = [json.loads(line)["removal"] for line in lines]
    assert [("truncate", 1, 2, 1), ("forget", 0, 1, None)] == [
        (each["kind"], each["start"], each["end"], each["records"]) for each in found
    ]


# Forgetting.


def test_a_partition_that_was_given_up_is_in_the_store_no_more(broker: BrokerDirectory) -> None:
    broker.append("a", "b")
    broker.import_with("c")
    found = forget(broker)
    assert (0, 3, 2, True) == (found.start, found.end, found.segments, found.done)
    assert ((), (PARTITION,)) == (broker.tiered.partitions(), broker.tiered.forgotten())
    with pytest.raises(InvalidError, match="given up"):
        broker.copy()
    with pytest.raises(InvalidError, match="given up"):
        forget(broker)


def test_a_host_does_not_lead_what_was_given_up(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    forget(broker)
    host = open_host(broker.tiered, PARTITION, broker.path.parent, broker.topic)
    with pytest.raises(InvalidError, match="given up"):
        host.become_leader(9)


def test_its_objects_are_collected_and_then_its_row(broker: BrokerDirectory) -> None:
    broker.import_with("a", "b")
    broker.tiered.removals.forget(PARTITION, grace_ms=1000)
    waiting = broker.tiered.collect(PARTITION)
    assert (0, 1) == (waiting.segments, waiting.waiting)
    broker.clock.advance(1000)
    assert 1 == broker.tiered.collect(PARTITION).segments
    assert [] == list(broker.objects.list(str(PARTITION)))
    assert (PARTITION,) == broker.tiered.forgotten()  # Who is late may still write something.
    broker.clock.advance(DAY_MS)
    broker.tiered.collect(PARTITION)
    assert () == broker.tiered.forgotten()
    with pytest.raises(InvalidError, match="not in the store"):
        broker.store.load(PARTITION)


@pytest.mark.parametrize("is_collected", [False, True])
@pytest.mark.parametrize("is_removed", [False, True])
def test_an_import_begins_again(
    broker: BrokerDirectory, is_collected: bool, is_removed: bool
) -> None:
    """Of another topic of the same name, which starts and ends below the old one."""
    (broker.path / "partition.metadata").write_bytes(encode(PartitionMetadata(b"1" * 16)))
    broker.import_with("a", "b", "c", "d", epoch=5)
    broker.tiered.clean(PARTITION, force=True)
    forget(broker)
    if is_collected:
        broker.clock.advance(DAY_MS if is_removed else 0)
        broker.tiered.collect(PARTITION)
    for path in broker.path.iterdir():
        path.unlink()
    (broker.path / "partition.metadata").write_bytes(encode(PartitionMetadata(b"2" * 16)))
    state = broker.import_with("x", "y", epoch=1)
    assert (b"2" * 16).hex() == state.topic_id
    assert (0, 0, 2) == (state.log_start, state.first_dirty(), state.remote_end)
    assert {0: "x", 1: "y"} == broker.values()
    broker.clock.advance(FAR_MS)
    broker.tiered.collect(PARTITION, garbage_age_ms=0)
    live = {segment.segment_id for segment in broker.state.segments.values()}
    assert live == {each.key.split("/")[2] for each in broker.objects.list(str(PARTITION))}
    assert {0: "x", 1: "y"} == broker.values()


def test_an_importer_from_before_a_partition_was_given_up_commits_nothing_after(
    broker: BrokerDirectory,
) -> None:
    known: PartitionState = broker.import_with("a", "b")
    forget(broker)
    late: MetadataStore = broker.store
    with pytest.raises(FencedError):
        late.commit_copy(
            PARTITION, "c" * 32, epoch=known.leader_epoch, lineage=known.lineage,
            segment=next(iter(known.segments.values())),
        )  # fmt: skip
