"""``keeplast export --incremental``: versions, what leads to them, and what is not continued."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.append import NewRecord
from keeplast.pipeline.increment import VersionPlace
from tests.support import called
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import SMALL_SEGMENTS


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """Topic ``t``: keys 1 and 2, of leader epoch 0."""
    built = LogBuilder(tmp_path / "data" / "t-0", SMALL_SEGMENTS)
    lead(built, [LeaderEpoch(0, 0)])
    built.record(1, 1)
    built.record(2, 1)
    return built


def lead(log: LogBuilder, epochs: list[LeaderEpoch]) -> None:
    (log.directory / LEADER_EPOCH_CHECKPOINT).write_bytes(leader_epoch.encode(epochs))


def export(log: LogBuilder, target: Path, *more: str, code: int | None = None) -> Any:
    arguments = ["export", str(log.directory.parent), "--to", str(target), "--runner", "local"]
    return called.run(*arguments, "--json", *more, code=code)


def continued(log: LogBuilder, target: Path, *more: str) -> int | None:
    """Make the next version; return up to which offset rows were carried over."""
    done = export(log, target, "--incremental", *more, code=0)
    (partition,) = json.loads(done.stdout)["partitions"]
    carried_to: int | None = partition["carried_to"]
    return carried_to


def state(target: Path) -> dict[bytes, bytes | None]:
    table = pq.read_table(target / "current/t/partition=0", partitioning=None)
    return {row["key"]: row["value"] for row in table.to_pylist()}


def versions(target: Path) -> list[str]:
    return sorted(path.name for path in (target / "versions").iterdir())


def test_each_version_is_whole_and_the_newest_ones_stay(log: LogBuilder, tmp_path: Path) -> None:
    target = tmp_path / "made" / "state"
    assert continued(log, target) is None
    assert state(target) == {b"1": b"1", b"2": b"1"}
    log.tombstone(1)
    log.record(3, 7)
    assert continued(log, target) == 2
    assert state(target) == {b"2": b"1", b"3": b"7"}
    assert json.loads((target / "current/_offsets.json").read_text()) == {"t": {"0": 4}}
    assert continued(log, target) == 4
    assert versions(target) == ["00000002", "00000003"]
    assert continued(log, target, "--keep", "3") == 4
    assert versions(target) == ["00000002", "00000003", "00000004"]
    assert continued(log, target, "--keep", "1") == 4
    assert versions(target) == ["00000005"]
    assert sorted(path.name for path in target.iterdir()) == ["current", "versions"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_files_of_a_killed_run_change_nothing(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    # It had its name, and nothing led to it yet.
    (target / "versions/00000001").rename(target / "versions/00000002")
    (target / ".current").symlink_to("versions/00000002")
    (target / "current").unlink()
    assert continued(log, target) is None
    assert state(target) == {b"1": b"1", b"2": b"1"}
    assert (target / "current").resolve().name == "00000003"
    assert not (target / ".current").is_symlink()


def test_a_log_that_was_cut_is_read_as_a_whole(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    log.record(3, 1)
    # A new leader's log went another way at offset 1.
    lead(log, [LeaderEpoch(0, 0), LeaderEpoch(4, 1)])
    done = export(log, target, "--incremental")
    assert "t-0 is read as a whole: the leader epochs do not say" in done.stderr
    assert json.loads(done.stdout)["partitions"][0]["carried_to"] is None


def test_ranks_are_not_continued(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    done = export(log, target, "--incremental", "--config", "compaction.strategy=timestamp")
    assert "t-0 is read as a whole: its records rank by version" in done.stderr


def test_rows_below_the_log_start_go(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    checkpoint = log.directory.parent / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 1\n")
    assert continued(log, target) == 2
    assert state(target) == {b"2": b"1"}


def test_a_version_of_an_earlier_keeplast_is_not_carried_over(
    log: LogBuilder, target: Path
) -> None:
    continued(log, target)
    base = target / "versions/00000001/_base.json"
    base.write_text('{"format":1,"partitions":[{"topic":"t","partition":0,"end_offset":2}]}')
    assert continued(log, target) is None
    assert continued(log, target) == 2


def test_rows_that_ranked_otherwise_are_not_carried_over(log: LogBuilder, target: Path) -> None:
    log.append(NewRecord(b"1", b"older", 5), NewRecord(b"1", b"late", 3))
    continued(log, target, "--config", "compaction.strategy=timestamp")
    assert state(target)[b"1"] != b"late"
    done = export(log, target, "--incremental")
    assert "t-0 is read as a whole: its records ranked otherwise" in done.stderr
    assert state(target)[b"1"] == b"late"


def test_tombstones_are_never_carried_over(log: LogBuilder, target: Path) -> None:
    log.tombstone(1)
    assert continued(log, target) is None
    assert continued(log, target, "--tombstones") is None
    assert state(target) == {b"2": b"1", b"1": None}
    done = export(log, target, "--incremental")
    assert "t-0 is read as a whole: tombstones are rows" in done.stderr
    assert state(target) == {b"2": b"1"}
    assert continued(log, target) == 3


def test_a_last_export_of_a_later_point_is_not_carried_over(log: LogBuilder, target: Path) -> None:
    log.record(1, 5)
    assert continued(log, target) is None
    assert continued(log, target, "--ending-offsets", '{"t":{"0":2}}') is None
    assert state(target) == {b"1": b"1", b"2": b"1"}
    assert continued(log, target) == 2
    assert state(target) == {b"2": b"1", b"1": b"5"}


def test_what_was_in_flight_at_a_point_is_not_in_a_state_as_of_it(
    log: LogBuilder, target: Path
) -> None:
    writer, open_one = log.producer(7), log.producer(8)
    writer.send_records(NewRecord(b"3", b"1"))
    open_one.send_records(NewRecord(b"4", b"1"))
    writer.commit()
    # The log ends for readers at 3, where the other begins; of 2 the marker lies behind that.
    assert continued(log, target) is None
    assert state(target) == {b"1": b"1", b"2": b"1", b"3": b"1"}
    open_one.commit()
    assert continued(log, target, "--ending-offsets", '{"t":{"0":4}}') is None
    assert state(target) == {b"1": b"1", b"2": b"1"}
    # That of a point goes on where the first begins that was in flight there.
    assert continued(log, target) == 2
    assert state(target) == {b"1": b"1", b"2": b"1", b"3": b"1", b"4": b"1"}


def test_a_log_that_was_cut_below_the_end_of_a_point_is_read_as_a_whole(
    log: LogBuilder, target: Path
) -> None:
    writer = log.producer(7)
    writer.send_records(NewRecord(b"3", b"1"))
    log.record(4, 1)
    writer.commit()
    # Rows up to 4, to be gone on from 2, where the transaction begins.
    assert continued(log, target, "--ending-offsets", '{"t":{"0":4}}') is None
    assert state(target) == {b"1": b"1", b"2": b"1", b"4": b"1"}
    lead(log, [LeaderEpoch(0, 0), LeaderEpoch(4, 3)])
    done = export(log, target, "--incremental")
    assert "t-0 is read as a whole: the leader epochs do not say" in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--keep", "3"], "--keep is about versions"),
        (["--incremental", "--despite", "existing-target"], "leave --despite existing-target out"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    log: LogBuilder, tmp_path: Path, more: list[str], said: str
) -> None:
    done = export(log, tmp_path / "state", *more, code=2)
    assert said in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("other", ["a plain export", "files of somebody", "a file"])
def test_nothing_is_added_to_what_is_something_else(
    target: Path, log: LogBuilder, tmp_path: Path, other: str
) -> None:
    if other == "a plain export":
        assert export(log, target).exit_code == 0
    elif other == "a file":
        target.write_text("mine")
    else:
        (target / "mine").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    done = export(log, target, "--incremental", code=4)
    assert "was not made by export --incremental" in done.stderr
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "damage", ["", "{}", '{"format":3,"partitions":[]}', '{"format":2,"partitions":[{}]}', None]
)
def test_a_damaged_last_version_is_not_continued(
    log: LogBuilder, target: Path, damage: str | None
) -> None:
    continued(log, target)
    base = target / "versions/00000001/_base.json"
    if damage is None:
        base.unlink()
    else:
        base.write_text(damage)
    done = export(log, target, "--incremental", code=3)
    assert "_base.json" in done.stderr
    assert versions(target) == ["00000001"]


def test_one_export_at_a_time_adds_versions(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    with VersionPlace(target).held():
        done = export(log, target, "--incremental", code=4)
        assert "another export --incremental is adding a version" in done.stderr
    assert versions(target) == ["00000001"]
    assert continued(log, target) == 2


def test_a_first_export_that_fails_leaves_nothing(log: LogBuilder, tmp_path: Path) -> None:
    target = tmp_path / "made" / "state"
    export(log, target, "--incremental", "--partition", "7", code=2)
    assert not target.exists()


def test_what_no_reader_was_ever_led_to_goes(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    place = target / "versions"
    shutil.copytree(place / "00000001", place / "00000002")
    for left in (".00000002.0123abcd.lock", ".00000001.89abcdef.lock"):
        (place / left).touch()
    (place / ".00000000.removed").mkdir()
    (place / "mine").mkdir()
    assert continued(log, target) == 2
    assert versions(target) == ["00000001", "00000002", "mine"]


@pytest.mark.parametrize("leads_to", ["elsewhere", "versions/1", "versions/00000001x"])
def test_a_link_that_leads_to_no_version_removes_none(
    log: LogBuilder, target: Path, leads_to: str
) -> None:
    continued(log, target)
    (target / "current").unlink()
    (target / "current").symlink_to(leads_to)
    assert export(log, target, "--incremental").exit_code == 3
    assert versions(target) == ["00000001"]


def test_all_of_a_version_is_on_disk_before_current_leads_to_it(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[tuple[int, int]] = set()
    fsync, settle = os.fsync, VersionPlace.settle
    found: list[int] = []

    def noted(fd: int) -> None:
        status = os.fstat(fd)
        synced.add((status.st_dev, status.st_ino))
        fsync(fd)

    def looked(place: VersionPlace, version: Path, kept: int) -> None:
        paths = [version.parent, version, *version.rglob("*")]
        found.append(len(paths))
        for path in paths:
            assert (path.stat().st_dev, path.stat().st_ino) in synced, path
        settle(place, version, kept)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(VersionPlace, "settle", looked)
    target = tmp_path / "made" / "state"
    continued(log, target)
    log.record(3, 1)
    continued(log, target)
    # Nothing came since: a link.
    continued(log, target)
    # A version that goes on from another one has what changed, too.
    assert [8, 13, 13] == found


def changed(target: Path) -> dict[bytes, bytes | None]:
    """Return what the keys that changed stand for now, None for those that are gone."""
    table = pq.read_table(target / "current/_changes/t/partition=0", partitioning=None)
    found = {row["key"]: row for row in table.to_pylist()}
    assert len(found) == table.num_rows
    for row in found.values():
        others = [value for name, value in row.items() if name not in ("key", "deleted")]
        assert row["deleted"] is all(value is None for value in others)
    return {key: row["value"] for key, row in found.items()}


def test_a_version_has_each_key_that_changed_once(log: LogBuilder, target: Path) -> None:
    continued(log, target)
    assert not (target / "current/_changes").exists()
    log.tombstone(1)
    log.record(3, 5)
    log.record(3, 7)
    log.record(4, 1)
    log.tombstone(4)
    done = json.loads(export(log, target, "--incremental", code=0).stdout)
    assert {b"1": None, b"3": b"7"} == changed(target)
    assert {"t": {"0": 2}} == done["changed_keys"]
    since = json.loads((target / "current/_changes/_since.json").read_text())
    assert {"format": 1, "since": "versions/00000001", "whole": {}} == since


def test_where_tombstones_are_rows_a_key_is_deleted_once(log: LogBuilder, target: Path) -> None:
    continued(log, target, "--tombstones")
    log.tombstone(1)
    continued(log, target, "--tombstones")
    assert {b"1": None} == changed(target)
    log.record(2, 9)
    continued(log, target, "--tombstones")
    assert {b"2": b"9"} == changed(target)
    log.record(1, 4)
    continued(log, target)
    assert {b"1": b"4"} == changed(target)


def test_a_partition_of_another_log_has_no_changes_and_is_named(
    log: LogBuilder, target: Path
) -> None:
    continued(log, target)
    lead(log, [LeaderEpoch(1, 0)])
    done = json.loads(export(log, target, "--incremental", code=0).stdout)
    since = json.loads((target / "current/_changes/_since.json").read_text())
    assert {"t": [0]} == since["whole"]
    assert {} == done["changed_keys"]
    assert not (target / "current/_changes/t").exists()


def test_an_export_that_is_no_version_has_no_changes(log: LogBuilder, tmp_path: Path) -> None:
    assert json.loads(export(log, tmp_path / "state", code=0).stdout)["changed_keys"] is None
