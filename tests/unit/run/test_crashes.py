"""The power goes in the middle of ``clean``: whatever is found afterwards is a whole log.

X42 and X43: the next call finishes or undoes what was begun and then leaves what an uninterrupted
one leaves. Until then a reader of what a broker's start-up makes of the directory misses nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.format.record import Record
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.recovery import recover_swap
from keeplast.model.topic_config import TopicConfig
from keeplast.run.foresight import RESERVE_BYTES_MIN
from tests.support.mixed_log import write_mixed_log
from tests.support.observed_files import Crash, ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import (
    COMPACT,
    PARTITION,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    coordinator,
    last_round,
)
from tests.support.reader import read_partition
from tests.support.turns import Turn

LARGE_ROOM = 1 << 30
MERGING = replace(COMPACT, segment_bytes=700)


@pytest.mark.parametrize("room", [LARGE_ROOM, 700], ids=["one wave", "waves"])
@pytest.mark.parametrize("topic", [MERGING, SMALL_SEGMENTS], ids=["merging", "one by one"])
def test_crash_before_every_operation(
    tmp_path: Path, topic: TopicConfig, room: int, turn: Turn
) -> None:
    whole = write_mixed_log(tmp_path / "whole")
    original = read_partition(whole)
    offsets = range(original.end_offset + 1)
    expected_state = original.final_values_from(offsets)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN + room)
    clean(clean_request(whole, topic=topic), files=files)

    for crash_at in (n for n in range(len(files.operations)) if turn.takes(n, 4)):
        directory = write_mixed_log(tmp_path / str(crash_at))
        dying = ObservedFiles(crash_at=crash_at, free_bytes=RESERVE_BYTES_MIN + room)
        with pytest.raises(Crash):
            clean(clean_request(directory, topic=topic), files=dying)

        restarted = tmp_path / f"{crash_at}-restarted" / directory.name
        shutil.copytree(directory, restarted)
        recover_swap(UnsyncedFiles(), restarted)
        found = read_partition(restarted)
        assert expected_state == found.final_values_from(offsets), crash_at

        checkpoint = read_checkpoint(UnsyncedFiles(), directory.parent, CLEANER_CHECKPOINT)
        if not checkpoint:
            clean(clean_request(directory, topic=topic))
        else:
            assert checkpoint == {PARTITION: 60}
            recover_swap(UnsyncedFiles(), directory)
        assert _contents(whole) == _contents(directory), crash_at
        shutil.rmtree(directory.parent)
        shutil.rmtree(restarted.parent)


def _contents(directory: Path) -> tuple[dict[int, Record], set[int]]:
    """Return what readers are given, and the offsets of all batches.

    Not the bytes: of a transaction whose data the first attempt removed, the second one finds an
    unneeded marker and gives it its horizon a round earlier, as in Kafka.
    """
    batches = read_partition(directory).batches
    records = [record for batch in batches if not batch.is_control for record in batch.records()]
    return {record.offset: record for record in records}, {b.last_offset for b in batches}


def test_segment_that_was_left_alone_survives_between_two_outputs(
    tmp_path: Path, turn: Turn
) -> None:
    """A start-up removes everything between the first and the last completed swap."""
    whole = write_mixed_log(tmp_path / "whole")
    files = ObservedFiles()
    clean(clean_request(whole, topic=SMALL_SEGMENTS), files=files)
    first_swap = next(i for i, op in enumerate(files.operations) if op.endswith(".swap"))
    for crash_at in (n for n in range(first_swap, len(files.operations)) if turn.takes(n, 4)):
        directory = write_mixed_log(tmp_path / str(crash_at))
        with pytest.raises(Crash):
            clean(
                clean_request(directory, topic=SMALL_SEGMENTS),
                files=ObservedFiles(crash_at=crash_at),
            )
        recover_swap(UnsyncedFiles(), directory)
        assert (directory / f"{20:020d}.log").exists(), crash_at


class FailingFiles(ObservedFiles):
    """Fails one operation with an error of the system and goes on."""

    def __init__(self, fail_at: int) -> None:
        """Count from 0, like a crash."""
        super().__init__()
        self._fail_at = fail_at

    def _note(self, operation: str) -> None:
        super()._note(operation)
        if len(self.operations) == self._fail_at + 1:
            raise OSError(5, "Input/output error")


def test_disk_error_at_every_operation_is_reported_and_overcome(tmp_path: Path, turn: Turn) -> None:
    """The next call finishes or undoes what the error left, as after a crash."""
    request = clean_request(write_mixed_log(tmp_path / "whole"), topic=SMALL_SEGMENTS)
    files = ObservedFiles()
    clean(request, files=files)
    expected = _contents(request.partitions[0].path)
    for fail_at in (n for n in range(len(files.operations)) if turn.takes(n, 4)):
        directory = write_mixed_log(tmp_path / str(fail_at))
        original = read_partition(directory).final_values()
        failing = FailingFiles(fail_at)
        report = last_round(
            coordinator(files=failing).clean(clean_request(directory, topic=SMALL_SEGMENTS))
        )
        # What was replaced and cannot be removed is a warning: the log is clean all the same.
        if not failing.operations[fail_at].startswith("unlink"):
            assert isinstance(report.failure, OSError), fail_at
        recover_swap(UnsyncedFiles(), directory)
        assert original == read_partition(directory).final_values()
        clean(clean_request(directory, topic=SMALL_SEGMENTS))
        assert expected == _contents(directory)
