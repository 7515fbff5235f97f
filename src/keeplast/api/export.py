"""``keeplast.export``: the state of topics as Parquet, the latest or as of a point.

The files are what ``keeplast export`` writes: :func:`keeplast.exported_state` goes on from them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from keeplast.api.directory_logs import placed
from keeplast.api.place import AskedPlace, named
from keeplast.config.choice import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.pipeline.export import Export, ExportEvents, Workers
from keeplast.run.local_runner import LocalRunner
from keeplast.service.exporting import ExportCall, ExportPoint, find_source, find_versions
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT


class _Silent:
    """Hears how far an export is, and says nothing."""

    def noted(self, message: str) -> None:
        """Say nothing."""

    def planned(self, total_bytes: int) -> None:
        """Say nothing."""

    def progressed(self, read_bytes: int) -> None:
        """Say nothing."""


def export(
    place: AskedPlace | str | Path,
    to: str | Path,
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    ending_offsets: Mapping[str, Mapping[int, int]] | None = None,
    as_of_ms: int | None = None,
    checkpoint: str | None = None,
    end_group: str | None = None,
    incremental: bool = False,
    keep: int | None = None,
    tombstones: bool = False,
    overwrite: bool = False,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT,
    cores: int | None = None,
    runner: Workers | None = None,
    events: ExportEvents | None = None,
) -> Export:
    """Write each key's last value of ``topics``, without deleted keys, to the directory ``to``.

    Committed records only, by each topic's ``compaction.strategy``. ``topics`` and ``partitions``
    empty are all. Of one earlier point it is that state: ``ending_offsets``, exclusive, by topic
    and partition; ``as_of_ms``, approximate as producers' clocks; ``checkpoint``, TOPIC[@OFFSET],
    the offsets that a topic's record names; ``end_group``, what a consumer group has committed.
    With ``incremental`` it is the next version in ``to``, of which ``keep`` stay (2), and equals a
    full export. With ``tombstones`` what deletes a key is a row too; ``overwrite`` replaces an
    earlier export. ``runner`` None means threads of this process, ``cores`` of them; one that is
    given stays open. ``events`` hear how far it is, and what is to be said; nothing is printed.

    An export that fails leaves what was there. InvalidError for what contradicts itself or names
    nothing, RefusedError where something is in the way, or the state as of the point cannot be told
    (any more).
    """
    scope = PartitionChoice(topics=named(topics), partitions=tuple(partitions))
    heard: ExportEvents = _Silent() if events is None else events
    target = Path(to)
    if keep is not None and keep < 1:
        raise InvalidError(f"the new version stays; keep one at least. keep={keep}")
    versions = find_versions(target, incremental=incremental, keep=keep, overwrite=overwrite)
    point = ExportPoint(
        ending_offsets=None if ending_offsets is None else _offsets_text(ending_offsets),
        as_of_ms=as_of_ms, checkpoint=checkpoint, group=end_group,
    )  # fmt: skip
    point.check()
    read = placed(place).read_place(scope, checkpoint)
    for note in read.notes:
        heard.noted(note)
    call = ExportCall(
        source=find_source(read, scope, point, memory_bytes), to=target, versions=versions,
        keep=keep, overwrite=overwrite, tombstones=tombstones,
        task_memory_bytes=task_memory_bytes,
    )  # fmt: skip
    call.check()
    workers = LocalRunner(cores) if runner is None else contextlib.nullcontext(runner)
    with call.held(), workers as chosen:
        return call.run(chosen, heard)


def _offsets_text(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets as the data source takes them, which says what of them cannot be."""
    return json.dumps(
        {topic: {str(number): end for number, end in its.items()} for topic, its in offsets.items()}
    )
