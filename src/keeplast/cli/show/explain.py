"""What ``explain`` has found of a key, for people and as a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.clock import time_text
from keeplast.format.record import Record
from keeplast.inspect.explain import FoundRecord, KeyExplanation
from keeplast.inspect.key_search import KeyRecord
from keeplast.inspect.log_rows import bytes_row
from keeplast.inspect.traces import LastTrace, reason_words, timeline, trace_words
from keeplast.model.document import encode
from keeplast.model.escapes import printable, shown_bytes
from keeplast.read.transaction_outcomes import TransactionOutcome
from keeplast.store.explain import ReplacedCopy
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.wording import decision_words

RECEIPTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ExplainedPartition:
    """A partition, by when the last trace is gone, and what cleaned it before.

    ``erased_by`` says when what is overwritten now is gone, in words. ``receipts`` are the rounds
    of the partition that are known; ``copies`` the replaced segments of a store.
    """

    found: KeyExplanation
    trace: LastTrace
    erased_by: str
    receipts: Sequence[RoundReceipt] = ()
    copies: Sequence[ReplacedCopy] = ()

    @property
    def name(self) -> str:
        """Return the partition as it is printed."""
        return printable(str(self.found.partition))


def render_explained(parts: Sequence[ExplainedPartition], *, values: bool) -> list[RenderableType]:
    """Return what a person is shown; ``values`` shows those of the records too."""
    holding = [each for each in parts if each.found.records or each.copies]
    count = sum(len(each.found.records) for each in parts)
    copies = sum(len(each.copies) for each in parts)
    key = shown_bytes(parts[0].found.key) if parts else ""
    more = f", {copies} more in replaced segments" if copies else ""
    shown: list[RenderableType] = [
        Text(f"key {key}: {count} record{'' if count == 1 else 's'} in {len(holding)} of "
             f"{len(parts)} partition{'' if len(parts) == 1 else 's'}{more}")
    ]  # fmt: skip
    if count:
        shown += ["", _table(holding, values=values)]
    for each in holding:
        shown += ["", *map(Text, _lines(each))]
    for each in parts:
        if each not in holding:
            shown += [Text(line) for line in (f"{each.name}: nothing", *_receipt_lines(each))]
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
                time_text(record.timestamp), _kind(each.record),
                *([Text(shown_bytes(record.value))] if values else []), _fate(part.found, each),
            )  # fmt: skip
    return table


def _kind(record: KeyRecord) -> str:
    value = record.record.value
    kind = "tombstone" if value is None else f"value, {len(value)} B"
    if record.outcome is TransactionOutcome.COMMITTED:
        return kind
    return f"{kind}, {record.outcome.name.lower()}"


def _fate(found: KeyExplanation, each: FoundRecord) -> str:
    moments = timeline(found, each.fate)
    if len(moments) == 1:
        return f"{moments[0].what}: {moments[0].why}"
    stays, goes = moments
    when = "" if goes.at_ms is None else f" until {time_text(goes.at_ms)} at least"
    return f"stays{when}: {stays.why}; then goes with the next round: {goes.why}"


def _lines(each: ExplainedPartition) -> list[str]:
    found = each.found
    tried = [
        f"{strategy} {'nothing' if offset is None else offset}"
        for strategy, offset in found.winners.items()
    ]
    by_ms = each.trace.by_ms
    when = "" if by_ms is None else f"{time_text(by_ms)}: "
    lines = [
        f"{each.name}: {_next_round(found)}",
        f"{each.name}: would win by {', '.join(tried)}; in force is {found.topic.strategy}",
        f"{each.name}: last trace: {when}{trace_words(each.trace)}",
        f"{each.name}: what is overwritten now is erased by: {each.erased_by}",
    ]
    lines += [
        f"{each.name}: offset {copy.record.offset} also in replaced segment {copy.segment_id}, "
        f"collected from {time_text(copy.collected_ms)} on"
        for copy in each.copies
    ]
    return [printable(line) for line in (*lines, *_receipt_lines(each))]


def _next_round(found: KeyExplanation) -> str:
    """Return what a round would clean and whether one is due; the latter alone for no bytes."""
    now = decision_words(found.decision)
    if found.bound <= found.first_dirty:
        return now
    return f"the next round cleans [{found.first_dirty}, {found.bound}); now: {now}"


def _receipt_lines(each: ExplainedPartition) -> list[str]:
    if not each.receipts:
        return [f"{each.name}: no receipt tells of earlier rounds"]
    newest = sorted(each.receipts, key=lambda receipt: receipt.now_ms)[-RECEIPTS_SHOWN:]
    rounds = [f"{time_text(e.now_ms)} (to offset {e.end_offset})" for e in newest]
    left = len(each.receipts) - len(newest)
    more = f", and {left} before" if left > 0 else ""
    return [
        f"{each.name}: earlier records below those offsets went in one of these rounds, if there "
        f"were any: {', '.join(rounds)}{more}"
    ]


def explained_document(
    parts: Sequence[ExplainedPartition], *, values: bool, key: bytes | None
) -> dict[str, Any]:
    """Return the document; ``key`` is what was asked about, None for what an offset named."""
    key = parts[0].found.key if key is None and parts else key
    return {
        "key": bytes_row(key),
        "partitions": [_partition_document(each, values=values) for each in parts],
    }


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
        "last_trace": {
            "kind": each.trace.kind,
            "by_ms": each.trace.by_ms,
            "values_by_ms": each.trace.values_by_ms,
            "why": trace_words(each.trace),
        },
        "erased_by": each.erased_by,
        "records": [_record_document(found, e, values=values) for e in found.records],
        "replaced_copies": [
            {
                **_header_document(copy.record, values=values),
                "segment_id": copy.segment_id,
                "collected_from_ms": copy.collected_ms,
            }
            for copy in each.copies
        ],
        "rounds": [
            {
                "now_ms": e.now_ms,
                "first_dirty": e.first_dirty,
                "end_offset": e.end_offset,
                "attempt": e.attempt,
            }
            for e in each.receipts
        ],
    }


def _header_document(record: KeyRecord, *, values: bool) -> dict[str, Any]:
    value: Record = record.record
    return {
        "offset": record.offset,
        "segment": record.segment,
        "position": record.position,
        "timestamp": value.timestamp,
        "is_tombstone": record.is_tombstone,
        "value_bytes": None if value.value is None else len(value.value),
        **({"value": bytes_row(value.value)} if values else {}),
        "outcome": record.outcome.name.lower(),
        "delete_horizon_ms": record.horizon_ms,
    }


def _record_document(found: KeyExplanation, each: FoundRecord, *, values: bool) -> dict[str, Any]:
    fate = each.fate
    return {
        **_header_document(each.record, values=values),
        "fate": fate.outlook,
        "why": reason_words(fate),
        "superseded_by": fate.by_offset,
        "goes_from_ms": fate.from_ms,
        "timeline": [encode(moment) for moment in timeline(found, fate)],
    }
