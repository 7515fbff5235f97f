"""A hold of a live topic keeps rounds of every host from passing its point, attached or not yet."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.attach.answers.shown_logs import AttachedHolds, HeldCluster
from keeplast.attach.rounds.round import RoundWish, clean_attached
from keeplast.errors import ConflictError, InvalidError, RefusedError
from keeplast.log.append import NewRecord
from keeplast.model.hold import Hold, HoldPoint, KeptPoint
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName
from tests.support.attached_world import CLUSTER_ID, PARTITION, START_MS, TERMS
from tests.support.existing import existing
from tests.support.heard_calls import appending
from tests.support.log_builder import LogBuilder
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, TOPIC

HOUR = 3_600_000
NAME = AttachedName(CLUSTER_ID, PARTITION)
SEGMENTS, SEGMENT = 6, 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VerifiedWorld]:
    with closing(make_world(tmp_path)) as made:
        yield made


def make_world(tmp_path: Path) -> VerifiedWorld:
    """Six segments of the same five keys, all of them in the remote tier."""
    log = LogBuilder(tmp_path / "logs" / "orders-0", TOPIC)
    for number in range(SEGMENTS * SEGMENT):
        if number and number % SEGMENT == 0:
            log.roll()
        log.append(NewRecord(b"%d" % (number % 5), b"%d" % number, START_MS + number))
    log.finish()
    made = VerifiedWorld(tmp_path, log.directory, LINEAGE[:1])
    made.cluster.log = replace(made.cluster.log, end=SEGMENTS * SEGMENT)
    return made


def hold(
    world: VerifiedWorld,
    name: str = "h",
    age_ms: int = HOUR,
    *,
    log: DecisionLog | None = None,
    **point: int,
) -> Hold:
    """Hold the partition, as another process."""
    holds = AttachedHolds(
        cast(HeldCluster, world.consumers), log or world.world.log(), world.tier.layout,
        world.world.clock,
    )  # fmt: skip
    (added,) = holds.add([(NAME, TERMS)], name, HoldPoint(**point), age_ms)
    return added


def clean(
    world: VerifiedWorld,
    meanwhile: Callable[[], object] = lambda: None,
    receipt: Callable[[bytes], bytes | None] | None = None,
) -> RoundReport:
    """Do a round as a process of its own; ``meanwhile`` is called when it reads first."""
    publisher = world.world.claim()
    wish = RoundWish(topic=TOPIC, margin_bytes=0, force=True, memory_bytes=MEMORY_BYTES_MIN)
    called: list[object] = []

    def progressed(count: int) -> None:
        if not called:
            called.append(meanwhile())

    try:
        with LocalRunner(1, clock=world.world.clock) as runner:
            return clean_attached(
                publisher, wish, lambda _: nullcontext(runner), world.world.clock,
                progressed=progressed, receipt=receipt,
            )  # fmt: skip
    finally:
        publisher.close()
        world.tier.cache = world.cluster.cache()


def cleaned_to(world: VerifiedWorld) -> int:
    found = existing(world.world.log().find(NAME))
    return found.cleaned_to


def test_a_round_ends_where_another_hosts_hold_is_and_goes_on_when_it_is_over(
    world: VerifiedWorld,
) -> None:
    added = hold(world, offset=35)
    assert (35, START_MS, START_MS + HOUR) == (added.offset, added.since_ms, added.until_ms)
    report = clean(world)
    assert (30, 30) == (report.bound, cleaned_to(world))
    assert any("the state as of 35 is held by h until" in note for note in report.notes)
    assert set(range(25, 35)) == {each for each in offsets(world) if each < 35}
    assert clean(world).skipped
    world.world.clock.advance(HOUR)
    assert 50 == clean(world).end_offset


def offsets(world: VerifiedWorld) -> list[int]:
    return [each.offset for each in world.tier.read().records(0)]


def test_a_round_that_is_under_way_does_not_pass_a_new_hold(world: VerifiedWorld) -> None:
    with pytest.raises(ConflictError, match="hold=h offset=35 bound=50"):
        clean(world, lambda: hold(world, offset=35))
    assert (0, list(range(60))) == (cleaned_to(world), offsets(world))
    assert [] == world.compacted()
    assert 30 == clean(world).end_offset


def test_a_round_without_anything_to_remove_does_not_pass_a_new_hold(
    world: VerifiedWorld,
) -> None:
    """Where no swap says how far it is clean, that is written down by itself."""
    clean(world)
    log = world.world.log()
    found = existing(log.find(NAME))
    held = log.claim(found, epoch=found.epoch + 1)
    hold(world, offset=50)
    with pytest.raises(ConflictError, match="hold=h offset=50 bound=60"):
        log.advance(held, 60)
    assert 50 == cleaned_to(world)


def test_a_point_that_a_round_has_passed_is_refused(world: VerifiedWorld) -> None:
    assert 50 == clean(world).end_offset
    for offset in (0, 49):
        with pytest.raises(RefusedError, match=f"cleaned_to=50 end_offset={offset}"):
            hold(world, offset=offset)
    assert () == world.world.log().hold_rows.attached(CLUSTER_ID)
    assert 50 == hold(world, offset=50).offset


def test_a_point_that_a_round_has_passed_that_was_cut_short_is_refused(
    world: VerifiedWorld,
) -> None:
    class CutError(Exception):
        """The process is over, behind what it has decided."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecisionLog, "mark_published", Mock(side_effect=CutError))
        with pytest.raises(CutError):
            clean(world)
    assert 0 == cleaned_to(world)
    with pytest.raises(RefusedError, match="cleaned_to=50 end_offset=35"):
        hold(world, offset=35)


