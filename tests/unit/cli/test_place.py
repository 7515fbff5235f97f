"""``keeplast place``, and PLACE on a command line: names, properties, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import typer

import keeplast as package
from keeplast.cli.frame.lazy import with_properties
from keeplast.cli.main import GROUPS, app
from keeplast.config.place_properties import VERB_TABLES, WITH
from keeplast.errors import InvalidError
from tests.support.placed_logs import take_in, write_directory
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command
from tests.unit.cli.test_command import commands

COMMENTED = "# ours\n[cluster]\nlog.segment.bytes = 100 # small\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no configuration of the user's."""
    made = tmp_path / "work"
    made.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KEEPLAST_CONFIG", raising=False)
    monkeypatch.chdir(made)
    return made


def test_a_place_is_named_listed_and_used_by_its_name(keeplast: Command, folder: Path) -> None:
    write_log(folder / "data", "t-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: []})
    added = keeplast("place", "add", "here", "data", "--receipt", "receipts", "--cores", 1, code=0)
    file = folder.parent / "config" / "keeplast" / "keeplast.toml"
    assert f"path={file}" in added.out
    table = tomllib.loads(file.read_text("utf-8"))["place"]["here"]
    assert {"at": str(folder / "data"), "receipt": str(folder / "receipts"), "cores": 1} == table
    listed = keeplast("place", "list", "--json").document
    assert [("here", "directory", str(file))] == [
        (each["name"], each["kind"], each["file"]) for each in listed["places"]
    ]
    policy = ("--config", "cleanup.policy=compact", "--topic", "t")
    # The first clean has yet to make the receipts.
    assert 0 == keeplast("status", "here", *policy).code
    assert 0 == keeplast("clean", "here", *policy, "--despite", "dirty-ratio").code
    assert (folder / "receipts").exists()
    (part,) = keeplast("explain", "here", "a", *policy, "--json").document["partitions"]
    assert [1] == [each["offset"] for each in part["records"]]
    assert () == package.holds("here")


def test_a_table_is_added_to_a_file_that_keeps_everything_else(
    keeplast: Command, folder: Path
) -> None:
    file = folder / "keeplast.toml"
    file.write_text(COMMENTED)
    keeplast(
        "place", "add", "prod", "kafka://b1:9092", "--storage", "aiven:s3://bucket/prefix",
        "--storage-option", "secret_access_key=env:SECRET", "--with", "memory=4g", code=0,
    )  # fmt: skip
    assert file.read_text("utf-8").startswith(COMMENTED)
    table = tomllib.loads(file.read_text("utf-8"))["place"]["prod"]
    assert {"secret_access_key": "env:SECRET"} == table["storage-option"]
    again = keeplast("place", "add", "prod", "kafka://b2:9092")
    assert (2, True) == (again.code, "has a place of this name" in again.err)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("p", "kafka://b:1", "--storage-option", "secret_access_key=s3cret"), "does not belong"),
        (("p", "postgresql://me:s3cret@db/x"), "PGPASSWORD"),
        (("no name", "data"), "with a name of letters"),
        (("p", "data", "--storage", "local:/x"), "a directory has no such property"),
        (("p", "postgres://db/x"), "postgresql://USER@HOST/DATABASE"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(
    keeplast: Command, folder: Path, given: tuple[str, ...], words: str
) -> None:
    run = keeplast("place", "add", *given)
    assert (2, True) == (run.code, words in " ".join(run.err.split())), run.err
    assert "s3cret" not in run.out + run.err
    assert [] == list((folder.parent / "config").rglob("*"))


def test_the_properties_are_listed_with_the_kinds_that_have_them(keeplast: Command) -> None:
    listed = keeplast("place", "list", "--properties", "--json").document["properties"]
    kinds = {each["name"]: each["kinds"] for each in listed}
    assert (["cluster"], ["cluster", "directory", "store"]) == (kinds["storage"], kinds["memory"])


def test_a_places_table_gives_defaults_of_a_verbs_options(keeplast: Command, folder: Path) -> None:
    write_log(folder / "data", "t-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: []})
    file = folder / "keeplast.toml"
    text = '[place.here]\nat = "data"\n[place.here.topic."t"]\n"cleanup.policy" = "compact"\n'
    text += '"min.cleanable.dirty.ratio" = 1.0\n'
    file.write_text(text)
    assert "skipped" in keeplast("clean", "here", "--topic", "t").out
    file.write_text(text + '[place.here.clean]\ndespite = ["dirty-ratio"]\ntopic = ["t"]\n')
    assert "1 cleaned" in keeplast("clean", "here").out
    assert 2 == keeplast("clean", "here", "--topic", "u").code
    file.write_text(text + "[place.here.clean]\nfroce = true\n")
    refused = keeplast("clean", "here")
    assert (2, True) == (refused.code, "froce" in refused.err)


def test_a_group_of_verbs_has_a_table_for_each_and_one_value_is_a_list_of_one(
    keeplast: Command, folder: Path
) -> None:
    write_log(folder / "data", "t-0", {0: [(b"a", b"1")], 1: []})
    file = folder / "keeplast.toml"
    text = '[place.here]\nat = "data"\n'
    file.write_text(text + '[place.here.hold.add]\ntopic = "t"\nat = "0"\nmax-age = "1d"\n')
    keeplast("hold", "add", "here", "audit", "--config", "cleanup.policy=compact", code=0)
    assert "audit" in keeplast("hold", "list", "here").out
    file.write_text(text + '[place.here.erase]\nhash-key = "k"\n')
    refused = keeplast("erase", "requests", "here")
    assert (2, True) == (refused.code, "[place.NAME.erase.keys]" in refused.err)


def test_the_verbs_that_a_places_table_may_have_are_the_commands_over_a_place() -> None:
    tables = {
        words
        for verb, below in VERB_TABLES.items()
        for words in ([f"{verb} {each}" for each in below] or [verb])
    }
    over_a_place = {
        " ".join(name)
        for name, found in commands(typer.main.get_command(app))
        if any(each.name == "place" for each in found.params) and name[0] != "place"
    }
    assert over_a_place <= tables
    grouped = [name for group in GROUPS.values() for name in group]
    assert VERB_TABLES.keys() <= set(grouped)


def test_a_property_is_an_option_too_and_an_option_of_the_command_is_left_to_it() -> None:
    own = {WITH, "--keys", "--shape"}
    assert ["P", WITH, "memory=4g", "--keys", "f"] == with_properties(
        ["P", "--memory", "4g", "--keys", "f"], own
    )
    assert [WITH, "object-option.endpoint=http://h:1"] == with_properties(
        ["--object-option", "endpoint=http://h:1"], own
    )
    assert [WITH, "accept-untested=true", "--expired"] == with_properties(
        ["--accept-untested", "--expired"], own
    )
    assert ["--shape", "bucket", "--", "--memory", "4g"] == with_properties(
        ["--shape", "bucket", "--", "--memory", "4g"], own
    )


def test_a_name_that_nothing_has_is_refused_from_python_too() -> None:
    with pytest.raises(InvalidError, match="no such path, and no place of this name"):
        package.holds("nowhere")
    with pytest.raises(InvalidError, match="a directory has no such property"):
        package.open("/data", storage="local:/x")


@pytest.mark.parametrize("kind", ["directory", "store"])
@pytest.mark.parametrize(
    "words",
    [
        ("plan", "{}"),
        ("clean", "{}"),
        ("clean", "{}", "--dry-run"),
        ("verify", "{}"),
        ("config", "{}"),
        ("hold", "list", "{}"),
        ("undo", "{}", "--list"),
        ("erase", "requests", "{}"),
        ("export", "{}", "--to", "out"),
    ],
    ids=lambda words: " ".join(words).replace(" {}", ""),
)
def test_a_document_begins_with_the_place(
    keeplast: Command, folder: Path, kind: str, words: tuple[str, ...]
) -> None:
    data = str(write_directory(folder / "data"))
    place = data if kind == "directory" else take_in(folder / "data", folder)
    given = [each.format(place) for each in words]
    if words[0] == "verify" and kind == "directory":
        given += ["data"]
    run = keeplast(*given, "--json")
    assert ["version", "place", "kind"] == list(run.document)[:3], run.err
    assert (place, kind) == (run.document["place"], run.document["kind"])
