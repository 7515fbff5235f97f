"""A consumer that begins with an export and reads on holds the state that the log says.

Random histories of three producers with transactions that commit, abort and stay open, by every
strategy, exported at any point that can be shown, of a log that was cleaned or was not, in one part
or in many; the rest of the log comes from a consumer, some of it twice.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import keeplast
from keeplast.cli.show.progress import ProgressEvents
from keeplast.errors import RefusedError
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.export import Export, export_state
from keeplast.pipeline.source_options import read_options
from keeplast.run.local_runner import LocalRunner
from tests.property.test_columns_equal_format import (
    COMMIT,
    PLAIN,
    ROLL,
    SEND,
    STEPS,
    ranked_by,
    write_steps,
)
from tests.property.test_live_state import received, take, values_of
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS
from tests.support.source_reading import view_of
from tests.support.turns import examples

IN_FLIGHT = [(PLAIN, 0), (SEND, 1), (PLAIN, 0), (PLAIN, 0), (ROLL, 0), (PLAIN, 0), (COMMIT, 1)]
"""A transaction that is in flight in the middle, and is committed behind that."""


def export(
    data: Path, target: Path, topic: TopicConfig, end: int | None, *, tombstones: bool = True
) -> Export:
    """Export topic ``t`` of a data directory, as of an offset or of the latest."""
    given = {"path": str(data)}
    if end is not None:
        given["endingOffsets"] = json.dumps({"t": {"0": end}})
    with LocalRunner(cores=1) as workers:
        return export_state(
            read_options(given, is_streaming=False), target, workers, ProgressEvents("exporting"),
            topic_config=lambda name: topic, tombstones=tombstones,
        )  # fmt: skip


@given(
    steps=STEPS,
    strategy=st.sampled_from(Strategy),
    percent=st.integers(0, 100),
    cleans=st.booleans(),
    again=st.integers(0, 60),
)
@example(steps=IN_FLIGHT, strategy=Strategy.OFFSET, percent=70, cleans=False, again=0)
@example(steps=IN_FLIGHT, strategy=Strategy.TIMESTAMP, percent=70, cleans=False, again=0)
@settings(max_examples=examples(60))
def test_an_export_and_later_records_are_the_state(
    steps: list[tuple[int, int]], strategy: Strategy, percent: int, cleans: bool, again: int
) -> None:
    topic = replace(ranked_by(strategy), cleanup_policy=frozenset({"compact"}))
    with tempfile.TemporaryDirectory() as root:
        data = Path(root) / "data"
        write_steps(data / "t-0", steps)
        log = keeplast.open_log(data / "t-0")
        expected = {key: (each.offset, each.value) for key, each in log.state(topic).items()}
        if cleans:
            done = log.clean(topic, force=True, is_unsafe=True, now_ms=NOW_MS)
            assert not [each.error for each in done.rounds if each.error is not None]
        end: int | None = view_of(data / "t-0").last_stable * percent // 100
        try:
            made = export(data, Path(root) / "state", topic, end)
        except RefusedError:
            end = None
            made = export(data, Path(root) / "latest", topic, end)
        state = keeplast.exported_state(made.target, "t", topic)
        assert made.offsets() == {"t": {"0": state.positions[0]}}
        if end is None:
            assert expected == values_of(state)
        rest = [each for each in received(data / "t-0") if each.offset >= state.positions[0]]
        for at, record in enumerate(rest):
            take(state, record)
            if at == again:
                taken = [take(state, each) for each in rest[: at + 1]]
                assert not any(taken)
        assert expected == values_of(state)


@pytest.mark.parametrize("strategy", Strategy)
def test_parts_of_a_log_have_the_tombstones_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy
) -> None:
    topic = replace(ranked_by(strategy), cleanup_policy=frozenset({"compact"}))
    data = tmp_path / "data"
    log = LogBuilder(data / "t-0", SMALL_SEGMENTS)
    for number in range(24):
        value, version = b"v" if number % 5 else None, number.to_bytes(8, "big")
        log.append(NewRecord(b"%d" % (number % 5), value, number, ((b"version", version),)))
        log.roll()
    log.close()
    whole = export(data, tmp_path / "whole", topic, None)
    monkeypatch.setattr("keeplast.pipeline.export_tasks.SMALLEST_CUT_BYTES", 0)
    monkeypatch.setattr("keeplast.pipeline.export_tasks.PART_BYTES_MIN", 1)
    monkeypatch.setattr("keeplast.pipeline.export_tasks.PARTS_PER_SLOT", 1 << 20)
    options = read_options({"path": str(data)}, is_streaming=False)
    with LocalRunner(cores=2) as workers:
        cut = export_state(
            options, tmp_path / "cut", workers, ProgressEvents("exporting"),
            topic_config=lambda name: topic, tombstones=True,
        )  # fmt: skip
    assert cut.partitions[0].tasks > 1
    assert rows_in(whole) == rows_in(cut)
    assert [(b"0", None)] == [(key, value) for key, value in rows_in(cut) if value is None]


def rows_in(made: Export) -> list[tuple[bytes, bytes | None]]:
    table = pq.read_table(
        made.target / "t/partition=0", columns=["key", "value"], partitioning=None
    )
    return [(row["key"], row["value"]) for row in table.to_pylist()]
