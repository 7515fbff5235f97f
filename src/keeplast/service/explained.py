"""What was found of one key in several partitions: in words, and as the document of ``explain``.

Command line and console take words and document from here, so that both say the same. Texts are as
they are; what shows them escapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.reasons import ActiveLimit
from keeplast.clock import time_text
from keeplast.errors import error_text
from keeplast.inspect.explain import AskedKey, FoundRecord, KeyExplanation
from keeplast.inspect.key_search import NEAR_KEYS, FileRecord, KeyRecord
from keeplast.inspect.log_rows import bytes_row
from keeplast.inspect.remains import SEGMENTS, Remains, RemainsKind, SearchedKey
from keeplast.inspect.traces import (
    LastTrace,
    expiry_outlook_words,
    find_past_rounds,
    reason_words,
    records_taken,
    timeline,
    trace_words,
)
from keeplast.model.document import encode
from keeplast.model.partition import TopicPartition
from keeplast.model.text import (
    format_bytes,
    format_counted,
    printable,
    shown_bytes,
    without_secrets,
)
from keeplast.read.transactions import TransactionOutcome
from keeplast.rewrite.workspace import Workspace
from keeplast.service.search_tasks import Progressed
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.report import describe_error
from keeplast.survey.wording import decision_words, removal_words

RECEIPTS_SHOWN = 3
OFFSETS_SHOWN = 5
_MORE = {
    RemainsKind.REPLACED: "in replaced segments",
    RemainsKind.HIDDEN: "in replaced segments",
    RemainsKind.LEFT: "in files next to the log",
    RemainsKind.STRANGE: "in files next to the log",
    RemainsKind.KEPT: "kept for undo",
}
"""How the records of remains are summed up, in this order."""
_NO_LIST = "no list names it, so that it goes with the next look of run"


class ExplainedPartition(Struct, frozen=True):
    """A partition, by when the last trace is gone, and what cleaned it before.

    ``erased_by`` says when what is overwritten now is gone, in words. ``receipts`` are the rounds
    of the partition that are known; ``remains`` are no part of its log. ``unseen`` says what of the
    partition was not searched, ``left_out`` how many segments, of how many bytes, filters say that
    the key is not in.
    """

    found: KeyExplanation
    trace: LastTrace
    erased_by: str
    receipts: Sequence[RoundReceipt] = ()
    remains: Sequence[Remains] = ()
    unseen: Sequence[str] = ()
    left_out: tuple[int, int] = (0, 0)

    @property
    def has_any(self) -> bool:
        """Say whether a record of the key was found anywhere."""
        return bool(self.found.records) or any(each.records for each in self.remains)

    @property
    def name(self) -> str:
        """Return the partition as it is printed."""
        return printable(str(self.found.partition))


class OutOfService(Struct, frozen=True):
    """A partition that has no log here, only directories out of service.

    ``remains`` are what is in them, ``words`` say how those go.
    """

    partition: TopicPartition
    remains: Sequence[Remains]
    words: str

    @property
    def name(self) -> str:
        """Return the partition as it is printed."""
        return printable(str(self.partition))


class KeyAnswer(Struct, frozen=True):
    """What is known of a key; ``key`` is None where an offset asked about it.

    ``faults`` are partitions that could not be read, ``left_out`` those that are not searched, each
    with why; ``warnings`` are about their settings. ``out_of_service`` are partitions without a log
    that still have a record of the key, or a file that could not be searched.
    """

    key: bytes | None
    parts: tuple[ExplainedPartition, ...]
    faults: tuple[tuple[TopicPartition, Exception], ...] = ()
    left_out: tuple[tuple[TopicPartition, str], ...] = ()
    warnings: tuple[str, ...] = ()
    out_of_service: tuple[OutOfService, ...] = ()

    def document(
        self, *, values: bool, fault_text: Callable[[Exception], str] = error_text
    ) -> dict[str, Any]:
        """Return the document; with ``values``, those of the records too."""
        key = self.parts[0].found.key if self.key is None and self.parts else self.key
        return {
            "key": bytes_row(key),
            "partitions": [_partition_document(each, values=values) for each in self.parts],
            "errors": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "error": replace(
                        describe_error(error), message=without_secrets(fault_text(error))
                    ),
                }
                for partition, error in self.faults
            ],
            "left_out": [
                {"topic": partition.topic, "partition": partition.partition, "why": why}
                for partition, why in self.left_out
            ],
            "out_of_service": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "why": each.words,
                    "not_searched": [one.fault for one in each.remains if one.problem],
                    "replaced_copies": _replaced_rows(each.remains, values=values),
                }
                for each in self.out_of_service
            ],
        }


class AskedLog(Struct, frozen=True):
    """A partition with the question to it; a task is sent both."""

    partition: TopicPartition
    explain: Callable[..., SearchedKey]

    def ask(self, workspace: Workspace, planned: Progressed, progressed: Progressed) -> SearchedKey:
        """Search it."""
        return self.explain(workspace=workspace, planned=planned, progressed=progressed)


def found_parts(
    answers: Iterable[tuple[TopicPartition, SearchedKey | Exception]],
    asked: AskedKey,
    faults: list[tuple[TopicPartition, Exception]],
) -> Iterator[SearchedKey]:
    """Yield what was found; ``faults`` get the rest, which is raised if an offset was asked about.

    An offset is asked about of one partition alone.
    """
    for partition, answer in answers:
        if not isinstance(answer, Exception):
            yield answer
        elif asked.offset is not None:
            raise answer
        else:
            faults.append((partition, answer))


def summary_line(answer: KeyAnswer) -> str:
    """Return one sentence about all partitions; the key in it is made visible and shortened.

    No count where nothing could be read: whether the key is there is not known then.
    """
    parts, total = answer.parts, len(answer.parts) + len(answer.faults)
    key = answer.key
    if key is None and parts:
        key = parts[0].found.key
    name = "key" if key is None else f"key {shown_bytes(key)}"
    unread = (
        f"{len(answer.faults)} of {format_counted(total, 'partition')} could not be read"
        if answer.faults
        else ""
    )
    if not parts:
        return f"{name}: not known, {unread or 'no partition was searched'}"
    holding = sum(each.has_any for each in parts)
    count = sum(len(each.found.records) for each in parts)
    places: Sequence[ExplainedPartition | OutOfService] = (*parts, *answer.out_of_service)
    remains = [one for each in places for one in each.remains]
    counts = Counter(_MORE[one.kind] for one in remains for _ in one.records)
    more = "".join(f", {counts[e]} more {e}" for e in dict.fromkeys(_MORE.values()) if counts[e])
    missing = f"; {unread}" if unread else ""
    return (
        f"{name}: {count} record{'' if count == 1 else 's'} in {holding} of {len(parts)} "
        f"partition{'' if len(parts) == 1 else 's'}{more}{missing}"
    )


def is_nowhere(answer: KeyAnswer) -> bool:
    """Say whether all that was to be searched was, and nothing has the key that was asked about."""
    return (
        answer.key is not None
        and bool(answer.parts)
        and not answer.faults
        and not any(each.has_any for each in answer.parts)
        and not any(one.records for each in answer.out_of_service for one in each.remains)
    )


def near_line(answer: KeyAnswer) -> str:
    """Return how many records were looked at for a key that is nowhere, and keys that are there."""
    passed = sum(each.found.passed for each in answer.parts)
    key, near = answer.key or b"", {each for part in answer.parts for each in part.found.near}
    words = f"{format_counted(passed, 'record')} with other keys looked at"
    if near:
        text = key.decode("latin-1")
        like = sorted(
            near, key=lambda each: -SequenceMatcher(None, text, each.decode("latin-1")).ratio()
        )[:NEAR_KEYS]
        words += f"; keys that are there: {', '.join(map(shown_bytes, like))}"
    return printable(words)


def kind_words(record: KeyRecord) -> str:
    """Say what a record is: a tombstone or a value, and whether its transaction was committed."""
    value = record.record.value
    kind = "tombstone" if value is None else f"value, {len(value)} B"
    if record.outcome is TransactionOutcome.COMMITTED:
        return kind
    return f"{kind}, {record.outcome.name.lower()}"


def fate_words(found: KeyExplanation, each: FoundRecord) -> str:
    """Say what becomes of a record, when and why, and from when on retention takes it."""
    words = _round_words(found, each)
    if each.expiry is None:
        return words
    return f"{words}; {expiry_outlook_words(each.expiry, found.now_ms)}"


def _round_words(found: KeyExplanation, each: FoundRecord) -> str:
    """Say what rounds do with a record."""
    moments = timeline(found, each.fate)
    if len(moments) == 1:
        return f"{moments[0].what}: {moments[0].why}"
    if each.fate.removal is not None:
        return f"goes {removal_words(each.fate.removal)}"
    stays, goes = moments
    # What is appended may roll the active segment before that time; nothing shortens a lag.
    is_active = isinstance(each.fate.limit, ActiveLimit)
    surely = "if nothing is appended before, sooner otherwise" if is_active else "at least"
    when = "" if goes.at_ms is None else f" until {time_text(goes.at_ms)} {surely}"
    return f"stays{when}: {stays.why}; then goes with the next round: {goes.why}"


def answer_lines(each: ExplainedPartition, *, names_options: bool = True) -> list[str]:
    """Return what else is known of a partition: its next round, who wins, the last trace.

    ``names_options`` says that who reads it may type one.
    """
    found = each.found
    tried = [
        f"by {strategy} {'none' if offset is None else f'the record at {offset}'}"
        for strategy, offset in found.winners.items()
    ]
    lines = [
        f"{each.name}: {_next_round(found, names_options=names_options)}",
        f"{each.name}: the record that stays: {', '.join(tried)}; this topic goes by "
        f"{found.topic.ranking}",
        trace_line(each),
        f"{each.name}: what is superseded now is erased by: {each.erased_by}",
    ]
    lines += _remains_lines(each)
    lines += left_out_lines(each)
    lines += unseen_lines(each)
    return [printable(line) for line in (*lines, *receipt_lines(each))]


def _remains_lines(part: ExplainedPartition | OutOfService) -> list[str]:
    """Say which offsets lie where else, a line each, and one for each record of a segment."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for each in sorted(part.remains, key=lambda each: each.kind is RemainsKind.KEPT):
        for record in each.records:
            apart = record.offset if each.kind in SEGMENTS else None
            found.setdefault((_whereabouts(each), apart), []).append(record.offset)
    return [
        f"{part.name}: {_offsets_words(offsets)} also in {where}"
        for (where, _), offsets in found.items()
    ]


