"""Rounds of a partition whose history is in object storage: survey, rewrite, one commit a group.

To a task the remote log is a directory (:class:`~keeplast.tier.objects.round_files.RoundFiles`),
so eligibility, winners, horizons and transactions are those of a local round. What differs:

* on one host the dirty section is worked on in *chunks*, each with a key map of its own; the first
  dirty offset moves after every chunk, when all of its groups are live (:mod:`.tier_commit`);
* filters say which clean segments need not be read (:mod:`.skipping`), and the survey takes from
  the metadata what it would read from their indexes.

Nothing is stored on a local disk: objects are read by ranges and written as streams. KIP-1272,
"Chunked two pass compaction".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from keeplast.cleaner.plan import RoundPlan, find_chunk_end
from keeplast.cleaner.reasons import ActiveLimit, BoundNote, CopiedLimit
from keeplast.cleaner.shapes import WHOLE, Ground, Shape, Workload, choose_shapes
from keeplast.clock import Clock
from keeplast.errors import ConflictError, FencedError, invariant
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.log.files import FileSystem
from keeplast.model.segment import SegmentSummary
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.filter_spec import FilterSpec
from keeplast.rewrite.kernels import load_kernels
from keeplast.rewrite.runner import Runner
from keeplast.rewrite.stats import FilterStats
from keeplast.rewrite.task import PartitionTask
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.receipt import receipt_line
from keeplast.run.rounds import Round, base_report
from keeplast.store.commit import Committed, TierCommit
from keeplast.store.horizons import RemoteHorizons
from keeplast.store.look import as_copied
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.report import RoundReport, joined_reports
from keeplast.survey.request import TASK_MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey, survey_partition
from keeplast.tier.metadata.absence import explained
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT, FilterKey, SegmentBytes
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundRecipe
from keeplast.tier.state.partition_state import PartitionState

ATTEMPT_BYTES = 16
Progressed = Callable[[int], None]
Receipt = Callable[[bytes], None]
RunnerFor = Callable[[FileSystem], AbstractContextManager[Runner]]
"""Gives the runner of a round; one that serves several rounds is not closed by leaving it."""


@dataclass(frozen=True, slots=True)
class TierRequest:
    """What a round on the tier is asked for; ``bound`` None is the end of what was copied.

    ``shape`` and ``task_memory_bytes`` mean what they mean for a directory. ``horizons`` asks for a
    round also where only what has expired is left to go. ``receipt`` takes a line of every wave of
    a chunk, before any group of it becomes live; where that is refused then, its line stays, as
    behind a crash, and the metadata tells.
    """

    topic: TopicConfig
    cleaner: CleanerConfig
    grace_ms: int
    memory_bytes: int
    bound: int | None = None
    force: bool = False
    shape: Shape | None = None
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    horizons: RemoteHorizons | None = None
    receipt: Receipt | None = None

    @property
    def chunk_bytes(self) -> int:
        """Return how many dirty bytes a round on one host works on at a time."""
        chunk_bytes = self.topic.tier_chunk_bytes
        return self.topic.segment_bytes if chunk_bytes < 0 else chunk_bytes


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

    An error ends the round at the chunk that it is in; the chunks before it are done and published.
    FencedError when a newer leader owns the partition and ConflictError when what was read has been
    replaced meanwhile: nothing but garbage is left behind. UnavailableError and OSError pass:
    try again. CorruptError and InvariantError do not.
    """
    load_kernels()
    with explained(store, state.partition, epoch=state.leader_epoch):
        chunks: list[RoundReport] = []
        examined_ms = -1
        while True:
            chunk = _Chunk(store, objects, state, request, clock, local)
            survey = chunk.survey(chunks[0].uncleanable if chunks else None, is_first=not chunks)
            if survey.plan is None:
                if not chunks:
                    return replace(base_report(survey), skipped=True)
                break
            examined_ms = survey.plan.now_ms if not chunks else examined_ms
            report = chunk.clean(survey, survey.plan, runner_for, progressed, committed)
            chunks.append(report)
            end, bound = report.end_offset or 0, report.bound or 0
            if end >= bound:
                break
            invariant(end > (report.first_dirty or 0), f"a chunk gets nowhere. end_offset={end}")
            state = _still_owned(store, state)
            # Or the same chunk would be done for ever.
            invariant(
                state.first_dirty() >= end,
                f"a chunk was published in vain. end_offset={end} "
                f"first_dirty={state.first_dirty()} epoch={state.leader_epoch}",
            )
        if request.horizons is not None:
            request.horizons.examined(state.partition, examined_ms)
        return replace(reduce(joined_reports, chunks), chunks=len(chunks))


def _still_owned(store: MetadataStore, state: PartitionState) -> PartitionState:
    """Return the state as it is now; FencedError when somebody else holds the partition.

    ConflictError when its settings were changed: a round is done by those that it began with.
    """
    found = store.load(state.partition)
    if found.fence != state.fence:
        raise FencedError(
            "somebody else has taken the partition over; stop. partition="
            f"{state.partition} epoch={state.leader_epoch} current={found.leader_epoch} "
            f"owner={found.owner}"
        )
    if dict(found.settings) != dict(state.settings):
        raise ConflictError(
            "the settings of the partition were changed meanwhile; the round ends here. "
            f"partition={state.partition}"
        )
    return found


