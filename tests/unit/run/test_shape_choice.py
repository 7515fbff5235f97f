"""What the planner gets of a log's keys, whatever its bytes suggest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.log.files import LocalFiles
from keeplast.rewrite.task import PartitionTask, Progressed, TaskResult
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.survey.report import RoundReport
from tests.support.partition_maker import COMPACT, clean_request, last_round, one, write_partition

KEYS = 60_000
TASK_BYTES = 1 << 20
"""Room for some 19,000 keys."""


class Processes:
    """A runner of tasks that share no memory, of which only plans are asked."""

    slots = 2
    shares_memory = False

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        raise AssertionError("a plan runs nothing")

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def planned(directory: Path) -> RoundReport:
    coordinator = Coordinator(Processes(), SystemClock(), LocalFiles(), NoEvents())
    request = replace(clean_request(directory, topic=COMPACT), task_memory_bytes=TASK_BYTES)
    return last_round(coordinator.plan(request))


@pytest.mark.parametrize(("distinct", "shape"), [(KEYS, "bucket"), (100, "partition")])
def test_keys_that_compress_well_are_not_taken_for_few(
    distinct: int, shape: str, tmp_path: Path
) -> None:
    """The bytes alone look harmless; the sample that is read then counts many keys or few."""
    rows = [Record(i, 1, (i % distinct).to_bytes(8, "big"), b"") for i in range(KEYS)]
    data = encode_batch(rows, codec=Codec.ZSTD)
    assert len(data) < 3 * KEYS
    directory = write_partition(tmp_path, {0: data, KEYS: one(KEYS, b"k")})
    report = planned(directory)
    assert shape == report.shape, report.shape_reason


def test_offsets_without_records_are_no_keys(tmp_path: Path) -> None:
    data = one(0, b"a") + one(10**9, b"b")
    directory = write_partition(tmp_path, {0: data, 2 * 10**9: one(2 * 10**9, b"k")})
    assert "partition" == planned(directory).shape
