"""The routes of key search: a form, and what is known of the key that it carries.

What a reader must not break: a key comes by POST alone and goes into the answer alone; a token is
needed always, and nothing is searched before topic and partition were found in the view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from keeplast.model.key_text import KeyForm, decode_key
from keeplast.service.console.acting import require_own_form
from keeplast.service.console.asked import PARTITION_MAX, TEXT_LENGTH_MAX, form_of
from keeplast.service.console.errands import run_errand
from keeplast.service.console.found_key import RECORDS_ANSWERED_MAX, found_key
from keeplast.service.console.gate import Visitor
from keeplast.service.console.rendering import Rendering
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.standing import (
    Entry,
    entries,
)
from keeplast.service.console.tokens import Sessions, VisitorRole
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.document_text import document_text
from keeplast.service.explained import KeyAnswer

TOPICS_OFFERED = 500


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """What a form asks: ``partition`` None is all of the topic's; ``key`` is as it was written."""

    topic: str = ""
    partition: int | None = None
    key: str = ""
    form: KeyForm = KeyForm.TEXT
    header: str = ""
    values: bool = False


class Searching:
    """Key search in one console."""

    def __init__(
        self,
        source: ViewSource,
        searches: KeySearches,
        sessions: Sessions,
        rendering: Rendering,
    ) -> None:
        """Take where keys are found, and who may ask."""
        self._source = source
        self._searches = searches
        self._sessions = sessions
        self._rendering = rendering

    async def page(self, request: Request) -> Response:
        """Show the form; by POST also what is known of the key in it."""
        if request.method != "POST":
            question = _prefilled(request)
            return HTMLResponse(await self._rendered(request, question))
        form = await form_of(request)
        require_own_form(request, form, self._sessions)
        question = _prefilled_of(form)
        try:
            question = _question(form)
            answer = await self._answer(request, question)
        except HTTPException as error:
            text = await self._rendered(request, question, problem=error.detail)
            return HTMLResponse(text, error.status_code)
        return HTMLResponse(await self._rendered(request, question, answer))

    async def document(self, request: Request) -> Response:
        """Return the document of ``keeplast explain --json``."""
        form = await form_of(request)
        require_own_form(request, form, self._sessions)
        question = _question(form)
        answer = await self._answer(request, question)
        if sum(len(each.found.records) for each in answer.parts) > RECORDS_ANSWERED_MAX:
            raise HTTPException(
                422, f"more than {RECORDS_ANSWERED_MAX} records; keeplast explain --json has them"
            )

        def make() -> str:
            return document_text(answer.document(values=question.values))

        return await self._rendering.json(make)

    async def _rendered(
        self,
        request: Request,
        question: KeyQuestion,
        answer: KeyAnswer | None = None,
        problem: str = "",
    ) -> str:
        limits = self._searches.limits
        visitor: Visitor = request.state.visitor

        def make() -> str:
            view = self._source.view()
            now_ms = self._rendering.page_ms(view)
            topics = sorted({each.partition.topic for each in entries(view)})
            return self._rendering.page(
                "keys.html", request, view, question=question, problem=problem,
                topics=[each for each in topics if not limits.is_closed(each)][:TOPICS_OFFERED],
                forms=[each.value for each in KeyForm], limits=limits,
                may_search=visitor.role is not VisitorRole.NOBODY,
                found=None
                if answer is None
                else found_key(answer, now_ms, values=question.values),
            )  # fmt: skip

        text: str = await self._rendering.in_turn(make)
        return text

    async def _answer(self, request: Request, question: KeyQuestion) -> KeyAnswer:
        """Return what is known of the key; HTTPException, without the key, for anything else."""
        searches = self._searches
        if question.values and not searches.limits.shows_values:
            raise HTTPException(403, "this console shows no values: --no-values")
        if not question.key and question.form is KeyForm.TEXT:
            raise HTTPException(400, "no key is given; the empty key is written as hex, of nothing")
        view: ConsoleView = await self._rendering.in_turn(self._source.view)
        if not any(_is_asked(question, each) for each in entries(view)):
            raise HTTPException(404, "there is no such topic or partition here")

        def search(has_left: Callable[[], bool]) -> KeyAnswer:
            key = decode_key(question.key, question.form)
            return searches.search(
                question.topic, question.partition, key, question.header or None, has_left
            )

        return await run_errand(request, search)


def _is_asked(question: KeyQuestion, entry: Entry) -> bool:
    at = entry.partition
    return at.topic == question.topic and question.partition in (None, at.partition)


def _prefilled(request: Request) -> KeyQuestion:
    """Return what the URL fills in; a key is never in one."""
    given = request.query_params
    if set(given) - {"topic", "partition"} or len(given.multi_items()) > 2:
        raise HTTPException(400, "the URL names a topic and a partition, and nothing else")
    return _prefilled_of(dict(given))


def _prefilled_of(form: dict[str, str]) -> KeyQuestion:
    topic, number = form.get("topic", ""), form.get("partition", "")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    return KeyQuestion(topic[:TEXT_LENGTH_MAX], int(number) if is_number else None)


def _question(form: dict[str, str]) -> KeyQuestion:
    """Return what a form asks; 400 for what it cannot ask."""
    number, written = form.get("partition", "").strip(), form.get("as", KeyForm.TEXT.value)
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    if number and (not is_number or int(number) >= PARTITION_MAX):
        raise HTTPException(400, "a partition is a number, or nothing for all of them")
    if written not in list(KeyForm):
        raise HTTPException(400, f"a key is written as {', '.join(KeyForm)}")
    if len(form.get("header", "")) > TEXT_LENGTH_MAX:
        raise HTTPException(400, "the name of the header is too long")
    return KeyQuestion(
        form.get("topic", ""), int(number) if number else None, form.get("key", ""),
        KeyForm(written), form.get("header", ""), "values" in form,
    )  # fmt: skip
