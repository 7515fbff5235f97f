"""``keeplast erase`` and ``keeplast erasure``: what they say, refuse, sign and find again."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from keeplast.clock import SystemClock
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.partition_metadata import PartitionMetadata, encode
from keeplast.format.record import Record
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import statement_bytes
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.receipt import append_receipt
from keeplast.service.erasure.certificate import CONTEXT
from keeplast.signing import Signer
from keeplast.store.tiered_store import TieredStore
from tests.support import called
from tests.support.committed_offsets import commit_offsets, home_of
from tests.support.group_cluster import GroupCluster
from tests.support.heard_calls import hear
from tests.support.key_pair import OperatorFiles, write_operator_files
from tests.support.small_log import batch, write_log
from tests.support.travelling import Travelling
from tests.unit.cli.conftest import Command, Run

ANNA, BEN, CORA = b"anna-4711", b"ben-4712", b"cora-4713"
FILLER = b"filler"
NOW = 1_800_000_000_000
STAGED = f"{0:020d}.log.abc.deleted"
CONTROL_BYTE, CONTROL_BIT = 22, 0x20
"""Where a batch's header says that it has markers alone (formats.md 1.1)."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two partitions of ``t``: anna is overwritten and deleted, ben has a value, cora none."""
    root = tmp_path / "data"
    root.mkdir()
    (root / "keeplast.toml").write_text(
        '[topic."t"]\ncleanup.policy = "compact"\ndelete.retention.ms = 0\n'
    )
    write_log(root, "t-0", {0: [(ANNA, b"1"), (BEN, b"2")], 2: [(ANNA, None), (FILLER, b"3")]})
    write_log(root, "t-1", {0: [(FILLER, b"1")], 1: [(FILLER, b"2")]})
    return root


@pytest.fixture
def operator(tmp_path: Path) -> OperatorFiles:
    return write_operator_files(tmp_path / "apart", [ANNA])


def with_keys(operator: OperatorFiles, *keys: bytes) -> OperatorFiles:
    operator.keys.write_bytes(b"".join(key + b"\n" for key in keys))
    return operator


def erase(
    keeplast: Command, data: Path, operator: OperatorFiles, *more: object, code: int = 0
) -> Run:
    return keeplast(
        "erase", "keys", data, "--keys", operator.keys, "--hash-key", operator.hash_key,
        "--topic", "t",
        *more, code=code,
    )  # fmt: skip


def certify(
    keeplast: Command, data: Path, operator: OperatorFiles, out: Path, *more: object, code: int = 0
) -> Run:
    return keeplast(
        "erase", "certify", data, "--hash-key", operator.hash_key,
        "--sign-key", operator.sign_key, "--out", out, *more, code=code,
    )  # fmt: skip


def prove(
    keeplast: Command, out: Path, operator: OperatorFiles, *more: object, code: int = 0
) -> Run:
    return keeplast(
        "erase", "check", out, "--public-key", operator.public_key, *more, "--json", code=code
    )


def named(text: str) -> list[bytes]:
    """Return the keys that stand in a text, in whatever form."""
    return [
        key
        for key in (ANNA, BEN, CORA)
        if any(form in text for form in (key.decode(), key.hex(), b64encode(key).decode()))
    ]


def standings(run: Run) -> dict[int, str]:
    return {each["partition"]: each["standing"] for each in run.document["data"]}


def erased(keeplast: Command, data: Path, operator: OperatorFiles, folder: Path) -> Path:
    """Erase now, and return the certificate of it."""
    done = erase(keeplast, data, operator, "--now")
    assert "this call removed every record of line 1" in " ".join(done.out.split())
    certify(keeplast, data, operator, folder / "gone.json")
    return folder / "gone.json"


@pytest.fixture
def certified(keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path) -> Path:
    """A certificate that anna is gone from ``data``."""
    return erased(keeplast, data, operator, tmp_path)


def append(data: Path, name: str, *records: NewRecord) -> None:
    topic = TopicConfig(cleanup_policy=frozenset({"compact"}))
    with LogAppender(data / name, LocalFiles(), topic=topic, leader_epoch=0) as log:
        log.append(records)


def test_a_certificate_that_is_not_there_is_a_mistake_of_the_call(
    keeplast: Command, operator: OperatorFiles, tmp_path: Path
) -> None:
    missing = tmp_path / "gone.json"
    run = keeplast("erase", "check", missing, "--public-key", operator.public_key)
    assert (2, True) == (run.code, f"correct the path. path={missing}" in run.err)


