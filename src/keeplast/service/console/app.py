"""The routes: which page is where, and the document beside it.

Which room answers is here, and nothing else. A static file is looked up in a table.
"""

from __future__ import annotations

import importlib.resources
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from keeplast.clock import Clock
from keeplast.log.files import FileSystem
from keeplast.service.console.acting import Acting
from keeplast.service.console.counting import Counting
from keeplast.service.console.gate import Brake, Entrance, Gate
from keeplast.service.console.reading import Reading
from keeplast.service.console.rendering import Rendering
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.searching import Searching
from keeplast.service.console.streams import EventStreams, StreamLimits
from keeplast.service.console.tokens import Sessions, Tokens
from keeplast.service.console.view import ViewSource

STATIC = {
    "console.css": "text/css; charset=utf-8",
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
        rendering = Rendering(
            source, entrance, clock, has_search=searches is not None,
            has_scans=searches is not None and searches.has_scans,
        )  # fmt: skip
        self._streams = EventStreams(source, StreamLimits() if streams is None else streams)
        self._reading = Reading(source, rendering, clock, files)
        self._brake = Brake()
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

    def asgi(self) -> ASGIApp:
        """Return the application, behind its gate."""
        reading, acting = self._reading, self._acting
        routes = [
            Route("/", reading.overview),
            Route("/overview.json", reading.overview_json),
            Route("/log/{topic}/{partition:int}", reading.log),
            Route("/log/{topic}/{partition:int}.json", reading.log_json),
            Route("/log/{topic}/{partition:int}/settings.json", reading.settings_json),
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
        handlers: dict[Any, Any] = {HTTPException: _refused}
        made = Starlette(routes=[*routes, *self._on_demand], exception_handlers=handlers)
        return Gate(made, self._entrance, self._sessions, self._brake)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "no such file")
    found = importlib.resources.files("keeplast.service.console") / "static" / name
    data = await anyio.to_thread.run_sync(found.read_bytes)
    return Response(data, media_type=STATIC[name], headers={"cache-control": "max-age=60"})


async def _refused(request: Request, error: Exception) -> Response:
    """Answer with the reason; nothing of it is taken for markup."""
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
