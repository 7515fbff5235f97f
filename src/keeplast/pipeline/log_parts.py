"""Partitions of a query: what its options choose, which offsets are read, and which tasks read
them.

The driver plans with it and tasks read with it. Nothing is written and no lock is taken. A task
costs some 60 ms before it reads anything, so that what is small is read by one together.

It also says whether a topic that is read is there as a whole: every partition that the metadata log
knows. A directory is one of a broker's several ``log.dirs``, or one broker's share of a cluster,
more often than not. The rule: **a part of a topic never passes for the topic.** A query that names
partitions gets those. One that names topics, or nothing, gets all partitions of each topic that has
one there. If some are missing it is an error that names them, unless the query asks to take what is
there.

Without a metadata log the number of partitions is not known. A store, and what is shown of a live
cluster, say themselves which partitions they have.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from msgspec import Struct, field
from pyarrow import RecordBatch

from keeplast.clock import Clock, SystemClock
from keeplast.errors import Despite, InvalidError, RefusedError
from keeplast.log.data_directory import DataDirectory, PartitionEntry, open_data_directories
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.arrow_batches import record_batch
from keeplast.pipeline.source_options import SourceOptions
from keeplast.read.log_state import read_state
from keeplast.read.log_view import (
    ALL,
    LogView,
    ReaderCheckpoints,
    Split,
    Wanted,
    last_epoch,
    load_reader_checkpoints,
    look_at_log,
    plan_splits,
)
from keeplast.read.points import first_offset_from, require_here, require_later
from keeplast.read.record_source import read_records
from keeplast.read.state_end import require_known_time, require_state_at
from keeplast.rewrite.workspace import Workspace
from keeplast.survey.rolling import FollowedLog
from keeplast.tier.objects.log_directory import LogDirectoryRecipe

TOGETHER_BYTES_MAX = 16 << 20
"""How much parts that are read by one task may have together.

