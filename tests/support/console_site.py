"""A console without a socket: a fixed view, asked through the ASGI interface as a browser would.

For one with a socket there are a certificate, and what is known of a connection.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import select
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import CleanableRange
from keeplast.config.layers import ALL_PARTITIONS, USUAL_SOURCES, SettingSources
from keeplast.config.selection import select_partitions
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.service.console.gate import Entrance, Tokens
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.console.server import Certificate, ConsoleApp, ConsoleServer, StreamLimits
from keeplast.service.console.view import ConsoleView
from keeplast.service.directory_loop import directory_finder, directory_scanner
from keeplast.service.gauges import GaugeObserver
from keeplast.service.history import ALL, SPANS, History, round_entries
from keeplast.service.history_file import PlaceHistory
from keeplast.service.live import Control, LiveProgress
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.snapshot import look_at_directory
from keeplast.service.status import DirectoryStatus, PartitionStatus
from tests.support.manual_clock import ManualClock

NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000
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
        status = dataclasses.replace(self.status, partitions=tuple(partitions))
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
    shelf = ReceiptShelf(files, root / RECEIPTS_NAME)
    return ConsoleView(
        str(root), now_ms, look.joined(files, shelf.refresh()), settings=look.settings,
        receipts=shelf.lines(),
    )  # fmt: skip


def with_past(source: FixedSource, root: Path) -> None:
    """Give a source the history of 29 days that its receipts and its logs tell.

    Between two rounds a log grows evenly, by what is dirty. Of two days nothing was measured. Each
    slot of the last day is measured, so that pages say the same at each time of the day.
    """
    now_ms, history, sums = source.found.now_ms, History(), dict[str, Any]()
    begin_ms, day_ms, day = (now_ms // DAY_MS - 29) * DAY_MS, now_ms - DAY_MS, SPANS[0]
    at = np.array([
        *range(begin_ms, day_ms, SPANS[1].slot_ms),
        *range(day_ms // day.slot_ms * day.slot_ms, now_ms, day.slot_ms), now_ms,
    ])  # fmt: skip
    for each in (each for each in source.status.partitions if each.cleanable is not None):
        rounds = [line.round for line in source.found.receipts
                  if line.partition == each.partition and line.round is not None]  # fmt: skip
        now = each.cleanable or CleanableRange(0, 0, 0)
        ends = [round(0.6 * one.bytes_read) for one in rounds[:1]] or [now.clean_bytes]
        ends += [one.bytes_written for one in rounds]
        # When, and size, clean and dirty bytes: before each round, and after it.
        steps = [(begin_ms - 2 * DAY_MS, ends[0], ends[0], 0)]
        for one, clean in zip(rounds, ends, strict=False):
            left, read = one.bytes_written, one.bytes_read
            steps += [(one.at_ms - 1, read, clean, read - clean), (one.at_ms, left, left, 0)]
            history.add(
                round_entries(each.partition.topic, one.at_ms, read - left, one.seconds), now_ms
            )
        steps.append((now_ms, each.size_bytes or 0, now.clean_bytes, now.cleanable_bytes))
        when, *figures = zip(*steps, strict=True)
        late = np.maximum(at - (each.deadline_ms or now_ms), 0) / 1000
        for name in (ALL, each.partition.topic):
            *before, latest = sums.get(name, (0, 0, 0, 0))
            found = (np.interp(at, when, figure) for figure in figures)
            sums[name] = (*map(np.add, before, found), np.maximum(late, latest))
    history.add([(name, int(when), (size, dirty / (clean + dirty), late, 0, 0, 0, 0))
                 for name, its in sums.items()
                 for when, size, clean, dirty, late in zip(at, *its, strict=True)
                 if not 16 * DAY_MS <= when - begin_ms < 18 * DAY_MS], now_ms)  # fmt: skip
    (root / f"{RECEIPTS_NAME}.history").write_bytes(history.encode())
    shelf = ReceiptShelf(LocalFiles(), root / RECEIPTS_NAME)
    source.history = PlaceHistory(LocalFiles(), shelf, ManualClock(now_ms))


def searches_in(
    root: Path, limits: SearchLimits | None = None, now_ms: int = NOW_MS
) -> KeySearches:
    """Return the key searches of a data directory, as of ``now_ms``."""
    find = directory_finder(root, LocalFiles(), ALL_PARTITIONS, USUAL_SOURCES)
    scan = directory_scanner(root, LocalFiles(), ALL_PARTITIONS)
    return KeySearches(find, ManualClock(now_ms), limits or SearchLimits(), scan)


@contextmanager
def running(
    source: FixedSource, entrance: Entrance, certificate: Certificate | None = None
) -> Iterator[int]:
    """Serve it, with searches where its view is of; yields the port."""
    searches = searches_in(Path(source.found.place))
    with ConsoleServer(
        source, entrance, TOKENS, ManualClock(0), LocalFiles(), certificate, searches
    ) as console:
        yield int(console.address.rstrip("/").rpartition(":")[2])


def own_certificate(folder: Path) -> Certificate:
    """Write a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "console")])
    first = datetime.datetime(2020, 1, 1)
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(key.public_key()).serial_number(1)
        .not_valid_before(first).not_valid_after(first + datetime.timedelta(days=36_500))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    found = Certificate(folder / "chain.pem", folder / "key.pem")
    found.chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )  # fmt: skip
    return found


def trusting() -> ssl.SSLContext:
    """Return what takes certificates as they are."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def is_connected(connection: socket.socket) -> bool:
    """Say whether the other side still is there, without reading anything."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


class Site:
    """A console and a browser at ``peer`` that keeps cookies."""

    def __init__(
        self,
        source: FixedSource,
        entrance: Entrance = OPEN,
        tokens: Tokens = TOKENS,
        peer: tuple[str, int] = HOME,
        searches: KeySearches | None = None,
        *,
        token: str | None = None,
    ) -> None:
        """Build the application; with ``token`` the visitor has a session."""
        self.clock = ManualClock(NOW_MS)
        self.entrance = entrance
        self.peer = peer
        self.base = f"{'https' if entrance.is_secure else 'http'}://{entrance.host}:{PORT}"
        self.cookies: dict[str, str] = {}
        self.app = ConsoleApp(
            source, entrance, tokens, self.clock, LocalFiles(), SHORT, searches
        ).asgi()
        if token is not None:
            self.enter(token)

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
