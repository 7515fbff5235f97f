"""The list of objects behind a search for keys, while rounds and brokers write in the place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from keeplast.attach.answers.erasure import (
    COPY_BEGUN,
    UNKNOWN_OBJECTS,
    WRITING_SECONDS_MAX,
    WRITTEN_NOW,
    AttachedTraces,
    SegmentPlace,
    TierLook,
    search_listed,
)
from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from keeplast.inspect.remains import Remains, WantedKeys
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from tests.support.attached_tier import PARTITION, AttachedTier
from tests.support.attached_world import moved
from tests.support.manual_clock import ManualClock
from tests.unit.attach.test_attached_rounds import write_history

NOW_MS = 1_700_000_000_000
WRITTEN = b"w" * 16
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@dataclass
class WrittenTier:
    """A tier in which a segment is being written, next to those that were searched."""

    tier: AttachedTier
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    listings: list[set[SegmentPlace]] = field(default_factory=list)
    """What each listing has in addition; the last one stays."""
    announced: tuple[RemoteLogSegment, ...] = ()
    announced_at: int = 0
    own_ids: frozenset[bytes] = frozenset()
    looks: int = 0

    @property
    def written(self) -> RemoteLogSegment:
        """Return the segment that is written: its bytes are those of the first."""
        first = self.tier.served()[0]
        return replace(first, id=dataclasses.replace(first.id, segment_id=WRITTEN))

    @property
    def place(self) -> SegmentPlace:
        """Return where it lies."""
        return WRITTEN, self.written.start_offset

    def lay(self) -> None:
        """Put its objects there."""
        layout = self.tier.layout
        first = layout._stem(self.tier.served()[0].id, self.written.start_offset)
        new = layout._stem(self.written.id, self.written.start_offset)
        for path in first.parent.glob(f"{first.name}.*"):
            (new.parent / path.name.replace(first.name, new.name)).write_bytes(path.read_bytes())

    def look(self) -> TierLook:
        """Ask cluster and decision log."""
        self.looks += 1
        known = PartitionCache()
        for each in self.announced if self.looks >= self.announced_at else ():
            known.apply(replace(each, state=STARTED))
            if each.state is not STARTED:
                known.apply(moved(each, each.state))
        return TierLook(known, self.own_ids)

    def search(self, keys: frozenset[bytes] = frozenset((b"k1",))) -> list[Remains]:
        """List the objects behind a search of what is served."""
        layout, listings = self.tier.layout, self.listings

        class Listed:
            def __getattr__(self, name: str) -> object:
                return getattr(layout, name)

            def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
                assert PARTITION == partition
                there = listings[0] if len(listings) == 1 else listings.pop(0)
                return iter([FoundSegment(*each, 1, 0) for each in {*served, *there}])

        served = {(each.id.segment_id, each.start_offset) for each in self.tier.served()}
        end = self.tier.served()[-1].end_offset + 1
        listed = search_listed(
            cast(RemoteLayout, Listed()), PARTITION,
            AttachedTraces(None, searched=frozenset(served), end=end), self.look, self.clock,
            WantedKeys(lambda _: False, keys), lambda: Workspace(MEMORY_BYTES_MIN),
            lambda _: None,
        )  # fmt: skip
        return [each for each in listed if each.keys or each.problem]


@pytest.fixture
def written(tmp_path: Path) -> WrittenTier:
    tier = AttachedTier(tmp_path / "tier")
    tier.copy(write_history(tmp_path / "logs", count=60))
    return WrittenTier(tier)


def test_segments_announced_after_the_look_are_searched(written: WrittenTier) -> None:
    written.lay()
    written.listings = [{written.place}]
    written.announced = (written.written,)
    (one,) = written.search()
    assert (frozenset((b"k1",)), None) == (one.keys, one.problem)
    assert [] == written.search(frozenset((b"nobody",)))
    assert NOW_MS == written.clock.now_ms(), "somebody was waited for"


def test_an_output_that_a_round_is_writing_is_searched_when_it_is_announced(
    written: WrittenTier,
) -> None:
    written.lay()
    written.listings = [{written.place}]
    written.announced, written.announced_at = (written.written,), 4
    written.own_ids = frozenset((WRITTEN,))
    (one,) = written.search()
    assert frozenset((b"k1",)) == one.keys
    assert (4, NOW_MS + 3000) == (written.looks, written.clock.now_ms())


def test_a_segment_that_a_round_begins_after_the_list_is_not_waited_for(
    written: WrittenTier,
) -> None:
    written.lay()
    later = (b"l" * 16, 0)
    written.listings = [{written.place}, {written.place, later}, {later}]
    written.announced, written.announced_at = (written.written,), 2
    written.own_ids = frozenset((WRITTEN, later[0]))
    assert [] == written.search(frozenset((b"nobody",)))
    assert 2 == written.looks


def test_what_takes_the_place_of_something_unsearched_is_searched_too(
    written: WrittenTier,
) -> None:
    written.lay()
    first = (b"f" * 16, 0)
    written.listings = [{first}, {written.place}]
    written.announced, written.announced_at = (written.written,), 2
    written.own_ids = frozenset((first[0], WRITTEN))
    (one,) = written.search()
    assert frozenset((b"k1",)) == one.keys


def test_a_segment_that_a_round_never_ends_is_reported_after_a_minute(written: WrittenTier) -> None:
    written.listings = [{written.place}]
    written.own_ids = frozenset((WRITTEN,))
    assert [WRITTEN_NOW] == [each.problem for each in written.search()]
    assert NOW_MS + WRITING_SECONDS_MAX * 1000 == written.clock.now_ms()


@pytest.mark.parametrize(
    ("begun_ms", "waits", "problem"),
    [
        (None, False, UNKNOWN_OBJECTS), (NOW_MS - 60_000, False, COPY_BEGUN),
        (NOW_MS - 30_000, True, COPY_BEGUN),
    ],
)  # fmt: skip
def test_there_is_no_wait_for_a_process_that_is_not_at_work(
    written: WrittenTier, begun_ms: int | None, waits: bool, problem: str
) -> None:
    written.listings = [{written.place}]
    if begun_ms is not None:
        begun = replace(
            written.written, state=STARTED, event_timestamp_ms=begun_ms, broker_id=1
        )  # fmt: skip
        written.announced = (begun,)
    assert [problem] == [each.problem for each in written.search()]
    assert waits == (written.clock.now_ms() > NOW_MS)


def test_what_is_gone_from_the_next_list_is_no_problem(written: WrittenTier) -> None:
    written.listings = [{written.place}, set()]
    assert [] == written.search()