That takes about as long as a task does by itself, and more would keep cores idle.
"""
PART_BYTES_MIN = 256 << 10
"""What the smallest part counts for: it costs a look at its directory."""


class LogPart(Struct, frozen=True):
    """A part of a log: records, or with ``state_of`` the state by that topic's rank.

    ``shown`` is what of the state it gives, by itself or together with others; ``key_bytes_max``
    bounds the key map of that. ``files`` is how the task opens what it reads.
    """

    split: Split
    shown: Wanted = ALL
    state_of: TopicConfig | None = None
    key_bytes_max: int | None = None
    files: FilesRecipe = field(default_factory=LocalRecipe)


class Logs:
    """The partitions that the options of a query choose, looked at as they are now."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        waits: bool = False,
        followed: dict[Path, FollowedLog] | None = None,
    ) -> None:
        """List the data directory; InvalidError when nothing is to read and no caller ``waits``.

        ``followed`` is what a reader that comes again knows of its logs.
        """
        self._options = options
        self.recipe: FilesRecipe = options.recipe()
        self.files: FileSystem = self.recipe.open()
        self._clock = SystemClock()
        self.directory: DataDirectory = open_data_directories(options.paths, self.files)
        self._checkpoints: dict[Path, ReaderCheckpoints] = {}
        chosen = options.chosen(self.directory, waits=waits)
        self._followed = followed
        if followed is not None:
            for path in followed.keys() - {each.path for each in chosen}:
                del followed[path]
        self.notes: tuple[str, ...] = ()
        """What is to be said of it: which of several replicas is read."""
        self.entries: Sequence[PartitionEntry] = self._furthest(chosen)

    def recipe_for(self, partition: TopicPartition) -> FilesRecipe:
        """Return how a task of one partition opens what it reads."""
        found = self.recipe
        return found.of_one(partition) if isinstance(found, LogDirectoryRecipe) else found

    def look(self, entry: PartitionEntry) -> LogView:
        """Return what readers may see of a partition."""
        root, followed = entry.path.parent, self._followed
        if root not in self._checkpoints:
            self._checkpoints[root] = load_reader_checkpoints(self.files, root)
        return look_at_log(
            entry.partition, entry.path, self._checkpoints[root], self.files, self._clock,
            accepts_loss=not self._options.fails_on_loss,
            followed=None if followed is None else followed.setdefault(entry.path, FollowedLog()),
        )  # fmt: skip

    def _furthest(self, chosen: Sequence[PartitionEntry]) -> list[PartitionEntry]:
        """Return one replica of each partition: that of the latest leader epoch, then the longest.

        As leaders are elected. RefusedError where they are of topics with different ids.
        """
        found: list[PartitionEntry] = []
        for partition, group in itertools.groupby(chosen, key=lambda entry: entry.partition):
            replicas = list(group)
            if len(replicas) == 1:
                found += replicas
                continue
            views = [self.look(entry) for entry in replicas]
            ids = {view.topic_id for view in views} - {None}
            if len(ids) > 1:
                raise RefusedError(
                    "the directories have partitions of different topics with the same name; "
                    "leave out those where the topic was deleted. "
                    f"paths={','.join(str(entry.path) for entry in replicas)}",
                    code="K157",
                )
            reached = [(_epoch_number(view, self.files), view.log_end) for view in views]
            best = max(range(len(replicas)), key=lambda i: reached[i])
            found.append(replicas[best])
            others = ", ".join(
                f"{entry.path.parent} to offset {end}"
                for i, (entry, (_, end)) in enumerate(zip(replicas, reached, strict=True))
                if i != best
            )
            self.notes += (
                f"{partition} is read from {replicas[best].path.parent}, to offset "
                f"{reached[best][1]}, the furthest of {len(replicas)} replicas; {others}",
            )
        return found

    def warn_torn(self, view: LogView) -> None:
        """Warn where what is read ends in front of an unfinished batch."""
        words = view.torn_words()
        is_bound = self._options.is_replicated and view.high_watermark is not None
        if words is not None and not is_bound:
            warnings.warn(f"{words}. path={view.path}", stacklevel=2)

    def latest_of(self, view: LogView) -> int:
        """Return the end of what the options let a query read of a partition."""
        options = self._options
        return view.end_for(committed=options.is_committed, replicated=options.is_replicated)

    def require_state_at(self, view: LogView, end_offset: int) -> int:
        """Return from which offset on to read after the state as of ``end_offset``.

        RefusedError when that state cannot be shown (any more).
        """
        if self._options.ending_ms is not None:
            require_known_time(view, end_offset, self.files, self._clock)
        return require_state_at(
            view, end_offset, latest=self.latest_of(view), files=self.files, clock=self._clock,
            committed=self._options.is_committed,
        )  # fmt: skip

    def decided_before(self, view: LogView, end_offset: int) -> int | None:
        """Return the offset at which transactions count as they were decided; None is now."""
        is_earlier = self._options.is_committed and end_offset < self.latest_of(view)
        return end_offset if is_earlier else None

    def record_parts(self, ranges: Sequence[tuple[LogView, Wanted]]) -> Iterator[LogPart]:
        """Yield what tasks read of records: as large as allowed, and as many as asked for."""
        options = self._options

        def cut(view: LogView, wanted: Wanted, size_bytes: int) -> list[Split]:
            return list(
                plan_splits(
                    view, wanted, self.files, split_bytes=size_bytes,
                    must_be_whole=options.fails_on_loss, hides_aborted=options.is_committed,
                )
            )  # fmt: skip

        found = [cut(*each, options.split_bytes) for each in ranges]
        share = sum(split.size_bytes for its in found for split in its) // options.tasks_min
        for (view, wanted), its in zip(ranges, found, strict=True):
            is_above = any(split.size_bytes > share for split in its)
            if is_above and share < options.split_bytes:
                its = cut(view, wanted, max(1, share))
            for split in its:
                yield LogPart(split, files=self.recipe_for(split.partition))

    def range_of(self, view: LogView) -> tuple[int, int]:
        """Return the offsets [first, end) that the options ask for, within what there is.

        InvalidError when they ask for offsets that the log does not have (any more).
        """
        options = self._options
        latest = self.latest_of(view)
        first = options.starting.of(view.partition, earliest=view.log_start, latest=latest)
        end = self._end_of(view, latest)
        if options.fails_on_loss:
            check_within(view, "startingOffsets", first)
            require_here(view, self._behind(view.partition), "endingOffsets", end)
            check_within(view, "endingOffsets", end)
        return max(first, view.log_start), min(end, latest)

    def _end_of(self, view: LogView, latest: int) -> int:
        ending_ms = self._options.ending_ms
        if ending_ms is None:
            ending = self._options.ending
            return ending.of(view.partition, earliest=view.log_start, latest=latest)
        found = first_offset_from(view, ending_ms, self.files, self._clock)
        require_later(view, self._behind(view.partition), "endingTimestamp", ending_ms, found)
        return latest if found is None else found

    def _behind(self, partition: TopicPartition) -> str:
        """Return what of a log is elsewhere, above what is read; empty for nothing."""
        found = self.recipe
        return found.behind(partition) if isinstance(found, LogDirectoryRecipe) else ""


