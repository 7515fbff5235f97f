"""What ``tier explain`` tells of a record in a store comes true when the clock runs on.

Random logs, behind which lie rounds, undos, collections and log starts that move, some rounds cut
short by a crash. Rounds are run a moment before each time that was told, and at it, as in
``test_fates``. What is told of replaced segments is what is in them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keeplast.format.message_set import read_batches
from keeplast.inspect.explain import AskedKey, KeyExplanation
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.store.explain import StoredKey, explain_stored
from keeplast.tier.objects.filters import KEY_FACT, FilterKey
from keeplast.tier.objects.object_store import object_key
from keeplast.tier.state.segment import RemoteSegment
from tests.property.test_fates import (
    NAMES,
    POLICIES,
    SECOND,
    check_expiry,
    check_later_rounds,
    check_next_round,
)
from tests.property.test_stored_certificates import GRACE_MS, Store
from tests.support.log_script import START_MS, Operation, scripts
from tests.support.partition_maker import PARTITION
from tests.support.turns import examples

W = Workspace(MEMORY_BYTES_MIN)
TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.sampled_from(POLICIES),
    retention_ms=st.just(-1),
    segment_bytes=st.sampled_from([14, 1 << 20]),
    tier_chunk_bytes=st.sampled_from([14, 1 << 20]),
    min_compaction_lag_ms=st.sampled_from([0, 0, 15 * SECOND, 70 * SECOND]),
    delete_retention_ms=st.sampled_from([0, 7 * SECOND, 40 * SECOND]),
    undo_retention_ms=st.sampled_from([0, 12 * SECOND]),
    strategy=st.sampled_from(Strategy),
    strategy_header=st.just("ver"),
    keep_versioned_tombstones=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "undo", "collect", "crash", "start"]),
        st.integers(0, 60),
    ),
    max_size=4,
)


class StoredLog:
    """A log in a store as the checks of fates ask it: rounds at any time, and offsets of keys."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def step(self, what: str, number: int) -> None:
        if what != "start":
            self.store.step(what, number)
        elif self.store.topic.expires:
            state = self.store.state
            start = state.log_start + (state.remote_end - state.log_start) * number // 100
            self.store.tiered.expire(PARTITION, log_start=start, grace_ms=GRACE_MS)

    def round(self, now_ms: int) -> None:
        self.store.at(now_ms)
        self.store.round()

    def expire(self, now_ms: int) -> None:
        self.store.at(now_ms)
        self.store.tiered.expire(PARTITION, grace_ms=GRACE_MS)

    def rounds(self, now_ms: int) -> None:
        self.round(now_ms)
        # While a clock stands still no round follows for what another one has just stamped.
        self.store.begin_anew()
        self.round(now_ms)

    def records(self, key: bytes, segment: RemoteSegment) -> set[int]:
        """Return the offsets of a key in one segment, by its bytes."""
        state = self.store.state
        name = object_key(
            PARTITION, state.topic_id, segment.segment_id, segment.base_offset, ".log"
        )
        data = self.store.objects.read_range(name, 0, segment.size_bytes)
        return {
            record.offset
            for batch in read_batches(bytes(data))
            if not batch.is_control
            for record in batch.records()
            if record.key == key
        }

    def offsets(self, key: bytes) -> set[int]:
        state = self.store.state
        found = [self.records(key, state.segments[each.segment_id]) for each in state.routes]
        return set().union(*found)

    def may_go(self, found: KeyExplanation) -> set[int]:
        """Return what goes with its segment: what nobody reads any more."""
        return {e.record.offset for e in found.records if e.record.offset < found.log_start}

    def explain(self, key: bytes, now_ms: int) -> StoredKey:
        look, parts = self.store.tiered.look(PARTITION), self.store.tiered.parts()
        fact = parts.metadata.find_fact(KEY_FACT)
        return explain_stored(
            look, parts.objects, AskedKey(key), now_ms, W,
            filter_key=None if fact is None else FilterKey.of_fact(fact),
            planned=lambda _: None, progressed=lambda _: None,
        )  # fmt: skip

    def check_replaced(self, key: bytes, told: StoredKey) -> None:
        """What is told of replaced segments is what is in them."""
        orphans = self.store.tiered.look(PARTITION).orphans
        expected = sorted(
            (each.segment.segment_id, offset)
            for each in orphans
            if each.kept_by is None
            for offset in self.records(key, each.segment)
        )
        assert expected == sorted((e.segment_id, e.record.offset) for e in told.copies)
        kept = sorted(
            (each.kept_by, offset)
            for each in orphans
            if each.kept_by is not None
            for offset in self.records(key, each.segment)
        )
        assert kept == sorted((each.round, each.record.offset) for each in told.kept)


def after(
    root: Path,
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: Sequence[tuple[str, int]],
    now_ms: int,
) -> StoredLog:
    """Return a stored log behind some steps, at ``now_ms``; something of it is stored all along."""
    log = StoredLog(Store(root, script, topic))
    assume(log.store.state.routes)
    for number, step in enumerate(earlier):
        log.store.at(now_ms - 5 * SECOND * (len(earlier) - number))
        log.step(*step)
        assume(log.store.state.routes)
    log.store.at(now_ms)
    return log


@settings(max_examples=examples(25, long=2000))
@given(
    script=scripts(),
    topic=TOPICS,
    earlier=STEPS,
    now_ms=st.integers(START_MS + 60 * SECOND, START_MS + 130 * SECOND),
)
def test_what_was_told_of_every_stored_record_comes_true(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: Sequence[tuple[str, int]],
    now_ms: int,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = after(Path(root), script, topic, earlier, now_ms)
        found = {key: log.explain(key, now_ms) for key in NAMES}
        for key, each in found.items():
            assert log.offsets(key) == {e.record.offset for e in each.found.records}
            log.check_replaced(key, each)
        told = {key: each.found for key, each in found.items()}
        check_next_round(log, told, now_ms)
        check_later_rounds(log, told, now_ms)


@settings(max_examples=examples(12, long=1000))
@given(
    script=scripts(),
    topic=st.builds(
        replace,
        TOPICS,
        retention_ms=st.sampled_from([0, 12 * SECOND, 90 * SECOND]),
        retention_bytes=st.sampled_from([-1, -1, 0, 250, 1500]),
    ),
    earlier=STEPS,
    now_ms=st.integers(START_MS + 60 * SECOND, START_MS + 130 * SECOND),
)
def test_what_remote_retention_takes_goes_when_that_was_told(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: Sequence[tuple[str, int]],
    now_ms: int,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = after(Path(root), script, topic, earlier, now_ms)
        told = {key: log.explain(key, now_ms).found for key in NAMES}
        check_expiry(log, told, now_ms)
