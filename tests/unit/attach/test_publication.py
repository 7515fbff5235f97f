"""A swap is decided once and published as one batch, with any process that stops or competes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.attached_place import SWAP_EPOCHS_MAX, SWAP_SEGMENTS_MAX
from keeplast.attach.rules.swap import Swap, announcement, batch_of, updates
from keeplast.attach.upkeep.replaced_segments import GRACE_MS_MIN, check_grace, collect, repair
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import (
    BATCH_BYTES_NEEDED,
    METADATA_TOPIC,
    OffsetRange,
    TopicFacts,
    encode_batch,
)
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    InvariantError,
    RefusedError,
    StoppedError,
)
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    decode,
)
from keeplast.tier.state.attached import Attached, AttachedName, DecisionState, mark_of
from tests.support.attached_world import (
    CLUSTER_ID,
    PARTITION,
    TERMS,
    AttachedWorld,
    CrashError,
    MemoryTier,
    Steps,
    log_of,
    moved,
)
from tests.support.existing import existing
from tests.support.turns import Turn

GRACE_MS = 1000


def ranges(world: AttachedWorld) -> list[tuple[int, int]]:
    return [(each.start_offset, each.end_offset) for each in world.served()]


def test_two_segments_become_one_in_one_batch_and_their_objects_go(world: AttachedWorld) -> None:
    world.live_through()
    assert [(0, 19), (20, 29)] == ranges(world)
    announced, published, collected = world.cluster.batches
    assert [1, 3, 2] == [each.end - each.start for each in (announced, published, collected)]
    states = [
        (event.state.name, event.broker_id)
        for event in map(decode, world.cluster.values[published.start : published.end])
        if isinstance(event, RemoteLogSegmentUpdate)
    ]
    finished, deleting = "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"
    assert [(finished, mark_of(1)), (deleting, mark_of(1)), (deleting, mark_of(1))] == states
    assert 2 == len(world.tier.segments)
    world.settle()


def test_outputs_are_finished_by_descending_start(world: AttachedWorld) -> None:
    publisher, swap = world.prepared(0, 2, outputs=2)
    decision = publisher.decide_and_publish(swap)
    starts = [each.start_offset for each in decision.outputs]
    assert [0, 10] == starts
    found = [each.id.segment_id for each in batch_of(decision).events[:2]]
    assert [swap.outputs[1].id.segment_id, swap.outputs[0].id.segment_id] == found
    assert 20 == (publisher.log.find(publisher.name) or publisher.held).cleaned_to


def counted(tmp_path: Path) -> list[str]:
    world = AttachedWorld(tmp_path)
    steps = Steps()
    world.live_through(steps)
    world.close()
    return steps.names


def test_a_crash_at_every_step_rolls_forward_or_is_taken_back(tmp_path: Path, turn: Turn) -> None:
    """AT-2 to AT-6, AT-3, AT-4, AT-5: nothing is left over, whichever process comes next."""
    (tmp_path / "count").mkdir()
    names = counted(tmp_path / "count")
    assert {"append", "decide", "mark_published", "mark_collecting", "delete"} <= set(names)
    outcomes = set()

    # Behind one step is before the next one.
    for number in (each for each in range(len(names)) if turn.takes(each, 3)):
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root)
        steps = Steps(number, Mock(side_effect=CrashError), world.require_readable)
        with pytest.raises(CrashError):
            world.live_through(steps)
        world.require_readable()
        world.settle()
        outcomes.add(len(ranges(world)))
        world.close()
    assert {2, 3} == outcomes


def test_a_zombie_that_wakes_at_any_step_changes_nothing_that_was_not_decided(
    tmp_path: Path, turn: Turn
) -> None:
    """AT-7, AT-8, AT-9, Z2: whatever the next owner has done by then."""
    (tmp_path / "count").mkdir()
    ends = set()
    steps_taken = range(len(counted(tmp_path / "count")))
    for number in (each for each in steps_taken if turn.takes(each, 4)):
        root = tmp_path / str(number)
        root.mkdir()
        world = AttachedWorld(root, segments=4)
        steps = Steps(number, watched=world.require_readable)

        def rival(world: AttachedWorld = world, steps: Steps = steps) -> None:
            # All of a round and its collection, while the other process sleeps.
            steps.watched()
            world.live_through()

        steps.happens = rival
        try:
            world.live_through(steps)
            ends.add("done")
        except (FencedError, ConflictError, RefusedError) as error:
            ends.add(type(error).__name__)
        world.require_readable()
        world.settle()
        assert 0 == ranges(world)[0][0]
        assert 39 == ranges(world)[-1][1]
        world.close()
    assert {"done", "FencedError", "ConflictError"} <= ends


def test_a_batch_that_a_zombie_repeats_is_dropped(world: AttachedWorld) -> None:
    """AT-7: what was superseded by a later decision does not come back."""
    first = world.claim()
    decision = first.decide_and_publish(world.swap(first))
    second = world.claim()
    later = second.decide_and_publish(world.swap(second, 0, 2))
    assert decision.outputs[0].id == later.sources[0].id
    before = ranges(world)
    world.cluster.append(world.cluster.metadata_topic, 0, batch_of(decision).events)
    assert before == ranges(world)
    world.settle()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_batch_whose_answer_is_lost_is_looked_for(world: AttachedWorld, arrives: bool) -> None:
    publisher, swap = world.prepared()
    before = len(world.cluster.batches)
    world.cluster.lost_answers = [arrives]
    assert DecisionState.PUBLISHED is publisher.decide_and_publish(swap).state
    assert before + 1 == len(world.cluster.batches)
    world.settle()


def test_an_announcement_whose_answer_is_lost_is_not_repeated(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """AT-31."""
    world.cluster.lost_answers = [False]
    with pytest.raises(ConflictError, match="abandoned"):
        world.write_output(publisher, world.served()[:1])
    assert [] == world.cluster.batches
    world.cluster.lost_answers = [True]
    world.write_output(publisher, world.served()[:1])
    assert 1 == len(world.cluster.batches)
    world.settle()


def test_a_batch_that_never_arrives_is_left_to_the_next_claim(world: AttachedWorld) -> None:
    publisher, swap = world.prepared()
    world.cluster.lost_answers = [False] * 3
    with pytest.raises(CompactionError, match="not published"):
        publisher.decide_and_publish(swap)
    assert 3 == len(ranges(world))
    with pytest.raises(ConflictError, match="repair first"):
        publisher.decide_and_publish(world.swap(publisher, 2, 3))
    assert 1 == repair(world.claim()).published
    assert 2 == len(ranges(world))
    world.settle()


def test_a_setting_that_changed_stops_the_swap(world: AttachedWorld) -> None:
    """AT-28, R3: looked at again before the decision."""
    publisher, swap = world.prepared()
    world.cluster.settings["retention.ms"] = "604800000"
    with pytest.raises(RefusedError, match="rule=retention-ms"):
        publisher.decide_and_publish(swap)
    assert () == publisher.log.decisions(publisher.held)
    world.cluster.settings["retention.ms"] = "-1"
    world.settle()


def test_the_largest_swap_fits_the_smallest_batch_that_the_check_allows() -> None:
    """AT-33: the longest name, much custom metadata, and all the leader epochs there may be."""
    at = dataclasses.replace(PARTITION, topic="t" * 249)
    metadata = TopicFacts(
        METADATA_TOPIC, bytes(16), 1, 3, {"max.message.bytes": str(BATCH_BYTES_NEEDED)}
    )
    largest = (1 << 63) - 1
    epochs = tuple(EpochStart((1 << 31) - 1 - n, largest - n) for n in range(SWAP_EPOCHS_MAX))
    made = [
        RemoteLogSegment(
            id=RemoteLogSegmentId(at, number.to_bytes(16, "big")), start_offset=largest,
            end_offset=largest, broker_id=mark_of(1 << 30), max_timestamp_ms=largest,
            event_timestamp_ms=largest, epochs=epochs[number :: SWAP_SEGMENTS_MAX // 2],
            size_bytes=(1 << 31) - 1, custom_metadata=bytes(512),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        for number in range(SWAP_SEGMENTS_MAX)
    ]  # fmt: skip
    outputs = [announcement(each, 1, largest) for each in made[: SWAP_SEGMENTS_MAX // 2]]
    for events in (
        outputs,
        updates(made, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1 << 30, largest),
    ):
        assert len(events) == len(encode_batch(metadata, 0, events))


def test_what_no_batch_holds_is_not_decided(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-33: it could never be published, and no process would come past the decision."""
    publisher, swap = world.prepared()
    monkeypatch.setattr("keeplast.cluster.live_cluster.BATCH_RECORDS_MAX", 2)
    with pytest.raises(InvalidError, match="take fewer segments"):
        publisher.decide_and_publish(swap)
    assert () == publisher.log.decisions(publisher.held)
    monkeypatch.undo()
    publisher.close()
    world.settle()


