"""``keeplast tier hold`` and ``attach hold``: what they say, and that the other commands know."""

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
from keeplast.cli.attach.options import ClusterAddress
from keeplast.cli.main import app
from keeplast.clock import SystemClock
from keeplast.tier.metadata import database
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
    add = ("tier", "hold", "add", "audit", *store, "--topic", "orders", "--max-age", "7d")
    added = keeplast(*add, "--at", 250, "--json")
    (hold,) = added.document["holds"]
    assert ("orders", 0, "audit", True) == tuple(
        hold[each] for each in ("topic", "partition", "name", "is_in_force")
    )
    assert 0 < hold["offset"] <= 250
    assert "audit  orders-0" in keeplast("tier", "hold", "list", *store).out
    assert f"hold audit: not cleaned past {hold['offset']} until" in keeplast(
        "tier", "status", *store
    ).out.replace("\n", " ")
    cleaned = keeplast("tier", "clean", *store, "--force", "--json").document["partitions"][0]
    assert cleaned["bound"] <= hold["offset"]
    erased = keeplast("tier", "status", *store, "--erased-by", "--json").document["partitions"]
    assert ["audit"] == [each["name"] for each in erased[0]["holds"]]
    taken = keeplast(*add, "--at", "now")
    assert (4, True) == (taken.code, "there is a hold of this name" in taken.err)
    wrong = keeplast(*add[:-4], "--topic", "order", "--max-age", "7d", "--at", "now")
    assert (2, True) == (wrong.code, "did you mean orders" in wrong.err)
    released = keeplast("tier", "hold", "release", "audit", *store)
    assert "released audit, of 1 partition(s)" in released.out
    assert "no holds" in keeplast("tier", "hold", "list", *store).out
    again = keeplast("tier", "clean", *store, "--force", "--json").document["partitions"][0]
    assert 339 == again["end_offset"]


def test_a_hold_of_a_live_topic_is_added_seen_honoured_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object, code: int = 0) -> Any:
        where = ("--bootstrap-server", "127.0.0.1:1", "--store", store)
        found = CliRunner().invoke(app, ["attach", *(str(each) for each in arguments), *where])
        assert code == found.exit_code, found.output
        return " ".join(found.output.split())

    world = make_world(tmp_path)
    world.world.clock.advance(SystemClock().now_ms() - world.world.clock.now_ms())
    let_commands_open(world, monkeypatch)
    store = f"sqlite:///{world.world.root / 'decisions.db'}"
    storage = ("--storage", "local:/x", "--topic", PARTITION.topic)
    add = ("hold", "add", "audit", *storage, "--max-age", "7d")
    assert f"audit {PARTITION.topic}-{PARTITION.partition} 35" in run(*add, "--at", 35)
    assert "audit" in run("hold", "list")
    planned = run("plan", *storage, "--force", "--config", "segment.bytes=300")
    assert "the state as of 35 is held by audit until" in planned
    assert "there is a hold of this name" in run(*add, "--at", "now", code=4)
    unnamed = ("--storage", "local:/x", "--max-age", "7d", "--at", "now")
    assert "Missing option '--topic'" in run("hold", "add", "x", *unnamed, code=2)
    # A hold is released as a whole.
    of_topic = ("release", "audit", "--topic", PARTITION.topic)
    assert "No such option: --topic" in run("hold", *of_topic, code=2)
    assert "released audit, of 1 partition(s)" in run("hold", "release", "audit")
    assert "no holds" in run("hold", "list")
    world.close()


@pytest.mark.parametrize("call", [("list",), ("release", "audit")])
def test_a_decision_log_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    world = make_world(tmp_path)
    monkeypatch.setattr(ClusterAddress, "connect", lambda _: world.consumers)
    missing = tmp_path / "decision.db"
    where = ("--bootstrap-server", "127.0.0.1:1", "--store", f"sqlite:///{missing}")
    found = CliRunner().invoke(app, ["attach", "hold", *call, *where])
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
    monkeypatch.setattr(database, "open_database", open_noting)
    assert 0 == keeplast("tier", "hold", "list", "--store", url).code
    world = make_world(tmp_path / "live")
    monkeypatch.setattr(ClusterAddress, "connect", lambda _: world.consumers)
    where = ["--bootstrap-server", "127.0.0.1:1", "--store", url]
    assert 0 == CliRunner().invoke(app, ["attach", "hold", "list", *where]).exit_code
    assert [True, True] == opened
    world.close()
