"""What would come back without four looks that rounds take, in one history each.

The simulation seldom comes to it, or never did (docs/contributing/design/attached-scenarios.md):
a leader begins a copy, is overtaken, sleeps through two rounds and finishes it; or a reader
has had a value, and goes on after a round that removes the tombstone. Rounds here are real, on
segments that lie on a disk; brokers are their own fold. Each history goes wrong with its look taken
away, and well with it
in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.rules import sources, tombstone_removal
from keeplast.attach.rules.tombstone_removal import RemovalTerms, expires_below
from keeplast.format.record import Record
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.log.append import NewRecord
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import SLOT_BYTES, CleanerConfig
from keeplast.survey.request import PartitionRequest
from keeplast.tier.state.attached import Decision
from tests.support.attached_tier import AttachedTier, updated
from tests.support.log_builder import START_MS, LogBuilder
from tests.unit.attach import test_attached_rounds
from tests.unit.attach.test_attached_rounds import MERGING, TOPIC, World
from tests.unit.attach.test_tombstone_removal import decision

RETENTION_MS = 1_000
GONE = replace(MERGING, delete_retention_ms=RETENTION_MS)
TERMS = RemovalTerms(RETENTION_MS, local_ms=0)
KEY = b"deleted"
VALUES, RECORDS = 20, 200


def write_a_deleted_key(root: Path, deleted_at: int = 3 * VALUES) -> Path:
    """Write a key at first, delete it later, and write others, which are not deleted."""
    log = LogBuilder(root / "t-0", TOPIC)
    for number in range(RECORDS):
        log.now_ms += 1000
        is_delete = number == deleted_at
        key = KEY if is_delete or number == 0 else b"k%d" % number
        log.append(NewRecord(key, None if is_delete else b"v" * 100, log.now_ms))
        if number % VALUES == VALUES - 1:
            log.roll()
    log.close()
    return log.directory


class History:
    """A partition of which an overtaken leader has begun to copy ``[0, end]``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, end: int) -> None:
        self.world = World(root, write_a_deleted_key)
        tier = self.world.tier
        with monkeypatch.context() as patch:
            patch.setattr(AttachedTier, "upload", AttachedTier.announce)
            begun = tier.copy_over(self.world.directory, 0, end)
        # Announced before anything else was copied: by a leader of long ago.
        self.begun: RemoteLogSegment = begun

    def go_through_rounds(self) -> None:
        """Do a round, and when horizons have passed another one, each collected."""
        world = self.world
        for margin in (12_000, 4_000):
            below = expires_below(
                TERMS, world.sources(margin), world.tier.cache, (), log_start=0,
                first_dirty=world.publisher.cleaned_to, now_ms=START_MS,
            )  # fmt: skip
            world.clean(GONE, margin=margin, expires_below=below)
            world.publisher.collect()
            world.clock.advance(RETENTION_MS + 1)

    def finish(self) -> None:
        """Let the leader of long ago finish its copy."""
        self.world.tier.announce(updated(self.begun, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))

    def value(self) -> bytes | None:
        """Return what a reader has of the deleted key in the end."""
        found = [each for each in self.world.tier.read().records() if each.key == KEY]
        return found[-1].value if found else None

    def tombstones(self) -> int:
        """Return how many deletions of the key lie there."""
        return sum(each.key == KEY for each in self.world.tier.read().records())


