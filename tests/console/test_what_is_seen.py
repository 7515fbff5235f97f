"""What a person sees in a browser is what the command line says of the same logs."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import keeplast as package
from keeplast.cleaner.log_order import Choice
from keeplast.clock import SystemClock
from keeplast.inspect.stages import scan_headers
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition, range_text
from keeplast.model.text import format_bytes, format_count
from keeplast.service.console.anatomy import ROUNDS_MAX
from keeplast.service.console.pages import log_url
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import brief, deadline, is_wrong, moment, sentence_of
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import state_words
from tests.console.conftest import PARTITIONS, Served, printed, serving
from tests.support import called
from tests.support.browser import Browser, cells
from tests.support.console_site import ACTOR, VIEWER
from tools.demo_console import LOGS

pytestmark = pytest.mark.console
SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


def status(root: Path, now_ms: int) -> list[dict[str, Any]]:
    """Return what the command line says of each partition, in its order."""
    found = printed("status", root, "--now-ms", now_ms, "--tombstones", "skip")
    partitions: list[dict[str, Any]] = found["partitions"]
    return partitions


def name(each: dict[str, Any]) -> str:
    return f"{each['topic']}-{each['partition']}"


def size(each: dict[str, Any]) -> int:
    found: int = each["clean_bytes"] + each["cleanable_bytes"] + each["uncleanable_bytes"]
    return found


def shown_reason(each: dict[str, Any]) -> str:
    """Return the reason without the option that a page has no use for."""
    reason: str = each["reason"]
    return re.split("; (?:to go past this: )?clean --", reason)[0]


def test_the_overview_says_what_status_says(
    browser: Browser, served: Served, demo: Path, now_ms: int
) -> None:
    browser.open(served.url(PARTITIONS))
    expected = status(demo, now_ms)
    assert len(LOGS) == len(expected)
    rows = cells(browser, "main")
    assert [name(each) for each in expected] == [row[0] for row in rows]
    for each, row in zip(expected, rows, strict=True):
        assert row[1].startswith(state_words(each["state"]))
        reason = shown_reason(each)
        assert (brief(reason) if is_wrong(each["state"]) else reason) in row[1]
        if each["ratio"] is None:
            continue
        assert [format_bytes(size(each)), format_bytes(each["cleanable_bytes"])] == [
            row[3],
            row[4].partition("\n")[0],
        ]
        assert f"{each['ratio']:.3f} of closed segments; limit 0.5" in " ".join(row[2].split())
        zones = {"clean": each["clean_bytes"], "dirty": each["cleanable_bytes"]}
        for zone, count in zones.items():
            assert (f"{zone} {format_bytes(count)}" in row[2]) is bool(count), row[2]
        due = deadline(each["deadline_ms"], now_ms)
        gone = moment(each["erased_by"]["by_ms"], now_ms)
        for cell, shown in ((row[5], due), (row[6], gone)):
            assert shown.text in cell
            assert shown.minute in " ".join(cell.split())
        if each["last_round"] is not None:
            assert format_bytes(each["last_round"]["bytes_written"]) in row[7]


def test_a_logs_page_says_what_status_says(
    browser: Browser, served: Served, demo: Path, now_ms: int
) -> None:
    for each in status(demo, now_ms):
        browser.open(served.url(f"/log/{each['topic']}/{each['partition']}"))
        assert name(each) == browser.text("h1")
        badge = browser.text("h1 + p .state")
        assert badge.startswith(state_words(each["state"]))
        assert f"{badge} {shown_reason(each)}" in browser.text("main")
        assert "--despite dirty-ratio" not in browser.text("h1 + p")
        if each["ratio"] is None:
            continue
        marks = [
            f"log start {each['log_start']}", f"first dirty {each['first_dirty']}",
            f"cleanable to {each['bound']}", f"log end {each['log_end']}",
        ]  # fmt: skip
        assert ", ".join(marks) == browser.one("svg.marks").get_attribute("aria-label")
        assert marks == browser.script(
            "return [...document.querySelectorAll('svg.marks text')].map(t => t.textContent)"
        )
        segments = cells(browser, "section[aria-labelledby=h-segments]")
        assert segments
        parts = browser.all("svg.strip.tall a")
        assert len(segments) == len(parts)
        assert range_text(int(segments[-1][0]), each["log_end"]) == segments[-1][2]
        known = printed("config", demo, "--effective", "--topic", each["topic"])
        shown = cells(browser, "section[aria-labelledby=h-settings]")
        assert {"cleanup.policy", "min.cleanable.dirty.ratio"} <= {row[0] for row in shown}
        assert {row[0] for row in shown} <= {setting["key"] for setting in known["settings"]}
        origins = {row[0]: row[2] for row in shown}
        for setting in known["settings"]:
            if setting["key"] in origins:
                assert (origins[setting["key"]] == "default") is (setting["source"] is None)


def test_the_document_of_a_page_is_the_command_lines(
    browser: Browser, served: Served, demo: Path, now_ms: int
) -> None:
    for path, more in (("/", ()), ("/log/orders/1", ("--topic", "orders", "--partition", 1))):
        browser.open(served.url(path))
        links = {each.text: each.get_attribute("href") for each in browser.all("footer a")}
        browser.open(str(links["This page as JSON"]))
        expected = printed("status", demo, "--now-ms", now_ms, "--tombstones", "skip", *more)
        assert expected == json.loads(browser.text("body"))


def test_the_work_page_has_the_receipts_and_what_is_set_aside(
    browser: Browser, served: Served, demo: Path, seen: ConsoleView, now_ms: int
) -> None:
    browser.open(served.url("/work"))
    aside = [each for each in status(demo, now_ms) if each["set_aside"] is not None]
    rows = cells(browser, "section[aria-labelledby=h-trouble]")
    assert [name(each) for each in aside] == [row[0] for row in rows]
    (mark,), (row,) = [each["set_aside"] for each in aside], rows
    assert sentence_of(mark["reason"]) == row[2]
    assert f"{mark['path']} at byte {mark['position']}" == row[3]
    assert f"cp -a BACKUP/{row[0]} {demo}/" in browser.text("tr.todo")
    receipts = cells(browser, "section[aria-labelledby=h-receipts]")
    assert len(seen.receipts) == len(receipts)
    newest = seen.receipts[-1]
    assert str(newest.partition) == receipts[0][1]
    for line, row in zip(reversed(seen.receipts), receipts, strict=True):
        if line.round is not None:
            assert f"{format_count(line.round.records_read)} to" in row[4]
    some = next(each for each in seen.receipts if each.partition is not None)
    assert some.partition is not None
    browser.open(served.url(log_url(some.partition)))
    rounds = [each for each in seen.receipts if each.partition == some.partition]
    assert min(len(rounds), ROUNDS_MAX) == len(cells(browser, "section[aria-labelledby=h-rounds]"))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a brokers' log in it, cleaned, and a replaced segment that waits."""
    shutil.copytree(SAMPLE, tmp_path / "data")
    url = called.copied(tmp_path / "data", tmp_path, "--topic", "orders")
    printed("clean", url, "--despite", "dirty-ratio")
    return url


