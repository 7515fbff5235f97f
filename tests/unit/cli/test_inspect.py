"""``inspect``: what it shows of a log, and what it finds."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from keeplast.format import (
    checkpoint,
    meta_properties,
    offset_index,
    partition_metadata,
    producer_snapshot,
    time_index,
    txn_index,
)
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.model.partition import TopicPartition
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import COMPACT
from tests.support.small_log import EPOCH_MS, batch, write_log
from tests.unit.cli.conftest import Command, Run

FIRST, ACTIVE = "00000000000000000000", "00000000000000000004"
MISSING = "no entry for the aborted transaction of producer 7 from 0 on (log offset 2)"


def fingerprint(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def problems(run: Run) -> list[tuple[str, str]]:
    return [(item["severity"], Path(item["path"]).name) for item in run.document["problems"]]


def test_a_partition_shows_segments_batches_and_a_picture(
    keeplast: Command, data_dir: Path
) -> None:
    offsets = {TopicPartition("t", 0): 2}
    (data_dir / "cleaner-offset-checkpoint").write_bytes(checkpoint.encode_offsets(offsets))
    before = fingerprint(data_dir)
    run = keeplast("inspect", data_dir / "t-0", code=0)
    assert "3 segments" in run.out
    assert "5 records" in run.out
    assert "^ first dirty offset 2" in run.out
    assert "█" in run.out
    assert "▓" in run.out
    assert "░" in run.out
    assert "no problems found" in run.out
    assert before == fingerprint(data_dir)


def test_the_document_of_a_partition(keeplast: Command, data_dir: Path) -> None:
    document = keeplast("inspect", data_dir / "t-0", "--json").document
    assert ("partition", "t", 0, 0, 5) == tuple(
        document[name] for name in ("kind", "topic", "partition", "log_start", "log_end")
    )
    assert [0, 2, 4] == [segment["base_offset"] for segment in document["segments"]]
    assert [False, False, True] == [segment["is_active"] for segment in document["segments"]]
    assert [0, 1, 2, 3, 4] == [each["base_offset"] for each in document["batches"]]
    assert [] == document["problems"]
    assert False is document["truncated"]


def test_records_from_an_offset_up_to_a_limit(keeplast: Command, data_dir: Path) -> None:
    run = keeplast(
        "inspect", data_dir / "t-0", "--records", "--from-offset", 1, "--limit", 3, "--json"
    )
    document = run.document
    assert [(1, "b", "2"), (2, "a", "3"), (3, "b", None)] == [
        (r["offset"], r["key"]["text"], r["value"] and r["value"]["text"])
        for r in document["records"]
    ]
    assert True is document["truncated"]
    assert EPOCH_MS + 1 == document["records"][0]["timestamp"]


def test_bytes_that_are_no_text_are_hexadecimal(keeplast: Command, tmp_path: Path) -> None:
    write_log(tmp_path, "t-0", {0: [(b"\xff\x00", b"")]})
    (record,) = keeplast("inspect", tmp_path / "t-0", "--records", "--json").document["records"]
    assert {"hex": "ff00", "size_bytes": 2} == record["key"]
    assert {"text": "", "size_bytes": 0} == record["value"]


def test_a_hostile_key_cannot_command_the_terminal(keeplast: Command, tmp_path: Path) -> None:
    write_log(tmp_path, "t-0", {0: [("\x1b]0;owned\x07\u202etxt".encode(), b"[bold]\r\n")]})
    run = keeplast("inspect", tmp_path / "t-0", "--records")
    assert "\\x1b]0;owned\\x07\\u202etxt" in run.out
    assert "[bold]\\x0d\\x0a" in run.out
    for character in "\x1b\x07\r\u202e":
        assert character not in run.out


def test_a_marker_is_shown_as_what_it_is(keeplast: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: []})
    key, value = encode_end_transaction(EndTransactionMarker(ControlType.COMMIT, 0))
    marker = encode_batch(
        [Record(0, EPOCH_MS, key, value)],
        producer_id=7,
        producer_epoch=0,
        is_control=True,
        is_transactional=True,
    )
    (directory / f"{FIRST}.log").write_bytes(marker)
    assert "COMMIT of producer 7" in keeplast("inspect", directory, "--records").out
    assert "control" in keeplast("inspect", directory).out


def test_a_torn_tail_of_the_active_segment_is_reported_and_is_no_damage(
    keeplast: Command, data_dir: Path
) -> None:
    log = data_dir / "t-0" / f"{ACTIVE}.log"
    whole = log.stat().st_size
    log.write_bytes(log.read_bytes() + batch(5, b"x", b"y")[:30])
    run = keeplast("inspect", data_dir / "t-0", "--json", code=0)
    (problem,) = run.document["problems"]
    assert ("torn", whole) == (problem["severity"], problem["position"])
    assert "torn tail of 30 bytes" in problem["problem"]
    assert whole == run.document["segments"][-1]["valid_bytes"]
    assert whole + 30 == log.stat().st_size


def test_zeros_at_the_end_of_the_active_segment_are_a_torn_tail(
    keeplast: Command, data_dir: Path
) -> None:
    log = data_dir / "t-0" / f"{ACTIVE}.log"
    log.write_bytes(log.read_bytes() + bytes(4096))
    assert [("torn", log.name)] == problems(keeplast("inspect", data_dir / "t-0", "--json"))


def test_the_same_in_a_closed_segment_is_damage(keeplast: Command, data_dir: Path) -> None:
    log = data_dir / "t-0" / f"{FIRST}.log"
    log.write_bytes(log.read_bytes()[:-5])
    for path in (data_dir / "t-0", log):
        run = keeplast("inspect", path, "--json", code=3)
        assert ("corrupt", log.name) in problems(run)


def test_a_wrong_crc_is_found_with_position_expected_and_found(
    keeplast: Command, data_dir: Path
) -> None:
    log = data_dir / "t-0" / f"{FIRST}.log"
    data = bytearray(log.read_bytes())
    second = len(data) // 2
    data[-1] ^= 0xFF
    log.write_bytes(data)
    run = keeplast("inspect", log, "--json", code=3)
    (problem,) = run.document["problems"]
    assert ("crc mismatch", second) == (problem["problem"], problem["position"])
    assert problem["expected"].startswith("0x")
    assert problem["found"] != problem["expected"]
    assert 2 == run.document["segments"][0]["batches"]


def test_offsets_that_go_back_are_damage(keeplast: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: []})
    (directory / f"{FIRST}.log").write_bytes(batch(3, b"a", b"1") + batch(2, b"a", b"2"))
    assert 3 == keeplast("inspect", directory).code


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("index", offset_index.encode([(1, 10)])),
        ("index", offset_index.encode([(1, 70), (2, 60)])),
        ("index", offset_index.encode([(1, 1 << 20)])),
        ("index", b"\0\0\0"),
        ("timeindex", time_index.encode([(EPOCH_MS + 99, 1)])),
        ("timeindex", time_index.encode([(5, 1), (4, 1)])),
        ("timeindex", b"\0"),
        ("txnindex", txn_index.encode([txn_index.AbortedTransaction(1, 0, 0, 5)])),
        ("txnindex", b"\0\7" + bytes(32)),
    ],
)
def test_a_wrong_index_is_found(keeplast: Command, data_dir: Path, kind: str, data: bytes) -> None:
    path = data_dir / "t-0" / f"00000000000000000002.{kind}"
    path.write_bytes(data)
    run = keeplast("inspect", data_dir / "t-0", "--json")
    assert [("corrupt", path.name)] == problems(run)
    assert 3 == run.code


def test_a_right_index_is_not(keeplast: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: [(b"a", b"1")] * 3, 3: []})
    size = len(batch(0, b"a", b"1"))
    (directory / f"{FIRST}.index").write_bytes(offset_index.encode([(1, size), (2, 2 * size)]))
    assert [] == keeplast("inspect", directory, "--json").document["problems"]


def test_an_index_entry_inside_the_last_batch_is_found(keeplast: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: [(b"a", b"1")] * 3, 3: []})
    size = len(batch(0, b"a", b"1"))
    (directory / f"{FIRST}.index").write_bytes(offset_index.encode([(1, size), (2, 2 * size + 1)]))
    run = keeplast("inspect", directory, "--json")
    assert [("corrupt", f"{FIRST}.index")] == problems(run)
    assert 3 == run.code


def test_untrimmed_indexes_of_the_active_segment_are_a_note(
    keeplast: Command, data_dir: Path
) -> None:
    (data_dir / "t-0" / f"{ACTIVE}.index").write_bytes(bytes(800))
    run = keeplast("inspect", data_dir / "t-0", "--json")
    assert [("note", f"{ACTIVE}.index")] == problems(run)
    assert 0 == run.code


def test_unknown_staged_and_missing_files_are_notes(keeplast: Command, data_dir: Path) -> None:
    directory = data_dir / "t-0"
    (directory / "README").write_text("x")
    (directory / f"{FIRST}.log.cleaned").write_bytes(b"")
    (directory / "00000000000000000009.index").write_bytes(b"")
    (directory / f"{FIRST}.index").unlink()
    run = keeplast("inspect", directory, "--json", code=0)
    assert {
        ("note", "README"),
        ("note", f"{FIRST}.log.cleaned"),
        ("note", "00000000000000000009.index"),
        ("note", f"{FIRST}.index"),
    } == set(problems(run))


@pytest.mark.parametrize("name", [f"{ACTIVE}.snapshot", "leader-epoch-checkpoint"])
def test_damage_next_to_the_log_is_found(keeplast: Command, data_dir: Path, name: str) -> None:
    (data_dir / "t-0" / name).write_bytes(b"\x00\x01garbage, certainly")
    run = keeplast("inspect", data_dir / "t-0", "--json")
    assert [("corrupt", name)] == problems(run)
    assert 3 == keeplast("inspect", data_dir / "t-0" / name).code


def test_every_file_next_to_a_log_can_be_read_alone(keeplast: Command, data_dir: Path) -> None:
    directory = data_dir / "t-0"
    producer = producer_snapshot.ProducerEntry(7, 0, 3, 4, 0, EPOCH_MS, 0, -1)
    contents = {
        f"{FIRST}.index": offset_index.encode([(1, 70)]),
        f"{FIRST}.timeindex": time_index.encode([(EPOCH_MS + 1, 1)]),
        f"{FIRST}.txnindex": txn_index.encode([txn_index.AbortedTransaction(1, 0, 1, 2)]),
        f"{ACTIVE}.snapshot": producer_snapshot.encode([producer]),
        "partition.metadata": partition_metadata.encode(
            partition_metadata.PartitionMetadata(bytes(range(16)))
        ),
        "meta.properties": meta_properties.encode(meta_properties.MetaProperties(1, "c", 1)),
        "replication-offset-checkpoint": checkpoint.encode_offsets({TopicPartition("t", 0): 5}),
        "leader-epoch-checkpoint": (directory / "leader-epoch-checkpoint").read_bytes(),
    }
    for name, data in contents.items():
        (directory / name).write_bytes(data)
        run = keeplast("inspect", directory / name, "--json")
        assert (0, 1) == (run.code, len(run.document["entries"])), name
        assert 0 == keeplast("inspect", directory / name).code
    entry = keeplast("inspect", directory / f"{FIRST}.index", "--json").document["entries"][0]
    assert {"offset": 1, "position": 70} == entry


def test_entries_are_limited(keeplast: Command, tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_bytes(checkpoint.encode_offsets({TopicPartition("t", i): i for i in range(9)}))
    document = keeplast("inspect", path, "--limit", 2, "--json").document
    assert (2, True) == (len(document["entries"]), document["truncated"])


def test_a_file_that_is_no_part_of_a_log_is_a_usage_error(
    keeplast: Command, data_dir: Path
) -> None:
    (data_dir / "notes.txt").write_text("x")
    for path in (data_dir / "notes.txt", data_dir / "nowhere", data_dir):
        run = keeplast("inspect", path, "--json", code=2)
        assert "InvalidError" == run.document["error"]["class"]
    assert "t-0" in keeplast("inspect", data_dir).err


def test_a_claimed_size_is_never_allocated(keeplast: Command, tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: [], 1: []})
    log = directory / f"{FIRST}.log"
    with log.open("wb") as file:
        file.write(struct.pack(">qi", 0, (1 << 31) - 1 - 12))
        file.truncate(3 << 30)
    run = keeplast("inspect", log, "--json", code=3)
    assert "size of a batch is impossible" == run.document["problems"][0]["problem"]


def test_batches_larger_than_a_window_are_read(
    keeplast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_log(tmp_path, "t-0", {0: []})
    value = b"v" * (5 << 20)
    data = batch(0, b"a", b"1") + batch(1, b"b", value) + batch(2, b"c", b"3", Codec.ZSTD)
    (directory / f"{FIRST}.log").write_bytes(data)
    document = keeplast("inspect", directory, "--records", "--json").document
    assert [0, 1, 2] == [record["offset"] for record in document["records"]]
    assert len(value) == document["records"][1]["value"]["size_bytes"]
    assert (64 << 10) == len(document["records"][1]["value"]["text"])


def test_the_brokers_own_topics_are_shown_decoded(keeplast: Command, tmp_path: Path) -> None:
    commit = (b"\0\1" + b"\0\1g" + b"\0\1t" + bytes(4), b"\0\0" + struct.pack(">q", 5) + bytes(10))
    gone = (commit[0], None)
    write_log(tmp_path, "__consumer_offsets-7", {0: [commit, gone, (b"\0\x63?", b"x"), (b"", b"")]})
    run = keeplast("inspect", "--records", "--json", tmp_path / "__consumer_offsets-7", code=0)
    records = run.document["records"]
    assert [{"type_number": 1, "group": "g", "topic": "t", "partition": 0}] * 2 == [
        record["decoded"]["key"] for record in records[:2]
    ]
    assert 5 == records[0]["decoded"]["value"]["offset"]
    assert [None, "unknown"] == [records[1]["decoded"]["value"], records[2]["decoded"]["kind"]]
    assert "not decodable" == records[3]["decoded"]["kind"]
    shown = keeplast("inspect", "--records", tmp_path / "__consumer_offsets-7")
    assert "offset=5" in shown.out
    state = b"\0\0" + struct.pack(">qhib", 9, 2, 60000, 1) + b"\xff" * 4 + bytes(16)
    write_log(tmp_path, "__transaction_state-0", {0: [(b"\0\0\0\2tx", state)]})
    run = keeplast("inspect", "--records", "--json", tmp_path / "__transaction_state-0")
    assert "ONGOING" == run.document["records"][0]["decoded"]["value"]["status"]
    shown = keeplast("inspect", "--records", tmp_path / "__transaction_state-0")
    assert "transactional_id=tx" in shown.out


def test_records_of_other_topics_are_not_taken_for_a_brokers(
    keeplast: Command, data_dir: Path
) -> None:
    run = keeplast("inspect", "--records", "--json", data_dir / "t-0")
    assert {None} == {record["decoded"] for record in run.document["records"]}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], MISSING),
        (
            [(7, 1, 2)],
            "no entry for the aborted transaction of producer 7 from 0 on (log offset 2)",
        ),
        ([(7, 0, 2), (9, 3, 4)], "the entry of producer 9 ends at no abort marker (log offset 4)"),
        ([(7, 0, 2)], None),
    ],
)
def test_a_transaction_index_that_disagrees_with_the_markers_is_a_problem(
    keeplast: Command, tmp_path: Path, entries: list[tuple[int, int, int]], problem: str | None
) -> None:
    """The data lies in the segment before."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.producer(7).send(1)
    log.roll()
    log.record(2, 2)
    log.producer(7).abort()
    log.producer(9).send(3)
    log.producer(9).commit()
    log.finish()
    path = log.path(1, ".txnindex")
    path.unlink()
    if entries:
        found = [txn_index.AbortedTransaction(*entry, entry[2] + 1) for entry in entries]
        path.write_bytes(txn_index.encode(found))
    run = keeplast("inspect", tmp_path / "t-0", "--json")
    assert ([] if problem is None else [problem]) == [
        item["problem"] for item in run.document["problems"] if item["severity"] == "corrupt"
    ]
    assert (0 if problem is None else 3) == run.code


