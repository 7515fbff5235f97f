"""Receipts as a table, a line a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from keeplast.cli.show.file import is_named_file
from keeplast.cli.show.rows import cells, new_table
from keeplast.clock import time_text
from keeplast.log.files import FileSystem
from keeplast.model.escapes import printable
from keeplast.model.size import format_bytes, format_count, format_counted
from keeplast.survey.receipt_book import (
    ActionReceipt,
    CollectionReceipt,
    Entry,
    ExpiryReceipt,
    RemovalReceipt,
    UndoReceipt,
    VerdictReceipt,
    beside_rounds,
    told_of,
)

REASONS = ("superseded", "tombstone", "aborted", "keyless", "marker")


def is_receipts(path: Path, files: FileSystem) -> bool:
    """Return whether a file holds receipts: lines of JSON under a name that is none of Kafka's."""
    if is_named_file(path):
        return False
    handle = files.open_read(path.resolve())
    try:
        first = bytearray(1)
        return handle.pread_into(memoryview(first), 0) == 1 and first == b"{"
    finally:
        handle.close()


def receipts_table(receipts: Sequence[Entry]) -> Table:
    """Return a row for each round: when, where, how much, and what went by reason.

    And one for each expiry, removal from a store, collection of what was replaced, or round that
    was undone: the offsets and bytes that went. Where a verdict was noted, a last column has it
    beside the rounds.
    """
    found = beside_rounds(receipts, told_of)
    names = ["partition", "=clock", ">offsets", ">bytes", ">records", "records that went"]
    if any(verdict is not None for _, verdict in found):
        names.append("verdict")
    table = new_table(*names)
    for each, verdict in found:
        if isinstance(each, ExpiryReceipt):
            _add_expiry(table, each)
            continue
        if isinstance(each, RemovalReceipt):
            _add_removal(table, each)
            continue
        if isinstance(each, CollectionReceipt):
            _add_collection(table, each)
            continue
        if isinstance(each, UndoReceipt):
            _add_undo(table, each)
            continue
        if isinstance(each, ActionReceipt | VerdictReceipt):
            name = "all" if each.partition is None else each.partition
            words = each.words
            if isinstance(each, VerdictReceipt):
                words = f"verdict: {words}, of rounds before these"
            table.add_row(*cells([name]), time_text(each.now_ms), "", "", "", printable(words))
            continue
        stats = each.document["round"]["stats"]
        reasons = each.document["round"].get("reasons") or {}
        went = [
            f"{format_count(reasons[f'{name}_records'])} {name}"
            for name in REASONS
            if reasons.get(f"{name}_records")
        ]
        if not each.has_ended:
            went.append("interrupted: more waves were to follow")
        table.add_row(
            *cells([each.partition]),
            time_text(each.now_ms),
            f"{each.first_dirty}..{each.end_offset}",
            _change(format_bytes(stats["bytes_read"]), format_bytes(stats["bytes_written"])),
            _change(format_count(stats["messages_read"]), format_count(each.messages_written)),
            printable(", ".join(went)) or "none",
            *([] if verdict is None else [printable(verdict.words)]),
        )
    return table


def _add_expiry(table: Table, expiry: ExpiryReceipt) -> None:
    found = expiry.document["expiry"]
    rules = [f"{rule['segments']} by {name}" for name, rule in found["by_rule"].items()]
    table.add_row(
        *cells([expiry.partition]),
        time_text(expiry.now_ms),
        f"{expiry.log_start_before}..{expiry.log_start}",
        f"{format_bytes(found['bytes'])} -> 0 B",
        "",
        printable(f"expired segments: {', '.join(rules)}"),
    )


def _add_removal(table: Table, removal: RemovalReceipt) -> None:
    found = removal.document["removal"]
    records = found["records"]
    table.add_row(
        *cells([removal.partition]),
        time_text(removal.now_ms),
        f"{removal.start}..{removal.end}",
        f"{format_bytes(found['bytes'])} -> 0 B",
        "" if records is None else f"{format_count(records)} -> 0",
        printable(f"taken out of the store: {found['kind']}"),
    )


def _add_collection(table: Table, collection: CollectionReceipt) -> None:
    count = collection.segments
    table.add_row(
        *cells([collection.partition]),
        time_text(collection.now_ms),
        f"{collection.start}..{collection.end}",
        f"{format_bytes(collection.size_bytes)} -> 0 B",
        "",
        f"none: {format_counted(count, 'replaced segment')} collected",
    )


def _add_undo(table: Table, undo: UndoReceipt) -> None:
    went, came = undo.size_bytes
    table.add_row(
        *cells([undo.partition]),
        time_text(undo.now_ms),
        "",
        _change(format_bytes(went), format_bytes(came)),
        "",
        printable(
            f"none: round {undo.attempt} undone, {format_counted(undo.segments, 'segment')} back"
        ),
    )


def _change(before: str, after: str) -> str:
    return f"{before} -> {after}"
