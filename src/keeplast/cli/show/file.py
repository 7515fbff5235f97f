"""The files next to a log, one at a time: what is in them as a table and as plain values.

Chosen by the file's name alone, as Kafka chooses. Raises CorruptError with the path for content
that is not what the name promises, InvalidError for names that mean nothing. Receipts are a table
with a line a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.table import Table

from keeplast.cli.show.tables import cells, new_table
from keeplast.clock import time_text
from keeplast.errors import CorruptError, InvalidError
from keeplast.format import (
    checkpoint,
    leader_epoch,
    meta_properties,
    offset_index,
    partition_metadata,
    producer_snapshot,
    time_index,
    txn_index,
)
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
)
from keeplast.format.identifier import encode_id
from keeplast.log.files import FileSystem, reading
from keeplast.model.text import format_bytes, format_count, format_counted, printable
from keeplast.survey.receipt_book import (
    ActionReceipt,
    CollectionReceipt,
    Entry,
    ExpiryReceipt,
    RemovalReceipt,
    UndoReceipt,
    VerdictReceipt,
    beside_rounds,
    subject_of,
)

FILE_BYTES_MAX = 256 << 20
TEXT_BYTES_MAX = 16 << 20
"""Of a file of lines and of a transaction index: each entry costs many times its bytes here."""

OFFSET_CHECKPOINTS = frozenset(
    {CLEANER_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT}
)


class FileView(Struct, frozen=True):
    """A file's content: column names, a row per entry, and what seems wrong with it."""

    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    problem: str | None = None

    def entries(self, limit: int) -> list[dict[str, Any]]:
        """Return the first ``limit`` entries by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows[:limit]]

    def table(self, limit: int) -> Table:
        """Return the first ``limit`` entries for a person; times in UTC."""
        return new_table(
            *(f">{name}" for name in self.columns),
            rows=(
                cells(
                    [
                        time_text(value) if name == "timestamp" else value
                        for name, value in zip(self.columns, row, strict=True)
                    ]
                )
                for row in self.rows[:limit]
            ),
        )


def view_file(path: Path, files: FileSystem) -> FileView:
    """Return what the file at ``path`` holds."""
    decode = _decoder(path)
    if decode is None:
        raise InvalidError(
            "not a file of a Kafka log, and no receipts. Give a partition directory, a .log file "
            f"or one next to it, or receipts with a line at least. path={path}",
            code="K116",
        )
    data = files.read_bytes(path, _bytes_max(path))
    try:
        return decode(data, path, files)
    except CorruptError as error:
        raise error.located(str(path)) from error


Decoder = Callable[[bytes, Path, FileSystem], FileView]


def _decoder(path: Path) -> Decoder | None:
    if path.name in _BY_NAME:
        return _BY_NAME[path.name]
    if path.name in OFFSET_CHECKPOINTS:
        return _offsets
    parsed = parse_segment_file(path.name)
    return None if parsed is None else _BY_KIND.get(parsed.kind)


def _bytes_max(path: Path) -> int:
    parsed = parse_segment_file(path.name)
    is_compact = parsed is not None and parsed.kind != TXN_INDEX
    return FILE_BYTES_MAX if is_compact else TEXT_BYTES_MAX


def _offset_index(data: bytes, path: Path, files: FileSystem) -> FileView:
    entries = offset_index.decode(data)
    base = _base_offset(path)
    size = _log_size(path, files)
    rows = tuple((base + int(relative), int(position)) for relative, position in entries)
    problem = None if size is None else offset_index.find_problem(entries, size)
    return FileView("offset index", ("offset", "position"), rows, problem)


def _time_index(data: bytes, path: Path, files: FileSystem) -> FileView:
    entries = time_index.decode(data)
    base = _base_offset(path)
    size = _log_size(path, files)
    rows = tuple((int(timestamp), base + int(relative)) for timestamp, relative in entries)
    problem = None if size is None else time_index.find_problem(entries, size)
    return FileView("time index", ("timestamp", "offset"), rows, problem)


def _txn_index(data: bytes, path: Path, files: FileSystem) -> FileView:
    rows = tuple(
        (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
        for each in txn_index.decode(data)
    )
    columns = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    early = next((row for row in rows if row[2] < _base_offset(path)), None)
    problem = None if early is None else f"ends before its segment begins. last_offset={early[2]}"
    return FileView("aborted transactions", columns, rows, problem)


def _snapshot(data: bytes, path: Path, files: FileSystem) -> FileView:
    columns = (
        "producer_id", "epoch", "last_sequence", "last_offset", "offset_delta", "timestamp",
        "coordinator_epoch", "current_txn_first_offset",
    )  # fmt: skip
    rows = tuple(
        tuple(getattr(entry, name) for name in columns) for entry in producer_snapshot.decode(data)
    )
    return FileView("producer snapshot", columns, rows)


def _leader_epochs(data: bytes, path: Path, files: FileSystem) -> FileView:
    rows = tuple((each.epoch, each.start_offset) for each in leader_epoch.decode(data))
    return FileView("leader epochs", ("epoch", "start_offset"), rows)


def _offsets(data: bytes, path: Path, files: FileSystem) -> FileView:
    rows = tuple(
        (partition.topic, partition.partition, offset)
        for partition, offset in checkpoint.decode_offsets(data).items()
    )
    return FileView("offset checkpoint", ("topic", "partition", "offset"), rows)


def _partition_metadata(data: bytes, path: Path, files: FileSystem) -> FileView:
    content = partition_metadata.decode(data)
    row = (content.version, encode_id(content.topic_id))
    return FileView("partition metadata", ("version", "topic_id"), (row,))


def _meta_properties(data: bytes, path: Path, files: FileSystem) -> FileView:
    content = meta_properties.decode(data)
    row = (content.version, content.cluster_id, content.node_id, content.directory_id)
    columns = ("version", "cluster_id", "node_id", "directory_id")
    return FileView("meta.properties", columns, (row,))


def _base_offset(path: Path) -> int:
    parsed = parse_segment_file(path.name)
    return 0 if parsed is None else parsed.base_offset


def _log_size(path: Path, files: FileSystem) -> int | None:
    log = path.with_name(f"{_base_offset(path):020d}{LOG}")
    return files.stat(log).size_bytes if files.exists(log) else None


_BY_NAME: dict[str, Decoder] = {
    LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    PARTITION_METADATA: _partition_metadata,
    META_PROPERTIES: _meta_properties,
}
_BY_KIND: dict[str, Decoder] = {
    INDEX: _offset_index,
    TIME_INDEX: _time_index,
    TXN_INDEX: _txn_index,
    SNAPSHOT: _snapshot,
}


REASONS = ("superseded", "tombstone", "aborted", "keyless", "marker")


def is_receipts(path: Path, files: FileSystem) -> bool:
    """Return whether a file holds receipts: lines of JSON under a name that is none of Kafka's."""
    if _decoder(path) is not None:
        return False
    with reading(files, path.resolve()) as handle:
        first = bytearray(1)
        return handle.pread_into(memoryview(first), 0) == 1 and first == b"{"


