"""Serves the console's pages, in a thread with a loop of its own, beside whatever runs.

What hangs holds nothing: a connection that sends no whole request within :data:`HEAD_SECONDS` is
closed, requests beyond :data:`CONNECTIONS_MAX` connections are told to come again, and beyond
:data:`SOCKETS_MAX` nothing is taken from the network: files that rounds open are of the same
process. Rounds never wait for a browser.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keeplast.clock import Clock
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.service.console.app import ConsoleApp
from keeplast.service.console.gate import Entrance, is_loopback
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.tokens import Tokens
from keeplast.service.console.view import ViewSource

CONNECTIONS_MAX = 200
SOCKETS_MAX = 256
"""Those whose TLS handshake is not over count, too."""
HEAD_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 5
HEAD_BYTES_MAX = 16 << 10
GOODBYE_SECONDS = 2
START_STEP_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a TLS certificate and its key, PEM."""

    chain: Path
    key: Path

    def check(self) -> None:
        """Raise InvalidError when they cannot be used."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.chain, self.key, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidError(
                "the certificate cannot be used; give a PEM file of the chain and one of its key "
                f"without a passphrase. --console-certificate={self.chain} "
                f"--console-key={self.key} problem={error}"
            ) from error


def check_entrance(entrance: Entrance) -> None:
    """Raise InvalidError for a console that strangers could overhear."""
    if not is_loopback(entrance.host) and not entrance.is_secure and not entrance.proxies:
        raise InvalidError(
            "others could overhear it; give --console-certificate and --console-key, or "
            "--behind-proxy with the address of a proxy that speaks TLS, or listen on 127.0.0.1. "
            f"host={entrance.host}"
        )


class BoundedListener(socket.socket):
    """A listening socket that closes what comes when :data:`SOCKETS_MAX` of its own are open."""

    def __init__(self, listener: socket.socket) -> None:
        """Take the place of ``listener``, which is no socket any more."""
        super().__init__(fileno=listener.detach())
        self._taken: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; ConnectionAbortedError for one too many."""
        connection, peer = super().accept()
        self._taken = [each for each in self._taken if each.fileno() >= 0]
        if len(self._taken) >= SOCKETS_MAX:
            connection.close()
            raise ConnectionAbortedError("too many connections")
        self._taken.append(connection)
        return connection, peer


class PunctualProtocol(H11Protocol):
    """HTTP/1.1 whose requests arrive in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take what arrived; the time of a request begins with its first byte."""
        super().data_received(data)
        if self._is_waiting():
            self._expect()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._relax()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._is_waiting():
            self.transport.abort()


class ConsoleServer:
    """The console, from ``__enter__`` to ``__exit__``."""

    def __init__(
        self,
        source: ViewSource,
        entrance: Entrance,
        tokens: Tokens,
        clock: Clock,
        files: FileSystem,
        certificate: Certificate | None = None,
        searches: KeySearches | None = None,
    ) -> None:
        """Take what is shown and to whom; port 0 lets the system choose."""
        check_entrance(entrance)
        self._parts = (source, tokens, clock, files)
        self._tokens = tokens
        self._searches = searches
        self._entrance = entrance
        self._certificate = certificate
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Return where browsers find it, while it runs."""
        host, port = self._entrance.host, self._entrance.port
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    @property
    def printed_token(self) -> str | None:
        """Return the token that a random one's link has: the one that allows most."""
        return self._tokens.actor or self._tokens.viewer

    def link(self, token: str) -> str:
        """Return the address with a token in its fragment, which no browser sends anywhere."""
        return f"{self.address}enter#{token}"

    def __enter__(self) -> Self:
        """Listen; InvalidError when the address cannot be had."""
        listener = self._listen()
        self._entrance = replace(self._entrance, port=listener.getsockname()[1])
        source, tokens, clock, files = self._parts
        app = ConsoleApp(
            source, self._entrance, tokens, clock, files, searches=self._searches
        ).asgi()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        certificate: dict[str, Any] = {}
        if self._certificate is not None:
            certificate = {
                "ssl_certfile": self._certificate.chain, "ssl_keyfile": self._certificate.key,
            }  # fmt: skip
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio",
                http=PunctualProtocol, proxy_headers=False, server_header=False,
                limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GOODBYE_SECONDS,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX, **certificate,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="keeplast-console", daemon=True
        )
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            clock.sleep(START_STEP_SECONDS)
        return self

    def _listen(self) -> socket.socket:
        host = self._entrance.host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return BoundedListener(socket.create_server((host, self._entrance.port), family=family))
        except (OSError, OverflowError) as error:
            raise InvalidError(
                "cannot listen there; choose another address or port. "
                f"host={host} port={self._entrance.port} problem={error}"
            ) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening; browsers that still wait are left."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None
