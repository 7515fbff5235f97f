"""A browser, and consoles for it: of the demo's logs, of a store, and of a loop."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cleaner.log_order import Choice
from keeplast.cli.main import app
from keeplast.clock import SystemClock
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.service.console.gate import Entrance
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.server import Certificate, ConsoleServer
from keeplast.service.console.view import ConsoleView
from keeplast.service.live import Control, LiveProgress
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.schedule import read_set_aside, write_set_aside
from keeplast.service.snapshot import Snapshot
from keeplast.service.status import State
from tests.support.browser import Browser, opened
from tests.support.console_site import TOKENS, FixedSource, directory_view, searches_in, with_past
from tests.support.daemon_world import Narrated
from tests.support.manual_clock import ManualClock
from tools.demo_console import DAMAGED, HOUR_MS
from tools.demo_console import main as write_demo


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refresh-pictures", action="store_true", help="write the pictures of the documents again"
    )
    parser.addoption("--fuzz-seed", help="which requests are made up (those of 1 by default)")
    parser.addoption(
        "--fuzz-seconds", help="how long requests are made up, with TLS and without (10 by default)"
    )


PARTITIONS = "/partitions?rows=roomy"
"""Where all is shown of each partition, one a row."""
NOW_MS = 1_795_953_600_000
"""When the demo's logs are looked at, on whatever day that is: a Sunday at 12:00 UTC.

What a chart shows of a month, and of a day, has more ticks on some days of the week, and at some
hours, than at others.
"""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of all tests."""
    with opened() as found:
        yield found


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """A browser that was never anywhere."""
    chromium.forget()
    return chromium


class Served(Struct, frozen=True):
    """A console that is running: where, of what, and the loop that it shows."""

    address: str
    source: FixedSource
    clock: ManualClock
    live: LiveProgress

    def url(self, path: str) -> str:
        """Return the address of a page."""
        return self.address + path.removeprefix("/")


Serve = Callable[[ConsoleView], contextlib.AbstractContextManager[Served]]


@contextlib.contextmanager
def serving(
    view: ConsoleView, *, runs: bool = True, searches: KeySearches | None = None,
    certificate: Certificate | None = None,
) -> Iterator[Served]:  # fmt: skip
    """Serve a view that stays; with ``runs`` as that of a loop which takes orders."""
    clock = ManualClock(view.now_ms)
    control = Control(clock)
    live = LiveProgress(Narrated(), clock, control)
    source = FixedSource(view)
    if runs:
        source.control, source.live = control, live
        due = () if view.status is None else view.status.in_state(State.OVERDUE)
        queue = tuple(
            Choice(each.partition, each.reason.removeprefix("due for a round: ")) for each in due
        )
        snapshot = Snapshot(
            view.place, view.now_ms - 9 * HOUR_MS, view.now_ms, 3, 2, (), queue=queue
        )
        view = replace(view, snapshot=snapshot)
        source.found = view
    is_secure = certificate is not None
    entrance = Entrance("127.0.0.1", 0, ("kafka-1",), is_secure=is_secure, allows_actions=runs)
    with ConsoleServer(
        source, entrance, TOKENS, clock, LocalFiles(), certificate, searches
    ) as server:
        # To wait for its start took time of this clock; pages are as of the look.
        clock.advance(view.now_ms - clock.now_ms())
        yield Served(server.address, source, clock, live)


def printed(*words: object) -> Any:
    """Return what the command line prints with ``--json``."""
    found = CliRunner().invoke(app, [*map(str, words), "--json"])
    return json.loads(found.stdout)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of ``make demo-console``, after the loop has met the damaged one."""
    root = tmp_path_factory.mktemp("console") / "kafka-logs"
    topic = DAMAGED.rpartition("-")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now_ms", lambda _: NOW_MS)
        write_demo(root, NOW_MS)
        printed("run", root, "--once", "--runner", "local", "--cores", 1, "--topic", topic)
    # As by a loop that met it hours ago.
    ((at, mark),) = read_set_aside(LocalFiles(), root).items()
    early = replace(mark, since_ms=mark.since_ms - 8 * HOUR_MS)
    write_set_aside(LocalFiles(), root, {at: early})
    return root


@pytest.fixture(scope="session")
def now_ms() -> int:
    """When the demo's logs are looked at."""
    return NOW_MS


@pytest.fixture(scope="session")
def seen(demo: Path, now_ms: int) -> ConsoleView:
    """What a look finds in them."""
    return directory_view(demo, now_ms=now_ms)


@pytest.fixture
def served(seen: ConsoleView, demo: Path) -> Iterator[Served]:
    """A loop's console of the demo."""
    with serving(seen, searches=searches_in(demo, now_ms=seen.now_ms)) as found:
        found.source.shelf = ReceiptShelf(LocalFiles(), demo / RECEIPTS_NAME)
        with_past(found.source, demo)
        yield found
