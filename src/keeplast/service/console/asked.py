"""What a request asks for: its form, its query, its partition; anything else is a 4xx.

Nothing of a request names a file: a partition is looked up in the view. Every part is bounded.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from keeplast.model.escapes import printable
from keeplast.model.partition import TopicPartition
from keeplast.service.console import pages
from keeplast.service.console.gate import form_bytes_max

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


def query_of(request: Request) -> pages.Query:
    """Return what the URL asks for; 400 for what it cannot ask for."""
    given = request.query_params
    if len(given.multi_items()) > FIELDS_MAX or set(given) - {"q", "state", "sort", "page"}:
        raise HTTPException(400, "no such filter; there are q, state, sort and page")
    text, state, sort = given.get("q", ""), given.get("state", ""), given.get("sort", "")
    if max(len(text), len(state)) > TEXT_LENGTH_MAX:
        raise HTTPException(400, "the filter is too long")
    if sort not in pages.SORTS:
        raise HTTPException(400, "no such order; there are name, size and ratio")
    number = given.get("page", "1")
    is_number = number.isascii() and number.isdigit() and len(number) <= 7
    if not is_number or not 1 <= int(number) <= PAGE_MAX:
        raise HTTPException(400, "no such page; pages are counted from 1")
    return pages.Query(text, state, sort, int(number))


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
