"""What a copy that an overtaken leader finishes late leaves behind it, by the brokers' own fold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.attach.rules.sources import Sources, choose_sources, sources_start
from keeplast.attach.rules.swap import reasserted
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.check import Severity, check_copied
from keeplast.cluster.late_copies import (
    COPY_MS,
    begun_copies,
    closable_holes,
    goes_past,
    late_copies,
    pieced_together,
    without,
)
from keeplast.cluster.live_cluster import OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
)
from tests.support.existing import existing

PARTITION = TopicIdPartition("t", bytes(15) + b"\1", 0)
NOW_MS = 1_000_000_000_000
LINEAGE = (LeaderEpoch(0, 0),)
BROKER, COMPACTOR = 1, -1001
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class Story:
    """Brokers' fold of one partition, with names that are numbers."""

    def __init__(self) -> None:
        self.cache = PartitionCache()
        self._ids = itertools.count(1)

    def begin(
        self, start: int, end: int, *epochs: tuple[int, int], by: int = BROKER, at_ms: int = NOW_MS
    ) -> RemoteLogSegment:
        made = RemoteLogSegment(
            id=RemoteLogSegmentId(PARTITION, next(self._ids).to_bytes(16, "big")),
            start_offset=start, end_offset=end, broker_id=by, max_timestamp_ms=0,
            event_timestamp_ms=at_ms, epochs=tuple(EpochStart(*e) for e in epochs or ((0, start),)),
            size_bytes=10, custom_metadata=None, state=STARTED,
        )  # fmt: skip
        assert self.cache.apply(made) is None
        return made

    def move(self, segment: RemoteLogSegment, state: RemoteLogSegmentState) -> None:
        event = RemoteLogSegmentUpdate(
            id=segment.id, broker_id=segment.broker_id,
            event_timestamp_ms=segment.event_timestamp_ms, custom_metadata=None, state=state,
        )  # fmt: skip
        assert self.cache.apply(event) is None

    def copy(
        self, start: int, end: int, *epochs: tuple[int, int], by: int = BROKER
    ) -> RemoteLogSegment:
        made = self.begin(start, end, *epochs, by=by)
        self.move(made, FINISHED)
        return made

    def merge(self, *sources: RemoteLogSegment) -> RemoteLogSegment:
        """Let a compactor put neighbours together, as one batch does."""
        made = self.begin(sources[0].start_offset, sources[-1].end_offset, by=COMPACTOR)
        self.move(made, FINISHED)
        for each in sources:
            self.move(each, DELETING)
        return made

    def choose(
        self, margin_bytes: int = 0, now_ms: int = NOW_MS, *,
        lineage: Sequence[LeaderEpoch] = LINEAGE, log_start: int = 0,
    ) -> Sources:  # fmt: skip
        return choose_sources(
            self.cache, log_start=log_start, margin_bytes=margin_bytes, lineage=lineage,
            now_ms=now_ms,
        )  # fmt: skip


def overtaken(
    story: Story, start: int, end: int
) -> tuple[RemoteLogSegment, list[RemoteLogSegment]]:
    """Let a leader begin a copy, and the next one copy 0 to 49 in five pieces meanwhile."""
    late = story.begin(start, end)
    return late, [story.copy(at, at + 9) for at in range(0, 50, 10)]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_late_copy_leaves_no_hole_where_there_is_no_compaction(story: Story) -> None:
    late, _ = overtaken(story, 10, 24)
    story.move(late, FINISHED)
    assert [] == story.cache.holes(0)
    assert () == late_copies(story.cache)


def test_a_late_copy_hides_the_records_of_a_merge_after_its_end(story: Story) -> None:
    """The hazard: the piece that began behind it went with the merge."""
    late, pieces = overtaken(story, 10, 24)
    made = story.merge(*pieces[:3])
    story.move(late, FINISHED)
    assert [(25, 29)] == story.cache.holes(0)
    (found,) = late_copies(story.cache)
    assert (late.id, made.id) == (found.copy.id, found.within.id)
    assert [(25, 29)] == closable_holes(story.cache, 0)
    assert [] == without(story.cache, [found])[0].holes(0)
    assert [(25, 29)] == story.cache.holes(0)


