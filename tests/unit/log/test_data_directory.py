"""What lies in a data directory, and what is only named as if."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import InvalidError, RefusedError
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from tests.support.existing import existing

ID = "0123456789abcdef0123456789abcdef"


def opened(path: Path) -> DataDirectory:
    return open_data_directory(path, LocalFiles())


def test_partitions_are_listed_in_order_with_their_marks(tmp_path: Path) -> None:
    for name in ("b-1", "a-b-10", "a-b-9", f"a-3.{ID}-delete", f"a-3.{ID}-future", "a-3"):
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").write_bytes(b"")
    found = opened(tmp_path)
    assert [
        ("a-3", None),
        ("a-3", "delete"),
        ("a-3", "future"),
        ("a-b-9", None),
        ("a-b-10", None),
        ("b-1", None),
    ] == [(str(entry.partition), entry.mark) for entry in found.partitions]
    assert tmp_path == found.root
    assert not found.is_single


def test_other_directories_and_plain_files_are_no_partitions(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "t-0").write_bytes(b"a file named like a partition")
    (tmp_path / "cleaner-offset-checkpoint").write_bytes(b"")
    found = opened(tmp_path)
    assert found.partitions == ()
    assert found.ignored == ("lost+found", "t-0")


def test_link_to_a_partition_is_ignored_and_said(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    (root / "u-0").mkdir(parents=True)
    (root / "t-0").symlink_to(elsewhere)
    found = opened(root)
    assert [TopicPartition("u", 0)] == [entry.partition for entry in found.partitions]
    assert ("t-0",) == found.ignored


def test_a_partition_directory_is_a_data_directory_of_one(tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    (tmp_path / "u-0").mkdir()
    assert not opened(partition).is_single
    (partition / f"{0:020d}.log").write_bytes(b"")
    found = opened(partition)
    assert found.is_single
    assert tmp_path == found.root
    assert [partition] == [entry.path for entry in found.partitions]


def test_two_directories_of_one_partition_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / f"t-0.{ID}-future").mkdir()
    opened(tmp_path)
    (tmp_path / "t-00").mkdir()
    with pytest.raises(RefusedError, match=r"two directories are of one partition.*other='t-00'"):
        opened(tmp_path)


def test_partition_is_found_without_a_mark_only(tmp_path: Path) -> None:
    (tmp_path / f"t-0.{ID}-delete").mkdir()
    partition = TopicPartition("t", 0)
    assert opened(tmp_path).find(partition) is None
    (tmp_path / "t-0").mkdir()
    entry = existing(opened(tmp_path).find(partition))
    assert tmp_path / "t-0" == entry.path


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t-0").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tmp_path == opened(Path()).root


def test_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    (tmp_path / "it").symlink_to(tmp_path / "data")
    assert opened(tmp_path / "data") == opened(tmp_path / "it")


@pytest.mark.parametrize("kind", ["missing", "file", "dangling link"])
def test_anything_but_a_directory_is_invalid(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "file":
        path.write_bytes(b"")
    if kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidError):
        opened(path)
