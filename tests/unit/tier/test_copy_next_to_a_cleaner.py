"""A copy next to a cleaner that is not ours misses no delete and shows no aborted record."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.errors import ConflictError, RefusedError, UnavailableError
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT, REPLICATION_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType, Record
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.log.truncation import retire_segments
from keeplast.model.topic_config import Strategy
from keeplast.survey.survey import Survey, survey_partition
from keeplast.tier.copy.moving_directory import MovedError, directory_id, read_rest
from keeplast.tier.metadata.rows import DIRECTORIES_MAX
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.continuity import Doubt, RangeContent, Visits
from tests.support.cleaned_directory import SECOND_MS, CleanedDirectory
from tests.support.faulty_objects import FaultyObjects
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import COMPACT, DAY_MS, PARTITION

HOUR_MS = DAY_MS // 24


def with_aborted_data(root: Path) -> CleanedDirectory:
    """Have x=ABORTED in the store, and its marker and a later x in the broker's log only."""
    log = CleanedDirectory(root)
    log.put(b"x", b"ABORTED", producer_id=7)
    log.put(b"a", b"1")
    log.roll()
    log.log.marker(ControlType.ABORT, producer_id=7)
    log.put(b"b", b"1")
    log.copy()
    assert 2 == log.state.remote_end
    # Its producer goes on, so that no header of what was aborted has to stay.
    log.put(b"b", b"1", producer_id=7)
    log.log.marker(ControlType.COMMIT, producer_id=7)
    log.roll()
    log.put(b"c", b"1")
    return log


@pytest.fixture
def log(tmp_path: Path) -> CleanedDirectory:
    """Have k in the store, and its tombstone in the broker's log only."""
    log = CleanedDirectory(tmp_path)
    log.put_segment((b"k", b"1"), (b"a", b"1"))
    log.copy()
    assert 2 == log.state.remote_end
    log.put_segment((b"k", None), (b"b", b"1"))
    return log


def drop_deletes(log: CleanedDirectory) -> None:
    """Let the broker clean until tombstones and markers are gone."""
    log.clean()
    log.clean()
    log.clock.advance(DAY_MS)
    log.clean()


def test_an_abort_is_known_by_its_marker_when_the_broker_has_removed_its_data(
    tmp_path: Path,
) -> None:
    log = with_aborted_data(tmp_path)
    log.clean()
    log.clean()
    assert (7, 0) not in [(e.producer_id, e.first_offset) for e in log.served().aborted]
    log.copy()
    assert [] == log.replaced
    assert {b"1"} == {record.value for record in log.exported().records()}
    log.tiered.clean(PARTITION, force=True)
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_an_abort_whose_marker_is_gone_replaces_what_is_stored(tmp_path: Path) -> None:
    log = with_aborted_data(tmp_path)
    drop_deletes(log)
    log.copy()
    assert [Doubt.TOO_LATE] == log.doubts
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_a_deleted_key_does_not_come_back_when_its_tombstone_was_dropped_before_the_copy(
    log: CleanedDirectory,
) -> None:
    drop_deletes(log)
    assert log.served().final_values() == {b"a": b"1", b"b": b"1"}
    log.copy()
    (done,) = log.replaced
    assert (0, 4) == (done.log_start, done.remote_end)
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()
    assert () == log.tiered.verify(PARTITION)


