"""A state that is continued again and again is the state that a full export gives.

Random histories of two producers with transactions, deletes and rolls; between any two exports the
log may be cleaned, with tombstones and all, or lose its beginning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.cli.show.progress import ProgressEvents
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.append import NewRecord
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.export import Export, export_state
from keeplast.pipeline.increment import VersionPlace
from keeplast.pipeline.source_options import read_options
from keeplast.run.local_runner import LocalRunner
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS, clean_at
from tests.support.turns import examples

SEND, COMMIT, ABORT, PLAIN, DELETE, ROLL, CLEAN, EXPORT = range(8)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([SEND, SEND, COMMIT, ABORT, PLAIN, PLAIN, DELETE, ROLL, CLEAN, EXPORT]),
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    max_size=40,
)
COMPACT = replace(SMALL_SEGMENTS, cleanup_policy=frozenset({"compact"}))


def rows_of(partition: Path) -> list[tuple[int, bytes, bytes]]:
    table = pq.read_table(partition, columns=["offset", "key", "value"], partitioning=None)
    return [(row["offset"], row["key"], row["value"]) for row in table.to_pylist()]


class Exports:
    """Exports of one log: continued, and each time in full beside that."""

    def __init__(self, root: Path, topic: TopicConfig) -> None:
        self.data, self.target, self.full = root / "data", root / "state", root / "full"
        self.topic = topic
        self.carried = 0
        self.made = 0

    def compare(self) -> None:
        """Continue, and have the same rows as a full export."""
        versions = VersionPlace(self.target)
        versions.check()
        done = self._export(versions.next(), versions)
        versions.settle(done.target, kept=2)
        self.made += 1
        full = self._export(self.full / str(self.made), None)
        assert full.offsets() == done.offsets()
        assert rows_of(full.target / "t/partition=0") == rows_of(
            self.target / "current/t/partition=0"
        )
        self.carried += done.partitions[0].carried_to is not None
        assert len(list((self.target / "versions").iterdir())) == min(self.made, 2)

    def _export(self, target: Path, versions: VersionPlace | None) -> Export:
        options = read_options({"path": str(self.data)}, is_streaming=False)
        with LocalRunner(cores=1) as workers:
            return export_state(
                options, target, workers, ProgressEvents("exporting"),
                topic_config=lambda topic: self.topic, versions=versions,
            )  # fmt: skip


def play(root: Path, steps: list[tuple[int, int, int]], topic: TopicConfig) -> Exports:
    """Write a log as the steps say, and export where they say so and at the end."""
    directory = root / "data" / "t-0"
    log = LogBuilder(directory, COMPACT)
    epochs = leader_epoch.encode([LeaderEpoch(0, 0)])
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    producers = [log.producer(7), log.producer(8)]
    is_open = [False, False]
    exports = Exports(root, topic)
    acts: dict[int, Callable[[], Any]] = {
        CLEAN: lambda: clean_at(directory, NOW_MS + 10**12, topic=topic),
        EXPORT: exports.compare,
    }
    for number, (step, who, key) in enumerate(steps):
        new = NewRecord(b"%d" % key, b"%d" % number, NOW_MS + number)
        if step == SEND:
            producers[who].send_records(new)
            is_open[who] = True
        elif step in (PLAIN, DELETE):
            log.append(new if step == PLAIN else replace(new, value=None))
        elif step == ROLL and log.log_end > log.active_base:
            log.roll()
        elif step in (COMMIT, ABORT) and is_open[who]:
            producers[who].commit() if step == COMMIT else producers[who].abort()
            is_open[who] = False
        elif step in acts:
            acts[step]()
    log.close()
    exports.compare()
    return exports


@given(
    steps=STEPS,
    strategy=st.sampled_from([Strategy.OFFSET, Strategy.OFFSET, Strategy.TIMESTAMP]),
    tombstones_ms=st.sampled_from([0, 86_400_000]),
)
@settings(max_examples=examples(40))
def test_a_continued_state_is_the_full_state(
    steps: list[tuple[int, int, int]], strategy: Strategy, tombstones_ms: int
) -> None:
    topic = replace(COMPACT, strategy=strategy, delete_retention_ms=tombstones_ms)
    with tempfile.TemporaryDirectory() as root:
        exports = play(Path(root), steps, topic)
        if strategy is Strategy.TIMESTAMP:
            assert exports.carried == 0


def test_a_delete_that_came_and_went_is_not_missed(tmp_path: Path) -> None:
    steps = [(PLAIN, 0, 1), (PLAIN, 0, 2), (EXPORT, 0, 0), (DELETE, 0, 1), (ROLL, 0, 0)]
    steps += [(CLEAN, 0, 0), (CLEAN, 0, 0), (PLAIN, 0, 3)]
    exports = play(tmp_path, steps, replace(COMPACT, delete_retention_ms=0))
    assert exports.carried == 0
    kept = rows_of(tmp_path / "state/current/t/partition=0")
    assert [key for _, key, _ in kept] == [b"2", b"3"]


def test_what_is_not_cleaned_is_carried_over_however_late(tmp_path: Path) -> None:
    steps = [(PLAIN, 0, 1), (PLAIN, 0, 2), (EXPORT, 0, 0), (DELETE, 0, 1), (PLAIN, 0, 3)]
    steps += [(EXPORT, 0, 0)]
    exports = play(tmp_path, steps, replace(COMPACT, delete_retention_ms=0))
    assert exports.carried == 2
    last, before = sorted((tmp_path / "state/versions").iterdir(), reverse=True)
    name = "t/partition=0/part-00000.parquet"
    # Nothing came since, so nothing was written.
    assert (last / name).samefile(before / name)
