"""Kafka's LogLoaderTest (cleaning.md section 8.6, LL): what a start finds, and what it makes of it.

Where a broker repairs while it opens a log, keeplast reads around what is wrong and repairs in
``clean``, under the lock; the README of this folder has the list.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format import producer_snapshot
from keeplast.format.filename import INDEX, LOG, TXN_INDEX, segment_file
from keeplast.format.offset_index import decode as decode_index
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition, load_aborted
from keeplast.log.recovery import recover_swap
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.model.topic_config import TopicConfig
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    NOW_MS,
    SMALL_SEGMENTS,
    bases_of,
    clean_at,
    one,
    records_of,
    write_partition,
    write_segment,
)
from tests.support.reader import read_partition

ROOMY = TopicConfig()
FAR = RELATIVE_OFFSET_MAX + 1
FIRST = one(10, b"a", b"1") + one(11, b"b", b"1")
SECOND = one(12 + FAR, b"c", b"1") + one(13 + FAR, b"d", b"1")
VALUES = {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1", b"x": b"1", b"y": b"1"}


def overflowed(root: Path, *, has_source: bool = True) -> Path:
    """A log whose middle segment, at 10, has offsets that are too far apart for one segment."""
    segments = {0: one(0, b"x", b"1"), 10: FIRST + SECOND, 20 + FAR: one(20 + FAR, b"y", b"1")}
    directory = write_partition(root, segments)
    if not has_source:
        for path in directory.glob(f"{10:020d}.*"):
            path.unlink()
    return directory


def stage(directory: Path, base: int, stage: str, data: bytes) -> None:
    aside = directory.parent / "aside"
    write_segment(aside, base, data)
    for path in aside.iterdir():
        path.rename(directory / (path.name + stage))


def recovered(directory: Path) -> Path:
    recover_swap(UnsyncedFiles(), directory)
    return directory


def test_ll01_index_files_without_a_log_are_no_segment(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"a"), 2: b""})
    bogus = [directory / f"{5:020d}{kind}" for kind in (".index", ".timeindex", ".txnindex")]
    for path in bogus:
        path.write_bytes(b"\x00" * 24)
    assert [s.base_offset for s in list_partition(directory, LocalFiles()).segments] == [0, 1, 2]
    clean_at(directory, topic=SMALL_SEGMENTS)
    assert [r.offset for r in records_of(directory)] == [1]
    # Like a broker, what recovers a log removes them.
    (directory / f"{7:020d}.log.deleted").write_bytes(b"")
    recovered(directory)
    assert [path for path in bogus if path.exists()] == []


def test_ll02_what_was_to_be_deleted_is_deleted(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b"), 2: one(2, b"c")})
    for base in (0, 1):
        for path in directory.glob(f"{base:020d}.*"):
            path.rename(directory / f"{path.name}.deleted")
    recovered(directory)
    assert bases_of(directory) == [2]
    assert {".cleaned", ".swap", ".deleted"}.isdisjoint(p.suffix for p in directory.iterdir())


def test_ll03_a_segment_whose_offsets_overflow_is_split_once(tmp_path: Path) -> None:
    directory = overflowed(tmp_path)
    clean_at(directory, topic=SMALL_SEGMENTS)
    split = bases_of(directory)
    assert [0, 10, 12 + FAR, 20 + FAR] == split
    assert VALUES == read_partition(directory).final_values()
    clean_at(directory, topic=SMALL_SEGMENTS)
    assert split == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()


def test_ll04_split_that_ended_before_any_output_was_complete(tmp_path: Path) -> None:
    directory = overflowed(tmp_path)
    stage(directory, 10, ".cleaned", FIRST[:-5])
    stage(directory, 12 + FAR, ".cleaned", SECOND[:-5])
    recovered(directory)
    assert [0, 10, 20 + FAR] == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()
    clean_at(directory, topic=SMALL_SEGMENTS)
    assert [0, 10, 12 + FAR, 20 + FAR] == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()


def test_ll05_split_with_only_its_last_output_complete_is_undone(tmp_path: Path) -> None:
    directory = overflowed(tmp_path)
    stage(directory, 10, ".cleaned", FIRST)
    stage(directory, 12 + FAR, ".swap", SECOND)
    recovered(directory)
    assert [0, 10, 20 + FAR] == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()


@pytest.mark.parametrize("has_source", [True, False], ids=["ll06 source there", "ll07 source gone"])
def test_ll06_ll07_split_with_all_outputs_complete_is_finished(
    tmp_path: Path, has_source: bool
) -> None:
    directory = overflowed(tmp_path, has_source=has_source)
    if has_source:
        # Whatever it looks like: nothing of it is needed any more.
        source = directory / segment_file(10, LOG)
        source.write_bytes(source.read_bytes()[:-7])
    stage(directory, 10, ".swap", FIRST)
    stage(directory, 12 + FAR, ".swap", SECOND)
    recovered(directory)
    assert [0, 10, 12 + FAR, 20 + FAR] == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()


def test_ll08_split_with_one_output_still_to_rename_is_finished(tmp_path: Path) -> None:
    directory = overflowed(tmp_path, has_source=False)
    write_segment(directory, 10, FIRST)
    stage(directory, 12 + FAR, ".swap", SECOND)
    recovered(directory)
    assert [0, 10, 12 + FAR, 20 + FAR] == bases_of(directory)
    assert VALUES == read_partition(directory).final_values()


@pytest.mark.parametrize("records", [1, 3], ids=["one record", "ll09 several records"])
def test_ll09_offsets_that_cleaning_has_thinned_out_roll_segments(
    tmp_path: Path, records: int
) -> None:
    topic = replace(ROOMY, index_interval_bytes=1)
    offsets = [0, 2**31 + 1, 2**32 + 2, 2**32 + 9]
    with LogAppender(tmp_path, LocalFiles(), topic=topic) as log:
        for offset in offsets:
            log.append([NewRecord(b"k", b"v", NOW_MS)] * records, base_offset=offset)
    assert [0, 2**31 + 1, 2**32 + 2] == bases_of(tmp_path)
    for base in bases_of(tmp_path):
        entries = decode_index((tmp_path / segment_file(base, INDEX)).read_bytes())
        assert all(0 <= relative <= RELATIVE_OFFSET_MAX for relative, _ in entries.tolist())


def test_ll10_a_stray_snapshot_changes_nothing(tmp_path: Path) -> None:
    with LogAppender(tmp_path, LocalFiles(), topic=ROOMY) as log:
        for i in range(4):
            log.append(
                [NewRecord(b"k", b"v", NOW_MS)],
                producer_id=i % 2, producer_epoch=0, base_sequence=i // 2,
            )  # fmt: skip
            if i != 2:
                log.roll()
    expected = (tmp_path / f"{4:020d}.snapshot").read_bytes()
    stray = ProducerEntry(0, 0, 1, 2, 0, NOW_MS, -1, -1)
    (tmp_path / f"{3:020d}.snapshot").write_bytes(producer_snapshot.encode([stray]))
    with LogAppender(tmp_path, LocalFiles(), topic=ROOMY) as log:
        assert log.log_end_offset == 4
    assert expected == (tmp_path / f"{4:020d}.snapshot").read_bytes()


def test_ll12_transaction_index_follows_from_the_log_after_a_crash(tmp_path: Path) -> None:
    """Aborted transactions over several segments; the active segment's index never got written."""
    whole, crashed = tmp_path / "whole", tmp_path / "crashed"

    def send(log: LogAppender, producer_id: int, sequence: int) -> None:
        log.append(
            [NewRecord(b"k%d" % producer_id, b"v", NOW_MS)] * 2,
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            is_transactional=True,
        )  # fmt: skip

    def fill(log: LogAppender) -> None:
        send(log, 1, 0)
        send(log, 2, 0)
        log.roll()
        log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS)
        send(log, 2, 2)
        log.roll()
        log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0, timestamp_ms=NOW_MS)
        send(log, 3, 0)
        log.append_marker(ControlType.COMMIT, producer_id=3, producer_epoch=0, timestamp_ms=NOW_MS)

    with LogAppender(whole, LocalFiles(), topic=ROOMY) as log:
        fill(log)

    def fill_and_crash() -> None:
        with LogAppender(crashed, LocalFiles(), topic=ROOMY) as log:
            fill(log)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fill_and_crash()
    active = list_partition(crashed, LocalFiles()).active
    assert load_aborted(active, LocalFiles()) == ()
    LogAppender(crashed, LocalFiles(), topic=ROOMY).close()
    for base in bases_of(whole):
        path = segment_file(base, TXN_INDEX)
        assert (whole / path).exists() == (crashed / path).exists()
        if (whole / path).exists():
            assert (whole / path).read_bytes() == (crashed / path).read_bytes()
    assert read_partition(whole).final_values() == read_partition(crashed).final_values()
    assert list(read_partition(crashed).final_values()) == [b"k3"]
