"""Writes the state of logs as Parquet, one directory a topic, with the offsets to resume from.

::

    DIR/orders/partition=0/part-00000.parquet
    DIR/orders/partition=1/part-00000.parquet
    DIR/orders/partition=1/part-00001.parquet  where the partition was cut
    DIR/_offsets.json                          {"orders": {"0": 339, "1": 17}}
    DIR/_ending_offsets.json                   the same, where an end was asked for
    DIR/_state.json                            how records ranked, and whether tombstones are rows
    DIR/_changes/orders/partition=0/...        of a version: keys that changed since the last one

The rules:

1. Everything is written to a directory next to the target and gets the target's name when it is
   whole and on disk. A run that fails or is stopped leaves neither. What a killed one has left goes
   with the next run (:mod:`keeplast.pipeline.export_files`).
2. What is in the way is replaced only on request, and only when it is an export itself.
3. The offsets are those from which to read on: a program that reads the Parquet files and then the
   log from there on misses nothing. What retention or a cleaner takes meanwhile is no matter for
   that. A log that was cut off below its offset, or is another topic's by now, is. The offsets are
   those at which the state was taken, which ``_ending_offsets.json`` has, unless a transaction was
   in flight there. That transaction is not in the state, so reading goes on where it begins.

The files are written by tasks, and hold the same rows whatever runs them; a partition that was cut
has one for each part with rows (:mod:`keeplast.pipeline.export_tasks`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.shapes import Ground, ShapeChoice
from keeplast.clock import SystemClock
from keeplast.errors import ConflictError, Despite, InvalidError, RefusedError
from keeplast.format.filename import META_PROPERTIES
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.log.partition_log import find_tail
from keeplast.log.paths import is_object_path
from keeplast.log.readers import settled_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Shape, TopicConfig
from keeplast.pipeline.export_files import (
    ENDS_FILE,
    OFFSETS_FILE,
    STATE_FILE,
    Attempt,
    BucketPlace,
    ExportPlace,
    encode_facts,
    sweep_killed,
)
from keeplast.pipeline.export_tasks import (
    ChangeTask,
    ExportedFile,
    ExportedState,
    ExportTask,
    choose_cuts,
    export_changes,
    export_part,
    export_partition,
    parts_of_state,
)
from keeplast.pipeline.increment import (
    BASE_FILE,
    CHANGES,
    CHANGES_FORMAT,
    SINCE_FILE,
    VERSIONS,
    BasePartition,
    Carrier,
    Version,
    Versions,
    base_of,
    parts_in,
    write_bases,
)
from keeplast.pipeline.log_parts import KnownPartitions, Logs, nothing_known, require_whole_topics
from keeplast.pipeline.source_options import SourceOptions
from keeplast.read.log_state import StatePart, Winners
from keeplast.read.log_view import Split, Wanted, segments_below, was_recreated
from keeplast.read.state_end import require_uncleaned
from keeplast.rewrite.task import Progressed
from keeplast.survey.request import TASK_MEMORY_BYTES_DEFAULT


class ExportedPartition(Struct, frozen=True):
    """A partition that was written by ``tasks`` tasks; ``end_offset`` is exclusive.

    ``resume_offset`` is from where on to read after it. ``choice`` says how it was cut, and why.
    The rows below ``carried_to`` are those of the last export, None where all of the log was read.
    """

    partition: TopicPartition
    end_offset: int
    resume_offset: int
    records: int
    size_bytes: int
    choice: ShapeChoice
    tasks: int
    carried_to: int | None = None

    def as_document(self) -> dict[str, object]:
        """Return the partition's part of the document."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "end_offset": self.end_offset,
            "resume_offset": self.resume_offset,
            "records": self.records,
            "size_bytes": self.size_bytes,
            "shape": self.choice.shape,
            "buckets": self.choice.buckets,
            "tasks": self.tasks,
            "why": self.choice.why,
            "carried_to": self.carried_to,
        }


_Task = TypeVar("_Task")


