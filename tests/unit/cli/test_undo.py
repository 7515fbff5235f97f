"""``keeplast undo``: what it shows, does and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.log.lock import locked
from tests.support.small_log import write_log

SETTINGS = '[topic."t"]\ncleanup.policy = "compact"\nundo.retention.ms = 3600000\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    (root / "keeplast.toml").write_text(SETTINGS)
    pairs = [(b"a", b"%d" % number) for number in range(3)]
    write_log(root, "t-0", {0: pairs, 3: pairs, 6: pairs})
    write_log(root, "t-1", {0: pairs, 3: pairs})
    return root


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def clean(data: Path) -> None:
    """Clean what is closed; an active segment that is old stays where it is."""
    done = run("clean", data, "--topic", "t", "--force", "--selection", "kafka")
    assert 0 == done.exit_code, done.output


def logs(data: Path, number: int = 0) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / f"t-{number}").glob("0*")}


def test_a_round_is_listed_tried_and_undone(data: Path) -> None:
    before = logs(data)
    clean(data)
    after = logs(data)
    assert before != after
    listed = run("undo", "list", data, "--json")
    rounds = json.loads(listed.stdout)["rounds"]
    assert [("t", 0, True, None), ("t", 1, True, None)] == [
        tuple(each[name] for name in ("topic", "partition", "is_in_place", "refusal"))
        for each in rounds
    ]
    assert "can be undone" in run("undo", "list", data).output
    assert "kept for keeplast undo, until" in run("status", data, "--partition", 0).output
    tried = run("undo", "apply", data, "--partition", 0, "--dry-run")
    assert (0, True) == (tried.exit_code, "would be undone" in tried.output), tried.output
    assert after == logs(data)
    undone = run("undo", "apply", data, "--partition", 0, "--json")
    assert 0 == undone.exit_code, undone.output
    (done,) = json.loads(undone.stdout)["rounds"]
    assert (2, 6, None) == (done["segments"], done["end"], done["checkpoint"])
    assert before == logs(data)
    shown = run("receipt", "show", data / "keeplast-receipts")
    assert "undone, 2 segments back" in " ".join(shown.output.split())
    again = run("undo", "apply", data, "--partition", 0)
    assert (0, True) == (again.exit_code, "no round has kept anything" in again.output)


def test_what_one_partition_refuses_keeps_no_other_from_it(data: Path) -> None:
    before = logs(data, 1)
    clean(data)
    path = data / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    done = run("undo", "apply", data, "--json")
    assert 4 == done.exit_code
    document = json.loads(done.stdout)
    assert [("t", 0, "RefusedError")] == [
        (each["topic"], each["partition"], each["class"]) for each in document["failed"]
    ]
    assert before == logs(data, 1)


def test_it_is_refused_while_somebody_has_the_directory_and_in_a_store(data: Path) -> None:
    clean(data)
    with locked(data):
        assert 4 == run("undo", "apply", data).exit_code
        assert 4 == run("undo", "drop", data).exit_code
        assert 0 == run("undo", "list", data).exit_code
    refused = run("undo", "list", "s3://bucket/data")
    assert (4, True) == (refused.exit_code, "undo is for data directories" in refused.output)
    assert 2 == run("undo", "list", data, "--topic", "other").exit_code


def test_what_is_kept_is_dropped_when_asked(data: Path) -> None:
    clean(data)
    dropped = run("undo", "drop", data, "--json")
    assert {"t-0": 1, "t-1": 1} == json.loads(dropped.stdout)["rounds"]
    assert "no round has kept anything" in run("undo", "list", data).output


def test_a_time_above_the_greatest_lag_is_refused(data: Path) -> None:
    (data / "keeplast.toml").write_text(SETTINGS + "max.compaction.lag.ms = 3599999\n")
    done = run("plan", data, "--topic", "t")
    assert 2 == done.exit_code
    assert "undo.retention.ms above max.compaction.lag.ms" in done.output


def test_what_is_to_be_erased_does_not_come_back(data: Path, tmp_path: Path) -> None:
    """An undo is refused while there is a request, and erase --now takes what was kept."""
    secret, keys = tmp_path / "hash.key", tmp_path / "keys"
    secret.write_bytes(b"k" * 32)
    keys.write_text("a\n")
    clean(data)
    asked = run("erase", data, "--keys", keys, "--hash-key", secret, "--topic", "t", "--json")
    assert 1 == asked.exit_code, asked.output
    places = json.loads(asked.stdout)["keys"][0]["places"]
    assert all(any("keeplast-undo." in n for n in each["files_beside"]) for each in places)
    refused = run("undo", "apply", data, "--partition", 0)
    assert (4, True) == (refused.exit_code, "are to be erased" in refused.output)
    run("erase", data, "--keys", keys, "--hash-key", secret, "--topic", "t", "--now")
    assert not list(data.glob("*/keeplast-undo.*"))
