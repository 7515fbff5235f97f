"""How a request is read, and how an answer is made.

The rules that a reader must not break: nothing of a request names a file, a partition is looked up
in the view, and every part is bounded. Every text in a template is escaped and shows no hidden
character.

Answers are made in a worker thread, one at a time, from a template or as a document. A browser that
asks often makes itself wait and no round. Work that one request asks for has a thread of its own,
and ends when the client has left. What fails has a status: busy, over its budget, not understood
(4xx), closed, or of the place.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from keeplast.clock import Clock
from keeplast.errors import (
    CompactionError,
    InvalidError,
    RefusedError,
    StoppedError,
    UnavailableError,
    error_text,
)
from keeplast.model.partition import TopicPartition, range_text
from keeplast.model.text import (
    format_bytes,
    format_count,
    format_counted,
    printable,
    without_folders,
    without_secrets,
)
from keeplast.service.catalogue import help_entries, help_name
from keeplast.service.console import pages, wording, work
from keeplast.service.console.addresses import asked_way, enter_url
from keeplast.service.console.gate import Entrance, Visitor, VisitorRole, form_bytes_max
from keeplast.service.console.lines import wrong_of
from keeplast.service.console.query import Query
from keeplast.service.console.standing import find_entry
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.console.wording import progress_document
from keeplast.service.history import SPANS, Span
from keeplast.service.status import PartitionStatus
from keeplast.service.status_words import seconds_text, state_words

T = TypeVar("T")
STATUS = {UnavailableError: 429, StoppedError: 422, InvalidError: 400, RefusedError: 403}


async def run_errand(request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
    """Return what ``work`` makes in a thread; it is given what says that the client has left.

    HTTPException for its errors. The body of the request was read before.
    """
    has_left = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left.set()

    def run() -> tuple[T | None, Exception | None]:
        try:
            return work(has_left.is_set), None
        except (CompactionError, OSError) as error:
            return None, error

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            found, error = await anyio.to_thread.run_sync(run)
            group.cancel_scope.cancel()
    finally:
        # Also where the server ends and no client waits for the thread.
        has_left.set()
    if error is not None:
        code = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
        raise HTTPException(code, without_secrets(error_text(error))) from error
    return found  # type: ignore[return-value]


BODY_SECONDS = 10.0
FIELDS_MAX = 8
TEXT_LENGTH_MAX = 300
PAGE_MAX = 1_000_000
PARTITION_MAX = 2**31


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; 400 for what is none."""
    data, bytes_max = b"", form_bytes_max(request.url.path)
    with anyio.move_on_after(BODY_SECONDS) as waiting:
        async for chunk in request.stream():
            data += chunk
            if len(data) > bytes_max:
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


def query_of(request: Request, columns: Sequence[str]) -> Query:
    """Return what the URL asks for; 400 for what it cannot ask for.

    A list can be ordered by ``columns``. ``state`` is the field of that name.
    """
    given = request.query_params
    if len(given.multi_items()) > FIELDS_MAX or set(given) - {"q", "state", "sort", "rows", "page"}:
        raise HTTPException(400, "no such filter; there are q, sort, rows and page")
    text, sort = given.get("q", ""), given.get("sort", "")
    rows = "roomy" if given.get("rows") else ""
    if given.get("state"):
        text = f"{text} state:{given['state'].replace(' ', '-')}".strip()
    if len(text) > TEXT_LENGTH_MAX:
        raise HTTPException(400, "the filter is too long")
    if sort.removeprefix("-") not in ("", *columns) or sort == "-":
        raise HTTPException(400, f"no such order; there are {', '.join(columns)}")
    number = given.get("page", "1")
    is_number = number.isascii() and number.isdigit() and len(number) <= 7
    if not is_number or not 1 <= int(number) <= PAGE_MAX:
        raise HTTPException(400, "no such page; pages are counted from 1")
    return Query(text, sort, rows, int(number))


def span_of(request: Request) -> tuple[Span, str]:
    """Return which span of time the URL asks for, and which topic, empty for all; 400 if none."""
    given = request.query_params
    found = [each for each in SPANS if each.name == given.get("span", "30d")]
    if len(given.multi_items()) > FIELDS_MAX or set(given) - {"span", "topic"} or not found:
        raise HTTPException(400, "no such time; there are span (24h, 30d or 1y) and topic")
    return found[0], given.get("topic", "")


