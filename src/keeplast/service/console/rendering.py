"""How an answer is made: from a template or as a document, in a worker thread, one at a time.

What a reader must not break: every text in a template is escaped and shows no hidden character. A
browser that asks often makes itself wait and nobody else's round.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from keeplast.clock import Clock
from keeplast.model.escapes import printable
from keeplast.model.offsets import range_text
from keeplast.model.redaction import without_folders
from keeplast.model.size import format_bytes, format_count
from keeplast.service.console import pages, shown_time, work
from keeplast.service.console.gate import Entrance, Visitor
from keeplast.service.console.progress import progress_document
from keeplast.service.console.tokens import VisitorRole
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.status_words import seconds_text, state_words

RELOAD_SECONDS = 10
_NAME_DOTS = re.compile(r"(?<=[a-z])\.(?=[a-z])")


class Rendering:
    """Makes the answers of one console."""

    def __init__(
        self,
        source: ViewSource,
        entrance: Entrance,
        clock: Clock,
        *,
        has_search: bool,
        has_scans: bool,
    ) -> None:
        """Take what every page says of the place, and to whom.

        ``has_search`` says that keys are found here, ``has_scans`` that batch headers are read.
        """
        self._has_search = has_search
        self._has_scans = has_scans
        self._source = source
        self._entrance = entrance
        self._clock = clock
        self._turn: anyio.CapacityLimiter | None = None
        self._templates = _templates()

    def bare(self, name: str, **values: Any) -> str:
        """Return a page that says nothing of the place."""
        return self._templates.get_template(name).render(**values)

    def page_ms(self, view: ConsoleView) -> int:
        """Return the time of a page: ages count from it, not from when the place was looked at."""
        return max(self._clock.now_ms(), view.now_ms)

    def page(self, name: str, request: Request, view: ConsoleView, **values: Any) -> str:
        """Return a page, with what every one says."""
        visitor: Visitor = request.state.visitor
        page_ms = self.page_ms(view)
        control = self._source.control
        allows_actions = control is not None and self._entrance.allows_actions
        return self._templates.get_template(name).render(
            view=view, host=self._entrance.own_name, live=progress_document(self._source),
            visitor=visitor, path=request.url.path,
            can_act=allows_actions and visitor.role >= VisitorRole.ACTOR,
            allows_actions=allows_actions, has_search=self._has_search,
            has_scans=self._has_scans, may_read=visitor.role is not VisitorRole.NOBODY,
            form_token=visitor.form_token(), runs=control is not None,
            is_paused=control is not None and control.is_paused, reload_seconds=RELOAD_SECONDS,
            has_wishes=control is not None and control.has_wishes,
            look_problem=shown_problem(view.problem, view),
            trouble=None if control is None else shown_problem(control.fault(), view),
            now=shown_time.moment(view.now_ms, page_ms), page_ms=page_ms, **values,
        )  # fmt: skip

    async def in_turn(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes, in a worker thread, one at a time."""
        if self._turn is None:
            self._turn = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(make, limiter=self._turn)

    async def html(self, make: Callable[[], str]) -> Response:
        """Answer with a page."""
        return HTMLResponse(await self.in_turn(make))

    async def json_pieces(self, make: Callable[[], Iterator[str]]) -> Response:
        """Answer with a long document, piece by piece; whoever else asks gets in between.

        The first piece is made before the answer begins: what is refused has its own code.
        """
        pieces = await self.in_turn(make)
        first = await self.in_turn(lambda: next(pieces, None))

        async def rest() -> AsyncIterator[str]:
            piece = first
            while piece is not None:
                yield piece
                piece = await self.in_turn(lambda: next(pieces, None))

        return StreamingResponse(rest(), media_type="application/json")

    async def json(self, make: Callable[[], str]) -> Response:
        """Answer with a document."""
        return Response(await self.in_turn(make), media_type="application/json")


def _templates() -> Environment:
    """Return the templates; every text in them is escaped, and shows no hidden character."""
    found = Environment(
        loader=PackageLoader("keeplast.service.console"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_shown,
    )  # fmt: skip
    found.filters |= {"bytes": format_bytes, "count": format_count, "span": seconds_text,
                      "breakable": breakable, "path": unbroken_path}  # fmt: skip
    found.globals |= {
        "moment": shown_time.moment, "log_url": pages.log_url, "receipt_words": work.receipt_words,
        "throughput": work.throughput, "state_words": state_words,
        "range_text": range_text, "slots_words": work.slots_words,
    }  # fmt: skip
    return found


def shown_problem(problem: str | None, view: ConsoleView) -> str | None:
    """Return why a look or the loop failed as a page says it: without folders outside the place."""
    return None if problem is None else without_folders(problem, view.place)


def breakable(text: str) -> Markup:
    """Return a text that may be broken behind the dots of a name, as in a narrow column."""
    return Markup(".<wbr>").join(escape(each) for each in _NAME_DOTS.split(printable(text)))


def unbroken_path(text: str) -> Markup:
    """Return where something is: a path, the last two names of which are not broken, and what
    follows.
    """
    path, blank, more = printable(text).partition(" at byte ")
    names = path.split("/")
    folder = "".join(f"{each}/" for each in names[:-2])
    last = "/".join(names[-2:])
    return Markup('{}<span class="n">{}</span>{}').format(folder, last, blank + more)


def _shown(value: object) -> object:
    """Return a value as a template shows it: what is markup already stays as it is."""
    return value if isinstance(value, Markup) else printable(str(value))
