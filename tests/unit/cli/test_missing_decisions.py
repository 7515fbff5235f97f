"""A decision log that is not there is not made, whichever command it is given to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world
from tests.support.key_pair import write_operator_files
from tests.unit.cli.conftest import Run

CALLS: dict[str, tuple[object, ...]] = {
    "explain": ("k1",),
    "verify": (),
    "hold list": (),
    "hold release": ("audit",),
    "erase keys": ("--keys", "KEYS", "--hash-key", "HASH", "--topic", PARTITION.topic),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_decision_log_that_is_not_there_is_not_made(
    keeplast: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    nowhere = tmp_path / "nowhere.db"
    operator = write_operator_files(tmp_path / "apart", [b"k1"])
    files = {"KEYS": operator.keys, "HASH": operator.hash_key}
    more = [files.get(str(each), each) for each in CALLS[call]]
    log = ("--decisions", f"sqlite:///{nowhere}", "--storage", "local:/x")
    with commanded_world(tmp_path, monkeypatch):
        run = keeplast(*call.split(), "kafka://127.0.0.1:1", *more, *log)
    assert (2, False) == (run.code, nowhere.exists()), run.err
    assert "no such decision log" in run.err or "there is no such store" in run.err


def test_a_plan_before_the_first_round_needs_none_and_makes_none(
    keeplast: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "nowhere.db"
    log = ("--decisions", f"sqlite:///{nowhere}", "--storage", "local:/x")
    with commanded_world(tmp_path, monkeypatch):
        run = keeplast("plan", "kafka://127.0.0.1:1", *log, "--json")
    assert (0, False) == (run.code, nowhere.exists()), run.err
    assert [PARTITION.topic] == [each["topic"] for each in run.document["partitions"]]
