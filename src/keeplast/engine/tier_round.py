"""Rounds of a partition whose history is in object storage: survey, rewrite, one commit a group.

To the engine the remote log is a directory (:class:`~keeplast.tier.round_files.RoundFiles`), so
eligibility, winners, horizons and transactions are those of a local round. What differs is the
commit: each group becomes live in one fenced transaction of the metadata store, ascending, and the
first dirty offset moves when all of them are. Progress survives a crash anywhere, because the
newest record of a key is never removed. KIP-1272, "Chunked two pass compaction".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from keeplast.cleaner.shapes import Ground, Shape, Workload, choose_shapes
from keeplast.clock import Clock
from keeplast.engine.report import RoundReport
from keeplast.engine.request import TASK_MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.engine.rounds import Round, base_report
from keeplast.engine.runner import Runner
from keeplast.engine.survey import Checkpoints, survey_partition
from keeplast.engine.task import PartitionTask, StagedGroup, TaskResult
from keeplast.engine.workspace import MEMORY_BYTES_MIN
from keeplast.errors import InvariantError
from keeplast.format import time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import LOG, SNAPSHOT, TIME_INDEX, parse_segment_file
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.tier.absence import explained
from keeplast.tier.metadata import MetadataStore, PartitionState
from keeplast.tier.objects import ObjectStore, object_key
from keeplast.tier.round_files import RoundFiles, RoundRecipe, new_segment_id
from keeplast.tier.segment import RemoteFile, RemoteSegment, SegmentKind, merged_epochs
from keeplast.tier.transfer import EPOCHS, put_small

ATTEMPT_BYTES = 16
Progressed = Callable[[int], None]
RunnerFor = Callable[[FileSystem], AbstractContextManager[Runner]]
"""Gives the runner of a round; one that serves several rounds is not closed by leaving it."""
Committed = Callable[[tuple[RemoteSegment, ...], tuple[RemoteSegment, ...]], None]
"""Is told what a commit replaced and by what, after the commit and before the next one."""


@dataclass(frozen=True, slots=True)
class TierRequest:
    """What a round on the tier is asked for; ``bound`` None is the end of what was copied.

    ``shape`` and ``task_memory_bytes`` mean what they mean for a directory.
    """

    topic: TopicConfig
    cleaner: CleanerConfig
    grace_ms: int
    memory_bytes: int
    bound: int | None = None
    force: bool = False
    shape: Shape | None = None
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT


def clean_remote(
    store: MetadataStore,
    objects: ObjectStore,
    state: PartitionState,
    request: TierRequest,
    runner_for: RunnerFor,
    clock: Clock,
    progressed: Progressed,
    *,
    local: Path | None = None,
    committed: Committed | None = None,
) -> RoundReport:
    """Do one round as the owner of ``state``; the report says what it did or why it did nothing.

    ``local`` is a partition directory whose unchanged copies of segments are read in place of the
    objects. ``committed`` hears of every group that became live; what it raises ends the round,
    and the commit stands.

    FencedError when a newer leader owns the partition, ConflictError when what it read was replaced
    meanwhile; in both cases nothing but garbage is left behind.
    """
    with explained(store, state.partition, epoch=state.leader_epoch):
        return _clean(
            store, objects, state, request, runner_for, clock, progressed, local, committed
        )


def _clean(
    store: MetadataStore,
    objects: ObjectStore,
    state: PartitionState,
    request: TierRequest,
    runner_for: RunnerFor,
    clock: Clock,
    progressed: Progressed,
    local: Path | None,
    committed: Committed | None,
) -> RoundReport:
    started = clock.seconds()
    segments = tuple(state.segments[route.segment_id] for route in state.routes)
    recipe = RoundRecipe(objects, state.partition, state.topic_id, segments, local)
    files = recipe.open()
    partition = PartitionRequest(state.partition, files.path, request.topic, request.cleaner)
    survey = survey_partition(
        partition,
        CleanRequest(
            (partition,),
            first_dirty_offset=state.first_dirty(),
            log_start_offset=state.log_start,
            high_watermark=request.bound if request.bound is not None else files.end,
            force=request.force,
        ),
        Checkpoints({}, {}, {}),
        files,
        clock.now_ms(),
    )
    if survey.plan is None:
        return replace(base_report(survey), skipped=True)
    plan = replace(survey.plan, keeps_group_ends=True)
    with runner_for(files) as runner:
        task = PartitionTask(
            number=0, plan=plan, path=files.path, target=files.path,
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            hash_key=(secrets.randbits(64), secrets.randbits(64)),
            memory_bytes=max(request.memory_bytes // runner.slots, MEMORY_BYTES_MIN),
            wave_bytes_max=request.topic.segment_bytes, writes=True, takes_crcs=True,
            io_bytes_per_second=request.cleaner.io_limit, files=recipe,
        )  # fmt: skip
        task = _shaped(task, request, runner)
        commit = _Commit(store, objects, files, state, request.grace_ms, committed)
        round_ = Round(survey, plan, task, started)
        while True:
            (result,) = runner.run([round_.task], progressed)
            if result.error is not None:
                raise result.error
            round_.results.append(result)
            commit.wave(result)
            if result.carry is None:
                break
            round_.task = replace(round_.task, carry=result.carry)
    commit.publish(result.end_offset)
    return round_.report(clock.seconds())


def _shaped(task: PartitionTask, request: TierRequest, runner: Runner) -> PartitionTask:
    """Decide how the round's work is cut; what is cut is done at once, the rest in waves."""
    ground = Ground(runner.slots, None if runner.shares_memory else request.task_memory_bytes)
    (choice,) = choose_shapes([Workload.at_most(task.plan)], ground, asked=request.shape)
    if choice.shape is not Shape.PARTITION:
        task = replace(task, wave_bytes_max=None)
    return replace(task, shape=choice)


