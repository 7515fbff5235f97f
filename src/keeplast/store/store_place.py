"""A tiered store as the place of rounds, and a round there: one or more chunks, and one report.

*Publishing.* What a round on the tier has staged becomes live in one fenced transaction a group,
ascending. A crash between two groups leaves the first ones done. The newest record of a key is
never removed, so the round can be done again from what is there.

*The place.* To a task the remote log is a directory
(:class:`~keeplast.tier.objects.round_files.RoundFiles`), so eligibility, winners, horizons and
transactions are those of a local round. What differs:

* on one host the dirty section is worked on in *chunks*, each a round with a key map of its own.
  The first dirty offset moves after every chunk, when all of its groups are live. All of them end
  where the first one has found that they may;
* filters say which clean segments need not be read (:mod:`keeplast.rewrite.skipping`), and the
  survey takes from the metadata what it would read from their indexes.

Nothing is stored on a local disk: objects are read by ranges and written as streams. What is left
of an attempt that was never committed is garbage, which is collected. KIP-1272, "Chunked two pass
compaction".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

from msgspec.structs import replace

from keeplast.cleaner.reasons import ActiveLimit, BoundNote, CopiedLimit
from keeplast.cleaner.settings import check_internal
from keeplast.clock import Clock
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    FencedError,
    InvariantError,
    invariant,
)
from keeplast.format import time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, parse_segment_file
from keeplast.model.hold import GroupReader
from keeplast.model.partition import SegmentSummary
from keeplast.rewrite.task import FilterSpec, StagedGroup, TaskResult
from keeplast.run.events import ProgressOnly
from keeplast.run.receipt import Receipt, receipt_line
from keeplast.run.round import Rounds, RunnerFor
from keeplast.run.round_state import (
    PartitionRun,
    Round,
    Site,
    base_report,
    planned_report,
    round_report,
)
from keeplast.store.look import RemoteHorizons, StoredReaders, as_copied, stored_checkpoints
from keeplast.survey.kept_heads import anchor_of
from keeplast.survey.report import RoundReport, joined_reports
from keeplast.survey.request import CleanRequest
from keeplast.survey.survey import Survey, survey_partition
from keeplast.survey.tombstone_horizons import Examination, examination_of
from keeplast.tier.metadata.facts import Anchor
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import explained
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT, FilterKey, SegmentBytes
from keeplast.tier.objects.object_store import ObjectStore, object_key
from keeplast.tier.objects.round_files import RoundRecipe, new_segment_id
from keeplast.tier.objects.transfer import EPOCHS, put_small
from keeplast.tier.state.kept_rounds import Keeping, RoundSums
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, SegmentKind, merged_epochs

COMMIT_ID_BYTES = 16
Committed = Callable[[tuple[RemoteSegment, ...], tuple[RemoteSegment, ...]], None]
"""Gets what a commit replaced and by what, after the commit and before the next one."""


class TierCommit:
    """Makes waves live, group after group, as the owner that the state names."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        state: PartitionState,
        grace_ms: int,
        committed: Committed | None,
    ) -> None:
        """Commit for the owner of ``state``; ``committed`` hears of every group."""
        self._committed = committed
        self._store = store
        self._objects = objects
        self._state = state
        self._grace_ms = grace_ms
        self._anchor: Anchor | None = None
        self._sources = {
            state.segments[route.segment_id].base_offset: state.segments[route.segment_id]
            for route in state.routes
        }
        self._made: list[str] = []
        self.live = frozenset(route.segment_id for route in state.routes)
        """The ids of what is live by the state and the commits since."""
        self._numbers = max((s.number for s in self._sources.values()), default=0)

    def anchor(self, line: bytes | None) -> None:
        """Let the next commits keep that this line of a receipt was written; None keeps nothing."""
        self._anchor = anchor_of(self._store.facts, line) or self._anchor

    def wave(self, result: TaskResult, keeping: Keeping | None = None) -> None:
        """Commit every group of a wave that has something to commit.

        ``keeping`` is the round for whose undo the sources are kept.

        CorruptError when what was read of a segment is not what was stored: nothing of the wave
        becomes live.
        """
        for base, crc in result.source_crcs.items():
            source = self._sources[base]
            expected = source.files[LOG].crc32c
            if crc != expected:
                raise CorruptError(
                    "the object of a segment is not what was stored",
                    path=self._key(source.segment_id, base, LOG), position=0,
                    expected=f"0x{expected:08x}", found=f"0x{crc:08x}", code="K309",
                )  # fmt: skip
        for outputs in _by_group(result.staged):
            if not any(output.files for output in outputs):
                continue
            sources = [self._sources[base] for base in outputs[0].sources]
            made = self._describe(result, outputs, sources)
            ids = [source.segment_id for source in sources]
            self._swap(ids, made, result.end_offset, keeping)
            self._made += [each.segment_id for each in made]
            self.live = self.live.difference(ids).union(each.segment_id for each in made)
            if self._committed is not None:
                self._committed(tuple(sources), tuple(made))

    def publish(
        self, cleaned_to: int, done: RoundSums | None = None, keeping: Keeping | None = None
    ) -> None:
        """Move the first dirty offset; ``done`` is what the round did, ``keeping`` as of a wave.

        What the waves made carries it.
        """
        self._store.publish(
            self._state.partition, secrets.token_hex(COMMIT_ID_BYTES),
            epoch=self._state.leader_epoch, cleaned_to=cleaned_to,
            settings=self._state.settings, began=self._state, anchor=self._anchor, done=done,
            keeping=keeping, outputs=self._made,
        )  # fmt: skip

    def _swap(
        self, sources: Sequence[str], outputs: Sequence[RemoteSegment], end_offset: int,
        keeping: Keeping | None,
    ) -> None:  # fmt: skip
        self._store.commit_swap(
            self._state.partition, secrets.token_hex(COMMIT_ID_BYTES),
            epoch=self._state.leader_epoch, sources=sources, outputs=outputs,
            grace_ms=self._grace_ms, settings=self._state.settings, anchor=self._anchor,
            cleaned_for=end_offset, keeping=keeping,
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
                    self._objects, self._key(segment_id, output.base_offset, suffix), data
                )
        return stored

    def _small(self, segment_id: str, output: StagedGroup, suffix: str) -> bytes:
        key = self._key(segment_id, output.base_offset, suffix)
        return bytes(self._objects.read_range(key, 0, self._objects.stat(key).size_bytes))

    def _key(self, segment_id: str, base_offset: int, suffix: str) -> str:
        state = self._state
        return object_key(state.partition, state.topic_id, segment_id, base_offset, suffix)

    def _read(self, segment: RemoteSegment, suffix: str) -> bytes:
        key = self._key(segment.segment_id, segment.base_offset, suffix)
        return bytes(self._objects.read_range(key, 0, segment.files[suffix].size_bytes))


