"""A data directory in an object store, and a clean that writes one, stopped anywhere."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import ConflictError, CorruptError, InvalidError, InvariantError, RefusedError
from keeplast.format.filename import INCOMPLETE
from keeplast.log.files import LocalFiles, reading
from keeplast.log.partition_log import list_partition
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents, RoundWork
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest
from keeplast.tier.objects.object_files import TIMES, MountedRecipe, ObjectFiles
from keeplast.tier.objects.object_store import ObjectTree
from keeplast.tier.objects.stores import open_tree
from tests.support.crashing_tree import Crash, CrashingTree
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    last_round,
    one,
    write_partition,
)

BUCKET = Path("/s3:/bucket")


@pytest.fixture
def tree(tmp_path: Path) -> ObjectTree:
    """A bucket that is a directory."""
    return open_tree(f"file://{tmp_path / 'bucket'}")


@pytest.fixture
def files(tree: ObjectTree) -> ObjectFiles:
    return ObjectFiles(tree, BUCKET)


def recipe(tree: ObjectTree) -> MountedRecipe:
    return MountedRecipe(((BUCKET, tree),))


def cleaned(tree: ObjectTree, request: CleanRequest) -> CleanReport:
    opened = recipe(tree)
    with LocalRunner(1) as runner:
        coordinator = Coordinator(runner, SystemClock(), opened.open(), NoEvents(), opened)
        return coordinator.clean(request)


def content(directory: Path) -> dict[str, bytes]:
    """Return the files of a partition on a disk, but for the times that a bucket keeps."""
    if not directory.exists():
        return {}
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir()) if p.name != TIMES}


def test_files_and_folders_are_found_as_on_a_disk(files: ObjectFiles) -> None:
    files.write_durable(BUCKET / "data" / "t-0" / f"{0:020d}.log", b"records")
    files.write_durable(BUCKET / "data" / "meta.properties", b"version=1")
    assert ["meta.properties", "t-0"] == files.listdir(BUCKET / "data")
    assert [f"{0:020d}.log"] == files.listdir(BUCKET / "data" / "t-0")
    assert {"t-0"} == files.directories_in(BUCKET / "data")
    assert files.is_directory(BUCKET)
    assert files.is_directory(BUCKET / "data" / "t-0")
    assert not files.is_directory(BUCKET / "data" / "meta.properties")
    assert not files.is_directory(BUCKET / "data" / "t-1")
    assert files.exists(BUCKET / "data" / "t-0" / f"{0:020d}.log")
    assert not files.exists(BUCKET / "data" / "t-0" / f"{1:020d}.log")
    assert 7 == files.stat(BUCKET / "data" / "t-0" / f"{0:020d}.log").size_bytes
    with pytest.raises(FileNotFoundError):
        files.listdir(BUCKET / "data" / "t-1")
    with pytest.raises(FileNotFoundError):
        files.open_read(BUCKET / "data" / "none")
    with pytest.raises(InvalidError):
        files.read_bytes(BUCKET / "data" / "meta.properties", 3)
    with pytest.raises(RefusedError):
        files.append_durable(BUCKET / "data" / "meta.properties", b"x")


def test_a_file_appears_whole_or_not_at_all(files: ObjectFiles) -> None:
    path = BUCKET / "t-0" / f"{0:020d}.log"
    handle = files.open_write(path)
    handle.write(b"records")
    handle.close()
    assert not files.exists(path)
    handle = files.open_write(path)
    handle.write(b"records")
    handle.fsync()
    handle.close()
    with reading(files, path) as opened:
        buffer = bytearray(20)
        assert 4 == opened.pread_into(memoryview(buffer), 3)
    assert b"ords" == bytes(buffer[:4])


def test_a_rename_is_a_copy_and_a_removal(files: ObjectFiles) -> None:
    files.write_durable(BUCKET / "t-0" / "a", b"one")
    files.rename(BUCKET / "t-0" / "a", BUCKET / "t-0" / "b")
    assert ["b"] == files.listdir(BUCKET / "t-0")
    assert b"one" == files.read_bytes(BUCKET / "t-0" / "b", 9)


def test_times_that_were_set_are_kept_and_never_shown(files: ObjectFiles, tree: ObjectTree) -> None:
    path = BUCKET / "t-0" / f"{0:020d}.log"
    files.write_durable(path, b"one")
    files.set_mtime(path, 1_000_000_000)
    files.fsync_directory(path.parent)
    other = ObjectFiles(tree, BUCKET)
    assert [path.name] == other.listdir(path.parent)
    assert 1_000_000_000 == other.stat(path).mtime_ns
    # Somebody else's file of another size is not the one whose time was set.
    other.write_durable(path, b"three")
    assert other.stat(path).mtime_ns > 1_600_000_000 * 1_000_000_000


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"nonsense", CorruptError), (b'{"version": 2, "files": {}}', RefusedError)],
)
def test_unwritten_times_are_not_believed(
    files: ObjectFiles, data: bytes, error: type[Exception]
) -> None:
    files.write_durable(BUCKET / "t-0" / TIMES, data)
    with pytest.raises(error):
        files.listdir(BUCKET / "t-0")


def test_a_recipe_travels_and_shows_no_secret(tmp_path: Path) -> None:
    objects = open_tree(
        "s3://bucket",
        {"endpoint": "http://127.0.0.1:1", "access_key_id": "me", "secret_access_key": "hush"},
    )
    given = recipe(objects)
    opened = pickle.loads(pickle.dumps(given))
    assert "hush" not in repr(given) + repr(opened)
    assert opened.mounts[0][0] == BUCKET
    with pytest.raises(InvalidError):
        pickle.dumps(open_tree("memory://"))


def test_nothing_moves_between_a_bucket_and_a_disk_by_a_rename(
    tmp_path: Path, tree: ObjectTree
) -> None:
    with pytest.raises(InvariantError):
        recipe(tree).open().rename(tmp_path / "a", BUCKET / "a")


def test_a_bucket_is_not_cleaned_in_place(tmp_path: Path, tree: ObjectTree) -> None:
    directory = write_mixed_log(tmp_path / "bucket")
    request = clean_request(directory)
    (partition,) = request.partitions
    there = replace(partition, path=BUCKET / directory.name)
    before = content(directory)
    with pytest.raises(RefusedError):
        cleaned(tree, replace(request, partitions=(there,)))
    with pytest.raises(RefusedError):
        cleaned(tree, replace(request, target=BUCKET / "out", rounds=None))
    assert before == content(directory)


def test_a_clean_to_a_bucket_that_ends_anywhere_says_so_and_is_done_again(tmp_path: Path) -> None:
    """Every change of the store is a place to crash; the same call then begins again."""
    directory = write_mixed_log(tmp_path / "data")
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    on_disk = tmp_path / "disk"
    assert clean(replace(request, target=on_disk)).end_offset
    expected = content(on_disk / directory.name)
    listed = list_partition(on_disk / directory.name, LocalFiles())
    times = {s.base_offset: s.mtime_ns for s in listed.segments}
    request = replace(request, target=BUCKET / "out")
    counting = CrashingTree(open_tree(f"file://{tmp_path / 'counted'}"))
    cleaned(counting, request)
    assert counting.changes > 20
    seen = set()
    for at in range(counting.changes):
        root = tmp_path / f"bucket-{at}"
        tree = open_tree(f"file://{root}")
        with pytest.raises(Crash):
            cleaned(CrashingTree(tree, at), request)
        found = content(root / "out" / directory.name)
        is_whole = expected == found
        seen.add("whole" if is_whole else "marked" if INCOMPLETE in found else "nothing")
        assert is_whole or INCOMPLETE in found or not found
        if INCOMPLETE in found:
            with pytest.raises(RefusedError):
                list_partition(BUCKET / "out" / directory.name, recipe(tree).open())
        if not is_whole:
            assert last_round(cleaned(tree, request)).error is None
        assert expected == content(root / "out" / directory.name)
    assert {"nothing", "marked"} <= seen
    listed = list_partition(BUCKET / "out" / directory.name, recipe(tree).open())
    assert times == {s.base_offset: s.mtime_ns for s in listed.segments}


def test_an_overdue_active_segment_is_rolled_in_a_bucket_from_a_disk_and_from_a_bucket(
    tmp_path: Path, tree: ObjectTree
) -> None:
    old_ms = NOW_MS - 8 * DAY_MS
    log = {0: one(0, b"k", timestamp=old_ms), 10: one(10, b"k", timestamp=old_ms)}
    directory = write_partition(tmp_path / "bucket" / "data", log)
    topic = replace(SMALL_SEGMENTS, max_compaction_lag_ms=DAY_MS)
    request = replace(clean_request(directory, topic=topic), rolls_idle=True)
    (partition,) = request.partitions
    before = content(directory)
    there = replace(partition, path=BUCKET / "data" / directory.name)
    for name, source in (("disk", partition), ("bucket", there)):
        moved = replace(request, partitions=(source,), target=BUCKET / name)
        report = last_round(cleaned(tree, moved))
        assert (None, 11) == (report.failure, report.end_offset)
    assert before == content(directory)
    clean(request)
    expected = content(directory)
    assert f"{11:020d}.snapshot" in expected
    for name in ("disk", "bucket"):
        assert expected == content(tmp_path / "bucket" / name / directory.name)
        listed = list_partition(BUCKET / name / directory.name, recipe(tree).open())
        assert 11 == listed.active.base_offset


def test_a_run_that_was_overtaken_at_its_target_commits_nothing(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path / "data")
    request = replace(clean_request(directory, topic=SMALL_SEGMENTS), target=tmp_path / "out")
    mark = tmp_path / "out" / directory.name / INCOMPLETE

    class Overtaken(NoEvents):
        def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
            mark.write_text("another run")

    with LocalRunner(1) as runner:
        coordinator = Coordinator(runner, SystemClock(), LocalFiles(), Overtaken())
        report = last_round(coordinator.clean(request))
    assert isinstance(report.failure, ConflictError)
    assert [INCOMPLETE] == os.listdir(mark.parent)
