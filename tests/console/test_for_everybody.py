"""By keyboard, in the dark, on a narrow screen, and for those who are read to."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from selenium.webdriver.common.keys import Keys

from keeplast.clock import utc_text
from keeplast.model.partition import TopicPartition
from keeplast.service.console import rendering
from tests.console.conftest import Served, printed
from tests.console.test_what_is_seen import find_key
from tests.support.browser import NARROW, WIDTH, Browser, cells
from tests.support.console_site import ACTOR, VIEWER, with_segments

pytestmark = pytest.mark.console
PAGES = (
    "/",
    "/?rows=roomy&sort=-size",
    "/partitions",
    "/topic/orders?rows=roomy",
    "/?q=colour:red",
    "/log/customers/0",
    "/log/prices/0",
    "/log/sessions/0",
    "/time",
    "/work",
    "/enter?next=/work",
    "/nothing",
    "/?q=none",
    "/keys",
    "/help",
    "/help/k806",
    "/find",
)
SCREENS = ((1440, 900), (NARROW, 844))
PRESSES_MAX, PRESSES_TO_A_LOG_MAX = 60, 8


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
    names = walk(browser, "sessions-0")
    assert [
        "To the content",
        "Overview",
        "Time",
        "Work",
        "Look up a record key",
    ] == names[:5]
    assert len(names) <= PRESSES_TO_A_LOG_MAX
    assert {"q", "Show", "Topic", "Round due by"} <= set(walk(browser, "customers-0"))
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
        assert words.startswith(f"{segment[1]}: segment {segment[0]}, {segment[2]}")
        assert segment[3] in words
        # A person sees what the focus is on, too.
        assert f"Selected segment: {words}" == browser.text("#segment")
        assert browser.has_outline()
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.address.endswith(f"#s{len(segments) - 1}"))
    assert segments[-1][0] in browser.text("tr:target")


def test_the_segment_under_the_pointer_is_read_aloud(browser: Browser, served: Served) -> None:
    browser.open(served.url("/log/customers/0"))
    first = browser.all("svg.strip.tall a")[0]
    browser.point_at(first)
    words = browser.script("return arguments[0].querySelector('title').textContent", first)
    sentence = f"Selected segment: {words}"
    browser.wait(lambda: sentence == browser.text("#segment"))


@pytest.mark.parametrize("has_script", [True, False], ids=["script", "none"])
def test_a_key_is_found_by_the_keyboard_alone(
    browser: Browser,
    served: Served,
    demo: Path,
    now_ms: int,
    monkeypatch: pytest.MonkeyPatch,
    has_script: bool,
) -> None:
    # A page without script is made again by itself, and the focus goes back to its beginning.
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
    answer = printed("explain", demo, "key-00041", "--topic", "customers", "--now-ms", now_ms)
    (partition,) = answer["partitions"]
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
def test_the_pages_shut_no_reader_out(
    browser: Browser, served: Served, width: int, dark: bool
) -> None:
    browser.emulate(dark=dark)
    browser.emulate_width(width)
    browser.open(served.url(f"/enter#{ACTOR}"))
    browser.wait(lambda: browser.address == served.url("/"))
    served.source.wishes.is_paused = True
    for path in PAGES:
        browser.open(served.url(path))
        page = browser.script("return getComputedStyle(document.body).backgroundColor")
        assert dark is (sum(map(int, page.strip("rgb()").split(","))) < 3 * 64)
        assert [] == browser.findings(), path
        assert not browser.overflows(), path
        assert [] == [each for each in browser.complaints() if "/nothing" not in each], path
    browser.open(served.url("/keys"))
    find_key(browser, "customers", "key-00041")
    assert [] == browser.findings()
    assert not browser.overflows()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_a_log_of_two_thousand_segments_stays_a_screen_and_is_not_fetched_again(
    browser: Browser, served: Served, width: int, height: int, dark: bool
) -> None:
    view = served.source.found
    served.source.show(
        with_segments(each, 2000) if each.partition == TopicPartition("customers", 0) else each
        for each in served.source.status.partitions
    )
    browser.emulate(dark=dark)
    browser.emulate_width(width, height)
    browser.open(served.url("/log/customers/0"))
    assert [] == browser.findings()
    assert not browser.overflows()
    # Two presses of a key, or a touch, lead to any segment: its page, and its row.
    browser.all("svg.strip.tall a")[30].send_keys(Keys.ENTER)
    browser.wait(lambda: "?page=51#s1" in browser.address)
    assert cells(browser, "section[aria-labelledby=h-segments]")[0][0] == "500000"
    section = "document.querySelector('section[aria-labelledby=h-segments]')"
    taken = browser.script(f"return {section}.getBoundingClientRect().height")
    assert taken <= (height if width > NARROW else 3 * height)
    # A look that found nothing new moves the page's time, and takes no page.
    served.source.found = replace(
        served.source.found, serial=view.serial + 1, now_ms=view.now_ms + 60_000
    )
    later = utc_text(view.now_ms + 60_000)
    browser.wait(lambda: f"As of {later}" in browser.text("p.seen"))
    fetched = browser.script(
        "return performance.getEntriesByType('resource')"
        ".filter(each => each.initiatorType === 'fetch').map(each => each.transferSize)"
    )
    assert fetched
    assert max(fetched) < 1000
    assert [] == browser.complaints()


def test_a_command_is_copied_by_its_button_and_selected_whole_without(
    browser: Browser, served: Served
) -> None:
    browser.open(served.url("/log/customers/0"))
    browser.script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    command = browser.text("code.command")
    browser.click("button.copy")
    browser.wait(lambda: f"Copied: {command}" == browser.focused)
    assert command == browser.script("return window.copied")
    assert command.startswith(f"keeplast status {served.source.found.place} ")
    browser.run_script(allowed=False)
    browser.open(served.url("/log/customers/0"))
    assert [] == browser.all("button.copy")
    assert "all" == browser.all("code.command")[0].value_of_css_property("user-select")


def test_typed_text_without_script_survives_reloads(
    browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RELOAD_SECONDS", 1)
    browser.run_script(allowed=False)
    browser.open(served.url("/?q=customers"))
    # What reloads has no field to type into.
    assert not any(each.is_displayed() for each in browser.all("main input"))
    before = served.source.asked
    browser.wait(lambda: served.source.asked > before + 1)
    browser.click("a[href^='/find']")
    browser.wait(lambda: bool(browser.all("main input")))
    field = browser.all("main input")[0]
    assert "customers" == field.get_attribute("value")
    field.send_keys("-0")
    assert [] == browser.all("meta[http-equiv=refresh]")
    assert "customers-0" == field.get_attribute("value")
    field.send_keys(Keys.ENTER)
    browser.wait(lambda: browser.address.endswith("/?q=customers-0"))


LONG = "organisation.department.team.customer-preferences-by-region-changelog"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height", "rows"), [(1440, 900, 14), (390, 844, 1)])
def test_the_first_screen_has_whole_rows_and_headings_stay(
    browser: Browser, served: Served, width: int, height: int, rows: int, dark: bool
) -> None:
    status = served.source.status
    topics = [LONG, *(f"topic-{n}" for n in range(40))]
    some = (replace(each, partition=TopicPartition(topic, each.partition.partition))
            for topic in topics for each in status.partitions)  # fmt: skip
    served.source.show(some)
    browser.emulate(dark=dark)
    browser.emulate_width(width, height)
    browser.open(served.url("/"))
    whole = (
        "return [...document.querySelectorAll('tbody tr:not(.group)')].filter(row =>"
        " row.getBoundingClientRect().bottom <= innerHeight).length"
    )
    assert browser.script(whole) >= rows
    assert [] == browser.findings()
    assert not browser.overflows()
    name = browser.one(f".cut[title='{LONG}']")
    assert LONG == name.get_attribute("textContent")
    assert name.size["width"] < min(width, 420)
    browser.script("window.scrollTo(0, 600)")
    browser.wait(lambda: 600 == browser.script("return scrollY"))
    top = "return document.querySelector('thead th').getBoundingClientRect().top"
    assert 0 <= browser.script(top) < height / 10


def test_colours_are_never_the_only_sign(browser: Browser, served: Served) -> None:
    browser.open(served.url("/log/customers/0"))
    for each in browser.all("svg.strip rect"):
        assert str(each.get_attribute("fill")).startswith("url(#p-")
    for each in browser.all("svg[role=img], svg[role=group]"):
        assert each.get_attribute("aria-label")
