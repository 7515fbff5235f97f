"""The console on a socket of the loopback, and what it refuses to begin with."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.service.console import gate
from keeplast.service.console import server as module
from keeplast.service.console.gate import Entrance
from keeplast.service.console.server import Certificate, ConsoleServer
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.receipt_shelf import ReceiptShelf
from tests.support.console_site import TOKENS, FixedSource, is_connected, running
from tests.support.manual_clock import ManualClock
from tests.support.waiting import SECONDS_MAX, wait_until

LOOPBACK = "127.0.0.1"


def server(source: FixedSource, host: str = LOOPBACK, port: int = 0) -> ConsoleServer:
    return ConsoleServer(source, Entrance(host, port), TOKENS, ManualClock(0), LocalFiles())


def test_pages_are_served_and_then_no_more(source: FixedSource) -> None:
    with server(source) as running:
        address = running.address
        assert 200 == httpx.get(address, timeout=SECONDS_MAX).status_code
        link = running.link(TOKENS.actor or "")
        assert "#" in link
        assert "?" not in link
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, timeout=SECONDS_MAX)


def test_a_port_that_is_taken_is_reported(source: FixedSource) -> None:
    with (
        running(source, Entrance(LOOPBACK, 0)) as port,
        pytest.raises(InvalidError, match=f"port={port}"),
        server(source, port=port),
    ):
        raise AssertionError("it listens")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "box"])
def test_off_the_loopback_it_wants_tls_or_a_proxy(source: FixedSource, host: str) -> None:
    with pytest.raises(InvalidError, match="--behind-proxy"):
        server(source, host)


def test_a_bad_certificate_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.pem"
    file.write_text("no certificate", encoding="utf-8")
    for chain in (file, tmp_path / "none.pem"):
        with pytest.raises(InvalidError, match="--console-certificate"):
            Certificate(chain, file).check()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_client_without_a_whole_request_is_cut_off(
    source: FixedSource, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.01)
    with (
        running(source, Entrance(LOOPBACK, 0)) as port,
        socket.create_connection((LOOPBACK, port), SECONDS_MAX) as connection,
    ):
        received = b""
        # It may be cut off before anything was sent: that is an error here, and the same.
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            received = connection.recv(1)
        assert b"" == received


def test_silent_connections_make_room_the_longest_silence_first(
    source: FixedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOCKETS_MAX", 4)
    monkeypatch.setattr(module, "HEAD_SECONDS", SECONDS_MAX)
    with running(source, Entrance(LOOPBACK, 0)) as port:
        silent = [socket.create_connection((LOOPBACK, port), SECONDS_MAX) for _ in range(4)]
        try:
            for _ in range(3):
                answer = httpx.get(f"http://{LOOPBACK}:{port}/healthz", timeout=SECONDS_MAX)
                assert 200 == answer.status_code
            for each in silent[:1]:
                with contextlib.suppress(ConnectionError):
                    assert b"" == each.recv(1)
        finally:
            for each in silent:
                each.close()


def test_connections_with_an_answer_under_way_are_never_put_out(
    source: FixedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOCKETS_MAX", 2)
    with running(source, Entrance(LOOPBACK, 0)) as port:
        asked = f"GET /events HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode()
        streams = [socket.create_connection((LOOPBACK, port), SECONDS_MAX) for _ in range(2)]
        try:
            for each in streams:
                each.sendall(asked)
                assert each.recv(12).endswith(b"200")
            with socket.create_connection((LOOPBACK, port), SECONDS_MAX) as more:
                received = b""
                with contextlib.suppress(ConnectionError):
                    received = more.recv(1)
                assert b"" == received
        finally:
            for each in streams:
                each.close()


def test_a_reader_that_takes_nothing_is_aborted_with_all_that_was_queued(
    source: FixedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(self: object, request: object) -> Response:
        answer = Response(b"x" * (64 << 20), media_type="text/plain")
        # Not before: an answer may take as long to begin.
        monkeypatch.setattr(gate, "REQUEST_SECONDS", 0.1)
        return answer

    monkeypatch.setattr("keeplast.service.console.server.Reading.work", work)
    with running(source, Entrance(LOOPBACK, 0)) as port:
        asked = f"GET /work HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode()
        with socket.create_connection((LOOPBACK, port), SECONDS_MAX) as reader:
            reader.sendall(asked)
            assert reader.recv(12).endswith(b"200")
            # It is over while nothing was read: what can still be read is what the kernel had.
            wait_until(lambda: not is_connected(reader))


def test_a_look_that_fails_is_reported_and_the_last_one_stays() -> None:
    looks: list[int] = []

    def look() -> Looked:
        looks.append(1)
        if len(looks) > 1:
            raise OSError(5, "no disk", "there")
        return Looked(now_ms=7)

    files = LocalFiles()
    watcher = Watcher("here", look, ManualClock(0), files, ReceiptShelf(files, None))
    watcher.pause_seconds = 0.0
    with watcher:
        assert (7, None) == (watcher.view().now_ms, watcher.view().problem)
        wait_until(lambda: watcher.view().problem is not None)
        found = watcher.view()
    assert 7 == found.now_ms
    assert "no disk" in str(found.problem)
    assert len(looks) >= 2


def test_there_is_no_look_without_a_request() -> None:
    looks: list[int] = []
    files = LocalFiles()

    def look() -> Looked:
        looks.append(1)
        return Looked()

    watcher = Watcher("here", look, ManualClock(0), files, ReceiptShelf(files, None))
    watcher.pause_seconds = 0.0
    with watcher:
        assert 1 == len(looks)
    assert 1 == len(looks)
