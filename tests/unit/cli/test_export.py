"""``keeplast export``: what it writes, what it refuses, and that it leaves no half of anything."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.format.filename import META_PROPERTIES
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline import export as export_module
from keeplast.pipeline import export_tasks
from tests.support import called
from tests.support.committed_offsets import commit_offsets
from tests.support.flipped import flip
from tests.support.log_builder import LogBuilder
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS
from tests.support.reader import read_partition
from tests.support.small_log import EPOCH_MS, write_log

SAMPLE = Path(__file__).parents[3] / "src/keeplast/samples/broker-4.3.0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topic ``t`` with a log of everything, topic ``u`` with two small partitions."""
    root = tmp_path / "data"
    write_mixed_log(root)
    write_log(root, "u-0", {0: [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]})
    write_log(root, "u-1", {0: [(b"c", b"1"), (b"c", None), (None, b"no key")]})
    return root


def run(data: Path, target: Path, *more: str, code: int | None = None) -> Any:
    arguments = ["export", str(data), "--to", str(target), "--runner", "local", *more]
    return called.run(*arguments, code=code)


def state(path: Path) -> dict[bytes, bytes]:
    return {row["key"]: row["value"] for row in pq.read_table(path).to_pylist()}


def test_each_topic_is_a_directory_of_partitions(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "made" / "state"
    done = run(data, target, "--json", code=0)
    document = json.loads(done.stdout)
    offsets = {"t": {"0": 62}, "u": {"0": 3, "1": 3}}
    assert offsets == document["offsets"] == json.loads((target / "_offsets.json").read_text())
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == [
        "_offsets.json",
        "_state.json",
        "t/partition=0/part-00000.parquet",
        "u/partition=0/part-00000.parquet",
        "u/partition=1/part-00000.parquet",
    ]
    assert [2, 0] == [each["records"] for each in document["partitions"] if each["topic"] == "u"]
    assert {b"a": b"3", b"b": b"2"} == state(target / "u/partition=0")
    assert {} == state(target / "u/partition=1/part-00000.parquet")
    final = read_partition(data / "t-0").final_values()
    assert final == state(target / "t/partition=0/part-00000.parquet")
    assert [target] == list(target.parent.iterdir())


def test_a_partition_is_a_column_again_when_the_topic_is_read(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "state", "--topic", "u")
    table = pq.read_table(tmp_path / "state/u")
    assert {0} == set(table.column("partition").to_pylist())
    assert not (tmp_path / "state/t").exists()


def test_the_state_is_by_the_topics_rank(data: Path, tmp_path: Path) -> None:
    log = LogBuilder(data / "v-0", TopicConfig())
    log.append(NewRecord(b"a", b"newer", NOW_MS + 1))
    log.append(NewRecord(b"a", b"later in the log", NOW_MS))
    log.close()
    ranks = {"offset": b"later in the log", "timestamp": b"newer"}
    for strategy, expected in ranks.items():
        config = ["--topic", "v", "--config", f"compaction.strategy={strategy}"]
        assert 0 == run(data, tmp_path / strategy, *config).exit_code
        assert {b"a": expected} == state(tmp_path / strategy / "v/partition=0")
        said = run(data, tmp_path / strategy, *config, "--despite", "existing-target")
        assert f"v: the records of a key rank by {strategy}, from --config" in said.stderr
    said = run(data, tmp_path / "said", *config, "--json")
    assert {"v": "timestamp, from --config"} == json.loads(said.stdout)["ranked_by"]
    broken = run(
        data, tmp_path / "other", "--topic", "u", "--config", "compaction.strategy=age", code=2
    )
    assert "compaction.strategy" in broken.stderr


def test_a_large_partition_is_written_in_parts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(data, tmp_path / "whole", "--cores", "2", "--json")
    assert "3 partitions, each by one task" in whole.stderr
    monkeypatch.setattr(export_tasks, "SMALLEST_CUT_BYTES", 0)
    monkeypatch.setattr(export_tasks, "PART_BYTES_MIN", 1)
    cut = run(data, tmp_path / "cut", "--cores", "2", "--json", code=0)
    assert "2 partitions, each by one task" in cut.stderr
    (how,) = [each for each in json.loads(cut.stdout)["partitions"] if each["topic"] == "t"]
    assert ("broadcast", 0) == (how["shape"], how["buckets"])
    assert how["tasks"] > 2
    assert f"t-0 in {how['tasks']} parts: too large for one task" in cut.stderr
    assert json.loads(whole.stdout)["offsets"] == json.loads(cut.stdout)["offsets"]
    one, several = tmp_path / "whole/t/partition=0", tmp_path / "cut/t/partition=0"
    assert 1 == len(list(one.iterdir()))
    assert 1 < len(list(several.iterdir())) <= how["tasks"]
    rows = [row for path in sorted(several.iterdir()) for row in pq.read_table(path).to_pylist()]
    assert pq.read_table(one / "part-00000.parquet").to_pylist() == rows


def test_files_in_the_way_are_replaced_only_on_request(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "state"
    assert 0 == run(data, target).exit_code
    refused = run(data, target, code=4)
    assert "--despite existing-target" in refused.stderr
    assert 0 == run(data, target, "--despite", "existing-target", "--topic", "u").exit_code
    assert ["_offsets.json", "_state.json", "u"] == sorted(path.name for path in target.iterdir())
    assert ["data", "state"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_directory_without_an_export_is_never_replaced(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"cat")
    done = run(data, other, "--despite", "existing-target", code=4)
    assert "is no export" in done.stderr
    assert b"cat" == (other / "cat.jpg").read_bytes()


def test_an_export_never_lies_among_logs(data: Path, tmp_path: Path) -> None:
    """A broker does not start on a data directory that holds a directory which is no partition."""
    before = sorted(data.iterdir())
    assert 4 == run(data, data / "state").exit_code
    assert 4 == run(data / "t-0", data).exit_code
    link = tmp_path / "link"
    link.symlink_to(data)
    assert 4 == run(data, link / "state").exit_code
    assert 4 == run(link, data / "state").exit_code
    (data / META_PROPERTIES).touch()
    assert 4 == run(data / "t-0", data / "state").exit_code
    (data / META_PROPERTIES).unlink()
    assert before == sorted(data.iterdir())


@pytest.mark.parametrize("url", ["hdfs://host/state", "s3:///state"])
def test_an_export_goes_to_no_other_kind_of_store(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["export", str(data), "--to", url, "--runner", "local"]
    assert CliRunner().invoke(app, arguments).exit_code in (2, 4)
    assert ["data"] == [path.name for path in tmp_path.iterdir()]


def test_a_file_that_came_meanwhile_is_not_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "state"

    def written(*arguments: Any) -> Any:
        target.mkdir()
        (target / "cat.jpg").write_bytes(b"cat")
        return write(*arguments)

    write = export_module._write
    monkeypatch.setattr(export_module, "_write", written)
    assert 4 == run(data, target).exit_code
    assert ["cat.jpg"] == [path.name for path in target.iterdir()]
    assert ["data", "state"] == sorted(path.name for path in tmp_path.iterdir())


def test_an_export_is_replaced_where_a_link_leads(data: Path, tmp_path: Path) -> None:
    link, place = tmp_path / "link", tmp_path / "volume"
    assert 0 == run(data, place / "state").exit_code
    link.symlink_to(place / "state")
    assert 0 == run(data, link, "--despite", "existing-target", "--topic", "u").exit_code
    assert ["_offsets.json", "_state.json", "u"] == sorted(path.name for path in link.iterdir())
    assert link.is_symlink()
    assert ["state"] == [path.name for path in place.iterdir()]


def test_a_failed_export_leaves_nothing(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "state"
    assert 0 == run(data, target).exit_code
    before = json.loads((target / "_offsets.json").read_text())
    log = data / "t-0" / f"{10:020d}.log"
    flip(log)
    done = run(data, target, "--despite", "existing-target", "--json", code=3)
    assert str(log) == json.loads(done.stdout)["error"]["path"]
    assert before == json.loads((target / "_offsets.json").read_text())
    assert ["data", "state"] == sorted(path.name for path in tmp_path.iterdir())
    assert 3 == run(data, tmp_path / "new").exit_code
    assert not (tmp_path / "new").exists()


def test_a_log_that_is_cut_off_meanwhile_is_not_exported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = export_module._write

    def write_and_truncate(*arguments: Any) -> Any:
        written = write(*arguments)
        segment = data / f"u-0/{0:020d}.log"
        segment.write_bytes(segment.read_bytes()[:-1])
        return written

    monkeypatch.setattr(export_module, "_write", write_and_truncate)
    done = run(data, tmp_path / "state")
    assert 0 != done.exit_code
    assert "truncated or made again while its state was read" in " ".join(done.output.split())
    assert not (tmp_path / "state").exists()


def test_files_of_a_killed_export_go_with_the_next_one(data: Path, tmp_path: Path) -> None:
    left = tmp_path / ".state.0123abcd.partial"
    left.mkdir()
    (left / "part-00000.parquet").touch()
    assert 0 == run(data, tmp_path / "state").exit_code
    assert ["data", "state"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_full_disk_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pq.ParquetWriter,
        "write_batch",
        Mock(side_effect=OSError(errno.ENOSPC, "Error writing bytes to file")),
    )
    done = run(data, tmp_path / "state", "--topic", "u", "--json", code=5)
    assert str(tmp_path) in json.loads(done.stdout)["error"]["path"]
    assert ["data"] == [path.name for path in tmp_path.iterdir()]


def test_an_export_that_is_stopped_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "_settle", Mock(side_effect=KeyboardInterrupt))
    assert 130 == run(data, tmp_path / "state").exit_code
    assert ["data"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topic", "orderz"], "did you mean"),
        (["--partition", "9"], "no such partition"),
        (["--memory", "5k"], "give at least 32m. --memory='5k'"),
        (["--task-memory", "0"], "give at least 1m. --task-memory='0'"),
        (["--task-memory", "-1"], "not a size"),
    ],
)
def test_mistakes_are_usage_errors(
    data: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    done = run(data, tmp_path / "state", *arguments, code=2)
    assert expected in done.stderr.lower()
    assert not (tmp_path / "state").exists()


def test_reading_on_from_the_offsets_misses_nothing(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "data")
    assert 0 == run(tmp_path / "data", tmp_path / "state").exit_code
    (end,) = json.loads((tmp_path / "state/_offsets.json").read_text())["orders"].values()
    readable = read_partition(tmp_path / "data/orders-0")
    assert end == readable.end_offset
    assert readable.final_values() == state(tmp_path / "state/orders/partition=0")


def test_the_state_as_of_earlier_offsets_is_that_of_the_records_before_them(
    data: Path, tmp_path: Path
) -> None:
    ending = '{"u":{"0":2,"1":1}}'
    done = run(
        data, tmp_path / "then", "--topic", "u", "--ending-offsets", ending, "--json", code=0
    )
    assert {b"a": b"1", b"b": b"2"} == state(tmp_path / "then" / "u" / "partition=0")
    assert {b"c": b"1"} == state(tmp_path / "then" / "u" / "partition=1")
    assert json.loads(ending) == json.loads(done.stdout)["offsets"]
    # What an export has written down names the same point again.
    again = f"@{tmp_path / 'then' / '_offsets.json'}"
    assert 0 == run(data, tmp_path / "again", "--topic", "u", "--ending-offsets", again).exit_code
    for number in (0, 1):
        place = Path("u") / f"partition={number}"
        assert state(tmp_path / "then" / place) == state(tmp_path / "again" / place)


def test_a_point_that_cleaning_has_passed_is_refused_with_the_earliest_that_is_left(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    write_log(root, "c-0", {0: [(b"a", b"1"), (b"a", b"2")], 2: [(b"b", b"3")], 3: [(b"c", b"4")]})
    (root / "cleaner-offset-checkpoint").write_bytes(b"0\n1\nc 0 3\n")
    gone = run(root, tmp_path / "gone", "--ending-offsets", '{"c":{"0":2}}')
    assert (4, True) == (gone.exit_code, "cleaned_to=3" in gone.output), gone.output
    assert not (tmp_path / "gone").exists()
    run(root, tmp_path / "ends", "--ending-offsets", '{"c":{"0":3}}', code=0)
    assert {b"a": b"2", b"b": b"3"} == state(tmp_path / "ends" / "c" / "partition=0")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ('{"x":{"0":2}}', "an offset of a partition that this query does not read"),
        ('{"u":{"0":99}}', "the log does not have this offset"),
        ("[]", "endingOffsets"),
        ("@nowhere", "the file of offsets cannot be read"),
    ],
)
def test_offsets_that_name_no_point_are_usage_errors(
    data: Path, tmp_path: Path, ending: str, said: str
) -> None:
    done = run(data, tmp_path / "out", "--topic", "u", "--ending-offsets", ending)
    assert (2, True) == (done.exit_code, said in done.output), done.output


def write_shared(root: Path, *checkpoints: bytes | None) -> Path:
    """Topics ``a`` of two partitions and ``b``, and ``points`` with these values as its records."""
    write_log(root, "a-0", {0: [(b"k", b"1"), (b"k", b"2"), (b"l", b"3")]})
    write_log(root, "a-1", {0: [(b"m", b"1"), (b"m", None)]})
    write_log(root, "b-0", {0: [(b"n", b"1"), (b"n", b"2")]})
    write_log(root, "points-0", {0: [(b"p", value) for value in checkpoints]})
    return root


EARLIER = b'{"a":{"0":1,"1":1},"b":{"0":1}}'
LATER = b'{"a":{"0":2,"1":2},"b":{"0":2}}'


def test_a_checkpoint_says_what_is_exported_and_as_of_which_offsets(tmp_path: Path) -> None:
    root = write_shared(tmp_path / "data", EARLIER, LATER, None)
    done = run(root, tmp_path / "last", "--checkpoint", "points", "--json", code=0)
    assert {b"k": b"2"} == state(tmp_path / "last/a/partition=0")
    assert {} == state(tmp_path / "last/a/partition=1")
    assert {b"n": b"2"} == state(tmp_path / "last/b/partition=0")
    document = json.loads(done.stdout)
    assert json.loads(LATER) == document["ending_offsets"] == document["offsets"]
    assert {"checkpoint": "points-0@1"} == document["as_of"]
    assert document["offsets"] == json.loads((tmp_path / "last/_ending_offsets.json").read_text())
    first = run(root, tmp_path / "first", "--checkpoint", "points@0", "--topic", "a")
    assert (0, True) == (first.exit_code, "as of the checkpoint points-0@0" in first.output)
    assert {b"m": b"1"} == state(tmp_path / "first/a/partition=1")
    assert not (tmp_path / "first/b").exists()


@pytest.mark.parametrize(
    ("values", "arguments", "code", "said"),
    [
        ([], ["points"], 2, "no committed record with a value"),
        ([None], ["points"], 2, "no committed record with a value"),
        ([EARLIER], ["points@1"], 2, "no committed record with a value there"),
        ([EARLIER], ["points@x"], 2, "give TOPIC, or TOPIC@OFFSET"),
        ([EARLIER], ["pionts"], 2, "did you mean points"),
        ([b"no json"], ["points"], 2, "not understood"),
        ([b"[" * 100_000], ["points"], 2, "not understood"),
        ([b"\xff{}"], ["points"], 2, "not understood"),
        ([b"{}"], ["points"], 2, "names no point"),
        ([b'{"a":{"0":-1}}'], ["points"], 2, "names no point"),
        ([b'{"a":{"0":1},"zz":{"0":1}}'], ["points"], 2, "no such topic"),
        ([b'{"a":{"0":1,"7":1}}'], ["points"], 2, "does not read"),
        ([b'{"a":{"0":1}}'], ["points"], 2, "names no offset of this partition"),
        ([b'{"a":{"0":1}}'], ["points", "--topic", "b"], 2, "nothing that was chosen"),
        ([b'{"a":{"0":1}}'], ["points", "--as-of", "7"], 2, "one point at a time"),
        ([b'{"a":{"0":99}}'], ["points", "--partition", "0"], 2, "does not have this offset"),
    ],
)
def test_a_bad_checkpoint_is_reported(
    tmp_path: Path, values: list[bytes | None], arguments: list[str], code: int, said: str
) -> None:
    root = write_shared(tmp_path / "data", *values)
    done = run(root, tmp_path / "out", "--checkpoint", *arguments)
    assert (code, True) == (done.exit_code, said in " ".join(done.output.split())), done.output
    assert not (tmp_path / "out").exists()


def test_checkpoints_of_several_partitions_have_no_order(tmp_path: Path) -> None:
    root = write_shared(tmp_path / "data", LATER)
    write_log(root, "points-1", {0: []})
    assert 0 == run(root, tmp_path / "one", "--checkpoint", "points").exit_code
    write_log(root, "points-2", {0: [(b"p", EARLIER)]})
    done = run(root, tmp_path / "two", "--checkpoint", "points")
    assert (4, True) == (done.exit_code, "partitions=points-0,points-2" in done.output)


def test_a_checkpoint_of_an_aborted_transaction_does_not_count(tmp_path: Path) -> None:
    root = write_shared(tmp_path / "data")
    shutil.rmtree(root / "points-0")
    log = LogBuilder(root / "points-0", TopicConfig())
    for number, (value, commits) in enumerate([(EARLIER, True), (LATER, False), (LATER, None)]):
        producer = log.producer(number)
        producer.send_records(NewRecord(b"p", value, NOW_MS))
        if commits is not None:
            _ = producer.commit() if commits else producer.abort()
    log.close()
    done = run(root, tmp_path / "out", "--checkpoint", "points", "--json")
    assert json.loads(EARLIER) == json.loads(done.stdout)["ending_offsets"], done.output


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_the_committed_offsets_of_a_group_are_a_checkpoint(tmp_path: Path) -> None:
    root = write_shared(tmp_path / "data")
    commit_offsets(root, "readers", {A0: 2, A1: 1, TopicPartition("gone", 0): 7})
    done = run(root, tmp_path / "out", "--checkpoint-group", "readers", "--json", code=0)
    document = json.loads(done.stdout)
    assert {"a": {"0": 2, "1": 1}} == document["ending_offsets"] == document["offsets"]
    assert {"group": "readers"} == document["as_of"]
    assert {b"k": b"2"} == state(tmp_path / "out/a/partition=0")
    assert {b"m": b"1"} == state(tmp_path / "out/a/partition=1")
    assert not (tmp_path / "out/b").exists()
    again = run(root, tmp_path / "one", "--checkpoint-group", "readers", "--partition", "0")
    assert (0, True) == (again.exit_code, "what group readers has committed" in again.output)
    assert not (tmp_path / "one/a/partition=1").exists()


@pytest.mark.parametrize(
    ("offsets", "arguments", "code", "said"),
    [
        ({}, ["readers"], 2, "has committed nothing"),
        ({A0: None}, ["readers"], 2, "has committed nothing"),
        ({A0: 1}, ["others"], 2, "is not in this directory"),
        ({A0: 1}, ["readers"], 2, "names no offset of this partition"),
        ({A0: 1}, ["readers", "--topic", "b"], 2, "has committed nothing"),
        ({A0: 1}, ["readers", "--topic", "c"], 2, "no such topic"),
        ({A0: 1, A1: 3}, ["readers"], 4, "beyond the log end"),
        ({A0: 1}, ["x" * (1 << 15)], 2, "not the name of a consumer group"),
        ({B0: 1}, ["readers", "--as-of", "7"], 2, "one point at a time"),
    ],
)
def test_what_makes_no_checkpoint_of_a_group_is_said(
    tmp_path: Path,
    offsets: dict[TopicPartition, int | None],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    root = write_shared(tmp_path / "data")
    commit_offsets(root, "readers", offsets or {TopicPartition("gone", 0): 1})
    done = run(root, tmp_path / "out", "--checkpoint-group", *arguments)
    assert (code, True) == (done.exit_code, said in " ".join(done.output.split())), done.output
    assert not (tmp_path / "out").exists()


def test_the_state_as_of_a_time_ends_in_front_of_the_first_later_record(
    data: Path, tmp_path: Path
) -> None:
    at = EPOCH_MS + 1
    done = run(data, tmp_path / "then", "--topic", "u", "--as-of", str(at), "--json", code=0)
    document = json.loads(done.stdout)
    assert {"u": {"0": 2, "1": 2}} == document["ending_offsets"]
    assert {"time_ms": at, "is_approximate": True} == document["as_of"]
    assert {b"a": b"1", b"b": b"2"} == state(tmp_path / "then/u/partition=0")
    said = run(data, tmp_path / "iso", "--topic", "u", "--as-of", "2023-11-14T22:13:20.001Z")
    assert (0, True) == (said.exit_code, "approximately" in said.output), said.output
    assert state(tmp_path / "then/u/partition=0") == state(tmp_path / "iso/u/partition=0")


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("yesterday", "not a time"),
        ("2023-11-14T22:13:20", "without a zone"),
        ("1923-11-14T22:13:20Z", "before 1970"),
        ("-1", "not a time"),
    ],
)
def test_a_bad_time_is_a_usage_error(data: Path, tmp_path: Path, time: str, said: str) -> None:
    done = run(data, tmp_path / "out", f"--as-of={time}")
    assert (2, True) == (done.exit_code, said in " ".join(done.output.split())), done.output


@pytest.mark.parametrize("part_bytes", [None, 1])
def test_a_transaction_that_is_in_flight_at_the_end_is_what_is_read_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int | None
) -> None:
    log = LogBuilder(tmp_path / "data/t-0", TopicConfig())
    log.record(1, 10)
    producer = log.producer(7)
    producer.send(2)
    log.record(3, 30)
    producer.commit()
    log.close()
    if part_bytes is not None:
        monkeypatch.setattr(export_tasks, "SMALLEST_CUT_BYTES", part_bytes)
    ending = '{"t":{"0":3}}'
    more = ["--cores", "2"] if part_bytes else []
    done = run(
        tmp_path / "data", tmp_path / "out", "--ending-offsets", ending, "--json", *more, code=0
    )
    document = json.loads(done.stdout)
    assert {b"1": b"10", b"3": b"30"} == state(tmp_path / "out/t/partition=0")
    assert ({"t": {"0": 3}}, {"t": {"0": 1}}) == (document["ending_offsets"], document["offsets"])
    assert document["offsets"] == json.loads((tmp_path / "out/_offsets.json").read_text())


def test_several_directories_are_exported_as_one_place(data: Path, tmp_path: Path) -> None:
    """As those of one broker; of a partition that is in two of them the furthest is read."""
    other = tmp_path / "other"
    write_log(other, "u-1", {0: [(b"c", b"1")]})
    write_log(other, "u-2", {0: [(b"d", b"1")]})
    done = run(data, tmp_path / "state", str(other), "--topic", "u", "--json", code=0)
    assert {"u": {"0": 3, "1": 3, "2": 1}} == json.loads(done.stdout)["offsets"]
    said = " ".join(done.stderr.split())
    assert f"u-1 is read from {data}, to offset 3, the furthest of 2 replicas" in said


def test_a_part_of_a_topic_is_exported_only_where_that_is_asked(tmp_path: Path) -> None:
    """The sample's metadata log knows orders-0: here it lies without it, next to another number."""
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "orders-0").rename(data / "orders-1")
    refused = run(data, tmp_path / "state", "--topic", "orders", code=4)
    assert "missing=orders-0" in " ".join(refused.stderr.split())
    assert not (tmp_path / "state").exists()
    limit = ("--despite", "partial-topics")
    assert " ".join(limit) in " ".join(refused.stderr.split())
    part = run(data, tmp_path / "state", "--topic", "orders", *limit, "--json", code=0)
    assert {"orders": {"1": 339}} == json.loads(part.stdout)["offsets"]


def test_damage_that_whole_batches_follow_is_no_end_of_a_log(data: Path, tmp_path: Path) -> None:
    path = data / "u-0/00000000000000000000.log"
    flip(path, -100)
    done = run(data, tmp_path / "state", "--topic", "u", code=3)
    assert "whole batches follow" in " ".join(done.stderr.split())
    assert not (tmp_path / "state").exists()
