"""Segments whose transaction index lacks an abort: a finding of looks and verify, due at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from keeplast.attach.answers.look import AttachedLooks, AttachedOutlook
from keeplast.attach.rounds import missing_aborts
from keeplast.attach.rounds.missing_aborts import SEGMENTS_MAX
from keeplast.attach.rounds.round import RoundWish
from keeplast.attach.rules.sources import EffectiveRange
from keeplast.cleaner.reasons import AbortUnnamed, RatioTooLow
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.format.remote_log_metadata import TXN_INDEX_EMPTY_TAG, RemoteLogSegment
from keeplast.log.windows import WindowBuffers
from keeplast.model.document import Verdict
from keeplast.model.topic_config import TopicConfig
from tests.support.attached_world import CLUSTER_ID
from tests.support.forgotten_abort import ABORTED, PRODUCER, write_forgotten_abort
from tests.support.verified_world import VerifiedWorld, broken
from tests.unit.attach.test_attached_rounds import MERGING

LINEAGE = (LeaderEpoch(0, 0),)
RARELY = replace(MERGING, min_cleanable_dirty_ratio=1.0)
"""No round for its ratio."""
MARGIN = 1500


class CountedLayout:
    """A layout that counts the segments that are opened."""

    def __init__(self, world: VerifiedWorld) -> None:
        self._layout = world.tier.layout
        self.opened: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)

    def open(self, segment: RemoteLogSegment) -> Any:
        self.opened.append(segment.start_offset)
        return self._layout.open(segment)


def world_of(root: Path, **how: Any) -> tuple[VerifiedWorld, int, int]:
    first, marker = write_forgotten_abort(root / "logs" / "t-0", MERGING, **how)
    return VerifiedWorld(root, root / "logs" / "t-0", LINEAGE), first, marker


def look(
    world: VerifiedWorld, topic: TopicConfig = RARELY, *, margin: int = MARGIN,
    looks: AttachedLooks | None = None, cleaned_to: int = 0, log_start: int = 0,
) -> AttachedOutlook:  # fmt: skip
    chosen = AttachedLooks(world.tier.layout) if looks is None else looks
    return chosen.look(
        world.cluster.cache(), RoundWish(topic=topic, margin_bytes=margin),
        world.world.clock.now_ms(), log_start=log_start, cleaned_to=cleaned_to,
    )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[VerifiedWorld, int, int]]:
    found = world_of(tmp_path)
    yield found
    found[0].close()


def test_it_is_reported_and_due_at_once_and_a_round_takes_the_records(
    made: tuple[VerifiedWorld, int, int],
) -> None:
    world, first, marker = made
    found = look(world)
    (missing,) = found.missing_aborts
    assert (PRODUCER, first, marker) == (
        missing.producer_id, missing.first_offset, missing.marker_offset
    )  # fmt: skip
    assert AbortUnnamed(first, marker) == found.decision
    report = world.verify(MERGING)
    assert Verdict.BROKEN is report.verdict
    (finding,) = [
        each
        for check in report.checks
        for each in check.findings
        if "no entry for the aborted transaction" in each.problem
    ]
    assert (["transactions"], marker) == (broken(report), finding.offset)
    assert ABORTED in keys_of(world)
    assert not world.clean(RARELY, margin=MARGIN, force=False).skipped
    assert ABORTED not in keys_of(world)
    assert Verdict.HOLDS is world.verify(MERGING).verdict
    (known,) = world.world.log().partitions(CLUSTER_ID)
    assert marker < known.cleaned_to
    assert () == look(world, cleaned_to=known.cleaned_to).missing_aborts
    assert world.clean(RARELY, margin=MARGIN, force=False).skipped


@pytest.mark.parametrize("between", [1, 3])
def test_it_is_found_after_segments_of_a_broker_that_knows_no_producer(
    tmp_path: Path, between: int
) -> None:
    world, first, marker = world_of(tmp_path, between=between)
    try:
        assert [(first, marker)] == [
            (e.first_offset, e.marker_offset) for e in look(world).missing_aborts
        ]
    finally:
        world.close()


@pytest.mark.parametrize(
    "how", [{"names": True}, {"outcome": ControlType.COMMIT}], ids=["named", "committed"]
)
def test_what_is_named_and_what_was_committed_is_no_finding(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    world, *_ = world_of(tmp_path, **how)
    try:
        found = look(world)
        assert () == found.missing_aborts
        assert isinstance(found.decision, RatioTooLow)
        assert Verdict.HOLDS is world.verify(MERGING).verdict
        assert world.clean(RARELY, margin=MARGIN, force=False).skipped
    finally:
        world.close()


def test_in_the_margin_it_is_reported_and_waits(made: tuple[VerifiedWorld, int, int]) -> None:
    world, _, marker = made
    found = look(world, margin=1 << 20)
    assert [marker] == [each.marker_offset for each in found.missing_aborts]
    assert not found.is_eligible


def test_an_index_that_was_announced_as_empty_names_nothing(tmp_path: Path) -> None:
    world, _, marker = world_of(tmp_path, names=True)
    try:
        (at,) = [e for e in world.tier.served() if e.start_offset <= marker <= e.end_offset]
        assert () == look(world).missing_aborts
        ranges = [
            EffectiveRange(
                each.start_offset, each.end_offset,
                replace(each, tags=((TXN_INDEX_EMPTY_TAG, b"\x01"),)) if each == at else each,
            )
            for each in world.tier.served()
        ]  # fmt: skip
        search = missing_aborts.AbortSearch(world.tier.layout)
        (one,) = search.find(ranges, log_start=0, first_dirty=0)
        assert marker == one.marker_offset
    finally:
        world.close()


def test_records_below_the_log_start_are_given_to_no_consumer(
    made: tuple[VerifiedWorld, int, int],
) -> None:
    world, first, _ = made
    assert () == look(world, log_start=first + 1).missing_aborts
    assert 1 == len(look(world, log_start=first).missing_aborts)


def test_what_is_clean_is_not_asked(made: tuple[VerifiedWorld, int, int]) -> None:
    world, _, marker = made
    counted = CountedLayout(world)
    looks = AttachedLooks(cast(RemoteLayout, counted))
    later = [e.start_offset for e in world.tier.served() if e.start_offset > marker]
    assert () == look(world, looks=looks, cleaned_to=later[0]).missing_aborts
    assert min(counted.opened) <= marker < later[0] <= max(counted.opened)
    assert 0 not in counted.opened


def test_a_second_look_reads_nothing(made: tuple[VerifiedWorld, int, int]) -> None:
    world, *_ = made
    counted = CountedLayout(world)
    looks = AttachedLooks(cast(RemoteLayout, counted))
    first = look(world, looks=looks)
    read = len(counted.opened)
    assert first == look(world, looks=looks)
    assert read == len(counted.opened)


def test_only_the_newest_segments_are_asked_and_a_log_without_transactions_one(
    tmp_path: Path,
) -> None:
    world, *_ = world_of(tmp_path, before=8, segments_behind=SEGMENTS_MAX)
    try:
        counted = CountedLayout(world)
        assert () == look(world, looks=AttachedLooks(cast(RemoteLayout, counted))).missing_aborts
        newest = {each.start_offset for each in world.tier.served()[-SEGMENTS_MAX - 1 :]}
        assert set(counted.opened) == newest
    finally:
        world.close()


def test_a_log_without_transactions_costs_one_small_read(tmp_path: Path) -> None:
    world, *_ = world_of(tmp_path, transactions=False)
    try:
        counted = CountedLayout(world)
        assert () == look(world, looks=AttachedLooks(cast(RemoteLayout, counted))).missing_aborts
        assert {world.tier.served()[-1].start_offset} == set(counted.opened)
    finally:
        world.close()


def test_a_marker_that_is_too_far_away_is_left_to_rounds(
    made: tuple[VerifiedWorld, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, *_ = made
    monkeypatch.setattr(missing_aborts, "SEARCHED_BYTES_MAX", 100)
    monkeypatch.setattr(missing_aborts, "WindowBuffers", partial(WindowBuffers, 200))
    assert () == look(world).missing_aborts


def keys_of(world: VerifiedWorld) -> set[bytes | None]:
    """Return the keys of all records that brokers serve."""
    return {
        record.key
        for each in world.tier.served()
        for batch in read_batches(world.tier.log_of(each))
        for record in batch.records()
    }
