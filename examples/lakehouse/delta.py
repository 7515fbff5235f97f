"""Keeps a Delta table equal to a topic's state: one MERGE an increment.

Run it as ``python examples/lakehouse/delta.py build/try``; README.md says what it needs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from increments import COLUMNS, SCHEMA, read_increment
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import keeplast

TOPIC = "orders"
APP = f"keeplast-{TOPIC}"
SAMPLE = Path(keeplast.__file__).parent / "samples" / "broker-4.3.0"


def bring_up_to_date(place: Path, export: Path) -> str:
    """Merge what the table lacks; the version stands in the same commit, so that none is twice."""
    table = DeltaTable.create(
        str(place), SCHEMA.remove(SCHEMA.get_field_index("deleted")), mode="ignore"
    )
    seen = table.transaction_version(APP) or 0
    found = read_increment(export, TOPIC, seen)
    if found is None:
        return f"version {seen} is there already"
    merge = (
        table.merge(
            source=found.rows,
            predicate="t.partition = s.partition AND t.key = s.key",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=[Transaction(APP, found.version)]),
        )
        .when_matched_delete(predicate="s.deleted")
        .when_matched_update(updates={name: f"s.{name}" for name in COLUMNS})
        .when_not_matched_insert(
            updates={name: f"s.{name}" for name in COLUMNS}, predicate="NOT s.deleted"
        )
    )
    if found.is_whole:
        merge = merge.when_not_matched_by_source_delete()
    done = merge.execute()
    return (
        f"version {found.version}: {done['num_target_rows_inserted']} inserted, "
        f"{done['num_target_rows_updated']} updated, {done['num_target_rows_deleted']} deleted"
    )


def rows(place: Path) -> dict[tuple[int, bytes], bytes]:
    """Return what the table has."""
    # A file system of pyarrow's own: threads of pyarrow that still hold deltalake's file system,
    # which is written in Python, abort the process where the interpreter ends before them.
    files = SubTreeFileSystem(str(place), LocalFileSystem())
    table = pa.table(DeltaTable(str(place)).to_pyarrow_table(filesystem=files))
    return {(row["partition"], row["key"]): row["value"] for row in table.to_pylist()}


def main() -> None:
    """Export three points of a topic, merge each, and compare the table with the state."""
    work = Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    export, place = work / "export", work / "delta"
    for end in (60, 150, 339):
        ends = {TOPIC: {0: end}}
        keeplast.export(
            SAMPLE, export, topics=[TOPIC], ending_offsets=ends, incremental=True, cores=1
        )
        print(bring_up_to_date(place, export))
    print(bring_up_to_date(place, export))
    state = keeplast.open_log(SAMPLE / f"{TOPIC}-0").state(end_offset=339)
    assert {(0, key): record.value for key, record in state.items()} == rows(place)
    print(f"the table has the state's {len(state)} keys")


if __name__ == "__main__":
    main()
