"""``keeplast run`` is one command over every kind of place: options, documents, faults, order."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec import Struct

from keeplast.api.attached_logs import AttachedLogs
from keeplast.cli.frame import wiring
from keeplast.config.place_properties import PlaceKind
from tests.support.attached_loop import LoopWorld
from tests.support.placed_logs import take_in
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command

FIELDS = {
    "version", "place", "kind", "stopped", "seconds", "turns", "rounds", "bytes_read",
    "bytes_written", "left",
    "partitions", "assumed",
}  # fmt: skip
LOCAL = ("--runner", "local", "--cores", 1)


class Placed(Struct, frozen=True):
    """A place with two partitions that are due; ``damage`` spoils the named one."""

    kind: PlaceKind
    words: tuple[str, ...]
    table: str
    topics: tuple[str, ...]
    damaged: tuple[str, int]
    damage: Callable[[], None]


def spoil(found: Iterator[Path]) -> None:
    files = sorted(found)
    assert files
    for each in files:
        each.write_bytes(each.read_bytes()[:-1] + b"?")


def write_data(root: Path) -> Path:
    root.mkdir()
    (root / "keeplast.toml").write_text(
        '[topic."t"]\ncleanup.policy = "compact"\nmin.cleanable.dirty.ratio = 0.1\n'
    )
    for name in ("t-0", "t-1"):
        write_log(root, name, {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", b"3")], 3: []})
    return root


@pytest.fixture(params=list(PlaceKind))
def placed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Placed]:
    kind: PlaceKind = request.param
    if kind is PlaceKind.CLUSTER:
        world = LoopWorld(tmp_path)
        for topic in ("a", "b"):
            world.topic(topic)
        monkeypatch.setattr(AttachedLogs, "connect", lambda self: world.cluster)
        url = f"sqlite:///{tmp_path / 'decisions.db'}"
        storage = f"local:{world.storage}"
        yield Placed(
            kind,
            ("kafka://127.0.0.1:1", "--storage", storage, "--decisions", url,
             "--config", "min.cleanable.dirty.ratio=0.1", "--config", "segment.bytes=300"),
            f'at = "kafka://127.0.0.1:1"\nstorage = "{storage}"\ndecisions = "{url}"\n'
            '[place.here.topic.a]\n"segment.bytes" = 300\n'
            '[place.here.topic.b]\n"segment.bytes" = 300\n',
            ("--topic", "a", "--topic", "b"), ("a", 0),
            lambda: spoil(world.storage.rglob("*/a-0-*/*.log")),
        )  # fmt: skip
        world.close()
        return
    data = write_data(tmp_path / "data")
    if kind is PlaceKind.DIRECTORY:
        yield Placed(
            kind, (str(data),), f'at = "{data}"\n', ("--topic", "t"), ("t", 0),
            lambda: spoil((data / "t-0").glob("*0.log")),
        )  # fmt: skip
        return
    url = take_in(data, tmp_path)
    yield Placed(
        kind, (url, "--owner", "me"), f'at = "{url}"\nowner = "me"\n', ("--topic", "t"), ("t", 0),
        lambda: spoil((tmp_path / "objects").glob("t-0/**/*.log")),
    )  # fmt: skip


def test_the_document_is_the_same_and_names_the_place_first(
    keeplast: Command, placed: Placed
) -> None:
    run = keeplast("run", *placed.words, *placed.topics, *LOCAL, "--once", "--json")
    assert (0, 2) == (run.code, run.document["rounds"]), run.err
    assert ["version", "place", "kind"] == list(json.loads(run.out))[:3]
    assert placed.kind == run.document["kind"]
    more = set() if placed.kind is PlaceKind.DIRECTORY else {"tier"}
    assert FIELDS | more == run.document.keys()
    again = keeplast("run", *placed.words, *placed.topics, *LOCAL, "--once", "--json")
    assert (0, 0) == (again.code, again.document["rounds"]), again.err


def test_the_same_options_are_taken(keeplast: Command, placed: Placed, tmp_path: Path) -> None:
    run = keeplast(
        "run", *placed.words, *placed.topics, *LOCAL, "--once", "--partition", 0, "--retry",
        "--selection", "kafka", "--take-over", "--metrics-port", 0, "--metrics-host", "127.0.0.1",
        "--console", 0, "--console-name", "box", "--metrics-open", "--allow-actions",
        "--receipt", tmp_path / "receipts", "--no-values", "--closed-topics", "x*",
        "--search-seconds", 5, "--search-bytes", "1m", "--memory", "64m", "--task-memory", "16m",
        code=0,
    )  # fmt: skip
    assert ("metrics at http" in run.err, "console at http" in run.err) == (True, True)
    assert (tmp_path / "receipts").read_text("utf-8").count('"topic"')


def test_a_damaged_partition_stops_no_other(keeplast: Command, placed: Placed) -> None:
    placed.damage()
    run = keeplast("run", *placed.words, *placed.topics, *LOCAL, "--once", "--json")
    states = {(e["topic"], e["partition"]): e["state"] for e in run.document["partitions"]}
    assert (3, 1) == (run.code, run.document["rounds"]), run.err
    assert "set aside" == states.pop(placed.damaged)
    assert ["not due"] == list(states.values())


@pytest.mark.parametrize("option", ["--metrics-port", "--console"])
def test_a_port_that_is_taken_is_found_before_a_runner_is_paid_for(
    keeplast: Command, placed: Placed, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(
        wiring, "open_runner", Mock(side_effect=AssertionError("a runner was opened"))
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = keeplast("run", *placed.words, *placed.topics, "--once", option, port)
    assert run.code in (2, 4), run.err
    assert str(port) in run.err


def test_what_a_named_place_says_of_the_loop_counts(
    keeplast: Command, placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topics = json.dumps(placed.topics[1::2])
    (tmp_path / "keeplast.toml").write_text(
        '[place.here]\nrunner = "local"\ncores = 1\n'
        f"{placed.table}[place.here.run]\nonce = true\nmetrics-port = 0\ntopic = {topics}\n"
    )
    run = keeplast("run", "here", "--json")
    assert (0, 2) == (run.code, run.document["rounds"]), run.err
    assert "metrics at http" in run.err
    table = (tmp_path / "keeplast.toml").read_text().replace("once = true", "twice = true")
    (tmp_path / "keeplast.toml").write_text(table)
    run = keeplast("run", "here")
    assert (2, True) == (run.code, "option=twice" in run.err.replace("\n", " ")), run.err


def test_only_a_store_has_hosts(keeplast: Command, placed: Placed, tmp_path: Path) -> None:
    run = keeplast("run", *placed.words, "--once", "--host-dir", tmp_path / "host", *LOCAL)
    if placed.kind is PlaceKind.STORE:
        assert "hosts share" not in run.err
        assert (tmp_path / "host").is_dir()
        return
    assert (4, True) == (run.code, "hosts share the partitions of a store" in run.err), run.err
    assert not (tmp_path / "host").exists()


def test_a_receipt_that_cannot_be_written_is_found_before_anything_is_opened(
    keeplast: Command, placed: Placed, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("not a receipt\n")
    run = keeplast("run", *placed.words, *placed.topics, *LOCAL, "--once", "--receipt", taken)
    assert (4, True) == (run.code, f"--receipt={taken}" in run.err), run.err
    assert "not a receipt\n" == taken.read_text()
    assert not re.search("watching", run.err)


def test_a_second_signal_ends_at_once_what_waits_for_others(
    keeplast: Command, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keeplast.cli.frame import command as guard

    asked: list[bool] = []

    class Noted(guard.StopSignals):
        def __init__(self, stop: Callable[[], None], *, ends_at_second: bool = False) -> None:
            asked.append(ends_at_second)
            super().__init__(stop)

    monkeypatch.setattr(guard, "StopSignals", Noted)
    assert 0 == keeplast("run", *placed.words, *placed.topics, *LOCAL, "--once").code
    assert [placed.kind is PlaceKind.CLUSTER] == asked
