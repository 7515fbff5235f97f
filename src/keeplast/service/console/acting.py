"""The routes that change something: who comes and goes, and what is asked of the loop.

What a reader must not break: only by POST, past the gate's check of the origin, with a form of the
visitor's own session or a token in a header.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from keeplast.errors import UnavailableError
from keeplast.service.console import pages
from keeplast.service.console.asked import form_of, given_partition, unknown
from keeplast.service.console.gate import Brake, Entrance, Visitor
from keeplast.service.console.rendering import Rendering
from keeplast.service.console.standing import (
    find_entry,
)
from keeplast.service.console.tokens import Sessions, VisitorRole
from keeplast.service.console.view import ViewSource
from keeplast.service.control import Deed

DEEDS = {"clean": Deed.CLEAN, "retry": Deed.RETRY, "pause": Deed.PAUSE, "resume": Deed.RESUME}
NO_ROUND = (
    "no round is begun from here in a store or a live cluster; keeplast clean --force does one, "
    "and /do/retry has what is skipped or waits tried again"
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
        if request.method == "GET":
            return HTMLResponse(self._rendering.bare("enter.html", is_wrong=False))
        form = await form_of(request)
        name = self._sessions.begin(form.get("token", "").strip())
        if name is None:
            await self._brake.wait()
            page = self._rendering.bare("enter.html", is_wrong=True)
            return HTMLResponse(page, 403)
        visitor: Visitor = request.state.visitor
        found = RedirectResponse("/", 303)
        found.set_cookie(
            self._entrance.cookie, name, path="/", httponly=True, samesite="strict",
            secure=visitor.is_secure,
        )  # fmt: skip
        return found

    async def leave(self, request: Request) -> Response:
        """Forget a session."""
        require_own_form(request, await form_of(request), self._sessions)
        visitor: Visitor = request.state.visitor
        if visitor.session is not None:
            self._sessions.end(visitor.session)
        found = RedirectResponse("/enter", 303)
        found.delete_cookie(self._entrance.cookie, path="/", httponly=True, samesite="strict")
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
            if find_entry(view, partition) is None:
                raise unknown(partition)
            if deed is Deed.CLEAN and view.status is None:
                raise HTTPException(409, NO_ROUND)
        peer = (request.client.host if request.client else "") or "console"
        try:
            control.ask(deed, partition, f"console, {peer}")
        except UnavailableError as error:
            raise HTTPException(503, str(error)) from error
        return RedirectResponse("/work" if partition is None else pages.log_url(partition), 303)