def test_a_source_that_is_replaced_meanwhile_is_not_decided(world: AttachedWorld) -> None:
    """AT-13: a new leader copied a part of it again."""
    publisher, swap = world.prepared(1, 3)
    world.upload(15, 29, (1, 15))
    with pytest.raises(ConflictError):
        publisher.decide_and_publish(swap)
    assert () == publisher.log.decisions(publisher.held)


def test_a_copy_over_a_swap_is_served_and_not_clean(world: AttachedWorld) -> None:
    """AT-12."""
    publisher, swap = world.prepared(0, 3)
    # The upload comes between the look and the batch.
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "append", lambda: world.upload(20, 29)
    )
    decision = publisher.decide_and_publish(swap)
    assert DecisionState.PUBLISHED is decision.state
    found = existing(publisher.log.find(publisher.name))
    world.require_readable()
    assert 20 <= found.cleaned_to <= 30


def test_segments_that_lie_over_one_another_become_one(world: AttachedWorld) -> None:
    """R-4: two are served in part, one not at all; all of them are gone afterwards."""
    world.upload(15, 34)
    (hidden,) = [each for each in world.cluster.cache().segments if each.start_offset == 20]
    assert [0, 10, 15] == [each.start_offset for each in world.served()]
    publisher = world.claim()
    first, clipped, over = world.served()
    made = [world.write_output(publisher, [first]), world.write_output(publisher, [clipped, over])]
    short = Swap(PARTITION, (first, clipped), tuple(world.swap(publisher, 0, 2).outputs), 20)
    with pytest.raises(ConflictError, match="served by another segment"):
        publisher.decide_and_publish(short)
    swap = Swap(PARTITION, (first, clipped, over, hidden), tuple(made), 35)
    publisher.decide_and_publish(swap)
    assert [(0, 9), (10, 34)] == ranges(world)
    publisher.close()
    world.settle()


