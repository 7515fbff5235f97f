"""The increments of ``keeplast export --incremental``, as rows for MERGE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("partition", "key", "value", "offset", "timestamp")
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary()),
        ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("deleted", pa.bool_()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Increment:
    """``rows`` bring a table from version ``since`` to ``version``; 0 is an empty table.

    With ``is_whole`` they are all there is: what the table has besides them goes.
    """

    version: int
    rows: pa.Table
    is_whole: bool


def read_increment(export: Path, topic: str, seen: int) -> Increment | None:
    """Return what a table that has version ``seen`` lacks; None where it lacks nothing.

    The rows of the last version's changes, where the table has the version before it and no
    partition was read as a whole; else the whole state, which is right in any case.
    """
    # Looked at once: rows and changes are of one version, whatever is exported meanwhile.
    place = (export / "current").resolve()
    version = int(place.name)
    if version == seen:
        return None
    since = place / "_changes" / "_since.json"
    if seen and since.exists():
        facts = json.loads(since.read_text())
        if facts["since"] == f"versions/{seen:08d}" and not facts["whole"]:
            return Increment(version, _rows(place / "_changes" / topic), is_whole=False)
    return Increment(version, _rows(place / topic), is_whole=True)


def _rows(place: Path) -> pa.Table:
    tables = []
    for directory in sorted(place.glob("partition=*")):
        number = int(directory.name.partition("=")[2])
        for file in sorted(directory.glob("part-*.parquet")):
            table = pq.ParquetFile(file).read()
            if "deleted" not in table.column_names:
                table = table.append_column("deleted", pa.repeat(pa.scalar(False), len(table)))
            table = table.append_column(
                "partition", pa.repeat(pa.scalar(number, pa.int32()), len(table))
            )
            tables.append(table.select(SCHEMA.names))
    return pa.concat_tables(tables).cast(SCHEMA) if tables else SCHEMA.empty_table()
