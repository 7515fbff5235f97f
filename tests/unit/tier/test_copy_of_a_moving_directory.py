"""A broker that replaces files while they are copied costs a retry, and is no damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.errors import CorruptError, InvalidError, RefusedError, UnavailableError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX
from keeplast.format.message_set import read_batches
from keeplast.log.files import FileStat, LocalFiles, ReadHandle
from keeplast.tier.copy.moving_directory import while_it_moves
from tests.support.cleaned_directory import CleanedDirectory
from tests.support.partition_maker import PARTITION
from tests.support.remote_log import RemoteLog


class BusyFiles(LocalFiles):
    """Lets something happen to a directory just before a file is opened, each time it is."""

    def __init__(self) -> None:
        self.before: Callable[[Path], None] = lambda path: None

    def open_read(self, path: Path) -> ReadHandle:
        self.before(path)
        return super().open_read(path)

    def stat(self, path: Path) -> FileStat:
        return super().stat(path)


def with_two_segments(root: Path, files: BusyFiles) -> CleanedDirectory:
    log = CleanedDirectory(root, files=files)
    for n in range(200):
        log.put(b"%d" % (n % 7), b"v" * (n % 90))
    log.roll()
    log.put(b"a", b"1")
    return log


@pytest.fixture
def log(tmp_path: Path) -> CleanedDirectory:
    return with_two_segments(tmp_path, BusyFiles())


def test_what_a_broker_is_about_to_delete_is_no_interrupted_swap(log: CleanedDirectory) -> None:
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.log.cleaned"):
        (log.directory / name).write_bytes(b"old")
    log.copy()
    assert 200 == log.state.remote_end


def test_an_unfinished_swap_is_refused(log: CleanedDirectory) -> None:
    (log.directory / "00000000000000000000.log.swap").write_bytes(b"new")
    with pytest.raises(RefusedError, match="interrupted"):
        log.copy()


@pytest.mark.parametrize("nth", range(1, 5))
def test_index_entries_belong_to_the_bytes_that_were_copied(tmp_path: Path, nth: int) -> None:
    files = BusyFiles()
    log = with_two_segments(tmp_path, files)
    opened: list[Path] = []

    def clean_in_the_middle(path: Path) -> None:
        if path.name == "00000000000000000000.log":
            opened.append(path)
            if len(opened) == nth:
                log.clean()

    files.before = clean_in_the_middle
    log.copy()
    assert len(opened) >= nth
    (segment,) = log.state.segments.values()
    assert segment.size_bytes == log.log.path(0).stat().st_size
    file = RemoteLog.file
    index = offset_index.decode(file(_Peek(log), segment, INDEX))  # type: ignore[arg-type]
    assert list(index) == list(offset_index.decode(log.log.path(0, INDEX).read_bytes()))
    assert () == log.tiered.verify(PARTITION)
    assert log.served().final_values().items() >= log.exported().final_values().items()


class _Peek:
    """What :meth:`RemoteLog.file` needs of a log."""

    def __init__(self, log: CleanedDirectory) -> None:
        self.state, self.objects = log.state, log.objects


def test_files_that_are_replaced_each_time_are_left_for_the_next_turn(tmp_path: Path) -> None:
    files = BusyFiles()
    log = with_two_segments(tmp_path, files)

    def replace_it(path: Path) -> None:
        if path.name == "00000000000000000000.log":
            data = path.read_bytes()
            path.rename(path.with_suffix(".log.deleted"))
            path.write_bytes(data)

    files.before = replace_it
    with pytest.raises(UnavailableError, match="next turn"):
        log.copy()
    assert () == log.state.routes
    files.before = lambda path: None
    log.copy()
    assert 200 == log.state.remote_end


def test_a_segment_that_goes_in_the_middle_is_looked_for_again(tmp_path: Path) -> None:
    files = BusyFiles()
    log = with_two_segments(tmp_path, files)
    log.put_segment((b"a", b"2"))
    log.put(b"a", b"3")
    seen: list[Path] = []

    def merge(path: Path) -> None:
        if path == log.log.path(200) and not seen:
            seen.append(path)
            log.clean()

    files.before = merge
    log.copy()
    assert [] == log.replaced
    assert 202 == log.state.remote_end
    assert log.exported().final_values()[b"a"] == b"2"


@pytest.mark.parametrize("nth", range(2, 5))
def test_an_end_that_a_broker_cuts_while_it_is_imported_is_no_torn_end(
    tmp_path: Path, nth: int
) -> None:
    files = BusyFiles()
    log = with_two_segments(tmp_path, files)
    path = log.log.path(200)
    whole = path.read_bytes()
    log.put(b"a", b"2")
    opened: list[Path] = []

    def truncate(opening: Path) -> None:
        if opening == path:
            opened.append(opening)
            if len(opened) == nth:
                path.write_bytes(whole)

    files.before = truncate
    log.tiered.import_directory(PARTITION, log.directory, {})
    assert len(opened) >= nth
    assert 201 == log.state.remote_end


def test_an_end_that_is_torn_and_stays_so_is_refused(log: CleanedDirectory) -> None:
    path = log.log.path(200)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RefusedError, match="its end is torn"):
        log.tiered.import_directory(PARTITION, log.directory, {})


def test_damage_in_an_untouched_directory_stays_damage(log: CleanedDirectory) -> None:
    path = log.log.path(0)
    data = bytearray(path.read_bytes())
    second = next(iter(read_batches(bytes(data)))).size_bytes
    data[second + 16] = 9
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptError):
        log.copy()


def raised(errors: list[Exception], log: CleanedDirectory) -> int:
    """Let an act fail so, one error after the other; return how often it was done."""
    calls: list[int] = []

    def act() -> None:
        calls.append(1)
        if errors:
            raise errors.pop(0)

    while_it_moves(log.directory, LocalFiles(), act)
    return len(calls)


def test_an_error_is_raised_when_it_is_found_twice_where_nothing_has_moved(
    log: CleanedDirectory,
) -> None:
    errors: list[Exception] = [CorruptError("torn"), CorruptError("torn"), CorruptError("more")]
    with pytest.raises(CorruptError, match="torn"):
        raised(errors, log)
    assert 1 == len(errors)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), InvalidError("too large")])
def test_a_segment_that_came_and_went_is_a_segment_that_moved(
    log: CleanedDirectory, error: Exception
) -> None:
    """A broker rolled and truncated: before and behind it the directory looks the same."""
    assert 2 == raised([error], log)
