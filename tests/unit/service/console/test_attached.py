"""Attached topics on the pages: what brokers serve and hide, who compacts, and what waits to go."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from keeplast.api.attached_logs import AttachedLogs
from keeplast.attach.answers.shown_logs import AttachedHolds, HeldCluster
from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.clock import Clock, SystemClock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.hold import HoldPoint
from keeplast.model.text import format_bytes
from keeplast.service.console.view import Watcher
from keeplast.service.place_loop import ViewTerms
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.service.status import State
from keeplast.tier.state.attached import AttachedName
from tests.support import called
from tests.support.attached_world import (
    CLUSTER_ID,
    PARTITION,
    START_MS,
    TERMS,
    AttachedWorld,
)
from tests.support.console_site import NOW_MS, FixedSource, Site
from tests.support.existing import existing
from tests.support.waiting import wait_until

SCOPE = PartitionChoice(topics=(PARTITION.topic,))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachedWorld]:
    """Three segments of brokers, and a client that reaches them."""
    made = AttachedWorld(tmp_path)
    monkeypatch.setattr(AttachedLogs, "connect", lambda self: made.cluster)
    yield made
    made.close()


def watcher(world: AttachedWorld, *, is_asked: bool = True) -> Watcher:
    store = f"sqlite:///{world.root / 'decisions.db'}" if is_asked else None
    return watcher_of(store, world.clock)


def watcher_of(store: str | None, clock: Clock, *, endures: bool = False, **config: str) -> Watcher:
    wanted = {name.replace("_", "."): value for name, value in config.items()}
    place = AttachedLogs("broker:9092", storage="", store=store, config=wanted)
    return place.view(SCOPE, ViewTerms(clock=clock, endures=endures)).watcher


def test_the_page_of_a_log_names_the_groups_that_its_tombstones_wait_for(
    world: AttachedWorld,
) -> None:
    compacted(world)
    world.cluster.groups = {"billing": 2}
    store = f"sqlite:///{world.root / 'decisions.db'}"
    with watcher_of(store, world.clock, tombstones_wait_for_groups="billing") as looking:
        shown = Site(FixedSource(looking.view()))
    assert "group billing has read up to offset 2" in text_of(shown, "/log/orders/0")
    assert "wait for readers" not in text_of(site(world), "/log/orders/0")


def site(world: AttachedWorld, *, is_asked: bool = True) -> Site:
    with watcher(world, is_asked=is_asked) as looking:
        return Site(FixedSource(looking.view()))


def compacted(world: AttachedWorld) -> None:
    """Let one output take the place of the first two segments, and hold the partition."""
    publisher = world.claim()
    publisher.decide_and_publish(world.swap(publisher, 0, 2))


def text_of(site: Site, path: str) -> str:
    answer = site.get(path)
    assert 200 == answer.status_code, answer.text
    text = re.sub(r'<a href="/help/[^"]+">([^<]+)</a>', r"\1", answer.text)
    return " ".join(html.unescape(text).split())


def printed(world: AttachedWorld, *more: str) -> Any:
    arguments = ["status", "kafka://broker:9092", "--topic", "orders"]
    done = called.run(*arguments, *more, "--json", code=0)
    return json.loads(done.stdout)


def without_time(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the time of its look, which is of another clock."""
    return {name: value for name, value in document.items() if name != "now_ms"}


def test_the_document_is_that_of_status(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(world)
    # What waits for its grace has a date that moves with the time of the look.
    now_ms = world.clock.now_ms() + 60_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms)
    store = f"sqlite:///{world.root / 'decisions.db'}"
    expected = printed(world, "--decisions", store)
    assert all(expected["partitions"][0][name] for name in ("told_from", "tombstone_dates"))
    for path in ("/overview.json", "/log/orders/0.json"):
        assert without_time(expected) == without_time(site(world).document(path))


def test_the_next_step_is_shown_in_the_words_of_status(
    world: AttachedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(world)
    # What waits for its grace has a date that moves with the time of the look.
    now_ms = world.clock.now_ms() + 60_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms)
    expected = printed(world, "--decisions", f"sqlite:///{world.root / 'decisions.db'}")
    (outlook,) = expected["partitions"]
    found = site(world)
    log = text_of(found, "/log/orders/0")
    assert f"next round: {outlook['reason']}" in log
    assert f"old values: {outlook['erased_by']['why']}" in log
    assert f"as of offset {outlook['told_from']} or later" in log
    assert f"tombstones and markers: {outlook['tombstone_dates']['why']}" in log
    assert "no date; " in text_of(found, "/partitions")


