"""A tiered store as the place of rounds: one partition, and one commit a group.

To a task the remote log is a directory (:class:`~keeplast.tier.objects.round_files.RoundFiles`),
so eligibility, winners, horizons and transactions are those of a local round. What differs:

* on one host the dirty section is worked on in *chunks*, each a round with a key map of its own;
  the first dirty offset moves after every chunk, when all of its groups are live
  (:mod:`keeplast.store.commit`). All of them end where the first one has found that they may;
* filters say which clean segments need not be read (:mod:`keeplast.rewrite.skipping`), and the
  survey takes from the metadata what it would read from their indexes.

Nothing is stored on a local disk: objects are read by ranges and written as streams. What is left
of an attempt that nobody has committed is garbage, which is collected. KIP-1272, "Chunked two pass
compaction".
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keeplast.cleaner.internal_topics import check_internal
from keeplast.cleaner.reasons import ActiveLimit, BoundNote, CopiedLimit
from keeplast.clock import Clock
from keeplast.errors import CompactionError, ConflictError, FencedError, invariant
from keeplast.format.filename import INDEX, LOG, TIME_INDEX
from keeplast.model.reader_wait import GroupReader
from keeplast.model.segment import SegmentSummary
from keeplast.rewrite.filter_spec import FilterSpec
from keeplast.rewrite.task import TaskResult
from keeplast.run.receipt import Receipt, receipt_line
from keeplast.run.round_reports import base_report, round_report
from keeplast.run.round_state import PartitionRun, Round, Site
from keeplast.store.commit import Committed, TierCommit
from keeplast.store.horizons import RemoteHorizons
from keeplast.store.look import as_copied, stored_checkpoints
from keeplast.store.readers import StoredReaders
from keeplast.survey.horizons import Examination, examination_of
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.survey import Survey, survey_partition
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT, FilterKey, SegmentBytes
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles, RoundRecipe
from keeplast.tier.state.kept_rounds import Keeping
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.round_days import RoundSums

ATTEMPT_BYTES = 16


class StorePlace:
    """The partition of ``state``, by its owner.

    ``request`` names it alone, and means what it means for a directory; its high watermark None is
    the end of what was copied. ``receipt`` takes a line of every wave, before any group of it
    becomes live; where that is refused then, its line stays, as behind a crash, and the metadata
    tells. ``local`` is a partition directory whose unchanged copies of segments are read in place
    of the objects. ``committed`` hears of every group that became live; what it raises ends the
    round, and the commit stands. ``brokers`` tell what consumer groups have committed; without,
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
        self._segments = tuple(state.segments[route.segment_id] for route in state.routes)
        self._recipe = RoundRecipe(
            self._objects, state.partition, state.topic_id, self._segments, self._local
        )
        self._files = self._recipe.open()
        self._commit = TierCommit(self.store, self._objects, state, self._grace_ms, self._committed)

    @property
    def files(self) -> RoundFiles:
        """Return the files of the chunk of the moment."""
        return self._files

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
                high_watermark=self._files.end if bound is None else bound,
                uncleanable_offset=self._uncleanable, force=request.force or not is_first,
                expired=request.expired and is_first,
            ),
            stored_checkpoints(state, {}), self._files, self.clock.now_ms(),
            known=self._list_known(),
            book=self._horizons.book(state) if request.expired else None, groups=self._readers,
        )  # fmt: skip
        return self._naming_copied(found) if is_first else replace(found, notes=())

    def _next_state(self, last: RoundReport) -> PartitionState:
        """Return the state behind a chunk; FencedError when somebody else holds the partition.

        ConflictError when its settings were changed: a round is done by those that it began with.
        """
        began, end = self.state, last.end_offset or 0
        invariant(end > (last.first_dirty or 0), f"a chunk gets nowhere. end_offset={end}")
        found = self.store.load(began.partition)
        if found.fence != began.fence:
            raise FencedError(
                "somebody else has taken the partition over; stop. partition="
                f"{began.partition} epoch={began.leader_epoch} current={found.leader_epoch} "
                f"owner={found.owner}"
            )
        if dict(found.settings) != dict(began.settings):
            raise ConflictError(
                "the settings of the partition were changed meanwhile; the round ends here. "
                f"partition={began.partition}"
            )
        # Or the same chunk would be done for ever.
        invariant(
            found.first_dirty() >= end,
            f"a chunk was published in vain. end_offset={end} "
            f"first_dirty={found.first_dirty()} epoch={found.leader_epoch}",
        )
        return found

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
            found.decision, found.section.cleanable, first_dirty=self.state.first_dirty(), end=end
        )
        return replace(found, decision=decision, notes=notes)

    def _list_known(self) -> dict[int, SegmentSummary]:
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
        """Say why there is no round; behind chunks that is no news."""
        return None if run.rounds else replace(base_report(survey), skipped=True)

    def site(self, run: PartitionRun) -> Site:
        """Return the directory that the objects look like."""
        topic, attempt = run.request.topic, secrets.token_hex(ATTEMPT_BYTES)
        chunk_bytes = topic.tier_chunk_bytes
        if topic.undo_retention_ms:
            # All chunks of a round are undone as one, which has the name of the first.
            name = attempt if self._keeping is None else self._keeping.round
            self._keeping = Keeping(name, attempt, topic.undo_retention_ms)
        return Site(
            path=self._files.path,
            target=self._files.path,
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
        """Make a wave live, group after group, behind its line of the receipt."""
        if self._receipt is not None:
            line = receipt_line(round_, clean_to=self.state.first_dirty())
            self._commit.anchor(self._receipt(line))
        self._commit.wave(result, self._keeping)
        round_.committed.extend(result.staged)

    def abandon(self, round_: Round) -> None:
        """Leave everything where it is: no object that a commit could name may go here."""

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Move the first dirty offset behind chunks; a round for what has expired moves nothing."""
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
            self._horizons.examined(self.state.partition, self._began)


def _sums_of(round_: Round) -> RoundSums | None:
    """Return what a round did, for the figures of its day; None where nothing was counted."""
    stats = round_report(round_).stats
    if stats is None:
        return None
    return RoundSums(
        1, stats.bytes_read, stats.bytes_written, stats.messages_read, stats.messages_written,
        stats.map_bytes_read, round(stats.total_seconds * 1000), round_.plan.now_ms,
    )  # fmt: skip
