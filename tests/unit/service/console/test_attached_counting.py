"""Batch headers of what brokers serve of an attached topic, read when somebody asks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from keeplast.api.attached_logs import AttachedLogs
from keeplast.cli.main import app
from keeplast.clock import Clock
from keeplast.config.layers import PartitionChoice
from keeplast.errors import ConflictError, InvalidError
from keeplast.format.message_set import read_batches
from keeplast.model.partition import TopicPartition
from keeplast.service.console.searches import HeaderScanner, KeySearches, SearchLimits
from keeplast.service.place_loop import PlaceView, ViewTerms
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import commanded_world
from tests.support.console_site import NOW_MS, VIEWER, FixedSource, Site
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock
from tests.support.verified_world import VerifiedWorld

NAME = TopicPartition(PARTITION.topic, PARTITION.partition)
HEADERS = f"/log/{PARTITION.topic}/0/headers"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    with (
        pytest.MonkeyPatch.context() as patch,
        commanded_world(tmp_path_factory.mktemp("world"), patch) as made,
    ):
        yield made


def view_of(clock: Clock, *partitions: int) -> PlaceView:
    scope = PartitionChoice(topics=(PARTITION.topic,), partitions=partitions)
    return AttachedLogs("broker:9092", storage="local:/x").view(scope, ViewTerms(clock=clock))


def scanner(*partitions: int) -> HeaderScanner:
    scan = existing(view_of(ManualClock(NOW_MS), *partitions).scan)
    return scan


def site_of(limits: SearchLimits | None = None) -> Site:
    clock = ManualClock(NOW_MS)
    seen = view_of(clock)
    assert seen.find is not None
    with seen.watcher as watcher:
        view = watcher.view()
    searches = KeySearches(seen.find, clock, limits or SearchLimits(), seen.scan)
    return Site(FixedSource(view), searches=searches, token=VIEWER)


def read(site: Site, path: str = HEADERS) -> Any:
    return site.post(path, {"form": site.form_token("/keys")})


def test_codecs_are_counted_of_each_segment_that_is_served(world: VerifiedWorld) -> None:
    before = world.tier.ids()
    found = read(site_of(), f"{HEADERS}.json").json()
    (partition,) = found["partitions"]
    counted = {each["base_offset"]: each["codecs"] for each in partition["headers"]}
    expected = {
        each.start_offset: dict(
            Counter(batch.codec.name.lower() for batch in read_batches(world.tier.log_of(each)))
        )
        for each in world.tier.served()
    }
    assert expected == counted
    assert len({name for each in expected.values() for name in each}) > 1
    page = read(site_of()).text
    assert all(f">{base}<" in page for base in expected)
    assert before == world.tier.ids()


def test_the_document_is_that_of_status(world: VerifiedWorld) -> None:
    arguments = ["status", "kafka://broker:9092", "--topic"]
    printed = json.loads(CliRunner().invoke(app, [*arguments, PARTITION.topic, "--json"]).stdout)
    found = read(site_of(), f"{HEADERS}.json").json()
    (partition,) = found["partitions"]
    more = {each: partition.pop(each) for each in ("tombstones", "markers", "headers")}
    # What is printed is as of now, the page as of its clock.
    assert printed.pop("place") == "kafka://broker:9092"
    assert (NOW_MS, "kafka://broker:9092") == (
        found.pop("now_ms"), found.pop("place"),
    )  # fmt: skip
    del printed["now_ms"]
    assert printed == found
    assert all(more.values())


def test_it_has_a_budget_and_needs_a_token(world: VerifiedWorld) -> None:
    answer = read(site_of(SearchLimits(bytes_max=10)))
    assert (422, True) == (answer.status_code, "--search-bytes" in answer.text)
    site = site_of()
    site.cookies.clear()
    assert 401 == site.post(HEADERS, {"form": "x"}).status_code


def test_a_hidden_log_is_not_read(world: VerifiedWorld) -> None:
    scan = scanner(7)
    for name in (NAME, TopicPartition("payments", 0)):
        with pytest.raises(InvalidError, match="not shown here"):
            scan(name, NOW_MS, progressed=lambda _: None)


def test_a_segment_that_goes_meanwhile_is_reported(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, commanded_world(tmp_path, patch) as made:
        scan = scanner()
        cast(Any, made.tier.layout).delete(made.tier.served()[-1])
        with pytest.raises(ConflictError, match="ask again"):
            scan(NAME, NOW_MS, progressed=lambda _: None)