class _Chunk:
    """One chunk: a round of the engine that ends where the chunk does."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        state: PartitionState,
        request: TierRequest,
        clock: Clock,
        local: Path | None,
    ) -> None:
        self._store = store
        self._objects = objects
        self._state = state
        self._request = request
        self._clock = clock
        self._started = clock.seconds()
        self._segments = tuple(state.segments[route.segment_id] for route in state.routes)
        self._recipe = RoundRecipe(objects, state.partition, state.topic_id, self._segments, local)
        self._files = self._recipe.open()

    def survey(self, uncleanable: int | None, *, is_first: bool) -> Survey:
        """Survey the log as it is now; later chunks keep the bound that the first one found.

        Why the round is done, and where it ends, is said by the first one for all of them.
        """
        request, state = self._request, self._state
        partition = PartitionRequest(
            state.partition, self._files.path, request.topic, request.cleaner
        )
        bound = self._files.end if request.bound is None else request.bound
        found = survey_partition(
            partition,
            CleanRequest(
                (partition,), first_dirty_offset=state.first_dirty(),
                log_start_offset=state.log_start, high_watermark=bound,
                uncleanable_offset=uncleanable, force=request.force or not is_first,
                expired=is_first and request.horizons is not None,
            ),
            Checkpoints({}, {}, {}), self._files, self._clock.now_ms(), known=self._known(),
            book=None if request.horizons is None else request.horizons.book(state),
        )  # fmt: skip
        return self._naming_copied(found) if is_first else replace(found, notes=())

    def _naming_copied(self, found: Survey) -> Survey:
        """Return a survey that names what was copied, not the active segment that stands for it."""
        end = self._files.end
        notes = tuple(
            replace(note, limit=CopiedLimit(end))
            if isinstance(note, BoundNote) and note.limit == ActiveLimit(end)
            else note
            for note in found.notes
        )
        decision = as_copied(
            found.decision, found.cleanable, first_dirty=self._state.first_dirty(), end=end
        )
        return replace(found, decision=decision, notes=notes)

    def _known(self) -> dict[int, SegmentSummary]:
        """Return what the metadata tells of the segments."""
        return {
            segment.base_offset: SegmentSummary(
                base_offset=segment.base_offset,
                size_bytes=segment.size_bytes,
                mtime_ms=segment.mtime_ms,
                largest_timestamp_ms=segment.max_timestamp_ms,
                offset_index_bytes=segment.files[INDEX].size_bytes,
                time_index_bytes=segment.files[TIME_INDEX].size_bytes,
            )
            for segment in self._segments
        }

    def clean(
        self,
        survey: Survey,
        plan: RoundPlan,
        runner_for: RunnerFor,
        progressed: Progressed,
        committed: Committed | None,
    ) -> RoundReport:
        """Run, commit group after group, and move the first dirty offset."""
        plan = replace(plan, keeps_group_ends=True)
        commit = TierCommit(
            self._store, self._objects, self._state, self._request.grace_ms, committed
        )
        with runner_for(self._files) as runner:
            task = self._task(plan, runner)
            round_ = Round(survey, task.plan, task, self._clock.seconds() - self._started)
            while True:
                (result,) = runner.run([round_.task], progressed)
                if result.error is not None:
                    raise self._files.named(result.error)
                round_.results.append(result)
                if self._request.receipt is not None:
                    self._request.receipt(receipt_line(round_, clean_to=self._state.first_dirty()))
                commit.wave(result)
                if result.carry is None:
                    break
                round_.task = replace(round_.task, carry=result.carry)
        report = round_.report()
        if not plan.is_expired_round:
            commit.publish(result.end_offset)
        stats = sum((each.filters for each in round_.results), FilterStats())
        return report if task.filters is None else replace(report, filters=stats)

    def _task(self, plan: RoundPlan, runner: Runner) -> PartitionTask:
        """Return the first task; what is cut into stages is done at once, the rest in waves."""
        request = self._request
        ground = Ground(runner.slots, None if runner.shares_memory else request.task_memory_bytes)
        shape = WHOLE
        if not runner.shares_memory or request.shape is not None:
            (shape,) = choose_shapes([Workload.at_most(plan)], ground, asked=request.shape)
        in_waves = shape.shape is Shape.PARTITION
        if in_waves and runner.shares_memory and not plan.is_expired_round:
            plan = replace(plan, chunk_end=find_chunk_end(plan, request.chunk_bytes))
        return PartitionTask(
            # A store has derived its transaction indexes when it took the segments in.
            number=0, plan=plan.believing_indexes(), path=self._files.path, target=self._files.path,
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            hash_key=(secrets.randbits(64), secrets.randbits(64)),
            memory_bytes=max(request.memory_bytes // runner.slots, MEMORY_BYTES_MIN),
            wave_bytes_max=request.topic.segment_bytes if in_waves else None,
            writes=True, takes_crcs=True, io_bytes_per_second=request.cleaner.io_limit,
            files=self._recipe, shape=shape, filters=self._filters(),
        )  # fmt: skip

    def _filters(self) -> FilterSpec | None:
        """Return how the round uses filters, None when they are switched off."""
        fpp = self._request.topic.tier_filter_fpp
        if not fpp:
            return None
        key = self._store.fact(KEY_FACT, lambda: secrets.token_hex(KEY_BYTES))
        segments = {
            s.base_offset: SegmentBytes(s.segment_id, s.size_bytes, s.files[LOG].crc32c)
            for s in self._segments
        }
        return FilterSpec(FilterKey.of_fact(key), fpp, segments)
