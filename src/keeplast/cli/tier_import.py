"""``keeplast tier import``: from a data directory and its settings to partitions of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keeplast.cli.guard import JSON_VERSION
from keeplast.cli.output import print_result, say
from keeplast.cli.progress import ProgressEvents
from keeplast.cli.sizes import format_bytes
from keeplast.config.selection import select_directory
from keeplast.engine.open_store import TieredStore
from keeplast.log.files import LocalFiles


def import_directory(
    store: TieredStore,
    data_dir: Path,
    *,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    flags: tuple[str, ...],
    config_file: Path | None,
    takes_over: bool,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Import the chosen partitions, one after another, and say what each has now."""
    chosen, warnings = select_directory(
        data_dir, LocalFiles(), topics=topics, partitions=partitions, flags=flags,
        config_file=config_file,
    )  # fmt: skip
    for warning in warnings:
        say(warning, kind="warning")
    documents = []
    with ProgressEvents("importing") as events:
        for entry, settings in chosen:
            before = store.state(entry.partition) if entry.partition in store.partitions() else None
            size = sum(path.stat().st_size for path in entry.path.glob("*.log"))
            events.planned(size)
            state = store.import_directory(
                entry.partition, entry.path, settings, progressed=events.progressed,
                takes_over=takes_over,
            )  # fmt: skip
            added = len(state.routes) - (0 if before is None else len(before.routes))
            documents.append(
                {
                    "topic": entry.partition.topic,
                    "partition": entry.partition.partition,
                    "segments": len(state.routes),
                    "added": added,
                    "bytes": state.remote_bytes,
                    "log_start": state.log_start,
                    "remote_end": state.remote_end,
                    "first_dirty": state.first_dirty(),
                }
            )
            if not as_json:
                print_result(
                    f"{entry.partition}: {added} segments copied, {len(state.routes)} in the "
                    f"store, {format_bytes(state.remote_bytes)}, offsets "
                    f"{state.log_start}..{state.remote_end}"
                )
    return 0, {"version": JSON_VERSION, "partitions": documents}
