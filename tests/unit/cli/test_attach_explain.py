"""``keeplast explain kafka://…``: what a person and a script get; no cluster."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from keeplast.api.attached_logs import AttachedLogs
from keeplast.attach.held.outputs import filter_name
from keeplast.cleaner.plan import SegmentContents
from keeplast.cli.main import app
from keeplast.clock import Clock, SystemClock
from keeplast.cluster.layouts.paced import PaceLimits, RequestPace, pace_of
from keeplast.config.layers import ALL_PARTITIONS, PartitionChoice
from keeplast.errors import InvalidError, StoppedError
from keeplast.service.attached_sight import LoopLimits
from keeplast.service.console.searches import KeyFinder, KeySearches, SearchLimits
from keeplast.service.console.searching import found_key
from keeplast.service.place_loop import ViewTerms
from keeplast.tier.objects.filters import SegmentBytes, encode_filter
from tests.support.attached_world import PARTITION, START_MS
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock
from tests.support.travelling import Travelling
from tests.support.verified_world import VerifiedWorld

NAME = f"{PARTITION.topic}-{PARTITION.partition}"
KEPT = "k3"
"""A key of which a value wins; of k1 a tombstone does."""


def explain(world: VerifiedWorld, *more: str, expected: int = 0, store: bool = True) -> str:
    log = f"decisions=sqlite:///{world.world.root / 'decisions.db'}"
    key = more[:1] if more[:1] and not more[0].startswith("-") else ()
    found = CliRunner().invoke(
        app,
        [
            "explain", "kafka://127.0.0.1:1", *key, "--topic", PARTITION.topic,
            "--with", "storage=local:/x", *(("--with", log) if store else ()), *more[len(key):],
        ],
    )  # fmt: skip
    assert expected == found.exit_code, found.output
    return found.stdout + found.stderr


def document(text: str) -> dict[str, Any]:
    return dict(json.loads(text[: text.rindex("}") + 1]))


def files(world: VerifiedWorld) -> dict[str, bytes]:
    """Return all that lies in the remote tier."""
    root = world.tier.root
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_each_record_and_each_unsearched_place_is_printed(
    world: VerifiedWorld,
) -> None:
    before, events = files(world), list(world.cluster.values)
    text = " ".join(explain(world, KEPT).split())
    assert f'key "{KEPT}": ' in text
    assert "more in replaced segments" in text
    assert "wins: stays until a later record supersedes it" in text
    assert f"{NAME}: the record that stays: by offset" in text
    assert f"{NAME}: last trace: never" in text
    assert "also in replaced segment" in text
    assert "collected from" in text
    assert "which only brokers have" in text
    assert before == files(world)
    assert events == world.cluster.values


def test_a_script_reads_the_document_of_explain(world: VerifiedWorld) -> None:
    found = document(explain(world, KEPT, "--values", "--json"))
    assert {"text": KEPT}.items() <= found["key"].items()
    assert [] == found["errors"] == found["left_out"]
    (part,) = found["partitions"]
    assert (PARTITION.topic, 0) == (part["topic"], part["partition"])
    (winner,) = (each for each in part["records"] if each["fate"] == "wins")
    assert winner["offset"] == part["winners"]["offset"]
    assert part["not_searched"]
    copies = part["replaced_copies"]
    assert copies
    assert all(each["collected_from_ms"] > 0 for each in copies)
    asked = document(
        explain(world, "--offset", str(winner["offset"]), "--partition", "0", "--json")
    )
    assert part["records"][0]["offset"] == asked["partitions"][0]["records"][0]["offset"]


def test_segments_without_the_key_by_their_filters_are_counted_where_the_store_is_known(
    world: VerifiedWorld,
) -> None:
    key, served = world.world.log().filter_key(), world.tier.served()
    for each in served:
        of = SegmentBytes(each.id.segment_id.hex(), each.size_bytes, None)
        contents = SegmentContents(0, 0, 0, None, 1, 0, (), False)
        content = encode_filter(of, key, contents, np.zeros(0, np.uint64), 0.01)
        assert world.tier.layout.put_new(filter_name(each.id), content)
    (part,) = document(explain(world, "nobody", "--json"))["partitions"]
    left_out = {"segments": len(served), "bytes": sum(each.size_bytes for each in served)}
    assert left_out == part["left_out_by_filters"]
    assert "in which the key is not, by their filters" in explain(world, "nobody")
    (part,) = document(explain(world, "nobody", "--json", store=False))["partitions"]
    assert {"segments": 0, "bytes": 0} == part["left_out_by_filters"]


def test_tasks_find_what_this_process_finds(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> list[Any]:
        names = ("replaced_copies", "winners", "not_searched", "last_trace", "bound")
        (part,) = document(explain(world, KEPT, "--values", "--json"))["partitions"]
        # A timeline begins now, by the machine's clock.
        records = [{**each, "timeline": None} for each in part["records"]]
        return [records, *(part[name] for name in names)]

    here, travelling = answers(), Travelling()
    assert here[0]
    assert here[1]
    monkeypatch.setattr(
        "keeplast.cli.explain.search_runner", lambda workers: nullcontext(travelling)
    )
    assert here == answers()
    assert travelling.items


def test_the_round_that_takes_a_tombstone_is_named_or_why_there_is_none(
    world: VerifiedWorld,
) -> None:
    def trace(*, store: bool = True) -> dict[str, Any]:
        (part,) = document(explain(world, "k1", "--json", store=store))["partitions"]
        (last,) = [each for each in part["records"] if each["is_tombstone"]][-1:]
        return {**part["last_trace"], "record": last}

    dirty = trace()
    assert ("tombstone_goes", "goes_later") == (dirty["kind"], dirty["record"]["fate"])
    removal = dirty["removal"]
    # As yet it is in the newest segments, which no round takes.
    assert (None, None) == (removal["stays"], removal["from_ms"])
    assert removal["after_round_ms"] > 86_400_000
    assert "when that is, is not known" in dirty["why"]
    unknown = trace(store=False)
    assert ("tombstone_stays", "no decision log") == (unknown["kind"], unknown["removal"]["stays"])
    assert "no decision log was named" in unknown["why"]
    world.cluster.settings["local.retention.ms"] = "-2"
    never = trace()
    assert ("tombstone_stays", "wins") == (never["kind"], never["record"]["fate"])
    assert "local retention unlimited" == never["removal"]["stays"]
    text = " ".join(explain(world, "k1").split())
    assert text.count("never at this rate: local.retention.ms has no limit") == 2


def test_without_a_decision_log_copies_have_no_date(world: VerifiedWorld) -> None:
    (part,) = document(explain(world, "k1", "--json", store=False))["partitions"]
    assert {None} == {each["collected_from_ms"] for each in part["replaced_copies"]}
    assert "no decision log was named" in part["erased_by"]
    assert "nothing says when that is collected" in explain(world, "k1", store=False)


def test_a_topic_that_is_not_to_be_compacted_is_left_out(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    said = tmp_path / "settings.toml"
    said.write_text(f'[topic."{PARTITION.topic}"]\n"cleanup.policy" = "delete"\n')
    found = document(explain(world, "k1", "--with", f"config-file={said}", "--json", expected=4))
    assert [] == found["partitions"]
    assert ["keeplast's settings do not compact it"] == [each["why"] for each in found["left_out"]]


def test_a_missing_served_object_is_an_error_of_its_partition(world: VerifiedWorld) -> None:
    world.file_of(world.compacted()[0]).unlink()
    text = explain(world, "k1", "--json", expected=5)
    (error,) = document(text)["errors"]
    assert 0 == error["partition"]
    assert "keeplast verify" in error["error"]["message"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "give a key or the offset"),
        (("k1", "--offset", "3"), "give a key or the offset"),
        (("hex:zz",), "hex"),
        (("k1", "--partition", "7"), "no such partition"),
        (("k1", "--with", "grace-ms=-1"), "grace"),
    ],
)
def test_an_unanswerable_question_is_exit_code_2(
    world: VerifiedWorld, more: tuple[str, ...], words: str
) -> None:
    assert words in explain(world, *more, expected=2)


def finder(
    store: str | None, limits: LoopLimits, clock: Clock, scope: PartitionChoice = ALL_PARTITIONS
) -> KeyFinder:
    """Return who finds keys for a console."""
    place = AttachedLogs("127.0.0.1:1", storage="local:/x", store=store, limits=limits)
    found = existing(place.view(scope, ViewTerms(clock=clock)).find)
    return found


def test_the_console_finds_the_records_of_the_command(world: VerifiedWorld) -> None:
    url = f"sqlite:///{world.world.root / 'decisions.db'}"
    clock = SystemClock()
    limits = LoopLimits(requests_per_second=201)
    pace, before = pace_of(limits.pace), pace_of(limits.pace).bytes
    scope = PartitionChoice(topics=(PARTITION.topic,))
    searches = KeySearches(finder(url, limits, clock, scope), clock, SearchLimits())
    found = searches.search(PARTITION.topic, None, b"k1", None, lambda: False)
    printed, shown = document(explain(world, "k1", "--json")), found.document(values=False)
    for each in (*printed["partitions"], *shown["partitions"]):
        each.pop("now_ms")
        for record in each["records"]:
            record.pop("timeline")
            record.pop("goes_from_ms")
    assert printed["partitions"][0]["records"] == shown["partitions"][0]["records"]
    assert printed["partitions"][0]["replaced_copies"] == shown["partitions"][0]["replaced_copies"]
    # Every object of it went by the pace.
    copied = sum(each.size_bytes for each in (*world.tier.served(), *world.replaced()))
    assert (pace.bytes - before >= copied, pace.requests > 0) == (True, True)
    with pytest.raises(InvalidError, match="not shown here"):
        searches.search("another", None, b"k1", None, lambda: False)
    with pytest.raises(InvalidError, match="no such partition"):
        searches.search(PARTITION.topic, 7, b"k1", None, lambda: False)
    with pytest.raises(StoppedError):
        searches.search(PARTITION.topic, None, b"k1", None, lambda: True)


def test_what_was_not_searched_stands_on_the_page_also_without_a_record(
    world: VerifiedWorld,
) -> None:
    find = finder(None, LoopLimits(), SystemClock())
    searches = KeySearches(find, SystemClock(), SearchLimits())
    page = found_key(
        searches.search(PARTITION.topic, 0, b"nobody", None, lambda: False), 0, values=False
    )
    assert not page.holding
    assert any("which only brokers have" in each for each in page.problems)


def test_a_search_that_waits_for_its_pace_ends_with_its_budget(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    limits = PaceLimits(requests_per_second=0.1, bytes_per_second=1 << 20, pause_ms=1000)
    monkeypatch.setattr(
        "keeplast.service.cluster_loop.pace_of", lambda _: RequestPace(limits, clock)
    )
    searches = KeySearches(finder(None, LoopLimits(), clock), clock, SearchLimits())
    started = clock.seconds()
    with pytest.raises(StoppedError, match="--search-seconds"):
        searches.search(PARTITION.topic, 0, b"k1", None, lambda: False)
    assert 20 <= clock.seconds() - started < 21