class Workers(Protocol):
    """What executes tasks: threads of this process, or Spark.

    Every host must see the roots.
    """

    @property
    def slots(self) -> int:
        """Return how many tasks run at once."""

    @property
    def shares_memory(self) -> bool:
        """Say whether all tasks share one memory."""

    def each(
        self,
        work: Callable[[_Task, Progressed], ExportedFile],
        items: Sequence[_Task],
        progressed: Progressed,
        roots: Iterable[Path] = (),
        names: Sequence[object] = (),
    ) -> Iterator[ExportedFile]:
        """Yield the result of every item, in any order.

        ``names`` are what the items are about, to show what is under way.
        """

    def latest(
        self,
        parts: Sequence[StatePart],
        show: Callable[[StatePart, Winners, Progressed], ExportedFile],
        progressed: Progressed,
        roots: Iterable[Path] = (),
    ) -> Iterator[ExportedFile]:
        """Yield ``show`` of every part with its winners, in any order."""


class ExportEvents(Protocol):
    """Receives how far an export is."""

    def noted(self, message: str) -> None:
        """Hear how the work is cut."""

    def planned(self, total_bytes: int) -> None:
        """Hear how much will be read."""

    def progressed(self, read_bytes: int) -> None:
        """Hear how much more was read."""


class Export(Struct, frozen=True):
    """A finished export; ``rankings`` say of each topic by what its records ranked, in words.

    ``changes`` say how many keys of a partition changed since the last version, None without one.
    """

    target: Path
    partitions: tuple[ExportedPartition, ...]
    rankings: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[TopicPartition, int] | None = None

    def offsets(self) -> dict[str, dict[str, int]]:
        """Return where to go on, as ``startingOffsets`` takes it."""
        return _by_topic((each.partition, each.resume_offset) for each in self.partitions)

    def ending_offsets(self) -> dict[str, dict[str, int]]:
        """Return the offsets that this is the state of, as ``endingOffsets`` takes them."""
        return _by_topic((each.partition, each.end_offset) for each in self.partitions)

    def changed_keys(self) -> dict[str, dict[str, int]] | None:
        """Return how many keys changed since the last version, None without one."""
        return None if self.changes is None else _by_topic(self.changes.items())


