"""``keeplast.exported_state``: what a consumer may begin with, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import keeplast
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import Strategy, TopicConfig
from tests.support import called
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import SMALL_SEGMENTS

BY_OFFSET = TopicConfig()
BY_TIME = TopicConfig(strategy=Strategy.TIMESTAMP)
BY_HEADER = TopicConfig(strategy=Strategy.HEADER, strategy_header="ver")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topic ``t`` with two partitions: of key ``k`` a value at time 50, and a delete at 70."""
    for number in (0, 1):
        log = LogBuilder(tmp_path / "data" / f"t-{number}", SMALL_SEGMENTS)
        log.append(NewRecord(b"k", b"v", 50))
        log.append(NewRecord(b"k", None, 70))
        log.append(NewRecord(b"other", b"%d" % number, -1, ((b"ver", b"\0" * 8), (b"x", None))))
        log.close()
    return tmp_path / "data"


def export(data: Path, target: Path, *more: str) -> Path:
    arguments = ["export", str(data), "--to", str(target), "--runner", "local", *more]
    called.run(*arguments, code=0)
    return target


def by(topic: TopicConfig) -> list[str]:
    given = ["--config", f"compaction.strategy={topic.strategy.value}"]
    if topic.strategy_header is not None:
        given += ["--config", f"compaction.strategy.header={topic.strategy_header}"]
    return given


def late(state: keeplast.LiveState) -> bool:
    """Take an older record of the deleted key, as it comes behind the export."""
    return state.apply(partition=0, offset=3, timestamp_ms=60, key=b"k", value=b"old")


def test_a_deleted_key_does_not_come_back(data: Path, tmp_path: Path) -> None:
    made = export(data, tmp_path / "state", "--tombstones", *by(BY_TIME))
    state = keeplast.exported_state(made, "t", BY_TIME)
    assert {0: 3, 1: 3} == state.positions
    assert [(0, b"other"), (1, b"other")] == sorted(state)
    assert not late(state)
    assert (0, b"k") not in state


def test_an_export_without_tombstones_is_refused_by_version(data: Path, tmp_path: Path) -> None:
    for topic in (BY_TIME, BY_HEADER):
        made = export(data, tmp_path / topic.strategy.value, *by(topic))
        with pytest.raises(RefusedError, match=r"no tombstones.*--tombstones"):
            keeplast.exported_state(made, "t", topic)


@pytest.mark.parametrize("tombstones", [(), ("--tombstones",)])
def test_by_offset_any_export_will_do(
    data: Path, tmp_path: Path, tombstones: tuple[str, ...]
) -> None:
    state = keeplast.exported_state(export(data, tmp_path / "state", *tombstones), "t", BY_OFFSET)
    assert [(0, b"other"), (1, b"other")] == sorted(state)
    assert late(state)
    assert state[0, b"k"].value == b"old"


def test_records_are_those_of_the_log(data: Path, tmp_path: Path) -> None:
    made = export(data, tmp_path / "state", "--tombstones", *by(BY_HEADER))
    state = keeplast.exported_state(made, "t", BY_HEADER, partitions=[1])
    assert {1: 3} == state.positions
    assert keeplast.LiveRecord(1, 2, -1, b"other", b"1", 0) == state[1, b"other"]


def test_the_newest_version_of_incremental_exports_is_taken(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "state"
    for _ in range(2):
        export(data, target, "--incremental", "--tombstones", *by(BY_TIME))
    for place in (target, target / "current", target / "versions/00000002"):
        state = keeplast.exported_state(place, "t", BY_TIME)
        assert not late(state)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (BY_OFFSET, "exported=timestamp wanted=offset"),
        (BY_HEADER, "exported=timestamp wanted=header:ver"),
    ],
)
def test_another_strategy_is_refused(
    data: Path, tmp_path: Path, topic: TopicConfig, said: str
) -> None:
    made = export(data, tmp_path / "state", "--tombstones", *by(BY_TIME))
    with pytest.raises(RefusedError, match=said):
        keeplast.exported_state(made, "t", topic)


def test_another_header_is_refused(data: Path, tmp_path: Path) -> None:
    made = export(data, tmp_path / "state", "--tombstones", *by(BY_HEADER))
    with pytest.raises(RefusedError, match="exported=header:ver wanted=header:other"):
        keeplast.exported_state(made, "t", replace(BY_HEADER, strategy_header="other"))


@pytest.fixture
def made(data: Path, tmp_path: Path) -> Path:
    return export(data, tmp_path / "state")