def test_pieces_are_put_together_up_to_the_end_of_a_copy_that_is_begun_and_from_it_on(
    story: Story,
) -> None:
    overtaken(story, 10, 24)
    assert (20,) == story.choose().begins_at
    assert 40 == story.choose().end


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (10, 19, (20,)),
        (10, 29, (30,)),
        (5, 24, (20,)),
        (0, 24, (20,)),
        (10, 14, (10, 20)),
        (12, 14, (10, 20)),
        (0, 4, (0, 10)),
        (10, 60, ()),
        (40, 49, ()),
        (45, 60, ()),
    ],
)
def test_where_outputs_begin_by_where_a_begun_copy_lies(
    story: Story, start: int, end: int, expected: tuple[int, ...]
) -> None:
    overtaken(story, start, end)
    assert expected == story.choose().begins_at


def test_a_silent_copy_of_a_week_ago_holds_up_nothing(story: Story) -> None:
    late, _ = overtaken(story, 10, 24)
    assert (late,) == begun_copies(story.cache, NOW_MS + COPY_MS - 1)
    assert () == begun_copies(story.cache, NOW_MS + COPY_MS)
    assert () == story.choose(now_ms=NOW_MS + COPY_MS).begins_at


def test_a_copy_that_is_taken_back_or_a_compactors_holds_up_nothing(story: Story) -> None:
    late, _ = overtaken(story, 10, 24)
    story.move(late, DELETING)
    story.begin(12, 23, by=COMPACTOR)
    assert () == begun_copies(story.cache, NOW_MS)
    assert () == story.choose().begins_at


def test_in_its_newest_epoch_a_copy_begins_where_that_does(story: Story) -> None:
    copy = story.begin(10, 24, (0, 10), (1, 20))
    assert goes_past(15, 30, copy)
    assert goes_past(20, 30, copy)
    assert not goes_past(21, 30, copy)
    assert not goes_past(0, 24, copy)


def test_what_lies_over_one_another_waits_for_a_copy_that_ends_within(story: Story) -> None:
    story.copy(0, 29)
    copy = story.begin(12, 22)
    for start, end in ((20, 39), (40, 49), (50, 59)):
        story.copy(start, end)
    found = story.choose()
    assert SourcesLimit(0, SourcesEnd.BEGUN_COPY) == found.limit
    assert 0 == found.end
    story.move(copy, DELETING)
    assert 50 == story.choose().end


def test_a_late_copy_is_passed_over_and_ends_with_what_takes_the_place_of_all(story: Story) -> None:
    late, pieces = overtaken(story, 10, 24)
    made = story.merge(*pieces[:3])
    story.move(late, FINISHED)
    found = story.choose()
    assert [made.id, pieces[3].id] == [each.newest.id for each in found.segments]
    assert [1, 1] == [len(each.parts) for each in found.segments]
    assert [True, False] == [each.is_overlaid for each in found.segments]
    assert [late.id] == [each.id for each in found.hidden]


def test_a_late_copy_that_leaves_the_end_of_a_longer_one_is_passed_over(story: Story) -> None:
    """Seed 226: without a hole, and no round came past it for good."""
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(3, 10), LeaderEpoch(4, 20), LeaderEpoch(7, 30))
    story.copy(0, 9)
    late = story.begin(15, 29, (3, 15), (4, 20))
    longer = story.copy(10, 39, (3, 10), (4, 20), (7, 30))
    story.move(late, FINISHED)
    story.copy(40, 49, (7, 40))
    assert [] == story.cache.holes(0)
    found = choose_sources(story.cache, log_start=0, margin_bytes=0, lineage=lineage, now_ms=NOW_MS)
    assert [longer.id] == [each.newest.id for each in found.segments[1:]]
    assert [late.id] == [each.id for each in found.hidden]


