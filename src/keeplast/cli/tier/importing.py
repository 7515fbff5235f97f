"""``keeplast tier import`` and ``copy``: from a data directory to partitions of a store.

A fault of one partition is told and stops no other; the greatest exit code counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cli.frame.guard import error_document
from keeplast.cli.show.fault import fault_text
from keeplast.cli.show.outcome import ends_line
from keeplast.cli.show.output import print_result, say
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.tier.options import OwnedCall
from keeplast.clock import SystemClock
from keeplast.config.choice import SettingSources
from keeplast.config.selection import select_directory
from keeplast.config.sources import read_settings
from keeplast.errors import CompactionError, InvalidError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.log_start import noted_log_start
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes, format_counted
from keeplast.store.directory import directory_bounds
from keeplast.store.tiered_store import Progressed, TieredStore
from keeplast.tier.copy.importing import Replaced
from keeplast.tier.state.continuity import ReplacedRange
from keeplast.tier.state.partition_state import PartitionState

Act = Callable[[Progressed, Replaced], PartitionState]

IMPORTING = "importing"


def import_directory(
    store: TieredStore,
    data_dir: Path,
    call: OwnedCall,
    sources: SettingSources,
    *,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Import the chosen partitions, one after another, and say what each has now."""
    chosen, warnings = select_directory(data_dir, LocalFiles(), call.scope, sources)
    for warning in warnings:
        say(warning, kind="warning")

    def act_on(partition: TopicPartition, path: Path, settings: dict[str, str]) -> Act:
        return lambda progressed, replaced: store.import_directory(
            partition, path, settings, progressed=progressed, takes_over=call.take_over,
            replaced=replaced,
        )  # fmt: skip

    acts = [
        (entry.partition, entry.path, act_on(entry.partition, entry.path, settings))
        for entry, settings in chosen
    ]
    return _take_over(store, acts, IMPORTING, as_json=as_json)


def copy_directory(
    store: TieredStore,
    data_dir: Path,
    call: OwnedCall,
    broker_config: Path | None,
    *,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Copy what those of the chosen partitions have gained that lie in ``data_dir``.

    How long its broker keeps tombstones decides what a copy can have missed; ``broker_config`` is
    where the broker says so.
    """
    partitions = call.chosen(store)
    directory = open_data_directory(data_dir, LocalFiles())
    sources = SettingSources(broker_config=broker_config)
    settings = read_settings(directory.root, LocalFiles(), sources)
    for warning in settings.warnings_of_broker:
        say(warning, kind="warning")
    found = [(each, directory.find(each)) for each in partitions]
    here = [(each, entry.path) for each, entry in found if entry is not None]
    if not here and partitions:
        raise InvalidError(
            "none of the store's partitions is in the directory; keeplast tier import takes new "
            f"ones in. path={data_dir}"
        )

    def act_on(partition: TopicPartition, path: Path) -> Act:
        return lambda progressed, replaced: store.copy_directory(
            partition, path, progressed=progressed, takes_over=call.take_over,
            retention_ms=settings.topic_config(partition.topic).delete_retention_ms,
            replaced=replaced,
        )  # fmt: skip

    acts = [(each, path, act_on(each, path)) for each, path in here]
    return _take_over(store, acts, "copying", as_json=as_json)


def _take_over(
    store: TieredStore,
    acts: Iterable[tuple[TopicPartition, Path, Act]],
    what: str,
    *,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    documents, code = [], DONE
    taken: list[list[int]] = []  # a list for each partition: the sizes of its new segments
    known = set(store.partitions())
    for partition, path, act in acts:
        before = store.state(partition) if partition in known else None
        replaced: list[ReplacedRange] = []
        place = {"topic": partition.topic, "partition": partition.partition}
        try:
            with ProgressEvents(f"{what} {partition}") as events:
                events.planned(_bytes_to_copy(path, before))
                state = act(events.progressed, replaced.append)
        except (CompactionError, OSError) as error:
            say(f"{partition}: {fault_text(error)}", kind="error")
            code = max(code, error_exit_code(error))
            documents.append(place | {"error": error_document(error)["error"]})
            continue
        known_ids = set() if before is None else set(before.segments)
        new = set(state.segments) - known_ids
        added = len(new)
        taken.append([state.segments[each].size_bytes for each in new])
        documents.append(
            place
            | {
                "segments": len(state.routes),
                "added": added,
                "bytes": state.remote_bytes,
                "log_start": state.log_start,
                "remote_end": state.remote_end,
                "first_dirty": state.first_dirty(),
                "replaced": replaced,
            }
        )
        left_out = _find_left_out(path, partition, state) if what == IMPORTING else None
        if left_out is not None:
            say(f"{partition}: {left_out}", kind="warning")
        for done in replaced:
            say(f"{partition}: {done.sentence()}", kind="warning")
        if not as_json:
            print_result(
                f"{partition}: {format_counted(added, 'segment')} copied, "
                f"{len(state.routes)} in the store, {format_bytes(state.remote_bytes)}, offsets "
                f"{state.log_start}..{state.remote_end}"
            )
    if not as_json:
        verb = "imported" if what == IMPORTING else "copied"
        print_result(*[""] * bool(taken), _closing(taken, verb, failed=len(documents) - len(taken)))
    return code, {"partitions": documents}


def _closing(taken: list[list[int]], verb: str, *, failed: int) -> str:
    grown = [sizes for sizes in taken if sizes]
    size = format_bytes(sum(map(sum, grown)))
    amount = f"{format_counted(sum(map(len, grown)), 'segment')}, {size}"
    ends = {f"{verb} ({amount})": len(grown), "had nothing new": len(taken) - len(grown)}
    return ends_line(ends, failed=failed)


def _find_left_out(path: Path, partition: TopicPartition, state: PartitionState) -> str | None:
    """Return what of a directory an import has not taken, None when it has all of it."""
    files = LocalFiles()
    listing = list_partition(path, files, if_empty=noted_log_start(files, path))
    log_end = find_tail(listing, files).log_end
    if state.remote_end >= log_end:
        return None
    high_watermark = directory_bounds(files, partition, path, SystemClock()).high_watermark
    return (
        f"offsets {state.remote_end}..{log_end} are left out: they are above the high watermark "
        f"that the directory notes, {high_watermark}, and could be truncated yet. Start the broker "
        "once and stop it in order, or let a later import or copy take them"
    )


def _bytes_to_copy(path: Path, before: PartitionState | None) -> int:
    """Return about how much a copy moves: the segments that begin behind what the store has."""
    start = 0 if before is None else before.remote_end
    files = LocalFiles()
    return sum(
        files.stat(path / name).size_bytes
        for name in files.listdir(path)
        if name.endswith(".log") and name[:20].isdigit() and int(name[:20]) >= start
    )
