"""Requests that are made up, by seed, to a running console: none of them is answered with 500.

They are bytes on the wire, rightly and wrongly formed, to every route there is. Between them the
owner of a token logs in, searches and acts, and is never held up. ``--fuzz-seconds``
says for how long; a failure shows the request, which is the test's case from then on.
"""

from __future__ import annotations

import logging
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from keeplast.service.console import gate
from keeplast.service.console.view import ConsoleView
from tests.console.conftest import Served, serving
from tests.support.console_site import ACTOR, searches_in
from tests.support.waiting import SECONDS_MAX, wait_until

pytestmark = pytest.mark.console
SECONDS, SEED = 20.0, "1"
REQUESTS_MIN, OWNER_EVERY = 500, 50
ANSWER_SECONDS = 2.0
"""What is no whole request is waited for by the console; its answer, if any, is of no interest."""
METHODS = ("GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "OPTIONS", "get", "")
PATHS = (
    "/", "/overview.json", "/work", "/work.json", "/time", "/time.json",
    "/receipts.jsonl", "/metrics", "/healthz",
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

    def __init__(self, seed: str, port: int) -> None:
        self._dice = random.Random(seed)
        self._port = port

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
        headers = {"Host": f"127.0.0.1:{self._port}", "Connection": "close"}
        method = dice.choice(METHODS)
        body = b""
        if method == "POST":
            body = form.encode("utf-8")
            headers |= {
                "Content-Length": str(len(body)),
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": f"http://127.0.0.1:{self._port}",
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


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the web server itself complains of, which a console keeps quiet."""
    log = logging.getLogger("uvicorn.error")
    before = log.level
    yield caplog
    log.setLevel(before)


def answered(port: int, data: bytes) -> bytes:
    """Send a request and return what comes first; nothing where it is cut off."""
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(ANSWER_SECONDS)
            return connection.recv(64)
        except (ConnectionError, TimeoutError):
            return b""


def owner_does(served: Served) -> None:
    """Do all that the owner of a token does; whatever strangers send meanwhile, all succeeds."""
    headers = {"Origin": served.address.rstrip("/")}
    with httpx.Client(base_url=served.address, headers=headers, timeout=SECONDS_MAX) as client:
        assert 303 == client.post("/enter", data={"token": ACTOR}).status_code, "login"
        page = client.get("/keys")
        form = re.search(r'name="form" value="([^"]+)"', page.text)
        assert form is not None, "session"
        which = {"form": form[1], "topic": "orders", "partition": "0"}
        asked = client.post("/keys", data=which | {"key": "key-00041"}, follow_redirects=True)
        assert 200 == asked.status_code, "search"
        assert 303 == client.post("/do/retry", data=which).status_code, "action"
        assert {200} == {client.get(path).status_code for path in ("/healthz", "/metrics")}


def ask_on(served: Served, port: int, seconds: float, seed: str, strangers: ExitStack) -> int:
    """Send requests until the time is over; returns how many of them were answered.

    Meanwhile silent connections, and readers that read nothing, become more and more.
    """
    fuzzer, until, sent, found = Fuzzer(seed, port), time.monotonic() + seconds, 0, 0
    while time.monotonic() < until or sent < REQUESTS_MIN:
        if sent % OWNER_EVERY == 0:
            for begun in (
                b"GET /keys HT",
                f"GET /receipts.jsonl HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode(),
            ):
                silent = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
                silent.sendall(begun)
            owner_does(served)
        data = fuzzer.request()
        sent += 1
        first = answered(port, data)
        status = re.match(rb"HTTP/1\.1 (\d\d\d) ", first)
        if status is not None:
            found += 1
            assert int(status[1]) < 500 or int(status[1]) in (501, 503, 505), (first, data)
        if served.source.control is not None:
            served.source.control.take()
        if sent % 500 == 0:
            served.clock.advance(1000)
    return found


def test_made_up_requests_make_no_route_fail(
    seen: ConsoleView, demo: Path, told: pytest.LogCaptureFixture, pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Most tokens that are made up are wrong, and each would wait.
    monkeypatch.setattr(gate, "GUESS_SECONDS", 0.0)
    seconds = float(pytestconfig.getoption("--fuzz-seconds") or SECONDS)
    seed = str(pytestconfig.getoption("--fuzz-seed") or SEED)
    with serving(seen, searches=searches_in(demo, now_ms=seen.now_ms)) as served:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        port = int(served.address.rstrip("/").rpartition(":")[2])
        with ExitStack() as strangers:
            found = ask_on(served, port, seconds, seed, strangers)
        assert found > REQUESTS_MIN // 4
        wait_until(lambda: 200 == httpx.get(served.url("/"), timeout=SECONDS_MAX).status_code)
    assert [] == [each.getMessage() for each in told.records if each.name == "uvicorn.error"]
