"""``keeplast doctor``: what is there, what is absent, and what would end a clean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keeplast.cli.doctor import CheckState, directory_findings, find_java, find_rights
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Run

Command = Callable[..., Run]


def states(run: Run) -> dict[str, str]:
    return {each["name"]: each["state"] for each in run.document["checks"]}


@pytest.fixture
def ready(data_dir: Path) -> Path:
    """A data directory in which nothing is in the way of a clean."""
    (data_dir / "keeplast.toml").write_text('[topic."t"]\n"cleanup.policy" = "compact"\n')
    return data_dir


def test_everything_is_looked_at_in_one_go(keeplast: Command, ready: Path) -> None:
    run = keeplast("doctor", ready, "--json")
    assert (0, "") == (run.code, run.err)
    assert [
        "keeplast", "kernels", "Java", "pyspark", "extra s3", "extra tier", "extra cluster",
        "directory", "rights", "lock", "disk", "policies",
    ] == [*states(run)]  # fmt: skip
    assert "nothing is in the way" == keeplast("doctor", ready).out.splitlines()[-1]


def test_nothing_is_changed(keeplast: Command, ready: Path) -> None:
    before = sorted((str(p), p.stat().st_mtime_ns) for p in ready.rglob("*"))
    keeplast("doctor", ready)
    assert before == sorted((str(p), p.stat().st_mtime_ns) for p in ready.rglob("*"))


def test_a_host_without_a_directory_is_looked_at_too(keeplast: Command) -> None:
    run = keeplast("doctor", "--json")
    assert (0, False) == (run.code, "lock" in states(run))


def test_an_unknown_policy_is_in_the_way(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("doctor", data_dir, "--json")
    assert (1, "problem") == (run.code, states(run)["policies"])
    assert "1 in the way of a clean" == keeplast("doctor", data_dir).out.splitlines()[-1]


def test_a_default_policy_alone_is_in_the_way(keeplast: Command, data_dir: Path) -> None:
    (data_dir / "keeplast.toml").write_text("[cluster]\n'log.cleanup.policy' = 'compact'\n")
    run = keeplast("doctor", data_dir, "--json")
    assert (1, "problem") == (run.code, states(run)["policies"])


def test_a_lock_that_is_held_is_in_the_way(ready: Path) -> None:
    with locked(ready):
        found = {each.name: each for each in directory_findings(ready)}
    assert CheckState.PROBLEM is found["lock"].state
    assert "stop it, or clean a copy" in found["lock"].words


def test_a_missing_right_is_in_the_way(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protected = sorted((ready / "t-0").iterdir())[0]
    real = os.access

    def access(path: Path, mode: int) -> bool:
        return real(path, mode) and not (Path(path) == protected and mode == os.W_OK)

    monkeypatch.setattr("keeplast.cli.show.fault.os.access", access)
    found = find_rights(open_data_directory(ready, LocalFiles()))
    assert CheckState.PROBLEM is found.state
    assert f"may not write {protected}" in found.words


def test_a_disk_without_room_is_in_the_way(
    keeplast: Command, ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFiles, "free_bytes", lambda self, place: 0)
    assert "problem" == states(keeplast("doctor", ready, "--json"))["disk"]


def test_a_directory_that_is_not_there_is_said(keeplast: Command, tmp_path: Path) -> None:
    run = keeplast("doctor", tmp_path / "nowhere", "--json")
    assert (1, "problem") == (run.code, states(run)["directory"])


def test_damage_is_a_line_and_no_traceback(keeplast: Command, tmp_path: Path) -> None:
    for name in ("t-0", "t-00"):
        write_log(tmp_path, name, {0: [(b"k", b"v")]})
    run = keeplast("doctor", tmp_path)
    assert 1 == run.code
    assert "two directories are of one partition" in run.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "11, Spark needs 17"),
        ("echo hello", "an unknown version, Spark needs 17"),
        ("echo 'openjdk version \"21.0.2\"' >&2", "21 at "),
        (None, "none in "),
    ],
)
def test_java_is_called_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found: Any = find_java()
    assert words in found.words
    assert (CheckState.OK if "21" in words else CheckState.ABSENT) is found.state
