"""What ``explain`` has found of a key, as a person is shown it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.clock import time_text
from keeplast.model.escapes import shown_bytes
from keeplast.service.explained import (
    ExplainedPartition,
    KeyAnswer,
    answer_lines,
    fate_words,
    is_nowhere,
    kind_words,
    left_out_lines,
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
