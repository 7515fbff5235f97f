"""Leader epochs, names and lines around a log start."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.format.filename import LOG_START_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.log.truncation import retire_below, retire_segments, settle_log_start, trim_epochs
from keeplast.model.partition import TopicPartition

FILES = LocalFiles()
PARTITION = TopicPartition("t", 0)
OTHER = TopicPartition("u", 3)


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [
        (-1, [(1, 0), (2, 10), (5, 20)]),
        (0, [(1, 0), (2, 10), (5, 20)]),
        (9, [(1, 9), (2, 10), (5, 20)]),
        (10, [(2, 10), (5, 20)]),
        (15, [(2, 15), (5, 20)]),
        (99, [(5, 99)]),
    ],
)
def test_the_epoch_under_way_begins_at_the_log_start(
    log_start: int, expected: list[tuple[int, int]]
) -> None:
    epochs = [LeaderEpoch(1, 0), LeaderEpoch(2, 10), LeaderEpoch(5, 20)]
    found = trim_epochs(epochs, log_start)
    assert expected == [(each.epoch, each.start_offset) for each in found]


def test_without_epochs_there_is_none() -> None:
    assert () == trim_epochs([], 5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Files of segments 0, 5 and 10, some of them without the rest, and others."""
    path = tmp_path / str(PARTITION)
    path.mkdir()
    for base, kinds in ((0, ("log", "index")), (5, ("snapshot", "txnindex")), (10, ("log",))):
        for kind in kinds:
            (path / f"{base:020d}.{kind}").touch()
    (path / "leader-epoch-checkpoint").touch()
    (path / "notes.txt").touch()
    return path


def test_everything_below_a_base_goes_with_or_without_its_segment(directory: Path) -> None:
    retired = retire_below(FILES, directory, 10)
    assert [
        f"{0:020d}.index.deleted", f"{0:020d}.log.deleted",
        f"{5:020d}.snapshot.deleted", f"{5:020d}.txnindex.deleted",
    ] == [path.name for path in retired]  # fmt: skip
    assert all(path.exists() for path in retired)
    kept = {f"{10:020d}.log", "leader-epoch-checkpoint", "notes.txt"}
    assert kept == {path.name for path in directory.iterdir()} - {path.name for path in retired}
    assert [] == retire_below(FILES, directory, 10)


def test_named_segments_go_wherever_they_lie(directory: Path) -> None:
    retired = retire_segments(FILES, directory, [10])
    assert [f"{10:020d}.log.deleted"] == [path.name for path in retired]


@pytest.mark.parametrize(("first_base", "line"), [(6, 7), (7, None), (8, None)])
def test_a_line_stays_only_where_the_first_segment_says_less(
    directory: Path, first_base: int, line: int | None
) -> None:
    root = directory.parent
    update_checkpoint(FILES, root, LOG_START_CHECKPOINT, {PARTITION: 7, OTHER: 1})
    settle_log_start(FILES, directory, PARTITION, first_base)
    found = read_checkpoint(FILES, root, LOG_START_CHECKPOINT)
    assert (line, 1) == (found.get(PARTITION), found[OTHER])
