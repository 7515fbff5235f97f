"""Upkeep over every kind of place: the same documents and exit codes, and no loss unasked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keeplast.api.refusals import REFUSALS
from keeplast.config.place_properties import PlaceKind
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world
from tests.support.placed_logs import take_in, write_directory
from tests.support.verified_world import VerifiedWorld
from tests.unit.cli.conftest import Command, Run

TOPIC = PARTITION.topic
ONE = ("--topic", "t", "--partition", 0)
DELETES = ("cleanup.policy=compact,delete", "retention.ms=-1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "data")


@pytest.fixture
def store(data: Path, tmp_path: Path) -> str:
    return take_in(data, tmp_path)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiedWorld]:
    """A partition of a live topic that was compacted once; its replaced segments wait."""
    with commanded_world(tmp_path / "world", monkeypatch) as made:
        yield made


@pytest.fixture
def cluster(world: VerifiedWorld) -> tuple[str, ...]:
    decisions = f"sqlite:///{world.world.root / 'decisions.db'}"
    return ("kafka://127.0.0.1:1", "--storage", "local:/x", "--decisions", decisions)


@pytest.fixture(params=list(PlaceKind))
def place(request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Each kind of place, as the words of a command."""
    if request.param is PlaceKind.CLUSTER:
        return tuple(request.getfixturevalue("cluster"))
    return place_of(request, request.param)


def place_of(request: pytest.FixtureRequest, kind: PlaceKind) -> tuple[object, ...]:
    if kind is PlaceKind.DIRECTORY:
        return (request.getfixturevalue("data"),)
    return (request.getfixturevalue("store"), "--owner", "me")


def kind_of(place: tuple[object, ...]) -> PlaceKind:
    if str(place[0]).startswith("kafka:"):
        return PlaceKind.CLUSTER
    return PlaceKind.STORE if "://" in str(place[0]) else PlaceKind.DIRECTORY


VERBS = {
    "collect": ("collect",),
    "collect --orphans": ("collect", "--orphans", "list"),
    "repair": ("repair",),
    "repair --rebuild": ("repair", "--rebuild", "--topic", "t"),
    "repair --truncate-to": ("repair", "--truncate-to", 0, *ONE),
    "pause": ("pause",),
    "detach": ("detach", "--topic", "t"),
    "clean --only-expire": ("clean", "--only-expire"),
    "delete-records": ("delete-records", *ONE, "--before-offset", 1),
}


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", VERBS)
def test_what_a_kind_of_place_cannot_do_is_refused_with_the_reason_and_the_alternative(
    keeplast: Command, place: tuple[object, ...], name: str
) -> None:
    kind = kind_of(place)
    refusal = REFUSALS.get((name, kind)) or REFUSALS.get((name.split(" ")[0], kind))
    verb, *more = VERBS[name]
    run = keeplast(verb, *place, *more)
    words = " ".join(run.err.split())
    if refusal is None:
        assert not any(each.why in words for each in REFUSALS.values()), words
    else:
        assert (4, True) == (run.code, f"{refusal.why}; {refusal.instead}." in words), words


def shown(run: Run, place: tuple[object, ...]) -> list[dict[str, Any]]:
    """Return the rows of a document, once its head is checked."""
    document = run.document
    assert (str(kind_of(place)), ["place", "kind"]) == (document["kind"], [*document][1:3])
    rows: list[dict[str, Any]] = document["partitions"]
    assert all(["topic", "partition"] == [*row][:2] for row in rows)
    return rows


@pytest.mark.parametrize("kind", [PlaceKind.STORE, PlaceKind.CLUSTER])
def test_a_collection_leaves_what_is_in_its_grace_and_the_second_finds_nothing(
    keeplast: Command, request: pytest.FixtureRequest, kind: PlaceKind
) -> None:
    if kind is PlaceKind.STORE:
        place = place_of(request, kind)
        assert 0 == keeplast("clean", *place, "--despite", "dirty-ratio", "--grace-ms", 0).code
        waiting = keeplast("undo", *place, "--list", "--json").document["rounds"]
        assert waiting == []
    else:
        place = request.getfixturevalue("cluster")
        (row,) = shown(keeplast("collect", *place, "--json"), place)
        assert row["waiting"] >= 1
        assert not row["collected_segments"]
    rows = shown(keeplast("collect", *place, "--grace-ms", 0, "--json"), place)
    assert sum(row["collected_segments"] for row in rows) > 0
    again = keeplast("collect", *place, "--grace-ms", 0)
    assert (0, True) == (again.code, "had nothing to collect" in again.out)
    assert 0 == keeplast("verify", *place).code


