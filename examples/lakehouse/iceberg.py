"""Keeps an Iceberg table equal to a topic's state: deletes and upserts of an increment, one commit.

Run it as ``python examples/lakehouse/iceberg.py build/try``; README.md says what it needs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from increments import COLUMNS, SCHEMA, read_increment
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, In
from pyiceberg.table import Table

import keeplast

TOPIC = "orders"
VERSION = "keeplast.version"
KEYS_AT_ONCE = 1000
SAMPLE = Path(keeplast.__file__).parent / "samples" / "broker-4.3.0"


def open_table(work: Path) -> Table:
    """Return the table, in a catalog of its own below ``work``."""
    catalog = SqlCatalog(
        "try", uri=f"sqlite:///{work}/catalog.db", warehouse=f"file://{work.absolute()}/iceberg"
    )
    catalog.create_namespace_if_not_exists("topics")
    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
    return catalog.create_table_if_not_exists(f"topics.{TOPIC}", schema=schema)


def bring_up_to_date(table: Table, export: Path) -> str:
    """Bring the table to the newest version; which one that is stands in the same commit."""
    seen = int(table.properties.get(VERSION, 0))
    found = read_increment(export, TOPIC, seen)
    if found is None:
        return f"version {seen} is there already"
    upserts = found.rows.filter(pc.invert(found.rows["deleted"])).select(COLUMNS)
    deletes = found.rows.filter(found.rows["deleted"])
    with table.transaction() as transaction:
        # A key that comes again goes first: delete and append are MERGE, by key.
        if found.is_whole and seen:
            transaction.delete(AlwaysTrue())
        elif not found.is_whole:
            for keys in key_filters(found.rows):
                transaction.delete(keys)
        transaction.append(upserts)
        transaction.set_properties({VERSION: str(found.version)})
    how = "written as a whole" if found.is_whole else "merged"
    return f"version {found.version} {how}: {len(upserts)} upserts, {len(deletes)} deletes"


def key_filters(rows: pa.Table) -> Iterator[And]:
    """Yield expressions for the keys of some rows, partition by partition, so many at once."""
    for number in pc.unique(rows["partition"]).to_pylist():
        keys = rows.filter(pc.equal(rows["partition"], number))["key"].to_pylist()
        for at in range(0, len(keys), KEYS_AT_ONCE):
            yield And(EqualTo("partition", number), In("key", keys[at : at + KEYS_AT_ONCE]))


def main() -> None:
    """Export three points of a topic, merge each, and compare the table with the state."""
    work = Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    table, export = open_table(work), work / "export"
    for end in (60, 150, 339):
        ends = {TOPIC: {0: end}}
        keeplast.export(
            SAMPLE, export, topics=[TOPIC], ending_offsets=ends, incremental=True, cores=1
        )
        print(bring_up_to_date(table, export))
    print(bring_up_to_date(table, export))
    state = keeplast.open_log(SAMPLE / f"{TOPIC}-0").state(end_offset=339)
    rows = table.scan().to_arrow().to_pylist()
    assert len(rows) == len(state)
    assert {row["key"]: row["value"] for row in rows} == {
        key: record.value for key, record in state.items()
    }
    print(f"the table has the state's {len(state)} keys")


if __name__ == "__main__":
    main()
