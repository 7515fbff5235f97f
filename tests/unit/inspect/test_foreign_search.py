"""Files of unknown name are searched for keys as far as possible, and reported otherwise."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.errors import StoppedError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.inspect import erasure_search
from keeplast.inspect.erasure_search import (
    CHANGING,
    DAMAGED,
    EMPTY_KEY,
    FILE_BYTES_MAX,
    NO_FILE,
    TOO_LARGE,
    TOO_MANY,
    ForeignFinding,
    ForeignPath,
    KeyBytes,
    search_foreign,
    walk,
)
from keeplast.inspect.remains import LOOKS_MAX, PIECE_BYTES, WantedKeys
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.tier.objects.handles import BytesReadHandle
from tests.support.small_log import batch

KEY, OTHER = b"anna-4711", b"ben-4712"


def wanted(*keys: bytes) -> WantedKeys:
    return WantedKeys(frozenset(keys).__contains__, frozenset(keys))


def blind(*keys: bytes) -> WantedKeys:
    return WantedKeys(frozenset(keys).__contains__)


def below(root: Path) -> Callable[[], Iterable[ForeignPath]]:
    return partial(walk, root, LocalFiles(), lambda parts: False)


def found_files(root: Path, keys: WantedKeys) -> dict[str, ForeignFinding]:
    return {each.name: each for each in search_foreign(below(root), keys).findings}


small = st.binary(max_size=6).map(lambda data: bytes(each % 3 + 65 for each in data))


@given(st.sets(small, max_size=8), st.lists(small, max_size=12), st.integers(1, 9))
def test_the_bytes_of_keys_are_found_wherever_windows_end(
    keys: set[bytes], pieces: list[bytes], window: int
) -> None:
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erasure_search, "PIECE_BYTES", window)
        found = KeyBytes(keys).find(BytesReadHandle(data), lambda _: None)
    assert {key for key in keys if key and key in data} == found


def test_thousands_of_keys_with_one_beginning_are_found_each(tmp_path: Path) -> None:
    keys = [b"user-%05d" % number for number in range(10_000)]
    handle = BytesReadHandle(b"user-" * 1000 + keys[77] + b"user-user-0008")
    assert {keys[77]} == KeyBytes(keys).find(handle, lambda _: None)


def test_a_key_that_lies_over_the_end_of_a_window_is_found(tmp_path: Path) -> None:
    at = PIECE_BYTES - 4
    (tmp_path / "x").write_bytes(bytes(at) + KEY + bytes(100))
    (tmp_path / "y").write_bytes(bytes(at) + KEY[:-1] + bytes(100))
    found = found_files(tmp_path, wanted(KEY))
    assert {"x": {KEY}} == {name: each.keys for name, each in found.items()}


@pytest.mark.parametrize("codec", list(Codec))
def test_what_begins_as_a_log_is_searched_as_one_whatever_its_name(
    tmp_path: Path, codec: Codec
) -> None:
    (tmp_path / "#12").write_bytes(encode_batch([Record(0, 1, KEY, b"x" * 500)], codec=codec))
    value = encode_batch([Record(0, 1, OTHER, KEY)], codec=codec)
    (tmp_path / "000.index").write_bytes(value)  # a key in a value is not what is asked for
    for keys in (wanted(KEY), blind(KEY)):
        (each,) = found_files(tmp_path, keys).values()
        assert ("#12", {KEY}, None) == (each.name, set(each.keys), each.why)


def test_a_log_that_ends_early_is_reported_and_its_bytes_are_sought(tmp_path: Path) -> None:
    whole = batch(0, OTHER, b"1") + batch(1, KEY, b"2")
    (tmp_path / "cut").write_bytes(whole[:-1])
    (tmp_path / "flipped").write_bytes(whole[:-1] + b"?")
    for keys, found in ((wanted(KEY), {KEY}), (blind(KEY), set())):
        for each in found_files(tmp_path, keys).values():
            assert (found, DAMAGED, True) == (set(each.keys), each.why, each.may_have_records)


def test_the_empty_key_is_reported_as_not_sought_but_where_records_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(batch(0, b"", b"1"))
    (tmp_path / "text").write_bytes(b"text")
    (tmp_path / "nothing").write_bytes(b"")
    found = found_files(tmp_path, wanted(b""))
    assert {"log", "text"} == found.keys()
    assert (frozenset({b""}), None) == (found["log"].keys, found["log"].why)
    assert (frozenset(), EMPTY_KEY) == (found["text"].keys, found["text"].why)


def test_by_hashes_alone_no_bytes_are_sought_and_the_report_says_so_with_the_size(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes").write_bytes(KEY)
    (each,) = found_files(tmp_path, blind(KEY)).values()
    assert (9, True) == (each.size_bytes, "--keys" in (each.why or ""))
    assert not each.may_have_records


def test_links_loops_pipes_and_sockets_are_reported_and_never_followed(tmp_path: Path) -> None:
    root, apart = tmp_path / "root", tmp_path / "apart"
    root.mkdir()
    apart.mkdir()
    (apart / "notes").write_bytes(KEY)
    (root / "out").symlink_to(apart)
    (root / "file").symlink_to(apart / "notes")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # the name of a socket has a hundred characters
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        found = found_files(root, wanted(KEY))
    assert {"out", "file", "loop", "dangling", "pipe", "socket"} == found.keys()
    assert not any(each.keys for each in found.values())
    assert {NO_FILE} == {each.why for name, each in found.items() if name != "socket"}
    assert "it cannot be read" in (found["socket"].why or "")


def test_names_with_newlines_and_bytes_that_are_no_text_are_names(tmp_path: Path) -> None:
    odd = [b"a\nb", b"\xff\xfe", b" ", b"-rf"]
    for name in odd:
        (tmp_path / os.fsdecode(name)).mkdir()
        (tmp_path / os.fsdecode(name) / "x\ny").write_bytes(KEY)
    found = found_files(tmp_path, wanted(KEY))
    assert {os.fsdecode(name) + "/x\ny" for name in odd} == found.keys()
    assert all(each.keys for each in found.values())


def test_a_file_above_the_largest_size_is_reported_and_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    (each,) = found_files(tmp_path, wanted(KEY)).values()
    assert (FILE_BYTES_MAX + 1, TOO_LARGE) == (each.size_bytes, each.why)


class Closed(LocalFiles):
    """Files of which some may not be read, nor a folder listed; root may do all that."""

    def open_read(self, path: Path) -> ReadHandle:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return super().open_read(path)

    def listdir(self, path: Path) -> list[str]:
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return super().listdir(path)


def test_a_path_that_may_not_be_read_or_listed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(KEY)
    (tmp_path / "lost+found").mkdir()
    found = search_foreign(partial(walk, tmp_path, Closed(), lambda parts: False), wanted(KEY))
    assert {
        "lost+found": "a folder that cannot be listed (Permission denied)",
        "secret": "it cannot be read (Permission denied)",
    } == {each.name: each.why for each in found.findings}


def test_deep_folders_are_entered(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(60):
        deep = deep / "t-0"  # the name of a partition, too
    deep.mkdir(parents=True)
    (deep / f"{0:020d}.log").write_bytes(batch(0, KEY, b"1"))
    (name,) = found_files(tmp_path, wanted(KEY))
    assert 61 == len(name.split("/"))


def test_more_paths_than_are_reported_may_have_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure_search, "PATHS_MAX", 3)
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"")
    (each,) = found_files(tmp_path, wanted(KEY)).values()
    assert (TOO_MANY, True) == (each.why, each.may_have_records)


def test_a_file_that_gets_a_key_while_another_is_searched_is_searched_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_bytes(b"nothing")
    (tmp_path / "b").write_bytes(b"nothing")
    calls: list[int] = []

    def progressed(read_bytes: int) -> None:
        if not calls:
            (tmp_path / "a").write_bytes(KEY * 2)
            (tmp_path / "c").write_bytes(KEY)
        calls.append(read_bytes)

    found = search_foreign(below(tmp_path), wanted(KEY), progressed=progressed)
    assert (["a", "c"], 1) == ([each.name for each in found.findings], found.searched)


def test_a_file_that_changes_all_the_time_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")

    def progressed(read_bytes: int) -> None:
        path.write_bytes(path.read_bytes() + b"x")

    (each,) = search_foreign(below(tmp_path), wanted(KEY), progressed=progressed).findings
    assert (CHANGING, LOOKS_MAX + 1) == (each.why, path.stat().st_size)


def test_a_file_that_is_gone_is_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(KEY)

    def listed() -> Iterator[ForeignPath]:
        yield from list(below(tmp_path)())
        path.unlink(missing_ok=True)

    assert ((), 0) == (search_foreign(listed, wanted(KEY)).findings, 0)


def test_a_file_that_became_shorter_is_searched_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20))
    calls: list[int] = []

    def progressed(read_bytes: int) -> None:
        if not calls:
            path.write_bytes(KEY)
        calls.append(read_bytes)

    (each,) = search_foreign(below(tmp_path), wanted(KEY), progressed=progressed).findings
    assert ({KEY}, 9, None) == (set(each.keys), each.size_bytes, each.why)


def test_the_search_may_be_ended(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"nothing")

    with pytest.raises(StoppedError):
        search_foreign(
            below(tmp_path), wanted(KEY), progressed=Mock(side_effect=StoppedError("stopped"))
        )
