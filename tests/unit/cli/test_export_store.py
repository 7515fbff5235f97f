"""``keeplast export STORE``: the state of what lies in a tiered store, of now and of a point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import keeplast as package
from keeplast.config.log_source import KafkaLogSource
from keeplast.config.mapping import topic_config
from keeplast.errors import ConflictError, InvalidError, RefusedError
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import SCHEMA
from tests.support.log_builder import LogBuilder
from tests.support.small_log import EPOCH_MS, write_log
from tests.unit.cli.conftest import Command

ORDERS = package.TopicPartition("orders", 0)
AT_5 = '{"orders":{"0":5}}'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Orders of three segments with a second between records, and a checkpoint of each topic."""
    root = tmp_path / "data"
    log = LogBuilder(root / "orders-0", TopicConfig())
    for number, key in enumerate(b"abacbaca"):
        if number in (3, 6):
            log.roll()
        log.append(NewRecord(bytes([key]), b"%d" % number, EPOCH_MS + 1000 * number))
    log.close()
    document = json.dumps({"orders": {"0": 5}}).encode()
    write_log(root, "checkpoints-0", {0: [(None, document), (None, b'{"orders":{"0":2}}')]})
    return root


@pytest.fixture
def store(tmp_path: Path, data: Path, keeplast: Command) -> str:
    """A store with both topics, in which nothing is cleaned."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    take_in(keeplast, data, url, "orders", "compact")
    take_in(keeplast, data, url, "checkpoints", "delete")
    return url


def take_in(keeplast: Command, data: Path, url: str, topic: str, policy: str) -> None:
    settings = ("--topic", topic, "--config", f"cleanup.policy={policy}")
    keeplast(
        "copy",
        data,
        url,
        "--new",
        "--objects",
        f"file://{data.parent / 'objects'}",
        *settings,
        code=0,
    )


def state(path: Path) -> dict[str, str]:
    rows = pq.read_table(path).to_pylist()
    return {row["key"].decode(): row["value"].decode() for row in rows}


def export(keeplast: Command, store: str, target: Path, *more: str, code: int | None = None) -> Any:
    return keeplast("export", store, "--to", target, "--runner", "local", *more, code=code)


def clean(keeplast: Command, store: str) -> None:
    keeplast(
        "clean", store, "--despite", "dirty-ratio", "--grace-ms", 0, "--topic", "orders", code=0
    )


def test_a_store_is_exported_as_its_directory_is(
    tmp_path: Path, data: Path, store: str, keeplast: Command
) -> None:
    keeplast("export", data, "--to", tmp_path / "a", "--runner", "local", "--topic", "orders")
    assert 0 == export(keeplast, store, tmp_path / "b", "--topic", "orders").code
    expected = {"b": "4", "c": "6", "a": "7"}
    assert expected == state(tmp_path / "a" / "orders") == state(tmp_path / "b" / "orders")
    clean(keeplast, store)
    assert 0 == export(keeplast, store, tmp_path / "c", "--topic", "orders").code
    assert expected == state(tmp_path / "c" / "orders")
    assert {"orders": {"0": 8}} == json.loads((tmp_path / "c" / "_offsets.json").read_text())


@pytest.mark.parametrize(
    "point",
    [
        ("--ending-offsets", AT_5),
        ("--as-of", str(EPOCH_MS + 4000)),
        ("--checkpoint", "checkpoints@0"),
    ],
)
def test_points_are_those_of_a_directory_and_refused_once_a_round_has_passed_them(
    tmp_path: Path, store: str, keeplast: Command, point: tuple[str, str]
) -> None:
    run = export(keeplast, store, tmp_path / "a", "--topic", "orders", *point, code=0)
    assert {"a": "2", "c": "3", "b": "4"} == state(tmp_path / "a" / "orders")
    assert {"orders": {"0": 5}} == json.loads((tmp_path / "a" / "_ending_offsets.json").read_text())
    clean(keeplast, store)
    run = export(keeplast, store, tmp_path / "b", "--topic", "orders", *point, code=4)
    assert "cleaned_to=8" in run.err
    assert not (tmp_path / "b").exists()


def test_an_offset_beyond_what_the_store_has_is_a_mistake(
    tmp_path: Path, store: str, keeplast: Command
) -> None:
    ends = ("--topic", "orders", "--ending-offsets", '{"orders":{"0":9}}')
    run = export(keeplast, store, tmp_path / "a", *ends, code=2)
    assert "log_end=8" in run.err


def test_status_says_as_of_which_offsets_a_state_can_be_shown(
    store: str, keeplast: Command
) -> None:
    status = ("status", store, "--topic", "orders")
    (before,) = keeplast(*status, "--json").document["partitions"]
    assert (0, 8) == (before["told_from"], before["bound"])
    clean(keeplast, store)
    (after,) = keeplast(*status, "--json").document["partitions"]
    assert 8 == after["told_from"]
    assert "can be exported as of offset 8 or later" in keeplast(*status).out


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        (("DATA",), "read one at a time", 4),
        (
            (
                "--despite",
                "partial-topics",
            ),
            "says which partitions it has",
            4,
        ),
        (("--config", "cleanup.policy=compact"), "kept with it", 2),
        (("--topic", "order"), "did you mean orders", 2),
        (("--partition", "7"), "partition=7", 2),
        (("--as", "log", "--keep", "2", "--tombstones"), "given=keep, tombstones", 2),
    ],
)
def test_an_option_that_does_not_go_with_a_store_is_named(
    tmp_path: Path, data: Path, store: str, keeplast: Command, more: tuple[str, ...], words: str,
    code: int,
) -> None:  # fmt: skip
    given = [str(data) if each == "DATA" else each for each in more]
    run = export(keeplast, store, tmp_path / "a", *given)
    assert (code, True) == (run.code, words in run.err), run.err
    assert not (tmp_path / "a").exists()


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, keeplast: Command) -> None:
    run = export(keeplast, f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "a")
    assert (2, False) == (run.code, (tmp_path / "other.db").exists())
    assert "no such store" in run.err


def test_a_version_goes_on_from_the_last_one(
    tmp_path: Path, data: Path, store: str, keeplast: Command
) -> None:
    versions = ("--topic", "orders", "--incremental", "--json")
    assert 0 == export(keeplast, store, tmp_path / "v", *versions).code
    with LogAppender(data / "orders-0", LocalFiles(), topic=TopicConfig()) as log:
        log.append([NewRecord(b"a", None, EPOCH_MS), NewRecord(b"d", b"9", EPOCH_MS)])
    take_in(keeplast, data, store, "orders", "compact")
    run = export(keeplast, store, tmp_path / "v", *versions, code=0)
    assert [8] == [each["carried_to"] for each in run.document["partitions"]]
    assert {"b": "4", "c": "6", "d": "9"} == state(tmp_path / "v" / "current" / "orders")


def test_a_python_program_asks_for_the_same(store: str, tmp_path: Path, keeplast: Command) -> None:
    with package.open_store(store, owner="me", topic_of=topic_config) as opened:
        found = package.stored_state(opened, ORDERS, end_offset=5)
        assert [2, 3, 4] == [each.offset for each in found.values()]
        timed = package.stored_state(opened, ORDERS, as_of_ms=EPOCH_MS + 4000)
        assert found == timed
        with pytest.raises(InvalidError, match="end_offset=9"):
            package.stored_state(opened, ORDERS, end_offset=9)
        with pytest.raises(InvalidError, match="not in the store"):
            package.stored_state(opened, package.TopicPartition("orders", 1))
    clean(keeplast, store)
    with package.open_store(store, owner="me", topic_of=topic_config) as opened:
        with pytest.raises(RefusedError, match="cleaned_to=8"):
            package.stored_state(opened, ORDERS, end_offset=7)
        assert [4, 6, 7] == [each.offset for each in package.stored_state(opened, ORDERS).values()]


def test_an_object_that_is_gone_is_an_error_and_no_shorter_state(
    tmp_path: Path, store: str
) -> None:
    gone = sorted((tmp_path / "objects").rglob("*.log"))
    for path in gone:
        path.unlink()
    assert gone
    with (
        package.open_store(store, owner="me", topic_of=topic_config) as opened,
        pytest.raises(ConflictError, match="keeplast verify"),
    ):
        package.stored_state(opened, ORDERS)


@pytest.mark.parametrize("content", ["all", "latest"])
def test_partitions_that_one_task_reads_are_each_read_by_their_own_objects(
    store: str, content: str
) -> None:
    given = {"store": store, "subscribe": "orders,checkpoints", "state": content}
    reader = KafkaLogSource(given).reader(SCHEMA)
    (task,) = reader.partitions()
    topics = {row["topic"] for batch in reader.read(task) for row in batch.to_pylist()}
    assert topics == ({"orders", "checkpoints"} if content == "all" else {"orders"})
