"""A console without a socket: a fixed view, asked through the ASGI interface as a browser would."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import httpx

from keeplast.config.layers import ALL_PARTITIONS, USUAL_SOURCES, SettingSources
from keeplast.config.selection import select_partitions
from keeplast.log.files import LocalFiles
from keeplast.service.console.gate import Entrance, Tokens
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.console.server import ConsoleApp, StreamLimits
from keeplast.service.console.view import ConsoleView
from keeplast.service.directory_loop import directory_finder, directory_scanner
from keeplast.service.gauges import GaugeObserver
from keeplast.service.history import ALL, History, round_entries
from keeplast.service.history_file import PlaceHistory
from keeplast.service.live import Control, LiveProgress
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.receipts import FILE_NAME
from keeplast.service.snapshot import look_at_directory
from keeplast.service.status import DirectoryStatus, PartitionStatus
from tests.support.manual_clock import ManualClock

NOW_MS = 1_800_000_000_000
PORT = 9590
ORIGIN = f"http://127.0.0.1:{PORT}"
VIEWER, ACTOR = "a-viewers-token-of-some-length", "an-actors-token-of-some-length"
TOKENS = Tokens(VIEWER, ACTOR)
HOME = ("127.0.0.1", 4711)
STRANGER = ("192.0.2.7", 4711)
OPEN = Entrance("127.0.0.1", PORT, allows_actions=True)
CLOSED = Entrance("192.0.2.1", PORT, is_secure=True, allows_actions=True)
SHORT = StreamLimits(count=2, seconds=0.0, step_seconds=0.0)


@dataclass
class FixedSource:
    """A source whose view a test gives."""

    found: ConsoleView
    shelf: ReceiptShelf = field(default_factory=lambda: ReceiptShelf(LocalFiles(), None))
    live: LiveProgress | None = None
    control: Control | None = None
    gauges: GaugeObserver = field(default_factory=GaugeObserver)
    history: PlaceHistory = field(init=False)
    asked: int = 0

    def __post_init__(self) -> None:
        """Have no history."""
        self.history = PlaceHistory(LocalFiles(), self.shelf, ManualClock(NOW_MS))

    def view(self) -> ConsoleView:
        """Return it, and count."""
        self.asked += 1
        return self.found

    @property
    def status(self) -> DirectoryStatus:
        """The status in the view, which must have one."""
        assert self.found.status is not None
        return self.found.status

    @property
    def wishes(self) -> Control:
        """What the console asks the loop for, which must be there."""
        assert self.control is not None
        return self.control

    def show(self, partitions: Iterable[PartitionStatus]) -> None:
        """Have the view's status be of these partitions."""
        status = replace(self.status, partitions=tuple(partitions))
        self.found = replace(self.found, status=status)


def with_segments(each: PartitionStatus, count: int) -> PartitionStatus:
    """Return a log's status as one of ``count`` segments of 500 offsets: half clean, one active."""
    log = each.log
    assert log is not None
    one = log.segments[0]
    figures = replace(
        log.figures, first_dirty=count // 2 * 500,
        cleanable=replace(log.figures.cleanable, bound=(count - 1) * 500),
    )  # fmt: skip
    segments = tuple(replace(one, base_offset=500 * number) for number in range(count))
    return replace(each, log=replace(log, segments=segments, log_end=500 * count, figures=figures))


def directory_view(
    root: Path, sources: SettingSources = USUAL_SOURCES, now_ms: int = NOW_MS
) -> ConsoleView:
    """Return the view of a data directory at ``now_ms``."""
    files = LocalFiles()
    look = look_at_directory(select_partitions(root, files, sources=sources), files, now_ms)
    shelf = ReceiptShelf(files, root / FILE_NAME)
    return ConsoleView(
        str(root), now_ms, look.joined(files, shelf.refresh()), settings=look.settings,
        receipts=shelf.lines(),
    )  # fmt: skip


def with_past(source: FixedSource, root: Path, topic: str = "orders") -> None:
    """Give a source a history of 29 days up to the day of its view, of all and of a topic.

    It is the same at each hour of a day. Two of the last ten days were not measured. Each third
    day had a round, each sixth one that made logs larger.
    """
    now_ms, history = source.found.now_ms, History()
    for ago in range(29 * 6, -1, -1):
        at_ms = now_ms // 86_400_000 * 86_400_000 - ago * 14_400_000
        share = 0.1 + 0.3 * ago / 174 + 0.02 * (ago % 9)
        figures = ((600 - ago) << 20, share, 900.0 * max(ago - 120, 0), 0, 0, 0, 0)
        looks = [] if 48 <= ago < 60 else [(each, at_ms, figures) for each in (ALL, topic)]
        history.add(looks, now_ms)
        if ago % 18 == 9:
            freed = -ago << 19 if ago % 36 == 9 else ago << 20
            history.add(round_entries(topic, at_ms, freed, 60.0 + ago), now_ms)
    (root / f"{FILE_NAME}.history").write_bytes(history.encode())
    shelf = ReceiptShelf(LocalFiles(), root / FILE_NAME)
    source.history = PlaceHistory(LocalFiles(), shelf, ManualClock(now_ms))


def searches_in(
    root: Path, limits: SearchLimits | None = None, now_ms: int = NOW_MS
) -> KeySearches:
    """Return the key searches of a data directory, as of ``now_ms``."""
    find = directory_finder(root, LocalFiles(), ALL_PARTITIONS, USUAL_SOURCES)
    scan = directory_scanner(root, LocalFiles(), ALL_PARTITIONS)
    return KeySearches(find, ManualClock(now_ms), limits or SearchLimits(), scan)


class Site:
    """A console and a browser at ``peer`` that keeps cookies."""

    def __init__(
        self,
        source: FixedSource,
        entrance: Entrance = OPEN,
        tokens: Tokens = TOKENS,
        peer: tuple[str, int] = HOME,
        searches: KeySearches | None = None,
    ) -> None:
        """Build the application."""
        self.clock = ManualClock(NOW_MS)
        self.entrance = entrance
        self.peer = peer
        self.base = f"{'https' if entrance.is_secure else 'http'}://{entrance.host}:{PORT}"
        self.cookies: dict[str, str] = {}
        self.app = ConsoleApp(
            source, entrance, tokens, self.clock, LocalFiles(), SHORT, searches
        ).asgi()

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        data: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Return the answer; redirects are not followed."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, client=self.peer)
            async with httpx.AsyncClient(
                transport=transport, base_url=self.base, cookies=self.cookies
            ) as client:
                return await client.request(
                    method, path, headers=headers, data=data, content=content
                )

        answer = anyio.run(send)
        for name, value in answer.cookies.items():
            self.cookies[name] = value
        return answer

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Get a page."""
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, data: Mapping[str, str], **headers: str) -> httpx.Response:
        """Send a form as a page of this console would."""
        given = {"origin": self.base} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.ask("POST", path, headers=given, data=data)

    def enter(self, token: str) -> httpx.Response:
        """Exchange a token for a cookie."""
        return self.post("/enter", {"token": token})

    def form_token(self, path: str = "/work") -> str:
        """Return what forms of this session carry."""
        found = re.search(r'name="form" value="([0-9a-f]+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def document(self, path: str) -> Any:
        """Return a document."""
        answer = self.get(path)
        assert 200 == answer.status_code, answer.text
        return answer.json()
