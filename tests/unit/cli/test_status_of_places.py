"""``keeplast status`` of every kind of place: the same fields, order, limits and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import keeplast as package
from keeplast.config.place_properties import PlaceKind
from keeplast.errors import CorruptError
from keeplast.model.partition import TopicPartition
from keeplast.store.tiered_store import TieredStore
from tests.support import called
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world
from tests.support.heard_calls import hear
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command

COMMON = {
    "topic", "partition", "state", "reason", "log_start", "log_end", "first_dirty", "bound",
    "clean_bytes", "cleanable_bytes", "uncleanable_bytes", "ratio", "compaction_delay_ms",
    "deadline_ms", "told_from", "holds", "readers", "erased_by", "error",
}  # fmt: skip
HEAD = ["version", "place", "kind", "now_ms"]
PAIRS = [(b"a", b"1"), (b"b", b"2"), (b"a", None)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for number in (0, 1):
        write_log(root, f"orders-{number}", {0: PAIRS, 3: [(b"c", b"3")]})
    (root / "keeplast.toml").write_text('[topic."orders"]\n"cleanup.policy" = "compact"\n')
    return root


@pytest.fixture
def store(tmp_path: Path, directory: Path, keeplast: Command) -> str:
    return called.copied(
        directory, tmp_path, "--topic", "orders", "--owner", "a", "--config",
        "cleanup.policy=compact",
    )  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    with pytest.MonkeyPatch.context() as patch, commanded_world(tmp_path / "w", patch) as made:
        decisions = f"sqlite:///{made.world.root / 'decisions.db'}"
        yield "kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--decisions", decisions


@pytest.fixture(params=list(PlaceKind))
def place(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found = request.getfixturevalue(request.param.value)
    return found if isinstance(found, tuple) else (str(found),)


def test_a_status_has_the_same_fields_everywhere(place: tuple[str, ...], keeplast: Command) -> None:
    run = keeplast("status", *place, "--json", code=0)
    assert HEAD == list(run.document)[: len(HEAD)]
    assert place[0] == run.document["place"]
    rows = run.document["partitions"]
    assert rows
    assert all(set(row) >= COMMON for row in rows)
    states = run.document["states"]
    assert len(rows) == sum(states.values())
    shown = keeplast("status", *place).out
    plural = "" if len(rows) == 1 else "s"
    assert shown.startswith(f"{place[0]}: {len(rows)} partition{plural} (")
    assert all(f"{row['topic']}-{row['partition']}" in shown for row in rows)


@pytest.mark.parametrize("kind", [PlaceKind.STORE, PlaceKind.DIRECTORY])
def test_left_out_columns_are_named_everywhere(
    kind: PlaceKind, request: pytest.FixtureRequest, keeplast: Command
) -> None:
    place = str(request.getfixturevalue(kind.value))
    shown = keeplast("status", place, "--limit", 1).out
    assert "… and 1 less urgent; --all or --limit shows more" in shown
    assert "less urgent" not in keeplast("status", place, "--limit", 1, "--all").out
    assert 2 == len(keeplast("status", place, "--limit", 1, "--json").document["partitions"])


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (kind, option)
        for kind in (PlaceKind.STORE, PlaceKind.CLUSTER)
        for option in ("--now-ms=1", "--tombstones=skip", "--round-seconds=1")
    ]
    + [(PlaceKind.STORE, "--exact"), (PlaceKind.DIRECTORY, "--exact")],
)
def test_an_option_that_a_place_cannot_do_is_refused_with_the_alternative(
    kind: PlaceKind, option: str, request: pytest.FixtureRequest, keeplast: Command
) -> None:
    found = request.getfixturevalue(kind.value)
    place = found if isinstance(found, tuple) else (found,)
    run = keeplast("status", *place, option, code=4)
    assert "leave " in run.err or "use keeplast plan" in run.err


def test_a_partition_of_a_store_that_cannot_be_read_hides_no_other(
    store: str, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:

    def damaged(self: TieredStore, partition: TopicPartition, *_: object) -> None:
        if partition.partition == 0:
            raise CorruptError("bad row", path="meta.db")

    hear(monkeypatch, TieredStore, "status", damaged)
    run = keeplast("status", store, "--json", code=3)
    first, second = run.document["partitions"]
    assert (0, "unreadable", "CorruptError") == (
        first["partition"], first["state"], first["error"]["class"],
    )  # fmt: skip
    assert (1, None) == (second["partition"], second["error"])
    assert "orders-0: bad row" in keeplast("status", store).out


def test_a_local_log_that_cannot_be_read_leaves_the_store_in_the_answer(
    store: str, directory: Path, keeplast: Command
) -> None:
    for each in (directory / "orders-0").glob("*.log"):
        each.write_bytes(b"\xff" * 100)
    run = keeplast("status", store, "--data-dir", directory, "--json", code=3)
    rows = {each["partition"]: each for each in run.document["partitions"]}
    assert (None, "CorruptError") == (rows[0]["local_bytes"], rows[0]["error"]["class"])
    assert (False, None) == (rows[1]["local_bytes"] is None, rows[1]["error"])
    assert "the local log is left out" in keeplast("status", store, "--data-dir", directory).out


def test_objects_that_cannot_be_reached_leave_the_metadata_in_the_answer(
    tmp_path: Path, store: str, keeplast: Command
) -> None:
    keeplast("configure", store, "max.compaction.lag.ms=1000", "--owner", "a")
    for each in (tmp_path / "objects").rglob("*.log"):
        each.unlink()
    run = keeplast("status", store, "--json")
    assert run.code > 0
    rows = run.document["partitions"]
    assert ["dirty", "dirty"] == [each["state"] for each in rows]
    assert all(each["error"] and each["bytes"] for each in rows)


def test_the_leader_of_a_partition_is_known_by_its_lease(store: str, keeplast: Command) -> None:
    name = TopicPartition("orders", 0)
    with package.open_store(store, owner="a", topic_of=package.topic_config) as opened:
        state = opened.own(name, takes_over=True)
        leases = opened.parts().metadata.leases
        leases.renew(name, epoch=state.leader_epoch, lease_ms=5000, acknowledged=3)
        rows = keeplast("status", store, "--json").document["partitions"]
        shown = keeplast("status", store).out
    found = {each["partition"]: each["lease"] for each in rows}
    assert None is found[1]
    assert (5000, 3) == (found[0]["lease_ms"], found[0]["acknowledged"])
    assert f"led in epoch {state.leader_epoch} by a: its lease is for 5 s" in shown


def test_the_table_of_a_place_gives_its_options(
    tmp_path: Path, directory: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keeplast.toml").write_text(
        f'[place.broker]\nat = "{directory}"\n[place.broker.status]\nlimit = 1\n'
    )
    assert "… and 1 less urgent" in keeplast("status", "broker").out
    assert "less urgent" not in keeplast("status", "broker", "--limit", 2).out