def test_each_key_has_its_places_and_whether_its_delete_is_decided(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    with_keys(operator, ANNA, b"hex:" + BEN.hex().encode(), b"", CORA)
    found = erase(keeplast, data, operator, "--json", code=1).document
    assert [(1, True, True), (2, False, True), (4, True, False)] == [
        (each["line"], each["decided"], each["is_there"]) for each in found["keys"]
    ]
    anna, ben, _ = found["keys"]
    assert [(0, [0, 2], [0, 2], 1)] == [
        (e["partition"], e["offsets"], e["segments"], e["tombstones"]) for e in anna["places"]
    ]
    assert "a value wins (offset 1)" in ben["places"][0]["why"]
    assert None is ben["gone_by_ms"]
    assert [(0, 4), (1, 2)] == [(e["partition"], e["to_offset"]) for e in found["searched"]]


def test_no_key_is_printed_or_kept(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    with_keys(operator, ANNA, BEN)
    out = tmp_path / "gone.json"
    runs = [
        erase(keeplast, data, operator, "--json", code=1),
        erase(keeplast, data, operator, "--now", code=1),
        certify(keeplast, data, operator, out, code=4),
        certify(keeplast, data, operator, out, "--keys", operator.keys, code=4),
        keeplast("erase", "requests", data, "--json"),
    ]
    for run in runs:
        assert not named(run.out + run.err)
    others = [each for each in data.rglob("*") if each.is_file() and each.suffix != ".log"]
    assert {"keeplast-erasures", "keeplast-receipts"} <= {each.name for each in others}
    for each in others:
        assert not named(each.read_bytes().decode("latin-1")), each
    assert not out.exists()


def test_now_does_what_may_be_done_and_a_certificate_says_so(
    keeplast: Command, data: Path, operator: OperatorFiles, certified: Path
) -> None:
    run = prove(keeplast, certified, operator)
    statement = run.document["statement"]
    assert {0: 4, 1: 2} == {e["partition"]: e["searched_to"] for e in statement["partitions"]}
    (before, after) = (statement["partitions"][0][e] for e in ("segments_before", "segments_after"))
    assert [f"{base:020d}.log" for base in (0, 2)] == [each["name"] for each in before]
    assert before != after
    assert statement["rounds"]
    assert "backups" in " ".join(statement["not_searched"])
    assert any(each.startswith("exports, those of keeplast") for each in statement["not_searched"])
    assert statement["receipts"]["head"]
    held = prove(keeplast, certified, operator, "--hash-key", operator.hash_key, data)
    assert {0: "same", 1: "same"} == standings(held)
    for path in data.rglob("*.log"):
        assert ANNA not in path.read_bytes()


def test_records_that_may_not_go_yet_stay_and_have_their_date(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    lag = "min.compaction.lag.ms=2000000000000"
    found = erase(keeplast, data, operator, "--now", "--json", "--config", lag).document
    assert [[0, 2]] == [each["offsets"] for each in found["keys"][0]["places"]]
    kept = "delete.retention.ms=86400000"
    found = erase(keeplast, data, operator, "--now", "--json", "--config", kept).document
    (place,) = found["keys"][0]["places"]
    assert ([2], 1) == (place["offsets"], place["tombstones"])
    assert 0 < place["may_go_from_ms"] - found["now_ms"] <= 86_400_000


def test_readers_that_are_waited_for_keep_the_tombstone_and_it_has_its_date(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    waits = ["--config", "tombstones.wait.for.groups=g", "--config", "tombstones.wait.max.ms=1h"]
    for read_to, offsets in ((2, [[2]]), (3, [])):
        shutil.rmtree(data / f"__consumer_offsets-{home_of('g')}", ignore_errors=True)
        commit_offsets(data, "g", {TopicPartition("t", 0): read_to})
        found = erase(keeplast, data, operator, "--now", "--json", *waits).document
        (anna,) = found["keys"]
        assert offsets == [each["offsets"] for each in anna["places"] if each["offsets"]]
        for each in anna["places"]:
            assert not each["offsets"] or each["may_go_from_ms"] > found["now_ms"]


def brokers_answer(
    monkeypatch: pytest.MonkeyPatch, read_to: int | None, topic_id: bytes = b"i" * 16
) -> list[str]:
    """Let brokers say how far the group g has read t-0; returns whom and what was asked."""
    partition = TopicPartition("t", 0)
    cluster = GroupCluster(
        {"t": TopicEnds(topic_id, {0: 100, 1: 100})},
        {"g": {} if read_to is None else {partition: read_to}},
    )

    def connect(address: str, settings: object) -> GroupCluster:
        cluster.asked.append(address)
        return cluster

    monkeypatch.setattr("keeplast.cluster.client.ClusterClient", connect)
    return cluster.asked


WAITS = (
    "--config", "tombstones.wait.for.groups=g", "--config", "tombstones.wait.max.ms=1h",
    "--bootstrap-server", "host:9092",
)  # fmt: skip


@pytest.mark.parametrize(
    ("read_to", "offsets"),
    [(2, [[2]]), (3, []), (None, [[2]])],
    ids=["not yet", "read", "no broker"],
)
def test_rounds_and_dates_go_by_what_brokers_say(
    keeplast: Command,
    data: Path,
    operator: OperatorFiles,
    monkeypatch: pytest.MonkeyPatch,
    read_to: int | None,
    offsets: list[list[int]],
) -> None:
    """What lies in the directory's own files does not count then."""
    commit_offsets(data, "g", {TopicPartition("t", 0): 3 if read_to != 3 else 0})
    asked = brokers_answer(monkeypatch, read_to)
    before = erase(keeplast, data, operator, "--json", "--dry-run", *WAITS).document
    assert ["host:9092", "t", "g"] == asked[:3]
    found = erase(keeplast, data, operator, "--now", "--json", *WAITS).document
    (anna,) = found["keys"]
    assert offsets == [each["offsets"] for each in anna["places"] if each["offsets"]]
    for each in anna["places"]:
        assert not each["offsets"] or each["may_go_from_ms"] > found["now_ms"]
    words = before["keys"][0]["places"][0]["why"]
    assert (read_to != 3) == ("group g" in words)


def test_brokers_of_another_topic_of_the_name_let_nothing_go(
    keeplast: Command, data: Path, operator: OperatorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "t-0" / "partition.metadata").write_bytes(encode(PartitionMetadata(b"o" * 16)))
    brokers_answer(monkeypatch, 3)
    (anna,) = erase(keeplast, data, operator, "--now", "--json", *WAITS).document["keys"]
    assert [[2]] == [each["offsets"] for each in anna["places"] if each["offsets"]]


def test_an_unused_connection_is_a_usage_error(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    run = erase(keeplast, data, operator, "--command-config", "client.properties", code=2)
    assert "add --bootstrap-server" in " ".join(run.err.split())


def test_a_task_is_sent_the_answers_of_brokers(
    keeplast: Command, data: Path, operator: OperatorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers_answer(monkeypatch, 2)
    here = erase(keeplast, data, operator, "--json", "--now-ms", NOW, *WAITS).document
    with monkeypatch.context() as patched:
        patched.setattr("keeplast.cli.erase.search_runner", lambda _: nullcontext(Travelling()))
        there = erase(keeplast, data, operator, "--json", "--now-ms", NOW, *WAITS).document
    assert here["keys"] == there["keys"]


def test_what_lies_below_the_log_start_goes_before_a_round_could_keep_it(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    """DeleteRecords let ben's segment go; a round would have joined it to the next one."""
    (data / "keeplast.toml").write_text(
        '[topic."t"]\ncleanup.policy = "compact,delete"\nretention.ms = -1\n'
    )
    (data / "replication-offset-checkpoint").write_text("0\n2\nt 0 4\nt 1 2\n")
    keeplast(
        "delete-records",
        data,
        "--topic",
        "t",
        "--partition",
        0,
        "--before-offset",
        2,
        code=0,
    )
    with_keys(operator, BEN)
    done = erase(keeplast, data, operator, "--now", "--json").document
    assert [False] == [each["is_there"] for each in done["keys"]]
    certify(keeplast, data, operator, tmp_path / "gone.json")


def test_a_clock_that_is_given_moves_no_round(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    ahead = SystemClock().now_ms() + 10 * 86_400_000
    kept = "delete.retention.ms=86400000"
    more = ("--now", "--json", "--config", kept, "--now-ms", ahead)
    done = erase(keeplast, data, operator, *more)
    assert "go by this host's clock" in done.err
    found = done.document
    assert [[2]] == [each["offsets"] for each in found["keys"][0]["places"]]


def test_persons_are_matched_with_the_hash_key_alone(
    keeplast: Command, operator: OperatorFiles, certified: Path
) -> None:
    with_keys(operator, ANNA, BEN)
    both = ("--hash-key", operator.hash_key, "--keys", operator.keys)
    run = prove(keeplast, certified, operator, *both, code=1)
    assert [(1, True), (2, False)] == [(e["line"], e["is_within"]) for e in run.document["keys"]]
    without = prove(keeplast, certified, operator, "--keys", operator.keys, code=2)
    assert "--hash-key" in without.err
    operator.hash_key.write_bytes(b"another" * 8)
    other = prove(keeplast, certified, operator, *both, code=2)
    assert "hash key is not the one" in other.err


def test_a_later_write_is_reported_as_later(
    keeplast: Command, data: Path, operator: OperatorFiles, certified: Path
) -> None:
    append(data, "t-0", NewRecord(ANNA, b"again", 1_800_000_000_000))
    hashed = ("--hash-key", operator.hash_key, data)
    run = prove(keeplast, certified, operator, *hashed)
    assert {0: "later_write", 1: "same"} == standings(run)


def test_a_round_since_is_reported_as_later_or_as_changed(
    keeplast: Command, data: Path, operator: OperatorFiles, certified: Path
) -> None:
    append(data, "t-1", NewRecord(FILLER, b"3", 1_700_000_000_100))
    clean = ("clean", data, "--despite", "dirty-ratio", "--roll-active", "--runner", "local")
    keeplast(*clean, "--receipt", data / "keeplast-receipts", code=0)
    hashed = ("--hash-key", operator.hash_key, data)
    assert {0: "same", 1: "later"} == standings(prove(keeplast, certified, operator, *hashed))
    bare = prove(keeplast, certified, operator, data, code=1)
    assert {0: "same", 1: "changed"} == standings(bare)


@pytest.mark.parametrize("has_hash_key", [True, False])
def test_an_older_directory_is_reported_as_older(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, has_hash_key: bool
) -> None:
    shutil.copytree(data, tmp_path / "backup")
    out = erased(keeplast, data, operator, tmp_path)
    hashed = ("--hash-key", operator.hash_key) if has_hash_key else ()
    run = prove(keeplast, out, operator, *hashed, tmp_path / "backup", code=1)
    assert "older" == standings(run)[0]
    missing = prove(keeplast, out, operator, *hashed, tmp_path / "apart", code=1)
    assert {0: "missing", 1: "missing"} == standings(missing)


def test_a_backup_without_the_last_expiry_is_older_by_its_receipts(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    clean = ("clean", data, "--despite", "dirty-ratio", "--roll-active", "--runner", "local")
    keeplast(*clean, "--receipt", data / "keeplast-receipts", code=0)
    shutil.copytree(data, tmp_path / "backup")
    out = erased(keeplast, data, operator, tmp_path)
    run = prove(keeplast, out, operator, tmp_path / "backup", code=1)
    assert "older" == standings(run)[0]
    assert "receipts" in run.document["data"][0]["why"]


@pytest.mark.parametrize("has_data", [True, False])
def test_receipts_that_are_not_there_are_a_mistake_of_the_call(
    keeplast: Command, certified: Path, data: Path, operator: OperatorFiles, has_data: bool
) -> None:
    """A name that was mistyped would be reported as a directory that is older."""
    missing = data / "keeplast-recepits"
    run = keeplast(
        "erase", "check", certified, "--public-key", operator.public_key,
        *((data,) if has_data else ()), "--receipt", missing,
    )  # fmt: skip
    wanted = f"there is no such file of receipts; correct it. --receipt={missing}"
    if not has_data:
        wanted = "properties are those of a place; name it, too."
    assert (2, True) == (run.code, wanted in run.err), run.err


def test_receipts_of_another_chain_are_said_to_be_of_another_one(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "other")
    out = erased(keeplast, data, operator, tmp_path)
    erase(keeplast, tmp_path / "other", operator, "--now")
    run = prove(keeplast, out, operator, tmp_path / "other", code=1)
    assert "older" == standings(run)[0]
    assert "of another chain than the certificate's" in run.document["data"][0]["why"]


def test_receipts_that_were_changed_since_are_no_receipts_of_a_certificate(
    keeplast: Command, certified: Path, data: Path, operator: OperatorFiles
) -> None:
    path = data / "keeplast-receipts"
    whole = path.read_bytes()
    assert "same" == standings(prove(keeplast, certified, operator, data))[0]
    path.write_bytes(whole.replace(b'"wave":1', b'"wave":2', 1))
    run = prove(keeplast, certified, operator, data, code=1)
    assert (
        "the receipts were changed since: line 2 follows another line"
        in (run.document["data"][0]["why"])
    )


def test_a_key_that_came_back_with_a_backup_is_found_by_the_hash_key_alone(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    requests = tmp_path / "requests"
    shutil.copytree(data, tmp_path / "backup")
    erase(keeplast, data, operator, "--now", "--requests", requests)
    again = ("--hash-key", operator.hash_key, "--reapply", "--requests", requests, "--json")
    gone = keeplast("erase", "keys", data, *again)
    assert (0, [False]) == (gone.code, [e["is_there"] for e in gone.document["keys"]])
    shutil.rmtree(data)
    (tmp_path / "backup").rename(data)
    back = keeplast("erase", "keys", data, *again)
    assert (0, [True]) == (back.code, [e["is_there"] for e in back.document["keys"]]), back.err
    assert [None] == [each["line"] for each in back.document["keys"]]
    done = keeplast("erase", "keys", data, *again, "--now")
    assert (0, [False]) == (done.code, [e["is_there"] for e in done.document["keys"]]), done.err
    operator.hash_key.write_bytes(b"another" * 8)
    assert 2 == keeplast("erase", "keys", data, *again).code


def edited(name: str, data: bytes) -> bytes:
    match name:
        case "letter":
            return data.replace(b'"claim": "No', b'"claim": "Na')
        case "number":
            return data.replace(b'"searched_to": 4', b'"searched_to": 9')
        case "order":
            lines = data.split(b"\n")
            at = next(i for i, line in enumerate(lines) if b'"searched_from"' in line)
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
            return b"\n".join(lines)
        case "cut":
            return data[: len(data) // 2]
        case "end":
            return data[:-1]
        case "space":
            return data + b" "
        case "twice":
            return data.replace(b'"version": 1', b'"version": 2,\n  "version": 1')
        case "left out":
            at = data.index(b'"backups and')
            return data[:at] + data[data.index(b"\n", at) + 1 :].lstrip()
        case _:
            return b""


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "name", ["letter", "number", "order", "cut", "end", "space", "twice", "left out", "nothing"]
)
def test_an_edited_certificate_is_found(
    keeplast: Command, operator: OperatorFiles, certified: Path, name: str
) -> None:
    data = edited(name, certified.read_bytes())
    assert data != certified.read_bytes()
    certified.write_bytes(data)
    run = prove(keeplast, certified, operator, code=1)
    assert (False, True) == (run.document["is_as_signed"], bool(run.document["problem"]))


def test_a_certificate_of_another_signer_is_found(
    keeplast: Command, operator: OperatorFiles, certified: Path, tmp_path: Path
) -> None:
    other = write_operator_files(tmp_path / "other", seed=b"\x02")
    run = prove(keeplast, certified, other, code=1)
    assert "another key" in run.document["problem"]


def test_no_certificate_while_a_trace_is_left(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    erase(keeplast, data, operator)
    refused = certify(keeplast, data, operator, out, code=4)
    assert "2 record(s) in segment(s) [0, 2]" in refused.err
    assert not out.exists()


def test_an_interrupted_swap_is_finished_before_dates_are_given(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    """What is in place is not the whole log, and the certificate of it would be of a part."""
    erase(keeplast, data, operator, "--now")
    (data / "t-1" / f"{0:020d}.log.swap").write_bytes(batch(0, ANNA, b"1"))
    run = erase(keeplast, data, operator, "--json", code=4)
    assert [0] == [each["partition"] for each in run.document["searched"]]
    (error,) = run.document["errors"]
    assert (1, "InterruptedSwapError") == (error["partition"], error["class"])
    assert "a swap of segments was interrupted" in error["message"]
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "a swap of segments was interrupted" in refused.err


@pytest.mark.parametrize("name", [STAGED, "keeplast-copy.log"])
def test_a_trace_next_to_the_log_counts(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, name: str
) -> None:
    erase(keeplast, data, operator, "--now")
    (data / "t-1" / name).write_bytes(batch(0, ANNA, b"1"))
    found = erase(keeplast, data, operator, "--json").document
    assert [(1, [name])] == [
        (each["partition"], each["files_beside"]) for each in found["keys"][0]["places"]
    ]
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert name in refused.err


@pytest.mark.parametrize("mark", ["delete", "stray"])
def test_a_trace_in_what_a_broker_disposes_of_counts(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, mark: str
) -> None:
    erase(keeplast, data, operator, "--now")
    marked = f"t-0.{'a' * 32}-{mark}"
    write_log(data, marked, {0: [(ANNA, b"1")]})
    found = erase(keeplast, data, operator, "--json").document
    (place,) = found["keys"][0]["places"]
    assert [f"{marked}/{0:020d}.log"] == place["files_beside"]
    certify(keeplast, data, operator, tmp_path / "gone.json", code=4)


@pytest.mark.parametrize("mark", ["delete", "stray"])
@pytest.mark.parametrize("scope", ["--topic=t", "--all-topics"])
def test_a_trace_in_what_is_left_of_a_partition_that_went_counts(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, mark: str, scope: str
) -> None:
    """The topic has no such partition here any more, and its directory is not removed yet."""
    erase(keeplast, data, operator, "--now")
    marked = f"t-7.{'a' * 32}-{mark}"
    write_log(data, marked, {0: [(ANNA, b"1")]})
    names = ["--keys", operator.keys, "--hash-key", operator.hash_key, scope]
    found = keeplast("erase", "keys", data, *names, "--json").document
    (place,) = found["keys"][0]["places"]
    assert (7, [f"{marked}/{0:020d}.log"]) == (place["partition"], place["files_beside"])
    request = found["request"]
    refused = certify(
        keeplast, data, operator, tmp_path / "gone.json", "--request", request, code=4
    )
    assert marked in refused.err
    assert 0 == keeplast("erase", "keys", data, *names, "--now").code
    assert (data / marked).is_dir()
    shutil.rmtree(data / marked)
    certify(keeplast, data, operator, tmp_path / "gone.json", "--request", request)


def test_a_batch_next_to_the_log_that_calls_itself_a_marker_is_not_believed(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    """A flipped bit makes a batch one of markers, which have no keys; its checksum is wrong."""
    erase(keeplast, data, operator, "--now")
    flipped = bytearray(batch(0, ANNA, b"1"))
    flipped[CONTROL_BYTE] |= CONTROL_BIT
    (data / "t-1" / STAGED).write_bytes(flipped)
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "wrong checksum" in refused.err


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_key(
    keeplast: Command, data: Path, operator: OperatorFiles, codec: str
) -> None:
    operator.keys.write_bytes(f"{ANNA.decode()}\r\n".encode(codec))
    run = erase(keeplast, data, operator, code=2)
    assert "byte order mark" in run.err
    assert not (data / "keeplast-erasures").exists()


def test_white_space_after_a_key_is_named_by_its_line(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    with_keys(operator, ANNA, CORA + b" ")
    run = erase(keeplast, data, operator)
    assert "ends in white space" in run.err
    assert "line=2 lines=1" in run.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b" anna-4711", "begins with white space"),
        (b"\tanna-4711", "begins with white space"),
        (b'"anna-4711"', "stands in quotation marks"),
        (b"'anna-4711' ", "stands in quotation marks"),
        (b"HEX:616e6e61", "is taken as text"),
        (b" hex:616e6e61", "is taken as text"),
        (b"Base64 :YW5uYQ==", "is taken as text"),
        (b"# those who left", "no comment"),
        (b"\x00a\x00n\x00n\x00a", "UTF-16"),
    ],
)
def test_a_line_that_is_probably_meant_otherwise_is_named_by_its_number_alone(
    keeplast: Command, data: Path, operator: OperatorFiles, line: bytes, words: str
) -> None:
    with_keys(operator, CORA, line, line)
    run = erase(keeplast, data, operator, "--dry-run")
    text = " ".join(run.err.split())
    assert words in text
    assert f"path={operator.keys} line=2 lines=2" in run.err.replace("\n", "")
    assert [] == named(run.err)


@pytest.mark.parametrize(
    "line",
    [
        b"text: anna",
        b'text:"anna"',
        b"text:HEX:61",
        b"text:#a",
        b"text:\x00a",
        b"hex:20",
        b'"a',
        b"a#",
    ],
)
def test_a_line_that_is_what_it_looks_like_is_not_doubted(
    keeplast: Command, data: Path, operator: OperatorFiles, line: bytes
) -> None:
    with_keys(operator, line)
    assert "warning" not in erase(keeplast, data, operator, "--dry-run").err


def test_keys_without_a_finding_are_named_by_their_lines(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    with_keys(operator, ANNA, CORA, CORA + b"x")
    text = " ".join(erase(keeplast, data, operator, "--dry-run").out.split())
    assert "no record was found of line 2, 3: gone, or never here, or not spelled as" in text
    many = (b"%d" % number for number in range(13))
    with_keys(operator, *many)
    text = " ".join(erase(keeplast, data, operator, "--dry-run").out.split())
    assert "of line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more: gone" in text
    with_keys(operator, ANNA)
    assert "no record was found" not in erase(keeplast, data, operator, "--dry-run").out


@pytest.mark.parametrize("name", ["t-2", "t-1.bak", "t-0-old", "t-0 copy"])
def test_what_has_the_name_of_a_log_and_is_not_searched_keeps_a_certificate_from_being_made(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "elsewhere" if name == "t-2" else data / name
    shutil.copytree(data / "t-0", copy)
    if name == "t-2":  # what a broker would serve: it follows links
        (data / name).symlink_to(copy)
    done = erase(keeplast, data, operator, "--now", code=4)
    is_link = name == "t-2"
    words = "it has the name of a log and was not searched" if is_link else "it has line 1, "
    assert words in " ".join(done.out.split())
    out = tmp_path / "gone.json"
    refused = certify(keeplast, data, operator, out, code=4)
    where = name if is_link else f"{name}/{0:020d}.log"
    assert f"{where} (" in refused.err
    assert ("it has the name of a log" if is_link else "look whose it is") in refused.err
    assert not out.exists()
    shutil.move(data / name, tmp_path / "moved")
    certify(keeplast, data, operator, out)


@pytest.mark.parametrize("asks", [("--topic", "t"), ("--all-topics",)])
def test_a_partition_that_held_the_keys_and_is_not_here_any_more_stands_in_the_certificate(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, asks: tuple[str, ...]
) -> None:
    shutil.copytree(data / "t-0", data / "t-7")
    both = ("--keys", operator.keys, "--hash-key", operator.hash_key, *asks)
    assert 0 == keeplast("erase", "keys", data, *both).code
    shutil.move(data / "t-7", tmp_path / "t-7")
    assert 0 == keeplast("erase", "keys", data, *both, "--now").code
    out = tmp_path / "gone.json"
    run = certify(keeplast, data, operator, out)
    words = "partition t-7: it held keys when they were asked about, and has no log here now"
    assert f"warning: not searched: {words}" in " ".join(run.err.split())
    (said,) = [
        each for each in json.loads(out.read_bytes())["statement"]["not_searched"] if "t-7" in each
    ]
    assert said.startswith(words)
    proven = keeplast("erase", "check", out, "--public-key", operator.public_key)
    assert (0, True) == (proven.code, words in " ".join(proven.out.split()))


def test_a_partition_that_is_here_as_it_was_is_not_missed(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    run = certify(keeplast, data, operator, tmp_path / "gone.json")
    assert "it held keys" not in run.err + (tmp_path / "gone.json").read_text()


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    "name", ["other-0", "t-x", "tt-0.bak", "t", "t-0-changelog-1", "lost+found"]
)
def test_an_unsearched_file_of_another_name_is_reported_and_stops_nothing(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path, name: str
) -> None:
    erase(keeplast, data, operator, "--now")
    apart = tmp_path / "elsewhere"
    apart.mkdir()
    if name[-2:] in ("-0", "-1"):
        (data / name).symlink_to(apart)
    else:
        (data / name).mkdir()
        (data / name / "there").write_text("mine")
    (data / "t-0" / "notes.txt").write_text("mine")
    run = certify(keeplast, data, operator, tmp_path / "gone.json")
    text = " ".join(run.out.split())
    assert "2 path(s) of unknown name" in text
    assert f"not searched: {name}" in text
    assert "not searched: t-0/notes.txt (4 bytes): the keys are known by their hashes" in text
    (tmp_path / "gone.json").unlink()
    run = certify(keeplast, data, operator, tmp_path / "gone.json", "--keys", operator.keys)
    assert "notes.txt" not in run.out
    assert (f"not searched: {name}" in run.out) is (name[-2:] in ("-0", "-1"))


def test_a_copy_of_a_log_is_in_the_way_of_a_request_of_all_topics_too(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    shutil.copytree(data / "t-0", data / "t-0.bak")
    keeplast(
        "erase", "keys", data, "--keys", operator.keys, "--hash-key", operator.hash_key,
        "--all-topics",
        "--now", code=4,
    )  # fmt: skip
    certify(keeplast, data, operator, tmp_path / "gone.json", code=4)


FSCK = ["lost+found/#4711", "t-0/lost+found/#123", "t-1/notes", "notes", "u-0/x", "a/b/t-3/c"]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("where", FSCK)
@pytest.mark.parametrize("is_log", [True, False])
def test_bytes_of_a_key_in_a_file_of_unknown_name_keep_a_certificate_back(
    keeplast: Command,
    data: Path,
    operator: OperatorFiles,
    tmp_path: Path,
    where: str,
    is_log: bool,
) -> None:
    """What fsck finds has any name; compressed batches are found in what begins as a log."""
    if where.startswith("u-0"):
        write_log(data, "u-0", {0: [(FILLER, b"1")]})
    erase(keeplast, data, operator, "--now")
    (data / where).parent.mkdir(parents=True, exist_ok=True)
    squeezed = encode_batch([Record(0, 1, ANNA, b"x" * 1000)], codec=Codec.GZIP)
    assert ANNA not in squeezed
    (data / where).write_bytes(squeezed if is_log else b"torn " + batch(0, ANNA, b"1"))
    run = erase(keeplast, data, operator, "--json", code=4)
    (file,) = run.document["foreign_files"]["told"]
    size = (data / where).stat().st_size
    assert (where, size, None) == (file["path"], file["size_bytes"], file["why"])
    assert [True] == [each.startswith("line 1, ") for each in file["keys"]]
    assert [] == named(run.out + run.err)
    out = tmp_path / "gone.json"
    refused = certify(keeplast, data, operator, out, "--keys", operator.keys, code=4)
    assert f"{where} ({size} bytes): it has line 1, " in refused.err
    blind = certify(keeplast, data, operator, out, code=4 if is_log else 0)
    if not is_log:
        (first, second, *_) = blind.out.splitlines()
        assert f"1 path(s) of unknown name, {size} bytes" in first + second
        assert where in json.loads(out.read_bytes())["statement"]["unknown_paths"][0]["path"]
        out.unlink()
    (data / where).unlink()
    certify(keeplast, data, operator, out, "--keys", operator.keys)
    assert [] == json.loads(out.read_bytes())["statement"]["unknown_paths"]


def test_a_damaged_log_of_unknown_name_keeps_a_certificate_back(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    (data / "lost+found").mkdir()
    (data / "lost+found" / "#1").write_bytes(batch(0, FILLER, b"1") + batch(1, FILLER, b"2")[:-1])
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "it begins as a log does, and cannot be read to its end as one" in refused.err


def test_brokers_and_our_own_files_are_no_strangers(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    write_log(data, "u-0", {0: [(ANNA, b"another topic")]})
    cache = data / "remote-log-index-cache"
    cache.mkdir()
    for name in ("index", "timeindex.deleted"):
        (cache / f"0_{'a' * 22}.{name}").write_bytes(ANNA)
    for name in ("keeplast-failing", "meta.properties.tmp", "recovery-point-offset-checkpoint"):
        (data / name).write_bytes(b"")
    certify(keeplast, data, operator, tmp_path / "gone.json", "--keys", operator.keys)
    statement = json.loads((tmp_path / "gone.json").read_bytes())["statement"]
    claim = "No record with one of these keys was found in what was searched."
    assert ([], claim) == (statement["unknown_paths"], statement["claim"])


def test_where_a_certificate_cannot_be_written_nothing_is_searched(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator)  # a trace is left: a search would refuse with 4
    missing = certify(keeplast, data, operator, tmp_path / "no" / "gone.json", code=2)
    assert "mkdir -p" in missing.err
    taken = certify(keeplast, data, operator, tmp_path, code=2)
    assert "a directory; name a file in it" in taken.err
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    certify(keeplast, data, operator, tmp_path / "dangling", code=2)


def test_one_partition_is_no_place_to_erase_in_and_that_is_said_before_its_topic_is_asked_for(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    run = keeplast(
        "erase", "keys", data / "t-0", "--keys", operator.keys, "--hash-key", operator.hash_key
    )
    assert (2, True) == (run.code, "not one partition in it" in run.err)
    assert f"data_directory={data}" in run.err.replace("\n", "")


@pytest.mark.parametrize(
    ("option", "what"), [("--keys", "the file of --keys"), ("--hash-key", "the hash key")]
)
def test_a_file_that_is_not_there_is_named_by_what_it_was_to_be(
    keeplast: Command, data: Path, operator: OperatorFiles, option: str, what: str
) -> None:
    run = erase(keeplast, data, operator, option, data / "no", code=2)
    assert f"{what} cannot be read; correct the path" in run.err


def test_secrets_that_every_user_may_read_are_named(
    keeplast: Command, operator: OperatorFiles, data: Path, tmp_path: Path
) -> None:
    assert "chmod 600" not in erase(keeplast, data, operator, "--now").err
    operator.hash_key.chmod(0o644)
    operator.sign_key.chmod(0o604)
    run = certify(keeplast, data, operator, tmp_path / "gone.json")
    for secret in (operator.hash_key, operator.sign_key):
        assert f"chmod 600. path={secret}" in run.err.replace("\n", "")


def test_an_unreadable_file_never_counts_as_searched(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    out = tmp_path / "gone.json"
    (data / "t-1" / STAGED).write_bytes(batch(0, FILLER, b"1")[:-1])
    found = erase(keeplast, data, operator, "--json", code=4).document
    assert [STAGED] == [each["file"] for each in found["not_searched"]]
    certify(keeplast, data, operator, out, code=4)
    (data / "t-1" / STAGED).unlink()
    (active, *_) = sorted((data / "t-1").glob("*.log"), reverse=True)
    whole = active.read_bytes()
    active.write_bytes(whole + bytes(100))
    (data / "t-1" / f"{active.stem}.index").write_bytes(b"")
    certify(keeplast, data, operator, out)
    out.unlink()
    active.write_bytes(whole + batch(50, ANNA, b"torn")[:-3])
    refused = certify(keeplast, data, operator, out, code=4)
    assert "behind the log's end" in refused.err
    active.write_bytes(whole)
    (data / "t-1" / "notes").write_bytes(ANNA)
    certify(keeplast, data, operator, out)
    statement = prove(keeplast, out, operator).document["statement"]
    (unknown,) = statement["unknown_paths"]
    assert ("t-1/notes", len(ANNA)) == (unknown["path"], unknown["bytes"])
    assert "Not searched: 1 path(s) of unknown name below the place, 9 bytes" in statement["claim"]
    text = keeplast("erase", "check", out, "--public-key", operator.public_key).out
    assert "not searched: t-1/notes (9 bytes): the keys are known" in " ".join(text.split())
    out.unlink()
    refused = certify(keeplast, data, operator, out, "--keys", operator.keys, code=4)
    assert "t-1/notes (9 bytes): it has line 1, " in refused.err


def test_receipts_that_were_edited_carry_no_certificate(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    path = data / "keeplast-receipts"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0].replace(b'"wave":1', b'"wave":7'), *lines[1:]]))
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "receipts were changed" in refused.err


def test_requests_are_listed_once_and_forgotten(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    erase(keeplast, data, operator, "--dry-run")
    assert "no requests" in keeplast("erase", "requests", data).out
    first = erase(keeplast, data, operator, "--json").document["request"]
    assert first == erase(keeplast, data, operator, "--json").document["request"]
    listed = keeplast("erase", "requests", data, "--json").document["requests"]
    assert [(first, ["t"], 1)] == [(e["id"], e["topics"], len(e["keys"])) for e in listed]
    assert 2 == keeplast("erase", "requests", data, "--forget", "0" * 16).code
    assert 0 == keeplast("erase", "requests", data, "--forget", first).code
    assert [] == keeplast("erase", "requests", data, "--json").document["requests"]


def test_a_damaged_list_of_requests_is_no_empty_one(
    keeplast: Command, data: Path, operator: OperatorFiles
) -> None:
    erase(keeplast, data, operator)
    path = data / "keeplast-erasures"
    path.write_bytes(path.read_bytes()[:-9])
    damaged = keeplast("erase", "requests", data)
    assert (3, True) == (damaged.code, "keeplast-erasures" in damaged.err)
    path.write_bytes(b'{"version": 9, "requests": []}')
    assert 2 == keeplast("erase", "requests", data).code


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "t"], "give the keys"),
        (["--keys", "KEYS"], "give --topic, or --all-topics"),
        (["--keys", "KEYS", "--topic", "t", "--all-topics"], "give --topic, or --all-topics"),
        (["--keys", "KEYS", "--topic", "z"], "no such topic"),
        (["--keys", "KEYS", "--topic", "t", "--now", "--dry-run"], "leave one out"),
        (["--keys", "KEYS", "--topic", "t", "--requests", "INSIDE"], "outside of the data"),
        (["--reapply", "--topic", "t"], "--reapply takes the topics"),
        (["--reapply"], "no erasure request to go by"),
        (["--keys", "EMPTY", "--topic", "t"], "the file has no key"),
        (["--keys", "BAD", "--topic", "t"], "line=2"),
        (["--keys", "GONE", "--topic", "t"], "cannot be read"),
    ],
)
def test_mistakes_are_usage_errors(
    keeplast: Command, data: Path, operator: OperatorFiles, arguments: list[str], said: str
) -> None:
    names = {"KEYS": operator.keys, "GONE": operator.keys.with_name("gone")}
    names["INSIDE"] = data / "cleaner-offset-checkpoint"
    for name, content in (("EMPTY", b"\n\n"), ("BAD", b"anna\nhex:not-4711-hex\n")):
        names[name] = operator.keys.with_name(name)
        names[name].write_bytes(content)
    given = [str(names.get(each, each)) for each in arguments]
    run = keeplast("erase", "keys", data, "--hash-key", operator.hash_key, *given)
    assert (2, True) == (run.code, said in " ".join(run.err.split())), run.err
    assert "not-4711" not in run.err
    assert not (data / "keeplast-erasures").exists()


def test_an_object_store_is_refused_by_name(keeplast: Command, operator: OperatorFiles) -> None:
    run = keeplast(
        "erase", "keys", "s3://bucket/data", "--keys", operator.keys, "--hash-key",
        operator.hash_key,
        "--topic", "t",
    )  # fmt: skip
    assert (4, True) == (run.code, "name the store" in run.err), run.err


def test_keys_that_are_none_of_the_requests_are_usage_errors(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    erase(keeplast, data, operator, "--now")
    with_keys(operator, BEN)
    out = tmp_path / "gone.json"
    run = certify(keeplast, data, operator, out, "--keys", operator.keys, code=2)
    assert "in no request" in run.err
    bad = keeplast(
        "erase", "certify", data, "--hash-key", operator.hash_key,
        "--sign-key", operator.public_key, "--out", out,
    )  # fmt: skip
    assert (2, True) == (bad.code, "not an Ed25519 private key" in bad.err)


def test_a_certificate_takes_no_files_place(
    keeplast: Command, data: Path, operator: OperatorFiles, certified: Path
) -> None:
    before = certified.read_bytes()
    run = certify(keeplast, data, operator, certified, code=2)
    assert "name a new one" in run.err
    assert before == certified.read_bytes()
    inside = certify(keeplast, data, operator, data / "cleaner-offset-checkpoint.json", code=2)
    assert "outside of the data directory" in inside.err


def test_a_topic_of_unknown_policy_is_no_topic_without_traces(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    write_log(data, "u-0", {0: [(ANNA, b"1")]})
    asked = ("--keys", operator.keys, "--hash-key", operator.hash_key, "--all-topics")
    run = keeplast("erase", "keys", data, *asked, "--now", "--json")
    assert (4, ["u"]) == (run.code, [each["topic"] for each in run.document["errors"]]), run.err
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "u-0: cleanup.policy of the topic is unknown" in refused.err


def test_all_topics_leaves_out_what_is_not_compacted_and_says_so(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    write_log(data, "u-0", {0: [(ANNA, b"1")]})
    with (data / "keeplast.toml").open("a") as file:
        file.write('[topic."u"]\ncleanup.policy = "delete"\n')
    run = keeplast(
        "erase", "keys", data, "--keys", operator.keys, "--hash-key", operator.hash_key,
        "--all-topics",
        "--now", "--json", code=0,
    )  # fmt: skip
    assert ["u"] == [each["topic"] for each in run.document["not_searched"]]
    out = tmp_path / "gone.json"
    certify(keeplast, data, operator, out)
    statement = prove(keeplast, out, operator).document["statement"]
    assert any(each.startswith("partition u-0:") for each in statement["not_searched"])
    keeplast(
        "erase",
        "keys",
        data,
        "--keys",
        operator.keys,
        "--hash-key",
        operator.hash_key,
        "--topic",
        "u",
        code=4,
    )


@pytest.fixture
def store(keeplast: Command, data: Path, tmp_path: Path) -> str:
    """The logs of ``data`` in a store."""
    return called.copied(data, tmp_path, "--topic", "t")


def test_a_store_has_live_records_and_those_of_replaced_segments(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    with_keys(operator, ANNA, BEN)
    asked = (store, "--hash-key", operator.hash_key, "--requests", tmp_path / "requests")
    run = keeplast(
        "erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json", code=1
    )
    anna, ben = run.document["keys"]
    assert ([True, [0, 2], []], False) == (
        [anna["places"][0][each] for each in ("decided", "offsets", "files_beside")],
        ben["decided"],
    )
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    again = keeplast("erase", "keys", *asked, "--reapply", "--json")
    by_hash = {each["hash"]: each for each in again.document["keys"]}
    (place,) = by_hash[anna["hash"]]["places"]
    assert [2] == place["offsets"]
    assert all(each.startswith("replaced segment ") for each in place["files_beside"])
    assert place["files_beside"]
    for shown in (run, again):
        assert not named(shown.out + shown.err)


def test_rounds_of_an_erasure_in_a_store_go_by_the_environment(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KEEPLAST_LOG_CLEANER_IO_MAX_BYTES_PER_SECOND", "1000000000")
    limits: list[object] = []
    hear(
        monkeypatch,
        TieredStore,
        "clean",
        lambda *_, **named: limits.append(named["cleaner"].io_limit),
    )
    with_keys(operator, ANNA)
    asked = (store, "--hash-key", operator.hash_key, "--requests", tmp_path / "requests")
    run = keeplast("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--now")
    assert limits, run.err
    assert {1e9} == set(limits)


def test_replaced_segments_stay_for_their_grace_and_no_certificate_says_otherwise(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    requests, out = tmp_path / "requests", tmp_path / "gone.json"
    asked = (store, "--hash-key", operator.hash_key, "--requests", requests)
    erased = ("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json")
    run = keeplast(*erased, "--now")
    (place,) = run.document["keys"][0]["places"]
    assert (0, 0) == (run.code, place["records"]), run.err
    assert all(each.startswith("replaced segment ") for each in place["files_beside"])
    assert place["gone_by_ms"] > run.document["now_ms"]
    signed = (*asked, "--sign-key", operator.sign_key, "--out", out)
    refused = keeplast("erase", "certify", *signed)
    assert (4, True) == (refused.code, "replaced segment" in refused.err), refused.err


def test_a_store_is_certified_and_an_older_one_is_reported_as_older(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    requests, out = tmp_path / "requests", tmp_path / "gone.json"
    asked = (store, "--hash-key", operator.hash_key, "--requests", requests)
    signed = (*asked, "--sign-key", operator.sign_key, "--out", out)
    erased = ("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json")
    kept = keeplast(*erased)
    assert (0, [True]) == (kept.code, [e["is_there"] for e in kept.document["keys"]]), kept.err
    refused = keeplast("erase", "certify", *signed)
    assert (4, True) == (refused.code, "2 record(s)" in refused.err), refused.err
    assert "keeplast erase keys shows all of them" in refused.err
    shutil.copy(tmp_path / "meta.db", tmp_path / "older.db")
    shutil.copytree(tmp_path / "objects", tmp_path / "backup")
    done = keeplast(*erased, "--now", "--grace-ms", 0)
    assert (0, [False]) == (done.code, [e["is_there"] for e in done.document["keys"]]), done.err
    keeplast("erase", "certify", *signed, code=0)
    hashed = ("--hash-key", operator.hash_key)
    held = prove(keeplast, out, operator, *hashed, store)
    assert {0: "same", 1: "same"} == standings(held)
    assert "the metadata database" in " ".join(held.document["statement"]["not_searched"])
    assert "exports, those of keeplast" in " ".join(held.document["statement"]["not_searched"])
    assert {0: "other", 1: "other"} == standings(prove(keeplast, out, operator, tmp_path, code=1))
    shutil.rmtree(tmp_path / "objects")
    (tmp_path / "backup").rename(tmp_path / "objects")
    (tmp_path / "older.db").rename(tmp_path / "meta.db")
    older = prove(keeplast, out, operator, *hashed, store, code=1)
    assert "older" == standings(older)[0]


def certify_store(
    keeplast: Command, url: str, operator: OperatorFiles, out: Path, *more: object, code: int = 0
) -> Run:
    """Ask for the keys, do what may be done, and sign that they are gone."""
    asked = (url, "--hash-key", operator.hash_key)
    keeplast(
        "erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--now", "--grace-ms", 0,
        *more, code=0,
    )  # fmt: skip
    return sign_store(keeplast, url, operator, out, *more, code=code)


def sign_store(
    keeplast: Command, url: str, operator: OperatorFiles, out: Path, *more: object, code: int = 0
) -> Run:
    return keeplast(
        "erase", "certify", url, "--hash-key", operator.hash_key, "--sign-key",
        operator.sign_key, "--out", out, *more, "--json", code=code,
    )  # fmt: skip


def second_store(keeplast: Command, data: Path, tmp_path: Path) -> str:
    """Return another store that was made of the same directory."""
    url = f"sqlite:///{tmp_path / 'second.db'}"
    assert (
        0
        == keeplast(
            "copy",
            data,
            url,
            "--new",
            "--objects",
            f"file://{tmp_path / 'objects2'}",
            "--topic",
            "t",
        ).code
    )
    return url


def facts_of(url: str) -> dict[str, str]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        return dict(database.execute("select key, value from store"))


def without_fact(url: str, key: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        assert 1 == database.execute("delete from store where key = ?", (key,)).rowcount


def test_a_certificate_is_of_one_store_and_no_other_of_the_same_directory(
    keeplast: Command, store: str, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    second = second_store(keeplast, data, tmp_path)
    out, other_out = tmp_path / "gone.json", tmp_path / "other.json"
    certify_store(keeplast, store, operator, out)
    certify_store(keeplast, second, operator, other_out)
    names = [facts_of(each)["name"] for each in (store, second)]
    held = prove(keeplast, out, operator, store)
    assert ({0: "same", 1: "same"}, names[0]) == (
        standings(held), held.document["statement"]["place"]["store_id"]
    )  # fmt: skip
    other = prove(keeplast, out, operator, second, code=1)
    assert {0: "other", 1: "other"} == standings(other)
    why = f"another store: its id is {names[1]}, the certificate's is {names[0]}"
    assert {why} == {each["why"] for each in other.document["data"]}
    assert {0: "other", 1: "other"} == standings(
        prove(keeplast, other_out, operator, store, code=1)
    )
    assert {0: "other", 1: "other"} == standings(prove(keeplast, out, operator, data, code=1))


def test_a_copy_of_a_stores_metadata_is_the_same_store_as_far_as_its_version_goes(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    shutil.copy(tmp_path / "meta.db", tmp_path / "before.db")
    certify_store(keeplast, store, operator, out)
    shutil.copy(tmp_path / "meta.db", tmp_path / "copy.db")
    copied, before = (f"sqlite:///{tmp_path / name}" for name in ("copy.db", "before.db"))
    assert "same" == standings(prove(keeplast, out, operator, copied))[0]
    assert "older" == standings(prove(keeplast, out, operator, before, code=1))[0]


def test_a_store_without_an_id_is_not_the_one_of_a_certificate_until_a_commit_draws_it(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    out, unbound = tmp_path / "gone.json", tmp_path / "unbound.json"
    certify_store(keeplast, store, operator, out)
    without_fact(store, "name")
    (tmp_path / "objects" / "keeplast-store").unlink()
    found = prove(keeplast, out, operator, store, code=1)
    assert {0: "other", 1: "other"} == standings(found)
    assert "the store has no id yet" in found.document["data"][0]["why"]
    # Of such a store a certificate says that it is not bound; only looking draws no id.
    signed = sign_store(keeplast, store, operator, unbound)
    said = "which store it is: the certificate is not bound to a store id"
    assert said in signed.document["not_stated"]
    assert "name" not in facts_of(store)
    held = prove(keeplast, unbound, operator, store)
    assert None is held.document["statement"]["place"]["store_id"]
    assert {"every segment is as it was; the certificate is not bound to a store id"} == {
        each["why"] for each in held.document["data"]
    }
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    assert (tmp_path / "objects" / "keeplast-store").read_text() == facts_of(store)["name"]


def resigned(path: Path, operator: OperatorFiles, change: Callable[[dict[str, Any]], None]) -> None:
    """Sign a certificate again with another statement, as an earlier version made it."""
    statement = json.loads(path.read_bytes())["statement"]
    change(statement)
    signer = Signer(operator.sign_key)
    signature = b64encode(signer.sign(CONTEXT, statement_bytes(statement))).decode()
    path.write_bytes(
        statement_bytes(
            {"statement": statement, "signed_by": signer.key_id, "signature": signature}
        )
    )


def test_a_certificate_of_an_earlier_version_is_read_and_reported_as_not_bound(
    keeplast: Command, store: str, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    certify_store(keeplast, store, operator, out)

    def as_before(statement: dict[str, Any]) -> None:
        del statement["place"]["store_id"], statement["not_stated"]

    resigned(out, operator, as_before)
    held = prove(keeplast, out, operator, store)
    assert ({0: "same", 1: "same"}, True) == (
        standings(held),
        all("not bound to a store id" in each["why"] for each in held.document["data"]),
    )
    shown = keeplast("erase", "check", out, "--public-key", operator.public_key, code=0)
    assert "not stated: which store it is: the certificate is not bound to a store id" in shown.out
    assert "not stated: the chain of receipts is not part of this statement" in shown.out


def test_without_receipts_a_certificate_says_that_they_are_no_part_of_it(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    said = "the chain of receipts is not part of this statement: none was given"
    assert [said] == certify_store(keeplast, store, operator, out).document["not_stated"]
    statement = prove(keeplast, out, operator).document["statement"]
    assert (None, [said]) == (statement["receipts"], statement["not_stated"])
    shown = keeplast(
        "erase", "certify", store, "--hash-key", operator.hash_key, "--sign-key",
        operator.sign_key, "--out", tmp_path / "again.json",
    )  # fmt: skip
    assert (0, True) == (shown.code, f"not stated: {said}" in " ".join(shown.out.split()))


def test_receipts_of_a_certificate_are_held_against_the_heads_of_the_store(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    out, receipt = tmp_path / "gone.json", tmp_path / "receipts"
    given = ("--receipt", receipt)
    signed = certify_store(keeplast, store, operator, out, *given)
    assert [] == signed.document["not_stated"]
    statement = prove(keeplast, out, operator).document["statement"]
    assert (True, socket.gethostname(), []) == (
        statement["receipts"]["is_tail_proven"], statement["receipts"]["host"],
        statement["not_stated"],
    )  # fmt: skip
    assert statement["rounds"]
    found = prove(keeplast, out, operator, store, *given)
    assert {0: "same", 1: "same"} == standings(found)
    whole = receipt.read_bytes().splitlines(keepends=True)
    assert len(whole) > 1
    bare = [json.loads(line) for line in whole]
    for each in bare:
        del each["chain"]
    for lines, words in (
        (whole[:-1], "lines were cut off"),
        ([json.dumps(each).encode() + b"\n" for each in bare], "no line of the file is chained"),
        ([whole[0].replace(b'"wave":1', b'"wave":2', 1), *whole[1:]], "was changed"),
    ):
        receipt.write_bytes(b"".join(lines))
        again = tmp_path / "again.json"
        refused = sign_store(keeplast, store, operator, again, *given, code=4)
        assert (True, False) == (words in refused.err, again.exists()), refused.err
        found = prove(keeplast, out, operator, store, *given, code=1)
        assert {0: "older", 1: "older"} == standings(found)
    receipt.unlink()
    for each in bare:
        append_receipt(LocalFiles(), receipt, json.dumps(each).encode() + b"\n")
    refused = sign_store(keeplast, store, operator, tmp_path / "again.json", *given, code=4)
    assert "of another store" in refused.err


def test_a_certificate_says_whose_receipts_are_not_in_it(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    first, second = tmp_path / "receipts", tmp_path / "others"
    clean = ("clean", store, "--despite", "dirty-ratio", "--grace-ms", 0, "--receipt", first)
    assert 0 == keeplast(*clean).code
    signed = certify_store(keeplast, store, operator, tmp_path / "gone.json", "--receipt", second)
    (said,) = signed.document["not_stated"]
    assert said.startswith("the receipts that are elsewhere: 1 chain (host ")


def test_of_a_directorys_receipts_no_tail_is_proven_and_a_certificate_says_so(
    keeplast: Command, certified: Path, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    statement = prove(keeplast, certified, operator).document["statement"]
    (said,) = statement["not_stated"]
    assert said.startswith("that no line was cut off the end of the receipts")
    assert (False, None) == (
        statement["receipts"]["is_tail_proven"], statement["receipts"]["host"]
    )  # fmt: skip
    (data / "keeplast-receipts").unlink()
    run = certify(keeplast, data, operator, tmp_path / "second.json", "--json")
    assert ["the chain of receipts is not part of this statement: none was given"] == (
        run.document["not_stated"]
    )


def test_an_object_that_no_row_names_never_counts_as_searched(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    known = next((tmp_path / "objects" / "t-1").rglob("*.log")).parent
    shutil.copytree(known, known.with_name("e" * len(known.name)))
    asked = (store, "--hash-key", operator.hash_key, "--keys", operator.keys)
    run = keeplast("erase", "keys", *asked, "--topic", "t", "--json", code=4)
    assert ["t"] == [each["topic"] for each in run.document["not_searched"]]


@pytest.mark.parametrize("where", ["t-1", "t-1/{topic}/{segment}"])
def test_an_object_with_a_name_that_keeplast_never_gave_never_counts_as_searched(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path, where: str
) -> None:
    """A certificate says that no object is there which no row of the metadata names."""
    asked = (store, "--hash-key", operator.hash_key)
    erased = ("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t")
    assert 0 == keeplast(*erased, "--now", "--grace-ms", 0).code
    known = next((tmp_path / "objects" / "t-1").rglob("*.log"))
    segment, topic = known.parts[-2], known.parts[-3]
    folder = tmp_path / "objects" / where.format(topic=topic, segment=segment)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "copy.log").write_bytes(batch(0, ANNA, b"1"))
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    refused = keeplast("erase", "certify", *asked, *signed)
    is_named = "keeplast gave nothing this name" in refused.err
    assert (4, True) == (refused.code, is_named), refused.err
    run = keeplast(*erased, "--json")
    assert (4, ["t"]) == (run.code, [each["topic"] for each in run.document["not_searched"]])
    (folder / "copy.log").unlink()
    assert 0 == keeplast("erase", "certify", *asked, *signed).code


@pytest.mark.rotates(4)
@pytest.mark.parametrize("where", ["lost+found/#1", "t-1/#77", "old", "t-7/{topic}/{segment}/x"])
def test_an_object_of_unknown_name_with_a_key_keeps_a_certificate_back(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path, where: str
) -> None:
    asked = (store, "--hash-key", operator.hash_key)
    erased = ("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t")
    assert 0 == keeplast(*erased, "--now", "--grace-ms", 0).code
    where = where.format(topic="0" * 32, segment="1" * 32)
    path = tmp_path / "objects" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(batch(0, ANNA, b"1"))
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    refused = keeplast("erase", "certify", *asked, *signed)
    assert (4, True) == (refused.code, f"{where} (" in refused.err), refused.err
    path.write_bytes(b"no log, " + ANNA)
    keeplast("erase", "certify", *asked, *signed, code=0)
    (unknown,) = json.loads((tmp_path / "gone.json").read_bytes())["statement"]["unknown_paths"]
    assert (where, 17) == (unknown["path"], unknown["bytes"])
    run = keeplast(*erased, "--json")
    assert (4, [where]) == (run.code, [e["path"] for e in run.document["foreign_files"]["told"]])


def test_what_is_left_of_an_earlier_topic_of_the_name_keeps_a_certificate_back(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    """A topic that was deleted and made again has another id; what it left lies under the old."""
    store = f"sqlite:///{tmp_path / 'meta.db'}"
    taken = (
        "copy",
        data,
        store,
        "--new",
        "--objects",
        f"file://{tmp_path / 'objects'}",
        "--topic",
        "t",
        "--partition",
        0,
    )
    metadata = data / "t-0" / "partition.metadata"
    metadata.write_bytes(encode(PartitionMetadata(b"\x01" * 16)))
    assert 0 == keeplast(*taken).code
    assert 0 == keeplast("detach", store, "--topic", "t", "--yes").code
    shutil.rmtree(data / "t-0")
    write_log(data, "t-0", {0: [(FILLER, b"1")], 1: [(FILLER, b"2")]})
    metadata.write_bytes(encode(PartitionMetadata(b"\x02" * 16)))
    assert 0 == keeplast(*taken).code
    asked = (store, "--hash-key", operator.hash_key)
    run = keeplast("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json")
    (place,) = run.document["keys"][0]["places"]
    assert (0, 0, 2) == (run.code, place["records"], len(place["files_beside"])), run.err
    found = keeplast("explain", store, ANNA.decode(), "--json").document
    assert {0, 2} == {e["offset"] for e in found["partitions"][0]["replaced_copies"]}
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    refused = keeplast("erase", "certify", *asked, *signed)
    assert (4, True) == (refused.code, "replaced segment" in refused.err), refused.err


def test_the_reason_of_a_wait_stands_next_to_the_key(
    keeplast: Command, store: str, operator: OperatorFiles
) -> None:
    """A hold keeps what ``--now`` would take, and no other command need be asked why."""
    add = ("hold", "add", store, "audit", "--topic", "t", "--partition", 0)
    assert 0 == keeplast(*add, "--at", 1, "--max-age", "7d").code
    asked = (store, "--hash-key", operator.hash_key, "--keys", operator.keys)
    run = keeplast("erase", "keys", *asked, "--topic", "t", "--now", "--json")
    (place,) = run.document["keys"][0]["places"]
    assert [0, 2] == place["offsets"]
    assert "it waits: the state as of 1 is held by audit until" in place["why"]
    assert "max.compaction.lag.ms is not set" in place["why"]


def test_an_object_that_is_gone_is_named_and_no_log_is_said_to_change(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    lost = next((tmp_path / "objects" / "t-0").rglob("*.log"))
    lost.unlink()
    asked = (store, "--hash-key", operator.hash_key, "--keys", operator.keys)
    run = keeplast("erase", "keys", *asked, "--topic", "t")
    text = run.err.replace("\n", "")
    assert (5, True) == (run.code, "a part of the log is missing" in text), text
    assert lost.name in text
    assert "the log changed" not in text


def test_a_stores_requests_are_kept_in_its_metadata(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    hashed = (store, "--hash-key", operator.hash_key)
    asked = ("erase", "keys", *hashed, "--keys", operator.keys, "--topic", "t", "--json")
    assert keeplast(*asked, "--dry-run").document["request"] is None
    request = keeplast(*asked).document["request"]
    assert request == keeplast(*asked).document["request"]
    (listed,) = keeplast("erase", "requests", store, "--json").document["requests"]
    assert (request, ["t"], 1) == (listed["id"], listed["topics"], len(listed["keys"]))
    found = keeplast("erase", "keys", *hashed, "--reapply", "--json").document
    assert ([request], True) == (found["requests"], found["keys"][0]["is_there"])
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    assert 4 == keeplast("erase", "certify", *hashed, *signed).code
    assert 0 == keeplast("erase", "requests", store, "--forget", request).code
    none = keeplast("erase", "certify", *hashed, *signed)
    assert (2, True) == (none.code, "no erasure request to go by" in none.err)
    gone = keeplast("erase", "requests", f"sqlite:///{tmp_path / 'nowhere.db'}")
    assert (2, False) == (gone.code, (tmp_path / "nowhere.db").exists())


def test_a_topic_that_was_named_and_is_compacted_no_more_keeps_a_certificate_back(
    keeplast: Command, data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    write_log(data, "u-0", {0: [(FILLER, b"1")], 1: [(FILLER, b"2")]})
    settings = data / "keeplast.toml"
    before = settings.read_text()
    settings.write_text(before + '[topic."u"]\ncleanup.policy = "compact"\n')
    erase(keeplast, data, operator, "--topic", "u", "--now")
    settings.write_text(before + '[topic."u"]\ncleanup.policy = "delete"\n')
    refused = certify(keeplast, data, operator, tmp_path / "gone.json", code=4)
    assert "u-0: not searched, though its topic was asked for" in refused.err
    settings.write_text(before + '[topic."u"]\ncleanup.policy = "compact"\n')
    certify(keeplast, data, operator, tmp_path / "gone.json")


@pytest.mark.parametrize("name", [f"t-0.{'a' * 32}-delete/{0:020d}.log", "t-0/copy.log"])
def test_what_no_round_removes_has_no_date(
    keeplast: Command, data: Path, operator: OperatorFiles, name: str
) -> None:
    """A broker removes the one, if it comes by, and nothing the other."""
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).write_bytes(batch(0, ANNA, b"1"))
    before, after = (
        erase(keeplast, data, operator, *more, "--json").document["keys"][0]["places"][0]
        for more in ((), ("--now",))
    )
    assert (2, 0) == (before["records"], after["records"])
    for place in (before, after):
        assert (None, True) == (place["gone_by_ms"], "that no round removes" in place["why"])


def test_a_task_elsewhere_finds_what_this_process_finds_of_a_store(
    keeplast: Command, store: str, operator: OperatorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_keys(operator, ANNA, BEN, CORA)
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    cut = ("repair", store, "--topic", "t", "--partition", 1)
    assert 0 == keeplast(*cut, "--truncate-to", 0, "--yes").code
    asked = (store, "--hash-key", operator.hash_key, "--keys", operator.keys)
    call = ("erase", "keys", *asked, "--topic", "t", "--dry-run", "--now-ms", 1 << 41, "--json")
    here, travelling = keeplast(*call), Travelling()
    monkeypatch.setattr("keeplast.cli.erase.search_runner", lambda _: nullcontext(travelling))
    elsewhere = keeplast(*call)
    assert (1, 1, 2) == (here.code, elsewhere.code, travelling.items), here.err + elsewhere.err
    assert here.document == elsewhere.document
    places = [place for each in here.document["keys"] for place in each["places"]]
    assert any(place["files_beside"] for place in places)


def test_what_is_left_of_a_stored_partition_that_was_cut_to_nothing_is_searched(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    cut = ("repair", store, "--topic", "t", "--partition", 0)
    keeplast(*cut, "--truncate-to", 0, "--grace-ms", "1h", "--yes", code=0)
    asked = (store, "--hash-key", operator.hash_key)
    run = keeplast("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json")
    (place,) = run.document["keys"][0]["places"]
    assert (0, 0, True) == (run.code, place["records"], bool(place["files_beside"])), run.err
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    refused = keeplast("erase", "certify", *asked, *signed)
    assert (4, True) == (refused.code, "replaced segment" in refused.err), refused.err


def test_a_stored_partition_that_was_given_up_keeps_a_certificate_back_until_it_is_collected(
    keeplast: Command, store: str, operator: OperatorFiles, tmp_path: Path
) -> None:
    given_up = ("detach", store, "--topic", "t", "--partition", 0)
    assert 0 == keeplast(*given_up, "--grace-ms", 0, "--yes").code
    asked = (store, "--hash-key", operator.hash_key)
    run = keeplast("erase", "keys", *asked, "--keys", operator.keys, "--topic", "t", "--json")
    assert (4, [0]) == (run.code, [each["partition"] for each in run.document["not_searched"]])
    signed = ("--sign-key", operator.sign_key, "--out", tmp_path / "gone.json")
    refused = keeplast("erase", "certify", *asked, *signed)
    assert (4, True) == (refused.code, "t-0: not searched" in refused.err), refused.err
    assert 0 == keeplast("collect", store).code
    assert 0 == keeplast("erase", "certify", *asked, *signed).code
