"""A search for keys is of one state of a log, whatever is done to its files meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.errors import UnavailableError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.inspect.erasure_search import PartitionSearch, search_partition
from keeplast.inspect.explain import rankings_of
from keeplast.inspect.remains import (
    KEYS_SOUGHT_MAX,
    Remains,
    RemainsKind,
    WantedKeys,
    search_file,
)
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from tests.support.legacy_sets import encode_message
from tests.support.small_log import batch, write_log

KEY, OTHER = b"anna", b"other"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path, "t-0", {0: [(OTHER, b"1")], 1: [(OTHER, b"2")]})


def search(log: Path, progressed: Callable[[int], None]) -> PartitionSearch:
    return search_partition(
        TopicPartition("t", 0), log, WantedKeys({KEY}.__contains__, frozenset({KEY})),
        rankings_of(TopicConfig(), None), LocalFiles(), Workspace(MEMORY_BYTES_MIN), progressed,
    )  # fmt: skip


def searched(path: Path, keys: frozenset[bytes]) -> tuple[Remains, ...]:
    wanted = WantedKeys(keys.__contains__, keys)
    return search_file(path, RemainsKind.LEFT, path.name, wanted, LocalFiles())


def replace_first(log: Path, key: bytes) -> None:
    """Put another file in the place of the first segment, as a round does."""
    path = log / f"{0:020d}.log"
    staged = path.with_suffix(".log.swapped")
    staged.write_bytes(batch(0, key, b"1"))
    # The disk's clock may stand still for milliseconds, and an inode may come again.
    mtime_ns = path.stat().st_mtime_ns + 10**9
    os.utime(staged, ns=(mtime_ns, mtime_ns))
    staged.rename(path)


def test_a_log_whose_files_are_replaced_meanwhile_is_searched_again(log: Path) -> None:
    calls: list[int] = []

    def progressed(read_bytes: int) -> None:
        if not calls:
            replace_first(log, KEY)
        calls.append(read_bytes)

    found = search(log, progressed)
    assert [[0]] == [[each.offset for each in its] for its in found.records.values()]
    assert 4 == len(calls)
    for each in found.sums:
        data = (log / each.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (each.size_bytes, each.sha256)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_key_next_to_the_log_is_found_in_each_kind_of_batch(
    tmp_path: Path, codec: Codec, is_alone: bool
) -> None:
    """The bytes of few keys are sought before records are taken apart; a value's do not count."""
    path = tmp_path / "0.log"
    more = () if is_alone else tuple(b"x%d" % number for number in range(KEYS_SOUGHT_MAX))
    records = [Record(0, 1, b"anna", b"ben"), Record(1, 1, b"", b"v"), Record(2, 1, None, b"cora")]
    path.write_bytes(encode_batch(records, codec=codec))

    def found(key: bytes) -> frozenset[bytes]:
        keys = frozenset((key, *more))
        (each,) = searched(path, keys)
        assert each.problem is None
        return each.keys

    assert [{b"anna"}, set(), {b""}, set()] == [found(e) for e in (b"anna", b"ben", b"", b"cora")]


def test_a_key_next_to_the_log_is_found_in_messages_of_old_formats(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(encode_message(magic=1, offset=0, timestamp=1, key=b"anna", value=b"1"))
    keys = frozenset((b"anna",))
    assert (Remains(RemainsKind.LEFT, "0.log", keys),) == searched(path, keys)


def test_a_log_that_changes_all_the_time_has_no_answer(log: Path) -> None:
    with pytest.raises(UnavailableError, match="run again"):
        search(log, lambda read_bytes: replace_first(log, KEY))


def test_records_appended_meanwhile_are_after_the_searched_ones(log: Path) -> None:
    active, calls = log / f"{1:020d}.log", list[int]()

    def progressed(read_bytes: int) -> None:
        if not calls:
            with active.open("ab") as file:
                file.write(batch(2, KEY, b"3"))
        calls.append(read_bytes)

    found = search(log, progressed)
    assert (2, {}, 2) == (found.log_end, found.records, len(calls))
    later = search(log, lambda read_bytes: None)
    assert (3, [KEY]) == (later.log_end, list(later.records))
