"""What a filter saves, and that one which is damaged, missing or wrong costs reading only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.format.filename import LOG
from keeplast.model.topic_config import Shape
from keeplast.tier.metadata.collection import collect
from keeplast.tier.objects.filters import KEY_BYTES
from keeplast.tier.objects.object_store import ObjectStore, segment_of_key
from tests.support.counting_objects import CountingObjects
from tests.support.keyed_history import CLEAN_SEGMENTS, TOPIC, KeyedHistory, overwrite
from tests.support.log_builder import text
from tests.support.partition_maker import DAY_MS, PARTITION
from tests.support.tiered_log import Tiered

SHAPES = (None, Shape.BROADCAST, Shape.BUCKET)


def whole(objects: ObjectStore, key: str) -> bytes:
    return bytes(objects.read_range(key, 0, objects.stat(key).size_bytes))


@pytest.mark.parametrize("shape", SHAPES)
def test_segments_without_a_dirty_key_are_neither_read_nor_rewritten(
    history: KeyedHistory, shape: Shape | None
) -> None:
    history.write(1)
    before = history.tiered.state
    history.take_in()
    counting = CountingObjects(history.tiered.objects)
    history.tiered.objects = counting
    _, stats = history.clean(shape)
    kept = set(before.segments) & set(history.tiered.state.segments)
    read = {segment_of_key(key) for key in counting.read if not key.endswith("filter")}
    assert CLEAN_SEGMENTS - 1 == stats.skipped_segments == len(kept)
    assert not kept & read
    assert stats.skipped_bytes == sum(before.segments[each].size_bytes for each in kept)
    assert stats.share_skipped == stats.skipped_bytes / stats.clean_bytes
    assert stats.share_of_segments == stats.found_bytes / stats.filtered_bytes


@pytest.mark.parametrize("dirty", [(1,), (1, 1, 3)], ids=["one chunk", "several chunks"])
def test_a_report_has_the_bytes_of_the_whole_log_before_and_after(
    history: KeyedHistory, dirty: tuple[int, ...]
) -> None:
    for number in dirty:
        history.write(number)
    history.take_in()
    before = history.tiered.state.effective_bytes()
    report, stats = history.clean()
    assert (len(dirty), True) == (report.chunks, stats.skipped_segments > 0)
    after = history.tiered.state.effective_bytes()
    assert after < before
    assert (before, after) == report.log_bytes


def test_st_14_tombstone_in_the_dirty_part_makes_its_key_s_segment_be_read(
    history: KeyedHistory, tmp_path: Path
) -> None:
    history.write(2, deletes=True)
    history.round()
    exported = history.tiered.export(tmp_path / "out" / str(PARTITION))
    left = b"".join(path.read_bytes() for path in exported.glob("*.log"))
    assert text(200) + b"\x00" not in left
    assert history.tiered.state.segments


def test_st_14_segment_with_an_expired_horizon_is_not_skipped(history: KeyedHistory) -> None:
    history.write(2, deletes=True)
    history.round()
    history.write(9)
    _, before = history.round()
    assert before.clean_segments == before.skipped_segments
    history.tiered.clock.advance(TOPIC.delete_retention_ms + DAY_MS)
    history.write(10)
    _, after = history.round()
    assert after.clean_segments - 1 == after.skipped_segments
    history.write(11)
    report, _ = history.round()
    assert report.stats is not None
    assert 0 == report.stats.tombstones_read


@pytest.mark.parametrize(
    ("spoil", "damaged"),
    [
        (lambda data: data[:-1], 1),
        (lambda data: data[:40], 1),
        (lambda data: b"", 1),
        (lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], 1),
        (lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], 1),
        (lambda data: data[:8] + b"\x63\x00" + data[10:], 1),
        (None, 0),
    ],
    ids=["cut", "cut in its head", "empty", "head", "words", "version", "missing"],
)
def test_st_12_filter_that_is_no_good_costs_reading_and_is_made_again(
    history: KeyedHistory, spoil: Callable[[bytes], bytes] | None, damaged: int
) -> None:
    key = history.tiered.filter_key(0)
    data = whole(history.tiered.objects, key)
    if spoil is None:
        history.tiered.objects.delete([key])
    else:
        overwrite(history.tiered.objects, key, spoil(data))
    before = set(history.tiered.state.segments)
    history.write(7)
    _, stats = history.round()
    assert (damaged, CLEAN_SEGMENTS - 1) == (stats.damaged, stats.skipped_segments)
    assert before <= set(history.tiered.state.segments)
    assert data == whole(history.tiered.objects, key)
    history.write(8)
    _, stats = history.round()
    assert CLEAN_SEGMENTS <= stats.skipped_segments


def test_st_12_filter_of_another_segment_is_not_believed(history: KeyedHistory) -> None:
    objects, state = history.tiered.objects, history.tiered.state
    keys = [history.tiered.filter_key(route.base_offset) for route in state.routes]
    overwrite(objects, keys[1], whole(objects, keys[0]))
    history.write(1)
    _, stats = history.round()
    assert (1, CLEAN_SEGMENTS - 1) == (stats.damaged, stats.skipped_segments)
    assert state.routes[1].segment_id not in history.tiered.state.segments


def test_st_12_filter_that_hashes_with_another_key_is_not_believed(
    history: KeyedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history.tiered.store, "fact", lambda key, make: "ab" * KEY_BYTES)
    before = history.tiered.state.routes[1].segment_id
    history.write(1)
    _, stats = history.round()
    assert (CLEAN_SEGMENTS, 0) == (stats.damaged, stats.skipped_segments)
    assert before not in history.tiered.state.segments


@pytest.mark.parametrize("shape", SHAPES)
def test_st_13_false_positive_reads_and_keeps_the_old_segment(
    history: KeyedHistory, monkeypatch: pytest.MonkeyPatch, shape: Shape | None
) -> None:
    before = set(history.tiered.state.segments)
    monkeypatch.setattr("keeplast.rewrite.skipping._is_absent", lambda *args: False)
    counting = CountingObjects(history.tiered.objects)
    history.tiered.objects = counting
    history.write(7)
    report, stats = history.round(shape)
    read = {segment_of_key(key) for key in counting.read if key.endswith(LOG)}
    written = {segment_of_key(key) for key in counting.written}
    assert 0 == stats.skipped_segments
    assert before <= read
    assert not before & written
    assert before <= set(history.tiered.state.segments)
    assert report.stats is not None
    assert CLEAN_SEGMENTS <= report.stats.segments_left_alone


def collect_all(tiered: Tiered) -> None:
    tiered.clock.advance(10_000 * DAY_MS)
    collect(
        tiered.store, tiered.objects, PARTITION, epoch=tiered.state.leader_epoch,
        garbage_age_ms=0, clock=tiered.clock,
    )  # fmt: skip


def test_dirty_keys_too_many_to_hold_in_a_round_that_is_cut_ask_no_filter(
    history: KeyedHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.rewrite.stage_work.hashes_max", lambda memory_bytes: 2)
    history.write(1)
    _, stats = history.round(Shape.BUCKET)
    assert (CLEAN_SEGMENTS, 0, 0) == (stats.clean_segments, stats.found, stats.skipped_segments)


def test_filters_go_with_their_segments(history: KeyedHistory) -> None:
    tiered = history.tiered
    replaced = tiered.filter_key(tiered.state.routes[1].base_offset)
    history.write(1)
    history.round()
    collect_all(tiered)
    keys = {each.key for each in tiered.objects.list(str(PARTITION))}
    assert set(tiered.state.segments) == {segment_of_key(key) for key in keys}
    assert tiered.filter_key(0) in keys
    # A round that reads the old segment until now may still write its filter.
    overwrite(tiered.objects, replaced, b"late")
    collect_all(tiered)
    assert keys == {each.key for each in tiered.objects.list(str(PARTITION))}
