"""The file of what is set aside, and the receipts next to it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME
from keeplast.model.partition import TopicPartition
from keeplast.service import receipts
from keeplast.service.schedule import (
    FILE_NAME,
    REASON_LENGTH_MAX,
    fingerprint,
    mark_of,
    read_set_aside,
    read_stored_mark,
    set_aside,
    stored_mark,
    write_set_aside,
)
from tests.support.partition_maker import PARTITION, one, write_partition

FILES = LocalFiles()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")})


def test_marks_read_back(directory: Path) -> None:
    root = directory.parent
    damage = CorruptError("crc mismatch", path=str(directory / "x.log"), position=7)
    marks = {
        PARTITION: set_aside(FILES, PARTITION, directory, damage, 5),
        TopicPartition("ü", 3): set_aside(
            FILES, TopicPartition("ü", 3), directory, RefusedError("x" * 9999), 6
        ),
    }
    write_set_aside(FILES, root, marks)
    assert marks == read_set_aside(FILES, root)
    assert (str(directory / "x.log"), 7) == (marks[PARTITION].path, marks[PARTITION].position)
    assert REASON_LENGTH_MAX == len(marks[TopicPartition("ü", 3)].reason)
    write_set_aside(FILES, root, {})
    assert not (root / FILE_NAME).exists()
    assert {} == read_set_aside(FILES, root)


@pytest.mark.parametrize("reason", ["crc mismatch. path=a: b", ""])
def test_a_mark_that_a_store_keeps_reads_back(reason: str) -> None:
    mark = mark_of(PARTITION, CorruptError(reason), 5)
    assert mark == read_stored_mark(PARTITION, stored_mark(mark), 5)
    assert ("CorruptError", reason or "CorruptError") == (mark.error_class, mark.reason)
    bare = read_stored_mark(PARTITION, "by hand", 5)
    assert ("by hand", "by hand") == (bare.error_class, bare.reason)


def test_other_files_have_another_fingerprint(directory: Path) -> None:
    log = directory / "00000000000000000000.log"
    seen = {fingerprint(FILES, directory)}
    os.utime(log, ns=(0, 1))
    seen.add(fingerprint(FILES, directory))
    log.write_bytes(log.read_bytes() * 2)
    seen.add(fingerprint(FILES, directory))
    log.unlink()
    seen.add(fingerprint(FILES, directory))
    assert 4 == len(seen)


def test_leftovers_of_brokers_and_crashes_change_no_fingerprint(directory: Path) -> None:
    before = fingerprint(FILES, directory)
    (directory / "00000000000000000000.log.abc.deleted").write_bytes(b"x")
    (directory / "leader-epoch-checkpoint").write_bytes(b"x")
    (directory / "notes.txt").write_bytes(b"x")
    assert before == fingerprint(FILES, directory)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 1}',
        '{"version": 1, "partitions": [7]}',
        '{"version": 1, "partitions": [{"topic": 1}]}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_damaged_file_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, errors="surrogateescape")
    with pytest.raises(CorruptError, match=FILE_NAME):
        read_set_aside(FILES, tmp_path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"version": 2, "partitions": []}))
    with pytest.raises(InvalidError, match="newer keeplast"):
        read_set_aside(FILES, tmp_path)


def test_receipts_are_kept_in_two_files_at_most(tmp_path: Path) -> None:
    for number in range(3):
        path = receipts.with_room(FILES, tmp_path / RECEIPTS_NAME, bytes_max=10)
        assert tmp_path / RECEIPTS_NAME == path
        path.write_text(f"{number}" * 12)
    assert "2" * 12 == path.read_text()
    assert "1" * 12 == (tmp_path / PREVIOUS_RECEIPTS_NAME).read_text()
    assert 2 == len(list(tmp_path.iterdir()))
