"""By when tombstones of attached partitions are said to go: never before they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.attach.answers.explain import RemoteLog, explain_attached
from keeplast.attach.rounds.round import RoundWish, clean_to
from keeplast.attach.rules.tombstone_removal import (
    REMEMBERED_MS,
    RemovalDates,
    RemovalPace,
    RemovalTerms,
    expires_below,
    find_removal_dates,
)
from keeplast.cleaner.reasons import TombstoneRemoval, TombstonesStay, TombstonesWait
from keeplast.cluster.late_copies import COPY_MS
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.fates import Outlook
from keeplast.inspect.traces import TraceKind, find_attached_trace, trace_words
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.service.attached_outlook import PartitionTombstones, removal_dates
from keeplast.service.explained import fate_words
from keeplast.survey.wording import removal_words
from keeplast.tier.state.attached import AttachedName, Decision, DecisionState, mark_of
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.existing import existing
from tests.support.log_builder import LogBuilder
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING, TOPIC
from tests.unit.attach.test_tombstone_removal import (
    NOW_MS,
    SOURCES,
    TERMS,
    cache_of,
    decision,
    segment,
)

PACE = RemovalPace(grace_ms=300, pass_ms=40)
OURS = mark_of(1)
SERVED = segment(1, 0, 99, broker=OURS)


def dates_of(
    *decisions: Decision, cache: Any = None, terms: RemovalTerms | TombstonesStay = TERMS
) -> RemovalDates:
    known = cache_of(SERVED) if cache is None else cache
    return find_removal_dates(terms, known, decisions, PACE, log_start=0, now_ms=NOW_MS)


def test_what_is_clean_waits_for_its_horizon_and_for_swaps_that_are_not_settled() -> None:
    quiet = dates_of(decision(0))
    assert TombstoneRemoval(None, NOW_MS) == quiet.of(5, horizon_ms=NOW_MS - 1, first_dirty=80)
    later = quiet.of(5, horizon_ms=NOW_MS + 7, first_dirty=80)
    assert TombstoneRemoval(None, NOW_MS + 7, None, TombstonesWait.HORIZON) == later
    swap = decision(40, state=DecisionState.PUBLISHED, collected_ms=None, published_ms=NOW_MS - 100)
    waits = dates_of(swap)
    assert NOW_MS == waits.of(39, horizon_ms=0, first_dirty=80).from_ms
    # Its grace, a pass, and brokers' local segments: the longest of them.
    read_until = max(NOW_MS - 100 + 300 + 40, NOW_MS - 100 + TERMS.local_ms)
    found = waits.of(40, horizon_ms=0, first_dirty=80)
    assert TombstoneRemoval(None, read_until + 1_000, None, TombstonesWait.READABLE) == found
    kept = dates_of(replace(swap, keep_ms=9_000)).of(40, horizon_ms=0, first_dirty=80)
    assert NOW_MS - 100 + 9_000 + 40 + 1_000 == kept.from_ms


def test_what_is_dirty_counts_from_the_round_that_takes_it() -> None:
    quiet = dates_of()
    settle_ms = max(300 + 40, TERMS.local_ms) + 1_000
    unknown = quiet.of(80, horizon_ms=None, first_dirty=80)
    assert (None, settle_ms) == (unknown.from_ms, unknown.after_round_ms)
    due = quiet.of(80, horizon_ms=None, first_dirty=80, is_due=True)
    assert NOW_MS + 40 + settle_ms == due.from_ms
    # One that no round has given a horizon was clean before; only that is missing.
    assert 1_000 == quiet.of(5, horizon_ms=None, first_dirty=80).after_round_ms
    ahead = cache_of(replace(SERVED, max_timestamp_ms=NOW_MS + 50_000))
    future = dates_of(cache=ahead).of(80, horizon_ms=None, first_dirty=80, is_due=True)
    assert NOW_MS + 50_000 + TERMS.local_ms + 1_000 == future.from_ms


def test_the_longest_wait_for_consumer_groups_counts_from_the_horizon() -> None:
    def dates(*decisions: Decision, readers_ms: int = 5_000) -> RemovalDates:
        return find_removal_dates(
            TERMS, cache_of(SERVED), decisions, PACE, log_start=0, now_ms=NOW_MS,
            readers_ms=readers_ms,
        )  # fmt: skip

    waits = dates()
    passed = waits.of(5, horizon_ms=NOW_MS - 100, first_dirty=80)
    assert TombstoneRemoval(None, NOW_MS + 4_900, None, TombstonesWait.READERS) == passed
    assert "consumer groups" in removal_words(passed)
    assert 6_000 == waits.of(5, horizon_ms=None, first_dirty=80).after_round_ms
    assert 6_000 == waits.of(80, horizon_ms=None, first_dirty=80).after_round_ms
    # No batch is read for what is said of all; the newest round gave the last horizon.
    swap = decision(0)
    assert swap.published_ms == NOW_MS - 1_500
    whole = existing(dates(swap).of_partition(cache_of(SERVED), 100).clean)
    assert NOW_MS - 1_500 + 1_000 + 5_000 == whole.from_ms
    # What gave it may be forgotten.
    long = existing(dates(readers_ms=REMEMBERED_MS).of_partition(cache_of(SERVED), 100).clean)
    assert NOW_MS + 1_000 == long.from_ms


def test_a_copy_that_may_be_finished_yet_and_one_that_is_hidden() -> None:
    begun = segment(2, 30, 45, at_ms=NOW_MS - 10)
    waits = dates_of(cache=cache_of(SERVED, begun=(begun,)))
    assert NOW_MS == waits.of(29, horizon_ms=0, first_dirty=80).from_ms
    found = waits.of(30, horizon_ms=0, first_dirty=80)
    assert TombstoneRemoval(None, NOW_MS - 10 + COPY_MS, None, TombstonesWait.COPY) == found
    hidden = cache_of(segment(3, 20, 29), SERVED)
    dates = dates_of(cache=hidden)
    assert TombstonesStay.HIDDEN is dates.of(20, horizon_ms=0, first_dirty=80).stays
    assert None is dates.of(19, horizon_ms=0, first_dirty=80).stays
    whole = dates.of_partition(hidden, 80)
    # A segment that is clean in part is taken again, whole.
    assert (0, None, 20) == (whole.clean_below, whole.clean, whole.hidden_from)
    words = PartitionTombstones(TopicPartition("t", 0), whole).words
    assert "from 20 on they stay" in words


@pytest.mark.parametrize("stays", list(TombstonesStay))
def test_where_none_goes_the_reason_is_said(stays: TombstonesStay) -> None:
    cache = cache_of(SERVED)
    found = dates_of(terms=stays)
    assert TombstoneRemoval(stays) == found.of(1, horizon_ms=0, first_dirty=80)
    said = PartitionTombstones(TopicPartition("t", 0), found.of_partition(cache, 80))
    assert ("never at this rate" in said.words) is (
        stays not in (TombstonesStay.HIDDEN, TombstonesStay.NO_DECISION_LOG)
    )
    assert (stays, None, None) == tuple(
        said.as_document()[name] for name in ("stays", "clean_from_ms", "after_next_round_ms")
    )


def test_a_log_start_within_a_segment_and_no_decision_log_are_reasons_too() -> None:
    def stays(log_start: int, decisions: tuple[Decision, ...] | None) -> TombstonesStay | None:
        return find_removal_dates(
            TERMS, cache_of(segment(1, 0, 49), segment(2, 50, 99)), decisions, PACE,
            log_start=log_start, now_ms=NOW_MS,
        ).stays  # fmt: skip

    assert None is stays(0, ()) is stays(50, ())
    assert TombstonesStay.CUT is stays(7, ())
    assert TombstonesStay.NO_DECISION_LOG is stays(0, None)
    old = dates_of().of(1, horizon_ms=None, first_dirty=80, is_old_format=True)
    assert TombstonesStay.OLD_FORMAT is old.stays


times = st.integers(NOW_MS - 3_000, NOW_MS)
swaps = st.builds(
    lambda first_dirty, published, collected, keep, newest: decision(
        first_dirty, published_ms=published, keep_ms=keep,
        collected_ms=None if collected is None else max(published, collected),
        state=DecisionState.PUBLISHED if collected is None else DecisionState.COLLECTED,
        sources=(segment(90, 0, 9, at_ms=newest),),
    ),
    st.integers(0, 79), times, st.none() | times, st.sampled_from([0, 700]),
    st.integers(NOW_MS - 3_000, NOW_MS + 2_000),
)  # fmt: skip


@given(
    st.lists(swaps, max_size=4), st.integers(0, 79),
    st.integers(NOW_MS - 2_000, NOW_MS + 2_000),
    st.none() | st.tuples(st.integers(0, 79), st.integers(NOW_MS - 2 * COPY_MS, NOW_MS)),
)  # fmt: skip
def test_no_time_is_too_early_nor_later_than_it_must_be(
    decisions: list[Decision], offset: int, horizon_ms: int, begun: tuple[int, int] | None
) -> None:
    copies = () if begun is None else (segment(2, begun[0], 99, at_ms=begun[1]),)
    cache = cache_of(SERVED, begun=copies)
    date = dates_of(*decisions, cache=cache).of(offset, horizon_ms=horizon_ms, first_dirty=80)
    assert date.from_ms is not None

    def collected(each: Decision) -> Decision:
        """Return it, collected as late as the next process may do that."""
        if each.collected_ms is not None:
            return each
        at_ms = max((each.published_ms or 0) + max(PACE.grace_ms, each.keep_ms), NOW_MS)
        return replace(each, state=DecisionState.COLLECTED, collected_ms=at_ms + PACE.pass_ms)

    def goes(now_ms: int) -> bool:
        below = expires_below(
            TERMS, SOURCES, cache, [collected(each) for each in decisions], log_start=0,
            first_dirty=80, now_ms=now_ms,
        )  # fmt: skip
        return below is not None and offset < below and horizon_ms <= now_ms

    assert goes(date.from_ms)
    assert date.from_ms == NOW_MS or not goes(date.from_ms - 1)


GONE = [b"gone%d" % number for number in range(14)]
"""Keys that are written once, and deleted a few segments later."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VerifiedWorld]:
    """A partition of which nothing is compacted."""
    log = LogBuilder(tmp_path / "logs" / "t-0", TOPIC)
    for number in range(400):
        log.now_ms += 1000
        # Each is deleted in another place: some by the first round, some by the second.
        records = [NewRecord(b"k%d" % (number % 30), b"x" * 100, log.now_ms)]
        place, rest = divmod(number, 25)
        if place < len(GONE) and rest in (0, 20):
            records.append(NewRecord(GONE[place], None if rest else b"v", log.now_ms))
        log.append(*records)
    log.finish()
    with closing(VerifiedWorld(tmp_path, log.directory, [LeaderEpoch(0, 0)])) as made:
        yield made


