"""``keeplast demo --tier`` from end to end on the local runner, and that it would notice a loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from keeplast.cli.demo.hosts import Appender
from keeplast.cli.main import app


def run_demo(*more: str) -> Any:
    return CliRunner().invoke(app, ["demo", "--tier", "--runner", "local", *more])


def test_a_reader_gets_what_was_appended_whatever_happens_to_the_leaders() -> None:
    result = run_demo("--json")
    found = json.loads(result.stdout)
    assert (0, True) == (result.exit_code, found["equal"])
    assert (0, []) == (found["wrong_keys"], found["findings"])
    assert found["keys"] > 1_500
    # Who was quicker than the signal is not fenced; both are caught on any machine that we know.
    assert (True, True) == (found["killed"]["was_cut_short"], found["frozen"]["was_cut_short"])
    assert "FencedError" == found["zombie"]["error"]
    assert found["after"]["remote_bytes"] < found["before"]["remote_bytes"] // 4
    assert 0 == found["garbage"]["waiting"]


def test_a_lost_record_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Appender._apply

    def forgetful(source: Appender, records: Any) -> None:
        apply(source, records)
        source.state[b"never appended"] = b"1"

    monkeypatch.setattr(Appender, "_apply", forgetful)
    monkeypatch.setattr("keeplast.cli.demo.tier.RECORDS", 6_000)
    result = run_demo()
    assert 1 == result.exit_code
    assert "NOT EQUAL: 1 keys differ; the store holds" in result.stdout
