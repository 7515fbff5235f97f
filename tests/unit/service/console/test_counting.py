"""Batch headers of a log, read when somebody asks: codecs, horizons, tombstones by stage."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from typer.testing import CliRunner

from keeplast.api.stored_logs import StoredLogs
from keeplast.cli.main import app
from keeplast.config.layers import ALL_PARTITIONS
from keeplast.errors import InvalidError, StoppedError
from keeplast.format.compression import Codec
from keeplast.inspect.stages import scan_headers
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.service.console import acting
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.place_loop import ViewTerms
from tests.support import called
from tests.support.console_site import (
    NOW_MS,
    VIEWER,
    FixedSource,
    Site,
    directory_view,
    searches_in,
)
from tests.support.manual_clock import ManualClock
from tests.support.small_log import batch, write_log

SAMPLE = Path(__file__).parents[4] / "src" / "keeplast" / "samples" / "broker-4.3.0"
HEADERS = "/log/orders/0/headers"


def site_of(root: Path, limits: SearchLimits | None = None) -> Site:
    return Site(FixedSource(directory_view(root)), searches=searches_in(root, limits), token=VIEWER)


def read(site: Site, path: str = HEADERS) -> Any:
    return site.post(path, {"form": site.form_token("/keys")})


def test_codecs_are_counted_a_segment(root: Path) -> None:
    log = root / "orders-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[: len(batch(0, b"a", b"1"))] + batch(1, b"b", b"2", Codec.LZ4))
    found = scan_headers(root / "orders-0", LocalFiles(), NOW_MS, lambda _: None)
    assert {0: {"lz4": 1, "none": 1}, 2: {"none": 1}, 3: {"none": 1}} == {
        base: each.codecs for base, each in found.segments.items()
    }
    text = " ".join(html.unescape(read(site_of(root)).text).split())
    assert "1 lz4, 1 none" in text
    assert "batches with tombstones" in text
    assert "transaction markers" in text


def test_the_document_is_that_of_status(root: Path) -> None:
    arguments = ["status", str(root), "--topic", "orders", "--partition", "0", "--json"]
    arguments += ["--tombstones", "headers", "--now-ms", str(NOW_MS)]
    expected = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert expected["partitions"][0]["tombstones"] is not None
    found = read(site_of(root), f"{HEADERS}.json").json()
    headers = found["partitions"][0].pop("headers")
    assert expected == found
    scanned = scan_headers(root / "orders-0", LocalFiles(), NOW_MS, lambda _: None).segments
    assert [{"base_offset": base} | asdict(each) for base, each in scanned.items()] == headers


def test_the_page_leads_to_its_document(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "SEGMENTS_MAX", 1)
    page = read(site_of(root)).text
    assert f'<form class="deed" method="post" action="{HEADERS}.json">' in page
    assert "… and 2 more; the JSON has them." in page
    assert "as JSON" in page


def test_a_horizon_that_a_round_stamped_is_shown(tmp_path: Path) -> None:
    write_log(tmp_path, "t-0", {0: [(b"a", b"1"), (b"a", None)], 2: [(b"b", b"2")], 3: []})
    config = ["--config", "cleanup.policy=compact", "--topic", "t"]
    arguments = ["clean", str(tmp_path), "--runner", "local", "--cores", "1", *config]
    called.run(*arguments, code=0)
    log, files = tmp_path / "t-0", LocalFiles()
    first = scan_headers(log, files, 0, lambda _: None).segments[0]
    assert 1 == first.stamped
    assert first.first_horizon_ms == first.last_horizon_ms
    horizon_ms = first.first_horizon_ms or 0
    for now_ms, expected in ((horizon_ms - 1, (1, 0)), (horizon_ms, (0, 1))):
        found = scan_headers(log, files, now_ms, lambda _: None).stages.tombstones
        assert expected == (found.retained, found.removable)


def test_it_is_not_read_without_a_token(source: FixedSource, root: Path) -> None:
    site = Site(source, searches=searches_in(root))
    assert "Read them now" not in site.get("/log/orders/0").text
    for path in (HEADERS, f"{HEADERS}.json"):
        assert 401 == site.post(path, {"form": "x"}).status_code
    site.enter(VIEWER)
    assert "Read them now" in site.get("/log/orders/0").text
    for path in (HEADERS, f"{HEADERS}.json"):
        assert 403 == site.post(path, {"form": "0" * 64}).status_code
        assert 403 == site.post(path, {"form": "x"}, origin="http://elsewhere").status_code
        assert 405 == site.get(path).status_code
        assert 200 == read(site, path).status_code


@pytest.mark.parametrize(
    ("path", "code"),
    [("/log/orders/7/headers", 404), ("/log/none/0/headers", 404), ("/log/orders/x/headers", 404),
     ("/log/broken/0/headers", 400)],
)  # fmt: skip
def test_a_missing_log_is_not_read(root: Path, path: str, code: int) -> None:
    assert code == read(site_of(root), path).status_code


def test_it_has_a_budget(root: Path) -> None:
    answer = read(site_of(root, SearchLimits(bytes_max=10)))
    assert (422, True) == (answer.status_code, "--search-bytes" in answer.text)


def test_a_log_that_is_gone_meanwhile_is_reported(root: Path) -> None:
    site = site_of(root)
    for each in (root / "orders-0").iterdir():
        each.unlink()
    (root / "orders-0").rmdir()
    answer = read(site)
    assert (400, True) == (answer.status_code, "look again" in answer.text)


def test_every_codec_and_marker_of_a_broker_is_known() -> None:
    found = scan_headers(SAMPLE / "orders-0", LocalFiles(), NOW_MS, lambda _: None)
    names = {name for each in found.segments.values() for name in each.codecs}
    assert names <= {each.name.lower() for each in Codec}
    assert found.stages.markers.unstamped


@pytest.fixture
def store(tmp_path: Path) -> StoredLogs:
    """A store with a broker's log in it."""
    url = called.copied(SAMPLE, tmp_path, "--topic", "orders")
    return StoredLogs(url)


