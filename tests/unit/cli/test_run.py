"""``keeplast run`` as a user calls it: what it prints, what it leaves, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

Command = Callable[..., Run]
LOCAL = ("--once", "--runner", "local", "--cores", 1)


@pytest.fixture
def settled_dir(data_dir: Path) -> Path:
    """The data directory, with its settings in it."""
    (data_dir / "keeplast.toml").write_text('[topic."t"]\n"cleanup.policy" = "compact"\n')
    return data_dir


def test_a_line_a_round_and_a_table_at_the_end(keeplast: Command, settled_dir: Path) -> None:
    run = keeplast("run", settled_dir, *LOCAL)
    assert 0 == run.code, run.err
    lines = run.err.splitlines()
    assert "watching" in lines[0]
    assert "t-0" in lines[1]
    assert "dirty ratio 1.00" in lines[1]
    assert "0..5" in lines[1]
    assert lines[2].startswith("1 round in")
    assert ["t-0", "1", "5", "0", "%", "waiting"] == run.out.splitlines()[1].split()[:6]
    assert (settled_dir / "keeplast-receipts").exists()


def test_the_document_says_what_was_done(keeplast: Command, settled_dir: Path) -> None:
    document = keeplast("run", settled_dir, *LOCAL, "--json").document
    assert (False, 1, []) == (document["stopped"], document["rounds"], document["left"])
    (partition,) = document["partitions"]
    assert ("t", 0, "waiting", 1) == (
        partition["topic"], partition["partition"], partition["state"], partition["rounds"],
    )  # fmt: skip
    assert 5 == partition["last_round"]["end_offset"]
    again = keeplast("run", settled_dir, *LOCAL, "--json").document
    assert 0 == again["rounds"]


def test_a_damaged_partition_is_code_3_until_it_is_repaired(
    keeplast: Command, settled_dir: Path
) -> None:
    path = settled_dir / "t-0" / "00000000000000000002.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    for arguments in ((), (), ("--retry",)):
        run = keeplast("run", settled_dir, *LOCAL, *arguments)
        assert 3 == run.code, run.err
        assert "set aside" in run.out
    path.write_bytes(sound)
    assert 0 == keeplast("run", settled_dir, *LOCAL).code


def test_an_unknown_policy_is_refused_and_told(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("run", data_dir, *LOCAL)
    assert "cleanup.policy of the topic is unknown" in run.out.replace("\n", " ")
    assert 4 == run.code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--topic", "nowhere"), "nowhere"),
        (("--config", "log.cleaner.io.max.bytes.per.second=0"), "log.cleaner.io.max"),
        (("--memory", "much"), "--memory"),
        (("--master", "local[2]"), "--master"),
    ],
)
def test_a_mistake_is_code_2_and_says_which(
    keeplast: Command, settled_dir: Path, arguments: tuple[str, ...], named: str
) -> None:
    run = keeplast("run", settled_dir, *LOCAL, *arguments)
    assert 2 == run.code
    assert named in run.err
