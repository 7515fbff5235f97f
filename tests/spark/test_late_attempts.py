"""What an attempt stages after everybody has stopped looking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keeplast.clock import SystemClock
from keeplast.log.files import LocalFiles
from keeplast.pipeline.runner import SparkRunner
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import clean_request, last_round

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("shared_spark")]


def test_staged_files_of_late_attempts_are_gone_when_the_runner_ends(tmp_path: Path) -> None:
    """As of a task that was cancelled, or overtaken by a speculative one, and went on."""
    directory = write_mixed_log(tmp_path)
    with SparkRunner(cores=1) as late:
        seen: list[PartitionTask] = []
        run = late.run

        def overheard(
            tasks: Sequence[PartitionTask], progressed: Progressed
        ) -> Iterator[TaskResult]:
            seen.extend(tasks)
            return run(tasks, progressed)

        late.run = overheard  # type: ignore[method-assign]
        coordinator = Coordinator(late, SystemClock(), LocalFiles(), NoEvents())
        assert last_round(coordinator.clean(clean_request(directory))).error is None
        ours = directory / f"{0:020d}.log.{seen[0].attempt}x99.deleted"
        ours.write_bytes(b"late")
        strangers = directory / f"{0:020d}.log.{'0' * 16}x99.deleted"
        strangers.write_bytes(b"of somebody else")
    assert not ours.exists()
    assert strangers.exists()
