"""A broker takes the records of a swap in one by one: what it serves after each of them.

Random histories of leaders that copy, are elected and finish copies late, and of rounds between
them, by the brokers' own fold. The rule: **after every record of a swap's batch a broker serves all
that it served before it**. One thing no order can give: what only a copy has that a leader finished
over the swap, behind the decision, is hidden by the first output that is finished, until the last
record of the batch lets it be served again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keeplast.attach.rules.sources import choose_sources
from keeplast.attach.rules.swap import (
    Swap,
    batch_of,
    covered,
    merged_epochs,
    reasserted,
    require_decidable,
)
from keeplast.cleaner.reasons import SourcesEnd
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
)
from keeplast.tier.state.attached import AttachedName, Decision, DecisionState, mark_of

PARTITION = TopicIdPartition("t", bytes(15) + b"\1", 0)
NOW_MS = 1_000_000_000_000
BROKER, EPOCH = 1, 1
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Served = set[tuple[int, int]]


class History:
    """A partition's copies and rounds; ``dice`` draws both."""

    def __init__(self, dice: random.Random) -> None:
        self.cache = PartitionCache()
        self.lineage = [LeaderEpoch(0, 0)]
        self.end = 0
        self._dice = dice
        self._begun: list[RemoteLogSegment] = []
        self._ids = itertools.count(1)

    def begin(self, start: int, end: int, by: int = BROKER) -> RemoteLogSegment:
        """Announce a copy of offsets ``start`` to ``end``, both inclusive."""
        found = [each for each in self.lineage if each.start_offset <= end]
        first = max(at for at, each in enumerate(found) if each.start_offset <= start)
        made = RemoteLogSegment(
            id=RemoteLogSegmentId(PARTITION, next(self._ids).to_bytes(16, "big")),
            start_offset=start, end_offset=end, broker_id=by, max_timestamp_ms=0,
            event_timestamp_ms=NOW_MS, size_bytes=10, custom_metadata=None, state=STARTED,
            epochs=tuple(
                EpochStart(each.epoch, max(each.start_offset, start)) for each in found[first:]
            ),
        )  # fmt: skip
        assert self.cache.apply(made) is None
        return made

    def finish(self, copy: RemoteLogSegment) -> None:
        assert self.cache.apply(_word(copy, FINISHED)) is None

    def happen(self) -> None:
        """Let a leader copy, be elected, begin a copy that it leaves, or finish one late."""
        dice = self._dice
        what = dice.random()
        if what < 0.6 or not self.end:
            # Who was just elected begins where its own segment does, over what was copied.
            over = dice.choice([0, 0, dice.randrange(8)])
            start = max(self.end - over, 0)
            copy = self.begin(start, self.end + dice.randrange(8))
            self.finish(copy)
            self.end = copy.end_offset + 1
        elif what < 0.75 and self.lineage[-1].start_offset < self.end:
            self.lineage.append(LeaderEpoch(self.lineage[-1].epoch + 1, self.end))
        elif what < 0.9:
            start = dice.randrange(self.end)
            self._begun.append(self.begin(start, min(start + dice.randrange(20), self.end - 1)))
        elif self._begun:
            self.finish(self._begun.pop(dice.randrange(len(self._begun))))

    def live(self, count: int, rounds: int) -> Iterator[Decision]:
        """Let ``count`` things happen before each round; yield what is decided."""
        for _ in range(rounds):
            for _ in range(count):
                self.happen()
            decision = self.decide()
            if decision is not None:
                yield decision

    def decide(self) -> Decision | None:
        """Announce the outputs of a round and decide them, as a round would; None for none."""
        found = choose_sources(
            self.cache, log_start=0, margin_bytes=self._dice.choice([0, 0, 20]),
            lineage=self.lineage, now_ms=NOW_MS,
        )  # fmt: skip
        if not found.segments:
            return None
        groups: list[list[RemoteLogSegment]] = []
        for each in found.segments:
            if not groups or each.start_offset in found.begins_at or self._dice.random() < 0.5:
                groups.append([])
            groups[-1] += each.parts
        parts = [part for group in groups for part in group]
        first, last = covered(parts)
        hidden = [e for e in found.hidden if first <= e.start_offset and e.end_offset <= last]
        outputs = []
        for group in groups:
            start, end = covered(group)
            outputs.append(self.begin(start, end, mark_of(EPOCH)))
            assert merged_epochs(group) == outputs[-1].epochs
        swap = Swap(
            PARTITION, tuple(sorted((*parts, *hidden), key=lambda each: each.start_offset)),
            tuple(outputs), last + 1,
        )  # fmt: skip
        decision = Decision(
            id="d", name=AttachedName("c", PARTITION), epoch=EPOCH, state=DecisionState.DECIDED,
            sources=swap.sources, outputs=swap.outputs, cleaned_to=last + 1, metadata_partition=0,
            floor_offset=0, decided_ms=NOW_MS, keep_ms=0, first_dirty=0, expires_below=0,
        )  # fmt: skip
        try:
            require_decidable(self.cache, swap, batch_of(decision).events, 0, now_ms=NOW_MS)
        except ConflictError:
            return None
        return decision