def _segment_id(output: StagedGroup) -> str:
    """Return the id under which a worker has staged an output: every attempt has its own."""
    parsed = parse_segment_file(output.files[0].name)
    if parsed is None or parsed.attempt is None:
        raise InvariantError(
            f"a staged file without an attempt. name={output.files[0].name}", code="K901"
        )
    return new_segment_id(parsed.attempt, parsed.base_offset)


def _by_group(staged: Sequence[StagedGroup]) -> list[list[StagedGroup]]:
    """Return the outputs, those of one group together: only its first has sources."""
    groups: list[list[StagedGroup]] = []
    for output in staged:
        if output.sources or not groups:
            groups.append([])
        groups[-1].append(output)
    return groups


ATTEMPT_BYTES = 16


class StorePlace:
    """The partition of ``state``, by its owner.

    ``request`` names it alone, and means what it means for a directory; its high watermark None is
    the end of what was copied. ``receipt`` takes a line of every wave, before any group of it
    becomes live. Where that is refused then, its line stays, as after a crash, and the metadata
    decides. ``local`` is a partition directory whose unchanged copies of segments are read in place
    of the objects. ``committed`` hears of every group that became live; what it raises ends the
    round, and the commit stands. ``brokers`` report what consumer groups have committed; without,
    each counts as not there yet.
    """

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        state: PartitionState,
        request: CleanRequest,
        clock: Clock,
        *,
        grace_ms: int,
        horizons: RemoteHorizons,
        brokers: GroupReader | None = None,
        receipt: Receipt | None = None,
        local: Path | None = None,
        committed: Committed | None = None,
    ) -> None:
        """Take the components, and what was just read of the partition.

        RefusedError for settings that no round in a store can follow.
        """
        for each in request.partitions:
            check_internal(each.partition.topic, each.topic)
        self.store = store
        self.request = request
        self.clock = clock
        self._objects = objects
        self._grace_ms = grace_ms
        self._horizons = horizons
        self._receipt = receipt
        self._local = local
        self._committed = committed
        self._keeping: Keeping | None = None
        self._uncleanable: int | None = None
        self._began = Examination()
        self._readers = StoredReaders(state.topic_id, brokers)
        self._open(state)

    def _open(self, state: PartitionState) -> None:
        """Take the partition as it is now."""
        self.state = state
        self._segments = state.live_segments
        self._recipe = RoundRecipe(
            self._objects, state.partition, state.topic_id, self._segments, self._local
        )
        self.files = self._recipe.open()
        """The files of the chunk of the moment."""
        self._commit = TierCommit(self.store, self._objects, state, self._grace_ms, self._committed)

    # Survey.

    def survey(self, run: PartitionRun) -> Survey:
        """Survey the log as it is now; later chunks keep the bound that the first one found.

        Why the round is done, and where it ends, is said by the first one for all of them.
        """
        if run.rounds:
            self._open(self._next_state(run.rounds[-1]))
        request, state, is_first = self.request, self.state, not run.rounds
        bound = request.high_watermark
        found = survey_partition(
            run.request,
            replace(
                request, log_start_offset=state.log_start,
                high_watermark=self.files.end if bound is None else bound,
                uncleanable_offset=self._uncleanable, force=request.force or not is_first,
                expired=request.expired and is_first,
            ),
            stored_checkpoints(state, {}), self.files, self.clock.now_ms(),
            known=self._list_known(),
            book=self._horizons.book(state) if request.expired else None, groups=self._readers,
        )  # fmt: skip
        return self._naming_copied(found) if is_first else replace(found, notes=())

    def _next_state(self, last: RoundReport) -> PartitionState:
        """Return the state after a chunk; FencedError when another process holds the partition.

        ConflictError when its settings were changed: a round is done by those that it began with.
        """
        began, end = self.state, last.end_offset or 0
        invariant(end > (last.first_dirty or 0), f"a chunk gets nowhere. end_offset={end}")
        found = self.store.load(began.partition)
        if found.fence != began.fence:
            raise FencedError(
                "another process has taken the partition over; stop. partition="
                f"{began.partition} epoch={began.leader_epoch} current={found.leader_epoch} "
                f"owner={found.owner}",
                code="K332",
            )
        if dict(found.settings) != dict(began.settings):
            raise ConflictError(
                "the settings of the partition were changed meanwhile; the round ends here. "
                f"partition={began.partition}",
                code="K329",
            )
        # Or the same chunk would be done without end.
        invariant(
            found.first_dirty() >= end,
            f"a chunk was published in vain. end_offset={end} "
            f"first_dirty={found.first_dirty()} epoch={found.leader_epoch}",
        )
        return found

    def _naming_copied(self, found: Survey) -> Survey:
        """Return a survey that names what was copied, not the active segment that stands for it."""
        end = self.files.end
        notes = tuple(
            replace(note, limit=CopiedLimit(end))
            if isinstance(note, BoundNote) and note.limit == ActiveLimit(end)
            else note
            for note in found.notes
        )
        decision = as_copied(
            found.decision, found.section.cleanable, first_dirty=self.state.first_dirty(), end=end
        )
        return replace(found, decision=decision, notes=notes)

    def _list_known(self) -> dict[int, SegmentSummary]:
        """Return what the metadata says of the segments."""
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

    # Plan.

    def announce(self, run: PartitionRun, survey: Survey) -> Survey:
        """Reserve nothing: what becomes live asks the fence. The first chunk's bound is for all."""
        if survey.plan is None:
            return survey
        if not run.rounds:
            self._uncleanable = survey.section.uncleanable.offset
            self._began = examination_of(survey.plan)
        # A store has derived its transaction indexes when it took the segments in.
        plan = replace(survey.plan, keeps_group_ends=True).believing_indexes()
        return replace(survey, plan=plan)

    def skip(self, run: PartitionRun, survey: Survey) -> RoundReport | None:
        """Say why there is no round; after chunks that is no news."""
        return None if run.rounds else base_report(survey, skipped=True)

    def site(self, run: PartitionRun) -> Site:
        """Return the directory that the objects look like."""
        topic, attempt = run.request.topic, secrets.token_hex(ATTEMPT_BYTES)
        chunk_bytes = topic.tier_chunk_bytes
        if topic.undo_retention_ms:
            # All chunks of a round are undone as one, which has the name of the first.
            name = attempt if self._keeping is None else self._keeping.round
            self._keeping = Keeping(name, attempt, topic.undo_retention_ms)
        return Site(
            path=self.files.path,
            target=self.files.path,
            attempt=attempt,
            files=self._recipe,
            writes=True,
            takes_crcs=True,
            shares_disk=False,
            chunk_bytes=topic.segment_bytes if chunk_bytes < 0 else chunk_bytes,
            filters=self._filters(topic.tier_filter_fpp),
        )

    def _filters(self, fpp: float) -> FilterSpec | None:
        """Return how the round uses filters, None when they are switched off."""
        if not fpp:
            return None
        key = self.store.fact(KEY_FACT, lambda: secrets.token_hex(KEY_BYTES))
        segments = {
            s.base_offset: SegmentBytes(s.segment_id, s.size_bytes, s.files[LOG].crc32c)
            for s in self._segments
        }
        return FilterSpec(FilterKey.of_fact(key), fpp, segments)

    # Commit.

    def publish(self, round_: Round, result: TaskResult) -> None:
        """Make a wave live, group after group, after its line of the receipt."""
        if self._receipt is not None:
            line = receipt_line(round_, clean_to=self.state.first_dirty())
            self._commit.anchor(self._receipt(line))
        self._commit.wave(result, self._keeping)
        round_.committed.extend(result.staged)

    def abandon(self, round_: Round) -> None:
        """Leave everything where it is: no object that a commit could name may go here."""

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Move the first dirty offset above chunks; a round for what has expired moves nothing."""
        return [self._move_first_dirty(round_) for round_ in rounds]

    def _move_first_dirty(self, round_: Round) -> Exception | None:
        try:
            if not round_.plan.is_expired_round:
                end = round_.results[-1].end_offset
                self._commit.publish(end, _sums_of(round_), self._keeping)
        except (CompactionError, OSError) as error:
            return error
        return None

    def examined(self) -> None:
        """Remember when the partition was last looked through for what has expired."""
        if self.request.expired:
            self._horizons.examined(self.state.partition, self._began, self._commit.live)


def _sums_of(round_: Round) -> RoundSums | None:
    """Return what a round did, for the figures of its day; None where nothing was counted."""
    stats = round_report(round_).stats
    if stats is None:
        return None
    return RoundSums(
        1, stats.bytes_read, stats.bytes_written, stats.messages_read, stats.messages_written,
        stats.map_bytes_read, round(stats.total_seconds * 1000), round_.plan.now_ms,
    )  # fmt: skip


Progressed = Callable[[int], None]


def clean_remote(place: StorePlace, runner_for: RunnerFor, progressed: Progressed) -> RoundReport:
    """Do one round as the owner of a partition; the report says what it did or why nothing.

    An error ends the round at the chunk that it is in; the chunks before it are done and published.
    FencedError when a newer leader owns the partition and ConflictError when what was read has been
    replaced meanwhile: nothing but garbage is left. UnavailableError and OSError pass: try again.
    CorruptError and InvariantError do not.
    """
    request = replace(place.request, rounds=None)
    (partition,) = request.partitions
    run = PartitionRun(partition)
    with explained(place.store, partition.partition, epoch=place.state.leader_epoch):
        Rounds(
            request, place, runner_for, place.clock, ProgressOnly(progressed), _go_on
        ).clean([run])  # fmt: skip
        last = run.rounds[-1]
        if last.failure is not None:
            raise place.files.named(last.failure)
        if last.skipped:
            return last
    place.examined()
    return replace(reduce(joined_reports, run.rounds), chunks=len(run.rounds))


def plan_remote(place: StorePlace) -> RoundReport:
    """Return what a round would do; reads indexes and rows, and changes nothing."""
    (partition,) = place.request.partitions
    run = PartitionRun(partition)
    survey = place.announce(run, place.survey(run))
    if survey.plan is None:
        return base_report(survey, skipped=True)
    return planned_report(survey, survey.plan, 0, None, None)


def _go_on() -> None:
    """Stop by what ``progressed`` raises, and by nothing else."""
