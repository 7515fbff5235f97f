"""Exports from Python: the latest state, an earlier one, and versions that continue each other."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import keeplast
from keeplast.api.place import AskedPlace
from keeplast.errors import InvalidError, RefusedError, StoppedError
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import end_of, state_up_to
from tests.support.committed_offsets import commit_offsets
from tests.support.heard_export import HeardExport
from tests.support.placed_logs import ANNA, BEN, FILLER, take_in
from tests.support.verified_world import VerifiedWorld

T0 = keeplast.TopicPartition("t", 0)


@pytest.fixture(params=["path", "directory", "store"])
def place(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> AskedPlace | Path:
    match request.param:
        case "path":
            return data
        case "directory":
            return keeplast.DirectoryLogs(data)
        case _:
            return keeplast.StoredLogs(take_in(data, tmp_path))


def rows(target: Path, topic: str = "t", number: int = 0) -> dict[bytes, bytes | None]:
    folder = target / topic / f"partition={number}"
    found = [pq.read_table(each, partitioning=None) for each in sorted(folder.glob("*.parquet"))]
    return {row["key"]: row["value"] for table in found for row in table.to_pylist()}


def test_the_latest_state_is_written_with_where_to_go_on(
    place: AskedPlace | Path, tmp_path: Path
) -> None:
    heard = HeardExport()
    done = keeplast.export(place, tmp_path / "out", topics=["t"], events=heard)
    assert {BEN: b"2", FILLER: b"3"} == rows(done.target)
    assert {FILLER: b"2"} == rows(done.target, number=1)
    assert {"t": {"0": 4, "1": 2}} == done.offsets()
    assert json.loads((done.target / "_offsets.json").read_text()) == done.offsets()
    assert 0 < heard.read_bytes <= heard.planned_bytes


def test_a_consumer_goes_on_from_it(place: AskedPlace | Path, tmp_path: Path) -> None:
    done = keeplast.export(place, tmp_path / "out", topics=["t"])
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    state = keeplast.exported_state(done.target, "t", topic)
    assert {0: 4, 1: 2} == state.positions
    assert b"2" == state[0, BEN].value


def test_an_earlier_state_is_that_of_its_offsets(place: AskedPlace | Path, tmp_path: Path) -> None:
    done = keeplast.export(
        place, tmp_path / "out", topics=["t"], partitions=[0], ending_offsets={"t": {0: 2}}
    )
    assert {ANNA: b"1", BEN: b"2"} == rows(done.target)
    assert {"t": {"0": 2}} == done.ending_offsets()
    with_deletes = keeplast.export(
        place, tmp_path / "deletes", topics=["t"], partitions=[0], tombstones=True
    )
    assert {ANNA: None, BEN: b"2", FILLER: b"3"} == rows(with_deletes.target)


def test_a_state_as_of_a_time_is_of_all_records_that_are_not_later(
    place: AskedPlace | Path, tmp_path: Path
) -> None:
    log = keeplast.open_log(tmp_path / "data" / "t-0")
    first = next(iter(log.records())).timestamp
    done = keeplast.export(place, tmp_path / "out", topics=["t"], as_of_ms=first - 1)
    assert {"t": {"0": 0, "1": 0}} == done.ending_offsets()
    last = max(each.timestamp for each in log.records())
    late = keeplast.export(place, tmp_path / "late", topics=["t"], as_of_ms=last)
    assert {BEN: b"2", FILLER: b"3"} == rows(late.target)


def test_a_group_is_exported_up_to_its_committed_offsets_alone(data: Path, tmp_path: Path) -> None:
    commit_offsets(data, "readers", {T0: 2})
    with pytest.raises(InvalidError, match="names no offset of this partition"):
        keeplast.export(data, tmp_path / "out", end_group="readers")
    done = keeplast.export(data, tmp_path / "out", partitions=[0], end_group="readers")
    assert {"t": {"0": 2}} == done.ending_offsets()
    assert {ANNA: b"1", BEN: b"2"} == rows(done.target)


def test_versions_continue_each_other_and_the_newest_ones_stay(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "state"
    first = keeplast.export(data, out, topics=["t"], incremental=True)
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    with LogAppender(data / "t-0", LocalFiles(), topic=topic, leader_epoch=0) as log:
        log.append([NewRecord(key=BEN, value=None), NewRecord(key=b"new", value=b"9")])
    second = keeplast.export(data, out, topics=["t"], incremental=True, keep=1)
    assert {b"new": b"9", FILLER: b"3"} == rows(out / "current")
    assert ([second.target], False) == (
        list((out / "versions").iterdir()), first.target.exists()
    )  # fmt: skip
    full = keeplast.export(data, tmp_path / "full", topics=["t"])
    assert rows(full.target) == rows(second.target)
    assert full.offsets() == second.offsets()


def test_files_in_the_way_stay_unless_they_are_given_up(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keeplast.export(data, out, topics=["t"])
    with pytest.raises(RefusedError, match="something is there already"):
        keeplast.export(data, out, topics=["t"])
    keeplast.export(data, out, topics=["t"], overwrite=True)
    with pytest.raises(RefusedError, match="would lie in one another"):
        keeplast.export(data, data / "out")


def test_an_export_that_is_stopped_leaves_nothing(data: Path, tmp_path: Path) -> None:
    class Stopping(HeardExport):
        def progressed(self, read_bytes: int) -> None:
            raise StoppedError("enough")

    with pytest.raises(StoppedError, match="enough"):
        keeplast.export(data, tmp_path / "out", events=Stopping())
    assert ["data"] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topics": "t"}, "as a collection"),
        ({"topics": ["other"]}, "other"),
        ({"as_of_ms": 1, "checkpoint": "t"}, "one point at a time"),
        ({"keep": 2}, "give --incremental too"),
        ({"keep": 0, "incremental": True}, "keep one at least"),
        ({"overwrite": True, "incremental": True}, "leave --despite existing-target out"),
        ({"ending_offsets": {"t": {0: -7}}}, "endingOffsets"),
        ({"end_group": "nobody"}, "nobody"),
    ],
)
def test_contradicting_arguments_are_the_callers_mistake(
    place: AskedPlace | Path, tmp_path: Path, given: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        keeplast.export(place, tmp_path / "out", **given)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_live_topics_state_ends_where_brokers_have_copied_it(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    url = f"sqlite:///{world.world.root / 'decisions.db'}"
    place = keeplast.AttachedLogs("127.0.0.1:1", storage="local:/x", store=url)
    name, number, end = PARTITION.topic, PARTITION.partition, end_of(world)
    done = keeplast.export(place, tmp_path / "out", topics=[name])
    assert state_up_to(world, end) == rows(done.target, name, number)
    with pytest.raises(RefusedError, match="cleaned_to="):
        keeplast.export(place, tmp_path / "early", ending_offsets={name: {number: 5}})
    heard = HeardExport()
    alone = keeplast.AttachedLogs("127.0.0.1:1", storage="local:/x")
    keeplast.export(alone, tmp_path / "alone", topics=[name], events=heard)
    assert any("only the latest state is known" in each for each in heard.notes)
