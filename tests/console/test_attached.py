"""An attached topic in a browser: what a person sees is what ``keeplast attach`` says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from keeplast.api.attached_logs import AttachedLogs
from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice
from keeplast.model.partition import range_text
from keeplast.model.text import format_bytes, format_counted
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.place_loop import ViewTerms
from tests.console.conftest import PARTITIONS, Served, printed, serving
from tests.console.test_what_is_seen import enter, find_key
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.browser import Browser, cells
from tests.support.commanded_world import commanded_world
from tests.support.verified_world import VerifiedWorld

pytestmark = pytest.mark.console
LOG = f"/log/{PARTITION.topic}/{PARTITION.partition}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A topic that was compacted once and judged; a leader has copied its last segment again."""
    root = tmp_path_factory.mktemp("attached")
    with pytest.MonkeyPatch.context() as patch, commanded_world(root, patch) as made:
        _, store, *storage = decided(made)
        printed(
            "verify", "kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--decisions", store,
            *storage, "--receipt", receipt(made), "--note",
        )  # fmt: skip
        base, following = list(pairwise(made.bases))[-1]
        made.tier.copy_one(made.directory, base, following - 1)
        # What waits for its grace has a date that moves with the time of the look.
        now_ms = SystemClock().now_ms()
        patch.setattr(SystemClock, "now_ms", lambda self: now_ms)
        yield made


def decided(world: VerifiedWorld) -> tuple[str, ...]:
    """Return the options that name decision log and storage."""
    return "--store", f"sqlite:///{world.world.root / 'decisions.db'}", "--storage", "local:/x"


def receipt(world: VerifiedWorld) -> Path:
    return world.world.root / "receipts.jsonl"


def status(world: VerifiedWorld) -> Any:
    _, store, *_ = decided(world)
    return printed(
        "status", "kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--decisions", store
    )


@pytest.fixture(scope="module")
def attached(world: VerifiedWorld) -> Iterator[Served]:
    """A console that only looks at the cluster, and finds keys in its remote tier."""
    _, store, _, storage = decided(world)
    clock, place = SystemClock(), AttachedLogs("127.0.0.1:1", storage=storage, store=store)
    terms = ViewTerms(clock=clock, receipt=receipt(world))
    seen = place.view(PartitionChoice(topics=(PARTITION.topic,)), terms)
    assert seen.find is not None
    with seen.watcher as watcher:
        view = watcher.view()
    searches = KeySearches(seen.find, clock, SearchLimits())
    with serving(view, runs=False, searches=searches) as found:
        yield found


def test_an_attached_topic_is_shown_as_status_says(
    browser: Browser, attached: Served, world: VerifiedWorld
) -> None:
    (expected,) = status(world)["partitions"]
    served, compacted = expected["served"], expected["compacted"]
    browser.open(attached.url(PARTITIONS))
    (row,) = cells(browser, "main")
    name = f"{expected['topic']}-{expected['partition']}"
    assert [name, format_bytes(served["bytes"])] == [row[0], row[3]]
    browser.open(attached.url(LOG))
    known = browser.text("section[aria-labelledby=h-known]")
    assert (
        f"served: {format_counted(served['count'], 'segment')}, {format_bytes(served['bytes'])}, "
        f"of them compacted {format_counted(compacted['count'], 'segment')}, "
        f"{format_bytes(compacted['bytes'])}"
    ) in known
    log = expected["log"]
    assert f"brokers have {range_text(log['start'], log['end'])}" in known
    *strips, offsets = [each.text for each in browser.all(".twin")]
    assert offsets.startswith("The offsets: ")
    assert strips
    assert all("hidden" in each for each in strips)
    assert [] == browser.findings()


def test_effective_and_hidden_segments_look_different(
    browser: Browser, attached: Served, world: VerifiedWorld
) -> None:
    (expected,) = status(world)["partitions"]
    assert all(expected[use]["count"] for use in ("served", "compacted", "hidden", "deleting"))
    browser.open(attached.url(LOG))
    segments = cells(browser, "section[aria-labelledby=h-segments]")
    places = [row[4] for row in segments]
    assert expected["compacted"]["count"] == places.count("served, compacted")
    assert expected["served"]["count"] == len([each for each in places if "served" in each])
    for use in ("hidden", "deleting", "copying"):
        assert expected[use]["count"] == places.count(use)
    # What is served has no hole, and what is not has a strip of its own.
    rows = [row for row in segments if "served" in row[4]]
    assert all(range_text(int(one[0]), int(two[0])) == one[2] for one, two in pairwise(rows))
    served, hidden = browser.all("svg.strip.tall")
    assert len(rows) == len(served.find_elements("css selector", "a"))
    assert "not served" in str(hidden.get_attribute("aria-label"))
    shown = hidden.find_elements("css selector", "a")
    assert expected["hidden"]["count"] + expected["deleting"]["count"] == len(shown)


def test_the_page_shows_the_wait_for_the_grace_and_the_verdict_of_verify(
    browser: Browser, attached: Served, world: VerifiedWorld
) -> None:
    browser.open(attached.url(LOG))
    known = browser.text("section[aria-labelledby=h-known]")
    log = world.world.log()
    decisions = log.decisions(log.partitions(CLUSTER_ID)[0])
    for each in decisions:
        size = sum(source.size_bytes for source in each.sources)
        words = f"{format_counted(len(each.sources), 'replaced segment')}, {format_bytes(size)}, "
        assert f"in grace: {words}replaced " in known
    assert len(decisions) == known.count("the grace counts from then") > 0
    (line,) = [json.loads(e) for e in receipt(world).read_bytes().splitlines() if b"verdict" in e]
    verdict = f"(verify of a cluster, epoch {line['verdict']['epoch']}, clean to "
    (round_,) = cells(browser, "section[aria-labelledby=h-rounds]")
    assert round_[-1].startswith("holds ")
    assert verdict in round_[-1]
    browser.open(attached.url("/work"))
    (row,) = cells(browser, "section[aria-labelledby=h-receipts]")
    assert round_[-1] == row[-1]


def test_the_documents_are_those_of_the_command_line(
    browser: Browser, attached: Served, world: VerifiedWorld
) -> None:
    for path in ("/", LOG):
        browser.open(attached.url(path))
        links = {each.text: each.get_attribute("href") for each in browser.all("footer a")}
        browser.open(str(links["This page as JSON"]))
        assert status(world) == json.loads(browser.text("body"))


def test_a_key_is_found_as_attach_explain_says(
    browser: Browser, attached: Served, world: VerifiedWorld
) -> None:
    enter(browser, attached)
    browser.open(attached.url("/keys"))
    find_key(browser, PARTITION.topic, "k1")
    _, store, *storage = decided(world)
    cluster = ("kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--decisions", store, *storage)
    (expected,) = printed("explain", *cluster, "k1")["partitions"]
    rows = cells(browser, "section[aria-labelledby=h-found]")
    assert expected["records"]
    assert [str(each["offset"]) for each in expected["records"]] == [row[0] for row in rows]
    assert [str(each["segment"]) for each in expected["records"]] == [row[1] for row in rows]
    assert attached.url("/keys") == browser.address
    assert [] == browser.complaints()
