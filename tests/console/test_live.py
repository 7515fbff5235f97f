"""What goes on arrives in a page by itself: with script as it happens, without by reloading."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.log_order import Choice
from keeplast.clock import SystemClock
from keeplast.model.partition import TopicPartition
from keeplast.run.events import RoundWork
from keeplast.service.console import rendering
from keeplast.service.console import server as console_app
from keeplast.service.console.server import StreamLimits
from keeplast.service.console.view import ConsoleView
from keeplast.service.status import State
from keeplast.survey.report import RoundReport
from tests.console.conftest import PARTITIONS, Served, printed, serving
from tests.support.browser import Browser, cells
from tests.support.waiting import SECONDS_MAX, wait_for_line
from tools.demo_console import SETTINGS
from tools.demo_console import main as write_demo

pytestmark = pytest.mark.console
ORDERS = TopicPartition("orders", 0)


def row_of(browser: Browser, partition: str) -> str:
    """Return what the overview says of a partition."""
    return next((row[1] for row in cells(browser, "main") if row[0] == partition), "")


def test_progress_arrives_without_a_reload(browser: Browser, served: Served) -> None:
    live = served.live
    browser.open(served.url("/work"))
    browser.script(
        "window.isTheSame = true; window.spoken = 0; new MutationObserver(() => window.spoken++)"
        ".observe(document.getElementById('spoken'), {childList: true})"
    )
    live.chosen((Choice(ORDERS, "overdue"), Choice(TopicPartition("orders", 1), "dirty")))
    live.planned(1 << 20, RoundWork(ORDERS, 1 << 18))
    browser.wait(lambda: "cleaning orders-0 0 %, orders-1" in browser.text("#live"))
    browser.wait(lambda: "orders-0 (overdue)" in browser.text("main"))
    browser.wait(lambda: 1 == browser.script("return window.spoken"))
    live.progressed(1 << 19, ORDERS)
    browser.wait(lambda: "cleaning orders-0 50 %" in browser.text("#live"))
    browser.wait(
        lambda: 0.5 == browser.script("return document.querySelector('progress').position")
    )
    browser.wait(lambda: "50 % of both passes, pass 2 of 2: rewriting" in browser.text("main"))
    # Who hears the page hears it once a minute, and nothing else speaks.
    assert (1, []) == (browser.script("return window.spoken"), browser.all("[aria-live] #live"))
    browser.open(served.url("/log/orders/0"))
    assert "Running now (overdue)" in browser.text("main")
    browser.script("window.isTheSame = true")
    live.finished(ORDERS, RoundReport())
    browser.wait(lambda: "Running now" not in browser.text("main"))
    assert browser.script("return window.isTheSame")
    assert "cleaning orders-1" in browser.text("#live")


def test_the_row_of_a_log_in_work_says_so_while_it_lasts(browser: Browser, served: Served) -> None:
    live = served.live
    browser.open(served.url(PARTITIONS))
    names = [row[0] for row in cells(browser, "main")]
    assert row_of(browser, "orders-0").startswith("overdue")
    browser.script("window.isTheSame = true")
    live.chosen((Choice(ORDERS, "overdue"),))
    live.planned(1000, RoundWork(ORDERS, 300))
    browser.wait(lambda: row_of(browser, "orders-0").startswith("cleaning 0 %"))
    live.progressed(710, ORDERS)
    browser.wait(lambda: row_of(browser, "orders-0").startswith("cleaning 71 %"))
    assert "pass 2 of 2: rewriting" in row_of(browser, "orders-0")
    assert names == [row[0] for row in cells(browser, "main")]
    live.finished(ORDERS, RoundReport())
    browser.wait(lambda: row_of(browser, "orders-0").startswith("round over"))
    assert browser.script("return window.isTheSame")


def test_ages_count_on_without_a_look(browser: Browser, served: Served) -> None:
    browser.open(served.url("/"))
    shown = "document.querySelector('.seen time[data-at]')"
    browser.script(
        "document.getElementById('main').dataset.now = Number("
        "document.getElementById('main').dataset.now) + 7500000"
    )
    browser.wait(lambda: "2 h 5 min ago" == browser.script(f"return {shown}.textContent"))


def test_a_new_view_is_shown_and_the_focus_stays(browser: Browser, served: Served) -> None:
    browser.open(served.url(PARTITIONS))
    assert row_of(browser, "orders-0").startswith("overdue")
    browser.script(
        "window.isTheSame = true;"
        "[...document.querySelectorAll('tbody a')].find(a => a.innerText == 'orders-0').focus()"
    )
    with_another_reason(served, "as clean as can be")
    browser.wait(lambda: "as clean as can be" in row_of(browser, "orders-0"))
    assert browser.script("return window.isTheSame")
    assert "orders-0" == browser.focused
    # Also next to a field that somebody types in, or has typed in and left.
    browser.one("input[name=q]").send_keys("half a na")
    with_another_reason(served, "dirty again")
    browser.wait(lambda: "dirty again" in row_of(browser, "orders-0"))
    browser.script("document.activeElement.blur()")
    with_another_reason(served, "and clean")
    browser.wait(lambda: "and clean" in row_of(browser, "orders-0"))
    typed = browser.script("return document.querySelector('input[name=q]').value")
    assert ("half a na", True) == (typed, browser.script("return window.isTheSame"))


def test_events_of_a_lost_connection_are_shown(browser: Browser, served: Served) -> None:
    browser.open(served.url(PARTITIONS))
    browser.wait(footer_says(browser, "Changes appear by themselves."))
    # A loop that was started again counts from its beginning, and a sleeping host hears nothing.
    with_another_reason(served, "as clean as can be", serials=0)
    browser.script("window.isTheSame = true; heardAt = 0; endSilence()")
    browser.wait(lambda: "as clean as can be" in row_of(browser, "orders-0"))
    browser.wait(footer_says(browser, "Changes appear by themselves."))
    assert browser.script("return window.isTheSame")


def with_another_reason(served: Served, reason: str, *, serials: int = 1) -> None:
    """Have a next view say something else of a log."""
    found = served.source.found
    assert found.status is not None
    partitions = tuple(
        replace(each, state=State.CLEAN, reason=reason, decision=None)
        if each.partition == ORDERS
        else each
        for each in found.status.partitions
    )
    served.source.found = replace(
        found,
        serial=found.serial + serials,
        status=dataclasses.replace(found.status, partitions=partitions),
    )


def footer_says(browser: Browser, words: str) -> Callable[[], bool]:
    return lambda: words in browser.text("footer")


def test_without_a_stream_a_page_reloads_and_says_so(
    browser: Browser, seen: ConsoleView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RELOAD_SECONDS", 1)
    monkeypatch.setattr(console_app, "StreamLimits", lambda: StreamLimits(count=0))
    with serving(seen) as served:
        browser.open(served.url(PARTITIONS))
        browser.script("window.isTheSame = true")
        browser.wait(footer_says(browser, "This page reloads every 1 s."))
        with_another_reason(served, "as clean as can be")
        browser.wait(lambda: "as clean as can be" in row_of(browser, "orders-0"))
        assert browser.script("return window.isTheSame")
        assert "This page reloads every 1 s." in browser.text("footer")
    browser.wait(footer_says(browser, "The console does not answer: what is shown may be old."))
    assert "as clean as can be" in row_of(browser, "orders-0")
    browser.complaints()


def show(browser: Browser, *, is_hidden: bool) -> None:
    """Let the page believe that its tab is hidden, or shown again."""
    browser.script(
        "Object.defineProperty(document, 'visibilityState', {configurable: true, value: "
        f"'{'hidden' if is_hidden else 'visible'}'}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


def test_a_hidden_tab_holds_no_connection(
    browser: Browser, seen: ConsoleView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        console_app, "StreamLimits", lambda: StreamLimits(count=1, step_seconds=0.05)
    )

    def is_free(served: Served) -> bool:
        with httpx.stream("GET", served.url("/events"), timeout=SECONDS_MAX) as answer:
            return answer.status_code == 200

    with serving(seen) as served:
        browser.open(served.url(PARTITIONS))
        browser.wait(footer_says(browser, "Changes appear by themselves."))
        assert not is_free(served)
        show(browser, is_hidden=True)
        browser.wait(lambda: is_free(served))
        with_another_reason(served, "as clean as can be")
        show(browser, is_hidden=False)
        browser.wait(lambda: "as clean as can be" in row_of(browser, "orders-0"))
        browser.wait(lambda: not is_free(served))
        browser.open("about:blank")


def test_without_script_pages_reload_by_themselves(
    browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RELOAD_SECONDS", 1)
    browser.run_script(allowed=False)
    for path in ("/", "/work", "/log/orders/0"):
        browser.open(served.url(path))
        found = served.source.found
        served.source.found = replace(found, place=f"elsewhere {path}")
        browser.wait(lambda shown=f"elsewhere {path}": shown in browser.text("header"))  # type: ignore[misc]


def test_without_script_everything_can_be_reached(
    browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not while something is typed.
    monkeypatch.setattr(rendering, "RELOAD_SECONDS", 3600)
    browser.run_script(allowed=False)
    browser.open(served.url("/"))
    assert browser.text("#live")
    # What reloads by itself has no box: what is typed would be lost.
    browser.click("main noscript a")
    browser.one("form[action='/'] input").send_keys("customers\n")
    browser.wait(lambda: "q=customers" in browser.address)
    assert ["customers"] == [row[0] for row in cells(browser, "main")]
    browser.click("p.counts a.s-not-due")
    browser.wait(lambda: "q=customers+state%3Anot-due" in browser.address)
    browser.click("thead .c-size a")
    browser.wait(lambda: browser.address.endswith("&sort=size"))
    browser.click("tbody th a")
    browser.wait(lambda: "/topic/customers?q=customers" in browser.address)
    assert ["customers-0"] == [row[0] for row in cells(browser, "main")]
    browser.click("tbody th a")
    browser.wait(lambda: browser.address.endswith("/log/customers/0"))
    browser.click("svg.strip.tall a")
    browser.wait(lambda: "#s" in browser.address)
    assert 1 == len(browser.all("tr:target"))
    browser.open(served.url("/enter"))
    browser.one("#token").send_keys("an-actors-token-of-some-length\n")
    browser.wait(lambda: browser.address == served.url("/"))
    browser.open(served.url("/work"))
    assert 1 == len(browser.all("form[action='/do/pause']"))


class Loop(Struct, frozen=True):
    """A loop in a process of its own: its logs, and the printed link to its console."""

    root: Path
    link: str


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """``keeplast run --console`` on the demo's logs, as fast as it can."""
    root = tmp_path / "logs"
    write_demo(root, SystemClock().now_ms())
    (root / "keeplast.toml").write_text(SETTINGS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "keeplast", "run", str(root), "--runner", "local", "--cores", "1",
         "--console", "127.0.0.1:0", "--allow-actions"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            link = wait_for_line(process, r"to log in: (http://127\.0\.0\.1:\d+/enter#\S+)")
            assert process.stderr is not None
            # A reader that reads no more would stop it in the end.
            reading = threading.Thread(target=process.stderr.read)
            reading.start()
            try:
                yield Loop(root, link[1])
            finally:
                process.terminate()
                reading.join()
        finally:
            process.kill()


def test_a_real_loop_is_watched_until_its_logs_are_clean(browser: Browser, loop: Loop) -> None:
    browser.open(loop.link)
    browser.wait(lambda: not browser.address.endswith("enter") and bool(browser.all("#live")))
    base = browser.address
    browser.open(base + PARTITIONS.removeprefix("/"))
    browser.script("window.isTheSame = true")
    browser.wait(lambda: "idle" == browser.text("#live"))
    names = [f"orders-{n}" for n in range(3)]
    browser.wait(lambda: not any(row_of(browser, each).startswith("overdue") for each in names))
    assert browser.script("return window.isTheSame")
    assert row_of(browser, "sessions-0").startswith("skipped: damaged file")
    assert row_of(browser, "customers-0").startswith("not due")
    # What waits until it is dirtier is cleaned when somebody asks.
    browser.open(f"{base}log/customers/0")
    browser.click("form[action='/do/clean'] button")
    # Four earlier rounds, and the one that this led to; what was asked for stands with the work.
    browser.wait(lambda: 5 == len(cells(browser, "section[aria-labelledby=h-rounds]")))
    found = printed("status", loop.root, "--tombstones", "skip", "--topic", "customers")
    (partition,) = found["partitions"]
    browser.wait(lambda: browser.text("h1 + p .state").startswith(partition["state"]))
    browser.open(f"{base}work")
    browser.wait(lambda: "clean now" in browser.text("section[aria-labelledby=h-receipts]"))
    assert re.search(
        r"The \d+\w\w look since the start", browser.text("section[aria-labelledby=h-now]")
    )
    assert [] == browser.complaints()