def explanation(world: VerifiedWorld, margin: int, key: bytes, workspace: Workspace) -> Any:
    """Return what is said of a key."""
    cache, log = world.cluster.cache(), world.world.log()
    held = log.find(AttachedName(CLUSTER_ID, PARTITION))
    decisions = () if held is None else log.decisions(held)
    facts = world.cluster.read_facts([PARTITION.topic])
    remote = RemoteLog(
        partition=TopicPartition(PARTITION.topic, 0), ends=world.cluster.log, cache=cache,
        cleaned_to=0 if held is None else clean_to(log, held, cache, 0), decisions=decisions,
        removal=removal_dates(
            facts, world.cluster.topic, MERGING, cache, decisions, RemovalPace(1_000, 2_000),
            log_start=0, now_ms=world.world.clock.now_ms(),
        ),
    )  # fmt: skip
    return explain_attached(
        world.tier.layout, remote, RoundWish(topic=MERGING, margin_bytes=margin),
        world.world.clock, AskedKey(key), workspace, lambda _: None, grace_ms=1_000,
    ).found  # fmt: skip


def tombstones(world: VerifiedWorld, margin: int) -> dict[int, TombstoneRemoval]:
    """Return what is said of each tombstone that wins, by offset."""
    workspace, said = Workspace(MEMORY_BYTES_MIN), {}
    for key in GONE:
        found = explanation(world, margin, key, workspace)
        for each in found.records:
            if each.fate.removal is None:
                continue
            removal = each.fate.removal
            assert Outlook.GOES_LATER is each.fate.outlook
            assert removal.from_ms == each.fate.from_ms
            assert removal_words(removal) in fate_words(found, each)
            trace = find_attached_trace(found, is_partly_unseen=True)
            assert TraceKind.TOMBSTONE_GOES is trace.kind
            assert removal_words(removal) in trace_words(found, trace)
            said[each.record.offset] = removal
    return said