def receipts_table(receipts: Sequence[Entry]) -> Table:
    """Return a row for each round: when, where, how much, and what went by reason.

    And one for each expiry, removal from a store, collection of replaced segments, or round that
    was undone: the offsets and bytes that went. Where a verdict was noted, a last column has it in
    the rows of its rounds.
    """
    found = beside_rounds(receipts, subject_of)
    has_verdicts = any(verdict is not None for _, verdict in found)
    return new_table(
            "partition", "=clock", ">offsets", ">bytes", ">records", "records that went",
            *(["verdict"] if has_verdicts else []), rows=(
            (
                *cells(["all" if each.partition is None else each.partition]),
                time_text(each.now_ms),
                *_what_went(each),
                *([] if verdict is None else [printable(verdict.words)]),
            )
            for each, verdict in found
        ))  # fmt: skip


def _what_went(each: Entry) -> tuple[str, str, str, str]:
    """Return the offsets, bytes and records of a line, and why records went."""
    if isinstance(each, ExpiryReceipt):
        found = each.document["expiry"]
        rules = [f"{rule['segments']} by {name}" for name, rule in found["by_rule"].items()]
        return (
            f"{each.log_start_before}..{each.log_start}",
            f"{format_bytes(found['bytes'])} -> 0 B",
            "",
            printable(f"expired segments: {', '.join(rules)}"),
        )
    if isinstance(each, RemovalReceipt):
        found = each.document["removal"]
        return (
            f"{each.start}..{each.end}",
            f"{format_bytes(found['bytes'])} -> 0 B",
            "" if found["records"] is None else f"{format_count(found['records'])} -> 0",
            printable(f"taken out of the store: {found['kind']}"),
        )
    if isinstance(each, CollectionReceipt):
        return (
            f"{each.start}..{each.end}",
            f"{format_bytes(each.size_bytes)} -> 0 B",
            "",
            f"none: {format_counted(each.segments, 'replaced segment')} collected",
        )
    if isinstance(each, UndoReceipt):
        back = format_counted(each.segments, "segment")
        return (
            "",
            _change(*map(format_bytes, each.size_bytes)),
            "",
            printable(f"none: round {each.attempt} undone, {back} back"),
        )
    if isinstance(each, VerdictReceipt):
        return "", "", "", printable(f"verdict: {each.words}, of rounds before these")
    if isinstance(each, ActionReceipt):
        return "", "", "", printable(each.words)
    stats = each.document["round"]["stats"]
    reasons = each.document["round"].get("reasons") or {}
    went = [
        f"{format_count(reasons[f'{name}_records'])} {name}"
        for name in REASONS
        if reasons.get(f"{name}_records")
    ]
    if not each.has_ended:
        went.append("interrupted: more waves were to follow")
    return (
        f"{each.first_dirty}..{each.end_offset}",
        _change(format_bytes(stats["bytes_read"]), format_bytes(stats["bytes_written"])),
        _change(format_count(stats["messages_read"]), format_count(each.messages_written)),
        printable(", ".join(went)) or "none",
    )


def _change(before: str, after: str) -> str:
    return f"{before} -> {after}"