def test_a_segment_of_another_lineage_is_no_late_copy(story: Story) -> None:
    story.copy(0, 29, (0, 0), (2, 20))
    story.copy(10, 19, (1, 10))
    assert () == late_copies(story.cache)


def test_below_the_log_start_nothing_is_closed(story: Story) -> None:
    late, pieces = overtaken(story, 10, 24)
    story.merge(*pieces[:3])
    story.move(late, FINISHED)
    assert [] == closable_holes(story.cache, 5)
    assert SourcesEnd.HOLE is choose_sources(
        story.cache, log_start=12, margin_bytes=0, lineage=LINEAGE, now_ms=NOW_MS
    ).limit.why  # fmt: skip


def test_where_a_newer_copy_lies_between_it_keeps_its_place(story: Story) -> None:
    """What is finished again reaches over where another one begins in the same epoch."""
    story.copy(0, 9, (0, 0))
    longer = story.copy(10, 29, (0, 10), (1, 20))
    late = story.copy(12, 18, (0, 12))
    newer = story.copy(20, 39, (1, 20))
    story.copy(40, 49, (1, 40))
    (found,) = late_copies(story.cache)
    assert late.id == found.copy.id
    assert [(19, 19)] == closable_holes(story.cache, 0)
    chosen = story.choose(lineage=(LeaderEpoch(0, 0), LeaderEpoch(1, 20)))
    assert [longer.id, newer.id] == [each.id for each in chosen.segments[1].parts]
    assert [late.id] == [each.id for each in chosen.hidden]


def test_what_would_be_served_nowhere_without_a_late_copy_is_left_as_it_is(story: Story) -> None:
    story.copy(0, 29)
    story.copy(30, 39)
    late = story.begin(13, 15)
    story.copy(11, 12, by=COMPACTOR)
    story.move(late, FINISHED)
    (found,) = late_copies(story.cache)
    assert (story.cache, []) == without(story.cache, [found])
    assert [] == closable_holes(story.cache, 0)


ELECTED = (LeaderEpoch(0, 0), LeaderEpoch(1, 50))
"""A leader was elected at 50."""


def in_pieces(story: Story, start: int = 40) -> tuple[list[RemoteLogSegment], RemoteLogSegment]:
    """Let an overtaken leader copy 40 to 69 over outputs, and announce the first once more."""
    outputs = [
        story.copy(0, 39, by=COMPACTOR),
        story.copy(start, 49, by=COMPACTOR),
        story.copy(50, 59, (1, 50), by=COMPACTOR),
    ]  # fmt: skip
    copied = story.copy(40, 69, (0, 40), (1, 50))
    story.move(outputs[1], FINISHED)
    story.copy(70, 79, (1, 70))
    return outputs, copied


def test_what_is_served_from_a_later_epoch_on_is_read_from_its_beginning(story: Story) -> None:
    """Seed 948: brokers read 40 to 49 from an output, and of the copy what lies behind that."""
    outputs, copied = in_pieces(story)
    assert {outputs[1].id: [(0, 40, 49)], copied.id: [(1, 50, 69)]}.items() <= (
        {
            name: [(each.epoch, each.start_offset, each.end_offset) for each in ranges]
            for name, ranges in story.cache.served_by_segment().items()
        }.items()
    )
    before = story.cache.state()
    found = story.choose(lineage=ELECTED)
    assert before == story.cache.state()
    assert SourcesLimit(70, SourcesEnd.MARGIN) == found.limit
    assert [outputs[0].id, copied.id] == [each.newest.id for each in found.segments]
    assert [outputs[1].id] == [each.id for each in found.segments[1].late]
    assert {each.id for each in outputs[1:]} == {each.id for each in found.hidden}


