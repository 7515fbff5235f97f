"""What ``explain``, ``erase`` and ``erasure`` print of keys.

The rule: ``erase`` and ``erasure`` print keys by line and hash, never as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.tables import new_table
from keeplast.clock import time_text
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.text import printable, shown_bytes
from keeplast.service.erasure.erasure_answer import (
    ErasureAnswer,
    KeyPlace,
    answer_words,
    date_words,
)
from keeplast.service.explained import (
    ExplainedPartition,
    KeyAnswer,
    answer_lines,
    fate_words,
    is_nowhere,
    kind_words,
    left_out_lines,
    near_line,
    out_of_service_lines,
    receipt_lines,
    summary_line,
    unseen_lines,
)


def render_explained(answer: KeyAnswer, *, values: bool, key_words: str) -> list[RenderableType]:
    """Return what a person is shown; ``values`` shows those of the records too.

    ``key_words`` say how a key is given.
    """
    parts = answer.parts
    holding = [each for each in parts if each.has_any]
    shown: list[RenderableType] = [Text(summary_line(answer))]
    if is_nowhere(answer):
        shown.append(Text(f"no record has exactly this key; a key is given as {key_words}"))
        shown.append(Text(near_line(answer)))
    if any(each.found.records for each in parts):
        shown += ["", _table(holding, values=values)]
    for each in holding:
        shown += ["", *map(Text, answer_lines(each))]
    for each in parts:
        if each not in holding:
            lines = (
                f"{each.name}: nothing",
                *left_out_lines(each),
                *unseen_lines(each),
                *receipt_lines(each),
            )
            shown += [Text(line) for line in lines]
    for left in answer.out_of_service:
        shown += [Text(line) for line in out_of_service_lines(left)]
    return shown


def _table(parts: Iterable[ExplainedPartition], *, values: bool) -> RenderableType:
    table = new_table(
        "partition", ">offset", ">segment", "=timestamp", "record", *(["value"] if values else []),
        "what becomes of it",
    )  # fmt: skip
    for part in parts:
        for each in part.found.records:
            record = each.record.record
            table.add_row(
                part.name, str(each.record.offset), str(each.record.segment),
                time_text(record.timestamp), kind_words(each.record),
                *([Text(shown_bytes(record.value))] if values else []),
                fate_words(part.found, each),
            )  # fmt: skip
    return table


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
    return "; ".join([*parts, *place.remains])


def requests_table(requests: Sequence[ErasureRequest]) -> Table:
    """Return the requests, one a line."""
    return new_table(
        "request",
        "=made",
        "topics",
        ">keys",
        "hash key",
        rows=(
            (
                each.request_id,
                time_text(each.created_ms)[:19],
                Text(printable(", ".join(each.topics) or "all that are compacted")),
                str(len(each.keys)),
                each.hash_check,
            )
            for each in requests
        ),
    )