def _whereabouts(each: Remains) -> str:
    """Return which file or segment it is, and until when that stays."""
    when = None if each.until_ms is None else time_text(each.until_ms)
    if each.kind in SEGMENTS:
        how = f"collected from {when} on" if when else "and nothing says when that is collected"
        return f"replaced segment {each.name}, {how}"
    if each.kind is RemainsKind.KEPT:
        how = f"until {when}" if when else _NO_LIST
        return f"what round {each.name} has kept for undo, {how}"
    return f"{each.name}, which is no part of the log"


def _offsets_words(offsets: Sequence[int]) -> str:
    """Name offsets, the first ones alone where they are many."""
    shown = ", ".join(map(str, offsets[:OFFSETS_SHOWN]))
    more = f" and {len(offsets) - OFFSETS_SHOWN} more" if offsets[OFFSETS_SHOWN:] else ""
    return f"offset{'s' * (len(offsets) > 1)} {shown}{more}"


def out_of_service_lines(each: OutOfService) -> list[str]:
    """Say what is left of a partition that has no log here, and how it goes."""
    lines = [f"{line} ({each.words})" for line in _remains_lines(each)]
    lines += [f"{each.name}: not searched: {one.fault}" for one in each.remains if one.problem]
    return [printable(line) for line in lines]


