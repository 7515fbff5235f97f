"""The routes that only read: pages and their documents, receipts, metrics, health.

A page never reads a file by a name from its URL: a partition is looked up in the view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import groupby
from pathlib import PurePath
from typing import Any

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from keeplast.clock import Clock
from keeplast.config.setting_rows import settings_document
from keeplast.log.files import FileSystem, reading
from keeplast.model.text import printable
from keeplast.service.catalogue import HelpEntry, help_entries, help_name
from keeplast.service.console import anatomy, charts, pages, work
from keeplast.service.console.lines import (
    lines_of,
    state_counts,
    topic_lines,
    totals_of,
)
from keeplast.service.console.query import COLUMNS, read_filter
from keeplast.service.console.rendering import (
    TEXT_LENGTH_MAX,
    Rendering,
    partition_of,
    query_of,
    shown_entry,
    shown_problem,
    span_of,
    unknown,
)
from keeplast.service.console.standing import (
    cleaner_beside,
    dates_words,
    entries,
    place_head,
    settings_of,
    status_among,
    tips_of,
)
from keeplast.service.console.view import ConsoleView, ViewSource
from keeplast.service.console.wording import progress_document
from keeplast.service.document_text import document_pieces, document_text
from keeplast.service.documents import (
    PARTITIONS,
    facts_document,
    partition_document,
    status_document,
)
from keeplast.service.history import ALL, FREED, SPANS, History, Series, Span, round_entries
from keeplast.service.metrics import CleanerCollector, exposition
from keeplast.service.receipt_shelf import ACTION, LINES_MAX
from keeplast.service.status import most_urgent_first

CHUNK_BYTES = 1 << 18
COLUMN_NAMES = tuple(each.name for each in COLUMNS)


def _rounds_of_hosts(view: ConsoleView) -> History:
    """Return what the metadata of a store keep of the rounds of all hosts, by topic and in sum."""
    found = History()
    found.add(
        (
            entry
            for each in view.round_days
            for entry in round_entries(
                each.partition.topic, each.day_ms, each.sums.bytes_read - each.sums.bytes_written,
                each.sums.milliseconds / 1000, each.sums.rounds,
            )
        ),
        view.now_ms,
    )  # fmt: skip
    return found


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

    async def lines(self, request: Request) -> Response:
        """Show all topics at the root; the partitions of a topic, or all, elsewhere."""
        of_topics = request.url.path == "/"
        query = query_of(request, COLUMN_NAMES)
        topic = request.path_params.get("topic")

        def make(view: ConsoleView) -> str:
            live = self._source.live
            now_ms = self._rendering.page_ms(view)
            lines = [each for each in lines_of(view, live) if topic in (None, each.topic)]
            if topic is not None and not lines:
                raise HTTPException(404, f"no such topic: {printable(topic)[:TEXT_LENGTH_MAX]}")
            month = self._series(view, topic or ALL, SPANS[1])
            fits, problem = read_filter(query.text)
            chosen = [each for each in lines if fits(each, now_ms)]
            found = pages.paged(
                query.ordered(topic_lines(chosen) if of_topics else chosen), query.page
            )
            draw = pages.topic_rows if of_topics else pages.partition_rows
            first = lines[0].first if lines else None
            worst = first and work.trouble_of(view, first)
            pairs = zip(found.items, draw(view, found.items, now_ms, live), strict=True)
            by_need = groupby(pairs, lambda pair: pair[0].need if query.is_urgent else None)
            return self._rendering.page(
                "overview.html" if of_topics else "partitions.html", request, view, query=query,
                coming=next(iter(work.next_rounds(view, live, now_ms, lines, topic)), None),
                worst=worst and (*pages.partition_rows(view, lines[:1], now_ms, live),
                                 work.since(worst, now_ms)),
                topic=topic, noun="topic" if of_topics else "partition", found=found,
                groups=[(need, list(its)) for need, its in by_need],
                problem=problem, fit=len(chosen), states=state_counts(lines), lines=lines,
                counts=Counter(each.topic for each in lines),
                totals=totals_of(lines, month.sum_of(FREED)),
                verdict=charts.verdict_of(self._series(view, topic or ALL, SPANS[0])),
                beside=cleaner_beside(view), dates=dates_words(view), tips=tips_of(view),
                headings=query.headings(of_topics=of_topics), sparks=charts.sparks_of(month),
            )  # fmt: skip

        return await self._rendering.html(make)

    async def log(self, request: Request) -> Response:
        """Show one partition."""
        partition, query = partition_of(request), query_of(request, ())

        def make(view: ConsoleView) -> str:
            entry = shown_entry(view, partition)
            lines = [
                each
                for each in view.receipts
                if each.partition == partition and each.kind != ACTION
            ]
            log = anatomy.log_page(
                view, entry, lines, self._rendering.page_ms(view), self._source.live, query.page,
                self._rendering.place or place_head(view)["place"],
            )  # fmt: skip
            return self._rendering.page(
                "log.html", request, view, log=log, partition=partition, query=query,
                rows=anatomy.SEGMENT_ROWS,
            )  # fmt: skip

        return await self._rendering.html(make)

    async def find(self, request: Request) -> Response:
        """Show the search alone, for who has no script: lists reload, and this stays."""
        text = request.query_params.get("q", "")[:TEXT_LENGTH_MAX]

        def make(view: ConsoleView) -> str:
            return self._rendering.page("find.html", request, view, text=text)

        return await self._rendering.html(make)

    async def help(self, request: Request) -> Response:
        """Show what a word, a setting or a code means, or all of them."""
        word, every = request.path_params.get("word"), help_entries()
        entry = None if word is None else every.get(help_name(word))
        if word is not None and entry is None:
            raise HTTPException(404, "there is no such word here; /help has all")

        def make(view: ConsoleView) -> str:
            areas: dict[str, list[HelpEntry]] = {}
            for each in every.values():
                areas.setdefault(each.area, []).append(each)
            return self._rendering.page(
                "help.html", request, view, entry=entry, areas=areas.items()
            )  # fmt: skip

        return await self._rendering.html(make)

    async def work(self, request: Request) -> Response:
        """Show what runs, what is next, what needs attention, and the receipts."""
        query = query_of(request, ("name", "size"))

        def make(view: ConsoleView) -> str:
            now_ms = self._rendering.page_ms(view)
            live = self._source.live
            queue = pages.upcoming(view, live)
            awaited = {(each.partition.topic, each.partition.partition) for each in queue}
            return self._rendering.page(
                "work.html", request, view, query=query,
                coming=work.next_rounds(view, live, now_ms, lines_of(view, live)),
                queue=queue, queue_left=max(len(queue) - work.QUEUE_MAX, 0),
                held=work.held_logs(view), troubles=work.troubles(view),
                since=lambda each: work.since(each, now_ms),
                beside=cleaner_beside(view),
                others=work.others_words(view),
                due=[each for each in work.due_lines(view)
                     if (each["topic"], each["partition"]) not in awaited],
                budgets=work.budgets(view), caps=work.cap_lines(view),
                found=pages.paged(work.receipts_found(view, query), query.page),
                receipts_held=LINES_MAX if len(view.receipts) >= LINES_MAX else None,
            )  # fmt: skip

        return await self._rendering.html(make)

    async def time(self, request: Request) -> Response:
        """Show what the place was like, or one topic."""
        span, topic = span_of(request)

        def make(view: ConsoleView) -> str:
            history = self._source.history
            found = charts.charts_of(self._series(view, topic, span))
            return self._rendering.page(
                "time.html", request, view, charts=found, drawn=charts.DRAWN, span=span,
                verdict=charts.verdict_of(self._series(view, topic, SPANS[0])),
                spans=SPANS, topic=topic, history=history,
                problem=shown_problem(history.problem, view),
            )  # fmt: skip

        return await self._rendering.html(make)

    async def time_json(self, request: Request) -> Response:
        """Return the figures of the page of time."""
        span, topic = span_of(request)

        def make() -> str:
            found = self._series(self._source.view(), topic, span)
            return document_text(charts.time_document(topic, found))

        return await self._rendering.json(make)

    def _series(self, view: ConsoleView, topic: str, span: Span) -> Series:
        """Return the figures of a topic that is shown here; 404 for any other."""
        if topic and all(each.partition.topic != topic for each in entries(view)):
            raise HTTPException(404, "no such topic is shown here")
        now_ms = self._rendering.page_ms(view)
        found = self._source.history.series(topic, span, now_ms)
        if view.round_days and span.bar == "day":
            found = found.with_rounds(
                view.kept("rounds of hosts", lambda: _rounds_of_hosts(view)).series(
                    topic, span, now_ms
                )
            )
        return found

    async def overview_json(self, request: Request) -> Response:
        """Return the document of the overview."""
        query = query_of(request, COLUMN_NAMES)
        fits, problem = read_filter(query.text)
        if problem:
            raise HTTPException(400, problem)

        def make() -> Iterator[str]:
            view = self._source.view()
            now_ms = self._rendering.page_ms(view)
            lines = query.ordered(lines_of(view, self._source.live))
            chosen = [each.first for each in lines if fits(each, now_ms)]
            found = status_among(view, chosen if query.sort else most_urgent_first(chosen))
            rows = (partition_document(each) for each in found.partitions)
            return document_pieces({**place_head(view), **found.head()}, PARTITIONS, rows)

        return await self._rendering.json_pieces(make)

    async def log_json(self, request: Request) -> Response:
        """Return the document of one partition."""
        partition = partition_of(request)

        def make() -> str:
            view = self._source.view()
            found = status_among(view, [shown_entry(view, partition)])
            return document_text({**place_head(view), **status_document(found)})

        return await self._rendering.json(make)

    async def settings_json(self, request: Request) -> Response:
        """Return the settings of one partition."""
        partition = partition_of(request)

        def make() -> str:
            view = self._source.view()
            settings = settings_of(view, shown_entry(view, partition))
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
            # Who may read metrics alone is not shown where files lie.
            name = PurePath(place).name if place.startswith(("/", "sqlite:")) else place
            return exposition(CleanerCollector(self._source.gauges, self._clock, name))

        text = await self._rendering.in_turn(make)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """Say whether the loop turns."""
        control, view = self._source.control, self._source.view()
        fault = shown_problem(view.problem if control is None else control.fault(), view)
        words = "ok" if fault is None else printable(fault)
        return PlainTextResponse(f"{words}\n", 200 if fault is None else 503)
