"""What ``erase`` and ``erasure`` print: keys by line and hash, never as they are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.clock import time_text
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.escapes import printable
from keeplast.service.erasure.erasure_answer import (
    ErasureAnswer,
    KeyPlace,
    answer_words,
    date_words,
)

PLACES_SHOWN = 1000
"""Rows of a table; the document has all of them."""


def render_answer(answer: ErasureAnswer) -> list[RenderableType]:
    """Return what a person is shown."""
    lines = [Text(printable(line)) for line in answer_words(answer)]
    if not answer.there:
        return [*lines]
    table = new_table(
        "key", "partition", "delete", ">records", "where", "=may go from", "=gone by", "why"
    )
    rows = [(each, place) for each in answer.there for place in each.places]
    for each, place in rows[:PLACES_SHOWN]:
        table.add_row(
            each.name, printable(str(place.partition)),
            "decided" if place.is_decided else "not decided", str(len(place.offsets)),
            Text(printable(_where(place))), date_words(place.may_go_ms), date_words(place.by_ms),
            Text(printable(place.why)),
        )  # fmt: skip
    more = len(rows) - PLACES_SHOWN
    end = [Text(f"and {more} more places; --json has all of them")] if more > 0 else []
    return [*lines, "", table, *end]


def _where(place: KeyPlace) -> str:
    segments = sorted({segment for segment, _ in place.offsets})
    shown = ", ".join(map(str, segments[:4])) + (" …" if len(segments) > 4 else "")
    parts = [f"segment {shown}"] if segments else []
    return "; ".join([*parts, *place.beside])


def requests_table(requests: Sequence[ErasureRequest]) -> Table:
    """Return the requests, one a line."""
    table = new_table("request", "=made", "topics", ">keys", "hash key")
    for each in requests:
        table.add_row(
            each.request_id, time_text(each.created_ms)[:19],
            Text(printable(", ".join(each.topics) or "all that are compacted")),
            str(len(each.keys)), each.hash_check,
        )  # fmt: skip
    return table