def served(cache: PartitionCache) -> Served:
    """Return what a broker finds something for: leader epochs and offsets."""
    return {
        (each.epoch, offset)
        for each in cache.served()
        for offset in range(each.start_offset, each.end_offset + 1)
    }


def prefixes(cache: PartitionCache, events: Iterable[RemoteLogSegmentUpdate]) -> list[Served]:
    """Return what is served after each of ``events``; ``cache`` stays as it is."""
    tried, found = cache.copy(), []
    for event in events:
        tried.apply(event)
        found.append(served(tried))
    return found


@given(dice=st.randoms(use_true_random=False), count=st.integers(2, 14), rounds=st.integers(1, 4))
@settings(max_examples=100)
def test_after_every_record_of_a_swap_all_is_served_that_was_before(
    dice: random.Random, count: int, rounds: int
) -> None:
    history = History(dice)
    for decision in history.live(count, rounds):
        events = batch_of(decision).events
        before = served(history.cache)
        for number, after in enumerate(prefixes(history.cache, events)):
            assert set() == before - after, (number, events[number])
        for event in events:
            assert history.cache.apply(event) is None


@given(
    dice=st.randoms(use_true_random=False), count=st.integers(2, 14), reach=st.integers(0, 20),
    start=st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=100)
def test_what_a_copy_over_a_decided_swap_has_alone_comes_back_with_the_last_record(
    dice: random.Random, count: int, reach: int, start: float
) -> None:
    """A leader finishes it between decision and batch; nothing else is missing in between."""
    history = History(dice)
    for _ in range(count):
        history.happen()
    decision = history.decide()
    assume(decision is not None)
    assert decision is not None
    late = history.begin(round(start * (history.end - 1)), history.end + reach)
    history.finish(late)
    events = batch_of(decision).events
    again = reasserted(history.cache, events, 0)
    before = served(history.cache)
    after = prefixes(history.cache, [*events, *again])
    assert set() == before - after[-1]
    for each in after:
        missing = before - each
        assert not missing or again
        assert all(late.start_offset <= offset <= late.end_offset for _, offset in missing)


@given(dice=st.randoms(use_true_random=False), count=st.integers(2, 14), rounds=st.integers(1, 4))
@settings(max_examples=100)
def test_where_all_is_served_rounds_come_to_the_margin(
    dice: random.Random, count: int, rounds: int
) -> None:
    """Whatever was copied late, over what, and from which leader epoch on it is served."""
    history = History(dice)
    for decision in history.live(count, rounds):
        if history.end > 2 and dice.random() < 0.5:
            history.finish(late := history.begin(dice.randrange(history.end), history.end + 3))
            history.end = late.end_offset + 1
        events = batch_of(decision).events
        for event in (*events, *reasserted(history.cache, events, 0)):
            history.cache.apply(event)
    for event in reasserted(history.cache, (), 0):
        history.cache.apply(event)
    assume(not history.cache.holes(0))
    found = choose_sources(
        history.cache, log_start=0, margin_bytes=0, lineage=history.lineage, now_ms=NOW_MS + COPY_MS
    )
    assert SourcesEnd.MARGIN is found.limit.why, found.limit


def test_no_order_of_the_records_keeps_served_what_only_a_late_copy_has() -> None:
    """A copy of 0 to 12 is finished over a swap that was decided of 0 to 3 and 4 to 7: each output
    that is finished takes 8 to 12 away, until the copy is said to be whole once more."""
    history = History(random.Random(1))
    pieces = [history.begin(first, last) for first, last in ((0, 3), (4, 7))]
    for each in pieces:
        history.finish(each)
    outputs = [history.begin(first, last, mark_of(EPOCH)) for first, last in ((0, 3), (4, 7))]
    late = history.begin(0, 12)
    history.finish(late)
    before = served(history.cache)
    words = [
        *(_word(each, FINISHED) for each in (*outputs, late)),
        *(_word(each, RemoteLogSegmentState.DELETE_SEGMENT_STARTED) for each in pieces),
    ]
    gaps = [_gaps(history.cache, order, before) for order in itertools.permutations(words)]
    assert len(outputs) == min(each for each in gaps if each is not None)


def _word(segment: RemoteLogSegment, state: RemoteLogSegmentState) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(
        id=segment.id, broker_id=segment.broker_id, event_timestamp_ms=NOW_MS,
        custom_metadata=None, state=state,
    )  # fmt: skip


def _gaps(
    cache: PartitionCache, order: Sequence[RemoteLogSegmentUpdate], before: Served
) -> int | None:
    """Return after how many records of ``order`` something is missing; None where it stays so."""
    found = [bool(before - each) for each in prefixes(cache, order)]
    return None if found[-1] else sum(found)
