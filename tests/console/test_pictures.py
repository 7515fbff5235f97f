"""The pictures of the documents, taken here: ``make console-pictures`` writes them anew."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.cleaner.selection import Choice
from keeplast.model.partition import TopicPartition
from keeplast.run.events import RoundWork
from tests.console.conftest import Served
from tests.support.browser import HEIGHT, NARROW, WIDTH, Browser

pytestmark = pytest.mark.console
IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "operations" / "images"
SHOWN_PLACE = "/var/lib/kafka/data"
TOLD = Path(__file__).resolve().parent / "pictured"
"""What the pages said when the pictures were taken, but for figures and times."""
BYTES_MAX = 150_000
HEIGHT_MAX = 1500
LOG = "/log/customers/0"


def whole(browser: Browser) -> None:
    """Let the screen be as high as the page, so that its last row is seen."""
    height = browser.script("return document.documentElement.scrollHeight")
    browser.emulate_width(WIDTH, min(int(height), HEIGHT_MAX))
    rows = "return Math.max(...[...document.querySelectorAll('tbody tr')]"
    last = browser.script(f"{rows}.map(row => row.getBoundingClientRect().bottom))")
    assert last <= browser.script("return window.innerHeight")


def overview(browser: Browser, served: Served) -> None:
    browser.open(served.url("/"))
    whole(browser)


def dark(browser: Browser, served: Served) -> None:
    browser.emulate(dark=True)
    browser.open(served.url("/"))
    whole(browser)


def narrow(browser: Browser, served: Served) -> None:
    browser.emulate_width(NARROW)
    browser.open(served.url("/"))


def log(browser: Browser, served: Served) -> None:
    browser.open(served.url(LOG))
    browser.script("document.querySelectorAll('svg.strip.tall a')[1].focus()")


def work(browser: Browser, served: Served) -> None:
    browser.open(served.url("/work"))


PICTURES = {
    "console-overview": (overview, WIDTH), "console-overview-dark": (dark, WIDTH),
    "console-overview-narrow": (narrow, NARROW), "console-log": (log, WIDTH),
    "console-work": (work, WIDTH),
}  # fmt: skip


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


_SPAN = r"(?:\d[\d,.]* (?:ms|s|min|h|d)\b ?)+"
_FIGURES = (
    (re.compile(rf"in {_SPAN}|{_SPAN}ago|\bjust now\b|\bnow\b"), "WHEN "),
    (re.compile(rf"(?:< )?{_SPAN}"), "SPAN "),
    (re.compile(r"\d[\d,.]* (?:[KMG]i)?B(?:/s)?"), "SIZE"),
    (re.compile(r"\d[\d,.:-]*"), "#"),
    (re.compile(r"\s+"), " "),
)


def told(text: str) -> str:
    """Return what a page says, a sentence a line, without figures, which no two runs share."""
    for pattern, word in _FIGURES:
        text = pattern.sub(word, text)
    return (
        "\n".join(each.strip() for each in re.split(r"(?<=[.;:,]) ", text) if each.strip()) + "\n"
    )


def at_work(served: Served) -> None:
    """Let a round be under way."""
    partition = TopicPartition("orders", 0)
    served.live.chosen((Choice(partition, "overdue: max.compaction.lag.ms"),))
    served.live.planned(415, RoundWork(partition, 130))
    served.live.progressed(295, partition)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_taken(
    browser: Browser,
    served: Served,
    demo: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    name: str,
) -> None:
    show: Callable[[Browser, Served], None]
    show, width = PICTURES[name]
    at_work(served)
    show(browser, served)
    browser.wait(lambda: "Changes appear by themselves." in browser.text("footer"))
    shown = told(browser.text("body").replace(str(demo), SHOWN_PLACE))
    taken = browser.picture(tmp_path / f"{name}.png", {str(demo): SHOWN_PLACE})
    assert width == size_of(taken)[0]
    assert HEIGHT <= size_of(taken)[1] <= HEIGHT_MAX
    assert 5_000 < taken.stat().st_size < BYTES_MAX
    if pytestconfig.getoption("--refresh-pictures"):
        shutil.copy(taken, IMAGES / taken.name)
        (TOLD / f"{name}.txt").write_text(shown, encoding="utf-8")
    # A page that says something else is not the one in the documents: make console-pictures.
    assert (TOLD / f"{name}.txt").read_text("utf-8") == shown


@pytest.mark.parametrize("name", PICTURES)
def test_the_documents_picture_is_one_of_these(name: str) -> None:
    stored = IMAGES / f"{name}.png"
    width, height = size_of(stored)
    assert PICTURES[name][1] == width
    assert HEIGHT <= height <= HEIGHT_MAX
    assert stored.stat().st_size < BYTES_MAX


def test_what_no_two_runs_share_is_left_out() -> None:
    one = "in 6 d 23 h 2026-11-30 06:13:25 UTC, 26.2 KiB; took < 0.1 s, 1.20 MiB/s. just now"
    other = "1 d ago 2027-01-01 16:03:05 UTC, 1,126 B; took 12.5 s, 120 KiB/s. now"
    assert told(one) == told(other)
    assert told(one) != told(one.replace("took", "lasted"))


def test_there_are_no_other_pictures() -> None:
    assert set(PICTURES) == {each.stem for each in IMAGES.glob("console-*.png")}
    assert set(PICTURES) == {each.stem for each in TOLD.glob("*")}
