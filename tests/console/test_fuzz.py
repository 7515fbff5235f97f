"""Requests that are made up, by seed, to a running console: none of them is answered with 500.

They are bytes on the wire, with TLS and without, rightly and wrongly formed, to every route there
is. Between them crowds come that only hold the console: readers that read nothing, wrong tokens,
silence. It lets go of all of them in time. Next to them the owner of a token logs in, searches and
acts, and is never held up. What was reached is counted and printed; nothing of it may be missing.

``--fuzz-seconds`` says for how long, with TLS and without; a failure shows the request, which is
the test's case from then on.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import socket
import time
from asyncio import SelectorEventLoop
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keeplast.log.files import LocalFiles
from keeplast.service.console import gate, server
from keeplast.service.console.gate import Gate, bearer_of
from keeplast.service.console.server import SOCKETS_MAX, PunctualLoop, PunctualProtocol
from keeplast.service.console.view import ConsoleView
from keeplast.service.receipt_shelf import ReceiptShelf
from tests.console.conftest import Served, serving
from tests.support.console_site import (
    ACTOR,
    is_connected,
    own_certificate,
    searches_in,
    trusting,
)
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.console
SECONDS, SEED = 10.0, "1"
REQUESTS, CROWD = 50, SOCKETS_MAX + 4
"""So many requests come at least between two crowds, which are of so many connections."""
RECEIPTS_BYTES = 16 << 20
"""More than the system takes off the console for a reader."""
ANSWER_SECONDS = 2.0
"""What is no whole request is waited for by the console; its answer, if any, is of no interest."""
SILENT, READERS = "silent connections", "readers that read nothing"
CROWDS = {
    SILENT: "",
    "wrong tokens": "GET / HTTP/1.1\r\nHost: {0}\r\nConnection: close\r\n"
    "Authorization: Bearer x\r\n\r\n",
    "half requests": "GET /keys HT",
    READERS: "GET /receipts.jsonl HTTP/1.1\r\nHost: {0}\r\n\r\n",
}
"""What each of a crowd says to a host. Where TLS is spoken, silence is no handshake either."""
PATIENCE_SECONDS = dict.fromkeys(CROWDS, SECONDS_MAX)
"""For so long beyond its promise the console may hold a connection: machines are busy."""
LEFT = "ASGI callable returned without completing response."
"""What the web server says when a browser that takes too long is left in the middle of an answer.