class _Commit:
    """Makes waves live, group after group, as the owner that the state names."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        files: RoundFiles,
        state: PartitionState,
        grace_ms: int,
        committed: Committed | None,
    ) -> None:
        self._committed = committed
        self._store = store
        self._objects = objects
        self._files = files
        self._state = state
        self._grace_ms = grace_ms
        self._sources = {
            state.segments[route.segment_id].base_offset: state.segments[route.segment_id]
            for route in state.routes
        }
        self._numbers = max((s.number for s in self._sources.values()), default=0)

    def wave(self, result: TaskResult) -> None:
        """Commit every group of a wave that has something to commit."""
        for outputs in _by_group(result.staged):
            if not any(output.files for output in outputs):
                continue
            sources = [self._sources[base] for base in outputs[0].sources]
            made = self._describe(result, outputs, sources)
            self._swap([source.segment_id for source in sources], made)
            if self._committed is not None:
                self._committed(tuple(sources), tuple(made))

    def publish(self, cleaned_to: int) -> None:
        """Move the first dirty offset."""
        self._store.publish(
            self._state.partition, secrets.token_hex(ATTEMPT_BYTES),
            epoch=self._state.leader_epoch, cleaned_to=cleaned_to,
        )  # fmt: skip

    def _swap(self, sources: Sequence[str], outputs: Sequence[RemoteSegment]) -> None:
        self._store.commit_swap(
            self._state.partition, secrets.token_hex(ATTEMPT_BYTES),
            epoch=self._state.leader_epoch, sources=sources, outputs=outputs,
            grace_ms=self._grace_ms,
        )  # fmt: skip

    def _describe(
        self,
        result: TaskResult,
        outputs: Sequence[StagedGroup],
        sources: Sequence[RemoteSegment],
    ) -> list[RemoteSegment]:
        """Return what becomes live: the outputs cover what the sources covered, without a hole."""
        last_offset = sources[-1].last_offset
        ends = [output.base_offset - 1 for output in outputs[1:]] + [last_offset]
        epochs = merged_epochs(tuple(source.epochs for source in sources))
        made: list[RemoteSegment] = []
        for output, end in zip(outputs, ends, strict=True):
            self._numbers += 1
            segment_id = _segment_id(output)
            stored = self._files_of(output, segment_id, sources[-1], result)
            times = self._small(segment_id, output, TIME_INDEX)
            entries = time_index.decode(times)
            made.append(
                RemoteSegment(
                    segment_id=segment_id,
                    base_offset=output.base_offset,
                    last_offset=end,
                    epochs=epochs,
                    size_bytes=output.size_bytes,
                    max_timestamp_ms=int(entries[-1, 0]) if len(entries) else -1,
                    mtime_ms=sources[-1].mtime_ms,
                    kind=SegmentKind.CLEANED,
                    leader_epoch=self._state.leader_epoch,
                    number=self._numbers,
                    cleaner_offsets=dict(self._state.publications[-1].offsets),
                    files=stored,
                )
            )
        return made

    def _files_of(
        self, output: StagedGroup, segment_id: str, last: RemoteSegment, result: TaskResult
    ) -> dict[str, RemoteFile]:
        """Return every object of an output; what belongs to its end is the last source's (I-10)."""
        stored = {LOG: RemoteFile(output.size_bytes, result.output_crcs[output.base_offset])}
        for file in output.files:
            if file.kind != LOG:
                data = self._small(segment_id, output, file.kind)
                stored[file.kind] = RemoteFile(len(data), crc32c(data))
        for suffix in (SNAPSHOT, EPOCHS):
            if suffix in last.files:
                data = self._read(last, suffix)
                stored[suffix] = put_small(
                    self._objects, self._key(segment_id, output, suffix), data
                )
        return stored

    def _small(self, segment_id: str, output: StagedGroup, suffix: str) -> bytes:
        key = self._key(segment_id, output, suffix)
        return bytes(self._objects.read_range(key, 0, self._objects.stat(key).size_bytes))

    def _key(self, segment_id: str, output: StagedGroup, suffix: str) -> str:
        state = self._state
        return object_key(state.partition, state.topic_id, segment_id, output.base_offset, suffix)

    def _read(self, segment: RemoteSegment, suffix: str) -> bytes:
        state = self._state
        key = object_key(
            state.partition, state.topic_id, segment.segment_id, segment.base_offset, suffix
        )
        return bytes(self._objects.read_range(key, 0, segment.files[suffix].size_bytes))


def _segment_id(output: StagedGroup) -> str:
    """Return the id under which a worker has staged an output: every attempt has its own."""
    parsed = parse_segment_file(output.files[0].name)
    if parsed is None or parsed.attempt is None:
        raise InvariantError(f"a staged file without an attempt. name={output.files[0].name}")
    return new_segment_id(parsed.attempt, parsed.base_offset)


def _by_group(staged: Sequence[StagedGroup]) -> list[list[StagedGroup]]:
    """Return the outputs, those of one group together: only its first has sources."""
    groups: list[list[StagedGroup]] = []
    for output in staged:
        if output.sources or not groups:
            groups.append([])
        groups[-1].append(output)
    return groups