@pytest.fixture
def tiers(store: str) -> Iterator[Served]:
    """A console that only looks at the store."""
    from keeplast.api.stored_logs import StoredLogs
    from keeplast.config.layers import ALL_PARTITIONS
    from keeplast.service.place_loop import ViewTerms

    clock = SystemClock()
    seen = StoredLogs(store).view(ALL_PARTITIONS, ViewTerms(clock=clock))
    assert seen.find is not None
    with seen.watcher as watcher:
        view = watcher.view()
    searches = KeySearches(seen.find, clock, SearchLimits(), seen.scan)
    with serving(view, runs=False, searches=searches) as found:
        yield found


def test_a_store_is_shown_as_tier_status_says(browser: Browser, tiers: Served, store: str) -> None:
    (expected,) = printed("status", store)["partitions"]
    browser.open(tiers.url(PARTITIONS))
    (row,) = cells(browser, "main")
    assert [name(expected), format_bytes(expected["bytes"])] == [row[0], row[3]]
    assert f"{expected['ratio']:.3f} of what is in object storage" in " ".join(row[2].split())
    browser.open(tiers.url(f"/log/{expected['topic']}/{expected['partition']}"))
    known = browser.text("section[aria-labelledby=h-known]")
    assert f"epoch {expected['leader_epoch']}" in known
    assert f"{format_count(expected['orphans'])} replaced segments" in known
    segments = cells(browser, "section[aria-labelledby=h-segments]")
    assert [str(each["base_offset"]) for each in expected["segments"]] == [
        each[0] for each in segments
    ]
    assert [each["place"] for each in expected["segments"]] == [each[4] for each in segments]
    browser.open(tiers.url("/work"))
    assert "Nothing runs here" in browser.text("main")


def enter(browser: Browser, console: Served) -> None:
    """Come in with the viewer's token."""
    browser.open(console.url("/enter"))
    browser.one("#token").send_keys(f"{VIEWER}\n")
    browser.wait(lambda: browser.address == console.url("/"))


def read_headers(browser: Browser, console: Served, path: str) -> list[Sequence[str]]:
    """Have the batch headers of a log read by its button; returns the table of segments."""
    browser.open(console.url(path))
    browser.click(f"form[action='{path}/headers'] button")
    browser.wait(lambda: bool(browser.all("#h-headers")))
    return cells(browser, "section[aria-labelledby=h-headers]")


def test_batch_headers_are_read_by_a_button_and_shown_as_status_shows_them(
    browser: Browser, served: Served, demo: Path, now_ms: int
) -> None:
    browser.open(served.url("/log/customers/0"))
    assert [] == browser.all("form[action$='/headers']")
    enter(browser, served)
    rows = read_headers(browser, served, "/log/customers/0")
    (expected,) = printed(
        "status", demo, "--now-ms", now_ms, "--tombstones", "headers", "--topic", "customers"
    )["partitions"]
    stages = browser.text("section[aria-labelledby=h-stages]")
    for name in ("retained", "removable"):
        assert format_count(expected["tombstones"][name]) in stages
    found = scan_headers(demo / "customers-0", LocalFiles(), now_ms, lambda _: None).segments
    assert [str(base) for base in found] == [row[0] for row in rows]
    assert [format_count(each.batches) for each in found.values()] == [row[1] for row in rows]
    shown = [", ".join(f"{n} {name}" for name, n in each.codecs.items()) for each in found.values()]
    assert shown == [row[3] for row in rows]
    assert [] == browser.findings()
    assert [] == browser.complaints()


