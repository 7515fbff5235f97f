"""The routes that change something or read a whole log: visitors, requests to the loop, headers.

The rule that a reader must not break: only by POST, past the gate's check of the origin. A request
has a form of the visitor's own session, or a token in a header.

Batch headers of one log are read only when a visitor presses a button: that reads every byte, and a
page never does so by itself. It needs a token and a form of the session, as key search does.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from keeplast.errors import UnavailableError, error_text
from keeplast.inspect.stages import LogHeaders
from keeplast.service.console import pages
from keeplast.service.console.addresses import way_back
from keeplast.service.console.gate import (
    Brake,
    Entrance,
    Sessions,
    Visitor,
    VisitorRole,
)
from keeplast.service.console.rendering import (
    Rendering,
    form_of,
    given_partition,
    partition_of,
    run_errand,
    shown_entry,
)
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.standing import place_head, status_among
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.document_text import document_text
from keeplast.service.documents import PARTITIONS, headers_document, partition_document
from keeplast.service.live import Deed
from keeplast.service.status import PartitionStatus
from keeplast.service.status_words import stage_lines

DEEDS = {"clean": Deed.CLEAN, "retry": Deed.RETRY, "pause": Deed.PAUSE, "resume": Deed.RESUME}
NO_ROUND = (
    "no round is begun from here in a store or a live cluster; keeplast clean --despite "
    "dirty-ratio does one, and /do/retry has what is skipped or waits tried again"
)


def require_own_form(request: Request, form: dict[str, str], sessions: Sessions) -> None:
    """Raise 403 for a form that is not one of the visitor's session, unless he sent a token."""
    visitor: Visitor = request.state.visitor
    is_ours = sessions.is_form_token(visitor.session, form.get("form", ""))
    if not is_ours and not visitor.has_token:
        raise HTTPException(403, "the form is not one of this session; load the page again")


class Acting:
    """What one console lets visitors do."""

    def __init__(
        self, source: ViewSource, entrance: Entrance, sessions: Sessions, rendering: Rendering,
        brake: Brake,
    ) -> None:  # fmt: skip
        """Take what is asked, and who may ask it."""
        self._source = source
        self._entrance = entrance
        self._sessions = sessions
        self._rendering = rendering
        self._brake = brake

    async def enter(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        visitor: Visitor = request.state.visitor
        if request.method == "GET":
            way = way_back(request.query_params.get("next", ""))
            return HTMLResponse(
                self._rendering.bare(
                    "enter.html", is_wrong=False, has_ended=visitor.has_ended, way=way
                )
            )
        form = await form_of(request)
        way = way_back(form.get("next", ""))
        name = self._sessions.begin(form.get("token", "").strip(), visitor.session)
        if name is None:
            page = self._rendering.bare("enter.html", is_wrong=True, has_ended=False, way=way)
            return self._brake.refusal(visitor.address) or HTMLResponse(page, 403)
        found = RedirectResponse(way, 303)
        found.set_cookie(
            self._entrance.cookie(is_secure=visitor.is_secure), name, path="/", httponly=True,
            samesite="strict", secure=visitor.is_secure,
        )  # fmt: skip
        return found

    async def leave(self, request: Request) -> Response:
        """Forget a session."""
        require_own_form(request, await form_of(request), self._sessions)
        visitor: Visitor = request.state.visitor
        if visitor.session is not None:
            self._sessions.end(visitor.session)
        found = RedirectResponse("/enter", 303)
        found.delete_cookie(
            self._entrance.cookie(is_secure=visitor.is_secure), path="/", httponly=True,
            samesite="strict", secure=visitor.is_secure,
        )  # fmt: skip
        return found

    async def do(self, request: Request) -> Response:
        """Leave a wish for the loop."""
        visitor: Visitor = request.state.visitor
        control = self._source.control
        deed = DEEDS.get(request.path_params["deed"])
        if deed is None:
            raise HTTPException(404, "no such action")
        if control is None or not self._entrance.allows_actions:
            raise HTTPException(403, "actions are off; keeplast run --allow-actions turns them on")
        if visitor.role < VisitorRole.ACTOR:
            raise HTTPException(403, "an actor's token is needed")
        form = await form_of(request)
        require_own_form(request, form, self._sessions)
        partition = None
        if deed in (Deed.CLEAN, Deed.RETRY):
            partition = given_partition(form)
            view = await self._rendering.in_turn(self._source.view)
            shown_entry(view, partition)
            if deed is Deed.CLEAN and view.status is None:
                raise HTTPException(409, NO_ROUND)
        try:
            control.ask(deed, partition, f"console, {visitor.address or 'console'}")
        except UnavailableError as error:
            raise HTTPException(503, error_text(error)) from error
        return RedirectResponse("/work" if partition is None else pages.log_url(partition), 303)


SEGMENTS_MAX = 500


class OnDemand:
    """What one console reads of logs when it is asked to."""

    def __init__(
        self,
        source: ViewSource,
        searches: KeySearches,
        sessions: Sessions,
        rendering: Rendering,
    ) -> None:
        """Take how logs are read, and who may ask."""
        self._source = source
        self._searches = searches
        self._sessions = sessions
        self._rendering = rendering


class Counting(OnDemand):
    """Batch headers in one console."""

    async def page(self, request: Request) -> Response:
        """Show codecs, horizons and stages of one log."""
        view, entry, found = await self._counted(request)

        def make() -> str:
            rows = [*found.segments.items()]
            return self._rendering.page(
                "headers.html", request, view, partition=entry.partition,
                rows=rows[:SEGMENTS_MAX], rows_left=max(len(rows) - SEGMENTS_MAX, 0),
                lines=stage_lines(found.stages, view.now_ms, names_options=False),
            )  # fmt: skip

        return HTMLResponse(await self._rendering.in_turn(make))

    async def document(self, request: Request) -> Response:
        """Return the document of ``keeplast status --json --tombstones headers``, and ``headers``.

        Of a store and a live cluster it is that of ``keeplast status --json``, and what the headers
        say.
        """
        view, entry, found = await self._counted(request)

        def make() -> str:
            status = status_among(view, [entry])
            (one,) = status.partitions
            counted = headers_document(found)
            if one.log is not None:
                one = replace(one, log=replace(one.log, stages=found.stages))
                counted = {"headers": counted["headers"]}
            row = partition_document(one) | counted
            document = {**place_head(view), **status.head(), PARTITIONS: [row]}
            return document_text(document)

        return await self._rendering.json(make)

    async def _counted(self, request: Request) -> tuple[ConsoleView, PartitionStatus, LogHeaders]:
        partition = partition_of(request)
        require_own_form(request, await form_of(request), self._sessions)
        view: ConsoleView = await self._rendering.in_turn(self._source.view)
        entry = shown_entry(view, partition)
        size_bytes = entry.size_bytes
        if size_bytes is None:
            raise HTTPException(400, "nothing is known of this log; there is nothing to count")

        def scan(has_left: Callable[[], bool]) -> LogHeaders:
            return self._searches.scan(partition, size_bytes, has_left)

        return view, entry, await run_errand(request, scan)
