"""The brokers' cache, by what the unmodified classes of 3.9 and 4.0 answered to the same events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from keeplast.cluster.check import check_copied
from keeplast.cluster.live_cluster import OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.errors import CorruptError
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from tests.support.existing import existing

PARTITION = TopicIdPartition("t", bytes(range(16)), 0)
FINISH = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
KILL = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
FORGET = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def name_of(name: str) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(PARTITION, name.encode().ljust(16, b"\0"))


def announced(
    name: str, start: int, end: int, epochs: tuple[tuple[int, int], ...] = ()
) -> RemoteLogSegment:
    return RemoteLogSegment(
        id=name_of(name), start_offset=start, end_offset=end, broker_id=1, max_timestamp_ms=0,
        event_timestamp_ms=0, epochs=tuple(EpochStart(*each) for each in epochs or ((0, start),)),
        size_bytes=1, custom_metadata=None, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip


def moved(
    name: str, state: RemoteLogSegmentState, custom: bytes | None = None
) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(
        id=name_of(name), broker_id=1, event_timestamp_ms=1, custom_metadata=custom, state=state
    )


@dataclass
class Story:
    """A cache, and the events that it got."""

    cache: PartitionCache = field(default_factory=PartitionCache)

    def copy(self, name: str, start: int, end: int, *epochs: tuple[int, int]) -> None:
        assert self.cache.apply(announced(name, start, end, epochs)) is None
        assert self.cache.apply(moved(name, FINISH)) is None

    def move(self, name: str, *states: RemoteLogSegmentState) -> None:
        for state in states:
            assert self.cache.apply(moved(name, state)) is None

    def at(self, offset: int, epoch: int = 0) -> str:
        found = self.cache.lookup(epoch, offset)
        return "hole" if found is None else found.id.segment_id.rstrip(b"\0").decode()

    def reads(self, *offsets: int) -> list[str]:
        return [self.at(each) for each in offsets]


@pytest.fixture
def three() -> Story:
    story = Story()
    for name, start, end in (("A", 0, 49), ("B", 50, 99), ("C", 100, 149)):
        story.copy(name, start, end)
    return story


def test_a_merge_in_the_middle_hides_its_first_source_only(three: Story) -> None:
    three.cache.apply(announced("M", 0, 99))
    assert ["A"] == three.reads(0)
    three.move("M", FINISH)
    assert ["M", "M", "B", "C"] == three.reads(0, 49, 60, 120)
    three.move("A", KILL)
    three.move("B", KILL)
    assert ["M", "M", "M"] == three.reads(0, 60, 99)
    three.move("A", FORGET)
    three.move("B", FORGET)
    assert ["M", "C"] == [
        each.id.segment_id.rstrip(b"\0").decode() for each in three.cache.segments
    ]


def test_a_merge_up_to_the_end_hides_all_its_sources(three: Story) -> None:
    three.copy("M", 0, 149)
    assert ["M", "M"] == three.reads(0, 120)
    (served,) = three.cache.served()
    assert (0, 0, 149, name_of("M")) == (
        served.epoch, served.start_offset, served.end_offset, served.segment.id,
    )  # fmt: skip


def test_a_replacement_that_is_deleted_leaves_a_hole_until_the_source_is_asserted(
    three: Story,
) -> None:
    """C5, AT-10."""
    three.copy("R", 0, 49)
    three.move("R", KILL)
    assert ["hole"] == three.reads(10)
    assert [(0, 49)] == three.cache.holes(0)
    assert [] == three.cache.holes(50)
    three.move("A", FINISH)
    assert ["A"] == three.reads(10)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_late_duplicate_comes_back_and_its_deletion_leaves_a_hole(story: Story) -> None:
    """Z2, Z3, AT-10."""
    story.copy("A", 0, 49)
    story.copy("R", 0, 49)
    story.copy("S", 0, 49)
    story.move("R", FINISH)
    assert ["R"] == story.reads(10)
    story.move("R", KILL)
    assert ["hole"] == story.reads(10)
    story.move("S", FINISH)
    assert ["S"] == story.reads(10)


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ((KILL, FINISH), "goes from DELETE_SEGMENT_STARTED to COPY_SEGMENT_FINISHED"),
        ((KILL, FORGET, FINISH), "is not known"),
        ((FORGET,), "goes from COPY_SEGMENT_FINISHED to DELETE_SEGMENT_FINISHED"),
    ],
)
def test_an_update_that_comes_too_late_is_dropped(
    three: Story, states: tuple[RemoteLogSegmentState, ...], why: str
) -> None:
    """Z5."""
    three.move("A", *states[:-1])
    before = three.cache.segments
    problem = existing(three.cache.apply(moved("A", states[-1])))
    assert why in problem
    assert before == three.cache.segments


def test_an_announcement_of_a_finished_segment_is_dropped(three: Story) -> None:
    assert three.cache.apply(announced("A", 0, 10)) is not None
    assert ["A"] == three.reads(49)


def test_an_id_can_come_back_once_it_is_forgotten(three: Story) -> None:
    three.copy("R", 0, 49)
    three.move("R", KILL, FORGET)
    three.copy("R", 0, 49)
    assert ["R"] == three.reads(10)


def test_an_upload_that_overlaps_shadows_what_it_covers(story: Story) -> None:
    story.copy("R", 0, 99)
    story.copy("S", 100, 149)
    story.copy("L", 50, 149)
    assert ["R", "L", "L"] == story.reads(40, 60, 120)
    story.copy("M", 0, 149)
    assert ["M"] == story.reads(60)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 89, ["R", "R", "hole"]), (10, 99, ["hole", "R", "R"])],
)
def test_a_replacement_of_another_range_leaves_a_hole(
    story: Story, start: int, end: int, expected: list[str]
) -> None:
    """C9."""
    story.copy("A", 0, 99)
    story.copy("R", start, end)
    story.move("A", KILL)
    assert expected == story.reads(5, 50, 95)
    assert [(end + 1, 99) if end < 99 else (0, start - 1)] == story.cache.holes(0)


def test_each_epoch_has_its_own_map(story: Story) -> None:
    story.copy("A", 0, 49, (0, 0), (1, 30))
    story.copy("B", 50, 99, (1, 50))
    story.copy("C", 100, 149, (1, 100), (2, 120))
    story.copy("M", 0, 99, (0, 0), (1, 30))
    assert ["M", "M", "B", "C"] == [
        story.at(10),
        story.at(35, 1),
        story.at(60, 1),
        story.at(110, 1),
    ]
    story.move("A", KILL)
    story.move("B", KILL)
    assert ["M", "M", "C"] == [story.at(35, 1), story.at(60, 1), story.at(130, 2)]
    story.copy("N", 0, 99, (0, 0))
    story.move("M", KILL)
    assert ["N", "hole"] == [story.at(10), story.at(35, 1)]


@pytest.mark.parametrize(("order", "between"), [("XY", "hole"), ("YX", "A")])
def test_a_split_is_published_from_its_end(order: str, between: str) -> None:
    ranges = {"X": (0, 49), "Y": (50, 99)}
    story = Story()
    story.copy("A", 0, 99)
    story.copy(order[0], *ranges[order[0]])
    assert between == story.at(10 if order == "YX" else 60)
    story.copy(order[1], *ranges[order[1]])
    assert ["X", "Y"] == story.reads(10, 60)


def test_an_update_replaces_custom_metadata(three: Story) -> None:
    three.cache.apply(moved("A", FINISH, b"\1"))
    assert b"\1" == three.cache.segments[0].custom_metadata
    three.cache.apply(moved("A", KILL))
    assert three.cache.segments[0].custom_metadata is None


def test_holes_are_what_nothing_serves_from_the_log_start_on(three: Story) -> None:
    assert [] == three.cache.holes(0)
    three.move("B", KILL)
    assert [(50, 99)] == three.cache.holes(0)
    assert [(60, 99)] == three.cache.holes(60)
    three.move("A", KILL)
    assert [(0, 99)] == three.cache.holes(0)
    three.move("C", KILL)
    assert [(0, 149)] == three.cache.holes(0)
    assert [] == three.cache.holes(150)


def test_what_ends_a_brokers_reader_is_an_error(three: Story) -> None:
    with pytest.raises(CorruptError, match="announced in another state"):
        three.cache.apply(
            RemoteLogSegment(
                **{
                    each: getattr(announced("Z", 0, 1), each)
                    for each in RemoteLogSegment.__struct_fields__
                    if each != "state"
                },
                state=FINISH,
            )
        )
    three.cache.apply(announced("Z", 150, 160))
    with pytest.raises(CorruptError, match="updated to the first state"):
        three.cache.apply(moved("Z", RemoteLogSegmentState.COPY_SEGMENT_STARTED))
    with pytest.raises(CorruptError, match="stop reading"):
        ClusterCache().apply(
            RemotePartitionDelete(
                partition=PARTITION, broker_id=1, event_timestamp_ms=0,
                state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
            )
        )  # fmt: skip


def test_what_was_copied_once_and_is_gone_refuses_its_topic(three: Story) -> None:
    """Seen on 3.9.1 and 4.3.0: brokers copy it no second time, and delete it locally."""
    topic = TopicFacts("t", PARTITION.topic_id, 1, 1, {})

    def refusals(log_start: int) -> list[str]:
        found = check_copied(topic, [OffsetRange(log_start, 300)], [three.cache])
        return [f"{each.rule} {each.words.partition(' were')[0]}" for each in found]

    assert [] == refusals(0)
    for name in "ABC":
        three.move(name, KILL, FORGET)
    assert 149 == three.cache.highest
    assert ["not-copied partition 0: offsets 0 to 149"] == refusals(0)
    assert [] == refusals(150)
    three.copy("D", 150, 199)
    assert ["not-copied partition 0: offsets 0 to 149"] == refusals(0)
    assert [] == refusals(150)
