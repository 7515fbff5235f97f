"""The files beside a log, one at a time: what is in them as a table and as plain values.

Chosen by the file's name alone, as Kafka chooses. Raises CorruptError with the path for content
that is not what the name promises, InvalidError for names that mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from keeplast.cli.show.rows import cells, new_table
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
from keeplast.log.files import FileSystem

FILE_BYTES_MAX = 256 << 20
TEXT_BYTES_MAX = 16 << 20
"""Of a file of lines and of a transaction index: each entry costs many times its bytes here."""

OFFSET_CHECKPOINTS = frozenset(
    {CLEANER_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT}
)


@dataclass(frozen=True, slots=True)
class FileView:
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
        table = new_table(*(f">{name}" for name in self.columns))
        for row in self.rows[:limit]:
            table.add_row(
                *cells(
                    [
                        time_text(value) if name == "timestamp" else value
                        for name, value in zip(self.columns, row, strict=True)
                    ]
                )
            )
        return table


def is_named_file(path: Path) -> bool:
    """Return whether Kafka has a file of this name, which says what is in it."""
    return _decoder(path) is not None


def view_file(path: Path, files: FileSystem) -> FileView:
    """Return what the file at ``path`` holds."""
    decode = _decoder(path)
    if decode is None:
        raise InvalidError(
            f"not a file of a Kafka log, and no receipts; give a partition directory, a .log file, "
            f"a file beside it, or a file of receipts with a line at least. path={path}"
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
