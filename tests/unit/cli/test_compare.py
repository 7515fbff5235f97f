"""``plan --compare``: arguments to a comparison, a comparison to output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.flipped import flip
from tests.support.scenario_log import ScenarioLog
from tests.support.versioned_log import BY_HEADER, deletion, versioned, write
from tests.unit.cli.conftest import Command

TOPIC = ("--topic", "log", "--config", "cleanup.policy=compact")
HEADER = ("--config", "compaction.strategy=header", "--config", "compaction.strategy.header=ver")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = ScenarioLog(tmp_path / "data", BY_HEADER)
    write(log, versioned(b"a", 9), versioned(b"a\x1b", 1), versioned(b"a", 3), deletion(b"a\x1b"))
    write(log, *(versioned(b"n%d" % n, n % 7) for n in range(30)), versioned(b"far", 1 << 62))
    log.close()
    return log.directory.parent


def test_changes_are_counted_and_shown(data: Path, keeplast: Command) -> None:
    run = keeplast("plan", data, *TOPIC, *HEADER, "--compare", code=0)
    assert "log-0: 2 of 33 keys would keep another record by header ver than by offset" in run.out
    assert "1 keys that are deleted today would be there" in run.out
    assert "1 tombstones have no version" in run.out
    assert str(1 << 62) in run.out
    assert "\x1b" not in run.out


def test_the_document_has_both_candidates(data: Path, keeplast: Command) -> None:
    run = keeplast("plan", data, *TOPIC, *HEADER, "--compare", "--first", 1, "--json")
    (partition,) = run.document["partitions"]
    assert ("offset", "header", "ver") == (
        partition["today"], partition["then"], partition["header"]
    )  # fmt: skip
    assert (2, 1, 1) == (
        partition["keys_changed"], partition["keys_back"], len(partition["changes"])
    )  # fmt: skip
    (change,) = partition["changes"]
    assert b"a" == bytes.fromhex(change["key"])
    assert (2, 3) == (change["today"]["offset"], change["today"]["version"])
    assert (0, 9) == (change["then"]["offset"], change["then"]["version"])
    assert [34] == [each["offset"] for each in partition["far_ahead"]["first"]]


def test_the_strategy_in_force_is_what_the_file_says(data: Path, keeplast: Command) -> None:
    file = data / "keeplast.toml"
    file.write_text('[topic.log]\n"compaction.strategy" = "timestamp"\n')
    run = keeplast("plan", data, *TOPIC, *HEADER, "--compare", "--json")
    (partition,) = run.document["partitions"]
    assert ("timestamp", "header") == (partition["today"], partition["then"])


def test_the_strategy_in_force_is_nothing_to_compare_with(data: Path, keeplast: Command) -> None:
    run = keeplast("plan", data, *TOPIC, "--compare", "--json", code=2)
    assert "in force already" in run.err


def test_a_damaged_partition_is_named_and_sets_the_exit_code(data: Path, keeplast: Command) -> None:
    path = data / "log-0" / f"{0:020d}.log"
    flip(path, 80)
    run = keeplast("plan", data, *TOPIC, *HEADER, "--compare", "--json", code=3)
    (partition,) = run.document["partitions"]
    assert "CorruptError" == partition["error"]["class"]
    assert "log-0: " in run.err