def trace_line(each: ExplainedPartition) -> str:
    """Say by when no record of the key is left."""
    by_ms = each.trace.by_ms
    when = "" if by_ms is None else f"{time_text(by_ms)}: "
    return f"{each.name}: last trace: {when}{trace_words(each.found, each.trace)}"


def left_out_lines(each: ExplainedPartition) -> list[str]:
    """Say what was not read, because filters say that the key is not there."""
    segments, size_bytes = each.left_out
    if not segments:
        return []
    what = f"{format_counted(segments, 'segment')} ({format_bytes(size_bytes)})"
    return [f"{each.name}: not read: {what} in which the key is not, by their filters"]


def unseen_lines(each: ExplainedPartition) -> list[str]:
    """Say what of the partition was not searched."""
    return [f"{each.name}: not searched: {words}" for words in each.unseen]


def _next_round(found: KeyExplanation, *, names_options: bool) -> str:
    """Return what a round would clean and whether one is due; the latter alone for no bytes."""
    now = decision_words(found.decision, names_options=names_options)
    if found.bound <= found.first_dirty:
        return now
    return f"the next round cleans [{found.first_dirty}, {found.bound}); now: {now}"


def receipt_lines(each: ExplainedPartition) -> list[str]:
    """Say which rounds may have taken earlier records of the key."""
    if not each.receipts:
        return [f"{each.name}: no receipt names earlier rounds"]
    past = find_past_rounds(each.found, each.receipts)
    if not past.taking:
        return [f"{each.name}: no round took any record, by their receipts"]
    if past.last is not None:
        before = f", or with one of {past.earlier} before it" if past.earlier else ""
        return [
            f"{each.name}: what rounds took of the key below offset {past.last.end_offset} went "
            f"with that of {_round_words_of(past.last)}, which left the record at {past.kept} "
            f"there{before}"
        ]
    newest = past.taking[-RECEIPTS_SHOWN:]
    left = len(past.taking) - len(newest)
    more = f", and {left} before" if left else ""
    return [
        f"{each.name}: earlier records below the ends of these rounds went in one of them, if "
        f"there were any: {'; '.join(map(_round_words_of, newest))}{more}"
    ]


