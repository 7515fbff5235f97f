"""``keeplast export`` of what brokers serve from their remote tier; no cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.api.open_log import OpenLog
from keeplast.cli.main import app
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.format.identifier import encode_id
from keeplast.model.partition import TopicPartition
from tests.support import called
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world, end_of
from tests.support.group_cluster import GroupCluster
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING

TOPIC = PARTITION.topic


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A partition that was compacted once."""
    with (
        pytest.MonkeyPatch.context() as patch,
        commanded_world(tmp_path_factory.mktemp("world"), patch) as made,
    ):
        yield made


def export(
    world: VerifiedWorld, target: Path, *more: str, expected: int = 0, has_log: bool = True
) -> str:
    log = ("--decisions", f"sqlite:///{world.world.root / 'decisions.db'}") if has_log else ()
    found = CliRunner().invoke(
        app,
        [
            "export", "kafka://127.0.0.1:1", "--storage", "local:/x", *log, "--to",
            str(target), "--topic", TOPIC, "--runner", "local", *more,
        ],
    )  # fmt: skip
    assert expected == found.exit_code, found.output
    assert (expected == 0) == target.exists()
    return " ".join((found.stdout + found.stderr).split())


def state(target: Path) -> dict[bytes, bytes]:
    return {row["key"]: row["value"] for row in pq.read_table(target / TOPIC).to_pylist()}


def test_the_latest_state_is_that_of_the_log_up_to_where_brokers_have_copied_it(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    text = export(world, tmp_path / "a")
    directory = OpenLog(world.directory)
    expected = directory.state(MERGING, end_offset=end_of(world))
    assert {key: each.value for key, each in expected.items()} == state(tmp_path / "a")
    end = end_of(world)
    assert f"offsets {end} to {world.cluster.log.end - 1} are with the brokers alone" in text
    assert {TOPIC: {"0": end}} == json.loads((tmp_path / "a" / "_offsets.json").read_text())


@pytest.mark.parametrize("words", [("plan",), ("clean", "--dry-run")])
def test_a_document_of_a_cluster_begins_with_the_place(
    world: VerifiedWorld, words: tuple[str, ...]
) -> None:
    decisions = f"sqlite:///{world.world.root / 'decisions.db'}"
    where = ("kafka://127.0.0.1:1", "--storage", "local:/x", "--decisions", decisions)
    verb, *more = words
    found = CliRunner().invoke(app, [verb, where[0], *more, *where[1:], "--topic", TOPIC, "--json"])
    assert ["version", "place", "kind"] == list(json.loads(found.stdout))[:3], found.output


@pytest.mark.parametrize("kind", ["directory", "store", "cluster"])
def test_every_kind_of_place_says_the_same_in_its_document(
    world: VerifiedWorld, tmp_path: Path, kind: str
) -> None:
    data, store = str(world.directory.parent), f"sqlite:///{tmp_path / 'meta.db'}"
    if kind == "store":
        taken = CliRunner().invoke(
            app,
            ["copy", data, store, "--new", "--objects", f"file://{tmp_path / 'objects'}",
             "--topic", "t", "--config", "cleanup.policy=compact"],
        )  # fmt: skip
        assert 0 == taken.exit_code, taken.output
    decisions = f"sqlite:///{world.world.root / 'decisions.db'}"
    place, *more = {
        "directory": (data,),
        "store": (store,),
        "cluster": ("kafka://127.0.0.1:1", "--storage", "local:/x", "--decisions", decisions),
    }[kind]
    # The directory that the world's log was written to has another name.
    topic = TOPIC if kind == "cluster" else "t"
    call = ["export", place, *more, "--to", str(tmp_path / "out"), "--topic", topic, "--json"]
    found = called.run(*call, "--tombstones", code=0)
    document = json.loads(found.stdout)
    assert ["version", "place", "kind", "as", "target", "partitions"] == list(document)[:6]
    assert (place, kind, "parquet") == tuple(document[key] for key in ("place", "kind", "as"))
    own = {"offsets", "ending_offsets", "changed_keys", "as_of", "ranked_by", "tombstones"}
    assert own == set(document) - {"version", "place", "kind", "as", "target", "partitions"}
    (part,) = document["partitions"]
    assert part["resume_offset"] == document["offsets"][topic]["0"]
    both = ["--as-of", "0", "--checkpoint", "t"]
    refused = CliRunner().invoke(app, [*call, *both])
    assert (2, True) == (refused.exit_code, "one point at a time" in refused.output)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (lambda end: ("--ending-offsets", json.dumps({TOPIC: {"0": 5}})), "cleaned_to="),
        (
            lambda end: ("--ending-offsets", json.dumps({TOPIC: {"0": end + 1}})),
            "with the brokers alone",
        ),
        (lambda end: ("--as-of", "2100-01-01T00:00:00Z"), "with the brokers alone"),
    ],
)
def test_points_whose_state_cannot_be_shown_are_refused(
    world: VerifiedWorld, tmp_path: Path, point: object, words: str
) -> None:
    assert callable(point)
    assert words in export(world, tmp_path / "a", *point(end_of(world)), expected=4)


