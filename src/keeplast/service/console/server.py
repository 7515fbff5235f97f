"""Serves the console's pages, in a thread with a loop of its own, while rounds run.

Rounds never wait for a browser, and nothing can hold the server. A connection that sends no whole
request within :data:`HEAD_SECONDS` is closed, and one that does not take its answer is aborted.
Beyond :data:`SOCKETS_MAX` the longest silence makes room: files that rounds open are of the same
process.

Open pages get events when something has changed: how far the loop is, and which view. Such streams
are counted and end by themselves: what hangs holds none for long.

The routes say which page and which document is where, and nothing else. A static file is looked up
in a table.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import json
import logging
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import uvicorn
from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keeplast.clock import Clock
from keeplast.errors import InvalidError, code_in
from keeplast.log.files import FileSystem
from keeplast.service.console import gate
from keeplast.service.console.acting import Acting, Counting
from keeplast.service.console.addresses import wants_page
from keeplast.service.console.gate import (
    Brake,
    Connections,
    Entrance,
    Gate,
    Sessions,
    Tokens,
    is_loopback,
)
from keeplast.service.console.reading import Reading
from keeplast.service.console.rendering import Rendering, Tagged, tag_of
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.searching import Searching
from keeplast.service.console.view import ViewSource
from keeplast.service.console.wording import progress_document

STREAMS_MAX = 32
STREAM_SECONDS = 300.0
"""An event stream ends after so long; browsers open the next one by themselves."""
STREAM_STEP_SECONDS = 1.0
BEAT, END = "event: beat\ndata:\n\n", "event: end\ndata:\n\n"
"""Heard by scripts: that nothing has changed, and that a next stream is to be opened."""


class StreamLimits(Struct, frozen=True):
    """How many event streams there may be, and how long each lasts; tests have shorter ones."""

    count: int = STREAMS_MAX
    seconds: float = STREAM_SECONDS
    step_seconds: float = STREAM_STEP_SECONDS


class EventStreams:
    """The event streams of one console."""

    def __init__(self, source: ViewSource, limits: StreamLimits) -> None:
        """Take whose events they are."""
        self._source = source
        self._limits = limits
        self._open = 0

    async def begin(self, request: Request) -> Response:
        """Open a stream; 503 when there are too many."""
        if self._open >= self._limits.count:
            # Closed, too: who opens hundreds of them shall not hold all connections.
            raise HTTPException(
                503, "too many event streams are open; the page reloads instead",
                {"connection": "close"},
            )  # fmt: skip
        # Counted before anything is awaited, or many that come at once would all be let in.
        self._open += 1
        return _Stream(self._events(), self._ended)

    def _ended(self) -> None:
        self._open -= 1

    async def _events(self) -> AsyncIterator[str]:
        """Yield an event whenever something has changed, until the stream has lasted long enough.

        One whose browser takes nothing is cut off by the gate.
        """
        left, last = self._limits.seconds, ""
        while True:
            view = await anyio.to_thread.run_sync(self._source.view)
            text = json.dumps({"serial": view.serial, "live": progress_document(self._source)})
            yield f"data: {text}\n\n" if text != last else BEAT
            last = text
            left -= self._limits.step_seconds
            if left <= 0:
                yield END
                return
            await anyio.sleep(self._limits.step_seconds)


class _Stream(StreamingResponse):
    """An event stream that says when it is over, also when it never began."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


STATIC = {
    "console.css": "text/css; charset=utf-8",
    "reloads.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class ConsoleApp:
    """The pages of one place."""

    def __init__(
        self,
        source: ViewSource,
        entrance: Entrance,
        tokens: Tokens,
        clock: Clock,
        files: FileSystem,
        streams: StreamLimits | None = None,
        searches: KeySearches | None = None,
    ) -> None:
        """Take where views come from, and for whom they are; without ``searches`` none is done."""
        self._entrance = entrance
        self._sessions = Sessions(tokens, clock)
        self._rendering = rendering = Rendering(
            source, entrance, clock, has_search=searches is not None,
            has_scans=searches is not None and searches.has_scans,
        )  # fmt: skip
        self._streams = EventStreams(source, StreamLimits() if streams is None else streams)
        self._reading = Reading(source, rendering, clock, files)
        self._brake = Brake(clock)
        self._acting = Acting(source, entrance, self._sessions, rendering, self._brake)
        self._on_demand: list[Route] = []
        if searches is not None:
            searching = Searching(source, searches, self._sessions, rendering)
            self._on_demand += [
                Route("/keys", searching.page, methods=["GET", "POST"]),
                Route("/keys.json", searching.document, methods=["POST"]),
            ]
        if searches is not None and searches.has_scans:
            log = "/log/{topic}/{partition:int}"
            counting = Counting(source, searches, self._sessions, rendering)
            self._on_demand += [
                Route(f"{log}/headers", counting.page, methods=["POST"]),
                Route(f"{log}/headers.json", counting.document, methods=["POST"]),
            ]

    def asgi(self, connections: Connections | None = None) -> ASGIApp:
        """Return the application with its gate."""
        reading, acting = self._reading, self._acting
        routes = [
            Route("/", reading.lines),
            Route("/partitions", reading.lines),
            Route("/topic/{topic}", reading.lines),
            Route("/overview.json", reading.overview_json),
            Route("/log/{topic}/{partition:int}", reading.log),
            Route("/log/{topic}/{partition:int}.json", reading.log_json),
            Route("/log/{topic}/{partition:int}/settings.json", reading.settings_json),
            Route("/time", reading.time),
            Route("/time.json", reading.time_json),
            Route("/find", reading.find),
            Route("/help", reading.help),
            Route("/help/{word}", reading.help),
            Route("/work", reading.work),
            Route("/work.json", reading.work_json),
            Route("/receipts.jsonl", reading.receipts),
            Route("/events", self._streams.begin),
            Route("/metrics", reading.metrics),
            Route("/healthz", reading.health),
            Route("/enter", acting.enter, methods=["GET", "POST"]),
            Route("/leave", acting.leave, methods=["POST"]),
            Route("/do/{deed}", acting.do, methods=["POST"]),
            Route("/static/{name}", _static),
        ]
        handlers: dict[Any, Any] = {HTTPException: self._refused}
        made = Starlette(routes=[*routes, *self._on_demand], exception_handlers=handlers)
        # Its redirects would name the host as the proxy does.
        made.router.redirect_slashes = False
        page = self._rendering.refused
        return Gate(made, self._entrance, self._sessions, self._brake, connections, page)

    async def _refused(self, request: Request, error: Exception) -> Response:
        """Answer with the reason, as a page to a browser; nothing of it is taken for markup."""
        assert isinstance(error, HTTPException)
        code = "" if code_in(error.detail) else " [K709]"
        words, status = f"{error.detail}{code}\n", error.status_code
        if wants_page(request.scope):
            return HTMLResponse(self._rendering.refused(words, status), status, error.headers)
        return PlainTextResponse(words, status, error.headers)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "no such file")
    found = importlib.resources.files("keeplast.service.console") / "static" / name
    data = await anyio.to_thread.run_sync(found.read_bytes)
    headers = {"cache-control": "max-age=60"}
    return Tagged(data, tag_of(data), media_type=STATIC[name], headers=headers)


