"""What a start-up makes of staged files: X50 to X52, and formats.md 3.5 U1 to U4."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import CorruptError
from keeplast.log.recovery import recover_swap
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import one, write_partition, write_segment, write_snapshot

INDEXES = (".index", ".timeindex")


def recovered(directory: Path) -> tuple[str, ...]:
    return recover_swap(UnsyncedFiles(), directory)


def names(directory: Path) -> list[str]:
    """Return the files, numbers without their zeros."""
    return sorted(
        f"{int(path.name[:20])}{path.name[20:]}"
        for path in directory.iterdir()
        if path.name[:20].isdigit()
    )


def stage(directory: Path, base: int, stage: str, data: bytes, *, only: str | None = None) -> None:
    """Write a segment's files with a stage behind their names."""
    aside = directory.parent / "aside"
    write_segment(aside, base, data)
    for path in aside.iterdir():
        if only is None or path.suffix == only:
            path.rename(directory / (path.name + stage))
        else:
            path.unlink()


def segment(base: int, *suffixes: str) -> list[str]:
    return [f"{base}{suffix}" for suffix in (".log", *INDEXES, *suffixes)]


def ten(base: int) -> bytes:
    return b"".join(one(base + i, b"k%d" % i) for i in range(10))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_partition(tmp_path, {0: ten(0), 10: ten(10), 20: ten(20)})


def test_directory_without_staged_files_is_left_alone(directory: Path) -> None:
    before = names(directory)
    assert recovered(directory) == ()
    assert before == names(directory)


def test_x50_completed_swap_removes_what_it_covers(directory: Path) -> None:
    for offset in (10, 20):
        write_snapshot(directory, offset)
    stage(directory, 0, ".swap", one(3, b"a") + one(19, b"b"))
    recovered(directory)
    assert sorted(segment(0) + segment(20, ".snapshot")) == names(directory)
    assert one(3, b"a") + one(19, b"b") == (directory / f"{0:020d}.log").read_bytes()


def test_x51_only_a_time_index_is_left_to_swap(directory: Path) -> None:
    (directory / f"{0:020d}.timeindex").rename(directory / f"{0:020d}.timeindex.swap")
    before = names(directory)
    recovered(directory)
    assert [name.removesuffix(".swap") for name in before] == names(directory)


def test_x52_swap_and_cleaned_of_one_base_are_both_removed(directory: Path) -> None:
    before = names(directory)
    stage(directory, 5, ".swap", ten(5), only=".log")
    stage(directory, 5, ".cleaned", ten(5), only=".index")
    recovered(directory)
    assert before == names(directory)


def test_swap_below_the_least_cleaned_is_complete(directory: Path) -> None:
    stage(directory, 0, ".swap", one(9, b"a"))
    stage(directory, 10, ".cleaned", one(19, b"a"))
    stage(directory, 20, ".swap", one(29, b"a"))
    recovered(directory)
    assert sorted(segment(0) + segment(10) + segment(20)) == names(directory)
    assert one(9, b"a") == (directory / f"{0:020d}.log").read_bytes()
    assert ten(20) == (directory / f"{20:020d}.log").read_bytes()


def test_deleted_files_go_ours_and_kafkas(directory: Path) -> None:
    before = names(directory)
    for name in (f"{0:020d}.log.0a1b.deleted", f"{30:020d}.index.deleted"):
        (directory / name).write_bytes(b"")
    assert len(recovered(directory)) == 2
    assert before == names(directory)


def test_swap_without_a_record_replaces_only_its_own_files(directory: Path) -> None:
    """Its next offset is its base, so nothing is covered; what survives is dirty still."""
    stage(directory, 0, ".swap", b"")
    recovered(directory)
    assert sorted(segment(0) + segment(10) + segment(20)) == names(directory)
    assert (directory / f"{0:020d}.log").read_bytes() == b""


def test_names_that_are_no_segment_files_stay(directory: Path) -> None:
    for name in ("notes.txt.swap", "7.log.cleaned", "notes.deleted"):
        (directory / name).write_bytes(b"")
    assert recovered(directory) == ()
    assert (directory / "notes.txt.swap").exists()


def test_completed_swap_that_cannot_be_read_is_corrupt_and_nothing_live_goes(
    directory: Path,
) -> None:
    before = names(directory)
    stage(directory, 0, ".swap", ten(0)[:-1])
    with pytest.raises(CorruptError) as caught:
        recovered(directory)
    assert str(directory / f"{0:020d}.log.swap") == caught.value.path
    assert set(before) <= set(names(directory))
