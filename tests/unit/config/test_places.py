"""Places: what an address or a name means, and which source gives each property."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.config.layers import SettingSources
from keeplast.config.place_properties import PROPERTIES, PlaceKind
from keeplast.config.places import FoundPlace, find_place, place_tables
from keeplast.config.sources import read_spoken_settings
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles

PROD = """\
[place.prod]
at = "kafka://b1:9092,b2:9092"
storage = "aiven:s3://bucket/prefix"
decisions = "postgresql://keeplast@db/keeplast"
command-config = "client.properties"
memory = "4g"
cores = 2

[place.prod.storage-option]
endpoint = "http://host:9000"
secret_access_key = "env:SECRET"

[place.prod.topic."orders"]
"cleanup.policy" = "compact"

[place.prod.clean]
dry-run = true
topic = ["orders", "audit"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, and let the user's configuration be empty too."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("KEEPLAST_CONFIG", raising=False)
    made = tmp_path / "work"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("/data", PlaceKind.DIRECTORY),
        ("./orders-0", PlaceKind.DIRECTORY),
        ("s3://bucket/data", PlaceKind.DIRECTORY),
        ("gs://bucket/data", PlaceKind.DIRECTORY),
        ("az://container/data", PlaceKind.DIRECTORY),
        ("sqlite:///meta.db", PlaceKind.STORE),
        ("postgresql://keeplast@db/keeplast", PlaceKind.STORE),
        ("kafka://b1:9092,b2:9092", PlaceKind.CLUSTER),
    ],
)
def test_an_address_says_its_kind(folder: Path, address: str, kind: PlaceKind) -> None:
    assert kind is find_place(address).kind


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("postgres://db/keeplast", "postgresql://USER@HOST/DATABASE"),
        ("http://host/data", "s3://"),
        ("kafka://", "kafka://HOST:PORT"),
        ("kafka://user:secret@b1:9092", "command-config"),
        ("ftp://host/data", "no such store"),
        ("s3://", "bucket"),
        ("", "an empty place"),
        ("nowhere", "no such path, and no place of this name"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_remedy(
    folder: Path, address: str, remedy: str
) -> None:
    with pytest.raises(InvalidError, match=remedy) as refused:
        find_place(address)
    assert "secret" not in str(refused.value)


def test_a_name_has_all_that_its_table_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    file = written(folder / "keeplast.toml", PROD)
    found = find_place("prod")
    assert ("kafka://b1:9092,b2:9092", PlaceKind.CLUSTER) == (found.address, found.kind)
    assert ("b1:9092,b2:9092", "prod") == (found.bootstrap_servers, found.shown)
    assert {"endpoint": "http://host:9000", "secret_access_key": "s3cret"} == found.options(
        "storage-option"
    )
    assert folder / "client.properties" == found.path("command-config")
    assert ("4g", "2", str(file)) == (
        found.text("memory"), found.text("cores"), found.given["memory"].source,
    )  # fmt: skip
    assert found.settings is not None
    assert {"orders": {"cleanup.policy": "compact"}} == found.settings.topics
    assert {"clean": {"dry-run": "true", "topic": ("orders", "audit")}} == found.defaults


def test_the_command_line_beats_the_file_option_by_option(folder: Path) -> None:
    written(folder / "keeplast.toml", PROD)
    found = find_place("prod", ["memory=1g", "storage-option.endpoint=http://other:9000"])
    assert ("1g", "--with") == (found.text("memory"), found.given["memory"].source)
    options = found.given["storage-option"].value
    assert {"endpoint": "http://other:9000", "secret_access_key": "env:SECRET"} == options
    assert "postgresql://keeplast@db/keeplast" == found.needed("decisions")


def test_a_list_that_is_given_in_parts_is_all_of_them_and_beats_the_file(folder: Path) -> None:
    (folder / "keeplast.toml").write_text(
        '[place.here]\nat = "kafka://b1:9092"\nclosed-topics = ["a"]\n', encoding="utf-8"
    )
    assert ("a",) == find_place("here").texts("closed-topics")
    found = find_place("here", ["closed-topics=b,c*", "closed-topics=d"])
    assert ("b", "c*", "d") == found.texts("closed-topics")


def test_the_working_directory_comes_first_then_the_variable_then_the_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = written(tmp_path / "config/keeplast/keeplast.toml", '[place.a]\nat = "/u"\n')
    named = written(tmp_path / "named.toml", '[place.a]\nat = "/n"\n[place.b]\nat = "/b"\n')
    assert "/u" == find_place("a").address
    monkeypatch.setenv("KEEPLAST_CONFIG", str(named))
    assert "/n" == find_place("a").address
    here = written(folder / "keeplast.toml", '[place.a]\nat = "/h"\n')
    assert "/h" == find_place("a").address
    assert [("a", here), ("b", named)] == [(each.name, each.file) for each in place_tables()]
    assert users.exists()


def test_a_path_that_exists_beats_a_name_and_says_so(folder: Path) -> None:
    written(folder / "keeplast.toml", '[place.orders]\nat = "/elsewhere"\n')
    assert "/elsewhere" == find_place("orders").address
    (folder / "orders").mkdir()
    found = find_place("orders")
    assert ("orders", None) == (found.address, found.name)
    (warning,) = found.warnings
    assert "the path counts" in warning


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('memroy = "4g"', "did you mean memory"),
        ('storage = "local:/x"', "a directory has no such property"),
        ('memory = "much"', "not a size"),
        ("cores = 0", "not a whole number"),
        ('shape = "round"', "partition, broadcast, bucket"),
        ("memory = [1]", "not one value"),
        ('[place.p.object-option]\nsecret_access_key = "s3cret"', "a secret does not belong"),
        ('[place.p.topic."t"]\n"cleanup.policy" = "sometimes"', "cleanup.policy"),
        ("[place.p.cleen]\nforce = true", "unknown property"),
    ],
)
def test_a_mistake_in_a_table_names_the_file_the_place_and_the_remedy(
    folder: Path, line: str, words: str
) -> None:
    file = written(folder / "keeplast.toml", f'[place.p]\nat = "/data"\n{line}\n')
    with pytest.raises(InvalidError, match=words) as refused:
        find_place("p")
    assert str(file) in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_password_does_not_belong_into_an_address(folder: Path) -> None:
    written(folder / "keeplast.toml", '[place.p]\nat = "postgresql://me:s3cret@db/x"\n')
    with pytest.raises(InvalidError, match="PGPASSWORD") as refused:
        find_place("p")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("memory", "give KEY=VALUE"),
        ("storage-option=x", "storage-option.KEY=VALUE"),
        ("at=/elsewhere", "unknown property"),
        ("storage=local:/x", "it is one of a cluster"),
        ("grace-ms=soon", "not a span"),
    ],
)
def test_what_with_cannot_mean_is_refused(folder: Path, given: str, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        find_place("/data", [given])


def test_a_variable_that_names_no_file_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPLAST_CONFIG", str(folder / "missing.toml"))
    with pytest.raises(InvalidError, match="no such settings file"):
        find_place("prod")


def test_relative_paths_of_a_table_count_from_its_file(folder: Path, tmp_path: Path) -> None:
    written(tmp_path / "config/keeplast/keeplast.toml", '[place.p]\nat = "data"\nreceipt = "r"\n')
    found = find_place("p")
    assert (str(tmp_path / "config/keeplast/data"), tmp_path / "config/keeplast/r") == (
        found.address, found.path("receipt"),
    )  # fmt: skip


def test_flags_beat_the_table_that_the_file_that_the_environment(
    folder: Path, tmp_path: Path
) -> None:
    table = """\
[place.p]
at = "/data"
[place.p.cluster]
"log.segment.bytes" = 200
"log.roll.ms" = 200
"""
    written(folder / "keeplast.toml", table)
    said = ["log.segment.bytes", "log.roll.ms", "log.index.interval.bytes"]
    file = written(tmp_path / "s.toml", "[cluster]\n" + "".join(f'"{k}" = 300\n' for k in said))
    environment = {
        "KEEPLAST_LOG_INDEX_INTERVAL_BYTES": "400",
        "KEEPLAST_LOG_INDEX_SIZE_MAX_BYTES": "400",
    }
    sources = SettingSources(
        flags=("log.segment.bytes=100",), config_file=file, environment=environment,
        place=find_place("p").settings,
    )  # fmt: skip
    topic = read_spoken_settings(LocalFiles(), sources).topic_config("t")
    assert (100, 200, 300, 400) == (
        topic.segment_bytes, topic.segment_ms, topic.index_interval_bytes,
        topic.segment_index_bytes,
    )  # fmt: skip


def test_each_property_names_at_least_one_kind_and_says_what_it_is() -> None:
    for each in PROPERTIES:
        assert each.kinds
        assert each.about.endswith(".")


def test_a_place_that_needs_a_property_says_how_to_give_it(folder: Path) -> None:
    found = FoundPlace("kafka://b:1", PlaceKind.CLUSTER)
    with pytest.raises(InvalidError, match="--with storage="):
        found.needed("storage")
