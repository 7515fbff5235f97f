"""Commits of several partitions at once: all end, each by itself, and none is cut off."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.columns import retained
from keeplast.errors import ConflictError
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import IndexStats, TaskResult
from keeplast.run.pace import COMMITS_MAX, Publishing
from tests.support.observed_files import UnsyncedFiles
from tests.support.partition_maker import (
    clean_request,
    coordinator,
    one,
    records_of,
    write_partition,
)
from tests.support.waiting import SECONDS_MAX


def _wave(number: int) -> TaskResult:
    return TaskResult(
        number, (), 0, (), np.zeros(retained.COUNTERS, np.int64), IndexStats(), 0, 0, 0.0, 0
    )


def test_as_many_run_at_once_as_may_and_an_error_is_a_result() -> None:
    together = threading.Barrier(COMMITS_MAX)
    done: list[int] = []

    def commit(number: int) -> None:
        together.wait(SECONDS_MAX)
        if number == 3:
            raise ConflictError("the partition changed")
        done.append(number)

    ended = []
    with Publishing(lambda result: commit(result.number), SystemClock()) as publishing:
        for number in range(COMMITS_MAX):
            ended += publishing.take(_wave(number), among=COMMITS_MAX)
        for some in publishing.rest():
            ended += some
    assert sorted(done) == [n for n in range(COMMITS_MAX) if n != 3]
    assert sorted(result.number for result, _ in ended) == list(range(COMMITS_MAX))
    assert [(result.number, type(error)) for result, error in ended if error] == [
        (3, ConflictError)
    ]


def test_leaving_early_waits_for_what_has_begun() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def commit() -> None:
        begun.set()
        may_end.wait(SECONDS_MAX)
        ended.set()

    def leave() -> None:
        with Publishing(lambda _: commit(), SystemClock()) as publishing:
            publishing.take(_wave(0), among=2)
            assert begun.wait(SECONDS_MAX)
            may_end.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert ended.is_set()


def test_every_partition_of_a_call_is_checkpointed_but_the_one_that_failed(tmp_path: Path) -> None:
    first = write_partition(tmp_path, {0: one(0, b"k") + one(1, b"k"), 2: b""})
    partitions = [TopicPartition("t", number) for number in range(2 * COMMITS_MAX)]
    for partition in partitions[1:]:
        shutil.copytree(first, tmp_path / str(partition))
    lost = partitions[5]
    request = clean_request(first)
    asked = [
        replace(request.partitions[0], partition=each, path=tmp_path / str(each))
        for each in partitions
    ]

    class Failing(UnsyncedFiles):
        def rename(self, source: Path, target: Path) -> None:
            if target.name.endswith(".swap") and target.parent.name == str(lost):
                raise OSError(5, "Input/output error", str(source))
            super().rename(source, target)

    report = coordinator(files=Failing()).clean(replace(request, partitions=tuple(asked)))
    failed = [each.partition for each in report.partitions if each.rounds[-1].error is not None]
    assert failed == [lost.partition]
    assert read_checkpoint(LocalFiles(), tmp_path, CLEANER_CHECKPOINT) == {
        each: 2 for each in partitions if each != lost
    }
    assert {len(records_of(tmp_path / str(each))) for each in partitions if each != lost} == {1}
    assert len(records_of(tmp_path / str(lost))) == 2