def region_sizes(found: Site) -> dict[str, int]:
    """Return the bytes of each region as the terminal shows them."""
    (shown,) = found.document("/log/orders/0.json")["partitions"]
    sizes = {each["name"]: each["bytes"] for each in shown["regions"] if each["bytes"]}
    assert {"clean", "margin"} <= set(sizes)
    return sizes


def test_what_is_served_and_what_is_hidden_are_two_lines(world: AttachedWorld) -> None:
    compacted(world)
    found = site(world)
    overview = text_of(found, "/partitions?rows=roomy")
    assert 2 == overview.count('<svg class="strip"')
    for text in (overview, text_of(found, "/log/orders/0")):
        for name, size in region_sizes(found).items():
            assert f"{name} {format_bytes(size)}" in text
        assert "margin: the newest segments" in text
        assert "unstable: not replicated" not in text
        assert "hidden: in the remote tier, and not served" in text
    log = text_of(found, "/log/orders/0")
    assert "In the remote tier and not served" in log
    assert "served, compacted" in log
    assert "served, a broker's" in log
    # A part of each strip leads to a row of its own, a replaced segment to another than the live.
    for number in re.findall(r'<a href="#s(\d+)">', log):
        assert 1 == log.count(f'<tr id="s{number}">')
    assert "clean to 20" in log


def test_the_compactor_and_the_waits_are_shown(world: AttachedWorld) -> None:
    compacted(world)
    log = text_of(site(world), "/log/orders/0")
    assert "epoch 1; held by process" in log
    assert "in grace: 2 replaced segments" in log
    assert "the grace counts from then" in log
    assert "clean up to offset 20; 2 replaced segments in grace" in log


def test_a_hold_is_shown_also_before_the_first_round(world: AttachedWorld) -> None:
    world.clock.advance(NOW_MS - world.clock.now_ms())
    holds = AttachedHolds(
        cast(HeldCluster, world.cluster), world.log(), cast(RemoteLayout, world.tier), world.clock
    )
    holds.add([(AttachedName(CLUSTER_ID, PARTITION), TERMS)], "audit", HoldPoint(), 3_600_000)
    log = text_of(site(world), "/log/orders/0")
    assert "hold audit: not cleaned past 30 until" in log
    assert "no process has compacted it yet, by this decision log" in log
    compacted(world)
    assert "hold audit: not cleaned past 30 until" in text_of(site(world), "/log/orders/0")


def test_without_a_decision_log_brokers_alone_are_shown(world: AttachedWorld) -> None:
    compacted(world)
    found = site(world, is_asked=False)
    assert "not attached" in text_of(found, "/")
    page = text_of(found, "/log/orders/0")
    assert "no decision log that was asked attached it" in page
    # Options are for the command line: commands have them, and no sentence.
    assert " --" not in re.sub(
        r"(?s)<!--.*?-->|<section aria-labelledby=\"h-commands\".*", "", page
    )
    assert without_time(printed(world)) == without_time(found.document("/overview.json"))


def test_a_partition_that_waits_names_the_groups(world: AttachedWorld) -> None:
    publisher = world.claim()
    publisher.log.set_paused(publisher.held, is_paused=True)
    publisher.close()
    found = site(world)
    assert "paused" in text_of(found, "/")
    assert "keeplast pause --resume" in text_of(found, "/log/orders/0")


def test_a_hole_comes_before_everything(world: AttachedWorld) -> None:
    world.expire(world.served()[1])
    world.cluster.log = replace(world.cluster.log, start=0)
    found = site(world, is_asked=False)
    text = text_of(found, "/")
    assert '<span class="state s-holes">holes</span>' in text
    assert "nothing serves offsets 10 to 19" in text
    work = text_of(found, "/work")
    assert "nothing serves offsets 10 to 19" in work
    assert "keeplast verify" in work
    assert "Nothing is skipped, and nothing fails." not in work
    (trouble,) = found.document("/work.json")["troubles"]
    assert ("orders", 0, "holes") == (trouble["topic"], trouble["partition"], trouble["state"])


