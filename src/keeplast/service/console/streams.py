"""Events when something has changed, for pages that are open: how far the loop is, and which view.

Streams are counted and end by themselves: what hangs holds none for long.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from keeplast.service.console.progress import progress_document
from keeplast.service.console.view import ViewSource

STREAMS_MAX = 32
STREAM_SECONDS = 300.0
"""An event stream ends after so long; browsers open the next one by themselves."""
STREAM_STEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How many event streams there may be, and how long each lasts; tests have shorter ones."""

    count: int = STREAMS_MAX
    seconds: float = STREAM_SECONDS
    step_seconds: float = STREAM_STEP_SECONDS


class EventStreams:
    """The event streams of one console."""

    def __init__(self, source: ViewSource, limits: StreamLimits) -> None:
        """Take whose events they are."""
        self._source = source
        self._limits = limits
        self._open = 0

    async def begin(self, request: Request) -> Response:
        """Open a stream; 503 when there are too many."""
        if self._open >= self._limits.count:
            # Closed, too: who opens hundreds of them shall not hold all connections.
            raise HTTPException(
                503, "too many event streams are open; the page reloads instead",
                {"connection": "close"},
            )  # fmt: skip
        # Counted before anything is awaited, or many that come at once would all be let in.
        self._open += 1
        return _Stream(self._events(), self._ended)

    def _ended(self) -> None:
        self._open -= 1

    async def _events(self) -> AsyncIterator[str]:
        """Yield an event whenever something has changed, until the stream has lasted long enough.

        One whose browser takes nothing is cut off by the gate.
        """
        left, last = self._limits.seconds, ""
        while True:
            view = await anyio.to_thread.run_sync(self._source.view)
            text = json.dumps({"serial": view.serial, "live": progress_document(self._source)})
            yield f"data: {text}\n\n" if text != last else ": \n\n"
            last = text
            left -= self._limits.step_seconds
            if left <= 0:
                return
            await anyio.sleep(self._limits.step_seconds)


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
