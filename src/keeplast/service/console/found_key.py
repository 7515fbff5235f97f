"""What the page of a key shows: the words of ``keeplast explain``, and as many rows as a page has.

Pure. Texts are as they are; the template escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.clock import time_text
from keeplast.errors import error_text
from keeplast.inspect.fates import Fate, Outlook
from keeplast.model.escapes import printable, shown_bytes
from keeplast.model.partition import TopicPartition
from keeplast.model.redaction import without_secrets
from keeplast.service.console.pages import log_url
from keeplast.service.console.shown_time import ShownTime, moment
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


@dataclass(frozen=True, slots=True)
class RecordRow:
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


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
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


@dataclass(frozen=True, slots=True)
class FoundKey:
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


def _goes(fate: Fate) -> bool:
    """Say whether a record goes by when all that is overwritten now is gone."""
    return fate.by_offset is not None and fate.outlook in (Outlook.GOES_NEXT, Outlook.GOES_LATER)


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
            *((gone, True) if _goes(record.fate) else (ShownTime(""), False)),
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
