"""A status that is asked for while a round replaces segments is of a whole log."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.log.files import FileStat, ReadHandle
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import CleanerConfig
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.mixed_log import write_mixed_log
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import NOW_MS, PARTITION, SMALL_SEGMENTS, clean_at

ASKED_MAX = 400


class OvertakenFiles(UnsyncedFiles):
    """Has a whole round done before the look asks for something the ``at``-th time."""

    def __init__(self, directory: Path, at: int) -> None:
        self._directory = directory
        self._at = at
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.asked == self._at:
            clean_at(self._directory, topic=SMALL_SEGMENTS)

    def listdir(self, path: Path) -> list[str]:
        self._ask()
        return super().listdir(path)

    def stat(self, path: Path) -> FileStat:
        self._ask()
        return super().stat(path)

    def open_read(self, path: Path) -> ReadHandle:
        self._ask()
        return super().open_read(path)


def look(directory: Path, files: UnsyncedFiles) -> LogStatus | Exception:
    request = PartitionRequest(PARTITION, directory, SMALL_SEGMENTS, CleanerConfig())
    ((_, found),) = find_statuses(
        CleanRequest((request,), rolls_idle=True), directory.parent, files, NOW_MS,
        timestamp_ahead_max_ms=lambda _: INT64_MAX, tombstones=TombstoneReading.HEADERS,
        progressed=lambda _: None,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("share", range(4))
def test_a_round_at_any_moment_of_a_look_makes_no_log_corrupt(tmp_path: Path, share: int) -> None:
    for at in range(1 + share, ASKED_MAX, 4):
        directory = write_mixed_log(tmp_path / str(at))
        files = OvertakenFiles(directory, at)
        found = look(directory, files)
        assert isinstance(found, LogStatus), f"at={at} {found!r}"
        if files.asked < at:
            assert at > 20
            return
    raise AssertionError("a look asks for more than was tried")
