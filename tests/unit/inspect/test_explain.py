"""A key is explained in a log whose files stand still: in none that is between two of a swap."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.errors import CorruptError, InvalidError, RefusedError, UnavailableError
from keeplast.inspect.explain import AskedKey, KeyExplanation, explain_key, explain_keys
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import INT64_MAX
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.flipped import flip
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    PARTITION,
    clean_request,
    coordinator,
    one,
    write_partition,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of two closed segments: one key twice, and another one."""
    first = one(0, b"k") + one(1, b"other")
    return write_partition(tmp_path, {0: first, 2: one(2, b"k"), 3: one(3, b"last")})


def explain(
    directory: Path,
    progressed: Callable[[int], None] = lambda _: None,
    files: FileSystem | None = None,
    asked: AskedKey | None = None,
) -> KeyExplanation:
    partition = PartitionRequest(PARTITION, directory, COMPACT)
    return explain_key(
        partition, CleanRequest(()), files or LocalFiles(), NOW_MS, asked or AskedKey(b"k"),
        Workspace(MEMORY_BYTES_MIN), progressed,
    )  # fmt: skip


def offsets(found: KeyExplanation) -> list[int]:
    return [each.record.offset for each in found.records]


def half_swapped(directory: Path) -> None:
    """Leave the second segment as the ``.swap`` of a round that was killed."""
    for path in directory.glob("00000000000000000002.*"):
        path.rename(path.with_name(f"{path.name}.swap"))


def test_half_a_swap_is_not_taken_for_the_log(directory: Path) -> None:
    half_swapped(directory)
    with pytest.raises(RefusedError, match="a swap of segments was interrupted"):
        explain(directory)
    partition = PartitionRequest(PARTITION, directory, COMPACT)
    with pytest.raises(RefusedError, match="a swap of segments was interrupted"):
        explain_keys(
            partition, CleanRequest(()), LocalFiles(), NOW_MS, [b"k"],
            Workspace(MEMORY_BYTES_MIN), lambda _: None,
        )  # fmt: skip


def test_a_swap_that_is_under_way_is_waited_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.log.readers.is_locked", lambda _: True)
    half_swapped(directory)

    class Ending(LocalFiles):
        listed = 0

        def listdir(self, path: Path) -> list[str]:
            self.listed += 1
            if self.listed == 3:
                for each in path.glob("*.swap"):
                    each.rename(each.with_suffix(""))
            return super().listdir(path)

    assert [0, 2] == offsets(explain(directory, files=Ending()))


def clean(directory: Path) -> None:
    (report,) = coordinator().clean(clean_request(directory)).partitions
    assert report.rounds[-1].failure is None


def test_a_log_that_is_cleaned_while_it_is_searched_is_searched_again(directory: Path) -> None:
    cleaned: list[int] = []

    def progressed(_: int) -> None:
        if not cleaned:
            cleaned.append(1)
            clean(directory)

    assert [2] == offsets(explain(directory, progressed))
    assert cleaned


def test_an_offset_that_goes_while_it_is_asked_about_is_a_mistake(directory: Path) -> None:
    clean(directory)
    with pytest.raises(InvalidError, match="there is no record at this offset"):
        explain(directory, asked=AskedKey(offset=0))


def test_a_log_that_changes_each_time_is_no_answer(directory: Path) -> None:
    def progressed(_: int) -> None:
        path = directory / "00000000000000000000.log"
        copy = Path(shutil.copy(path, path.with_name("copy")))
        # A clock of some milliseconds may stand, and the next file may have the number of the last.
        os.utime(copy, ns=(path.stat().st_mtime_ns + 1,) * 2)
        copy.rename(path)

    with pytest.raises(UnavailableError, match="changed each time"):
        explain(directory, progressed)


def test_damage_is_reported_where_nothing_has_changed(directory: Path) -> None:
    path = directory / "00000000000000000000.log"
    flip(path)
    with pytest.raises(CorruptError, match="crc"):
        explain(directory)


def test_a_key_of_more_records_than_the_workspace_has_rows_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.rewrite.workspace.ROWS_MAX", 8)
    records = b"".join(one(offset, b"k") for offset in range(30))
    found = explain(write_partition(tmp_path, {0: records, 30: one(30, b"last")}))
    assert list(range(30)) == offsets(found)


def test_a_batch_at_the_largest_offset_does_not_end_the_explanation(tmp_path: Path) -> None:
    log = {7: one(7, b"k"), INT64_MAX: one(INT64_MAX, b"k")}
    assert [7] == offsets(explain(write_partition(tmp_path, log)))
