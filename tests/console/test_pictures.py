"""The pictures of the documents, taken here: ``make console-pictures`` writes them anew."""

from __future__ import annotations

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
BYTES_MAX = 150_000
LOG = "/log/customers/0"


def overview(browser: Browser, served: Served) -> None:
    browser.open(served.url("/"))


def dark(browser: Browser, served: Served) -> None:
    browser.emulate(dark=True)
    browser.open(served.url("/"))


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
    partition = TopicPartition("orders", 0)
    served.live.chosen((Choice(partition, "overdue: max.compaction.lag.ms"),))
    served.live.planned(415, RoundWork(partition, 130))
    served.live.progressed(295, partition)
    show(browser, served)
    taken = browser.picture(tmp_path / f"{name}.png", {str(demo): SHOWN_PLACE})
    assert (width, HEIGHT) == size_of(taken)
    assert 5_000 < taken.stat().st_size < BYTES_MAX
    if pytestconfig.getoption("--refresh-pictures"):
        shutil.copy(taken, IMAGES / taken.name)


@pytest.mark.parametrize("name", PICTURES)
def test_the_documents_picture_is_one_of_these(name: str) -> None:
    stored = IMAGES / f"{name}.png"
    assert (PICTURES[name][1], HEIGHT) == size_of(stored)
    assert stored.stat().st_size < BYTES_MAX


def test_there_are_no_other_pictures() -> None:
    assert set(PICTURES) == {each.stem for each in IMAGES.glob("console-*.png")}