def test_the_settings_of_an_attached_topic_have_their_origin_and_their_trade_off(
    world: AttachedWorld,
) -> None:
    compacted(world)
    store = f"sqlite:///{world.root / 'decisions.db'}"
    with watcher_of(store, world.clock, min_cleanable_dirty_ratio="0.25") as looking:
        found = Site(FixedSource(looking.view()))
    log = text_of(found, "/log/orders/0")
    assert '<th scope="row">min.cleanable.dirty.ratio</th><td data-label="Value">0.25' in log
    assert "the cluster, topic" in log
    rows = found.document("/log/orders/0/settings.json")["settings"]
    (ratio,) = [each for each in rows if each["key"] == "min.cleanable.dirty.ratio"]
    assert ("0.25", False) == (ratio["value"], ratio["is_default"])
    work = text_of(found, "/work")
    assert "Throttle and budgets" in work
    assert "log.cleaner.io.max.bytes.per.second" in work


def test_what_brokers_alone_have_is_a_line_of_its_own(world: AttachedWorld) -> None:
    compacted(world)
    assert "On brokers alone, by offsets" not in text_of(site(world), "/log/orders/0")
    world.cluster.log = replace(world.cluster.log, end=60)
    log = text_of(site(world), "/log/orders/0")
    assert "On brokers alone, by offsets" in log
    assert 'aria-label="brokers only: offsets 30 to 59"' in log
    assert 'x="50.0%" y="0" width="50.0%"' in log


def test_a_loop_says_why_a_partition_waits(world: AttachedWorld) -> None:
    compacted(world)
    with watcher(world) as looking:
        view = looking.view()
    at = existing(view.attached)
    facts = PartitionFacts(
        at.partitions[0].partition, Path("orders-0"), State.REFUSED, "retention is set"
    )
    snapshot = Snapshot(view.place, START_MS, START_MS, 1, 1, (facts,))
    found = Site(FixedSource(replace(view, snapshot=snapshot)))
    for path in ("/", "/log/orders/0"):
        text = text_of(found, path)
        assert "refused" in text
        assert "retention is set" in text


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_a_loop_knows_and_what_is_drawn_do_not_contradict(
    world: AttachedWorld, is_asked: bool
) -> None:
    compacted(world)
    with watcher(world, is_asked=is_asked) as looking:
        view = looking.view()
    assert view.attached is not None
    (entry,) = view.attached.partitions
    dirty = LogFigures(0, CleanableRange(30, 0, 500), 0, 0, None)
    if is_asked:
        entry = replace(entry, state=State.ELIGIBLE, reason="due: copied since", looked=dirty)
    clean = replace(dirty, cleanable=CleanableRange(30, 500, 0))
    reason = "nothing to clean: all that was copied is clean"
    facts = PartitionFacts(entry.partition, Path("x"), State.NOT_DUE, reason, figures=clean)
    view = replace(
        view, snapshot=Snapshot(view.place, START_MS, START_MS, 1, 1, (facts,)),
        attached=dataclasses.replace(view.attached, partitions=(entry,)),
    )  # fmt: skip
    log = text_of(Site(FixedSource(view)), "/log/orders/0")
    # All is of one look; of one that the look does not know as attached, the page says so.
    words = "is clean; what is drawn is of a look before that"
    assert (is_asked, not is_asked) == ("due: copied since" in log, words in log)
    assert "no process compacts it" not in log


def test_looking_changes_nothing(world: AttachedWorld) -> None:
    compacted(world)
    before = (list(world.cluster.values), dict(world.tier.own), set(world.tier.segments))
    rows = world.log().partitions("a-cluster")
    site(world)
    after = (list(world.cluster.values), dict(world.tier.own), set(world.tier.segments))
    assert before == after
    assert rows == world.log().partitions("a-cluster")


def test_a_decision_log_that_is_not_there_is_not_made(world: AttachedWorld) -> None:
    path = world.root / "nothing.db"
    with pytest.raises(InvalidError, match="there is no such decision log"):
        watcher_of(f"sqlite:///{path}", world.clock)
    assert not path.exists()


def test_metadata_that_brokers_cannot_follow_is_reported(world: AttachedWorld) -> None:
    world.cluster.values.append(b"\xff")
    with pytest.raises(RefusedError, match="place check"), watcher(world, is_asked=False):
        raise AssertionError("it looks")


def test_with_a_loop_a_first_look_that_fails_is_shown_on_the_pages(world: AttachedWorld) -> None:
    kept = list(world.cluster.values)
    world.cluster.values.append(b"\xff")
    looking = watcher_of(None, world.clock, endures=True)
    looking.pause_seconds = 0.0
    with looking:
        found = Site(FixedSource(looking.view()))
        assert "place check" in text_of(found, "/")
        assert 503 == found.get("/healthz").status_code
        world.cluster.values[:] = kept
        wait_until(lambda: looking.view().attached is not None)
        assert looking.view().problem is None
