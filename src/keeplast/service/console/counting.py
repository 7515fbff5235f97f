"""The routes that read the batch headers of one log, when somebody asks for it by a button.

A page never does so by itself: it reads every byte. By POST, with a token and a form of the
session, as key search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from keeplast.inspect.header_scan import LogHeaders
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.console.acting import require_own_form
from keeplast.service.console.asked import form_of, partition_of, unknown
from keeplast.service.console.errands import run_errand
from keeplast.service.console.rendering import Rendering
from keeplast.service.console.searches import KeySearches
from keeplast.service.console.shown_time import ShownTime, moment
from keeplast.service.console.standing import (
    Entry,
    find_entry,
)
from keeplast.service.console.tokens import Sessions
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.document_text import document_text
from keeplast.service.documents import (
    PARTITIONS,
    headers_document,
    status_document,
    store_head,
    tier_document,
)
from keeplast.service.status_words import stage_lines
from keeplast.store.status import TierStatus

SEGMENTS_MAX = 500


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """A segment's batches, as a page shows them."""

    base_offset: int
    batches: int
    records: int
    codecs: str
    stamped: int
    first: ShownTime
    last: ShownTime


class Counting:
    """Batch headers in one console."""

    def __init__(
        self,
        source: ViewSource,
        searches: KeySearches,
        sessions: Sessions,
        rendering: Rendering,
    ) -> None:
        """Take how headers are read, and who may ask."""
        self._source = source
        self._searches = searches
        self._sessions = sessions
        self._rendering = rendering

    async def page(self, request: Request) -> Response:
        """Show codecs, horizons and stages of one log."""
        view, entry, found = await self._counted(request)

        def make() -> str:
            rows = header_rows(found, view.now_ms)
            return self._rendering.page(
                "headers.html", request, view, partition=entry.partition,
                rows=rows[:SEGMENTS_MAX], rows_left=max(len(rows) - SEGMENTS_MAX, 0),
                lines=stage_lines(found.stages, view.now_ms, names_options=False),
            )  # fmt: skip

        return HTMLResponse(await self._rendering.in_turn(make))

    async def document(self, request: Request) -> Response:
        """Return the document of ``keeplast status --json --tombstones headers``, and ``headers``.

        Of a store it is that of ``keeplast tier status --json``, of an attached topic that of
        ``keeplast attach status --json``, with what headers tell.
        """
        view, entry, found = await self._counted(request)

        def make() -> str:
            if isinstance(entry, TierStatus):
                told = tier_document(entry) | headers_document(found)
                return document_text({PARTITIONS: [told], **store_head(view.given_up)})
            if isinstance(entry, AttachedStatus):
                assert view.attached is not None
                document = view.attached.as_document([entry.partition])
                (told,) = document[PARTITIONS]
                return document_text(document | {PARTITIONS: [told | headers_document(found)]})
            assert view.status is not None
            assert entry.log is not None
            counted = replace(entry, log=replace(entry.log, stages=found.stages))
            document = status_document(replace(view.status, partitions=(counted,)))
            (told,) = document[PARTITIONS]
            told["headers"] = headers_document(found)["headers"]
            return document_text(document)

        return await self._rendering.json(make)

    async def _counted(self, request: Request) -> tuple[ConsoleView, Entry, LogHeaders]:
        partition = partition_of(request)
        require_own_form(request, await form_of(request), self._sessions)
        view: ConsoleView = await self._rendering.in_turn(self._source.view)
        entry = find_entry(view, partition)
        if entry is None:
            raise unknown(partition)
        size_bytes = _size_bytes(entry)

        def scan(has_left: Callable[[], bool]) -> LogHeaders:
            return self._searches.scan(partition, size_bytes, has_left)

        return view, entry, await run_errand(request, scan)


def _size_bytes(entry: Entry) -> int:
    """Return how much is read; 400 for a log of which that is not known."""
    if isinstance(entry, AttachedStatus):
        return entry.size_bytes
    if isinstance(entry, TierStatus):
        return entry.remote_bytes
    if entry.log is None:
        raise HTTPException(400, "nothing is known of this log; there is nothing to count")
    return entry.log.size_bytes


def header_rows(found: LogHeaders, now_ms: int) -> list[HeaderRow]:
    """Return a row a segment, ascending."""
    return [
        HeaderRow(
            base, each.batches, each.records,
            ", ".join(f"{count} {name}" for name, count in each.codecs.items()), each.stamped,
            moment(each.first_horizon_ms, now_ms), moment(each.last_horizon_ms, now_ms),
        )
        for base, each in found.segments.items()
    ]  # fmt: skip