def test_a_topic_that_is_held_is_not_attached_and_its_first_claim_honours_it(
    world: VerifiedWorld,
) -> None:
    hold(world, offset=35)
    found = existing(world.world.log().find(NAME))
    assert (0, True, None) == (found.epoch, found.detached_ms is not None, found.holder)
    assert 30 == clean(world).end_offset
    found = existing(world.world.log().find(NAME))
    assert (1, None) == (found.epoch, found.detached_ms)


def test_a_held_topic_that_another_decision_log_was_first_to_attach_is_not_ours(
    world: VerifiedWorld,
) -> None:
    ours = world.world.log("ours.db")
    hold(world, log=ours)
    world.world.claim(world.world.log("theirs.db")).close()
    with pytest.raises(RefusedError, match="another decision log owns the partition"):
        world.world.claim(ours)
    found = existing(ours.find(NAME))
    assert found.detached_ms is not None
    with pytest.raises(RefusedError, match="another decision log owns the partition"):
        hold(world, "again", log=ours)


def test_an_older_copy_of_the_decision_log_holds_nothing(world: VerifiedWorld) -> None:
    clean(world)
    world.world.close()
    world.world.copy_log("decisions.db", "older.db")
    world.cluster.log = replace(world.cluster.log, end=70)
    world.world.claim().close()
    with pytest.raises(RefusedError, match="the owner object says a later epoch"):
        hold(world, log=world.world.log("older.db"))


def test_as_of_now_is_where_the_brokers_say_that_what_is_decided_ends(
    world: VerifiedWorld,
) -> None:
    world.cluster.log = replace(world.cluster.log, end=67)
    assert 67 == hold(world).offset
    assert 13 == hold(world, "time", time_ms=START_MS + 12).offset
    # No round reaches what lies behind the last segment but one.
    held = hold(world, "local", offset=66)
    assert (66, 50) == (held.offset, held.limit)
    assert 50 == hold(world, "late", time_ms=START_MS + 60).offset
    with pytest.raises(InvalidError, match="offset=68 log_start=0 log_end=67"):
        hold(world, "beyond", offset=68)


def test_what_is_found_counts_only_while_nothing_was_decided(world: VerifiedWorld) -> None:
    find = AttachedHolds._find_kept
    rounds: list[RoundReport] = []

    def find_late(*given: object) -> KeptPoint:
        found = find(*given)  # type: ignore[arg-type]
        if not rounds:
            rounds.append(clean(world))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttachedHolds, "_find_kept", find_late)
        with pytest.raises(RefusedError, match="cleaned_to=50 end_offset=35"):
            hold(world, offset=35)


def test_a_topic_that_was_created_again_is_not_held(world: VerifiedWorld) -> None:
    hold(world, offset=35)
    other = replace(NAME, partition=dataclasses.replace(PARTITION, topic_id=bytes(16)))
    log = world.world.log()
    assert log.find(other) is None
    world.cluster.topic_id = bytes(16)
    with pytest.raises(RefusedError, match="the topic is another one"):
        hold(world, "again", offset=35)
    assert ["h"] == [each.hold.name for each in log.hold_rows.attached(CLUSTER_ID)]
    assert 1 == len(log.hold_rows.release_attached(CLUSTER_ID, "h"))
    assert () == log.hold_rows.attached(CLUSTER_ID)


def test_a_store_and_each_cluster_have_holds_of_their_own(world: VerifiedWorld) -> None:
    hold(world, offset=35)
    rows = world.world.log().hold_rows
    assert ((), ()) == (rows.stored(), rows.attached("another"))
    for release in (rows.release_stored, lambda name: rows.release_attached("another", name)):
        with pytest.raises(InvalidError, match="there are: none"):
            release("h")
    with pytest.raises(RefusedError, match="there is a hold of this name"):
        hold(world, offset=36)


def test_receipts_have_the_hold(world: VerifiedWorld) -> None:
    hold(world, offset=35)
    lines: list[bytes] = []
    clean(world, receipt=appending(lines))
    expected = [{"name": "h", "offset": 35, "until_ms": START_MS + HOUR}]
    assert [expected] == [json.loads(each)["holds"] for each in lines]
