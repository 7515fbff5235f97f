"""The routes of key search: a form, and a page in the words of ``keeplast explain``.

The rules that a reader must not break: a key comes by POST alone and goes into the answer alone. A
token is needed always, and nothing is searched before topic and partition were found in the view.

A page has as many rows as its limit allows. Texts are as they are; the template escapes them.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from keeplast.clock import time_text
from keeplast.errors import error_text
from keeplast.inspect.fates import Outlook
from keeplast.model.erasure_request import KeyForm, decode_key
from keeplast.model.partition import TopicPartition
from keeplast.model.text import printable, shown_bytes, without_secrets
from keeplast.service.console.acting import OnDemand, require_own_form
from keeplast.service.console.gate import Visitor, VisitorRole
from keeplast.service.console.pages import log_url
from keeplast.service.console.rendering import (
    PARTITION_MAX,
    TEXT_LENGTH_MAX,
    form_of,
    run_errand,
)
from keeplast.service.console.standing import entries
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import ShownTime, moment
from keeplast.service.document_text import document_text
from keeplast.service.explained import (
    ExplainedPartition,
    KeyAnswer,
    answer_lines,
    fate_words,
    kind_words,
    out_of_service_lines,
    summary_line,
    trace_line,
    unseen_lines,
)

RECORDS_ANSWERED_MAX = 10_000
ROWS_MAX = 500
NOTHING_MAX = 200
VALUE_CHARS = 400
OUTLOOKS = {
    Outlook.WINS: "wins", Outlook.GOES_NEXT: "next round", Outlook.GOES_LATER: "later round",
    Outlook.UNDECIDED: "undecided", Outlook.STAYS: "stays",
}  # fmt: skip


class RecordRow(Struct, frozen=True):
    """A record of the key; ``value`` is empty unless values were asked for.

    ``gone`` is by when it is gone at the latest, if it goes, empty where no date is known.
    """

    offset: int
    segment: int
    time: str
    kind: str
    value: str
    outlook: str
    fate: str
    gone: ShownTime
    goes: bool


class PartitionAnswer(Struct, frozen=True):
    """What one partition has of the key; ``rows_left`` are not shown."""

    partition: TopicPartition
    rows: tuple[RecordRow, ...]
    rows_left: int
    lines: tuple[str, ...]
    last_trace: ShownTime

    @property
    def url(self) -> str:
        """Return where the log's page is."""
        return log_url(self.partition)


class FoundKey(Struct, frozen=True):
    """The whole answer: partitions with the key, the names of some without it, what went wrong."""

    summary: str
    holding: tuple[PartitionAnswer, ...]
    without: tuple[str, ...]
    without_left: int
    problems: tuple[str, ...]
    as_of: ShownTime


def found_key(answer: KeyAnswer, now_ms: int, *, values: bool) -> FoundKey:
    """Return what is shown of an answer, the values of records only with ``values``.

    Ages count from ``now_ms``.
    """
    holding = [each for each in answer.parts if each.has_any]
    without = [each.name for each in answer.parts if each not in holding]
    left = ROWS_MAX
    shown = []
    for each in holding:
        shown.append(_partition_answer(each, left, now_ms, values=values))
        left -= len(shown[-1].rows)
    problems = [
        f"{partition}: {without_secrets(error_text(error))}" for partition, error in answer.faults
    ]
    problems += [f"{partition} is not searched: {reason}" for partition, reason in answer.left_out]
    problems += [
        line for each in answer.parts if each not in holding for line in unseen_lines(each)
    ]
    problems += [line for each in answer.out_of_service for line in out_of_service_lines(each)]
    return FoundKey(
        summary_line(answer), tuple(shown), tuple(without[:NOTHING_MAX]),
        max(len(without) - NOTHING_MAX, 0), tuple(problems[:NOTHING_MAX]),
        moment(max((each.found.now_ms for each in answer.parts), default=now_ms), now_ms),
    )  # fmt: skip


def _partition_answer(
    each: ExplainedPartition, left: int, now_ms: int, *, values: bool
) -> PartitionAnswer:
    found, gone = each.found, moment(each.trace.values_by_ms, now_ms)
    rows = tuple(
        RecordRow(
            record.record.offset, record.record.segment, time_text(record.record.record.timestamp),
            kind_words(record.record),
            shown_bytes(record.record.record.value, VALUE_CHARS) if values else "",
            OUTLOOKS[record.fate.outlook], fate_words(found, record),
            # Such a record goes by when all that is overwritten now is gone.
            *(
                (gone, True)
                if record.fate.by_offset is not None
                and record.fate.outlook in (Outlook.GOES_NEXT, Outlook.GOES_LATER)
                else (ShownTime(""), False)
            ),
        )
        for record in found.records[:left]
    )  # fmt: skip
    prefix = f"{each.name}: "
    # The answer first: by when the last trace is gone.
    last, lines = printable(trace_line(each)), answer_lines(each, names_options=False)
    lines.sort(key=lambda line: line != last)
    return PartitionAnswer(
        found.partition, rows, len(found.records) - len(rows),
        tuple(line.removeprefix(prefix) for line in lines),
        moment(each.trace.by_ms, now_ms),
    )  # fmt: skip


TOPICS_OFFERED = 500


class KeyQuestion(Struct, frozen=True):
    """What a form asks: ``partition`` None is all of the topic's; ``key`` is as it was written."""

    topic: str = ""
    partition: int | None = None
    key: str = ""
    form: KeyForm = KeyForm.TEXT
    header: str = ""
    values: bool = False


class Searching(OnDemand):
    """Key search in one console."""

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
                may_search=visitor.role is not VisitorRole.STRANGER,
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
        if not any(
            each.partition.topic == question.topic
            and question.partition in (None, each.partition.partition)
            for each in entries(view)
        ):
            raise HTTPException(404, "there is no such topic or partition here")

        def search(has_left: Callable[[], bool]) -> KeyAnswer:
            key = decode_key(question.key, question.form)
            return searches.search(
                question.topic, question.partition, key, question.header or None, has_left
            )

        return await run_errand(request, search)


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