def test_batch_headers_of_a_store_are_read_by_a_button_too(
    browser: Browser, tiers: Served, store: str
) -> None:
    enter(browser, tiers)
    rows = read_headers(browser, tiers, "/log/orders/0")
    (expected,) = printed("status", store)["partitions"]
    assert [str(each["base_offset"]) for each in expected["segments"]] == [row[0] for row in rows]
    assert all(row[3] for row in rows)


def find_key(browser: Browser, topic: str, key: str) -> None:
    """Fill in the form of the page that is shown, and wait for the answer."""
    for name, text in (("topic", topic), ("key", key)):
        field = browser.one(f"form.keys input[name={name}]")
        field.clear()
        field.send_keys(text)
    browser.click("form.keys button:not([formaction])")
    browser.wait(lambda: bool(browser.all("#h-found")))


@pytest.mark.parametrize("has_script", [True, False], ids=["script", "none"])
def test_a_key_is_found_as_explain_says_and_stays_out_of_the_address(
    browser: Browser, served: Served, demo: Path, now_ms: int, has_script: bool
) -> None:
    browser.run_script(allowed=has_script)
    key = "key-00041"
    browser.open(served.url("/keys"))
    assert [] == browser.all("form.keys")
    enter(browser, served)
    browser.open(served.url("/keys"))
    find_key(browser, "customers", key)
    assert served.url("/keys") == browser.address
    expected = printed("explain", demo, key, "--topic", "customers", "--now-ms", now_ms)
    (partition,) = expected["partitions"]
    rows = cells(browser, "section[aria-labelledby=h-found]")
    assert len(partition["records"]) > 1
    assert [str(each["offset"]) for each in partition["records"]] == [row[0] for row in rows]
    assert "value-" not in browser.text("main")
    # What was asked for by POST is not taken again when something happens.
    served.live.chosen((Choice(TopicPartition("orders", 0), "overdue"),))
    if has_script:
        browser.wait(lambda: "cleaning orders-0" in browser.text("#live"))
    assert [row[0] for row in rows] == [
        row[0] for row in cells(browser, "section[aria-labelledby=h-found]")
    ]
    assert [] == browser.complaints()


HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


def test_text_of_strangers_runs_nowhere(browser: Browser, seen: ConsoleView) -> None:
    assert seen.status is not None
    strange = PartitionStatus(TopicPartition(HOSTILE, 0), State.UNREADABLE, HOSTILE)
    view = replace(
        seen,
        place=HOSTILE,
        problem=HOSTILE,
        status=dataclasses.replace(seen.status, partitions=(strange,)),
    )
    with serving(view) as console:
        for path in (
            "/",
            "/work",
            "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
            log_url(strange.partition),
        ):
            browser.open(console.url(path))
            assert HOSTILE in browser.text("body")
            assert [] == browser.all("img, main script")
            assert [] == browser.complaints()


def test_the_printed_link_opens_the_console_and_leaves_no_token(
    browser: Browser, served: Served
) -> None:
    browser.open(served.url(f"/enter#{ACTOR}"))
    browser.wait(lambda: browser.address == served.url("/"))
    assert 1 == len(browser.all("form[action='/leave']"))
    assert "" == browser.script("return document.cookie")
    browser.open(served.url("/work"))
    browser.click("form[action='/do/pause'] button")
    assert served.source.control is not None
    browser.wait(lambda: served.source.control is not None and served.source.control.has_wishes)
    (wish,) = served.source.control.take()
    assert ("pause", "console, 127.0.0.1") == (wish.deed.value, wish.by)
    browser.open(served.url("/work"))
    assert "Paused" in browser.text("main")
    browser.click("form[action='/leave'] button")
    browser.wait(lambda: browser.address == served.url("/enter"))
    browser.open(served.url("/work"))
    assert [] == browser.all("form[action='/do/resume']")


def test_the_printed_link_is_taken_also_where_the_page_is_open(
    browser: Browser, served: Served
) -> None:
    browser.open(served.url("/enter"))
    browser.script(f"location.hash = '{ACTOR}'")
    browser.wait(lambda: browser.address == served.url("/"))
    assert 1 == len(browser.all("form[action='/leave']"))


def test_a_wrong_token_is_an_error_on_the_page(browser: Browser, served: Served) -> None:
    browser.open(served.url("/enter"))
    browser.one("#token").send_keys("wrong\n")
    browser.wait(lambda: "no token of this console" in browser.text())
    browser.one("#token").send_keys(f"{VIEWER}\n")
    browser.wait(lambda: browser.address == served.url("/"))
    assert [] == browser.all("form[action^='/do/']")
