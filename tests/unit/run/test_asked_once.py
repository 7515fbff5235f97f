"""What a call knows of a log already it does not ask the disk again; what it must know it asks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import RefusedError
from keeplast.format.filename import REPLICATION_CHECKPOINT
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.model.partition import TopicPartition
from keeplast.run.coordinator import Coordinator
from keeplast.run.target import check_places
from keeplast.survey import survey
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.heard_calls import hear
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    clean_request,
    coordinator,
    last_round,
    one,
    records_of,
    write_partition,
    write_segment,
)


class _Counting(UnsyncedFiles):
    """Counts what is opened to be read, and what is listed, by name."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()

    def open_read(self, path: Path) -> ReadHandle:
        """Count an opening."""
        self.opened[path.name] += 1
        return super().open_read(path)

    def listdir(self, path: Path) -> list[str]:
        """Count a listing."""
        self.listed[path.name] += 1
        return super().listdir(path)


def _log(root: Path) -> Path:
    return write_partition(root, {0: one(0, b"k") + one(1, b"k"), 2: one(2, b"k"), 3: b""})


def _requests(directory: Path) -> tuple[CleanRequest, CleanRequest]:
    request = clean_request(directory)
    return request, replace(request, retention=True)


def test_expiry_after_a_round_opens_no_closed_segment_again(tmp_path: Path) -> None:
    opened, listed = [], []
    for number in range(2):
        directory = _log(tmp_path / str(number))
        files = _Counting()
        report = coordinator(files=files).clean(_requests(directory)[number])
        assert last_round(report).failure is None
        opened.append(files.opened[f"{0:020d}.log"])
        listed.append(files.listed[directory.name])
    # What it is, and whether a crash has left something below its start.
    assert [opened[0], listed[0] + 2] == [opened[1], listed[1]]


def test_expiry_by_itself_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    directory = _log(tmp_path)
    (directory / f"{0:020d}.vectorindex").write_bytes(b"")
    (partition,) = coordinator().expire(_requests(directory)[1]).partitions
    assert partition.expiry is not None
    assert isinstance(partition.expiry.failure, RefusedError)


def test_segments_that_retention_drops_after_a_round_go_and_the_log_is_settled(
    tmp_path: Path,
) -> None:
    directory = _log(tmp_path)
    request = replace(_requests(directory)[1], log_start_offset=2)
    report = coordinator().clean(request)
    assert last_round(report).failure is None
    assert [2] == [record.offset for record in records_of(directory)]


def test_a_plan_chooses_a_sample_and_reads_checkpoints_once_and_rounds_of_threads_choose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[object] = []

    hear(monkeypatch, survey, "choose_sample", lambda *given: chosen.append(given))
    directory = _log(tmp_path)
    (tmp_path / REPLICATION_CHECKPOINT).write_bytes(b"0\n0\n")
    files = _Counting()
    asking: Coordinator = coordinator(files=files)
    assert last_round(asking.plan(_requests(directory)[1])).estimate is not None
    assert [1, 1] == [len(chosen), files.opened[REPLICATION_CHECKPOINT]]
    assert last_round(asking.clean(clean_request(directory))).failure is None
    assert 1 == len(chosen)


def _named(*places: Path) -> CleanRequest:
    given = clean_request(places[0])
    return replace(
        given,
        partitions=tuple(
            PartitionRequest(
                TopicPartition("t", number), place, given.partitions[0].topic,
                given.partitions[0].cleaner,
            )
            for number, place in enumerate(places)
        ),
    )  # fmt: skip


def test_places_that_are_one_by_a_link_are_refused(tmp_path: Path) -> None:
    directory = _log(tmp_path / "data")
    write_segment(tmp_path / "data" / "t-1", 0, b"")
    (tmp_path / "again").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "t-2").symlink_to(directory)
    check_places(_named(directory, tmp_path / "data" / "t-1"), LocalFiles())
    for other in (
        directory,
        tmp_path / "again" / directory.name,
        tmp_path / "data" / "t-2",
        tmp_path / "data" / "t-1" / ".." / directory.name,
    ):
        with pytest.raises(RefusedError, match="same place"):
            check_places(_named(directory, other), LocalFiles())