def test_a_segment_that_begins_in_a_longer_one_and_ends_after_it_is_one_source_with_it(
    story: Story,
) -> None:
    """Seed 7470."""
    outputs, copied = in_pieces(story, start=30)
    found = story.choose(lineage=ELECTED)
    (source,) = found.segments
    assert [outputs[0].id, outputs[1].id, copied.id] == [each.id for each in source.parts]
    assert [29, 39, 69] == [source.last_of(number) for number in range(3)]
    assert [outputs[2].id] == [each.id for each in found.hidden]


def test_a_segment_that_something_else_has_taken_the_middle_of_is_read_whole(story: Story) -> None:
    """As seed 226, but what lies between is a compactor's, of which nothing came late."""
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(3, 10), LeaderEpoch(7, 30))
    story.copy(0, 9)
    between = story.begin(20, 29, (3, 20), by=COMPACTOR)
    longer = story.copy(10, 39, (3, 10), (7, 30))
    story.move(between, FINISHED)
    story.copy(40, 49, (7, 40))
    found = story.choose(lineage=lineage)
    assert [longer.id] == [each.newest.id for each in found.segments[1:]]
    assert [between.id] == [each.id for each in found.segments[1].late]


def test_what_the_log_start_has_cut_of_what_is_served_in_pieces_is_passed(story: Story) -> None:
    in_pieces(story)
    found = story.choose(lineage=ELECTED, log_start=55)
    assert (70, (), SourcesLimit(70, SourcesEnd.MARGIN)) == (found.end, found.segments, found.limit)
    assert 70 == sources_start(story.cache, 55)


def test_a_copy_from_after_the_log_start_is_in_one_piece_from_its_epoch_on(story: Story) -> None:
    """Seed 290: brokers cut the epochs of what they copy at the log start, and not the segment."""
    story.copy(0, 49, (0, 15))
    story.copy(50, 59)
    assert story.cache is pieced_together(story.cache)[0]
    found = story.choose(log_start=15)
    assert (50, SourcesLimit(50, SourcesEnd.MARGIN)) == (found.end, found.limit)


@pytest.mark.parametrize("log_start", [31, 39, 40, 41, 49, 50, 69])
def test_what_is_served_from_within_what_the_log_start_has_cut_is_passed(
    story: Story, log_start: int
) -> None:
    """It could be taken only together with the segment that no round takes."""
    in_pieces(story, start=30)
    found = story.choose(lineage=ELECTED, log_start=log_start)
    assert (70, ()) == (found.end, found.segments)
    assert 70 == sources_start(story.cache, log_start)


def test_two_segments_in_pieces_do_not_stand_in_each_others_way(story: Story) -> None:
    """What the upper one has all of is no part of the lower one, and what is closed below is not
    held up by it."""
    outputs, copied = in_pieces(story)
    between = story.copy(80, 89, (1, 80), by=COMPACTOR)
    upper = story.copy(80, 99, (1, 80), (2, 90))
    story.move(between, FINISHED)
    story.copy(100, 109, (2, 100))
    lineage = (*ELECTED, LeaderEpoch(2, 90))
    found = story.choose(lineage=lineage)
    assert SourcesLimit(100, SourcesEnd.MARGIN) == found.limit
    assert {copied.id, upper.id} <= {each.newest.id for each in found.segments}
    story.move(story.begin(10, 24), FINISHED)
    assert [(25, 39)] == closable_holes(story.cache, 0)
    assert outputs[0].id == story.choose(lineage=lineage).segments[0].newest.id


def test_where_another_lineage_lies_over_what_is_served_in_pieces_rounds_end(story: Story) -> None:
    in_pieces(story)
    story.copy(45, 64, (0, 45), (2, 55))
    assert SourcesEnd.OTHER_LINEAGE is story.choose(lineage=ELECTED).limit.why


def test_what_cannot_be_passed_over_keeps_no_other_late_copy(story: Story) -> None:
    late, pieces = overtaken(story, 10, 24)
    made = story.merge(*pieces[:3])
    story.move(late, FINISHED)
    story.copy(50, 79)
    story.copy(80, 89)
    stays = story.begin(63, 65)
    story.copy(61, 62, by=COMPACTOR)
    story.move(stays, FINISHED)
    assert [(25, 29), (66, 79)] == story.cache.holes(0)
    assert [(25, 29)] == closable_holes(story.cache, 0)
    assert [made.id] == [each.newest.id for each in story.choose().segments if each.late]