def test_a_partition_of_another_owner_is_in_the_answer_and_keeps_no_other_from_it(
    keeplast: Command, store: str
) -> None:
    owned = ("--despite", "dirty-ratio", "--take-over")
    assert 0 == keeplast("clean", store, *ONE, "--owner", "b", *owned).code
    assert 0 == keeplast("clean", store, "--topic", "t", "--partition", 1, *owned).code
    for call in (
        ("collect", store),
        ("detach", store, "--topic", "t", "--yes"),
    ):
        run = keeplast(*call, "--json")
        first, second = shown(run, (store,))
        assert (4, "RefusedError") == (run.code, first["error"]["class"])
        assert "another host owns the partition" in run.err
        assert "error" not in second
    assert [0] == [each["partition"] for each in keeplast(
        "status", store, "--json").document["partitions"]]  # fmt: skip


def test_nothing_of_a_store_is_lost_without_a_yes_and_no_table_says_it(
    keeplast: Command, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "keeplast.toml"
    file.write_text(f'[place.here]\nat = "{store}"\n[place.here.detach]\ntopic = ["t"]\n')
    run = keeplast("detach", "here", "--json")
    rows = [(row["done"], row["is_detached"]) for row in shown(run, (store,))]
    assert (4, [(False, False)] * 2) == (run.code, rows)
    file.write_text(file.read_text() + "yes = true\n")
    refused = keeplast("detach", "here")
    assert (2, True) == (refused.code, "on the command line alone" in " ".join(refused.err.split()))
    keeplast("hold", "add", store, "audit", *ONE, "--at", 3, "--max-age", "1d")
    for end, holds in ((1, ["audit"]), (3, [])):
        cut = keeplast("repair", store, *ONE, "--truncate-to", end, "--json")
        (row,) = shown(cut, (store,))
        assert (4, False, holds) == (cut.code, row["done"], row["holds"])
    assert "with the point of hold audit" in keeplast("detach", store, "--topic", "t").out
    assert 0 == keeplast("verify", store).code


@pytest.mark.parametrize("kind", [PlaceKind.DIRECTORY, PlaceKind.STORE])
def test_records_are_deleted_below_an_offset_alike(
    keeplast: Command, request: pytest.FixtureRequest, kind: PlaceKind
) -> None:
    place = place_of(request, kind)
    call = ("delete-records", *place, *ONE)
    refused = keeplast(*call, "--before-offset", 2)
    assert (4, True) == (refused.code, "cleanup.policy without delete" in refused.err)
    assert 0 == keeplast("configure", *place, *DELETES, "--topic", "t").code
    above = keeplast(*call, "--before-offset", 5)
    assert (4, True) == (above.code, "above the high watermark" in above.err)
    within = keeplast(*call, "--before-offset", 1, "--dry-run", "--json").document
    assert ([], 0) == (within["below"], within["partly"]["base"])
    said = keeplast(*call, "--before-offset", 2, "--dry-run").out
    assert "log start would be moved from 0 to 2; readers see 2..4" in said
    planned = keeplast(*call, "--before-offset", 2, "--dry-run", "--json").document
    done = keeplast(*call, "--before-offset", 2, "--json").document
    assert (True, True, False) == (done["changed"], planned["dry_run"], done["dry_run"])
    assert {**planned, "dry_run": False} == done
    assert (0, 2, [0], None) == (
        done["log_start_before"], done["log_start"],
        [each["base"] for each in done["below"]], done["partly"],
    )  # fmt: skip
    assert not keeplast(*call, "--before-offset", 1, "--json").document["changed"]
    if kind is PlaceKind.STORE:
        keeplast("verify", *place[:1], code=0)
    rows = keeplast("status", *place[:1], *ONE, "--json").document["partitions"]
    assert [2] == [each["log_start"] for each in rows]


@pytest.mark.parametrize("kind", [PlaceKind.DIRECTORY, PlaceKind.STORE])
def test_only_what_retention_lets_go_goes_and_no_round_is_done(
    keeplast: Command, request: pytest.FixtureRequest, kind: PlaceKind, tmp_path: Path
) -> None:
    place = place_of(request, kind)
    receipt = tmp_path / "receipt"
    call = ("clean", *place, "--only-expire", "--receipt", receipt)
    assert 0 == keeplast("configure", *place, *DELETES, "retention.bytes=1", "--topic", "t").code
    run = keeplast(*call, "--json")
    reports = run.document["partitions"]
    assert (0, [[], []]) == (run.code, [each["rounds"] for each in reports])
    assert all(each["expiry"]["segments"] for each in reports)
    assert 2 == len(keeplast("inspect", receipt, "--json").document["receipts"])
    again = keeplast(*call)
    assert "2 had nothing to expire" in again.out
    for contradiction in ("--despite=dirty-ratio", "--dry-run", "--roll-active"):
        assert 2 == keeplast(*call, contradiction).code


def test_a_paused_partition_waits_until_it_is_resumed(
    keeplast: Command, cluster: tuple[str, ...]
) -> None:
    assert [True] == [
        row["is_paused"] for row in shown(keeplast("pause", *cluster, "--json"), cluster)
    ]
    run = keeplast("collect", *cluster, "--grace-ms", 0, "--json")
    (row,) = shown(run, cluster)
    assert (5, True) == (run.code, "keeplast pause --resume" in row["error"]["message"])
    assert f"{TOPIC}-{PARTITION.partition}: not paused" in keeplast(
        "pause", *cluster, "--resume").out  # fmt: skip
    assert 0 == keeplast("collect", *cluster, "--grace-ms", 0).code


def test_a_cluster_keeps_its_topic_and_gives_up_nothing_that_waits(
    keeplast: Command, world: VerifiedWorld, cluster: tuple[str, ...]
) -> None:
    before = set(world.tier.layout.list(PARTITION))
    for kept in ((), ("--grace-ms", 0, "--keep-sources", "7d")):
        still = keeplast("detach", *cluster, *kept)
        assert (0, True) == (still.code, "still attached" in still.out)
        assert before == set(world.tier.layout.list(PARTITION))
    receipt = world.world.root / "detached.jsonl"
    (row,) = shown(
        keeplast("detach", *cluster, "--grace-ms", 0, "--receipt", receipt, "--json"), cluster
    )
    assert (True, True) == (row["is_detached"], row["collected_segments"] > 0)
    assert receipt.read_bytes().count(b"\n") >= 1
    assert 2 == keeplast("detach", *cluster).code
    assert 2 == keeplast("collect", *cluster, "--partition", 7).code


def test_a_lost_decision_log_is_made_again_once_and_the_second_time_finds_nothing(
    keeplast: Command, world: VerifiedWorld, cluster: tuple[str, ...]
) -> None:
    lost = (*cluster[:3], "--decisions", f"sqlite:///{world.world.root / 'new.db'}")
    assert 2 == keeplast("collect", *lost).code, "a log that is missing is not made by collecting"
    call = ("repair", *lost, "--rebuild", "--grace-ms", 0, "--take-over")
    assert 2 == keeplast(*call).code, "topics are named"
    world.world.clock.advance(1)
    for _ in range(2):
        run = keeplast(*call, "--topic", TOPIC, "--json")
        (row,) = shown(run, lost)
        assert (0, 0) == (run.code, row["discarded"]), row
    assert 4 == keeplast("collect", *cluster, "--grace-ms", 0).code, "the old log owns no more"
    assert 0 == keeplast("verify", *lost, "--topic", TOPIC).code


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "../t", "t'; DROP TABLE partitions;--"])
def test_a_hostile_name_is_found_nowhere_and_shown_as_an_escape(
    keeplast: Command, store: str, data: Path, text: str
) -> None:
    before = sorted(path for path in data.rglob("*"))
    for call in (
        ("detach", store, "--topic", text, "--yes"),
        ("repair", store, "--topic", text, "--truncate-to", 0, "--yes"),
        ("repair", store, *ONE, "--truncate-to", text, "--yes"),
        ("delete-records", store, "--topic", text, "--partition", 0, "--before-offset", 1),
        ("delete-records", data, "--topic", text, "--partition", 0, "--before-offset", 1),
        ("collect", store, "--topic", text),
    ):
        run = keeplast(*call, code=2)
        assert "\x1b[2J" not in run.err
    assert before == sorted(path for path in data.rglob("*"))
    assert 0 == keeplast("verify", store).code


def test_a_directory_named_by_digits_is_written_with_its_folder(
    keeplast: Command, store: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(data, tmp_path / "1")
    keeplast("repair", store, *ONE, "--truncate-to", "1", "--json", code=4)
    as_directory = keeplast("repair", store, *ONE, "--truncate-to", "./1", "--json")
    assert (0, True) == (as_directory.code, shown(as_directory, (store,))[0]["is_empty"])