def partition_of(request: Request) -> TopicPartition:
    """Return the partition that the path names; 404 for a number that none has."""
    number: int = request.path_params["partition"]
    if number >= PARTITION_MAX:
        raise HTTPException(404, "no such partition")
    return TopicPartition(request.path_params["topic"], number)


def given_partition(form: dict[str, str]) -> TopicPartition:
    """Return the partition that a form names; 400 when it names none."""
    number = form.get("partition", "")
    if not (number.isascii() and number.isdigit() and len(number) <= 10):
        raise HTTPException(400, "which partition is not said")
    return TopicPartition(form.get("topic", ""), int(number))


def unknown(partition: TopicPartition) -> HTTPException:
    """Return the answer to a request for what is not there."""
    return HTTPException(404, f"no such partition: {printable(str(partition))[:TEXT_LENGTH_MAX]}")


def shown_entry(view: ConsoleView, partition: TopicPartition) -> PartitionStatus:
    """Return how a partition stands; 404 for one that is not there."""
    entry = find_entry(view, partition)
    if entry is None:
        raise unknown(partition)
    return entry


RELOAD_SECONDS = 10
REFUSED = {
    400: "This could not be done", 403: "This is not allowed", 404: "There is no such page",
}  # fmt: skip
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
        self.place = entrance.place
        self._clock = clock
        self._turn: anyio.CapacityLimiter | None = None
        self._templates = _templates()

    def bare(self, name: str, **values: Any) -> str:
        """Return a page that says nothing of the place."""
        return self._templates.get_template(name).render(**values)

    def refused(self, words: str, status: int) -> str:
        """Return the page that says why there is no other."""
        return self.bare(
            "refused.html", words=words.strip(), heading=REFUSED.get(status, REFUSED[400])
        )

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
            visitor=visitor, path=request.url.path, enter=enter_url(asked_way(request.scope)),
            can_act=allows_actions and visitor.role >= VisitorRole.ACTOR,
            allows_actions=allows_actions, has_search=self._has_search,
            has_scans=self._has_scans, may_read=visitor.role is not VisitorRole.STRANGER,
            form_token=visitor.form_token(), runs=control is not None,
            is_paused=control is not None and control.is_paused, reload_seconds=RELOAD_SECONDS,
            has_wishes=control is not None and control.has_wishes,
            look_problem=shown_problem(view.problem, view),
            trouble=None if control is None else shown_problem(control.fault(), view),
            now=wording.moment(view.now_ms, page_ms), page_ms=page_ms, wrong=wrong_of(view),
            **values,
        )  # fmt: skip

    async def in_turn(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes, in a worker thread, one at a time."""
        if self._turn is None:
            self._turn = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(make, limiter=self._turn)

    async def html(self, make: Callable[[ConsoleView], str]) -> Response:
        """Answer with a page of the newest view; a script that has what it says is not sent it."""

        def tagged() -> Response:
            text = make(self._source.view())
            tag = tag_of(_AGES.sub("", text).encode())
            text = text.replace(_NO_TAG, f'data-tag="{tag}"', 1)
            looked = _LOOKED.search(text)
            headers = {"x-looked-ms": "" if looked is None else looked[1]}
            return Tagged(text, tag, media_type="text/html", headers=headers)

        found: Response = await self.in_turn(tagged)
        return found

    async def json_pieces(self, make: Callable[[], Iterator[str]]) -> Response:
        """Answer with a long document, piece by piece; other requests get in between.

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


_NO_TAG = 'data-tag=""'
_LOOKED = re.compile(r' data-looked="(\d+)"')
_AGES = re.compile(
    r'^.*?(?=<main)| data-now="\d+" data-looked="\d+"|<p class="seen">.*?</p>|>[^<]*(?=</time>)',
    re.DOTALL,
)
"""What of a page its script counts on itself: the head, when it was made and looked at, ages."""


def tag_of(data: bytes) -> str:
    """Return what differs where content does."""
    return hashlib.sha256(data).hexdigest()[:32]


class Tagged(Response):
    """What a browser that has it is not sent again; ``headers`` are sent to it too."""

    def __init__(self, content: str | bytes, tag: str, **more: Any) -> None:
        super().__init__(content, **more)
        self.headers["etag"] = f'"{tag}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or that it is as it was."""
        if Headers(scope=scope).get("if-none-match") == self.headers["etag"]:
            self.status_code, self.body = 304, b""
            del self.headers["content-length"]
        await super().__call__(scope, receive, send)


def _templates() -> Environment:
    """Return the templates; every text in them is escaped, and shows no hidden character."""
    found = Environment(
        loader=PackageLoader("keeplast.service.console"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_shown,
    )  # fmt: skip
    found.filters |= {"bytes": format_bytes, "count": format_count, "span": seconds_text,
                      "breakable": breakable, "path": unbroken_path, "linked": linked,
                      "cut": cut_name, "marked": marked, "help_name": help_name,
                      "steps": wording.steps_text}  # fmt: skip
    found.globals |= {
        "moment": wording.moment, "log_url": pages.log_url, "topic_url": pages.topic_url,
        "receipt_words": work.receipt_words,
        "throughput": work.throughput, "state_words": state_words,
        "range_text": range_text, "slots_words": work.slots_words,
        "ordinal": wording.ordinal, "counted": format_counted,
    }  # fmt: skip
    return found


def shown_problem(problem: str | None, view: ConsoleView) -> str | None:
    """Return why a look or the loop failed as a page says it: without folders outside the place."""
    return None if problem is None else without_folders(problem, view.place)


def breakable(text: str) -> Markup:
    """Return a text that may be broken after the dots of a name, as in a narrow column."""
    return Markup(".<wbr>").join(escape(each) for each in _NAME_DOTS.split(printable(text)))


NAME_MAX, NAME_END = 20, 10


def cut_name(text: str) -> Markup:
    """Return a name that is cut in its middle where there is no room; a tip has all of it."""
    whole = printable(text)
    if len(whole) <= NAME_MAX:
        return escape(whole)
    begin, end = whole[:-NAME_END], whole[-NAME_END:]
    return Markup('<span class="cut" title="{}"><span>{}</span>{}</span>').format(whole, begin, end)


def unbroken_path(text: str) -> Markup:
    """Return where something is: a path, whose last two names are not broken, and what follows."""
    path, blank, more = printable(text).partition(" at byte ")
    names = path.split("/")
    folder = "".join(f"{each}/" for each in names[:-2])
    last = "/".join(names[-2:])
    return Markup('{}<span class="n">{}</span>{}').format(folder, last, blank + more)


_REFERENCE = re.compile(
    r"(?<=\[)K\d{3}(?=\])|(?<![\w.-])[a-z]+(?:\.[a-z]+)+(?![\w-]|\.\w)"
    r"|(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC \((in [^()]+|[^()]+ ago|(?:just )?now)\)"
    r"|(?<=: )(keeplast [a-z].*)\Z"
)
_MARKUP = re.compile(r"`(.+?)`|\*\*(.+?)\*\*|\*(.+?)\*")


def linked(text: str) -> Markup:
    """Return a sentence whose codes and settings lead to their help, and whose ages count on.

    A command that it ends with can be copied.
    """
    return Markup(_REFERENCE.sub(_reference, str(escape(printable(text)))))


def _reference(found: re.Match[str]) -> str:
    if found[1]:
        try:
            at = datetime.fromisoformat(f"{found[1]}+00:00")
        except ValueError:
            return found[0]
        at_ms, iso = round(at.timestamp() * 1000), at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f'{found[1]} UTC (<time datetime="{iso}" data-at="{at_ms}">{found[2]}</time>)'
    if found[3]:
        return f'<code class="command">{found[3]}</code>'
    name = help_name(found[0])
    return f'<a href="/help/{name}">{found[0]}</a>' if name in help_entries() else found[0]


def marked(text: str) -> Markup:
    """Return a text of the documents with its markup: code, bold, italic."""
    parts = {1: "code", 2: "strong", 3: "em"}

    def shown_as(found: re.Match[str]) -> str:
        tag = parts[found.lastindex or 1]
        return f"<{tag}>{found[found.lastindex or 1]}</{tag}>"

    return Markup(_MARKUP.sub(shown_as, str(escape(printable(text)))))


def _shown(value: object) -> object:
    """Return a value as a template shows it: what is markup already stays as it is."""
    return value if isinstance(value, Markup) else printable(str(value))
