"""Reads finished exports again: their rows, one partition after the other, in bounded memory.

The rule: an export is opened once. Where ``current`` of incremental exports leads is looked at
then, so that rows and offsets are of one version however many follow meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct

from keeplast.columns.arrow_columns import MICROS_MAX
from keeplast.errors import CorruptError, InvalidError
from keeplast.log.files import FileSystem
from keeplast.log.paths import is_object_path
from keeplast.model.partition import NO_TIMESTAMP
from keeplast.pipeline.export_files import (
    FACTS_BYTES_MAX,
    OFFSETS_FILE,
    STATE_FILE,
    ExportFacts,
    decode_facts,
    decode_offsets,
)
from keeplast.pipeline.export_tasks import BATCH_ROWS, parquet_file
from keeplast.pipeline.increment import CURRENT, POINTER_BYTES_MAX, decode_pointer, parts_in
from keeplast.tier.objects.places import recipe_of

_READ = ("offset", "timestamp", "key", "value", "headers")


class ExportedRow(Struct, frozen=True):
    """A row of an export; ``timestamp_ms`` is -1 without one, ``value`` None of a tombstone.

    ``is_time_cut`` says that the record's timestamp lies beyond what Parquet's column holds.
    """

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    is_time_cut: bool


class ExportedTopic(Struct, frozen=True):
    """One topic of a finished export: ``offsets`` are where to go on, by partition.

    ``facts`` None where an earlier version wrote it, which said nothing of itself.
    """

    place: Path
    name: str
    offsets: dict[int, int]
    facts: ExportFacts | None
    files: FileSystem

    def rows(self, partition: int) -> Iterator[ExportedRow]:
        """Yield the rows of a partition; CorruptError for what is no file of an export."""
        directory = self.place / self.name / f"partition={partition}"
        paths = parts_in(directory, self.files)
        if not paths:
            raise CorruptError(
                "no file of this partition is there; export again", code="K147"
            ).located(str(directory))
        for path in paths:
            try:
                with parquet_file(path, self.files) as file:
                    for batch in file.iter_batches(BATCH_ROWS, columns=list(_READ)):
                        yield from _rows(batch)
            except (pa.ArrowException, KeyError, TypeError) as error:
                raise CorruptError(
                    f"not a file of an export; export again: {error}", code="K147"
                ).located(str(path)) from error


def open_export(directory: Path, topic: str, options: Mapping[str, str]) -> ExportedTopic:
    """Return one topic of the export in ``directory``, or of the newest version there.

    ``options`` are those of its object store.
    InvalidError where no export is, or none of the topic; CorruptError where it is damaged.
    """
    files = recipe_of((directory,), options).open()
    place = directory.resolve()
    if not files.exists(place / OFFSETS_FILE) and (place / CURRENT).is_symlink():
        place = (place / CURRENT).resolve()
    elif is_object_path(place) and files.exists(place / CURRENT):
        pointer = files.read_bytes(place / CURRENT, POINTER_BYTES_MAX)
        place /= decode_pointer(pointer, place / CURRENT)[0]
    if not files.exists(place / OFFSETS_FILE):
        raise InvalidError(
            "no finished export is there; give the directory that keeplast export --to made. "
            f"path={directory}",
            code="K147",
        )
    path = place / OFFSETS_FILE
    try:
        offsets = decode_offsets(files.read_bytes(path, FACTS_BYTES_MAX), topic)
        path, facts = place / STATE_FILE, None
        if files.exists(path):
            facts = decode_facts(files.read_bytes(path, FACTS_BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error
    if not offsets:
        raise InvalidError(f"the export has no such topic. topic={topic} path={place}", code="K114")
    return ExportedTopic(place, topic, offsets, facts, files)


def _rows(batch: pa.RecordBatch) -> Iterator[ExportedRow]:
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    rows: list[dict[str, Any]] = batch.drop_columns(["timestamp"]).to_pylist()
    for row, at in zip(rows, micros, strict=True):
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        at_ms = NO_TIMESTAMP if at is None else at // 1000
        is_cut = at is not None and abs(at) >= MICROS_MAX
        if row["offset"] is None or row["key"] is None:
            raise TypeError("a row without an offset or a key")
        yield ExportedRow(row["offset"], at_ms, row["key"], row["value"], headers, is_cut)
