"""By keyboard, in the dark, on a narrow screen, and for those who are read to."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from keeplast.service.console import rendering
from tests.console.conftest import Served, printed
from tests.console.test_what_is_seen import find_key
from tests.support.browser import NARROW, WIDTH, Browser, cells
from tests.support.console_site import ACTOR, VIEWER

pytestmark = pytest.mark.console
PAGES = (
    "/",
    "/log/customers/0",
    "/log/prices/0",
    "/log/sessions/0",
    "/work",
    "/enter",
    "/?q=none",
    "/keys",
)
PRESSES_MAX = 60


def walk(browser: Browser, until: str) -> list[str]:
    """Press the tab key until something whose name begins so has the focus; returns all names."""
    names = []
    for _ in range(PRESSES_MAX):
        browser.press(Keys.TAB)
        names.append(browser.focused)
        assert browser.has_outline(), names
        if names[-1].startswith(until):
            return names
    raise AssertionError(f"the keyboard does not get to {until}: {names}")


def test_the_keyboard_reaches_a_log_from_the_overview(browser: Browser, served: Served) -> None:
    browser.open(served.url("/"))
    names = walk(browser, "customers-0")
    assert [
        "To the content",
        "keeplast",
        "Overview",
        "Work",
        "Look up a record key",
        "JSON",
    ] == names[:6]
    assert {"q", "state", "sort", "Show"} <= set(names)
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.address.endswith("/log/customers/0"))


def test_the_first_key_leads_past_the_head(browser: Browser, served: Served) -> None:
    browser.open(served.url("/log/customers/0"))
    browser.press(Keys.TAB, Keys.ENTER)
    browser.wait(lambda: browser.address.endswith("#main"))
    browser.press(Keys.TAB)
    assert browser.script("return document.activeElement.closest('main') !== null")


def test_the_keyboard_goes_through_the_segments_of_a_strip(
    browser: Browser, served: Served
) -> None:
    browser.open(served.url("/log/customers/0"))
    segments = cells(browser, "section[aria-labelledby=h-segments]")
    assert len(segments) > 2
    walk(browser, segments[0][1])
    for index, segment in enumerate(segments):
        if index:
            browser.press(Keys.TAB)
        words = browser.focused
        assert words.startswith(f"{segment[1]}: segment {segment[0]}, offsets {segment[0]} to")
        assert segment[3] in words
        # A person sees what the focus is on, too.
        assert f"Selected segment: {words}" == browser.text("#segment")
        assert browser.has_outline()
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.address.endswith(f"#s{segments[-1][0]}"))
    assert segments[-1][0] in browser.text("tr:target")


def test_a_segment_under_the_pointer_is_told(browser: Browser, served: Served) -> None:
    browser.open(served.url("/log/customers/0"))
    first = browser.all("svg.strip.tall a")[0]
    browser.point_at(first)
    told = f"Selected segment: {first.get_attribute('aria-label')}"
    browser.wait(lambda: told == browser.text("#segment"))


@pytest.mark.parametrize("has_script", [True, False], ids=["script", "none"])
def test_a_key_is_found_by_the_keyboard_alone(
    browser: Browser,
    served: Served,
    demo: Path,
    now_ms: int,
    monkeypatch: pytest.MonkeyPatch,
    has_script: bool,
) -> None:
    # A page without script is made anew by itself, and the focus goes back to its beginning.
    monkeypatch.setattr(rendering, "RELOAD_SECONDS", 3600)
    browser.run_script(allowed=has_script)
    browser.open(served.url("/enter"))
    walk(browser, "token")
    browser.press(VIEWER, Keys.ENTER)
    browser.wait(lambda: browser.address == served.url("/") and bool(browser.all("tbody")))
    walk(browser, "Look up a record key")
    browser.press(Keys.ENTER)
    browser.wait(lambda: bool(browser.all("form.keys")))
    walk(browser, "topic")
    browser.press("customers")
    assert ["partition", "key"] == walk(browser, "key")
    told = printed("explain", demo, "key-00041", "--topic", "customers", "--now-ms", now_ms)
    (partition,) = told["partitions"]
    offsets = [str(each["offset"]) for each in partition["records"]]
    assert len(offsets) > 1
    browser.press("key-00041", Keys.ENTER)
    table = "section[aria-labelledby=h-found]"
    browser.wait(lambda: offsets == [row[0] for row in cells(browser, table)])
    assert served.url("/keys") == browser.address
    # And from the answer on to the log.
    walk(browser, "customers-0")
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.address.endswith("/log/customers/0"))
    assert [] == browser.complaints()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDTH, NARROW])
def test_nobody_is_shut_out(browser: Browser, served: Served, width: int, dark: bool) -> None:
    browser.emulate(dark=dark)
    browser.emulate_width(width)
    browser.open(served.url(f"/enter#{ACTOR}"))
    browser.wait(lambda: browser.address == served.url("/"))
    for path in PAGES:
        browser.open(served.url(path))
        page = browser.script("return getComputedStyle(document.body).backgroundColor")
        assert dark is (sum(map(int, page.strip("rgb()").split(","))) < 3 * 64)
        assert [] == browser.grave_findings(), path
        assert not browser.overflows(), path
        assert [] == browser.complaints(), path
    find_key(browser, "customers", "key-00041")
    assert [] == browser.grave_findings()
    assert not browser.overflows()


def test_colours_are_never_the_only_sign(browser: Browser, served: Served) -> None:
    browser.open(served.url("/log/customers/0"))
    for each in browser.all("svg.strip rect"):
        assert str(each.get_attribute("fill")).startswith("url(#p-")
    for each in browser.all("svg[role=img], svg[role=group]"):
        assert each.get_attribute("aria-label")