def searches_of(place: StoredLogs, limits: SearchLimits | None = None) -> KeySearches:
    clock = ManualClock(NOW_MS)
    view = place.view(ALL_PARTITIONS, ViewTerms(clock=clock))
    assert view.find is not None
    return KeySearches(view.find, clock, limits or SearchLimits(), view.scan)


def site_of_store(place: StoredLogs, limits: SearchLimits | None = None) -> Site:
    clock = ManualClock(NOW_MS)
    with place.view(ALL_PARTITIONS, ViewTerms(clock=clock)).watcher as watcher:
        view = watcher.view()
    return Site(FixedSource(view), searches=searches_of(place, limits), token=VIEWER)


def test_headers_of_a_store_are_those_of_its_objects(store: StoredLogs, tmp_path: Path) -> None:
    site = site_of_store(store)
    assert "Read them now" in site.get("/log/orders/0").text
    document = read(site, f"{HEADERS}.json").json()
    assert [] == document["given_up"]
    (found,) = document["partitions"]
    done = CliRunner().invoke(app, ["status", store.store, "--erased-by", "--json"])
    (expected,) = json.loads(done.stdout)["partitions"]
    assert expected == {name: found[name] for name in expected}
    out = tmp_path / "out"
    called.run("export", store.store, "--as", "log", "--to", str(out), code=0)
    exported = scan_headers(out / "orders-0", LocalFiles(), NOW_MS, lambda _: None)
    headers = {each.pop("base_offset"): each for each in found["headers"]}
    assert {b: asdict(s) for b, s in exported.segments.items() if s.batches} == headers
    assert [each["base_offset"] for each in expected["segments"]] == list(headers)
    assert exported.stages.markers.unstamped == found["markers"]["without_horizon"]
    text = " ".join(html.unescape(read(site).text).split())
    for each in headers.values():
        assert ", ".join(f"{count} {name}" for name, count in each["codecs"].items()) in text


def test_headers_of_a_store_have_the_same_budget_and_end_with_the_connection(
    store: StoredLogs,
) -> None:
    answer = read(site_of_store(store, SearchLimits(bytes_max=10)))
    assert (422, True) == (answer.status_code, "--search-bytes" in answer.text)
    searches = searches_of(store)
    with pytest.raises(StoppedError, match="has closed the connection"):
        searches.scan(TopicPartition("orders", 0), 1, lambda: True)
    with pytest.raises(InvalidError, match="look again"):
        searches.scan(TopicPartition("orders", 7), 1, lambda: False)


def test_an_object_that_is_damaged_is_named(store: StoredLogs, tmp_path: Path) -> None:
    site = site_of_store(store)
    log = sorted((tmp_path / "objects").rglob("*.log"))[0]
    log.write_bytes(b"\xff" * log.stat().st_size)
    answer = read(site)
    assert (503, True) == (answer.status_code, log.name in answer.text), answer.text
