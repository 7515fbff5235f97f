"""Segments on a shared file system lie as Kafka's plugin lays them out, and appear whole or not."""

from __future__ import annotations

import dataclasses
import fcntl
import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cluster.layouts.layout import ALWAYS_THERE, AuxiliaryFile, WrittenLog
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    InvariantError,
    UnavailableError,
)
from keeplast.format.identifier import encode_id
from tests.support.remote_segments import PARTITION, remote_segment

LOG = bytes(range(256)) * 40
FILES = {each: each.encode() for each in ALWAYS_THERE}
SEGMENT = remote_segment(size_bytes=len(LOG))
NAME = f"{SEGMENT.start_offset:020d}-{encode_id(SEGMENT.id.segment_id)}"
FOLDER = f"orders-3-{encode_id(PARTITION.topic_id)}"


@pytest.fixture
def layout(tmp_path: Path) -> LocalStorage:
    (tmp_path / SEGMENTS).mkdir()
    return LocalStorage(tmp_path)


def write_log(layout: LocalStorage) -> WrittenLog:
    writer = layout.create_log(SEGMENT.id, SEGMENT.start_offset, SEGMENT)
    writer.write(LOG[:100])
    writer.write(memoryview(LOG)[100:])
    return writer.close()


def names(layout: LocalStorage) -> set[str]:
    return {path.name for path in (layout.dir / SEGMENTS).rglob("*") if path.is_file()}


def test_a_segment_lies_where_the_plugin_looks_for_it(layout: LocalStorage) -> None:
    files = {**FILES, AuxiliaryFile.TXN_INDEX: b"aborted"}
    assert layout.complete(SEGMENT, write_log(layout), files, SEGMENT) is None
    folder = layout.dir / SEGMENTS / FOLDER
    assert LOG == (folder / f"{NAME}.log").read_bytes()
    kinds = "index timeindex snapshot leader_epoch_checkpoint txnindex"
    assert {f"{NAME}.log", *(f"{NAME}.{kind}" for kind in kinds.split())} == names(layout)
    reader = layout.open(SEGMENT)
    assert len(LOG) == reader.log_bytes
    assert LOG[7:300] == reader.read_log(7, 300)
    assert LOG[-5:] == reader.read_log(len(LOG) - 5, len(LOG) + 100)
    assert 0 == len(reader.read_log(len(LOG), len(LOG) + 1))
    assert files == {kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile}


def test_no_transaction_index_is_none_and_any_other_file_is_missed(layout: LocalStorage) -> None:
    layout.complete(SEGMENT, write_log(layout), FILES, SEGMENT)
    reader = layout.open(SEGMENT)
    assert reader.read_auxiliary(AuxiliaryFile.TXN_INDEX) is None
    (layout.dir / SEGMENTS / FOLDER / f"{NAME}.index").unlink()
    with pytest.raises(FileNotFoundError):
        reader.read_auxiliary(AuxiliaryFile.OFFSET_INDEX)


def test_nothing_is_where_the_plugin_looks_before_it_is_complete(layout: LocalStorage) -> None:
    written = write_log(layout)
    assert set() == names(layout)
    (found,) = layout.list(PARTITION)
    assert (SEGMENT.id.segment_id, SEGMENT.start_offset, len(LOG)) == (
        found.segment_id, found.start_offset, found.size_bytes,
    )  # fmt: skip
    with pytest.raises(FileNotFoundError):
        layout.open(SEGMENT)
    layout.complete(SEGMENT, written, FILES, SEGMENT)
    layout.complete(SEGMENT, written, FILES, SEGMENT)
    (found,) = layout.list(PARTITION)
    assert len(LOG) + sum(map(len, FILES.values())) == found.size_bytes


def test_an_id_is_written_once(layout: LocalStorage) -> None:
    written = write_log(layout)
    for _ in range(2):
        with pytest.raises(ConflictError):
            layout.create_log(SEGMENT.id, SEGMENT.start_offset, SEGMENT)
        layout.complete(SEGMENT, written, FILES, SEGMENT)


def test_a_write_that_is_given_up_leaves_nothing(layout: LocalStorage) -> None:
    writer = layout.create_log(SEGMENT.id, SEGMENT.start_offset, SEGMENT)
    writer.write(LOG)
    writer.abort()
    writer.abort()
    assert [] == list(layout.list(PARTITION))
    with pytest.raises(InvariantError):
        writer.write(LOG)