def test_a_data_directory_leads_to_a_topic_of_the_user(keeplast: Command, tmp_path: Path) -> None:
    for name in ("__consumer_offsets-0", "orders-1", "orders-0"):
        write_log(tmp_path, name, {0: [(b"k", b"v")]})
    run = keeplast("inspect", tmp_path, code=2)
    assert "choose one in it, such as orders-0. path=" in run.err


def test_an_offset_after_the_end_is_said_to_be_there(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("inspect", data_dir / "t-0", "--from-offset", 5, code=0)
    assert "nothing to show from offset 5 on: the log ends at 5" in run.out
    assert "nothing to show" not in keeplast("inspect", data_dir / "t-0", "--from-offset", 4).out


def with_epochs(directory: Path, epochs: list[int], *, lines: str) -> Path:
    """Write a log of a batch an offset, each with its epoch; two lie in the closed segment."""
    directory.mkdir()
    for name, first in (("0" * 20, 0), (f"{2:020d}", 2)):
        data = [
            encode_batch([Record(offset, EPOCH_MS, b"k", b"v")], leader_epoch=epochs[offset])
            for offset in range(first, first + 2)
        ]
        (directory / f"{name}.log").write_bytes(b"".join(data))
    (directory / "leader-epoch-checkpoint").write_text(lines)
    return directory


@pytest.mark.parametrize(
    ("epochs", "lines", "code", "severities"),
    [
        ([3, 3, 5, 5], "0\n2\n3 0\n5 2\n", 0, []),
        ([3, 4, 5, 5], "0\n2\n3 0\n5 2\n", 3, ["corrupt"]),
        ([4, 4, 5, 5], "0\n2\n3 0\n5 2\n", 3, ["corrupt"]),
        ([3, 3, 4, 5], "0\n2\n3 0\n5 2\n", 3, ["corrupt"]),
        ([3, 3, 5, 9], "0\n2\n3 0\n5 2\n", 0, ["note"]),
        ([3, 9, 5, 5], "0\n2\n3 0\n5 2\n", 3, ["corrupt"]),
        ([1, 1, 5, 5], "0\n1\n5 2\n", 0, []),
        ([1, 2, 3, -1], "0\n0\n", 0, []),
        ([3, 3, 5, 5], "0\n3\n3 0\n4 2\n5 2\n", 0, []),
    ],
    ids=[
        "equal", "between", "same-twice", "of-before", "newer-and-active", "newer-and-closed",
        "below-the-first", "no-entries", "contradicting-lines",
    ],
)  # fmt: skip
def test_a_leader_epoch_that_contradicts_the_checkpoint_is_found(
    keeplast: Command,
    tmp_path: Path,
    epochs: list[int],
    lines: str,
    code: int,
    severities: list[str],
) -> None:
    run = keeplast("inspect", with_epochs(tmp_path / "t-0", epochs, lines=lines), "--json")
    found = [each for each in run.document["problems"] if "leader epoch" in each["problem"]]
    assert (code, severities) == (run.code, [each["severity"] for each in found])


def test_a_wrong_crc_is_reported_in_one_order_by_all_commands(
    keeplast: Command, data_dir: Path
) -> None:
    path = data_dir / "t-0" / f"{FIRST}.log"
    data = bytearray(path.read_bytes())
    data[17:21] = bytes(4)
    path.write_bytes(data)
    (found,) = [
        each for each in keeplast("inspect", data_dir / "t-0", "--json").document["problems"]
        if each["problem"] == "crc mismatch"
    ]  # fmt: skip
    cleaned = keeplast(
        "clean", data_dir, "--config", "cleanup.policy=compact", "--runner", "local", "--json"
    ).document
    assert "0x00000000" == found["expected"]
    assert (
        f"expected={found['expected']} found={found['found']}"
        in (cleaned["partitions"][0]["rounds"][0]["error"]["message"])
    )
