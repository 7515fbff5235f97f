"""``keeplast hold`` of every kind of place: what it says and refuses, and who knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

import keeplast as package
from keeplast.api import open_store
from keeplast.api.attached_logs import AttachedLogs
from keeplast.attach.answers import shown_logs
from keeplast.clock import SystemClock
from tests.support import called
from tests.support.attached_world import PARTITION
from tests.support.called import run
from tests.support.commanded_world import let_commands_open
from tests.support.heard_calls import hear
from tests.support.small_log import write_log
from tests.unit.attach.test_attached_holds import make_world
from tests.unit.cli.conftest import Command, Run

SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (tmp_path / "data").mkdir()
    (root / "keeplast.toml").write_text('[topic."t"]\ncleanup.policy = "compact"\n')
    pairs = [(b"a", b"%d" % number) for number in range(3)]
    write_log(root, "t-0", {0: pairs, 3: pairs, 6: pairs})
    write_log(root, "t-1", {0: pairs})
    return root


class Held(Struct, frozen=True):
    """A place with one partition that is held, an offset in it, and how commands name it."""

    keeplast: Command
    topic: str
    at: int
    place: tuple[str, ...]
    """Its address, and what opens it."""

    def call(self, *arguments: object, code: int = 0) -> Run:
        """Call a command on the place; its own arguments follow the place."""
        words = 2 if arguments[0] == "hold" else 1
        where = (self.place[0], *arguments[words:], *self.place[1:])
        run = self.keeplast(*arguments[:words], *where)
        assert code == run.code, run.err + run.out
        return run


@pytest.fixture(params=["directory", "store", "cluster"])
def held(
    request: pytest.FixtureRequest, data: Path, tmp_path: Path, keeplast: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Held]:  # fmt: skip
    if request.param == "directory":
        yield Held(keeplast, "t", 4, (str(data),))
    elif request.param == "store":
        url = called.copied(data, tmp_path, "--topic", "t")
        yield Held(keeplast, "t", 4, (url,))
    else:
        world = make_world(tmp_path)
        world.world.clock.advance(SystemClock().now_ms() - world.world.clock.now_ms())
        let_commands_open(world, monkeypatch)
        log = f"sqlite:///{world.world.root / 'decisions.db'}"
        given = ("--decisions", log, "--storage", "local:/x")
        yield Held(keeplast, PARTITION.topic, 35, ("kafka://127.0.0.1:1", *given))
        world.close()


def test_a_hold_is_added_seen_honoured_and_released(held: Held) -> None:
    chosen = ("--topic", held.topic, "--partition", 0)
    add = ("hold", "add", "audit", *chosen, "--max-age", "7d")
    (added,) = held.call(*add, "--at", held.at, "--json").document["holds"]
    assert (held.topic, 0, "audit", held.at, True) == tuple(
        added[each] for each in ("topic", "partition", "name", "offset", "is_in_force")
    )
    name = f"{held.topic}-0"
    listed = " ".join(held.call("hold", "list").out.split())
    # In the words of status, which rounds to the nearest: it has hardly begun.
    assert (True, True) == (f"audit {name} {held.at}" in listed, "in 7 d" in listed), listed
    assert "no holds" in held.call("hold", "list", "--topic", "another").out
    planned = held.call(
        "plan", *chosen, "--despite", "dirty-ratio", "--config", "segment.bytes=300"
    ).out
    assert f"the state as of {held.at} is held by audit until" in " ".join(planned.split())
    assert "there is a hold of this name" in held.call(*add, "--at", "now", code=4).err
    unnamed = ("--max-age", "7d", "--at", "now")
    assert "Missing option '--topic'" in held.call("hold", "add", "x", *unnamed, code=2).err
    # A hold is released as a whole.
    whole = held.call("hold", "release", "audit", "--topic", held.topic, code=2)
    assert "No such option: --topic" in whole.err
    assert "released audit, of 1 partition(s)" in held.call("hold", "release", "audit").out
    assert "no holds" in held.call("hold", "list").out


def test_rounds_and_status_of_a_directory_heed_a_hold(data: Path, keeplast: Command) -> None:
    held = Held(keeplast, "t", 4, (str(data),))
    chosen = ("--topic", "t", "--partition", 0)
    held.call("hold", "add", "audit", *chosen, "--at", 4, "--max-age", "7d")
    assert "hold audit: not cleaned past 4 until" in held.call("status", *chosen).out
    held.call("clean", "--topic", "t", "--despite", "dirty-ratio", "--json", "--runner", "local")
    partitions = held.call("status", "--json").document["partitions"]
    (first,) = [each for each in partitions if each["partition"] == 0]
    assert (3, 3, "audit") == (first["told_from"], first["first_dirty"], first["holds"][0]["name"])
    released = held.call("hold", "release", "audit", "--json").document["released"]
    assert 1 == len(released)


def test_rounds_and_status_of_a_store_heed_a_hold(tmp_path: Path, keeplast: Command) -> None:
    url = called.copied(SAMPLE, tmp_path, "--topic", "orders")
    held = Held(keeplast, "orders", 250, (url,))
    add = ("hold", "add", "audit", "--at", held.at, "--max-age", "7d")
    (hold,) = held.call(*add, "--topic", "orders", "--json").document["holds"]
    assert 0 < hold["offset"] <= held.at
    status = ("status", url)
    text = " ".join(keeplast(*status).out.split())
    assert f"hold audit: not cleaned past {hold['offset']} until" in text
    cleaned = held.call("clean", "--despite", "dirty-ratio", "--json").document["partitions"][0]
    assert cleaned["bound"] <= hold["offset"]
    erased = keeplast(*status, "--erased-by", "--json").document["partitions"]
    assert ["audit"] == [each["name"] for each in erased[0]["holds"]]
    assert "did you mean orders" in held.call(*add, "--topic", "order", code=2).err
    held.call("hold", "release", "audit")
    again = held.call("clean", "--despite", "dirty-ratio", "--json").document["partitions"][0]
    assert 339 == again["end_offset"]


def test_a_time_is_of_every_partition(data: Path) -> None:
    add = ("hold", "add", data, "then", "--topic", "t", "--max-age", "1h", "--json")
    done = run(*add, "--at", "2023-11-14T22:13:20.001Z", code=0)
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


def test_a_list_of_holds_opens_no_metadata_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeplast: Command
) -> None:
    """A principal that may only read is enough, and no lock is in a host's way."""
    url = called.copied(SAMPLE, tmp_path)
    opened: list[bool] = []

    for home in (open_store, shown_logs):
        hear(
            monkeypatch, home, "open_database",
            lambda url, *, only_looks=False: opened.append(only_looks),
        )  # fmt: skip
    assert 0 == keeplast("hold", "list", url).code
    world = make_world(tmp_path / "live")
    monkeypatch.setattr(AttachedLogs, "connect", lambda _: world.consumers)
    assert 0 == keeplast("hold", "list", "kafka://127.0.0.1:1", "--with", f"decisions={url}").code
    assert [True, True] == opened
    world.close()
