"""Work that one request asks for, in a thread beside the pages: it ends with who asked for it.

What fails is told by a status: busy, over its budget, not understood, closed, or of the place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from keeplast.errors import (
    CompactionError,
    InvalidError,
    RefusedError,
    StoppedError,
    UnavailableError,
    error_text,
)
from keeplast.model.redaction import without_secrets

T = TypeVar("T")
STATUS = {UnavailableError: 429, StoppedError: 422, InvalidError: 400, RefusedError: 403}


async def run_errand(request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
    """Return what ``work`` makes in a thread; it is given what says that nobody waits any more.

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
        # Also where the server ends and nobody waits for the thread.
        has_left.set()
    if error is not None:
        code = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
        raise HTTPException(code, without_secrets(error_text(error))) from error
    return found  # type: ignore[return-value]