def test_a_tombstone_within_its_time_is_copied_as_ever(log: CleanedDirectory) -> None:
    log.clean()
    log.clock.advance(DAY_MS // 2)
    log.clean()
    log.copy()
    assert [] == log.replaced
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_what_replaces_is_clean_only_as_far_as_the_directory_is(log: CleanedDirectory) -> None:
    log.tiered.clean(PARTITION, force=True)
    assert 2 == log.state.first_dirty()
    drop_deletes(log)
    log.lose_checkpoint()
    log.copy()
    assert 1 == len(log.replaced)
    assert 0 == log.state.first_dirty()
    log.tiered.clean(PARTITION, force=True)
    assert 4 == log.state.first_dirty()
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_the_directorys_checkpoint_says_how_clean_what_replaces_is(log: CleanedDirectory) -> None:
    drop_deletes(log)
    log.copy()
    assert 4 == log.state.first_dirty()


def test_a_round_that_began_before_the_log_was_replaced_publishes_nothing(
    log: CleanedDirectory,
) -> None:
    before = log.state
    drop_deletes(log)
    log.lose_checkpoint()
    log.copy()
    with pytest.raises(ConflictError, match="not the one that was cleaned"):
        log.store.publish(
            PARTITION, "1" * 32, epoch=before.leader_epoch, cleaned_to=2, began=before
        )
    assert 0 == log.state.first_dirty()


def test_replaced_objects_wait_out_their_grace(log: CleanedDirectory) -> None:
    (before,) = log.state.routes
    drop_deletes(log)
    log.tiered.copy_directory(PARTITION, log.directory, grace_ms=HOUR_MS)
    (orphan,) = log.store.orphans(PARTITION)
    assert (before.segment_id, log.clock.now_ms() + HOUR_MS) == (
        orphan.segment.segment_id, orphan.not_before_ms,
    )  # fmt: skip


def test_a_directory_that_begins_above_the_store_cannot_replace_it(log: CleanedDirectory) -> None:
    drop_deletes(log)
    log.put_segment((b"d", b"1"))
    for path in retire_segments(LocalFiles(), log.directory, [0]):
        path.unlink()
    log.log.path(2).exists()
    before = log.state
    with pytest.raises((RefusedError, ConflictError)):
        log.copy()
    assert before.routes == log.state.routes


@pytest.mark.rotates(3)
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_replacement_that_fails_changes_nothing(tmp_path: Path, nth: int) -> None:
    objects = FaultyObjects(open_objects("memory://"))
    log = CleanedDirectory(tmp_path, objects=objects)
    log.put_segment((b"k", b"1"))
    log.copy()
    log.put_segment((b"k", None))
    drop_deletes(log)
    before = log.state
    objects.fail("close", nth)
    try:
        log.copy()
    except UnavailableError:
        assert (before.routes, before.publications) == (log.state.routes, log.state.publications)
    log.copy()
    assert {} == log.exported().final_values()


def test_a_store_of_which_nothing_is_remembered_goes_on_where_no_offset_is_missing(
    log: CleanedDirectory,
) -> None:
    log.forget_visits()
    log.copy()
    assert [] == log.replaced
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_a_store_of_which_nothing_is_remembered_is_replaced_where_offsets_are_missing(
    log: CleanedDirectory,
) -> None:
    log.put_segment((b"b", b"1"))
    log.clean()
    log.forget_visits()
    log.copy()
    assert [Doubt.NEVER_SEEN] == log.doubts
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_a_first_copy_that_was_interrupted_goes_on_with_what_it_has(tmp_path: Path) -> None:
    objects = FaultyObjects(open_objects("memory://"))
    log = CleanedDirectory(tmp_path, replace(COMPACT, segment_bytes=14), objects=objects)
    for key in (b"a", b"b", b"c"):
        log.put(key, b"0")
        log.put(key, b"1")
    assert 5 == log.log.active_base
    log.clean()
    objects.fail("close", 12)
    with pytest.raises(UnavailableError, match="away"):
        log.copy()
    begun = log.state.routes
    assert 0 < len(begun) < 5
    log.copy()
    assert [] == log.replaced
    assert begun == log.state.routes[: len(begun)]
    log.roll()
    log.copy()
    assert log.served().final_values() == log.exported().final_values()


def test_a_clock_that_went_back_is_not_believed(log: CleanedDirectory) -> None:
    drop_deletes(log)
    log.clock.advance(-2 * DAY_MS)
    log.copy()
    assert [Doubt.NEVER_SEEN] == log.doubts
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_a_retention_that_was_lowered_counts(log: CleanedDirectory) -> None:
    log.topic = replace(COMPACT, delete_retention_ms=HOUR_MS)
    log.clean()
    log.clock.advance(HOUR_MS)
    log.clean()
    log.tiered.copy_directory(
        PARTITION, log.directory, retention_ms=HOUR_MS, replaced=log.replaced.append
    )
    assert 1 == len(log.replaced)
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_an_unnamed_retention_is_known_by_the_horizons_it_left(log: CleanedDirectory) -> None:
    log.put_segment((b"z", None))
    log.topic = replace(COMPACT, delete_retention_ms=HOUR_MS)
    log.clean()
    log.clock.advance(HOUR_MS // 2)
    log.put_segment((b"z", b"1"), (b"later", None))
    log.clean()
    log.clock.advance(HOUR_MS // 2)
    log.clean()
    log.tiered.copy_directory(PARTITION, log.directory, replaced=log.replaced.append)
    assert [Doubt.EARLY_HORIZON] == log.doubts
    assert log.served().final_values() == {b"a": b"1", b"b": b"1", b"z": b"1"}
    log.put_segment((b"end", b"1"))
    log.copy()
    assert log.served().final_values() == log.exported().final_values()


def test_a_retention_of_nothing_is_within_no_time(tmp_path: Path) -> None:
    log = CleanedDirectory(tmp_path, replace(COMPACT, delete_retention_ms=0))
    log.put_segment((b"k", b"1"))
    log.copy()
    log.put_segment((b"k", None), (b"a", b"1"))
    log.clean()
    log.clean()
    log.copy()
    assert [Doubt.TOO_LATE] == log.doubts
    assert {b"a": b"1"} == log.exported().final_values()


def test_old_formats_are_not_taken_by_time(tmp_path: Path) -> None:
    log = CleanedDirectory(tmp_path)
    log.put_segment((b"k", b"1"), (b"a", b"1"))
    log.copy()
    for value in (None, b"1"):
        key = b"k" if value is None else b"b"
        record = Record(log.log.log_end, log.clock.now_ms(), key, value)
        log.log.add(encode_message_set([record], magic=1))
    log.roll()
    # What a cleaner leaves that does not convert: of each segment the second of its two batches.
    for base in (0, 2):
        path = log.log.path(base)
        data = path.read_bytes()
        path.write_bytes(data[next(iter(read_batches(data))).size_bytes :])
    log.copy()
    assert [Doubt.OLD_FORMAT] == log.doubts
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_a_copy_goes_on_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    log = CleanedDirectory(tmp_path)
    log.put(b"k", b"1")
    log.put(b"a", b"1")
    log.tiered.import_directory(PARTITION, log.directory, {}, replaced=log.replaced.append)
    assert (2, 0) == (log.state.remote_end, log.log.active_base)
    log.put_segment((b"k", None), (b"b", b"1"))
    log.clean()
    log.copy()
    assert [] == log.replaced
    drop_deletes(log)
    log.put_segment((b"b", b"2"))
    log.clean()
    log.copy()
    assert {b"a": b"1", b"b": b"2"} == log.exported().final_values()


def test_a_swap_of_the_store_and_a_replacement_do_not_meet(log: CleanedDirectory) -> None:
    before = log.state
    drop_deletes(log)
    log.copy()
    with pytest.raises(ConflictError):
        log.store.commit_replacement(
            PARTITION, "2" * 32, epoch=before.leader_epoch, instead_of=before.routes,
            routes=before.routes, made=[], lineage=before.lineage, cleaned_to=None, grace_ms=0,
        )  # fmt: skip


def test_only_so_many_directories_are_remembered(log: CleanedDirectory) -> None:
    epoch = log.state.leader_epoch
    for number in range(2 * DIRECTORIES_MAX):
        log.store.remember(
            PARTITION, epoch=epoch, directory=f"{number:064d}", visits=Visits((), number, number)
        )
    known = [log.store.visits(PARTITION, f"{n:064d}").cleaned_to for n in range(16)]
    assert [None] * 9 + list(range(9, 16)) == known
    assert log.store.visits(PARTITION, log.visits_id()).entries


def test_another_replica_shows_nothing_of_this_ones_cleaning(
    log: CleanedDirectory, tmp_path: Path
) -> None:
    drop_deletes(log)
    log.clock.advance(-DAY_MS)  # In time by what is known of the first directory.
    other = tmp_path / "other" / str(PARTITION)
    other.parent.mkdir()
    log.directory.rename(other)
    log.tiered.copy_directory(PARTITION, other, replaced=log.replaced.append)
    assert [Doubt.NEVER_SEEN] == log.doubts
    assert {b"a": b"1", b"b": b"1"} == log.exported().final_values()


def test_by_timestamp_a_broker_that_cleans_is_refused(tmp_path: Path) -> None:
    ranked = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    log = CleanedDirectory(tmp_path, stored_as=ranked)
    log.put_segment((b"k", b"1"))
    log.copy()
    log.put_segment((b"k", b"2"), (b"k", b"3"))
    log.clean()
    with pytest.raises(RefusedError, match="cleans by offset"):
        log.copy()
    assert 1 == log.state.remote_end


def test_by_timestamp_a_broker_that_was_seen_to_clean_is_refused_before_anything_is_lost(
    tmp_path: Path,
) -> None:
    ranked = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    log = CleanedDirectory(tmp_path, stored_as=ranked)
    log.put_segment((b"k", b"1"), (b"k", b"1"))
    log.copy()
    log.clean()
    log.put_segment((b"k", b"2"))
    with pytest.raises(RefusedError, match="cleans by offset"):
        log.copy()


def test_segments_below_the_first_epoch_that_is_known_are_its(tmp_path: Path) -> None:
    """DeleteRecords at 3 took the older epoch out of the checkpoint, and no segment yet."""
    log = CleanedDirectory(tmp_path)
    for value in (b"1", b"2", b"3", b"4"):
        log.put(b"k", value)
        log.put(b"a", value)
    log.roll()
    log.put(b"b", b"1")
    path = log.directory / LEADER_EPOCH_CHECKPOINT
    path.write_bytes(leader_epoch.encode((LeaderEpoch(1, 3),)))
    log.copy()
    assert LeaderEpoch(1, 0) == log.state.lineage[0]
    log.tiered.own(PARTITION, takes_over=True)
    log.tiered.clean(PARTITION, force=True)
    assert {b"k": b"4", b"a": b"4"} == log.exported().final_values()


def write_watermark(log: CleanedDirectory, offset: int) -> None:
    """Be a broker that writes its high watermark down now."""
    update_checkpoint(
        LocalFiles(), log.directory.parent, REPLICATION_CHECKPOINT, {PARTITION: offset}
    )
    path = log.directory.parent / REPLICATION_CHECKPOINT
    os.utime(path, ns=(log.clock.now_ms() * 10**6,) * 2)


def test_what_was_merged_across_an_older_high_watermark_is_not_taken_for_uncleaned(
    log: CleanedDirectory,
) -> None:
    """The segment with the watermark began above the store's end before it was merged."""
    log.clean()
    log.put_segment((b"c", b"1"), (b"d", b"1"))
    log.clean()
    log.put(b"e", b"1")
    log.clock.advance(8 * HOUR_MS)
    write_watermark(log, 4)
    log.copy()
    assert 2 == log.state.remote_end
    log.clock.advance(17 * HOUR_MS)
    write_watermark(log, log.log.log_end)
    log.clean()
    log.copy()
    assert [Doubt.TOO_LATE] == log.doubts
    assert b"k" not in log.exported().final_values()


def test_what_was_merged_across_the_high_watermark_has_time_until_its_first_horizon(
    log: CleanedDirectory,
) -> None:
    """The copy in between could take nothing, and has seen that nothing is gone yet."""
    log.put_segment((b"c", b"1"), (b"c", b"2"))
    log.clock.advance(8 * HOUR_MS)
    log.clean()
    write_watermark(log, 5)
    log.copy()
    assert 2 == log.state.remote_end
    log.clock.advance(15 * HOUR_MS)
    write_watermark(log, log.log.log_end)
    log.clean()
    log.copy()
    assert [] == log.replaced
    assert 6 == log.state.remote_end
    assert {b"a": b"1", b"b": b"1", b"c": b"2"} == log.exported().final_values()


def test_what_was_merged_across_the_high_watermark_is_taken_up_to_it_before_its_time_is_over(
    log: CleanedDirectory,
) -> None:
    """A broker that merges before each of its copies would be replaced, healthy as it is."""
    log.put_segment((b"c", b"1"), (b"c", b"2"))
    for ends in (3, 5, 7):
        log.clock.advance(11 * HOUR_MS)
        log.put_segment((b"d", b"1"), (b"d", b"2"))
        log.clean()
        write_watermark(log, ends)
        log.copy()
        assert ends == log.state.remote_end
    assert [] == log.replaced
    log.clock.advance(DAY_MS)
    log.clean()
    write_watermark(log, log.log.log_end)
    log.copy()
    assert b"k" not in log.exported().final_values()
    assert () == log.tiered.verify(PARTITION)


def test_a_copy_before_its_time_is_over_takes_replicated_records_after_whole_segments_too(
    log: CleanedDirectory,
) -> None:
    for value in (b"1", b"2", b"3"):
        log.put(b"c", value)
    log.roll()
    log.clock.advance(11 * HOUR_MS)
    write_watermark(log, 6)
    log.copy()
    assert 6 == log.state.remote_end


def test_a_segment_that_moves_while_it_is_asked_since_when_it_is_uncleaned_is_asked_again(
    log: CleanedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the copy would be remembered as one that reached nothing, and the next one be late."""
    log.put_segment((b"c", b"1"), (b"c", b"2"))
    log.clock.advance(8 * HOUR_MS)
    write_watermark(log, 5)
    asked: list[int] = []

    def read(offset: int, *args: Any) -> RangeContent | None:
        asked.append(offset)
        if len(asked) == 1:
            log.clean()
            raise MovedError("a segment was replaced")
        return read_rest(offset, *args)

    monkeypatch.setattr("keeplast.tier.copy.importing.read_rest", read)
    log.copy()
    end = log.state.remote_end
    assert [end, end] == asked
    known = log.store.visits(PARTITION, log.visits_id())
    assert log.clock.now_ms() - HOUR_MS < max(
        visit.at_ms for visit in known.entries if visit.uncleaned_from <= end
    )


def test_a_high_watermark_that_is_written_while_a_copy_looks_dates_nothing(
    log: CleanedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cleaned below it by then may lie above the one that the copy goes by."""
    write_watermark(log, 3)
    written_ms = log.clock.now_ms()
    log.clock.advance(5 * HOUR_MS)

    def look(*args: Any) -> Survey:
        found = survey_partition(*args)
        write_watermark(log, 4)
        return found

    monkeypatch.setattr("keeplast.store.intake.survey_partition", look)
    log.copy()
    assert 2 == log.state.remote_end
    known = log.store.visits(PARTITION, directory_id(log.directory, LocalFiles()))
    assert max(v.at_ms for v in known.entries if v.uncleaned_from <= 2) <= written_ms


def test_a_raised_retention_does_not_count_for_what_was_cleaned_before_it(tmp_path: Path) -> None:
    """A tombstone was dated by the lower one, since the high watermark was last written down."""
    topic = replace(COMPACT, segment_bytes=160)
    log = CleanedDirectory(tmp_path, replace(topic, delete_retention_ms=HOUR_MS), stored_as=topic)
    log.put_segment((b"k", b"1"), (b"a", b"1"))
    log.copy(retention_ms=HOUR_MS)
    log.put_segment((b"b", b"1"), (b"c", b"1"))
    log.put_segment((b"k", None), (b"d", b"1"))
    log.put(b"e", b"1")
    log.clock.advance(10 * 60 * SECOND_MS)
    log.clean()
    write_watermark(log, 3)
    log.copy(retention_ms=DAY_MS)
    assert 2 == log.state.remote_end
    log.clock.advance(HOUR_MS)
    write_watermark(log, log.log.log_end)
    log.clean()
    assert b"k" not in {record.key for record in log.served().records()}
    log.copy(retention_ms=DAY_MS)
    assert [Doubt.TOO_LATE] == log.doubts
    assert b"k" not in log.exported().final_values()


def test_a_healthy_broker_is_neither_refused_nor_replaced(tmp_path: Path) -> None:
    dice = random.Random(11)
    log = CleanedDirectory(tmp_path)
    watermark = REPLICATION_CHECKPOINT
    for step in range(60):
        for _ in range(dice.randrange(0, 6)):
            key = b"%d" % dice.randrange(12)
            log.put(key, None if dice.randrange(3) == 0 else b"%d" % step)
        if dice.randrange(2):
            log.roll()
        update_checkpoint(
            LocalFiles(), log.directory.parent, watermark, {PARTITION: log.log.log_end}
        )
        if step % 4 == 3:  # Every half of delete.retention.ms, whatever was cleaned.
            log.copy()
        log.clock.advance(DAY_MS // 8)
        if log.log.active_base and dice.randrange(3):
            log.clean()
    log.roll()
    update_checkpoint(LocalFiles(), log.directory.parent, watermark, {PARTITION: log.log.log_end})
    log.copy()
    assert [] == log.replaced
    assert log.served().final_values() == log.exported().final_values()
