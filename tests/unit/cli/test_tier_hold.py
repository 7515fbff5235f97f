"""``keeplast hold`` of a store and of a live cluster: what it says, and which commands know."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

import keeplast as package
from keeplast.api import open_store
from keeplast.api.attached_logs import AttachedLogs
from keeplast.attach.answers import shown_logs
from keeplast.cli.main import app
from keeplast.clock import SystemClock
from keeplast.tier.metadata.database import open_database
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import let_commands_open
from tests.unit.attach.test_attached_holds import make_world
from tests.unit.cli.conftest import Run

Command = Callable[..., Run]

SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


def test_a_hold_of_a_store_is_added_seen_honoured_and_released(
    tmp_path: Path, keeplast: Command
) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    shutil.copytree(SAMPLE, tmp_path / "data")
    keeplast("tier", "import", tmp_path / "data", "--store", url, "--topic", "orders")
    store = ("--store", url)
    add = ("hold", "add", url, "audit", "--topic", "orders", "--max-age", "7d")
    added = keeplast(*add, "--at", 250, "--json")
    (hold,) = added.document["holds"]
    assert ("orders", 0, "audit", True) == tuple(
        hold[each] for each in ("topic", "partition", "name", "is_in_force")
    )
    assert 0 < hold["offset"] <= 250
    assert "audit  orders-0" in keeplast("hold", "list", url).out
    assert f"hold audit: not cleaned past {hold['offset']} until" in keeplast(
        "tier", "status", *store
    ).out.replace("\n", " ")
    cleaned = keeplast("clean", url, "--force", "--json").document["partitions"][0]
    assert cleaned["bound"] <= hold["offset"]
    erased = keeplast("tier", "status", *store, "--erased-by", "--json").document["partitions"]
    assert ["audit"] == [each["name"] for each in erased[0]["holds"]]
    taken = keeplast(*add, "--at", "now")
    assert (4, True) == (taken.code, "there is a hold of this name" in taken.err)
    wrong = keeplast(*add[:-4], "--topic", "order", "--max-age", "7d", "--at", "now")
    assert (2, True) == (wrong.code, "did you mean orders" in wrong.err)
    released = keeplast("hold", "release", url, "audit")
    assert "released audit, of 1 partition(s)" in released.out
    assert "no holds" in keeplast("hold", "list", url).out
    again = keeplast("clean", url, "--force", "--json").document["partitions"][0]
    assert 339 == again["end_offset"]


def test_a_hold_of_a_live_topic_is_added_seen_honoured_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object, code: int = 0) -> Any:
        found = CliRunner().invoke(app, [str(each) for each in arguments])
        assert code == found.exit_code, found.output
        return " ".join(found.output.split())

    def hold(verb: str, *arguments: object, code: int = 0) -> Any:
        given = ("--with", f"decisions={store}", "--with", "storage=local:/x")
        return run("hold", verb, "kafka://127.0.0.1:1", *arguments, *given, code=code)

    world = make_world(tmp_path)
    world.world.clock.advance(SystemClock().now_ms() - world.world.clock.now_ms())
    let_commands_open(world, monkeypatch)
    store = f"sqlite:///{world.world.root / 'decisions.db'}"
    topic = ("--topic", PARTITION.topic)
    add = ("add", "audit", *topic, "--max-age", "7d")
    assert f"audit {PARTITION.topic}-{PARTITION.partition} 35" in hold(*add, "--at", 35)
    assert "audit" in hold("list")
    assert "no holds" in hold("list", "--topic", "another")
    given = ("--decisions", store, "--storage", "local:/x")
    planned = run(
        "plan", "kafka://127.0.0.1:1", *given, *topic, "--force", "--config", "segment.bytes=300"
    )
    assert "the state as of 35 is held by audit until" in planned
    assert "there is a hold of this name" in hold(*add, "--at", "now", code=4)
    unnamed = ("--max-age", "7d", "--at", "now")
    assert "Missing option '--topic'" in hold("add", "x", *unnamed, code=2)
    # A hold is released as a whole.
    assert "No such option: --topic" in hold("release", "audit", *topic, code=2)
    assert "released audit, of 1 partition(s)" in hold("release", "audit")
    assert "no holds" in hold("list")
    world.close()


@pytest.mark.parametrize("call", [("list",), ("release", "audit")])
def test_a_decision_log_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    world = make_world(tmp_path)
    monkeypatch.setattr(AttachedLogs, "connect", lambda _: world.consumers)
    missing = tmp_path / "decision.db"
    where = ("kafka://127.0.0.1:1", "--with", f"decisions=sqlite:///{missing}")
    found = CliRunner().invoke(app, ["hold", call[0], *where, *call[1:]])
    assert (2, True) == (found.exit_code, "there is no such decision log" in found.output)
    assert not missing.exists()
    world.close()


def test_who_lists_holds_opens_no_metadata_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeplast: Command
) -> None:
    """A principal that may only read is enough, and no lock is in a host's way."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    opened: list[bool] = []

    def open_noting(url: str, *, only_looks: bool = False) -> Engine:
        opened.append(only_looks)
        return open_database(url, only_looks=only_looks)

    monkeypatch.setattr(open_store, "open_database", open_noting)
    monkeypatch.setattr(shown_logs, "open_database", open_noting)
    assert 0 == keeplast("hold", "list", url).code
    world = make_world(tmp_path / "live")
    monkeypatch.setattr(AttachedLogs, "connect", lambda _: world.consumers)
    assert 0 == keeplast("hold", "list", "kafka://127.0.0.1:1", "--with", f"decisions={url}").code
    assert [True, True] == opened
    world.close()