Where machines are busy, its connection is cut off afterwards, and else before.
"""
EVENTS = "GET /events HTTP/1.1\r\nHost: {0}\r\n\r\n"
TOO_MANY, OWNED = "wrong tokens too many", ("logins", "searches that found", "cookie sessions")
REACHED = (*CROWDS, TOO_MANY, *OWNED, "actions", "made up: 200")
METHODS = ("GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "OPTIONS", "get", "")
PATHS = (
    "/", "/partitions", "/topic/orders", "/find", "/help", "/help/clean", "/overview.json",
    "/work", "/work.json", "/time", "/time.json", "/receipts.jsonl", "/metrics", "/healthz",
    "/enter", "/leave", "/do/clean", "/do/pause", "/do/resume", "/do/retry", "/do/other",
    "/static/console.css", "/static/x", "/log/orders/0", "/log/orders/0.json",
    "/log/orders/0/settings.json", "/log/orders/9", "/log/sessions/0", "/log/customers/0",
    "/events", "/keys", "/keys.json", "/key", "/log/orders/0/headers",
    "/log/orders/0/headers.json",
)  # fmt: skip
PIECES = (
    "..", "%2e%2e", "%00", "%ff", "%", "%zz", "//", "\\", ";", "#", "?", "&&", "=", " ", "'", '"',
    "<b>", "\u0663", "\u202e", "orders", "0", "-1", "1e9", "9" * 30, "a" * 900, "{{7*7}}", "null",
    "\r", "\t",
)  # fmt: skip
FIELDS = (
    "q",
    "state",
    "sort",
    "page",
    "topic",
    "partition",
    "form",
    "token",
    "key",
    "as",
    "header",
    "x",
)
HEADERS = (
    "Cookie", "Authorization", "Origin", "Sec-Fetch-Site", "X-Forwarded-Host", "X-Forwarded-Proto",
    "Range", "If-None-Match", "If-Modified-Since", "Accept", "Accept-Encoding", "Upgrade", "Expect",
    "Content-Encoding", "Content-Range", "Last-Event-ID", "Te", "Trailer", "Host", "Content-Length",
)  # fmt: skip


class Fuzzer:
    """Makes requests up, from a seed."""

    def __init__(self, seed: str, origin: str) -> None:
        self._dice = random.Random(seed)
        self._origin = origin

    def text(self) -> str:
        """Return something that somebody could write anywhere."""
        count = self._dice.randrange(4)
        return "".join(self._dice.choice((*PIECES, *FIELDS)) for _ in range(count))

    def request(self) -> bytes:
        """Return a request, most of them whole."""
        dice = self._dice
        path = dice.choice(PATHS)
        if dice.random() < 0.3:
            at = dice.randrange(len(path) + 1)
            path = path[:at] + self.text() + path[at:]
        form = "&".join(f"{dice.choice(FIELDS)}={self.text()}" for _ in range(dice.randrange(5)))
        if dice.random() < 0.4:
            path += "?" + form
        headers = {"Host": urlsplit(self._origin).netloc, "Connection": "close"}
        method = dice.choice(METHODS)
        body = b""
        if method == "POST":
            body = form.encode("utf-8")
            headers |= {
                "Content-Length": str(len(body)),
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": self._origin,
            }
        if dice.random() < 0.5:
            headers["Authorization"] = f"Bearer {ACTOR}"
        for _ in range(dice.randrange(3) if dice.random() < 0.5 else 0):
            headers[dice.choice(HEADERS)] = self.text()
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        data = "\r\n".join(lines).encode("utf-8") + body
        if dice.random() < 0.05:
            at = dice.randrange(len(data))
            data = data[:at] + dice.randbytes(dice.randrange(1, 9)) + data[at + 1 :]
        return data


def connected(origin: str, *, says_nothing: bool = False) -> socket.socket:
    """Return a connection, with TLS where that is spoken."""
    at = urlsplit(origin)
    found = socket.create_connection((at.hostname, at.port), SECONDS_MAX)
    return found if says_nothing or at.scheme == "http" else trusting().wrap_socket(found)


def answered(connection: socket.socket, data: bytes = b"") -> bytes:
    """Send a request and return what comes first; nothing where it is cut off."""
    with connection:
        try:
            connection.sendall(data)
            connection.settimeout(ANSWER_SECONDS)
            return connection.recv(64)
        except OSError:
            return b""


class Strangers(ExitStack):
    """Crowds that hold what they can of a console; closes what is left of them."""

    def __init__(self, origin: str, reached: Counter[str]) -> None:
        super().__init__()
        self._origin = origin
        self._reached = reached
        self._held: list[tuple[str, socket.socket, float]] = []

    def come(self, what: str) -> None:
        """Have a crowd come."""
        said = CROWDS[what].format(urlsplit(self._origin).netloc).encode()
        seconds = gate.REQUEST_SECONDS if what == READERS else server.HEAD_SECONDS
        for _ in range(CROWD):
            each = self.enter_context(connected(self._origin, says_nothing=what == SILENT))
            each.sendall(said)
            self._held.append((what, each, time.monotonic() + seconds + PATIENCE_SECONDS[what]))

    def have_gone(self) -> bool:
        """Say whether the console has let go of all; AssertionError where it holds one too long."""
        for what, each, until in self._held:
            if is_connected(each):
                assert time.monotonic() < until, f"it holds {what}"
            else:
                self._reached[what] += 1
                self._reached[TOO_MANY] += answered(each)[9:12] == b"429"
        self._held = [each for each in self._held if each[1].fileno() >= 0]
        return not self._held


def owner_does(client: httpx.Client, reached: Counter[str]) -> None:
    """Do all that the owner of a token does; whatever strangers send meanwhile, all succeeds."""
    # First without a form: one that is refused before it was read may end in a reset connection.
    assert 200 == client.get("/enter").status_code, "page"
    assert 303 == client.post("/enter", data={"token": ACTOR}).status_code, "login"
    form = re.search(r'name="form" value="([^"]+)"', client.get("/keys").text)
    assert form is not None, "session"
    which = {"form": form[1], "topic": "customers", "partition": "0"}
    found = client.post("/keys", data=which | {"key": "key-00041"})
    assert "What becomes of it" in found.text, "search"
    assert 303 == client.post("/do/retry", data=which).status_code, "action"
    assert 303 == client.post("/leave", data=which).status_code, "logout"
    reached.update(OWNED)


def ask_on(served: Served, seconds: float, seed: str) -> Counter[str]:
    """Send requests until the time is over; returns what was reached, and how often.

    Crowds come in turn, and after each the owner. Metrics and health are there for him at once, and
    pages too; after a crowd of readers, pages are when it has gone. An event stream goes on.
    """
    origin, reached, until = served.address.rstrip("/"), Counter[str](), time.monotonic() + seconds
    fuzzer = Fuzzer(seed, origin)
    # A connection that he left open may be put out for others: he has a new one for each request.
    owner = httpx.Client(
        base_url=origin, headers={"Origin": origin}, timeout=SECONDS_MAX, verify=trusting(),
        limits=httpx.Limits(max_keepalive_connections=0),
    )  # fmt: skip
    with owner, Strangers(origin, reached) as strangers:
        for turn, crowd in enumerate(itertools.cycle(CROWDS)):
            if turn >= len(CROWDS) and time.monotonic() > until:
                wait_until(strangers.have_gone)
                break
            with connected(origin) as stream:
                stream.sendall(EVENTS.format(urlsplit(origin).netloc).encode())
                assert stream.recv(12).endswith(b"200"), "events"
                strangers.come(crowd)
                for path in gate.MEASURED_PATHS:
                    assert 200 == owner.get(path).status_code, path
                if not strangers.have_gone() and crowd in (SILENT, READERS):
                    wait_until(strangers.have_gone)
                assert is_connected(stream), "events"
            owner_does(owner, reached)
            served.clock.advance(1000)
            for at in range(max(REQUESTS, int(seconds))):
                data = fuzzer.request()
                first = answered(connected(origin, says_nothing=at == 0), data)
                if first.startswith(b"HTTP/1.1 "):
                    reached[f"made up: {first[9:12].decode()}"] += 1
                    assert first[9:10] < b"5" or first[9:12] in (b"501", b"503", b"505"), (
                        first,
                        data,
                    )
                reached["actions"] += len(served.source.wishes.take())
    return reached


@contextmanager
def target(seen: ConsoleView, demo: Path, folder: Path, scheme: str) -> Iterator[Served]:
    """Serve more receipts than the system takes off the console for a reader."""
    receipts, searches = folder / "receipts", searches_in(demo, now_ms=seen.now_ms)
    receipts.write_bytes(bytes(RECEIPTS_BYTES))
    certificate = own_certificate(folder) if scheme == "https" else None
    with serving(seen, searches=searches, certificate=certificate) as found:
        found.source.shelf = ReceiptShelf(LocalFiles(), receipts)
        yield found


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the console let go sooner than it does, so that crowds come more often."""
    monkeypatch.setattr(gate, "REQUEST_SECONDS", 3.0)
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_made_up_requests_make_no_route_fail(
    seen: ConsoleView, demo: Path, tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture,
    pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    seconds = float(pytestconfig.getoption("--fuzz-seconds") or SECONDS)
    seed = str(pytestconfig.getoption("--fuzz-seed") or SEED)
    with target(seen, demo, tmp_path, scheme) as served:
        # It keeps quiet what the web server itself complains of.
        caplog.set_level(logging.ERROR, "uvicorn.error")
        reached = ask_on(served, seconds, seed)
    with capsys.disabled():
        print(f"\n{scheme}, seed {seed}:", *sorted(reached.items()), sep="\n  ")
    assert [] == [each for each in REACHED if not reached[each]]
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert [] == [each for each in said if each != LEFT]


async def waits(
    self: Gate, scope: Scope, receive: Receive, send: Send, answer: Any = Gate._answer
) -> None:
    """Answer as a gate where a wrong token waits, and holds its place meanwhile.

    Only in places there are: were every connection held, the next one would be cut off unanswered.
    """
    if self._answers <= gate.ANSWERS_MAX and bearer_of(Headers(scope=scope)) not in (None, ACTOR):
        await anyio.sleep(SECONDS_MAX)
    await answer(self, scope, receive, send)


@pytest.mark.parametrize(
    ("scheme", "judged", "mended", "name", "instead"),
    [
        ("http", READERS, PunctualProtocol, "pause_writing", H11Protocol.pause_writing),
        ("http", "/metrics", gate, "RESERVED_MAX", 0),
        ("http", "503", Gate, "_answer", waits),
        ("https", SILENT, PunctualLoop, "create_server", SelectorEventLoop.create_server),
    ],
)
def test_with_a_mend_taken_away_it_fails(
    seen: ConsoleView, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    scheme: str, judged: str, mended: object, name: str, instead: object,
) -> None:  # fmt: skip
    monkeypatch.setattr(mended, name, instead)
    # With the crowd that is held, and with no other.
    monkeypatch.setitem(PATIENCE_SECONDS, judged, 0.5)
    with (
        target(seen, demo, tmp_path, scheme) as served,
        pytest.raises(AssertionError, match=judged),
    ):
        ask_on(served, 0.0, SEED)
