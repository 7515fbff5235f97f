"""What a round has staged stays where its commit may be in place, and goes where it is not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from keeplast.clock import SystemClock
from keeplast.errors import CommitUnknownError, CompactionError, ConflictError
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.files import LocalRecipe
from keeplast.rewrite.task import TaskResult
from keeplast.run.directory_place import DirectoryPlace
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.round import Rounds
from keeplast.run.round_state import PartitionRun, Round
from keeplast.survey.tombstone_horizons import HorizonBook
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import clean_request, one, write_partition


@pytest.mark.parametrize(
    ("error", "stays"),
    [(CommitUnknownError("no answer"), True), (ConflictError("it has changed"), False)],
)
def test_what_was_staged_stays_only_where_a_commit_may_name_it(
    tmp_path: Path, error: CompactionError, stays: bool
) -> None:
    class Faraway(DirectoryPlace):
        def publish(self, round_: Round, result: TaskResult) -> None:
            assert [result] == round_.results
            raise error

    directory = write_partition(tmp_path, {0: one(0, b"k") + one(1, b"k"), 2: b""})
    request, files, clock = clean_request(directory), UnsyncedFiles(), SystemClock()
    place = Faraway(
        request, files, LocalRecipe(), clock, NoEvents(), HorizonBook(files), writer="w",
        writes=True,
    )  # fmt: skip
    run = PartitionRun(request.partitions[0])
    runner = LocalRunner(1, files=files)
    Rounds(request, place, lambda _: nullcontext(runner), clock, NoEvents(), lambda: None).clean(
        [run]
    )
    (report,) = run.rounds
    assert error is report.failure
    assert stays == any(path.name.endswith(".deleted") for path in directory.iterdir())
    assert not (tmp_path / CLEANER_CHECKPOINT).exists()