def test_all_of_a_segment_is_deleted_wherever_it_stopped(layout: LocalStorage) -> None:
    written = write_log(layout)
    (found,) = layout.list(PARTITION)
    layout.delete_found(PARTITION, found)
    assert [] == list(layout.list(PARTITION))
    written = write_log(layout)
    layout.complete(SEGMENT, written, FILES, SEGMENT)
    layout.delete(SEGMENT)
    layout.delete(SEGMENT)
    assert [] == [path for path in layout.dir.rglob("*") if path.is_file()]


def test_a_log_of_another_size_than_announced_is_damage(layout: LocalStorage) -> None:
    layout.complete(SEGMENT, write_log(layout), FILES, SEGMENT)
    with pytest.raises(CorruptError, match="announced"):
        layout.open(replace(SEGMENT, size_bytes=len(LOG) + 1))
    reader = layout.open(SEGMENT)
    path = layout.dir / SEGMENTS / FOLDER / f"{NAME}.log"
    path.write_bytes(LOG[:50])
    with pytest.raises(CorruptError, match="shorter"):
        reader.read_log(0, 100)


def test_foreign_names_are_not_listed(layout: LocalStorage) -> None:
    folder = layout.dir / SEGMENTS / FOLDER
    folder.mkdir()
    for name in ("notes.txt", f"{NAME}.mp3", f"1-{'A' * 22}.log", f"{0:020d}-{'A' * 21}B.log"):
        (folder / name).write_bytes(b"?")
    assert [] == list(layout.list(PARTITION))


def test_a_topic_whose_name_leads_elsewhere_is_refused(layout: LocalStorage) -> None:
    hostile = dataclasses.replace(PARTITION, topic="../../etc")
    with pytest.raises(InvalidError):
        list(layout.list(hostile))


def test_the_first_owner_stays_until_a_writer_that_knows_it_replaces_it(
    layout: LocalStorage,
) -> None:
    assert layout.read_own("owner/one") is None
    assert layout.put_new("owner/one", b"first")
    assert not layout.put_new("owner/one", b"second")
    assert not layout.replace_own("owner/one", b"third", b"second")
    assert layout.replace_own("owner/one", b"third", b"first")
    assert b"third" == layout.read_own("owner/one")
    assert not layout.replace_own("owner/two", b"x", b"")
    layout.delete_own("owner/one")
    layout.delete_own("owner/one")
    assert layout.read_own("owner/one") is None
    assert set() == names(layout)


def test_own_objects_are_listed_by_their_folder(layout: LocalStorage) -> None:
    assert [] == list(layout.list_own("work/a"))
    for name in ("work/a/one", "work/a/two", "work/ab/three", "work/a/deep/four", "owner"):
        layout.put_new(name, b"x")
    found = list(layout.list_own("work/a"))
    assert {"work/a/one", "work/a/two"} == {each.name for each in found}
    times = [(layout.dir / ".keeplast" / each.name).stat().st_mtime_ns for each in found]
    assert [each // 1_000_000 for each in times] == [each.modified_ms for each in found]


def test_strangers_among_the_own_objects_are_left_alone(layout: LocalStorage) -> None:
    """Who may write there may leave anything; a name that cannot be asked for is not listed."""
    layout.put_new("work/a/one", b"x")
    folder = layout.dir / ".keeplast" / "work" / "a"
    for name in ("two words", "\n", "ä", "x" * 201, ".hidden", "$(reboot)"):
        (folder / name).write_bytes(b"x")
    assert ["work/a/one"] == [each.name for each in layout.list_own("work/a")]


def test_a_frozen_owner_makes_others_come_back(layout: LocalStorage) -> None:
    layout.put_new("owner", b"first")
    with (layout.dir / ".keeplast" / "owner").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError):
            layout.replace_own("owner", b"second", b"first")
    assert layout.replace_own("owner", b"second", b"first")


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", ".logs/a", "a/", "a b", "ä"])
def test_names_stay_in_their_folder(layout: LocalStorage, name: str) -> None:
    with pytest.raises(InvalidError):
        layout.put_new(name, b"")


def test_the_setting_dir_and_its_folder_both_name_the_storage(layout: LocalStorage) -> None:
    assert layout == open_layout(f"local:{layout.dir}")
    assert layout == open_layout(f"local:{layout.dir / SEGMENTS}")
    assert layout == pickle.loads(pickle.dumps(layout))


def test_a_bad_storage_is_refused_by_name(tmp_path: Path) -> None:
    for wrong in ("local", "local:", "hdfs:/x", "s3://bucket", ""):
        with pytest.raises(InvalidError, match="storage plugin"):
            open_layout(wrong)
    with pytest.raises(UnavailableError, match="mounted"):
        open_layout(f"local:{tmp_path}")
    (tmp_path / SEGMENTS).mkdir()
    with pytest.raises(InvalidError, match="region"):
        open_layout(f"local:{tmp_path}", {"region": "x"})
