"""The port to the disk: nothing but regular files, never through a link, never without a limit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.errors import InvalidError, RefusedError
from keeplast.log import files as write_back
from keeplast.log.files import WRITE_BACK_BYTES, FileStat, LocalFiles, reading
from tests.support.heard_calls import hear

FILES = LocalFiles()
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(CONTENT)
    return found


@pytest.fixture
def link(tmp_path: Path) -> Path:
    return tmp_path / "link"


def test_link_is_refused_and_not_followed(path: Path, link: Path) -> None:
    link.symlink_to(path)
    with pytest.raises(RefusedError):
        FILES.open_read(link)
    with pytest.raises(RefusedError):
        FILES.read_bytes(link, 1 << 20)
    with pytest.raises(OSError):  # noqa: PT011  (whatever the kernel calls it)
        FILES.open_write(link)
    with pytest.raises(OSError):  # noqa: PT011
        FILES.open_write(link, append=True)
    with pytest.raises(OSError):  # noqa: PT011
        FILES.fsync(link)
    assert CONTENT == path.read_bytes()


def test_dangling_link_exists_and_is_refused(link: Path, tmp_path: Path) -> None:
    link.symlink_to(tmp_path / "nowhere")
    assert FILES.exists(link)
    with pytest.raises(RefusedError):
        FILES.open_read(link)


def test_link_to_a_directory_is_no_directory(link: Path, tmp_path: Path) -> None:
    link.symlink_to(tmp_path)
    assert FILES.is_directory(tmp_path)
    assert not FILES.is_directory(link)
    assert not FILES.is_directory(tmp_path / "nowhere")
    (tmp_path / "below").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert {"below"} == FILES.directories_in(tmp_path)


def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe the plain way waits for the other end, for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RefusedError):
        FILES.open_read(pipe)
    with pytest.raises(OSError):  # noqa: PT011
        FILES.open_write(pipe)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError):
        FILES.open_read(tmp_path)


def test_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FILES.open_read(tmp_path / "nowhere")


def test_limit_of_a_small_file_is_inclusive(path: Path) -> None:
    assert CONTENT == FILES.read_bytes(path, len(CONTENT))
    with pytest.raises(InvalidError):
        FILES.read_bytes(path, len(CONTENT) - 1)


def test_reading_by_position_is_short_only_at_the_end(path: Path) -> None:
    with reading(FILES, path) as handle:
        assert handle.size_bytes == len(CONTENT)
        for position, length in ((0, 100), (250, 20), (len(CONTENT) - 5, 50), (len(CONTENT), 3)):
            buffer = bytearray(length)
            count = handle.pread_into(memoryview(buffer), position)
            assert CONTENT[position : position + length] == bytes(buffer[:count])


def test_writing_truncates_and_appending_does_not(path: Path) -> None:
    handle = FILES.open_write(path, append=True)
    handle.write(b"more")
    handle.fsync()
    handle.close()
    handle.close()
    assert CONTENT + b"more" == path.read_bytes()
    handle = FILES.open_write(path)
    handle.write(memoryview(b"new"))
    handle.close()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("append", [False, True])
def test_ranges_are_copied_exactly(path: Path, tmp_path: Path, append: bool) -> None:
    target = tmp_path / "target"
    out = FILES.open_write(target, append=append)
    with reading(FILES, path) as source:
        out.write(b"head")
        out.copy_from(source, 100, 5000)
        out.write(b"middle")
        out.copy_from(source, 0, 3)
        out.copy_from(source, 0, 0)
    out.close()
    assert b"head" + CONTENT[100:5100] + b"middle" + CONTENT[:3] == target.read_bytes()


@pytest.mark.parametrize("append", [False, True])
def test_range_beyond_the_source_is_an_error(path: Path, tmp_path: Path, append: bool) -> None:
    out = FILES.open_write(tmp_path / "target", append=append)
    with reading(FILES, path) as source, pytest.raises(OSError, match="ended early"):
        out.copy_from(source, 0, len(CONTENT) + 1)
    out.close()


def test_durable_write_replaces_whole_files_and_leaves_no_other_file(path: Path) -> None:
    FILES.write_durable(path, b"new")
    assert path.read_bytes() == b"new"
    assert ["file"] == FILES.listdir(path.parent)


def test_durable_write_goes_around_a_link_and_not_through_it(path: Path, link: Path) -> None:
    link.symlink_to(path)
    FILES.write_durable(link, b"new")
    assert CONTENT == path.read_bytes()
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert link.stat().st_mode & 0o022 == 0


def test_durable_append_creates_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    FILES.append_durable(path, b"1\n")
    FILES.append_durable(path, b"2\n")
    assert path.read_bytes() == b"1\n2\n"


def test_times_are_kept_to_the_nanosecond(path: Path) -> None:
    FILES.set_mtime(path, 1_700_000_000_123_456_789)
    assert FileStat(len(CONTENT), 1_700_000_000_123_456_789) == FILES.stat(path)


def test_mode_is_copied(path: Path, tmp_path: Path) -> None:
    path.chmod(0o640)
    target = tmp_path / "target"
    target.write_bytes(b"")
    target.chmod(0o600)
    FILES.copy_owner_and_mode(path, target)
    assert target.stat().st_mode & 0o7777 == 0o640


def test_names_are_sorted_and_renaming_replaces(path: Path) -> None:
    for name in ("b", "a", "c"):
        (path.parent / name).write_bytes(name.encode())
    FILES.rename(path.parent / "c", path.parent / "a")
    FILES.unlink(path.parent / "b")
    assert ["a", "file"] == FILES.listdir(path.parent)
    assert (path.parent / "a").read_bytes() == b"c"


def test_directories_are_made_with_their_parents_and_flushed(tmp_path: Path) -> None:
    deep = tmp_path / "x" / "y"
    FILES.make_directory(deep)
    FILES.make_directory(deep)
    FILES.fsync_directory(deep)
    assert FILES.is_directory(deep)
    assert FILES.free_bytes(deep) > 0


def test_a_large_file_begins_to_be_written_before_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    hear(
        monkeypatch,
        write_back,
        "begin",
        lambda fd, position, length: begun.append((position, length)),
    )
    data = bytes(range(256)) * (WRITE_BACK_BYTES // 256)
    source = tmp_path / "source"
    source.write_bytes(data)
    files = LocalFiles()
    handle = files.open_write(tmp_path / "large")
    for piece in (data[:5], data[5:], data[:-1]):
        handle.write(piece)
    with reading(files, source) as other:
        handle.copy_from(other, 0, len(data))
    handle.fsync()
    handle.close()
    assert data + data[:-1] + data == (tmp_path / "large").read_bytes()
    # Without a gap, in pieces that are worth a call, and nearly to the end.
    ends = list(itertools.accumulate(length for _, length in begun))
    assert [0, *ends[:-1]] == [position for position, _ in begun]
    assert all(length >= WRITE_BACK_BYTES for _, length in begun)
    assert 0 <= 3 * len(data) - 1 - ends[-1] < WRITE_BACK_BYTES


def test_an_appended_file_is_left_to_its_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.log.files.WRITE_BACK_BYTES", 1)
    monkeypatch.setattr(write_back, "begin", lambda fd, position, length: pytest.fail("begun"))
    handle = LocalFiles().open_write(tmp_path / "appended", append=True)
    handle.write(b"a batch")
    handle.close()
    assert b"a batch" == (tmp_path / "appended").read_bytes()


@pytest.mark.parametrize("call", [None, lambda fd, position, length, flags: -1])
def test_a_system_that_cannot_begin_early_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., int] | None
) -> None:
    monkeypatch.setattr("keeplast.log.files.WRITE_BACK_BYTES", 1)
    monkeypatch.setattr(write_back, "_call", call)
    handle = LocalFiles().open_write(tmp_path / "file")
    handle.write(b"all of it")
    handle.fsync()
    handle.close()
    assert b"all of it" == (tmp_path / "file").read_bytes()