def test_a_copy_that_is_finished_late_brings_no_deleted_key_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-4, AT-12: its tombstone waits as long as the copy may be finished."""
    history = History(tmp_path, monkeypatch, VALUES - 1)
    history.go_through_rounds()
    assert (1, None) == (history.tombstones(), history.value())
    history.finish()
    assert [] == history.world.tier.cache.holes(0)
    assert None is history.value()


def test_without_the_look_for_what_brokers_have_begun_a_late_copy_brings_a_deleted_key_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstone_removal, "exposed_from", lambda cache, now_ms: INT64_MAX)
    history = History(tmp_path, monkeypatch, VALUES - 1)
    history.go_through_rounds()
    assert (0, None) == (history.tombstones(), history.value())
    history.finish()
    assert b"v" * 100 == history.value()


def test_a_copy_that_is_finished_late_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path, monkeypatch, VALUES + VALUES // 2 - 1)
    history.go_through_rounds()
    history.finish()
    assert [] == history.world.tier.cache.holes(0)


def test_where_outputs_go_past_the_end_of_what_brokers_have_begun_a_late_copy_leaves_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "begun_copies", lambda cache, now_ms: ())
    history = History(tmp_path, monkeypatch, VALUES + VALUES // 2 - 1)
    history.go_through_rounds()
    assert [] == history.world.tier.cache.holes(0)
    history.finish()
    (hole,) = history.world.tier.cache.holes(0)
    assert history.begun.end_offset + 1 == hole[0]


FULL_AT = 10
"""Where a key map is full: between the value and its deletion, which lie in one segment."""
DELETED_AT = 15
LOCAL_MS = 1_000_000


def rounds_apart(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, first_dirty: int | None = None
) -> bytes | None:
    """Do two rounds with a small key map; return what somebody who reads meanwhile has in the end.

    He has read up to where the first one ended, and goes on behind the second one.
    """
    full = CleanerConfig(key_map_bytes=SLOT_BYTES * FULL_AT, load_factor=1.0)
    monkeypatch.setattr(
        test_attached_rounds, "PartitionRequest", partial(PartitionRequest, cleaner=full)
    )
    world = World(root, partial(write_a_deleted_key, deleted_at=DELETED_AT))
    world.clean(GONE, margin=12_000, expires_below=0)
    assert FULL_AT == world.publisher.cleaned_to
    world.publisher.collect()
    world.clock.advance(RETENTION_MS + 1)
    before = world.tier.read().records()
    below = expires_below(
        TERMS, world.sources(12_000), world.tier.cache, (), log_start=0, now_ms=START_MS,
        first_dirty=FULL_AT if first_dirty is None else first_dirty,
    )  # fmt: skip
    world.clean(GONE, margin=12_000, expires_below=below)
    return read_across(before, FULL_AT, world.tier.read().records())


def read_across(before: Sequence[Record], at: int, behind: Sequence[Record]) -> bytes | None:
    """Return what a reader has of the key who read ``before`` up to ``at``, then ``behind``."""
    read = [each for each in before if each.offset < at]
    read += [each for each in behind if each.offset >= at]
    return [each.value for each in read if each.key == KEY][-1]


def test_where_a_key_map_was_full_a_reader_learns_what_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round that removes the value leaves the tombstone, though its horizon has passed."""
    assert None is rounds_apart(tmp_path, monkeypatch)


def test_where_tombstones_go_that_were_dirty_a_reader_keeps_what_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tombstone was dated by a round that had not come to it, and goes with its value."""
    assert b"v" * 100 == rounds_apart(tmp_path, monkeypatch, first_dirty=INT64_MAX)


def read_locally(root: Path, local_ms: int) -> bytes | None:
    """Do two rounds; return what somebody has in the end who has read a broker's local log.

    He reads it before the second round, which begins when ``delete.retention.ms`` has passed since
    the first one was collected, and goes on in the remote tier. Brokers have the value locally for
    :data:`LOCAL_MS`; keeplast counts with ``local_ms``.
    """
    world = World(root, write_a_deleted_key)
    local = world.tier.read().records()
    world.clean(GONE, margin=12_000, expires_below=0)
    world.publisher.collect()
    settled_ms = world.clock.now_ms()
    world.clock.advance(RETENTION_MS + 1)
    first: Decision = decision(0, published_ms=settled_ms, collected_ms=settled_ms)
    assert world.clock.now_ms() < settled_ms + LOCAL_MS
    below = expires_below(
        RemovalTerms(RETENTION_MS, local_ms), world.sources(4_000), world.tier.cache, [first],
        log_start=0, first_dirty=world.publisher.cleaned_to, now_ms=world.clock.now_ms(),
    )  # fmt: skip
    world.clean(GONE, margin=4_000, expires_below=below)
    return read_across(local, VALUES, world.tier.read().records())


def test_a_reader_of_a_local_segment_learns_the_deleted_keys(tmp_path: Path) -> None:
    assert None is read_locally(tmp_path, LOCAL_MS)


def test_where_local_segments_are_not_counted_with_a_reader_keeps_what_is_deleted(
    tmp_path: Path,
) -> None:
    assert b"v" * 100 == read_locally(tmp_path, 0)