def _epoch_number(view: LogView, files: FileSystem) -> int:
    epoch = last_epoch(view, files)
    return -1 if epoch is None else epoch


def check_within(view: LogView, what: str, offset: int) -> None:
    """Raise InvalidError unless ``offset`` is one that the log has, or its end."""
    if not view.log_start <= offset <= view.log_end:
        raise InvalidError(
            "the log does not have this offset; it was deleted or never written. Choose one that "
            "it has; with the source kafka-log failOnDataLoss=false reads what there is. "
            f"{what}={offset} "
            f"partition={view.partition} log_start={view.log_start} log_end={view.log_end}",
            code="K150",
        )


TaskParts = tuple[LogPart, ...]
"""What one task reads, one part after another."""


def share_out(parts: Iterable[LogPart], *, tasks_min: int, split_bytes: int) -> Iterator[TaskParts]:
    """Yield what each task reads: neighbours that are small together, everything else alone.

    Nothing is put together beyond ``split_bytes``, or beyond a task's share where ``tasks_min``
    tasks are asked for.
    """
    parts = list(parts)
    least = min(PART_BYTES_MIN, split_bytes)
    sizes = [max(part.split.size_bytes, least) for part in parts]
    together = min(TOGETHER_BYTES_MAX, split_bytes)
    if tasks_min > 1:
        together = min(together, sum(sizes) // tasks_min)
    task: list[LogPart] = []
    taken = 0
    for part, size in zip(parts, sizes, strict=True):
        if task and taken + size > together:
            yield tuple(task)
            task, taken = [], 0
        task.append(part)
        taken += size
    if task:
        yield tuple(task)


Naming = Callable[[FilesRecipe], AbstractContextManager[None]]
"""Within it errors of readers by a recipe name what is really there."""


def read_parts(
    parts: TaskParts,
    names: Sequence[str],
    memory_bytes: int,
    naming: Naming = lambda recipe: nullcontext(),
) -> Iterator[RecordBatch]:
    """Yield the columns ``names`` of what one task reads."""
    clock, workspace = SystemClock(), Workspace(memory_bytes)
    # What a recipe opens may hold a connection. Parts of one directory have one recipe, parts of
    # what is shown as a directory one for each partition.
    recipe, files = parts[0].files, parts[0].files.open()
    for part in parts:
        if part.files != recipe:
            recipe, files = part.files, part.files.open()
        with naming(recipe):
            yield from _read_part(part, files, clock, workspace, names)


def _read_part(
    part: LogPart, files: FileSystem, clock: Clock, workspace: Workspace, names: Sequence[str]
) -> Iterator[RecordBatch]:
    found = (
        read_records(part.split, files, clock, workspace)
        if part.state_of is None
        else read_state(
            part.split, part.shown, part.state_of, files, clock, workspace,
            key_bytes_max=part.key_bytes_max,
        )
    )  # fmt: skip
    for columns in found:
        yield record_batch(columns, part.split.partition, names)


KnownPartitions = Callable[[Logs], Mapping[str, frozenset[int]]]
"""Which partitions a topic has, as far as the place of some logs says; none of other topics."""
NAMES_SHOWN_MAX = 20


def nothing_known(logs: Logs) -> Mapping[str, frozenset[int]]:
    """Know of no topic how many partitions it has."""
    return {}


def require_whole_topics(
    logs: Logs, options: SourceOptions, entries: Sequence[PartitionEntry], known: KnownPartitions
) -> None:
    """Raise RefusedError when a topic of ``entries``, which are read, has more partitions.

    Not for a query that names partitions, or accepts a part of a topic.
    """
    if options.takes_partial or options.choice.assigned or logs.directory.is_single:
        return
    here = {entry.partition for entry in entries}
    numbers = known(logs)
    missing = [
        TopicPartition(topic, number)
        for topic in sorted({partition.topic for partition in here})
        for number in sorted(numbers.get(topic, frozenset()))
        if TopicPartition(topic, number) not in here
    ]
    if missing:
        more = len(missing) - NAMES_SHOWN_MAX
        shown = ",".join(map(str, missing[:NAMES_SHOWN_MAX])) + (f" and {more} more" * (more > 0))
        raise RefusedError(
            "partitions of the topic are not here, by the directory's metadata log; give all "
            "directories of the broker, or of several brokers, as one place. To take the "
            "partitions that are here: partialTopics=true in a query; "
            f"{Despite.PARTIAL_TOPICS.remedy}. missing={shown} {options.where()}",
            code="K157",
        )
