"""A console without a socket: a fixed view, asked through the ASGI interface as a browser would."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    asked: int = 0

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
        headers: Mapping[str, str] | None = None,
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
