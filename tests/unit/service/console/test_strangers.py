"""A running console and what strangers send it over the wire, as no library of a client would.

The routes are the application's own: one that is new is tried too.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from keeplast.log.files import LocalFiles
from keeplast.service.console import gate, server
from keeplast.service.console.addresses import ENTER_PATH
from keeplast.service.console.gate import ANSWERS_MAX, STATIC_PATH, Entrance
from keeplast.service.console.server import (
    STREAMS_MAX,
    Certificate,
    ConsoleApp,
)
from tests.support.console_site import (
    OPEN,
    TOKENS,
    VIEWER,
    FixedSource,
    own_certificate,
    running,
    searches_in,
    trusting,
)
from tests.support.manual_clock import ManualClock
from tests.support.waiting import SECONDS_MAX, wait_until

LOOPBACK, ELSEWHERE = "127.0.0.1", "127.0.0.2"
PARTS = {
    "topic": "orders", "partition": "0", "deed": "pause", "name": "console.css", "word": "clean",
}  # fmt: skip
"""What stands for the parts of a route."""
SECRETS = ("orders", "root:", "import ")


def routes(source: FixedSource) -> list[tuple[str, str]]:
    """Return method and path of every route there is."""
    app: Any = ConsoleApp(
        source, OPEN, TOKENS, ManualClock(0), LocalFiles(),
        searches=searches_in(Path(source.found.place)),
    ).asgi()  # fmt: skip
    found = []
    for route in app._app.routes:
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda part: PARTS[part[1]], route.path)
        found += [(method, path) for method in sorted(route.methods - {"HEAD"})]
    return found


@pytest.fixture
def port(source: FixedSource) -> Iterator[int]:
    """A console on loopback that takes orders."""
    with running(source, Entrance(LOOPBACK, 0, allows_actions=True)) as found:
        yield found


def ask(method: str, url: str, *, local: str = LOOPBACK, **headers: str) -> httpx.Response:
    """Ask from the address ``local``; certificates are taken as they are."""
    transport = httpx.HTTPTransport(verify=trusting(), local_address=local)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    content = b"token=x&form=y" if method == "POST" else None
    if content is not None:
        given["content-type"] = "application/x-www-form-urlencoded"
    with (
        httpx.Client(transport=transport, timeout=SECONDS_MAX, headers=given) as client,
        client.stream(method, url, content=content) as answer,
    ):
        # An event stream does not end.
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            answer.read()
        return answer


def sent(port: int, data: bytes) -> int:
    """Send bytes that can be answered as they are; returns the status, 0 where there is none."""
    with socket.create_connection((LOOPBACK, port), SECONDS_MAX) as connection:
        received = b""
        # It may be closed before all was sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            while len(received) < 12 and (more := connection.recv(12)):
                received += more
    return int(received[9:12]) if received.startswith(b"HTTP/1.1 ") else 0


def head(line: bytes, port: int, *headers: bytes) -> bytes:
    """Return the head of a request that names the console rightly."""
    return b"\r\n".join([line, b"Host: 127.0.0.1:%d" % port, *headers, b"", b""])


def assert_answers(port: int) -> None:
    """Assert that the console still does what it is for."""
    for path in ("healthz", "", "work.json"):
        assert 200 == httpx.get(f"http://{LOOPBACK}:{port}/{path}", timeout=SECONDS_MAX).status_code


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """A certificate without a voucher."""
    return own_certificate(tmp_path)


def test_on_another_address_every_route_wants_a_token(
    source: FixedSource, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another address that no packet leaves this host for.
    for module in (gate, server):
        monkeypatch.setattr(module, "is_loopback", lambda host: host != ELSEWHERE)
    entrance = Entrance(ELSEWHERE, 0, is_secure=True, allows_actions=True)
    with running(source, entrance, certificate) as port:
        base = f"https://{ELSEWHERE}:{port}"
        for method, path in routes(source):
            is_open = path == ENTER_PATH or path.startswith(STATIC_PATH)
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"cookie": f"keeplast-{port}=x"},
            ):
                answer = ask(method, base + path, origin=base, **headers)
                if is_open:
                    assert answer.status_code == (403 if method == "POST" else 200), path
                    continue
                leads_in = answer.headers.get("location", "").startswith(ENTER_PATH)
                is_asked = (answer.status_code, leads_in) == (303, True)
                assert is_asked or 401 == answer.status_code, (method, path)
                assert not any(word in answer.text for word in SECRETS), (method, path)
            if method == "GET":
                answer = ask(method, base + path, authorization=f"Bearer {VIEWER}")
                assert 200 == answer.status_code, path
                assert answer.headers["cache-control"]
        assert not source.wishes.has_wishes


def test_behind_a_proxy_only_the_proxy_reaches_a_route(source: FixedSource) -> None:
    entrance = Entrance(LOOPBACK, 0, proxies=(ELSEWHERE,), allows_actions=True)
    with running(source, entrance) as port:
        base = f"http://{LOOPBACK}:{port}"
        for method, path in routes(source):
            given = {"authorization": f"Bearer {TOKENS.actor}"}
            assert 403 == ask(method, base + path, **given).status_code, path
            answer = ask(method, base + path, local=ELSEWHERE, x_forwarded_host="evil.example")
            assert 421 == answer.status_code, path
            answer = ask(method, base + path, local=ELSEWHERE)
            is_open = path == ENTER_PATH or path.startswith(STATIC_PATH)
            assert is_open or answer.status_code in (303, 401, 403), path


def test_keys_and_headers_are_among_the_routes_that_are_tried(source: FixedSource) -> None:
    expected = {
        ("POST", "/keys.json"), ("POST", "/keys"), ("GET", "/keys"),
        ("POST", "/log/orders/0/headers"), ("POST", "/log/orders/0/headers.json"),
    }  # fmt: skip
    assert expected < set(routes(source))


def test_no_route_is_reached_by_a_foreign_name(source: FixedSource, port: int) -> None:
    for method, path in routes(source):
        line = f"{method} {path} HTTP/1.1".encode()
        for host in (b"evil.example", b"127.0.0.1.evil.example:%d" % port, b""):
            assert 421 == sent(port, b"%s\r\nHost: %s\r\n\r\n" % (line, host)), (path, host)
        assert 400 == sent(port, head(line, port, b"Host: evil.example")), path
        assert 400 == sent(port, line + b"\r\n\r\n"), path


def test_no_route_takes_a_form_of_another_origin(source: FixedSource, port: int) -> None:
    base = f"http://{LOOPBACK}:{port}"
    posted = [path for method, path in routes(source) if method == "POST"]
    assert posted
    for path in posted:
        for headers in (
            {"origin": "https://evil.example"}, {"origin": "null"}, {},
            {"origin": base.replace("http", "https")}, {"sec_fetch_site": "cross-site"},
        ):  # fmt: skip
            answer = ask("POST", base + path, **headers)
            assert 403 == answer.status_code, (path, headers)
            assert "set-cookie" not in answer.headers
    assert not source.wishes.has_wishes


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    ("line", "headers", "body"),
    [
        (b"GARBAGE", (), b""),
        (b"GET / HTTP/9.9", (), b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (), b""),
        (b"GET /\x00 HTTP/1.1", (), b""),
        (b"GET /\xff\xfe HTTP/1.1", (), b""),
        (b"GET /%ff%fe%00 HTTP/1.1", (), b""),
        (b"GET /log/%ff/0 HTTP/1.1", (), b""),
        (b"GET /?page=%zz&q=%ff HTTP/1.1", (), b""),
        (b"GET http://evil.example/ HTTP/1.1", (), b""),
        (b"GET //evil.example/ HTTP/1.1", (), b""),
        (b"GET * HTTP/1.1", (), b""),
        (b"OPTIONS * HTTP/1.1", (), b""),
        (b"CONNECT evil.example:443 HTTP/1.1", (), b""),
        (b"TRACE / HTTP/1.1", (), b""),
        (b"GET / HTTP/1.1", (b"Authorization: Bearer \xff\xfe",), b""),
        (b"GET / HTTP/1.1", (b"Cookie: \xff=;;=\x7f; keeplast-0",), b""),
        (b"GET / HTTP/1.1", (b"X: a\x00b",), b""),
        (b"GET / HTTP/1.1", (b" folded",), b""),
        (b"GET /metrics HTTP/1.1", (b"Range: bytes=-1",), b""),
        (b"GET /events HTTP/1.1", (b"Content-Length: 3",), b"abc"),
        (b"POST /enter HTTP/1.1", (b"Transfer-Encoding: chunked",), b"zz\r\n"),
        (b"POST /enter HTTP/1.1", (b"Transfer-Encoding: gzip",), b""),
        (b"POST /enter HTTP/1.1", (b"Content-Length: 1", b"Content-Length: 2"), b"ab"),
        (b"POST /enter HTTP/1.1", (b"Content-Length: -1",), b""),
        (b"POST /enter HTTP/1.1", (b"Content-Length: " + b"9" * 4000,), b""),
    ],
)  # fmt: skip
def test_a_bad_request_fails_nothing(
    port: int, line: bytes, headers: tuple[bytes, ...], body: bytes
) -> None:
    code = sent(port, head(line, port, *headers) + body)
    assert code < 500 or code in (501, 505)
    assert_answers(port)


FORM = (b"Content-Type: application/x-www-form-urlencoded", b"Sec-Fetch-Site: same-origin")


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("expected", "line", "headers", "body"),
    [
        ({400, 414}, b"GET /" + b"a" * 100_000 + b" HTTP/1.1", (), b""),
        ({400, 431}, b"GET / HTTP/1.1", (b"X: " + b"a" * 100_000,), b""),
        ({400, 431}, b"GET / HTTP/1.1", tuple(b"X%d: a" % n for n in range(20_000)), b""),
        ({431}, b"GET / HTTP/1.1", (b"X: " + b"a" * 12_000, b"Y: " + b"a" * 4_000), b""),
        ({414}, b"GET /log/" + b"a" * 2000 + b"/0 HTTP/1.1", (), b""),
        ({414}, b"GET /?q=" + b"a" * 3000 + b" HTTP/1.1", (), b""),
        ({413}, b"POST /enter HTTP/1.1", (*FORM, b"Content-Length: 1000000"), b"a" * 1_000_000),
        ({411}, b"POST /enter HTTP/1.1", (*FORM, b"Transfer-Encoding: chunked"),
         b"%x\r\n%s\r\n0\r\n\r\n" % (50_000, b"a" * 50_000)),
        # It says little and sends much: the rest is another request, and none.
        ({403}, b"POST /enter HTTP/1.1", (*FORM, b"Content-Length: 7"),
         b"token=x" + b"a" * 100_000),
    ],
)  # fmt: skip
def test_a_large_request_is_refused(
    port: int, expected: set[int], line: bytes, headers: tuple[bytes, ...], body: bytes
) -> None:
    # Who is refused early may find the connection closed before all was sent.
    assert sent(port, head(line, port, *headers) + body) in expected | {0}
    assert_answers(port)


def test_a_tls_handshake_that_says_nothing_ends_as_a_silent_request_does(
    source: FixedSource, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)
    with (
        running(source, Entrance(LOOPBACK, 0, is_secure=True), certificate) as port,
        socket.create_connection((LOOPBACK, port), SECONDS_MAX) as silent,
    ):
        received = b""
        with contextlib.suppress(ConnectionError):
            received = silent.recv(1)
        assert b"" == received


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    "target",
    [
        "/static/../app.py", "/static/../../../../../../../etc/passwd", "/static/..%2fapp.py",
        "/static/%2e%2e/gate.py", "/static/..%5capp.py", "/static/....//app.py",
        "/static//etc/passwd", "/static/%00", "/static/console.css%00.py", "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/log/..%2f..%2f..%2fetc%2fpasswd/0", "/log/%2fetc%2fpasswd/0.json",
        "/log/../keeplast.toml", "/log/orders/..%2f0", "/receipts.jsonl/..%2f..%2fetc%2fpasswd",
        "file:///etc/passwd", "/keeplast.toml", "/log/orders/0/keeplast.toml",
    ],
)  # fmt: skip
def test_no_target_leads_to_a_file(port: int, target: str) -> None:
    with socket.create_connection((LOOPBACK, port), SECONDS_MAX) as connection:
        connection.sendall(head(f"GET {target} HTTP/1.1".encode(), port, b"Connection: close"))
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    assert received.split(b" ")[1] in (b"400", b"404"), received[:100]
    text = received.decode()
    assert not any(word in text.partition("\r\n\r\n")[2] for word in ("root:", "import ", "[topic"))


def test_two_hundred_idle_streams_leave_the_others_alone(source: FixedSource, port: int) -> None:
    streams = []
    try:
        # All of them ask before one is answered.
        for _ in range(ANSWERS_MAX):
            streams.append(socket.create_connection((LOOPBACK, port), SECONDS_MAX))
        for each in streams:
            each.sendall(head(b"GET /events HTTP/1.1", port))
        codes = Counter(each.recv(12)[9:] for each in streams)
        assert {b"200", b"503"} >= codes.keys()
        assert codes[b"200"] <= STREAMS_MAX
        # Who is refused holds no connection: others are served while the streams go on.
        wait_until(lambda: 200 == ask("GET", f"http://{LOOPBACK}:{port}/").status_code)
        assert_answers(port)
        refused = ask("GET", f"http://{LOOPBACK}:{port}/events")
        assert refused.status_code == (503 if codes[b"200"] == STREAMS_MAX else 200)
    finally:
        for each in streams:
            each.close()
    # Who has gone counts no more.
    wait_until(lambda: 200 == ask("GET", f"http://{LOOPBACK}:{port}/events").status_code)


def test_many_streams_at_once_are_counted_before_they_begin(source: FixedSource, port: int) -> None:
    streams = [
        socket.create_connection((LOOPBACK, port), SECONDS_MAX) for _ in range(STREAMS_MAX + 20)
    ]
    try:
        for each in streams:
            each.sendall(head(b"GET /events HTTP/1.1", port))
        codes = Counter(each.recv(12)[9:] for each in streams)
        assert {b"200": STREAMS_MAX, b"503": 20} == codes
    finally:
        for each in streams:
            each.close()
