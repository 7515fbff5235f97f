"""``keeplast.export``: the state of topics as Parquet, the latest or as of a point.

The files are what ``keeplast export`` writes: :func:`keeplast.exported_state` goes on from them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, named
from keeplast.config.known_partitions import known_partitions
from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.log.paths import place_path
from keeplast.pipeline.export import Export, ExportEvents, Workers, check_target, export_state
from keeplast.pipeline.increment import KEPT_DEFAULT
from keeplast.run.local_runner import LocalRunner
from keeplast.service.exporting import (
    LATEST,
    ExportedPoint,
    ExportPoint,
    find_source,
    find_versions,
)
from keeplast.service.read_place import PLAIN_READ, ReadTerms
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT
from keeplast.tier.objects.places import recipe_of


class _Silent:
    """Hears how far an export is, and says nothing."""

    def noted(self, message: str) -> None:
        """Say nothing."""

    def planned(self, total_bytes: int) -> None:
        """Say nothing."""

    def progressed(self, read_bytes: int) -> None:
        """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTerms:
    """Where a state is written, its point, and with how much memory, in bytes.

    With ``incremental`` it is the next version in ``to``, where ``keep`` versions stay, None for
    two. With ``tombstones`` what deletes a key is a row too; ``overwrite`` replaces an earlier
    export. ``object_options`` are those of the object store of ``to``.
    """

    to: Path
    point: ExportPoint = LATEST
    overwrite: bool = False
    incremental: bool = False
    keep: int | None = None
    tombstones: bool = False
    read: ReadTerms = PLAIN_READ
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    object_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def export(
    place: AskedPlace | str | Path | Sequence[AskedPlace | str | Path],
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
    object_options: Mapping[str, str] | None = None,
) -> Export:
    """Write each key's last value of ``topics``, without deleted keys, to the directory ``to``.

    ``to`` may be in an object store, with ``object_options``: there ``current`` is an object that
    names the version to read.

    Committed records only, by each topic's ``compaction.strategy``. ``topics`` and ``partitions``
    empty are all. Several directories, a broker's ``log.dirs`` or copies of several brokers', are
    one place, and of each partition the furthest replica counts. A topic that has more partitions
    by the metadata log is refused; with ``partial_topics`` what is there of it is taken.

    With one of these it is the state of an earlier point:

    - ``ending_offsets``: exclusive, by topic and partition;
    - ``as_of_ms``: approximate, as producers' clocks;
    - ``checkpoint``: TOPIC[@OFFSET], the offsets that a topic's record names;
    - ``end_group``: what a consumer group has committed.

    With ``incremental`` it is the next version in ``to``, where ``keep`` versions stay (2), and
    equals a full export. With ``tombstones`` what deletes a key is a row too; ``overwrite``
    replaces an earlier export. ``runner`` None means threads of this process, ``cores`` of them;
    one that is given stays open. ``events`` hear how far it is, and what is to be said; nothing is
    printed.

    An export that fails leaves what was there. InvalidError for what contradicts itself or names
    nothing, RefusedError where something is in the way, or the state of the point cannot be read
    (any more).
    """
    scope = PartitionChoice(topics=named(topics), partitions=tuple(partitions))
    several = [place] if isinstance(place, (AskedPlace, str, Path)) else list(place)
    if not several:
        raise InvalidError("no directory is given; name one", code="K102")
    done, _ = export_place(
        placed(several[0]), scope,
        ExportTerms(
            to=place_path(str(to)),
            point=ExportPoint(
                ending_offsets=None if ending_offsets is None else _offsets_text(ending_offsets),
                as_of_ms=as_of_ms, checkpoint=checkpoint, group=end_group,
            ),
            overwrite=overwrite, incremental=incremental, keep=keep, tombstones=tombstones,
            read=ReadTerms(
                also=tuple(map(directory_path, several[1:])),
                takes_partial=partial_topics,
            ),
            memory_bytes=memory_bytes, task_memory_bytes=task_memory_bytes,
            object_options=object_options or {},
        ),
        lambda: LocalRunner(cores) if runner is None else contextlib.nullcontext(runner),
        _Silent() if events is None else events,
    )  # fmt: skip
    return done


def export_place(
    place: AskedPlace,
    scope: PartitionChoice,
    terms: ExportTerms,
    open_runner: Callable[[], AbstractContextManager[Workers]],
    events: ExportEvents,
) -> tuple[Export, ExportedPoint]:
    """Write the state of a place, and return what was written with the point that it is of.

    Mistakes are found before a runner is opened.
    """
    if isinstance(place, DirectoryLogs):
        # Options that nothing is opened with are a mistake.
        recipe_of((terms.to, place.path, *terms.read.also), terms.object_options)
    if terms.keep is not None and terms.keep < 1:
        raise InvalidError(
            f"the new version stays; keep one at least. keep={terms.keep}", code="K104"
        )
    versions = find_versions(
        terms.to, incremental=terms.incremental, keep=terms.keep, overwrite=terms.overwrite,
        object_options=terms.object_options,
    )  # fmt: skip
    terms.point.check()
    read = place.read_place(scope, replace(terms.read, checkpoint=terms.point.checkpoint))
    for note in read.notes:
        events.noted(note)
    source = find_source(read, scope, terms.point, terms.memory_bytes)

    def target() -> Path:
        return terms.to.absolute() if versions is None else versions.next()

    check_target(target(), LocalFiles(), source.options, overwrite=terms.overwrite)
    held = contextlib.nullcontext() if versions is None else versions.held()
    with held, source.named(), open_runner() as workers:
        done = export_state(
            source.options, target(), workers, events, topic_config=source.topic_config,
            partitions=source.numbers, overwrite=terms.overwrite,
            task_memory_bytes=terms.task_memory_bytes, names_all=source.names_all,
            versions=versions, tombstones=terms.tombstones, known=known_partitions,
        )  # fmt: skip
        if versions is not None:
            usual = KEPT_DEFAULT if terms.incremental else 1
            versions.settle(done.target, usual if terms.keep is None else terms.keep)
    return done, source.point


def directory_path(place: AskedPlace | str | Path) -> Path:
    """Return where a further data directory of an export is; InvalidError for another place."""
    found = placed(place)
    if not isinstance(found, DirectoryLogs):
        raise InvalidError(
            "only data directories of a cluster make up one place; export this one by itself. "
            f"place={found.address}",
            code="K157",
        )
    return found.path


def _offsets_text(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets as the data source takes them, which says what of them cannot be."""
    return json.dumps(
        {topic: {str(number): end for number, end in its.items()} for topic, its in offsets.items()}
    )
