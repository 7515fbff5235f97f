"""``keeplast run`` as a user calls it: what it prints, what it leaves, how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from tests.support.reader import read_partition
from tests.support.small_log import EPOCH_MS, write_log
from tests.unit.cli.conftest import Command

LOCAL = ("--once", "--runner", "local", "--cores", 1)


def test_a_line_a_round_and_a_table_at_the_end(keeplast: Command, settled_dir: Path) -> None:
    run = keeplast("run", settled_dir, *LOCAL, code=0)
    note, *lines = run.err.splitlines()
    assert note.startswith("note: ")
    assert "watching" in lines[0]
    assert "t-0" in lines[1]
    assert "dirty ratio 1.00" in lines[1]
    assert "0..5" in lines[1]
    assert lines[2].startswith("1 round in")
    assert ["t-0", "1", "5", "0", "%", "not", "due"] == run.out.splitlines()[1].split()[:7]
    assert (settled_dir / "keeplast-receipts").exists()


def test_a_log_that_waits_for_a_lag_is_held_back_as_status_says(
    keeplast: Command, settled_dir: Path
) -> None:
    lag = ("--config", "min.compaction.lag.ms=9000000000000000")
    run = keeplast("run", settled_dir, *LOCAL, *lag)
    assert ["held", "back"] == run.out.splitlines()[1].split()[5:7]
    assert "--despite" not in run.out
    status = keeplast("status", settled_dir, *lag, "--json").document
    assert ["held back"] == [each["state"] for each in status["partitions"]]


def test_the_document_says_what_was_done(keeplast: Command, settled_dir: Path) -> None:
    document = keeplast("run", settled_dir, *LOCAL, "--json").document
    assert (False, 1, []) == (document["stopped"], document["rounds"], document["left"])
    (partition,) = document["partitions"]
    assert ("t", 0, "not due", 1) == (
        partition["topic"], partition["partition"], partition["state"], partition["rounds"],
    )  # fmt: skip
    assert 5 == partition["last_round"]["end_offset"]
    again = keeplast("run", settled_dir, *LOCAL, "--json").document
    assert 0 == again["rounds"]


def test_hazards_of_a_strategy_are_said_once(keeplast: Command, settled_dir: Path) -> None:
    run = keeplast("run", settled_dir, *LOCAL, "--config", "compaction.strategy=timestamp")
    assert 1 == run.err.count("bring a deleted key back")


def test_a_brokers_own_topic_keeps_its_last_commit_whatever_the_default_is(
    keeplast: Command, tmp_path: Path
) -> None:
    directory = write_log(tmp_path, "__consumer_offsets-0", {0: [], 2: [(b"other", b"")]})
    # The older commit of the group is the one that is dated later.
    dated = [Record(0, EPOCH_MS + 9, b"g", b"older"), Record(1, EPOCH_MS + 1, b"g", b"newer")]
    batches = b"".join(encode_batch([each]) for each in dated)
    (directory / f"{0:020d}.log").write_bytes(batches)
    keeplast(
        "run", tmp_path, *LOCAL, "--config", "log.cleaner.compaction.strategy=timestamp", code=0
    )
    assert {b"g": b"newer", b"other": b""} == read_partition(directory).final_values()


def test_the_defaults_that_are_assumed_are_said_once(keeplast: Command, settled_dir: Path) -> None:
    run = keeplast("run", settled_dir, *LOCAL, "--json")
    assert 1 == run.err.count("note: Kafka's defaults are assumed")
    assert "0.5" == run.document["assumed"]["min.cleanable.dirty.ratio"]


def test_a_brokers_ratio_counts(keeplast: Command, settled_dir: Path) -> None:
    file = settled_dir / "server.properties"
    file.write_text("log.cleaner.min.cleanable.ratio=1\n")
    run = keeplast("run", settled_dir, *LOCAL, "--json", "--broker-config", file)
    assert (0, {}) == (run.document["rounds"], run.document["assumed"])


def test_a_damaged_partition_is_code_3_until_it_is_repaired(
    keeplast: Command, settled_dir: Path
) -> None:
    path = settled_dir / "t-0" / "00000000000000000002.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    for arguments in ((), (), ("--retry",)):
        run = keeplast("run", settled_dir, *LOCAL, *arguments, code=3)
        assert "skipped" in run.out
    path.write_bytes(sound)
    assert 0 == keeplast("run", settled_dir, *LOCAL).code


def test_an_unknown_policy_is_refused_and_named(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("run", data_dir, *LOCAL)
    assert "cleanup.policy of the topic is unknown" in run.out.replace("\n", " ")
    assert 4 == run.code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--topic", "nowhere"), "nowhere"),
        (("--config", "log.cleaner.io.max.bytes.per.second=0"), "log.cleaner.io.max"),
        (("--memory", "much"), "property=memory"),
        (("--master", "local[2]"), "--master"),
    ],
)
def test_a_mistake_is_code_2_and_says_which(
    keeplast: Command, settled_dir: Path, arguments: tuple[str, ...], named: str
) -> None:
    run = keeplast("run", settled_dir, *LOCAL, *arguments, code=2)
    assert named in run.err
