"""The routes that only read: pages and their documents, receipts, metrics, health.

A page never reads a file by a name from its URL: a partition is looked up in the view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from keeplast.clock import Clock
from keeplast.config.setting_rows import settings_document
from keeplast.log.files import FileSystem, reading
from keeplast.model.text import printable
from keeplast.service.console import anatomy, pages, work
from keeplast.service.console.rendering import (
    Rendering,
    partition_of,
    query_of,
    shown_problem,
    unknown,
)
from keeplast.service.console.standing import (
    cleaner_beside,
    dates_words,
    find_entry,
    headings_of,
    place_head,
    settings_of,
    status_among,
)
from keeplast.service.console.view import ViewSource
from keeplast.service.console.wording import progress_document
from keeplast.service.document_text import document_pieces, document_text
from keeplast.service.documents import (
    PARTITIONS,
    facts_document,
    partition_document,
    status_document,
)
from keeplast.service.metrics import CleanerCollector, exposition
from keeplast.service.receipt_shelf import ACTION, LINES_MAX

CHUNK_BYTES = 1 << 18


class Reading:
    """What one console shows."""

    def __init__(
        self, source: ViewSource, rendering: Rendering, clock: Clock, files: FileSystem
    ) -> None:
        """Take what is shown, and how."""
        self._source = source
        self._rendering = rendering
        self._clock = clock
        self._files = files

    async def overview(self, request: Request) -> Response:
        """Show all partitions."""
        query = query_of(request)

        def make() -> str:
            view, live = self._source.view(), self._source.live
            chosen = pages.chosen(view, query, live)
            if not query.sort:
                chosen = pages.by_need(chosen, live)
            found = pages.paged(chosen, query.page)
            rows = pages.overview_rows(view, found.items, self._rendering.page_ms(view), live)
            groups = [(None, rows)] if query.sort and rows else pages.groups_of(rows)
            return self._rendering.page(
                "overview.html", request, view, query=query, found=found, groups=groups,
                states=pages.state_counts(view, live), beside=cleaner_beside(view),
                dates=dates_words(view), headings=headings_of(view),
            )  # fmt: skip

        return await self._rendering.html(make)

    async def log(self, request: Request) -> Response:
        """Show one partition."""
        partition = partition_of(request)

        def make() -> str:
            view = self._source.view()
            entry = find_entry(view, partition)
            if entry is None:
                raise unknown(partition)
            lines = [
                each
                for each in view.receipts
                if each.partition == partition and each.kind != ACTION
            ]
            log = anatomy.log_page(
                view, entry, lines, self._rendering.page_ms(view), self._source.live
            )
            return self._rendering.page("log.html", request, view, log=log, partition=partition)

        return await self._rendering.html(make)

    async def work(self, request: Request) -> Response:
        """Show what runs, what is next, what needs attention, and the receipts."""
        query = query_of(request)

        def make() -> str:
            view = self._source.view()
            now_ms = self._rendering.page_ms(view)
            queue = pages.upcoming(view, self._source.live)
            return self._rendering.page(
                "work.html", request, view, query=query, queue=queue[: work.QUEUE_MAX],
                queue_left=max(len(queue) - work.QUEUE_MAX, 0),
                troubles=work.troubles(view), since=lambda each: work.since(each, now_ms),
                beside=cleaner_beside(view),
                others=work.others_words(view), growth=work.growth_of(view),
                due=work.due_lines(view),
                budgets=work.budgets(view), caps=work.cap_lines(view),
                found=pages.paged(work.receipts_found(view, query), query.page),
                receipts_held=LINES_MAX if len(view.receipts) >= LINES_MAX else None,
            )  # fmt: skip

        return await self._rendering.html(make)

    async def overview_json(self, request: Request) -> Response:
        """Return the document of the overview."""
        query = query_of(request)

        def make() -> Iterator[str]:
            view = self._source.view()
            found = status_among(view, pages.chosen(view, query, self._source.live))
            rows = (partition_document(each) for each in found.partitions)
            return document_pieces({**place_head(view), **found.head()}, PARTITIONS, rows)

        return await self._rendering.json_pieces(make)

    async def log_json(self, request: Request) -> Response:
        """Return the document of one partition."""
        partition = partition_of(request)

        def make() -> str:
            view = self._source.view()
            entry = find_entry(view, partition)
            if entry is None:
                raise unknown(partition)
            found = status_among(view, [entry])
            return document_text({**place_head(view), **status_document(found)})

        return await self._rendering.json(make)

    async def settings_json(self, request: Request) -> Response:
        """Return the settings of one partition."""
        partition = partition_of(request)

        def make() -> str:
            view = self._source.view()
            entry = find_entry(view, partition)
            settings = None if entry is None else settings_of(view, entry)
            if settings is None:
                raise unknown(partition)
            return document_text(settings_document(settings, partition.topic, shows_folders=False))

        return await self._rendering.json(make)

    async def work_json(self, request: Request) -> Response:
        """Return the document of the work."""

        def make() -> str:
            view = self._source.view()
            snapshot = view.snapshot
            document: dict[str, object] = {
                "now_ms": view.now_ms,
                "is_running": snapshot is not None,
                "problem": shown_problem(view.problem, view),
                "progress": progress_document(self._source),
                "rounds_by_day": list(view.round_days),
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
            return document_text(document | work.work_document(view))

        return await self._rendering.json(make)

    async def receipts(self, request: Request) -> Response:
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

    async def metrics(self, request: Request) -> Response:
        """Return what Prometheus reads."""

        def make() -> bytes:
            place = self._source.view().place
            return exposition(CleanerCollector(self._source.gauges, self._clock, place))

        text = await self._rendering.in_turn(make)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """Say whether the loop turns."""
        control, view = self._source.control, self._source.view()
        fault = shown_problem(view.problem if control is None else control.fault(), view)
        words = "ok" if fault is None else printable(fault)
        return PlainTextResponse(f"{words}\n", 200 if fault is None else 503)