SOCKETS_MAX = 256
"""More than answers under way; those whose TLS handshake is not over count, too."""
HEAD_SECONDS = 10.0
"""For a whole request, and for a TLS handshake."""
KEEP_ALIVE_SECONDS = 5
HEAD_BYTES_MAX = 16 << 10
GOODBYE_SECONDS = 2
START_STEP_SECONDS = 0.01


class Certificate(Struct, frozen=True):
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
                f"--console-key={self.key} problem={error}",
                code="K704",
            ) from error


def check_entrance(entrance: Entrance) -> None:
    """Raise InvalidError for a console that strangers could overhear."""
    if not is_loopback(entrance.host) and not entrance.is_secure and not entrance.proxies:
        raise InvalidError(
            "others could overhear it. Give --console-certificate and --console-key, or "
            "--behind-proxy with the address of a proxy that speaks TLS, or listen on 127.0.0.1. "
            f"host={entrance.host}",
            code="K703",
        )


class BoundedListener(socket.socket):
    """A listening socket with at most :data:`SOCKETS_MAX` open connections.

    One that comes beyond them takes the place of the connection that has gone longest without an
    answer under way: silence holds no place.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Take the place of ``listener``, which is no socket any more."""
        super().__init__(fileno=listener.detach())
        self._idle: dict[tuple[str, int], socket.socket] = {}
        self._busy: dict[tuple[str, int], socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; ConnectionAbortedError when every other has an answer."""
        connection, peer = super().accept()
        for table in (self._idle, self._busy):
            for gone in [key for key, each in table.items() if each.fileno() < 0]:
                del table[gone]
        if len(self._idle) + len(self._busy) >= SOCKETS_MAX:
            if not self._idle:
                connection.close()
                raise ConnectionAbortedError("too many connections")
            oldest = self._idle.pop(next(iter(self._idle)))
            # Its transport sees the end, and closes it.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._idle[peer[:2]] = connection
        return connection, peer

    def begin(self, peer: tuple[str, int]) -> None:
        """See :class:`keeplast.service.console.gate.Connections`."""
        if peer in self._idle:
            self._busy[peer] = self._idle.pop(peer)

    def end(self, peer: tuple[str, int]) -> None:
        """See :class:`keeplast.service.console.gate.Connections`."""
        if peer in self._busy:
            self._idle[peer] = self._busy.pop(peer)


class PunctualLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait for a TLS handshake as long as for a request."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Return a server that a silent handshake does not hold."""
        if options.get("ssl") is not None:
            options |= {"ssl_handshake_timeout": HEAD_SECONDS, "ssl_shutdown_timeout": HEAD_SECONDS}
        return await super().create_server(*args, **options)


class PunctualProtocol(H11Protocol):
    """HTTP/1.1 whose requests arrive in time, and whose answers are taken in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        # A part of an answer is written when the one before has left: no more is ever queued. What
        # is left of a TLS handshake may pause it at once.
        transport.set_write_buffer_limits(high=1, low=0)
        self._expect()

    def pause_writing(self) -> None:
        """Give the browser :data:`REQUEST_SECONDS` to take what is queued.

        Closing a connection waits for its queue: only aborting it ends one that reads nothing.
        """
        super().pause_writing()
        self._stall = self.loop.call_later(gate.REQUEST_SECONDS, self._cut_off)

    def resume_writing(self) -> None:
        """Note that the queue is empty."""
        super().resume_writing()
        self._end_stall()

    def _cut_off(self) -> None:
        # With a reset: what the kernel holds for this reader goes, too.
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

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
        self._end_stall()
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


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=PunctualLoop) as runner:
        runner.run(server.serve([listener]))


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
        ).asgi(listener)
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
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GOODBYE_SECONDS,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX, **certificate,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=_serve, args=(self._server, listener), name="keeplast-console", daemon=True
        )
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            clock.sleep(START_STEP_SECONDS)
        return self

    def _listen(self) -> BoundedListener:
        host = self._entrance.host
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return BoundedListener(socket.create_server((host, self._entrance.port), family=family))
        except (OSError, OverflowError) as error:
            raise InvalidError(
                "cannot listen there; choose another address or port. "
                f"host={host} port={self._entrance.port} problem={error}",
                code="K701",
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