def _round_words_of(receipt: RoundReceipt) -> str:
    """Say when a round was, which offsets it went over first, and by what records rank."""
    new = f"offsets {receipt.first_dirty} to {receipt.end_offset - 1}"
    if receipt.first_dirty >= receipt.end_offset:
        new = f"what had expired below {receipt.end_offset}"
    return f"{time_text(receipt.now_ms)} ({new}, by {receipt.strategy})"


def _partition_document(each: ExplainedPartition, *, values: bool) -> dict[str, Any]:
    found = each.found
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "path": found.path,
        "now_ms": found.now_ms,
        "log_start": found.log_start,
        "log_end": found.log_end,
        "first_dirty": found.first_dirty,
        "bound": found.bound,
        "decision": decision_words(found.decision),
        "reaches": [{"from_ms": e.at_ms, "bound": e.bound} for e in found.reaches],
        "winners": {str(strategy): offset for strategy, offset in found.winners.items()},
        "strategy": found.topic.strategy,
        "strategy_source": found.topic.strategy_source,
        "last_trace": {
            "kind": each.trace.kind,
            "by_ms": each.trace.by_ms,
            "values_by_ms": each.trace.values_by_ms,
            "removal": encode(each.trace.removal),
            "why": trace_words(found, each.trace),
        },
        "erased_by": each.erased_by,
        "not_searched": list(each.unseen),
        "left_out_by_filters": {"segments": each.left_out[0], "bytes": each.left_out[1]},
        "records": [_record_document(found, e, values=values) for e in found.records],
        "replaced_copies": _replaced_rows(each.remains, values=values),
        "kept_for_undo": [
            {**_file_record_row(e, values=values), "round": one.name, "until_ms": one.until_ms}
            for one in each.remains
            if one.kind is RemainsKind.KEPT
            for e in one.records
        ],
        "rounds": [
            {
                "now_ms": e.now_ms,
                "first_dirty": e.first_dirty,
                "end_offset": e.end_offset,
                "attempt": e.attempt,
                "strategy": e.strategy,
                "records_taken": records_taken(e),
            }
            for e in each.receipts
        ],
        "taken_by": _taken_by(each),
    }


def _taken_by(each: ExplainedPartition) -> dict[str, Any] | None:
    """Return the document of the round that was the last to take any of the key below its end."""
    past = find_past_rounds(each.found, each.receipts)
    if past.last is None:
        return None
    return {
        "now_ms": past.last.now_ms,
        "attempt": past.last.attempt,
        "below": past.last.end_offset,
        "kept_offset": past.kept,
        "rounds_before": past.earlier,
    }


def _replaced_rows(remains: Sequence[Remains], *, values: bool) -> list[dict[str, Any]]:
    """Return the rows of records that are no part of the log, but for those kept for undo."""
    return [
        {
            **_file_record_row(record, values=values),
            "file": None if each.kind in SEGMENTS else each.name,
            "segment_id": each.name if each.kind in SEGMENTS else None,
            "collected_from_ms": each.until_ms,
        }
        for each in remains
        if each.kind is not RemainsKind.KEPT
        for record in each.records
    ]


def _file_record_row(each: FileRecord, *, values: bool) -> dict[str, Any]:
    record = each.record
    return {
        "offset": record.offset,
        "segment": each.segment,
        "position": each.position,
        "timestamp": record.timestamp,
        "is_tombstone": record.value is None,
        "value_bytes": None if record.value is None else len(record.value),
        **({"value": bytes_row(record.value)} if values else {}),
        "outcome": None if each.outcome is None else each.outcome.name.lower(),
        "delete_horizon_ms": each.horizon_ms,
    }


def _record_document(found: KeyExplanation, each: FoundRecord, *, values: bool) -> dict[str, Any]:
    fate = each.fate
    return {
        **_file_record_row(each.record, values=values),
        "fate": fate.outlook,
        "why": reason_words(fate),
        "superseded_by": fate.by_offset,
        "goes_from_ms": fate.from_ms,
        "timeline": [encode(moment) for moment in timeline(found, fate)],
        "retention": encode(each.expiry),
    }