def test_a_segment_that_comes_over_a_source_meanwhile_is_not_merged_away(
    world: AttachedWorld,
) -> None:
    """AT-13: what the round has not read covers a part of what it did."""
    world.upload(15, 34)
    publisher, swap = world.prepared(0, 3)
    world.upload(33, 40)
    with pytest.raises(ConflictError, match="served by another segment"):
        publisher.decide_and_publish(swap)
    publisher.close()
    again = world.claim()
    assert 1 == repair(again).discarded
    again.close()
    world.require_readable()


def test_an_output_that_a_broker_expired_is_given_up(world: AttachedWorld) -> None:
    """AT-25, R1: the log's start passes an output that is not live yet."""
    publisher, swap = world.prepared()
    world.expire(*swap.sources, *swap.outputs)
    with pytest.raises(ConflictError):
        publisher.decide_and_publish(swap)
    world.settle()


class Before:
    """A part of a process, of which something happens before a call, once."""

    def __init__(self, part: object, call: str, happens: Callable[[], object]) -> None:
        self._part = part
        self._call = call
        self._happens = [happens]

    def __getattr__(self, name: str) -> object:
        while name == self._call and self._happens:
            self._happens.pop()()
        return getattr(self._part, name)


def test_what_expires_between_the_last_look_and_the_batch_is_no_hole(world: AttachedWorld) -> None:
    """R1, AT-25: the log start has passed all of the swap, and brokers drop what is published."""
    publisher, swap = world.prepared()
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "append", lambda: world.expire(*swap.sources, *swap.outputs)
    )
    assert DecisionState.PUBLISHED is publisher.decide_and_publish(swap).state
    world.settle()


def test_what_expires_in_the_middle_of_a_look_is_no_hole(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """R2, P13: brokers move the log start first, and then say what goes."""
    decision = publisher.decide_and_publish(world.swap(publisher))
    world.clock.advance(GRACE_MS)
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "read_end", lambda: world.expire(*decision.sources, *decision.outputs)
    )
    assert 1 == collect(publisher, GRACE_MS).decisions
    world.settle()


def test_a_copy_over_all_of_a_swap_that_waits_for_its_publication_is_served_on(
    world: AttachedWorld,
) -> None:
    """AT-4, AT-12: a new leader has copied from the swap's begin to behind its end."""
    publisher, swap = world.prepared()
    world.cluster.lost_answers = [False] * 3
    with pytest.raises(CompactionError, match="not published"):
        publisher.decide_and_publish(swap)
    over = world.upload(0, 29)
    again = world.claim()
    assert 1 == repair(again).published
    world.require_readable()
    assert over.id in {each.id for each in world.served()}
    found = existing(again.log.find(again.name))
    assert 0 == found.cleaned_to


def test_a_copy_over_all_of_a_swap_between_look_and_batch_is_served_again(
    world: AttachedWorld,
) -> None:
    """AT-12."""
    publisher, swap = world.prepared()
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "append", lambda: world.upload(0, 29)
    )
    assert DecisionState.PUBLISHED is publisher.decide_and_publish(swap).state
    world.require_readable()
    assert [(0, 29)] == ranges(world)


