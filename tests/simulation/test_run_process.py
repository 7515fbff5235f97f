"""``keeplast run`` as a process: killed without warning, or asked to stop.

``RUN_KILLS`` is how many kills there are (2 by default), ``FIRST_KILL`` the seed of the first.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from tests.support.cleaning_process import (
    SEGMENT_BYTES,
    Subject,
    disturb,
    partitions,
    run_command,
    sender,
    staged_names,
)
from tests.support.waiting import SECONDS_MAX, wait_for_line

KILLS = int(os.environ.get("RUN_KILLS", "2"))
FIRST_KILL = int(os.environ.get("FIRST_KILL", "0"))
MORE_KILLS = range(FIRST_KILL + 1, FIRST_KILL + KILLS)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SETTINGS = f'[topic."t"]\n"cleanup.policy" = "compact"\n"segment.bytes" = {SEGMENT_BYTES}\n'


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The log that is cleaned."""
    return Subject(tmp_path_factory.mktemp("run"))


def copy(subject: Subject, name: str) -> Path:
    root = subject.copy(name)
    (root / "keeplast.toml").write_text(SETTINGS)
    return root


def keeplast(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in this process: those that are disturbed are other ones."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app, words)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "seed", [FIRST_KILL, *(pytest.param(seed, marks=pytest.mark.repeats) for seed in MORE_KILLS)]
)
def test_a_killed_run_is_made_good_by_the_next_one(subject: Subject, seed: int) -> None:
    root = copy(subject, f"killed-{seed}")
    before = root.with_name(f"before-{seed}")
    shutil.copytree(root, before)
    (delay,) = subject.delays(seed, 1)
    line = run_command(root, runner="local")
    ended = disturb(
        root, runner="local", delay_seconds=delay, act=sender(signal.SIGKILL), line=line
    )
    assert -signal.SIGKILL == ended.code, ended.err
    again = keeplast("run", root, "--runner", "local", "--cores", 1, "--once", "--json")
    assert 0 == again.returncode, again.stderr
    assert {"not due"} == {each["state"] for each in json.loads(again.stdout)["partitions"]}
    assert [] == [name for directory in partitions(root) for name in staged_names(directory)]
    subject.assert_readers_see_the_same(root)
    verified = keeplast("verify", before, root, "--json")
    assert 0 == verified.returncode, verified.stdout


@pytest.mark.rotates(2)
@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("seed", range(1))
def test_a_signal_ends_a_run_at_a_safe_point(
    subject: Subject, number: signal.Signals, seed: int
) -> None:
    root = copy(subject, f"{number.name}-{seed}")
    (delay,) = subject.delays(seed, 1)
    line = run_command(root, runner="local")
    ended = disturb(root, runner="local", delay_seconds=delay, act=sender(number), line=line)
    assert CODES[number] == ended.code, ended.err
    assert [] == [name for directory in partitions(root) for name in staged_names(directory)]
    subject.assert_readers_see_the_same(root)
    document = json.loads(ended.out)
    assert document["stopped"]
    assert len(partitions(root)) == document["rounds"] + len(document["left"])
    assert (root / "keeplast-receipts").exists() == (document["rounds"] > 0)
    again = keeplast("run", root, "--runner", "local", "--cores", 1, "--once", "--json")
    assert 0 == again.returncode, again.stderr
    assert len(document["left"]) == json.loads(again.stdout)["rounds"]


def test_a_second_run_is_refused_while_one_is_idle(subject: Subject) -> None:
    root = copy(subject, "second")
    line = run_command(root, runner="local")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_line(process, r"  idle: 3 partitions")
        refused = keeplast("run", root, "--runner", "local", "--once", "--json")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert 4 == refused.returncode
    assert "in use" in json.loads(refused.stdout)["error"]["message"]
    assert 3 == json.loads(out)["rounds"]
    shown = keeplast("inspect", root / "keeplast-receipts", "--json")
    assert 3 == len(json.loads(shown.stdout)["receipts"])
