"""Checkpoint files of a data directory; CK01 to CK04 are Kafka's ``OffsetCheckpointFile`` tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log import checkpoints
from keeplast.log.checkpoints import drop_from_checkpoint, read_checkpoint, update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from tests.support.heard_calls import hear

FILES = LocalFiles()
NAME = CLEANER_CHECKPOINT
FIRST, SECOND = TopicPartition("foo", 0), TopicPartition("a-topic.x_y", 12)


def test_ck01_offsets_are_read_as_written_and_overwritten(tmp_path: Path) -> None:
    for offsets in ({FIRST: 5, SECOND: 2**40}, {FIRST: 6, SECOND: 0}):
        update_checkpoint(FILES, tmp_path, NAME, offsets)
        assert offsets == read_checkpoint(FILES, tmp_path, NAME)


def test_ck02_checkpoint_of_several_lines(tmp_path: Path) -> None:
    offsets = {TopicPartition("t", i): i * 10 for i in range(10)}
    (tmp_path / NAME).write_bytes(encode_offsets(offsets))
    assert offsets == read_checkpoint(FILES, tmp_path, NAME)


def test_ck03_empty_and_missing_checkpoints_have_no_lines(tmp_path: Path) -> None:
    assert read_checkpoint(FILES, tmp_path, NAME) == {}
    (tmp_path / NAME).write_bytes(b"")
    assert read_checkpoint(FILES, tmp_path, NAME) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",  # CK04: an unknown version
        b"0\n2\nfoo 0 5\n",  # X45: a wrong count
        b"0\n1\nfoo 0\n",  # X45: two fields
        b"0\n1\nfoo 0 x\n",
        b"0\n1\nfoo 0 5\n\n",
        b"\xff\xfe",
        b"0\n99999999999999\n",
    ],
)
def test_ck04_malformed_checkpoint_is_corrupt_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(CorruptError) as caught:
        read_checkpoint(FILES, tmp_path, NAME)
    assert str(path) == caught.value.path
    with pytest.raises(CorruptError):
        update_checkpoint(FILES, tmp_path, NAME, {FIRST: 1})
    assert content == path.read_bytes()


def test_x44_lines_of_partitions_that_are_not_here_stay(tmp_path: Path) -> None:
    """Kafka drops them on its next write, which it does itself when it starts."""
    update_checkpoint(FILES, tmp_path, NAME, {FIRST: 1, SECOND: 2})
    update_checkpoint(FILES, tmp_path, NAME, {FIRST: 7})
    assert {FIRST: 7, SECOND: 2} == read_checkpoint(FILES, tmp_path, NAME)


def test_same_values_write_nothing(tmp_path: Path) -> None:
    update_checkpoint(FILES, tmp_path, NAME, {FIRST: 1, SECOND: 2})
    before = (tmp_path / NAME).stat()
    update_checkpoint(FILES, tmp_path, NAME, {SECOND: 2})
    after = (tmp_path / NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [NAME] == os.listdir(tmp_path)


def test_mode_of_the_file_stays(tmp_path: Path) -> None:
    """A broker of another user must be able to write it afterwards."""
    update_checkpoint(FILES, tmp_path, NAME, {FIRST: 1})
    (tmp_path / NAME).chmod(0o664)
    update_checkpoint(FILES, tmp_path, NAME, {FIRST: 2})
    assert (tmp_path / NAME).stat().st_mode & 0o7777 == 0o664


def test_link_in_its_place_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(encode_offsets({FIRST: 1}))
    (tmp_path / NAME).symlink_to(target)
    with pytest.raises(RefusedError):
        read_checkpoint(FILES, tmp_path, NAME)


def test_a_content_is_parsed_once_however_many_partitions_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []

    hear(monkeypatch, checkpoints, "decode_offsets", lambda data: parsed.append(len(data)))
    partitions = [TopicPartition(tmp_path.name, number) for number in range(200)]
    for number, partition in enumerate(partitions):
        update_checkpoint(FILES, tmp_path, NAME, {partition: number})
    assert {each: number for number, each in enumerate(partitions)} == read_checkpoint(
        FILES, tmp_path, NAME
    )
    assert [] == parsed
    drop_from_checkpoint(FILES, tmp_path, NAME, partitions[0])
    assert partitions[0] not in read_checkpoint(FILES, tmp_path, NAME)
    # What somebody else wrote is read, as it would be without any memory of what was there.
    (tmp_path / NAME).write_bytes(encode_offsets({FIRST: 1}))
    assert {FIRST: 1} == read_checkpoint(FILES, tmp_path, NAME)
    update_checkpoint(FILES, tmp_path, NAME, {SECOND: 2})
    assert b"0\n2\nfoo 0 1\na-topic.x_y 12 2\n" == (tmp_path / NAME).read_bytes()
    assert 1 == len(parsed)