def test_what_a_batch_that_came_late_has_hidden_is_served_again_by_the_next_owner(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """AT-7, Z2: the same batch once more, behind a copy that lies over all of it."""
    decision = publisher.decide_and_publish(world.swap(publisher))
    over = world.upload(0, 39)
    world.cluster.append(world.cluster.metadata_topic, 0, batch_of(decision).events)
    assert [] != world.cluster.cache().holes(0)
    again = world.claim()
    repair(again)
    world.require_readable()
    found = existing(world.cluster.cache().find(over.id))
    assert over.broker_id == found.broker_id


def begin(world: AttachedWorld, start: int, end: int) -> RemoteLogSegment:
    """Let a leader announce a copy, and store it."""
    log = log_of(range(start, end + 1), end)
    made = world.segment(start, end, log)
    world.tier.put(made, log)
    world.cluster.announce(made)
    return made


def finish(world: AttachedWorld, copy: RemoteLogSegment) -> None:
    world.cluster.announce(moved(copy, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))


def close_over(world: AttachedWorld, publisher: Publisher) -> Swap:
    """Return the swap of a round that passes a late copy over: it ends with the longer one."""
    longer, late = world.served()[:2]
    output = world.write_output(publisher, [longer])
    return Swap(PARTITION, (longer, late), (output,), output.end_offset + 1)


def test_a_swap_past_the_end_of_a_copy_that_is_begun_is_not_decided(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """R-4: an overtaken leader may finish it any time, and nothing would begin behind its end."""
    copy = begin(world, 5, 14)
    swap = world.swap(publisher)
    with pytest.raises(
        ConflictError, match=r"begun a copy that would leave a hole.*start=5 end=14"
    ):
        publisher.decide_and_publish(swap)
    assert () == publisher.log.decisions(publisher.held)
    publisher.discard_ids([each.id.segment_id for each in swap.outputs])
    publisher.decide_and_publish(world.swap(publisher, 1, 2))
    finish(world, copy)
    world.require_readable()


def test_a_copy_that_was_begun_a_week_ago_holds_no_swap_up(
    publisher: Publisher, world: AttachedWorld
) -> None:
    begin(world, 5, 14)
    world.clock.advance(COPY_MS)
    assert DecisionState.PUBLISHED is publisher.decide_and_publish(world.swap(publisher)).state


def test_what_a_late_copy_hides_is_not_deleted_and_the_next_swap_closes_the_hole(
    world: AttachedWorld,
) -> None:
    """AT-10."""
    world.swapped()
    late = begin(world, 5, 14)
    finish(world, late)
    assert [(15, 19)] == world.cluster.cache().holes(0)
    world.clock.advance(GRACE_MS)
    again = world.claim()
    assert 0 == repair(again).published_again
    with pytest.raises(ConflictError, match=r"finished late.*nothing is deleted.*keeplast clean"):
        collect(again, GRACE_MS)
    assert 5 == len(world.tier.segments)
    again.decide_and_publish(close_over(world, again))
    world.require_readable()
    assert [(0, 19), (20, 29)] == ranges(world)
    world.settle()
    assert late.id.segment_id not in world.tier.segments


def test_a_copy_that_comes_between_look_and_batch_ends_within_an_output_and_is_closed(
    world: AttachedWorld,
) -> None:
    """AT-10: what was decided counts as published, so that a round may come after it."""
    publisher, swap = world.prepared()
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "append", lambda: finish(world, begin(world, 5, 14))
    )
    assert DecisionState.PUBLISHED is publisher.decide_and_publish(swap).state
    assert [(15, 19)] == world.cluster.cache().holes(0)
    known = existing(publisher.log.find(publisher.name))
    assert 5 == known.cleaned_to
    again = world.claim()
    repair(again)
    again.decide_and_publish(close_over(world, again))
    world.settle()


def test_what_a_late_copy_hides_is_decided_on_only_together_with_it(world: AttachedWorld) -> None:
    publisher = world.swapped()
    finish(world, begin(world, 5, 14))
    longer = world.served()[0]
    output = world.write_output(publisher, [longer])
    with pytest.raises(ConflictError, match="served by another segment, too"):
        publisher.decide_and_publish(Swap(PARTITION, (longer,), (output,), 20))


def test_a_process_that_is_overtaken_in_a_look_meets_no_foreign_mark(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """AT-9: the next owner announces, publishes and collects before the look has ended."""
    publisher.cluster = Before(  # type: ignore[assignment]
        world.cluster, "read_end", lambda: world.live_through()
    )
    view = publisher.look()
    assert {mark_of(2)} == {each.broker_id for each in view.cache.segments if each.broker_id < 0}
    with pytest.raises(FencedError):
        publisher.log.check(publisher.held)


def test_a_collection_of_another_process_after_a_look_is_no_foreign_mark(
    world: AttachedWorld,
) -> None:
    publisher = world.swapped()
    world.clock.advance(GRACE_MS)

    def collected() -> None:
        other = world.claim()
        assert 1 == collect(other, GRACE_MS).decisions

    publisher.log = Before(publisher.log, "own_segments", collected)  # type: ignore[assignment]
    assert 4 == len(publisher.look().cache.segments)


def test_a_source_that_expires_after_the_decision_is_published_and_collected(
    world: AttachedWorld,
) -> None:
    """R2, AT-25."""
    publisher, swap = world.prepared()
    world.cluster.lost_answers = [False] * 3
    with pytest.raises(CompactionError):
        publisher.decide_and_publish(swap)
    world.expire(*swap.sources, *swap.outputs)
    assert 1 == repair(publisher).published
    world.settle()


def test_a_topic_that_was_created_again_is_another_one(world: AttachedWorld) -> None:
    """AT-27."""
    publisher, swap = world.prepared()
    world.cluster.topic_id = bytes(range(1, 17))
    with pytest.raises(RefusedError, match="created again"):
        publisher.decide_and_publish(swap)


def test_a_process_that_was_overtaken_decides_nothing(world: AttachedWorld) -> None:
    """AT-9."""
    publisher, swap = world.prepared()
    world.claim()
    with pytest.raises(FencedError):
        publisher.decide_and_publish(swap)
    with pytest.raises(FencedError):
        publisher.register([(bytes(16), 0)])
    world.settle()
    assert 3 == len(ranges(world))


def test_a_process_that_is_overtaken_while_it_claims_takes_its_object_at_its_own_epoch(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its claim and the look at it the next one claims, and is about to take the object."""
    world.claim().close()
    slow, faster = world.log(), world.log()
    reread = slow._reread

    def overtaken(known: Attached) -> Attached:
        found = reread(known)
        return faster.claim(found, epoch=found.epoch + 1)

    monkeypatch.setattr(slow, "_reread", overtaken)
    world.claim(slow)
    layout = cast(RemoteLayout, world.tier)
    owner = OwnerObject(layout, AttachedName(CLUSTER_ID, PARTITION), slow.store_id())
    assert 2 == existing(owner.find()).epoch
    owner.take(3)
    assert 3 == existing(owner.find()).epoch


def test_a_partition_that_another_process_holds_is_not_taken_unasked(
    publisher: Publisher, world: AttachedWorld
) -> None:
    with pytest.raises(RefusedError, match="--take-over"):
        world.claim(takes_over=False)
    publisher.close()
    assert publisher.epoch + 1 == world.claim(takes_over=False).epoch


def test_a_second_decision_log_is_refused(world: AttachedWorld) -> None:
    """AT-30: two operators with two files."""
    world.claim().close()
    with pytest.raises(RefusedError, match="another decision log owns the partition"):
        world.claim(world.log("others.db"))


def test_a_storage_that_is_not_the_brokers_is_refused_before_anything_is_written(
    world: AttachedWorld,
) -> None:
    """Another bucket or prefix, or an empty directory: an owner object there fences no process."""
    right, world.tier = world.tier, MemoryTier()
    for others in (MemoryTier(), MemoryTier(dict(list(right.segments.items())[:-1]))):
        world.tier = others
        with pytest.raises(RefusedError, match="--storage or its prefix is another one") as caught:
            world.claim()
        newest = world.served()[-1]
        assert f"object=memory/{newest.id.segment_id.hex()} partition=" in str(caught.value)
        assert "give --storage as the plugin is configured" in str(caught.value)
        assert {} == others.own
        assert None is world.log().find(AttachedName(CLUSTER_ID, PARTITION))
    world.tier = right
    assert 1 == world.claim().epoch


def test_another_storage_later_is_refused_and_the_holder_of_the_partition_goes_on(
    world: AttachedWorld,
) -> None:
    """An empty one, and a copy of the right one that was made before the last claim."""
    world.claim().close()
    copied = MemoryTier(dict(world.tier.segments), dict(world.tier.own))
    publisher = world.claim()
    world.upload(30, 39)
    swap = world.swap(publisher)
    right = world.tier
    for others in (MemoryTier(), copied):
        world.tier, before = others, dict(others.own)
        with pytest.raises(RefusedError, match="--storage or its prefix is another one"):
            world.claim()
        assert before == others.own
    world.tier = right
    publisher.decide_and_publish(swap)


def test_a_lost_object_stops_no_work_in_a_storage_that_has_the_owner_object(
    world: AttachedWorld,
) -> None:
    """What was replaced is still collected, and the partition may be given up."""
    world.swapped().close()
    world.tier.delete(world.served()[-1])
    publisher = world.claim()
    world.clock.advance(GRACE_MS)
    collect(publisher, GRACE_MS)
    publisher.detach()
    assert {} == world.tier.own


def test_a_partition_of_which_nothing_is_remote_may_be_claimed(tmp_path: Path) -> None:
    world = AttachedWorld(tmp_path, segments=0)
    assert 1 == world.claim().epoch
    world.close()


def test_a_segment_that_brokers_remove_meanwhile_is_no_wrong_storage(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = world.served()[-1]

    def removed_first(tier: MemoryTier, segment: RemoteLogSegment) -> object:
        monkeypatch.undo()
        world.expire(*world.served())
        return tier.open(segment)

    monkeypatch.setattr(MemoryTier, "open", removed_first)
    with pytest.raises(ConflictError, match="brokers have removed the newest segment meanwhile"):
        world.claim()
    assert newest.id.segment_id not in world.tier.segments
    assert {} == world.tier.own
    assert 1 == world.claim().epoch


def test_a_segment_that_is_stored_otherwise_is_damage_before_anything_is_written(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        MemoryTier, "open", Mock(side_effect=CorruptError("no manifest", path="memory"))
    )
    with pytest.raises(CorruptError, match="no manifest"):
        world.claim()
    assert {} == world.tier.own
    assert None is world.log().find(AttachedName(CLUSTER_ID, PARTITION))


def test_the_second_to_attach_has_nothing_attached(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw no owner; the object says who was first."""
    others = world.log("others.db")

    def first_takes_it(tier: MemoryTier, name: str, data: bytes) -> bool:
        if name.startswith("owner-"):
            monkeypatch.undo()
            world.claim().close()
        return put_new(tier, name, data)

    put_new = MemoryTier.put_new
    monkeypatch.setattr(MemoryTier, "put_new", first_takes_it)
    with pytest.raises(ConflictError, match="took the owner object"):
        world.claim(others)
    (row,) = others.partitions(CLUSTER_ID)
    assert row.detached_ms is not None


def test_the_second_process_of_one_decision_log_is_refused(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was read before the winner claimed, the owner object after it."""
    world.claim().close()
    log = world.log()
    find = log.find

    def winner_is_faster(name: AttachedName) -> Attached | None:
        known = find(name)
        monkeypatch.undo()
        world.claim().close()
        return known

    monkeypatch.setattr(log, "find", winner_is_faster)
    with pytest.raises(ConflictError, match="took the partition over first"):
        world.claim(log)


def test_marks_that_the_decision_log_does_not_know_are_refused(world: AttachedWorld) -> None:
    world.live_through()
    world.tier.own.clear()
    values = len(world.cluster.values)
    with pytest.raises(RefusedError, match="does not know"):
        world.claim(world.log("others.db"))
    assert values == len(world.cluster.values)


def test_an_older_decision_log_is_refused(world: AttachedWorld) -> None:
    world.claim().close()
    world.close()
    world.copy_log("decisions.db", "backup.db")
    world.claim().close()
    with pytest.raises(RefusedError, match="older one"):
        world.claim(world.log("backup.db"))


def test_an_owner_object_that_is_gone_stops_decisions_and_deletions(world: AttachedWorld) -> None:
    publisher = world.swapped()
    swap = world.swap(publisher, 1, 2)
    world.tier.own.clear()
    with pytest.raises(RefusedError, match="owner object is gone"):
        publisher.decide_and_publish(swap)
    world.clock.advance(GRACE_MS)
    objects = set(world.tier.segments)
    with pytest.raises(RefusedError, match="owner object is gone"):
        collect(publisher, GRACE_MS)
    assert objects == set(world.tier.segments)


NO_OWNERS = [
    b"", b"no JSON", b"null", b"[]", b"7", b"\xff" * 9, b"[" * 4000, b'{"version": 1}',
    b"x" * 10_000_000,
]  # fmt: skip
NO_VALUES: list[tuple[str, object]] = [
    ("epoch", 0), ("epoch", -1), ("epoch", True), ("epoch", "1"), ("epoch", 1.5),
    ("epoch", 1 << 63), ("partition", False), ("store_id", ["s"]), ("store_id", "\ud800"),
    ("store_id", "a\nb"), ("version", True), ("more", 1),
]  # fmt: skip


def test_a_bad_owner_object_is_damage_and_the_message_says_how_to_go_on(
    world: AttachedWorld,
) -> None:
    world.claim().close()
    ((key, good),) = world.tier.own.items()
    members = json.loads(good)
    spoilt = [
        json.dumps({**members, name: value}, sort_keys=True).encode() for name, value in NO_VALUES
    ]
    for data in (*NO_OWNERS, *spoilt, good + b" ", good * 2):
        world.tier.own[key] = data
        with pytest.raises(CorruptError, match="remove it; the next command") as caught:
            world.claim()
        assert len(str(caught.value)) < 500
    world.tier.own[key] = json.dumps({**members, "version": 2, "more": 1}).encode()
    with pytest.raises(RefusedError, match="another version"):
        world.claim()
    world.tier.own.clear()
    world.swapped()


def test_a_store_that_ignores_conditions_is_refused(world: AttachedWorld) -> None:
    world.tier.ignores_conditions = True
    with pytest.raises(RefusedError, match="conditional"):
        world.claim()
    assert {} == world.tier.own


def test_an_id_is_announced_once_and_only_when_it_was_registered(
    publisher: Publisher, world: AttachedWorld
) -> None:
    announced = world.write_output(publisher, world.served()[:1])
    with pytest.raises(InvariantError, match="announced before"):
        publisher.announce(announced)
    with pytest.raises(InvariantError, match="not given out"):
        publisher.announce(replace(announced, id=world.fresh_id()))
    with pytest.raises(ConflictError):
        publisher.register([(announced.id.segment_id, 0)])


@pytest.mark.parametrize("is_published", [True, False])
def test_decided_outputs_are_never_discarded(world: AttachedWorld, is_published: bool) -> None:
    publisher, swap = world.prepared()
    before = publisher.log.own_segments(publisher.held, only_left=True)
    world.cluster.lost_answers = [] if is_published else [False] * 3
    with contextlib.nullcontext() if is_published else pytest.raises(CompactionError):
        publisher.decide_and_publish(swap)
    with pytest.raises(ConflictError, match="not taken back"):
        publisher.discard(before)
    assert swap.outputs[0].id.segment_id in world.tier.segments
    world.settle()


def test_served_segments_are_not_discarded_whatever_the_log_says(
    publisher: Publisher, world: AttachedWorld
) -> None:
    made = world.write_output(publisher, world.served()[:1])
    world.cluster.announce(moved(made, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    with pytest.raises(InvariantError, match="live"):
        publisher.discard(publisher.log.own_segments(publisher.held))
    assert made.id.segment_id in world.tier.segments


def test_nothing_is_collected_before_its_grace_is_over(world: AttachedWorld) -> None:
    """AT-1: sources wait, and what replaced them is read."""
    publisher = world.swapped()
    world.clock.advance(GRACE_MS - 1)
    assert (0, 1) == ((found := collect(publisher, GRACE_MS)).decisions, found.waiting)
    world.clock.advance(1)
    assert (1, 0) == ((found := collect(publisher, GRACE_MS)).decisions, found.waiting)


def test_sources_stay_when_an_output_ends_before_it_should(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """C7, C9, AT-16: consumers would stop there, or be reset."""
    decision = publisher.decide_and_publish(world.swap(publisher, 0, 2))
    (output,) = decision.outputs
    last = output.end_offset - 1
    world.tier.put(output, log_of((last,), last))
    with pytest.raises(CorruptError, match="consumers would stop there"):
        collect(publisher, 0)
    assert {each.id.segment_id for each in decision.sources} <= set(world.tier.segments)


def test_sources_stay_when_an_output_cannot_be_read(
    publisher: Publisher, world: AttachedWorld
) -> None:
    (output,) = publisher.decide_and_publish(world.swap(publisher)).outputs
    world.clock.advance(GRACE_MS)
    start, log, files = world.tier.segments[output.id.segment_id]
    damaged = log[:-1] + bytes([log[-1] ^ 1])
    objects = set(world.tier.segments)
    for stored in ((start, damaged, files), (start, log[:-1], files), (start, log, {})):
        world.tier.segments[output.id.segment_id] = stored
        with pytest.raises(CorruptError):
            collect(publisher, GRACE_MS)
        assert objects == set(world.tier.segments)
    del world.tier.segments[output.id.segment_id]
    with pytest.raises(CorruptError, match="missing"):
        collect(publisher, GRACE_MS)


@pytest.mark.parametrize(("grace_ms", "is_object_store"), [(-1, False), (0, True), (59_999, True)])
def test_a_grace_that_readers_would_feel_is_refused(grace_ms: int, is_object_store: bool) -> None:
    with pytest.raises(InvalidError, match="grace"):
        check_grace(grace_ms, is_object_store=is_object_store)
    assert 0 == check_grace(0, is_object_store=False)
    assert GRACE_MS_MIN == check_grace(GRACE_MS_MIN, is_object_store=True)


def test_a_pause_stops_decisions_and_collections_of_every_process(world: AttachedWorld) -> None:
    publisher = world.swapped()
    swap = world.swap(publisher, 1, 2)
    elsewhere = world.log()
    elsewhere.set_paused(publisher.held, is_paused=True)
    world.clock.advance(GRACE_MS)
    with pytest.raises(StoppedError):
        publisher.decide_and_publish(swap)
    with pytest.raises(StoppedError):
        collect(publisher, GRACE_MS)
    elsewhere.set_paused(publisher.held, is_paused=False)
    publisher.decide_and_publish(swap)
    world.settle()


@pytest.mark.parametrize("lost", ["swap", "swap and announcement", "swap and upload"])
def test_a_swap_that_the_cluster_lost_is_published_again(world: AttachedWorld, lost: str) -> None:
    publisher = world.swapped()
    announced, published = world.cluster.batches
    end = {"swap": published.start, "swap and announcement": announced.start}.get(lost, 4)
    del world.cluster.values[end:]
    if lost == "swap and upload":
        world.cluster.log = OffsetRange(0, 20)
    world.cluster.leader_epoch += 1
    world.clock.advance(GRACE_MS)
    with pytest.raises(RefusedError, match="--accept-metadata"):
        collect(publisher, GRACE_MS)
    with pytest.raises(RefusedError, match="--accept-metadata"):
        world.claim()
    again = world.claim(accepts_metadata=True)
    assert 1 == repair(again, accepts_metadata=True).published_again
    world.require_readable()
    assert (0, 19) == ranges(world)[0]
    assert 1 == collect(again, GRACE_MS).decisions
    world.require_readable()


def test_a_metadata_topic_that_got_more_partitions_is_never_accepted(
    publisher: Publisher, world: AttachedWorld
) -> None:
    """Brokers go on by the number that they know, and would hear nothing of what is published."""
    seen = publisher.held.seen
    other = replace(seen, partition_count=seen.partition_count + 1)
    publisher.log.accept_seen(publisher.held, other)
    publisher.close()
    with pytest.raises(RefusedError, match="partitions were added"):
        world.claim(accepts_metadata=True)


def test_a_swap_whose_sources_are_gone_is_published_again_too(world: AttachedWorld) -> None:
    publisher = world.live_through()
    _, published, _ = world.cluster.batches
    del world.cluster.values[published.start :]
    with pytest.raises(AssertionError):
        world.require_readable()
    again = world.claim(accepts_metadata=True)
    assert 1 == repair(again, accepts_metadata=True).published_again
    world.settle()
    assert publisher.epoch < again.epoch


def test_another_metadata_topic_of_the_same_length_is_recognised(world: AttachedWorld) -> None:
    publisher = world.swapped()
    end = world.cluster.values[-1]
    event = decode(end)
    assert isinstance(event, RemoteLogSegmentUpdate)
    other = replace(event, event_timestamp_ms=event.event_timestamp_ms + 1)
    del world.cluster.values[-1:]
    world.cluster.append(world.cluster.metadata_topic, 0, [other])
    world.clock.advance(GRACE_MS)
    with pytest.raises(RefusedError, match="--accept-metadata"):
        collect(publisher, GRACE_MS)


def test_a_claim_of_another_cluster_finds_another_partition(world: AttachedWorld) -> None:
    with pytest.raises(RefusedError, match="another cluster"):
        claim(
            world.cluster, world.log(), world.tier,  # type: ignore[arg-type]
            PARTITION, CLUSTER_ID + "-2", TERMS,
        )  # fmt: skip


def test_a_partition_is_detached_when_nothing_is_left_to_do(world: AttachedWorld) -> None:
    publisher = world.swapped()
    with pytest.raises(ConflictError, match="not settled"):
        publisher.log.detach(publisher.held)
    world.clock.advance(GRACE_MS)
    collect(publisher, GRACE_MS)
    publisher.log.detach(publisher.held)
    found = existing(publisher.log.find(publisher.name))
    assert found.detached_ms is not None


def test_a_round_of_states_that_no_broker_survives_is_never_sent(world: AttachedWorld) -> None:
    """AT-22."""
    (segment, *_) = world.served()
    topic = world.cluster.metadata_topic
    for wrong in (
        replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
        RemoteLogSegmentUpdate(
            id=segment.id, broker_id=mark_of(1), event_timestamp_ms=0, custom_metadata=None,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        ),
    ):  # fmt: skip
        with pytest.raises(InvariantError, match="no record that a broker survives"):
            world.cluster.append(topic, 0, [wrong])
    with pytest.raises(InvalidError, match="take fewer"):
        world.cluster.append(topic, 0, [])
