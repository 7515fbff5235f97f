"""``keeplast hold``: what it says, what it refuses, and that status and clean know of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from tests.support.small_log import write_log


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (tmp_path / "data").mkdir()
    (root / "keeplast.toml").write_text('[topic."t"]\ncleanup.policy = "compact"\n')
    pairs = [(b"a", b"%d" % number) for number in range(3)]
    write_log(root, "t-0", {0: pairs, 3: pairs, 6: pairs})
    write_log(root, "t-1", {0: pairs})
    return root


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_a_hold_is_added_seen_honoured_and_released(data: Path) -> None:
    add = ("hold", "add", data, "audit", "--topic", "t", "--partition", 0, "--max-age", "7d")
    done = run(*add, "--at", 4, "--json")
    assert 0 == done.exit_code, done.output
    (added,) = json.loads(done.stdout)["holds"]
    assert ("t", 0, "audit", 4, True) == tuple(
        added[each] for each in ("topic", "partition", "name", "offset", "is_in_force")
    )
    listed = run("hold", "list", data)
    assert (0, True) == (listed.exit_code, "audit  t-0" in listed.output), listed.output
    told = run("status", data, "--topic", "t", "--partition", 0)
    assert "hold audit: not cleaned past 4 until" in told.output
    planned = run("plan", data, "--topic", "t", "--partition", 0, "--force")
    assert "the state as of 4 is held by audit until" in " ".join(planned.output.split())
    cleaned = run("clean", data, "--topic", "t", "--force", "--json", "--runner", "local")
    assert 0 == cleaned.exit_code, cleaned.output
    told = json.loads(run("status", data, "--json").stdout)
    (first,) = [each for each in told["partitions"] if each["partition"] == 0]
    assert (3, 3, "audit") == (first["told_from"], first["first_dirty"], first["holds"][0]["name"])
    taken = run(*add, "--at", "now")
    assert (4, True) == (taken.exit_code, "there is a hold of this name" in taken.output)
    released = run("hold", "release", data, "audit", "--json")
    assert 1 == len(json.loads(released.stdout)["released"])
    assert "no holds" in run("hold", "list", data).output


def test_a_time_is_of_every_partition(data: Path) -> None:
    add = ("hold", "add", data, "then", "--topic", "t", "--max-age", "1h", "--json")
    done = run(*add, "--at", "2023-11-14T22:13:20.001Z")
    assert 0 == done.exit_code, done.output
    assert [2, 2] == [each["offset"] for each in json.loads(done.stdout)["holds"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--at", "4", "--max-age", "7d", "--topic", "t"], 2, "choose it with --partition"),
        (["--at", "soon", "--max-age", "7d", "--topic", "t"], 2, "an offset, a time such as"),
        (["--at", "9" * 30, "--max-age", "7d", "--topic", "t"], 2, "not an offset"),
        (["--at", "now", "--max-age", "0", "--topic", "t"], 2, "a second at least"),
        (["--at", "now", "--max-age", "never", "--topic", "t"], 2, "not a span of time"),
        (["--at", "now", "--max-age", "400d", "--topic", "t"], 2, "366 d at most"),
        (["--at", "now", "--max-age", "7d", "--topic", "z"], 2, "no such topic"),
        (["--at", "now", "--max-age", "7d"], 2, "--topic"),
    ],
)
def test_mistakes_are_usage_errors(data: Path, arguments: list[str], code: int, said: str) -> None:
    done = run("hold", "add", data, "h", *arguments)
    assert (code, True) == (done.exit_code, said in " ".join(done.output.split())), done.output
    assert not (data / "keeplast-holds").exists()


def test_a_hold_that_is_not_there_is_a_usage_error(data: Path) -> None:
    done = run("hold", "release", data, "h")
    assert (2, True) == (done.exit_code, "there are: none" in done.output), done.output