def test_a_topic_that_is_not_tiered_has_no_state_there(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty table would say that all is deleted."""
    facts = world.consumers.read_facts((TOPIC,))
    local = replace(facts.topics[0], name="prefs", topic_id=b"\x07" * 16, settings={})
    monkeypatch.setattr(
        world.consumers, "read_facts", lambda _: replace(facts, topics=(*facts.topics, local))
    )
    assert "not tiered" in export(world, tmp_path / "a", "--topic", "prefs", expected=4)


def test_without_the_decision_log_the_export_says_which_states_it_cannot_show(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    words = "only the latest state is known"
    assert words not in export(world, tmp_path / "a")
    assert words in export(world, tmp_path / "b", has_log=False)


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        (("./DATA_DIR",), "read one at a time", 4),
        (
            (
                "--despite",
                "partial-topics",
            ),
            "says which partitions it has",
            4,
        ),
        (("--as", "log"), "would be missing in the log", 4),
        (("--object-option", "endpoint=x"), "has no such property", 2),
        (("--partition", "3"), "partition=3", 2),
        (("--checkpoint", TOPIC), "a checkpoint is", 2),
        (("--checkpoint", "elsewhere"), "elsewhere", 2),
    ],
)
def test_an_option_that_does_not_go_with_a_cluster_is_named(
    world: VerifiedWorld, tmp_path: Path, more: tuple[str, ...], words: str, code: int
) -> None:
    assert words in export(world, tmp_path / "a", *more, expected=code)


def committed(world: VerifiedWorld, offset: int, *, topic_id: bytes | None = None) -> GroupCluster:
    end = world.cluster.log.end
    known = TopicEnds(PARTITION.topic_id if topic_id is None else topic_id, {0: end})
    partition = TopicPartition(TOPIC, 0)
    return GroupCluster({TOPIC: known}, {"readers": {partition: offset}})


def let_answer(world: VerifiedWorld, patch: pytest.MonkeyPatch, cluster: GroupCluster) -> None:
    for name in ("find_ends", "read_group_offsets"):
        patch.setattr(
            type(world.consumers), name, staticmethod(getattr(cluster, name)), raising=False
        )


def test_the_committed_offset_of_a_group_can_be_the_point_of_an_export(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(world)
    let_answer(world, monkeypatch, committed(world, end))
    text = export(world, tmp_path / "a", "--checkpoint-group", "readers")
    assert "as of what group readers has committed" in text
    expected = OpenLog(world.directory).state(MERGING, end_offset=end)
    assert {key: each.value for key, each in expected.items()} == state(tmp_path / "a")
    assert {TOPIC: {"0": end}} == json.loads((tmp_path / "a" / "_ending_offsets.json").read_text())


@pytest.mark.parametrize(
    ("offset", "topic_id", "group", "code", "words"),
    [
        (lambda w: end_of(w) + 1, None, "readers", 4, "with the brokers alone"),
        (lambda w: w.cluster.log.end + 1, None, "readers", 4, "make no checkpoint"),
        (end_of, bytes(16), "readers", 4, "another topic of this name"),
        (lambda w: 5, None, "readers", 4, "cleaned_to="),
        (end_of, None, "others", 2, "no committed offset"),
    ],
)
def test_what_a_group_has_committed_elsewhere_is_no_point(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    offset: Callable[[VerifiedWorld], int], topic_id: bytes | None, group: str, code: int,
    words: str,
) -> None:  # fmt: skip
    let_answer(world, monkeypatch, committed(world, offset(world), topic_id=topic_id))
    assert words in export(world, tmp_path / "a", "--checkpoint-group", group, expected=code)


def test_an_error_names_the_segment_and_no_temporary_file(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    refused = export(
        world, tmp_path / "a", "--ending-offsets", json.dumps({TOPIC: {"0": 5}}), expected=4
    )
    assert f"path=the remote tier of {TOPIC}-0" in refused
    last = world.tier.served()[-1]
    (log,) = world.tier.root.rglob(f"*{encode_id(last.id.segment_id)}.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    try:
        damaged = export(world, tmp_path / "a", expected=3)
    finally:
        log.write_bytes(whole)
    assert f"segment={encode_id(last.id.segment_id)} offsets={last.start_offset}.." in damaged
    assert "/attached/" not in refused + damaged