def test_an_export_that_says_nothing_of_itself_is_refused(made: Path) -> None:
    (made / "_state.json").unlink()
    with pytest.raises(RefusedError, match="made by an earlier version"):
        keeplast.exported_state(made, "t", BY_OFFSET)


def test_a_timestamp_that_parquet_does_not_hold_is_refused_where_it_ranks(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "data" / "t-0", SMALL_SEGMENTS)
    log.append(NewRecord(b"k", b"v", (1 << 63) - 1))
    log.close()
    made = export(tmp_path / "data", tmp_path / "by time", "--tombstones", *by(BY_TIME))
    with pytest.raises(RefusedError, match=r"no Parquet file holds.*partition=0 offset=0"):
        keeplast.exported_state(made, "t", BY_TIME)
    made = export(tmp_path / "data", tmp_path / "by offset")
    assert [(0, b"k")] == list(keeplast.exported_state(made, "t", BY_OFFSET))


def test_a_missing_export_topic_or_partition_is_a_mistake(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no finished export is there"):
        keeplast.exported_state(tmp_path / "nowhere", "t", BY_OFFSET)
    with pytest.raises(InvalidError, match=r"no such topic\. topic=u"):
        keeplast.exported_state(made, "u", BY_OFFSET)
    with pytest.raises(InvalidError, match=r"partitions=\[2, 7\]"):
        keeplast.exported_state(made, "t", BY_OFFSET, partitions=[0, 7, 2])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("_offsets.json", "{"),
        ("_offsets.json", "[]"),
        ("_offsets.json", '{"t":{"0":-1}}'),
        ("_offsets.json", '{"t":{"0":null}}'),
        ("_state.json", "{}"),
        ("_state.json", "[]"),
        ("_state.json", '{"format":2,"tombstones":true,"topics":{}}'),
        ("_state.json", '{"format":1,"tombstones":"yes","topics":{}}'),
        ("_state.json", '{"format":1,"tombstones":true,"topics":{"t":{"strategy":"age"}}}'),
        ("_state.json", '{"format":1,"tombstones":true,"topics":[]}'),
        ("t/partition=0/part-00000.parquet", "PAR1"),
    ],
)
def test_a_damaged_export_is_named(made: Path, name: str, content: str) -> None:
    (made / name).write_text(content)
    with pytest.raises(CorruptError, match=re.escape(str(made / name))):
        keeplast.exported_state(made, "t", BY_OFFSET)


def test_missing_and_foreign_files_are_named(made: Path) -> None:
    path = made / "t/partition=0/part-00000.parquet"
    pq.write_table(pa.table({"key": ["a"], "offset": [1]}), path)
    with pytest.raises(CorruptError, match=str(path)):
        keeplast.exported_state(made, "t", BY_OFFSET)
    path.unlink()
    with pytest.raises(CorruptError, match=str(path.parent)):
        keeplast.exported_state(made, "t", BY_OFFSET)


def test_what_an_export_says_of_itself(data: Path, tmp_path: Path) -> None:
    made = export(data, tmp_path / "state", "--tombstones", *by(BY_HEADER))
    expected = {
        "format": 1,
        "tombstones": True,
        "topics": {"t": {"strategy": "header", "strategy_header": "ver"}},
    }
    assert expected == json.loads((made / "_state.json").read_text())
    rows = pq.read_table(made / "t/partition=0", partitioning=None).to_pylist()
    assert [(1, b"k", None), (2, b"other", b"0")] == [
        (row["offset"], row["key"], row["value"]) for row in rows
    ]


@pytest.mark.parametrize("name", ["_offsets.json", "_state.json", "_base.json"])
def test_a_topic_with_the_name_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    LogBuilder(tmp_path / "data" / f"{name}-0", SMALL_SEGMENTS).close()
    arguments = ["export", str(tmp_path / "data"), "--to", str(tmp_path / "x"), "--runner", "local"]
    done = called.run(*arguments, code=4)
    assert "is that of a file of the export" in done.stderr


def test_a_state_that_has_begun_does_not_begin_again() -> None:
    state = keeplast.LiveState(BY_OFFSET)
    state.begin(0, 5, [state.record(partition=0, offset=7, timestamp_ms=1, key=b"k", value=b"v")])
    assert {0: 5} == state.positions
    assert not state.apply(partition=0, offset=6, timestamp_ms=1, key=b"k", value=b"older")
    assert state[0, b"k"].value == b"v"
    with pytest.raises(InvalidError, match="partition=0 position=7"):
        state.begin(0, 0, [])
    with pytest.raises(InvalidError, match="partition=-1"):
        state.begin(-1, 0, [])
