"""Every command prints, of every kind of place that it takes, a document that its schema describes.

The schemas are those of the reference. Each document that a test of this folder prints is held
against them too (``conftest.py``); here are the commands and kinds that nothing may lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from keeplast.api.refusals import REFUSALS
from keeplast.config.place_properties import PlaceKind
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world
from tests.support.placed_logs import ANNA, HASH_KEY, take_in, write_directory
from tests.support.printed_documents import faults
from tests.unit.cli.conftest import Command
from tools.reference.commands import all_commands
from tools.reference.json_schemas import ERROR, FOLDER, SUFFIX, path_of, read, text_of

DUE = ("--despite", "dirty-ratio")
WITHOUT_DOCUMENT = {"console"}
"""It prints where it is, and then serves."""
KINDS = list(PlaceKind)


def test_every_schema_is_one_and_of_a_command() -> None:
    names = {each.name for each in all_commands()} - WITHOUT_DOCUMENT
    assert {path_of(each) for each in (*names, ERROR)} == set(FOLDER.glob(f"*{SUFFIX}"))
    for path in FOLDER.glob(f"*{SUFFIX}"):
        schema = json.loads(path.read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        assert all(each["additionalProperties"] is False for each in schema["anyOf"])
    for name in (*names, ERROR):
        # What is read and written again is the same, so that schemas can grow.
        assert path_of(name).read_text("utf-8") == text_of(name, read(name))


def test_a_field_more_or_less_or_of_another_type_is_a_fault() -> None:
    document = {
        "version": 1, "partitions": [],
        "error": {"class": "X", "message": "x", "path": None, "position": None},
    }  # fmt: skip
    assert [] == faults("clean", document)
    for change in ({"version": 2}, {"error": {**document["error"], "more": 1}}):  # type: ignore[dict-item]
        assert [] != faults("clean", {**document, **change})
    assert [] != faults("hold list", {"version": 1, "kind": "directory", "place": "x"})
    held = {"version": 1, "kind": "directory", "place": "x", "holds": []}
    assert [] == faults("hold list", held)
    assert [] != faults("hold list", {**held, "more": 1})
    assert [] != faults("hold list", {**held, "holds": 7})


@pytest.fixture
def place(
    kind: PlaceKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """A place of each kind, as the words of a command."""
    data = write_directory(tmp_path / "data")
    if kind is PlaceKind.DIRECTORY:
        yield (str(data),)
    elif kind is PlaceKind.STORE:
        yield (take_in(data, tmp_path), "--owner", "me")
    else:
        with commanded_world(tmp_path / "world", monkeypatch) as world:
            decisions = f"sqlite:///{world.world.root / 'decisions.db'}"
            yield ("kafka://127.0.0.1:1", "--storage", "local:/x", "--decisions", decisions)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_place_of_each_kind_is_answered_as_the_schemas_say(
    kind: PlaceKind, place: tuple[str, ...], tmp_path: Path, keeplast: Command
) -> None:
    (tmp_path / "hash").write_bytes(HASH_KEY)
    (tmp_path / "hash").chmod(0o600)
    (tmp_path / "keys").write_bytes(ANNA + b"\n")
    of = ("--topic", PARTITION.topic if kind is PlaceKind.CLUSTER else "t")
    keys = ("--hash-key", tmp_path / "hash", "--keys", tmp_path / "keys")
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("status", ()), ("plan", of),
        ("hold add", ("h", *of, "--at", "now", "--max-age", "1d")), ("hold list", ()),
        ("hold release", ("h",)), ("explain", (ANNA.decode(), *of)), ("erase keys", (*keys, *of)),
        ("erase requests", ()), ("clean", (*of, *DUE)), ("collect", ()), ("undo", ("--list",)),
        ("export", ("--to", tmp_path / "export", *of)), ("config", (*of, "--effective")),
        ("repair", ()), ("run", ("--once",)), ("place check", ()),
        ("verify", (tmp_path / "data",) if kind is PlaceKind.DIRECTORY else ()),
        ("configure", ("cleanup.policy=compact,delete", "retention.ms=-1", *of)),
        ("delete-records", (*of, "--partition", 0, "--before-offset", 1)),
        ("pause", of), ("pause", (*of, "--resume")), ("detach", (*of, "--yes")),
    ]  # fmt: skip
    asked: set[str] = set()
    for name, more in calls:
        if (name, kind) not in REFUSALS:
            run = keeplast(*name.split(" "), *place, *more, "--json")
            assert "error" not in run.document, (name, run.document["error"])
            asked.add(name)
    assert [] == [name for name in asked if not read(name).keys() & {kind, ""}]


def test_a_copy_and_the_names_of_places_are_answered_as_the_schemas_say(
    tmp_path: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, new = (
        write_directory(tmp_path / "data"),
        ("--new", "--objects", f"file://{tmp_path / 'o'}"),
    )
    policy = ("--config", "cleanup.policy=compact")
    keeplast("copy", data, f"sqlite:///{tmp_path / 'm.db'}", *new, *policy, "--json", code=0)
    keeplast("place", "add", "here", data, "--file", tmp_path / "keeplast.toml", "--json", code=0)
    keeplast("place", "list", "--json", code=0)
    keeplast("inspect", data / "t-0", "--records", "--json", code=0)
