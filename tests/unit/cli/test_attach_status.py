"""``keeplast status`` of a live cluster: pictures, what comes next, and what a round would save.

And what ``place check`` says of the storage that is named.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from keeplast.api.attached_logs import AttachedLogs
from keeplast.attach.rules.tombstone_removal import CHECK_MS_DEFAULT, LOOKS
from keeplast.attach.upkeep.replaced_segments import GRACE_MS_DEFAULT
from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cli.main import app
from keeplast.cli.show.attach import cluster_parts
from keeplast.cli.show.status import DETAILS_MAX
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.open import open_layout
from keeplast.cluster.live_cluster import OffsetRange, Right, missing
from keeplast.errors import UnavailableError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.partition import LogRegion, TopicPartition
from keeplast.service.attached_outlook import OldValues, PartitionOutlook, RegionSegment
from keeplast.service.status import PartitionStatus, State
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.commanded_world import commanded_world, let_commands_open
from tests.support.forgotten_abort import write_forgotten_abort
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING

NAME = f"{PARTITION.topic}-{PARTITION.partition}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    with (
        pytest.MonkeyPatch.context() as patch,
        commanded_world(tmp_path_factory.mktemp("world"), patch) as made,
    ):
        yield made


def call(world: VerifiedWorld, command: str, *more: str, expected: int = 0) -> str:
    found = CliRunner().invoke(
        app,
        [command, "kafka://127.0.0.1:1", "--topic", PARTITION.topic, *more],
    )
    assert expected == found.exit_code, found.output
    return found.stdout + found.stderr


def plan(world: VerifiedWorld, *more: str) -> str:
    decided = f"sqlite:///{world.world.root / 'decisions.db'}"
    found = CliRunner().invoke(
        app,
        [
            "plan", "kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--decisions", decided,
            "--storage", f"local:{world.tier.root}", *more,
        ],
    )  # fmt: skip
    assert 0 == found.exit_code, found.output
    return found.stdout + found.stderr


def checked(world: VerifiedWorld, *more: str, expected: int = 0) -> str:
    found = CliRunner().invoke(
        app, ["place", "check", "kafka://127.0.0.1:1", "--topic", PARTITION.topic, *more]
    )
    assert expected == found.exit_code, found.output
    return found.stdout + found.stderr


def places(world: VerifiedWorld, *, store: bool = True) -> tuple[str, ...]:
    decided = ("--decisions", f"sqlite:///{world.world.root / 'decisions.db'}") if store else ()
    return ("--storage", f"local:{world.tier.root}", *decided)


def with_segments(root: Path, size: int) -> tuple[str, str]:
    """Return the settings by which twice so many bytes stay raw."""
    said = root / "settings.toml"
    said.write_text(f'[topic."{PARTITION.topic}"]\n"segment.bytes" = "{size}"\n')
    return "--config-file", str(said)


def document(text: str) -> dict[str, Any]:
    return dict(json.loads(text[: text.rindex("}") + 1]))


def test_it_counts_what_the_plan_of_a_round_counts(world: VerifiedWorld, tmp_path: Path) -> None:
    events, ids = list(world.cluster.values), world.tier.ids()
    asked = (*places(world), *with_segments(tmp_path, 500))
    saving = outlook(world, "--exact", *asked)["saving"]
    assert (None, None) == (saving["reason"], saving["error"])
    assert 0 < saving["bytes"] < saving["of_bytes"]
    assert saving["records"] > 0
    sized = with_segments(tmp_path, 500)
    planned = document(plan(world, "--exact", "--despite", "dirty-ratio", *sized, "--json"))
    (partition,) = planned["partitions"]
    stats = partition["rounds"][0]["stats"]
    assert saving["bytes"] == stats["bytes_read"] - stats["bytes_written"]
    text = call(world, "status", "--exact", *asked)
    assert "to save" in text
    assert NAME in text
    assert events == world.cluster.values
    assert ids == world.tier.ids()


def test_a_partition_that_cannot_be_compacted_yet_says_why(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    asked = (*places(world, store=False), *with_segments(tmp_path, 1 << 20))
    saving = outlook(world, "--exact", *asked)["saving"]
    assert (0, 0) == (saving["bytes"], saving["records"])
    assert saving["reason"]
    assert saving["reason"] in " ".join(call(world, "status", "--exact", *asked).split())


def test_the_check_looks_at_the_storage_where_one_is_named(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, ids, own = list(world.cluster.values), world.tier.ids(), world.tier.own()
    decided = ("--decisions", places(world)[3])
    found = document(checked(world, *places(world)[:2], *decided, "--json"))["checks"]
    rows = {each["name"]: each["state"] for each in found}
    assert {"ok"} == {rows[name] for name in ("cluster", "topic", "storage", "decisions", "clock")}
    assert "may be attached" in checked(world, *places(world)[:2], *decided)
    (tmp_path / "elsewhere" / "kafka-tiered-storage").mkdir(parents=True)
    elsewhere = f"local:{tmp_path / 'elsewhere'}"
    monkeypatch.setattr("keeplast.api.attached_logs.open_layout", open_layout)
    text = checked(world, "--storage", elsewhere, *decided, expected=1)
    assert "1 in the way of a clean" in text
    assert "may be attached" not in text
    assert "as the plugin is configured on the brokers" in " ".join(text.split())
    assert (events, ids, own) == (world.cluster.values, world.tier.ids(), world.tier.own())
    text = checked(world, "--storage-option", "region=x", *decided, expected=2)
    assert "give storage=PLUGIN:PLACE" in text


def test_a_decision_log_that_is_not_there_yet_is_absent_and_is_not_made(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    path = tmp_path / "none.db"
    found = document(checked(world, "--decisions", f"sqlite:///{path}", "--json", expected=1))
    rows = {each["name"]: each["state"] for each in found["checks"]}
    # Without the log, what it knows is another compactor's.
    assert ("absent", "problem") == (rows["decisions"], rows["foreign-marks"])
    assert not path.exists()


def test_with_the_decision_log_it_says_as_of_which_offsets_states_can_be_shown(
    world: VerifiedWorld,
) -> None:
    store = places(world)[2:]
    found = outlook(world, *store)
    cleaned_to = max(each.end_offset for each in world.compacted()) + 1
    assert cleaned_to == found["told_from"]
    words = f"exported as of offset {cleaned_to} or later"
    assert words in " ".join(call(world, "status", *store).split())
    assert outlook(world)["told_from"] is None


def test_it_says_with_which_rounds_tombstones_go_or_why_they_stay(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = places(world)[2:]
    dates = outlook(world, *store)["tombstone_dates"]
    assert (PARTITION.topic, 0, None, None) == (
        dates["topic"], dates["partition"], dates["stays"], dates["hidden_from"],
    )  # fmt: skip
    assert dates["clean_below"] == max(each.end_offset for each in world.compacted()) + 1
    retention_ms, local_ms = 86_400_000, 1_000 + LOOKS * CHECK_MS_DEFAULT
    assert world.world.clock.now_ms() + retention_ms < dates["clean_from_ms"]
    assert max(local_ms, GRACE_MS_DEFAULT) < dates["after_next_round_ms"] - retention_ms
    (planned,) = document(plan(world, "--json"))["tombstones"]
    assert dates == planned
    for text in (call(world, "status", *store), plan(world)):
        words = f"{NAME}: tombstones and markers: what the next round gives"
        assert words in " ".join(text.split())
    monkeypatch.setitem(world.cluster.settings, "local.retention.ms", "-1")
    words = f"{NAME}: tombstones and markers: never at this rate: local.retention.ms"
    for text in (call(world, "status", *store), plan(world)):
        assert words in " ".join(text.split())
    never = outlook(world, *store)["tombstone_dates"]
    assert ("local retention unlimited", None) == (never["stays"], never["clean_from_ms"])
    ranked = ("--config", "compaction.strategy=timestamp")
    never = outlook(world, *store, *ranked)["tombstone_dates"]
    assert "ranks" == never["stays"]
    assert outlook(world)["tombstone_dates"] is None


def test_without_it_no_object_is_looked_at(world: VerifiedWorld) -> None:
    assert outlook(world)["saving"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--exact",), "storage=PLUGIN:PLACE"),
        (("--storage-option", "a=b"), "storage=PLUGIN:PLACE"),
        (("--decisions", "sqlite:///x.db"), "there is no such decision log"),
    ],
)
def test_half_of_it_is_a_mistake_of_the_call(
    world: VerifiedWorld, more: tuple[str, ...], said: str
) -> None:
    assert said in call(world, "status", *more, expected=2)


def outlook(world: VerifiedWorld, *more: str) -> dict[str, Any]:
    (found,) = document(call(world, "status", *more, "--json"))["partitions"]
    return dict(found)


def test_a_picture_of_both_tiers_and_the_ratio_that_rounds_go_by(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    asked = (*places(world)[2:], *with_segments(tmp_path, 500))
    found = outlook(world, *asked)
    regions = found["regions"]
    assert ["clean", "dirty", "margin", "brokers_only"] == [each["name"] for each in regions]
    log = world.cluster.log
    edges = [(each["base_offset"], each["end_offset"]) for each in regions]
    assert (log.start, log.end) == (edges[0][0], edges[-1][1])
    assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
    served = sum(each.size_bytes for each in world.tier.served())
    assert served == sum(each["bytes"] for each in regions[:-1])
    clean, dirty = regions[0]["bytes"], regions[1]["bytes"]
    assert regions[0]["end_offset"] == found["first_dirty"]
    assert (clean, dirty) == (found["clean_bytes"], found["cleanable_bytes"])
    assert dirty / (clean + dirty) == found["ratio"]
    assert found["is_due"]
    text = call(world, "status", *asked)
    (bar,) = [line for line in text.splitlines() if line.startswith("█") and "│" in line]
    assert set("█▓╱░│") == set(bar)
    assert f"dirty ratio {found['ratio']:.3f}" in text
    assert "next round: due now, " in text
    threshold = ("--config", "min.cleanable.dirty.ratio=1")
    left = outlook(world, *asked, *threshold)
    assert (False, found["ratio"]) == (left["is_due"], left["ratio"])
    assert "next round: not now, dirty ratio" in call(world, "status", *asked, *threshold)


def test_without_a_decision_log_all_counts_as_dirty(world: VerifiedWorld, tmp_path: Path) -> None:
    asked = with_segments(tmp_path, 500)
    found = outlook(world, *asked)
    assert (0, 1.0, None) == (found["first_dirty"], found["ratio"], found["is_due"])
    text = call(world, "status", *asked)
    assert "all counts as dirty: the decision log" in text
    assert "next round: not known, no decision log was named, which says what is clean" in text


def test_what_a_margin_leaves_nothing_of_has_no_ratio(world: VerifiedWorld) -> None:
    found = outlook(world, *places(world)[2:])
    names = [each["name"] for each in found["regions"]]
    assert (["clean", "margin", "brokers_only"], None) == (names, found["ratio"])
    assert found["first_dirty"] == found["regions"][1]["base_offset"]
    assert "newest segments stay" in found["reason"]


def test_the_storage_says_when_a_round_is_due_at_the_latest(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    lag_ms = 10**13
    asked = (
        *with_segments(tmp_path, 500), "--config", "min.cleanable.dirty.ratio=1",
        "--config", f"max.compaction.lag.ms={lag_ms}",
    )  # fmt: skip
    unseen = outlook(world, *places(world)[2:], *asked)
    assert None is unseen["deadline_ms"]
    why = "no remote tier was named, which says when max.compaction.lag.ms ends"
    assert why in unseen["reason"]
    found = outlook(world, *places(world), *asked)
    dirty = [e for e in world.tier.served() if e.start_offset >= found["first_dirty"]]
    assert lag_ms < found["deadline_ms"] <= min(e.max_timestamp_ms for e in dirty) + lag_ms
    assert "max.compaction.lag.ms ends" in call(world, "status", *places(world), *asked)


def test_old_values_have_a_span_after_their_round_and_replaced_ones_a_date(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, now_ms = places(world)[2:], world.world.clock.now_ms()
    old = outlook(world, *store)["erased_by"]
    assert GRACE_MS_DEFAULT < old["after_round_ms"]
    known = world.world.log()
    (attached,) = known.partitions(CLUSTER_ID)
    published = [each.published_ms for each in known.decisions(attached)]
    assert max(each or now_ms for each in published) + GRACE_MS_DEFAULT < old["replaced_by_ms"]
    assert old["why"].startswith("no date: brokers roll and copy when they like")
    assert f"erased by: {old['why']}" in call(world, "status", *store)
    local_ms = 5 * 86_400_000
    monkeypatch.setitem(world.cluster.settings, "local.retention.ms", str(local_ms))
    longer = outlook(world, *store)["erased_by"]
    assert local_ms < longer["after_round_ms"]
    assert now_ms + local_ms < longer["replaced_by_ms"]
    monkeypatch.setitem(world.cluster.settings, "local.retention.ms", "-1")
    never = outlook(world, *store)["erased_by"]
    assert (None, None) == (never["after_round_ms"], never["replaced_by_ms"])
    assert never["why"].startswith("never at this rate: local.retention.ms")


def test_the_reason_that_keeps_rounds_from_a_partition_is_named(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = (*places(world)[2:], *with_segments(tmp_path, 500))
    kept = outlook(world, *asked, "--config", "cleanup.policy=delete")
    assert (False, None) == (kept["is_due"], kept["erased_by"])
    assert "the topic is not compacted" in kept["reason"]
    monkeypatch.setitem(world.cluster.settings, "retention.ms", "1000")
    refused = outlook(world, *asked)
    assert not refused["is_due"]
    assert refused["reason"].startswith("place check refuses it: ")
    assert "no date while no round is done" == refused["erased_by"]["why"]


def test_a_partition_that_cannot_be_looked_at_says_why(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.api.attached_logs.open_layout", open_layout)
    (tmp_path / "kafka-tiered-storage").mkdir()
    elsewhere = ("--storage", f"local:{tmp_path}")
    text = call(world, "status", *elsewhere, "--json", expected=5)
    (found,) = document(text)["partitions"]
    assert ("unreadable", found["error"]["message"]) == (found["state"], found["reason"])
    assert "cannot be looked at: " in call(world, "status", *elsewhere, expected=5)


def test_many_partitions_are_a_line_each() -> None:
    segment, figures = RegionSegment(0, 10, 100, LogRegion.DIRTY), LogFigures(
        0, CleanableRange(10, 0, 100), 0, 0, None
    )  # fmt: skip
    names = [TopicPartition("orders", number) for number in range(DETAILS_MAX + 1)]
    found = [
        PartitionStatus(
            name, State.ELIGIBLE, "so it is", outlook=PartitionOutlook(
                partition=name, log=OffsetRange(0, 20), segments=(segment,), brokers_from=10,
                figures=figures, is_due=True, why="so it is",
                old=OldValues(1, None, "no date: so they say"),
            ),
        )
        for name in names
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=140)
    for part in cluster_parts(found, 0, 140, has_details=False):
        console.print(part, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(found) == len([line for line in lines if "due now: so it is" in line])
    (named,) = [line for line in lines if "erased by" in line]
    assert named.endswith(f"orders-{DETAILS_MAX}: erased by: no date: so they say")
    assert not any("log end" in line for line in lines)


def waiting_for(root: Path, *groups: str) -> tuple[str, str]:
    """Return the settings by which tombstones wait for groups."""
    said = root / "waits.toml"
    said.write_text(
        f'[topic."{PARTITION.topic}"]\n"tombstones.wait.for.groups" = "{",".join(groups)}"\n'
    )
    return "--config-file", str(said)


def test_status_and_plan_name_the_groups_that_tombstones_wait_for(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    world.cluster.groups = {"billing": 7}
    asked = waiting_for(tmp_path, "billing", "search")
    text = call(world, "status", *asked)
    words = "group billing has read up to offset 7; group search has committed nothing"
    assert words in " ".join(text.split())
    (row,) = document(call(world, "status", *asked, "--json"))["partitions"]
    found = [(e["group"], e["offset"], e["absence"]) for e in row["readers"]["groups"]]
    assert [("billing", 7, None), ("search", None, "not_committed")] == found
    planned = plan(world, *asked)
    assert words in " ".join(planned.split())
    (row,) = document(call(world, "status", "--json"))["partitions"]
    assert None is row["readers"]


def test_check_names_the_permission_that_a_group_takes_and_refuses_nothing_for_it(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    world.cluster.groups = {"billing": 7, "search": missing(Right("Describe", group="search"), "g")}
    asked = waiting_for(tmp_path, "billing", "search")
    decided = ("--decisions", places(world)[3])
    rows = document(checked(world, *asked, *decided, "--json"))["checks"]
    (found,) = [each for each in rows if each["name"] == "permission"]
    assert ("warning", PARTITION.topic) == (found["state"], found["topic"])
    assert found["remedy"].endswith("--operation Describe --group search")
    text = " ".join(call(world, "status", *asked).split())
    assert "group search counts as not there yet: the principal may not do that; it needs" in text


def test_status_reports_an_index_that_lacks_an_abort_where_the_storage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, marker = write_forgotten_abort(tmp_path / "logs" / "t-0", MERGING)
    made = VerifiedWorld(tmp_path, tmp_path / "logs" / "t-0", (LeaderEpoch(0, 0),))
    let_commands_open(made, monkeypatch)
    try:
        raw = with_segments(tmp_path, 600)
        found = outlook(made, *places(made, store=False), *raw)
        (missing,) = found["missing_aborts"]
        assert (first, marker) == (missing["first_offset"], missing["marker_offset"])
        words = " ".join(call(made, "status", *places(made, store=False), *raw).split())
        assert f"lacks the abort at offset {marker} of the transaction" in words
        assert f"an index lacks the abort at offset {marker}" in words
        found = outlook(made, *raw)
        assert [] == found["missing_aborts"]
    finally:
        made.close()


def test_of_a_cluster_that_is_gone_with_its_storage_the_cluster_is_named(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(logs: AttachedLogs) -> ClusterClient:
        raise UnavailableError(f"no broker answers. {logs.where}", code="K400")

    monkeypatch.setattr(AttachedLogs, "connect", lost)
    text = call(world, "status", "--storage", "local:/nowhere", expected=5)
    assert (True, False) == ("no broker answers" in text, "K304" in text), text
