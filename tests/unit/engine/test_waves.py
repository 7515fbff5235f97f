"""A round in several waves, where the disk has no room for all of it at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keeplast.engine.report import Stats
from keeplast.engine.room import RESERVE_BYTES_MIN
from keeplast.errors import RefusedError
from keeplast.model.topic_config import TopicConfig
from tests.support.mixed_log import segments, write_mixed_log
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import (
    COMPACT,
    SMALL_SEGMENTS,
    bases_of,
    clean,
    clean_request,
    coordinator,
    last_round,
)
from tests.support.replay import tree

LARGEST = max(len(data) for data in segments().values())
UNTIMED = {
    "index_seconds": 0.0, "clean_seconds": 0.0, "total_seconds": 0.0, "removal_seconds": 0.0,
    "peak_rss_bytes": 0,
}  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def log_times(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.log")}


def cleaned_with_room(
    directory: Path, room: int, topic: TopicConfig
) -> tuple[Stats, ObservedFiles]:
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room)
    report = clean(clean_request(directory, topic=topic), files=files)
    assert report.stats is not None
    return replace(report.stats, **UNTIMED), files  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [SMALL_SEGMENTS, replace(COMPACT, segment_bytes=700)])
@pytest.mark.parametrize("room", [700, 1000, 1500])
def test_several_waves_leave_the_same_bytes_as_one(
    tmp_path: Path, room: int, topic: TopicConfig
) -> None:
    at_once, in_waves = (write_mixed_log(tmp_path / name) for name in ("once", "waves"))
    expected, one_wave = cleaned_with_room(at_once, 1 << 30, topic)
    actual, several = cleaned_with_room(in_waves, room, topic)
    assert contents(at_once) == contents(in_waves)
    assert contents(at_once.parent) == contents(in_waves.parent)
    assert log_times(at_once) == log_times(in_waves)
    assert expected == actual
    assert one_wave.waves() == 1
    assert several.waves() > 1


def test_replaced_files_are_gone_before_the_next_wave_is_staged(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    _, files = cleaned_with_room(directory, 700, SMALL_SEGMENTS)
    staged = removed = 0
    for operation in files.operations:
        verb, name, *_ = operation.split()
        if verb == "open" and ".log." in name:
            staged += 1
        if verb == "unlink" and name.endswith(".log.deleted"):
            removed += 1
        if verb == "open":
            assert staged - removed <= 3
    assert staged == removed > 3


def test_checkpoint_is_written_once_and_after_everything(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    _, files = cleaned_with_room(directory, 700, SMALL_SEGMENTS)
    writes = [i for i, operation in enumerate(files.operations) if operation.startswith("write")]
    assert len(writes) == 1
    renames = [i for i, operation in enumerate(files.operations) if operation.startswith("rename")]
    assert max(renames) < writes[0]


def test_no_room_for_even_one_group_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    before = tree(directory)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + LARGEST - 1)
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    report = last_round(coordinator(files=files).clean(request))
    assert isinstance(report.failure, RefusedError)
    assert before == tree(directory)
    assert bases_of(directory) == sorted(segments())


def test_room_for_exactly_the_largest_group_is_enough(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    stats, _ = cleaned_with_room(directory, LARGEST, SMALL_SEGMENTS)
    assert stats.messages_read > 0