def deletes(world: VerifiedWorld) -> set[int]:
    return {
        each.offset
        for batch in world.tier.read().batches
        for each in (() if batch.is_control else batch.records())
        if each.value is None
    }


def test_rounds_take_every_tombstone_by_its_date(world: VerifiedWorld) -> None:
    clock = world.world.clock
    marked_first = tombstones(world, 30_000)
    first = {n: e.from_ms for n, e in marked_first.items() if e.from_ms is not None}
    # Of what the first round does not take it is unknown when one does.
    assert 0 < len(first) < len(marked_first) == len(GONE)
    assert not world.clean(MERGING, margin=30_000).skipped
    waiting = tombstones(world, 8_000)
    world.collect()
    again = {n: e for n, e in tombstones(world, 8_000).items() if n in first}
    assert set(first) == set(again) <= deletes(world)
    for offset, each in again.items():
        # What has come to pass only makes a time earlier.
        assert each.after_round_ms is None
        assert each.from_ms is not None
        assert each.from_ms <= (waiting[offset].from_ms or 0) <= first[offset]
    clock.advance(max(e.from_ms or 0 for e in again.values()) - clock.now_ms())
    assert not world.clean(MERGING, margin=8_000).skipped
    assert set(marked_first) - set(first) == deletes(world)
