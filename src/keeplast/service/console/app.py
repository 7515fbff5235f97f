"""The routes: which page is where, and the document beside it.

Everything slow (a join, a template, a large document) is done in a worker thread, one at a time:
a browser that asks often makes itself wait and nobody else's round. A page never reads a file by a
name from its URL: a partition is looked up in the view, a static file in a table.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keeplast.clock import Clock
from keeplast.config.setting_rows import settings_document
from keeplast.errors import UnavailableError
from keeplast.log.files import FileSystem, reading
from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_count
from keeplast.service.console import pages
from keeplast.service.console.gate import BODY_BYTES_MAX, Entrance, Gate, Visitor
from keeplast.service.console.tokens import Sessions, Tokens, VisitorRole
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.control import Deed
from keeplast.service.document_text import document_text
from keeplast.service.documents import (
    facts_document,
    status_document,
    store_document,
)
from keeplast.service.metrics import CleanerCollector, exposition
from keeplast.service.status import PartitionStatus

BODY_SECONDS = 10.0
STREAMS_MAX = 32
STREAM_SECONDS = 300.0
"""An event stream ends after so long; browsers open the next one by themselves."""
STREAM_STEP_SECONDS = 1.0
FIELDS_MAX = 8
TEXT_LENGTH_MAX = 300
PAGE_MAX = 1_000_000
PARTITION_MAX = 2**31
CHUNK_BYTES = 1 << 18
RELOAD_SECONDS = 10
STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
DEEDS = {"clean": Deed.CLEAN, "retry": Deed.RETRY, "pause": Deed.PAUSE, "resume": Deed.RESUME}


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How many event streams there may be, and how long each lasts; tests have shorter ones."""

    count: int = STREAMS_MAX
    seconds: float = STREAM_SECONDS
    step_seconds: float = STREAM_STEP_SECONDS


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
    ) -> None:
        """Take where views come from, and for whom they are."""
        self._source = source
        self._entrance = entrance
        self._clock = clock
        self._files = files
        self._streams = StreamLimits() if streams is None else streams
        self._open_streams = 0
        self._sessions = Sessions(tokens, clock)
        self._turn: anyio.CapacityLimiter | None = None
        self._templates = _templates()

    def asgi(self) -> ASGIApp:
        """Return the application, behind its gate."""
        routes = [
            Route("/", self._overview),
            Route("/overview.json", self._overview_json),
            Route("/log/{topic}/{partition:int}", self._log),
            Route("/log/{topic}/{partition:int}.json", self._log_json),
            Route("/log/{topic}/{partition:int}/settings.json", self._settings_json),
            Route("/work", self._work),
            Route("/work.json", self._work_json),
            Route("/receipts.jsonl", self._receipts),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route("/enter", self._enter, methods=["GET", "POST"]),
            Route("/leave", self._leave, methods=["POST"]),
            Route("/do/{deed}", self._do, methods=["POST"]),
            Route("/static/{name}", self._static),
        ]
        handlers: dict[Any, Any] = {HTTPException: _refused}
        return Gate(Starlette(routes=routes, exception_handlers=handlers), self._entrance,
                    self._sessions)  # fmt: skip

    # Pages.

    async def _overview(self, request: Request) -> Response:
        query = _query(request)

        def make() -> str:
            view = self._source.view()
            found = pages.paged(pages.chosen(view, query), query.page)
            return self._page(
                "overview.html", request, view, query=query, found=found,
                rows=pages.overview_rows(view, found.items), states=pages.state_counts(view),
            )  # fmt: skip

        return await self._html(make)

    async def _log(self, request: Request) -> Response:
        partition = _partition(request)

        def make() -> str:
            view = self._source.view()
            entry = pages.find_entry(view, partition)
            if entry is None:
                raise _unknown(partition)
            lines = [each for each in view.receipts if each.partition == partition]
            return self._page(
                "log.html", request, view, log=pages.log_page(view, entry, lines),
                partition=partition,
            )  # fmt: skip

        return await self._html(make)

    async def _work(self, request: Request) -> Response:
        query = _query(request)

        def make() -> str:
            view = self._source.view()
            queue = pages.upcoming(view, self._source.live)
            return self._page(
                "work.html", request, view, query=query, queue=queue[: pages.QUEUE_MAX],
                queue_left=max(len(queue) - pages.QUEUE_MAX, 0), troubles=pages.troubles(view),
                found=pages.paged(pages.receipts_found(view, query), query.page),
            )  # fmt: skip

        return await self._html(make)

    def _page(self, name: str, request: Request, view: ConsoleView, **values: Any) -> str:
        visitor: Visitor = request.state.visitor
        control = self._source.control
        allows_actions = control is not None and self._entrance.allows_actions
        return self._templates.get_template(name).render(
            view=view, live=self._progress(), visitor=visitor, path=request.url.path,
            can_act=allows_actions and visitor.role >= VisitorRole.ACTOR,
            allows_actions=allows_actions,
            form_token=visitor.form_token(), runs=control is not None,
            is_paused=control is not None and control.is_paused, reload_seconds=RELOAD_SECONDS,
            trouble=None if control is None else control.fault(),
            now=pages.moment(view.now_ms, self._clock.now_ms()), **values,
        )  # fmt: skip

    # Documents.

    async def _overview_json(self, request: Request) -> Response:
        query = _query(request)

        def make() -> str:
            view = self._source.view()
            return document_text(_place_document(view, pages.chosen(view, query)))

        return await self._json(make)

    async def _log_json(self, request: Request) -> Response:
        partition = _partition(request)

        def make() -> str:
            view = self._source.view()
            entry = pages.find_entry(view, partition)
            if entry is None:
                raise _unknown(partition)
            return document_text(_place_document(view, [entry]))

        return await self._json(make)

    async def _settings_json(self, request: Request) -> Response:
        partition = _partition(request)

        def make() -> str:
            view = self._source.view()
            if view.settings is None or pages.find_entry(view, partition) is None:
                raise _unknown(partition)
            return document_text(settings_document(view.settings, partition.topic))

        return await self._json(make)

    async def _work_json(self, request: Request) -> Response:
        def make() -> str:
            view = self._source.view()
            snapshot = view.snapshot
            document: dict[str, object] = {
                "now_ms": view.now_ms,
                "is_running": snapshot is not None,
                "problem": view.problem,
                "progress": self._progress(),
            }
            if snapshot is not None:
                document |= {
                    "started_ms": snapshot.started_ms,
                    "turns": snapshot.turn,
                    "slots": snapshot.slots,
                    "tier": snapshot.tier,
                    "queue": list(pages.upcoming(view, self._source.live)),
                    "partitions": [facts_document(each) for each in snapshot.partitions],
                }
            return document_text(document)

        return await self._json(make)

    async def _receipts(self, request: Request) -> Response:
        """Pass on the receipt files as they are, up to where they end now."""

        async def chunks() -> AsyncIterator[bytes]:
            for path in self._source.shelf.paths:
                at = 0
                while True:
                    data = await anyio.to_thread.run_sync(self._chunk, path, at)
                    if not data:
                        break
                    at += len(data)
                    yield data

        return StreamingResponse(
            chunks(), media_type="application/jsonl",
            headers={"content-disposition": 'attachment; filename="keeplast-receipts.jsonl"'},
        )  # fmt: skip

    def _chunk(self, path: Any, at: int) -> bytes:
        if not self._files.exists(path):
            return b""
        with reading(self._files, path) as handle:
            data = bytearray(max(min(CHUNK_BYTES, handle.size_bytes - at), 0))
            if data:
                del data[handle.pread_into(memoryview(data), at) :]
        return bytes(data)

    # What goes on.

    def _progress(self) -> dict[str, Any] | None:
        live = self._source.live
        if live is None:
            return None
        found = live.progress
        return {
            "running": [
                {"topic": each.partition.topic, "partition": each.partition.partition,
                 "why": each.why}
                for each in found.running
            ],
            "since_ms": found.since_ms,
            "read_bytes": found.read_bytes,
            "planned_bytes": found.planned_bytes,
            "idle_until_ms": found.idle_until_ms,
            "words": self._live_words(),
            "serial": found.serial,
        }  # fmt: skip

    def _live_words(self) -> str:
        live, control = self._source.live, self._source.control
        if live is None:
            return ""
        found = live.progress
        if control is not None and control.is_paused and not found.running:
            return "paused"
        if not found.running:
            return "idle" if found.idle_until_ms is not None else "looking"
        names = ", ".join(str(each.partition) for each in found.running[:4])
        read = f"{format_bytes(found.read_bytes)} of {format_bytes(found.planned_bytes)} read"
        return printable(f"cleaning {names}: {read}")

    async def _events(self, request: Request) -> Response:
        if self._open_streams >= self._streams.count:
            # Closed, too: who opens hundreds of them shall not hold all connections.
            raise HTTPException(
                503, "too many event streams are open; the page reloads instead",
                {"connection": "close"},
            )  # fmt: skip
        # Counted before anything is awaited, or many that come at once would all be let in.
        self._open_streams += 1
        return _Stream(self._stream(), self._stream_ended)

    def _stream_ended(self) -> None:
        self._open_streams -= 1

    async def _stream(self) -> AsyncIterator[str]:
        """Yield an event whenever something has changed, until the stream has lasted long enough.

        One whose browser takes nothing is cut off at the same time.
        """
        left, last = self._streams.seconds, ""
        while True:
            view = await anyio.to_thread.run_sync(self._source.view)
            text = json.dumps({"serial": view.serial, "live": self._progress()})
            yield f"data: {text}\n\n" if text != last else ": \n\n"
            last = text
            left -= self._streams.step_seconds
            if left <= 0:
                return
            await anyio.sleep(self._streams.step_seconds)

    async def _metrics(self, request: Request) -> Response:
        def make() -> bytes:
            place = self._source.view().place
            return exposition(CleanerCollector(self._source.gauges, self._clock, place))

        text = await self._in_turn(make)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, request: Request) -> Response:
        control = self._source.control
        fault = self._source.view().problem if control is None else control.fault()
        words = "ok" if fault is None else printable(fault)
        return PlainTextResponse(f"{words}\n", 200 if fault is None else 503)

    # Coming, going, acting.

    async def _enter(self, request: Request) -> Response:
        if request.method == "GET":
            return HTMLResponse(self._templates.get_template("enter.html").render(is_wrong=False))
        form = await _form(request)
        name = self._sessions.begin(form.get("token", "").strip())
        if name is None:
            page = self._templates.get_template("enter.html").render(is_wrong=True)
            return HTMLResponse(page, 403)
        visitor: Visitor = request.state.visitor
        found = RedirectResponse("/", 303)
        found.set_cookie(
            self._entrance.cookie, name, path="/", httponly=True, samesite="strict",
            secure=visitor.is_secure,
        )  # fmt: skip
        return found

    async def _leave(self, request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        if visitor.session is not None:
            self._sessions.end(visitor.session)
        found = RedirectResponse("/enter", 303)
        found.delete_cookie(self._entrance.cookie, path="/", httponly=True, samesite="strict")
        return found

    async def _do(self, request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        control = self._source.control
        deed = DEEDS.get(request.path_params["deed"])
        if deed is None:
            raise HTTPException(404, "no such action")
        if control is None or not self._entrance.allows_actions:
            raise HTTPException(403, "actions are off; keeplast run --allow-actions turns them on")
        if visitor.role < VisitorRole.ACTOR:
            raise HTTPException(403, "an actor's token is needed")
        form = await _form(request)
        is_ours = self._sessions.is_form_token(visitor.session, form.get("form", ""))
        if not is_ours and "authorization" not in request.headers:
            raise HTTPException(403, "the form is not one of this session; load the page again")
        partition = None
        if deed in (Deed.CLEAN, Deed.RETRY):
            partition = _given_partition(form)
            view = await self._in_turn(self._source.view)
            if pages.find_entry(view, partition) is None:
                raise _unknown(partition)
        peer = (request.client.host if request.client else "") or "console"
        try:
            control.ask(deed, partition, f"console, {peer}")
        except UnavailableError as error:
            raise HTTPException(503, str(error)) from error
        return RedirectResponse("/work" if partition is None else pages.log_url(partition), 303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "no such file")
        found = importlib.resources.files("keeplast.service.console") / "static" / name
        data = await anyio.to_thread.run_sync(found.read_bytes)
        return Response(data, media_type=STATIC[name], headers={"cache-control": "max-age=60"})

    # How things are made.

    async def _in_turn(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes, in a worker thread, one at a time."""
        if self._turn is None:
            self._turn = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(make, limiter=self._turn)

    async def _html(self, make: Callable[[], str]) -> Response:
        return HTMLResponse(await self._in_turn(make))

    async def _json(self, make: Callable[[], str]) -> Response:
        return Response(await self._in_turn(make), media_type="application/json")


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


def _templates() -> Environment:
    """Return the templates; every text in them is escaped, and shows no hidden character."""
    found = Environment(
        loader=PackageLoader("keeplast.service.console"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_shown,
    )  # fmt: skip
    found.filters |= {"bytes": format_bytes, "count": format_count, "span": pages.span}
    found.globals |= {
        "moment": pages.moment, "log_url": pages.log_url, "receipt_words": pages.receipt_words,
        "throughput": pages.throughput,
    }  # fmt: skip
    return found


def _shown(value: object) -> object:
    """Return a value as a template shows it: what is markup already stays as it is."""
    return value if isinstance(value, Markup) else printable(str(value))


def _place_document(view: ConsoleView, found: list[pages.Entry]) -> dict[str, Any]:
    """Return what the command line prints of these partitions with ``--json``."""
    if view.status is None:
        wanted = {each.partition for each in found}
        tiers = [each for each in view.tiers if each.partition in wanted]
        return store_document(tiers, view.given_up)
    chosen = [each for each in found if isinstance(each, PartitionStatus)]
    return status_document(replace(view.status, partitions=tuple(chosen)))


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; 400 for what is none."""
    data = b""
    with anyio.move_on_after(BODY_SECONDS) as waiting:
        async for chunk in request.stream():
            data += chunk
            if len(data) > BODY_BYTES_MAX:
                raise HTTPException(413, "the form is too large")
    if waiting.cancelled_caught:
        raise HTTPException(408, "the form did not come")
    try:
        pairs = parse_qsl(
            data.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX,
            errors="strict",
        )  # fmt: skip
    except ValueError as error:
        raise HTTPException(400, "not a form") from error
    return dict(pairs)


def _query(request: Request) -> pages.Query:
    """Return what the URL asks for; 400 for what it cannot ask for."""
    given = request.query_params
    if len(given.multi_items()) > FIELDS_MAX or set(given) - {"q", "state", "sort", "page"}:
        raise HTTPException(400, "no such filter; there are q, state, sort and page")
    text, state, sort = given.get("q", ""), given.get("state", ""), given.get("sort", "")
    if max(len(text), len(state)) > TEXT_LENGTH_MAX:
        raise HTTPException(400, "the filter is too long")
    if sort not in pages.SORTS:
        raise HTTPException(400, "no such order; there are name, size and ratio")
    number = given.get("page", "1")
    is_number = number.isascii() and number.isdigit() and len(number) <= 7
    if not is_number or not 1 <= int(number) <= PAGE_MAX:
        raise HTTPException(400, "no such page; pages are counted from 1")
    return pages.Query(text, state, sort, int(number))


def _partition(request: Request) -> TopicPartition:
    number: int = request.path_params["partition"]
    if number >= PARTITION_MAX:
        raise HTTPException(404, "no such partition")
    return TopicPartition(request.path_params["topic"], number)


def _given_partition(form: dict[str, str]) -> TopicPartition:
    number = form.get("partition", "")
    if not (number.isascii() and number.isdigit() and len(number) <= 10):
        raise HTTPException(400, "which partition is not said")
    return TopicPartition(form.get("topic", ""), int(number))


def _unknown(partition: TopicPartition) -> HTTPException:
    return HTTPException(404, f"no such partition: {printable(str(partition))[:TEXT_LENGTH_MAX]}")


async def _refused(request: Request, error: Exception) -> Response:
    """Answer with the reason; nothing of it is taken for markup."""
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