def _by_topic(offsets: Iterable[tuple[TopicPartition, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition, offset in offsets:
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def export_state(
    options: SourceOptions,
    target: Path,
    workers: Workers,
    events: ExportEvents,
    *,
    topic_config: Callable[[str], TopicConfig],
    partitions: Sequence[int] = (),
    overwrite: bool = False,
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT,
    names_all: bool = False,
    versions: Versions | None = None,
    tombstones: bool = False,
    known: KnownPartitions = nothing_known,
) -> Export:
    """Write the state of what ``options`` choose to the directory ``target``.

    ``partitions`` empty means all numbers. With ``names_all`` each must have an end of its own.
    ``topic_config`` says how a topic's records rank, ``known`` which partitions topics have. With
    ``versions`` it is the next one of these, and goes on with the rows of the last. With
    ``tombstones`` what deletes its key is a row too, without a value. ``task_memory_bytes`` is what
    the keys of a task that shares its memory with no other may take. Raises InvalidError for what
    names nothing, RefusedError when ``target`` is in the way, and the error of the first partition
    that cannot be read. ``target`` is then as it was.
    """
    out: FilesRecipe = LocalRecipe() if versions is None else versions.files
    files = out.open()
    is_bucket = is_object_path(target)
    if not is_bucket:
        # Where a link leads, so that the export is made there and the link stays one.
        target = target.resolve()
        sweep_killed(target)
    check_target(target, files, options, overwrite=overwrite)
    place: Attempt = BucketPlace(target) if is_bucket else ExportPlace(target)
    staging = place.staging
    ground = Ground(workers.slots, None if workers.shares_memory else task_memory_bytes)
    clock = SystemClock()
    last = None if versions is None else versions.last()
    logs = Logs(options)
    if not partitions:
        require_whole_topics(logs, options, logs.entries, known)
    for note in logs.notes:
        events.noted(note)
    carrier = (
        None if last is None else Carrier(last, logs.recipe.open(), clock, events.noted, tombstones)
    )
    looked_ms = clock.now_ms()
    jobs = _jobs(
        logs, options, staging, topic_config, partitions, ground, carrier, names_all=names_all,
        tombstones=tombstones, out=out,
    )  # fmt: skip
    for sentence in _sentences(jobs):
        events.noted(sentence)
    events.planned(sum(job.read_bytes for job in jobs))
    with place.held():
        for job in jobs:
            files.make_directory(job.task.target)
        written = _write(jobs, workers, events.progressed, staging, out)
        _require_same_logs(jobs, logs.recipe.open(), carrier)
        topics = {job.partition.topic: job.state.topic for job in jobs}
        rankings = {name: topic.ranking for name, topic in topics.items()}
        export = Export(target, tuple(job.exported(written) for job in jobs), rankings)
        written_down = {OFFSETS_FILE: export.offsets()}
        if options.has_end:
            written_down[ENDS_FILE] = export.ending_offsets()
        for name, offsets in written_down.items():
            document = json.dumps(offsets, indent=1) + "\n"
            files.write_durable(staging / name, document.encode())
        files.write_durable(staging / STATE_FILE, encode_facts(topics, tombstones=tombstones))
        if versions is not None:
            opened = logs.recipe.open()
            write_bases(
                staging, {job.partition: job.base(looked_ms, opened) for job in jobs}, files
            )
        if last is not None:
            changed = _write_changes(jobs, workers, last, staging, out, opened)
            export = replace(export, changes=changed)
        # What has come to lie there meanwhile is not ours to replace either.
        check_target(target, files, options, overwrite=overwrite)
        if out.is_on_disk(staging):
            _settle(staging, files)
        place.put_in_place(files)
    return export


def check_target(
    target: Path, files: FileSystem, options: SourceOptions, *, overwrite: bool
) -> None:
    """Raise RefusedError when ``target`` cannot be written, or holds what is not ours."""
    # Whatever links lead there: no broker starts on a data directory that holds something else.
    is_shown = options.store is not None or options.given is not None
    place = target.resolve()
    for path in options.paths:
        source = path.resolve()
        if files.exists(source.parent / META_PROPERTIES):
            source = source.parent
        if not is_shown and (place.is_relative_to(source) or source.is_relative_to(place)):
            raise RefusedError(
                f"the export and the logs would lie in one another; choose another place. "
                f"--to={target} path={path}",
                code="K144",
            )
    # A version in a bucket has a name of its own.
    if is_object_path(target) or not files.exists(place):
        return
    if not overwrite:
        raise RefusedError(
            "something is there already; choose another place, or replace an earlier export; "
            f"{Despite.EXISTING_TARGET.remedy}. --to={target}",
            code="K144",
        )
    if not files.is_directory(place) or not files.exists(place / OFFSETS_FILE):
        raise RefusedError(
            f"what is there is no export, so it is not replaced; remove it, or choose another "
            f"place. --to={target}",
            code="K144",
        )


class _Job(Struct, frozen=True):
    """A partition's part of the work: one task, or ``parts``."""

    state: ExportedState
    choice: ShapeChoice
    task: ExportTask
    parts: tuple[StatePart, ...]

    @property
    def partition(self) -> TopicPartition:
        return self.task.split.partition

    @property
    def read_bytes(self) -> int:
        """Return about how many bytes of the log are read, each time they are."""
        view, carried = self.state.view, self.task.carried
        if carried is None:
            return 2 * view.size_bytes
        behind = self.state.wanted.end_offset - carried.resume_offset
        return 3 * view.size_bytes * behind // max(view.log_end - view.log_start, 1)

    def base(self, looked_ms: int, files: FileSystem) -> BasePartition:
        """Return what the next export has to know."""
        state = self.state
        return base_of(
            state.view, state.topic, state.wanted.end_offset, state.resume_offset, looked_ms, files,
            tombstones=self.task.tombstones,
        )  # fmt: skip

    def exported(self, written: Mapping[TopicPartition, list[ExportedFile]]) -> ExportedPartition:
        """Return what became of it."""
        its = written[self.partition]
        return ExportedPartition(
            self.partition,
            self.state.wanted.end_offset,
            self.state.resume_offset,
            sum(each.records for each in its),
            sum(each.size_bytes for each in its),
            self.choice,
            max(1, len(self.parts)),
            None if self.task.carried is None else self.task.carried.resume_offset,
        )


def _jobs(
    logs: Logs,
    options: SourceOptions,
    staging: Path,
    topic_config: Callable[[str], TopicConfig],
    partitions: Sequence[int],
    ground: Ground,
    carrier: Carrier | None,
    *,
    names_all: bool,
    tombstones: bool,
    out: FilesRecipe,
) -> list[_Job]:
    chosen = [e for e in logs.entries if not partitions or e.partition.partition in partitions]
    for number in partitions:
        if all(entry.partition.partition != number for entry in chosen):
            raise InvalidError(
                f"no such partition is there; leave --partition out to take all. "
                f"partition={number} {options.where()}",
                code="K115",
            )
    options.ending.require_chosen("endingOffsets", chosen, options.where())
    if names_all:
        options.ending.require_named(chosen, options.where())
    states, ended = [], []
    for entry in sorted(chosen, key=lambda each: each.partition):
        topic = entry.partition.topic
        if topic in (OFFSETS_FILE, ENDS_FILE, STATE_FILE, BASE_FILE, CHANGES):
            raise RefusedError(
                "a topic's name is that of a file of the export; leave the topic out, with --topic "
                f"for the others. topic={topic}",
                code="K144",
            )
        view = logs.look(entry)
        first, end = logs.range_of(view)
        is_earlier = end < logs.latest_of(view)
        asks = is_earlier or options.ending_ms is not None
        resume = logs.require_state_at(view, end) if asks else end
        decided_before = logs.decided_before(view, end)
        states.append(
            ExportedState(view, Wanted(first, end), topic_config(topic), resume, decided_before)
        )
        # No cleaner passes the latest offset; it may pass an earlier one while that is read.
        ended.append(segments_below(view, end) if is_earlier else None)
    jobs = []
    for number, (state, choice) in enumerate(zip(states, choose_cuts(states, ground), strict=True)):
        view, wanted = state.view, state.wanted
        place = staging / view.partition.topic / f"partition={view.partition.partition}"
        carried = (
            None
            if carrier is None
            else carrier.carried_over(view, state.topic, wanted.end_offset, state.resume_offset)
        )
        read = wanted if carried is None else replace(wanted, first_offset=carried.resume_offset)
        split = Split(
            view.partition, view.path, read, view.size_bytes, segments=ended[number],
            decided_before=state.decided_before,
        )  # fmt: skip
        recipe = logs.recipe_for(view.partition)
        task = ExportTask(
            split, state.topic, place, options.memory_bytes, recipe, carried, tombstones, out
        )
        parts: tuple[StatePart, ...] = (
            parts_of_state(state, choice, number, ground.slots, options.memory_bytes, recipe)
            if carried is None and choice.shape is not Shape.PARTITION
            else ()
        )
        jobs.append(_Job(state, choice, task, parts))
    return jobs


def _sentences(jobs: Sequence[_Job]) -> Iterator[str]:
    """Yield how the work is cut, and which logs end in an unfinished batch, for people."""
    carried = sum(job.task.carried is not None for job in jobs)
    if carried:
        yield f"{carried:,} partition{'s' if carried > 1 else ''} from where the last export ended"
    whole = sum(not job.parts and job.task.carried is None for job in jobs)
    if whole:
        yield f"{whole:,} partition{'s' if whole > 1 else ''}, each by one task"
    for job in jobs:
        torn = job.state.view.torn_words()
        if torn is not None:
            yield torn
        if job.parts:
            buckets = f" and {job.choice.buckets:,} buckets of keys" if job.choice.buckets else ""
            yield f"{job.partition} in {len(job.parts):,} parts{buckets}: {job.choice.why}"


def _write(
    jobs: Sequence[_Job], workers: Workers, progressed: Progressed, staging: Path, out: FilesRecipe
) -> dict[TopicPartition, list[ExportedFile]]:
    """Have everything written; raises the first error that is heard of."""
    whole = [job.task for job in jobs if not job.parts]
    parts = [part for job in jobs for part in job.parts]
    targets = {part.state.number: job.task.target for job in jobs for part in job.parts}
    tombstones = any(job.task.tombstones for job in jobs)
    roots = (staging,) if out.is_on_disk(staging) else ()

    def show(part: StatePart, winners: Winners, progressed: Progressed) -> ExportedFile:
        target = targets[part.state.number]
        return export_part(part, winners, target, progressed, out=out, tombstones=tombstones)

    written: dict[TopicPartition, list[ExportedFile]] = {}
    for file in chain(
        workers.latest(parts, show, progressed, roots),
        workers.each(
            export_partition, whole, progressed, roots, [task.split.partition for task in whole]
        ),
    ):
        if file.error is not None:
            raise file.error
        written.setdefault(file.partition, []).append(file)
    return written


def _write_changes(
    jobs: Sequence[_Job],
    workers: Workers,
    last: Version,
    staging: Path,
    out: FilesRecipe,
    logs: FileSystem,
) -> dict[TopicPartition, int]:
    """Write what became of the keys of each partition since the last version, and return how many.

    Of a partition that is not in the last version, or whose log is another one by now, nothing is
    written. Its state is what there is, and the list says so.
    """
    tasks: list[ChangeTask] = []
    whole: dict[str, list[int]] = {}
    files = out.open()
    for job in jobs:
        at, place = job.partition, f"{job.partition.topic}/partition={job.partition.partition}"
        if not last.is_of_log(job.state.view, logs):
            whole.setdefault(at.topic, []).append(at.partition)
            continue
        target = staging / CHANGES / place
        files.make_directory(target)
        before = parts_in(last.path / place, files)
        tasks.append(ChangeTask(at, before, parts_in(staging / place, files), target, out))
    document = {"format": CHANGES_FORMAT, "since": f"{VERSIONS}/{last.path.name}", "whole": whole}
    files.make_directory(staging / CHANGES)
    files.write_durable(staging / CHANGES / SINCE_FILE, (json.dumps(document) + "\n").encode())
    changed = {}
    names = [task.partition for task in tasks]
    for file in workers.each(export_changes, tasks, lambda count: None, (), names):
        if file.error is not None:
            raise file.error
        changed[file.partition] = file.records
    return changed


def _require_same_logs(jobs: Sequence[_Job], files: FileSystem, carrier: Carrier | None) -> None:
    """Raise ConflictError when a log no longer reaches to where its state was taken.

    Or when it was cleaned past an end that was asked for, or rows were carried over that cannot be
    by now.
    """
    for job in jobs:
        view, end = job.state.view, job.state.wanted.end_offset
        listing = settled_partition(view.path, files, SystemClock(), if_empty=view.log_start)
        tail = find_tail(listing, files)
        log_end = max(tail.log_end, view.log_start)
        if log_end < end or was_recreated(view.topic_id, view.path, files):
            raise ConflictError(
                "the log was truncated or made again while its state was read; export it again. "
                f"path={view.path} end_offset={end} log_end={log_end}",
                code="K146",
            )
        require_uncleaned(job.task.split, files, SystemClock())
        if carrier is None or job.task.carried is None:
            continue
        base = carrier.last.partitions[job.partition]
        why = carrier.why_not(base, view, job.state.topic, end, job.state.resume_offset)
        if why is not None:
            raise ConflictError(
                f"the log changed while its state was continued; export it again. path={view.path} "
                f"why={why}",
                code="K146",
            )


def _settle(staging: Path, files: FileSystem) -> None:
    """Make the names of all files durable; what a killed task has left goes."""
    for left_by_a_killed_task in staging.rglob(".*.parquet"):
        files.unlink(left_by_a_killed_task)
    for directory in {path.parent for path in staging.rglob("partition=*")}:
        files.fsync_directory(directory)