def test_where_a_late_copy_is_passed_over_a_begun_one_that_ends_within_is_waited_for(
    story: Story,
) -> None:
    """Both ends cannot be kept: the swap would be refused, each time behind all the work."""
    begun = story.begin(5, 27)
    late, pieces = overtaken(story, 10, 24)
    story.merge(*pieces[:3])
    story.move(late, FINISHED)
    assert SourcesLimit(0, SourcesEnd.BEGUN_COPY) == story.choose().limit
    story.move(begun, DELETING)
    assert SourcesEnd.MARGIN is story.choose().limit.why


def test_what_no_word_can_close_keeps_nothing_else_open(story: Story) -> None:
    """A copy over all of an output is hidden by it, and elsewhere a late one hides something."""
    late, pieces = overtaken(story, 10, 24)
    story.merge(*pieces[:3])
    story.move(late, FINISHED)
    output = story.merge(pieces[3])
    over = story.copy(30, 59)
    story.move(output, FINISHED)
    assert [(25, 29), (40, 59)] == story.cache.holes(0)
    events = reasserted(story.cache, (), 0)
    assert over.id == events[-1].id
    assert all(each.id not in (late.id, output.id) for each in events)
    for event in events:
        story.cache.apply(event)
    assert [(25, 29)] == story.cache.holes(0)
    assert () == reasserted(story.cache, (), 0)


def test_check_distinguishes_a_late_copy_from_a_lost_segment(story: Story) -> None:
    late, pieces = overtaken(story, 10, 24)
    story.merge(*pieces[:3])
    story.move(late, FINISHED)
    topic = TopicFacts("t", PARTITION.topic_id, 1, 1, {})
    (found,) = check_copied(topic, [OffsetRange(0, 50)], [story.cache])
    assert ("late-copy", Severity.WARNS) == (found.rule, found.severity)
    assert "offsets 25 to 29" in found.words
    assert "keeplast clean --topic t" in found.remedy
    assert "another topic" not in found.remedy


@given(
    late=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 25)), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 12), min_size=4, max_size=9),
    order=st.randoms(use_true_random=False),
)
def test_no_late_copy_leaves_a_hole_after_a_round_that_it_would_not_leave_without(
    late: list[tuple[int, int]], lengths: list[int], order: random.Random
) -> None:
    story = Story()
    begun = [story.begin(start, start + length) for start, length in late]
    at = 0
    for length in lengths:
        story.copy(at, at + length - 1)
        at += length
    alone = story.cache.copy()
    found = story.choose()
    bounds = [*found.begins_at, found.end]
    parts = [each.parts[0] for each in found.segments]
    for group in _groups(parts, bounds):
        story.merge(*group)
    order.shuffle(begun)
    for copy in begun:
        story.move(copy, FINISHED)
        alone.apply(
            RemoteLogSegmentUpdate(
                id=copy.id, broker_id=BROKER, event_timestamp_ms=0, custom_metadata=None,
                state=FINISHED,
            )
        )  # fmt: skip
    had = alone.holes(0)
    for first, last in story.cache.holes(0):
        assert any(start <= first and last <= end for start, end in had), (first, last, had)


def _groups(parts: list[RemoteLogSegment], bounds: list[int]) -> list[list[RemoteLogSegment]]:
    groups: list[list[RemoteLogSegment]] = []
    for each in parts:
        if not groups or each.start_offset in bounds:
            groups.append([])
        groups[-1].append(each)
    return groups


def test_an_update_in_a_segments_own_name_changes_nothing_of_it(story: Story) -> None:
    made = story.copy(0, 9)
    known = existing(story.cache.find(made.id))
    assert replace(made, state=FINISHED) == known
