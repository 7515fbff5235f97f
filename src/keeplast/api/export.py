"""``keeplast.export``: the state of topics as Parquet, the latest or as of a point.

The files are what ``keeplast export`` writes: :func:`keeplast.exported_state` goes on from them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.api.place import AskedPlace, named
from keeplast.config.choice import USUAL_SOURCES, PartitionChoice
from keeplast.errors import InvalidError
from keeplast.log.object_paths import place_path
from keeplast.pipeline.export import Export, ExportEvents, Workers
from keeplast.run.local_runner import LocalRunner
from keeplast.service.exporting import ExportCall, ExportPoint, find_source, find_versions
from keeplast.service.read_place import ReadPlace, directory_read
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
    place: AskedPlace | str | Path | Sequence[str | Path],
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
    partial_topics: bool = False,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT,
    cores: int | None = None,
    runner: Workers | None = None,
    events: ExportEvents | None = None,
) -> Export:
    """Write each key's last value of ``topics``, without deleted keys, to the directory ``to``.

    Committed records only, by each topic's ``compaction.strategy``. ``topics`` and ``partitions``
    empty are all. Several directories, a broker's ``log.dirs`` or copies of several brokers', are
    one place, and of each partition the furthest replica counts; with ``partial_topics`` what is
    there is taken of topics that have more partitions by the metadata log, else refused. Of one
    earlier point it is that state: ``ending_offsets``, exclusive, by topic and partition;
    ``as_of_ms``, approximate as producers' clocks; ``checkpoint``, TOPIC[@OFFSET], the offsets that
    a topic's record names; ``end_group``, what a consumer group has committed.
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
    read = _read_place(place, scope, checkpoint, takes_partial=partial_topics)
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


def _read_place(
    place: AskedPlace | str | Path | Sequence[str | Path],
    scope: PartitionChoice,
    checkpoint: str | None,
    *,
    takes_partial: bool,
) -> ReadPlace:
    if isinstance(place, (str, Path)):
        place = (place,)
    if isinstance(place, DirectoryLogs):
        return directory_read(
            (place.path,), place.sources, place.object_options, takes_partial=takes_partial
        )
    if isinstance(place, Sequence):
        if not place:
            raise InvalidError("no directory is given; name one")
        paths = [place_path(str(each)) for each in place]
        return directory_read(paths, USUAL_SOURCES, {}, takes_partial=takes_partial)
    if takes_partial:
        raise InvalidError(
            "partial_topics is about directories; stores and clusters say which partitions they "
            f"have. place={place!r}"
        )
    return place.read_place(scope, checkpoint)


def _offsets_text(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets as the data source takes them, which says what of them cannot be."""
    return json.dumps(
        {topic: {str(number): end for number, end in its.items()} for topic, its in offsets.items()}
    )
