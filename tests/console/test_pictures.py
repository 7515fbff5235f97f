"""The pictures of the documents, taken here: ``make console-pictures`` writes them again."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.cleaner.log_order import Choice
from keeplast.model.partition import TopicPartition
from keeplast.run.events import RoundWork
from tests.console.conftest import Served
from tests.support.browser import HEIGHT, NARROW, WIDTH, Browser

pytestmark = pytest.mark.console
IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "images"
SHOWN_PARENT = "/var/lib/kafka"
PICTURED = Path(__file__).resolve().parent / "pictured"
"""What the pages said when the pictures were taken, but for figures and times."""
BYTES_MAX = 150_000
HEIGHT_MAX = 1900
LOG = "/log/customers/0"


def reword(browser: Browser, served: Served) -> None:
    """Show a place as one that is usual, before anything is measured."""
    browser.reword({str(Path(served.source.found.place).parent): SHOWN_PARENT})


def down_to(browser: Browser, served: Served, last: str, width: int = WIDTH) -> None:
    """Let the screen end where an element does, so that nothing of it is cut off."""
    reword(browser, served)
    for _ in range(2):
        # A picture that is higher may have other breaks: the end is looked for again.
        end = browser.script(
            "return [...document.querySelectorAll(arguments[0])].at(-1)"
            ".getBoundingClientRect().bottom",
            last,
        )
        browser.emulate_width(width, int(end) + 12)
    assert int(end) + 12 <= HEIGHT_MAX


def overview(browser: Browser, served: Served) -> None:
    browser.open(served.url("/"))
    down_to(browser, served, "footer")


def dark(browser: Browser, served: Served) -> None:
    browser.emulate(dark=True)
    overview(browser, served)


def narrow(browser: Browser, served: Served) -> None:
    browser.emulate_width(NARROW)
    browser.open(served.url("/"))
    down_to(browser, served, "tbody:nth-of-type(2) tr:nth-of-type(2)", NARROW)


def log(browser: Browser, served: Served) -> None:
    browser.open(served.url(LOG))
    down_to(browser, served, "section[aria-labelledby=h-rounds]")


def work(browser: Browser, served: Served) -> None:
    browser.open(served.url("/work"))
    down_to(browser, served, "section[aria-labelledby=h-receipts] tbody tr:nth-child(7)")


def time(browser: Browser, served: Served) -> None:
    browser.open(served.url("/time"))
    down_to(browser, served, "footer")


def narrow_time(browser: Browser, served: Served) -> None:
    browser.emulate(dark=True)
    browser.emulate_width(NARROW)
    browser.open(served.url("/time"))
    down_to(browser, served, "details", NARROW)


PICTURES = {
    "console-overview": (overview, WIDTH), "console-overview-dark": (dark, WIDTH),
    "console-overview-narrow": (narrow, NARROW), "console-log": (log, WIDTH),
    "console-work": (work, WIDTH), "console-time": (time, WIDTH),
    "console-time-narrow": (narrow_time, NARROW),
}  # fmt: skip


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


_SPAN = r"(?:\d[\d,.]* (?:ms|s|min|h|d)(?![a-z]) ?)+"
_FIGURES = (
    (re.compile(rf"\bin {_SPAN}|{_SPAN}ago|\bjust now\b|\bnow\b"), "WHEN "),
    (re.compile(rf"(?:< )?{_SPAN}"), "SPAN "),
    (re.compile(r"\d[\d,.]* (?:[KMG]i)?B(?:/s)?"), "SIZE"),
    (re.compile(r"\d[\d,.:-]*"), "#"),
    (re.compile(r"\s+"), " "),
)


def page_text(text: str) -> str:
    """Return what a page says, a sentence a line, without figures, which no two runs share."""
    for pattern, word in _FIGURES:
        text = pattern.sub(word, text)
    return (
        "\n".join(each.strip() for each in re.split(r"(?<=[.;:,]) ", text) if each.strip()) + "\n"
    )


def at_work(served: Served) -> None:
    """Let two rounds be under way, as many as there are at once."""
    first, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    why = "overdue: max.compaction.lag.ms"
    served.live.chosen((Choice(first, why), Choice(other, why)))
    served.live.planned(415, RoundWork(first, 130))
    served.live.planned(216, RoundWork(other, 86))
    served.live.progressed(295, first)
    served.live.progressed(73, other)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_taken(
    browser: Browser,
    served: Served,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    name: str,
) -> None:
    show: Callable[[Browser, Served], None]
    show, width = PICTURES[name]
    at_work(served)
    show(browser, served)
    browser.wait(lambda: "Changes appear by themselves." in browser.text("footer"))
    shown = page_text(browser.text("body"))
    taken = browser.picture(tmp_path / f"{name}.png")
    assert width == size_of(taken)[0]
    assert HEIGHT <= size_of(taken)[1] <= HEIGHT_MAX
    assert 5_000 < taken.stat().st_size < BYTES_MAX
    if pytestconfig.getoption("--refresh-pictures"):
        shutil.copy(taken, IMAGES / taken.name)
        (PICTURED / f"{name}.txt").write_text(shown, encoding="utf-8")
    # A page that says something else is not the one in the documents: make console-pictures.
    assert (PICTURED / f"{name}.txt").read_text("utf-8") == shown


@pytest.mark.parametrize("name", PICTURES)
def test_the_documents_picture_is_one_of_these(name: str) -> None:
    stored = IMAGES / f"{name}.png"
    width, height = size_of(stored)
    assert PICTURES[name][1] == width
    assert HEIGHT <= height <= HEIGHT_MAX
    assert stored.stat().st_size < BYTES_MAX


def test_figures_that_no_two_runs_share_are_left_out() -> None:
    one = "in 6 d 23 h 2026-11-30 06:13:25 UTC, 26.2 KiB; took < 0.1 s, 1.20 MiB/s. just now"
    other = "1 d ago 2027-01-01 16:03:05 UTC, 1,126 B; took 12.5 s, 120 KiB/s. now"
    assert page_text(one) == page_text(other)
    assert page_text(one) != page_text(one.replace("took", "lasted"))


def test_there_are_no_other_pictures() -> None:
    assert set(PICTURES) == {each.stem for each in IMAGES.glob("console-*.png")}
    assert set(PICTURES) == {each.stem for each in PICTURED.glob("*")}
