"""A partition of a live cluster's remote tier as the place of a round.

To a task the remote log is a directory
(:class:`~keeplast.attach.rounds.attached_files.AttachedFiles`), so
eligibility, winners and transactions are those of a local round. What differs:

* a survey takes from announcements what it would read of the segments;
* **tombstones and markers go only below an offset that was looked for**: what they delete may be
  read from elsewhere (:mod:`keeplast.attach.rules.tombstone_removal`); without one all stay;
* after that they wait for consumer groups by what **brokers** report: no file here has it;
* the last batch of every output stays, so that its bytes show its end too (attach.md C7);
* a wave becomes live by swaps: the partition's holder announces, decides and publishes each:
  :mod:`keeplast.attach.rules.swap`. Undecided outputs are removed, or known as ours.

Answers to attach.md section 2.

An allowance limits how many swaps, and records of the metadata topic, may come of a day, of all
processes. The rule: **the allowance counts what the decision log has of the last 24 hours**, so
that no restart and no other host begins at zero. A swap is charged when it is decided, with all of
its records. They include those of the later collection of its sources: collection is never held up.
Records stay in the metadata topic for good, and every broker reads them at each start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.outputs import (
    BEGUN,
    KEPT_BYTES_MAX,
    KEPT_SHARE_MAX,
    SWEPT,
    OutputMark,
    staged_id,
    work_name,
)
from keeplast.attach.rounds.attached_files import AttachedRecipe, remove_output
from keeplast.attach.rounds.hollow import SOURCES_MAX, is_hollow, join_hollow
from keeplast.attach.rules.sources import Sources, parts_of, summary_of
from keeplast.attach.rules.swap import Swap, covered, merged_epochs
from keeplast.cleaner.plan import plan_groups
from keeplast.cleaner.reasons import (
    ActiveLimit,
    AllClean,
    BoundNote,
    Decision,
    EmptyLog,
    NothingBelow,
    OnlyActive,
)
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.columns import retained
from keeplast.errors import (
    CompactionError,
    ConflictError,
    InvariantError,
    RefusedError,
    StoppedError,
    invariant,
)
from keeplast.format.filename import LOG
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState, decode
from keeplast.model.hold import GroupReader, Hold
from keeplast.model.topic_config import Keyless
from keeplast.rewrite.task import FilterSpec, StagedGroup, TaskResult
from keeplast.run.receipt import Receipt, receipt_line
from keeplast.run.round_state import PartitionRun, Round, Site, base_report
from keeplast.store.look import StoredReaders
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest
from keeplast.survey.survey import Survey, survey_partition
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.objects.filters import FilterKey, SegmentBytes

DAY_MS = 24 * 60 * 60 * 1000
RECORDS_A_SEGMENT = 2
"""An output is announced and finished, a source's deletion begun and ended."""
RECORDS_TAKEN_BACK = 3
"""What was announced and not decided: its deletion is begun and ended, too."""


class DaySum(Struct, frozen=True):
    """Swaps and records of the metadata topic, of a day: what was spent, or what may be."""

    swaps: int
    records: int


class Allowance:
    """What a cluster's partitions may still spend; hosts at work at a time may each spend it."""

    def __init__(self, log: DecisionLog, cluster_id: str, caps: DaySum) -> None:
        """Take the decision log that all hosts share."""
        self._log = log
        self._cluster_id = cluster_id
        self.caps = caps

    def spent(self) -> DaySum:
        """Return what was spent in the last 24 hours."""
        since_ms = self._log.clock.now_ms() - DAY_MS
        found = self._log.counts.decided_since(self._cluster_id, since_ms)
        records = RECORDS_A_SEGMENT * found.segments + RECORDS_TAKEN_BACK * found.taken_back
        return DaySum(found.swaps, records)

    def refusal(self, spent: DaySum, segments: int = 1) -> str | None:
        """Return why a swap of so many segments has to wait, None when it need not."""
        records = spent.records + RECORDS_A_SEGMENT * segments
        if spent.swaps < self.caps.swaps and records <= self.caps.records:
            return None
        return (
            "no more may be written to the metadata topic today; it goes on when older swaps are a "
            "day old, or with a greater --swaps-per-day or --records-per-day. "
            f"swaps={spent.swaps} of {self.caps.swaps} records={spent.records} of "
            f"{self.caps.records} asked={RECORDS_A_SEGMENT * segments}"
        )

    def begin(self, segments: int) -> None:
        """StoppedError when a round of at most so many segments, read and written, has to wait.

        One that is larger than a whole day's allowance begins on a fresh day: what it swaps until
        then stays, and the next one finds less to do.
        """
        spent = self.spent()
        is_fresh = spent.swaps == 0 == spent.records
        found = self.refusal(spent, 1 if is_fresh else segments)
        if found is not None:
            raise StoppedError(found, code="K446")

    def take(self, swap: Swap) -> None:
        """StoppedError when ``swap`` has to wait; asked before anything of it is announced."""
        found = self.refusal(self.spent(), len(swap.sources) + len(swap.outputs))
        if found is not None:
            raise StoppedError(found, code="K446")


ATTEMPT_BYTES = 16
UNANNOUNCED = -1000
"""The mark of no epoch: of outputs that are never announced."""
SWAP_SEGMENTS_MAX = 400
"""Sources and outputs of one swap: its batch stays below what the metadata topic takes at once."""
SWAP_EPOCHS_MAX = 20_000
"""Leader epochs of a swap's outputs, 13 bytes each: they are announced in one batch too."""


class SwapPublisher(Protocol):
    """The partition's holder, which makes swaps live. Errors are those of a partition's round."""

    @property
    def mark(self) -> int:
        """Return the broker that announcements are made by."""

    def anchor(self, line: bytes | None) -> None:
        """Let what is decided from here on keep that this line of a receipt was written."""

    def register(self, ids: Sequence[tuple[bytes, int]]) -> None:
        """Write down fresh segment ids, each with its start offset, before they are announced."""

    def announce_all(self, segments: Sequence[RemoteLogSegment]) -> object:
        """Say that registered segments are being copied; at most once an id."""

    def decide_and_publish(self, swap: Swap) -> object:
        """Decide a swap and make it live.

        CommitUnknownError when it may be live, and that cannot be found out; any other error says
        that it is not, and never will be.
        """

    def discard_ids(self, segment_ids: Sequence[bytes]) -> None:
        """Take back what was registered and not decided: announcement, objects, all."""

    def advance(self, cleaned_to: int) -> None:
        """Write down how far the partition is clean, where no swap says it."""


class AttachedState(Struct, frozen=True):
    """What was found of a partition: ``cleaned_to`` by the decision log, the rest by the cluster.

    ``log_start`` is the first offset that readers see. ``sources`` has one segment at least.
    ``holds`` are the partition's, also those that are over.
    """

    sources: Sources
    log_start: int
    cleaned_to: int
    holds: tuple[Hold, ...] = ()

    @property
    def first_dirty(self) -> int:
        """Return from where on the sources are dirty.

        A segment over a source made it dirty: all of such a source is taken again.
        """
        start = max(self.sources.segments[0].start_offset, self.log_start)
        found = min(max(self.cleaned_to, start), self.sources.end)
        for each in self.sources.segments:
            if each.is_overlaid and each.start_offset < found <= each.end_offset:
                return max(each.start_offset, self.log_start)
        return found


def naming_sources(decision: Decision, sources: Sources) -> Decision:
    """Return a decision that names what ends the sources, where there is nothing else to clean.

    The active segment of a round only stands for what ends them. The sources may also be empty
    while there is much above them: a broker's cleaner leaves segments without a record.
    """
    is_end = decision == NothingBelow(ActiveLimit(sources.end))
    if is_end or isinstance(decision, (AllClean, EmptyLog, OnlyActive)):
        return NothingBelow(sources.limit)
    return decision


class AttachedPlace:
    """One partition, by its holder; ``request`` names it alone."""

    def __init__(
        self,
        layout: RemoteLayout,
        state: AttachedState,
        publisher: SwapPublisher | None,
        request: CleanRequest,
        clock: Clock,
        *,
        keyless: Keyless = Keyless.FAIL,
        receipt: Receipt | None = None,
        allowance: Allowance | None = None,
        expires_below: int | None = None,
        brokers: GroupReader | None = None,
        filter_key: FilterKey | None = None,
    ) -> None:
        """Take the components, and what was just read of the partition.

        Without a ``publisher`` a round counts what would go, and writes nothing. Without an
        ``allowance`` it decides as many swaps as there are. ``expires_below`` is
        :func:`.removal.expires_below`'s; with None tombstones and markers stay as they are.
        ``brokers`` report what the groups have committed that those wait for; without any, no group
        has read anything. With a ``filter_key`` clean segments that hold no dirty key are not read,
        as far as filters show.
        """
        self.request = request
        self.state = state
        self._layout = layout
        self._holder = publisher
        self._clock = clock
        self._keyless = keyless
        self._receipt = receipt
        self._allowance = allowance
        self._expires_below = expires_below
        self._brokers = brokers
        self._filter_key = filter_key
        self._sources = {each.start_offset: each for each in state.sources.segments}
        mark = OutputMark(UNANNOUNCED if publisher is None else publisher.mark, clock.now_ms())
        self._recipe = AttachedRecipe(layout, state.sources.segments, mark)
        self.files: Final = self._recipe.open()
        self._registered: set[bytes] = set()
        self._joined: list[StagedGroup] = []
        self._decided: set[bytes] = set()
        self._cleaned_to = state.cleaned_to

    @property
    def _publisher(self) -> SwapPublisher:
        invariant(self._holder is not None, "a place that is only looked at is changed")
        return cast(SwapPublisher, self._holder)

    # Survey.

    def survey(self, run: PartitionRun) -> Survey:
        """Survey what may be compacted of the log."""
        request = replace(
            self.request, log_start_offset=self.state.log_start, high_watermark=self.files.end
        )
        # As a checkpoint, and not as an offset that is asked for: what is clean is old enough.
        at = run.request.partition
        checkpoints = Checkpoints({at: self.state.first_dirty}, {}, {}, {at: self.state.holds})
        found = survey_partition(
            run.request, request, checkpoints, self.files,
            self._clock.now_ms(),
            # By what announcements say of them.
            known={
                base: summary_of(each, run.request.topic.index_interval_bytes)
                for base, each in self._sources.items()
            },
            groups=StoredReaders(self.files.partition.topic_id.hex(), self._brokers),
        )  # fmt: skip
        return self._naming_limit(found)

    def _naming_limit(self, found: Survey) -> Survey:
        """Return a survey that names what ends the sources, not the segment that stands for it."""
        stand_in, limit = ActiveLimit(self.files.end), self.state.sources.limit
        notes = tuple(
            replace(note, limit=limit)
            if isinstance(note, BoundNote) and note.limit == stand_in
            else note
            for note in found.notes
        )
        return replace(
            found, notes=notes, decision=naming_sources(found.decision, self.state.sources)
        )

    # Plan.

    def announce(self, run: PartitionRun, survey: Survey) -> Survey:
        """Keep the ends of outputs, and tombstones and markers that may not go.

        StoppedError when the allowance would end in the middle of the round.
        """
        if survey.plan is None:
            return survey
        plan = replace(
            survey.plan, keeps_group_ends=True,
            closing_epochs=tuple(
                (each.epoch, each.start_offset)
                for each in merged_epochs(parts_of(self.state.sources.segments))
            ),
            expires_nothing=self._expires_below is None, expires_below=self._expires_below or 0,
            keeps_keyless=self._keyless is Keyless.RETAIN, sources_max=SOURCES_MAX,
            begins_at=self.state.sources.begins_at,
        )  # fmt: skip
        if self._allowance is not None:
            groups = plan_groups(plan, plan.bound)
            self._allowance.begin(sum(len(each.sources) + 1 for each in groups))
        return replace(survey, plan=plan)

    def skip(self, run: PartitionRun, survey: Survey) -> RoundReport | None:
        """Say why there is no round."""
        return base_report(survey, skipped=True)

    def site(self, run: PartitionRun) -> Site:
        """Return the directory that the segments look like."""
        return Site(
            path=self.files.path,
            target=self.files.path,
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            files=dataclasses.replace(self._recipe, like=self.files.like),
            writes=self._holder is not None,
            takes_crcs=self._holder is not None,
            shares_disk=False,
            filters=self._filters(run.request.topic.tier_filter_fpp),
        )

    def _filters(self, fpp: float) -> FilterSpec | None:
        """Return how the round uses filters, None when they are switched off, or it only counts.

        Nor where all is dirty: no filter is asked then, and without any the round is five times as
        fast on small records. The first round over a clean part begins to make them. The checksum
        of a broker's copy is unknown; ids are used once, and name the bytes.
        """
        is_all_dirty = self.state.first_dirty <= max(
            self.state.sources.segments[0].start_offset, self.state.log_start
        )
        if self._filter_key is None or not fpp or is_all_dirty:
            return None
        segments = {
            base: SegmentBytes(each.newest.id.segment_id.hex(), each.size_bytes, None)
            for base, each in self._sources.items()
        }
        return FilterSpec(
            self._filter_key, fpp, segments, bytes_max=KEPT_BYTES_MAX, share_max=KEPT_SHARE_MAX
        )

    # Commit.

    def publish(self, round_: Round, result: TaskResult) -> None:
        """Make a wave live, swap after swap, the oldest offsets first."""
        self._check_keyless(result)
        if self._holder is None:
            return
        if self._receipt is not None:
            line = receipt_line(round_, clean_to=self.state.cleaned_to)
            self._publisher.anchor(self._receipt(line))
        staged_now = self._join_hollow(round_, result.staged)
        swaps = list(self._in_swaps(staged_now))
        is_last = result.carry is None and staged_now and any(staged_now[-1].files)
        for number, staged in enumerate(swaps):
            ends_round = bool(is_last) and number + 1 == len(swaps)
            cleaned_to = result.end_offset if ends_round else self.state.cleaned_to
            self._swap(staged, max(cleaned_to, self.state.cleaned_to), result.end_offset)
            round_.committed.extend(staged)

    def _in_swaps(self, staged: Sequence[StagedGroup]) -> Iterator[list[StagedGroup]]:
        """Yield runs of neighbouring outputs; what was left alone, or not read because a filter let
        it stay, or fills a swap, ends one."""
        run: list[StagedGroup] = []
        size = epochs = 0
        for each in staged:
            parts = self._parts(each)
            more = len(parts) + 1
            of_output = len(merged_epochs(parts))
            is_full = size + more > SWAP_SEGMENTS_MAX or epochs + of_output > SWAP_EPOCHS_MAX
            is_next = not run or self.files.follows(run[-1], each)
            if run and (not each.files or is_full or not is_next):
                yield run
                run, size, epochs = [], 0, 0
            if each.files:
                run.append(each)
                size += more
                epochs += of_output
        if run:
            yield run

    def _join_hollow(self, round_: Round, outputs: Sequence[StagedGroup]) -> list[StagedGroup]:
        """Return the outputs as they are published; what was joined is removed."""
        for each in outputs:
            if is_hollow(each) and each.files:
                (log,) = [file.name for file in each.files if file.kind == LOG]
                self.files.adopt(log, self._output(each))
        joined = join_hollow(
            self.files, outputs, attempt=secrets.token_hex(ATTEMPT_BYTES),
            interval=round_.plan.topic.index_interval_bytes, begins_at=round_.plan.begins_at,
        )  # fmt: skip
        self._joined += [each for each in joined if each not in outputs]
        kept = {id(each) for each in joined}
        for each in outputs:
            if id(each) not in kept and each.files:
                name = staged_id(self.files.partition, each)
                remove_output(self._layout, name, each.base_offset, self._newest)
        return joined

    @property
    def _newest(self) -> RemoteLogSegment:
        return self.state.sources.segments[-1].newest

    def _parts(self, staged: StagedGroup) -> list[RemoteLogSegment]:
        return parts_of(self._sources[base] for base in staged.sources)

    def _hidden_within(self, parts: Sequence[RemoteLogSegment]) -> list[RemoteLogSegment]:
        """Return the segments there that no reader gets, as far as they fit the swap."""
        first, last = covered(parts)
        found = [
            each
            for each in self.state.sources.hidden
            if each.start_offset >= first and each.end_offset <= last
        ]
        return found[: max(SWAP_SEGMENTS_MAX - len(parts), 0)]

    def _check_keyless(self, result: TaskResult) -> None:
        """RefusedError when records without a key would go, and the caller did not allow it."""
        count = int(result.counters[retained.REASON_RECORDS + retained.KEYLESS])
        if count and self._keyless is Keyless.FAIL:
            raise RefusedError(
                f"{count} records have no key, and belong to none: say what becomes of them with "
                "--keyless drop or --keyless retain. Nothing was changed. "
                f"partition={self.files.partition.topic}-{self.files.partition.partition}",
                code="K238",
            )

    def _swap(self, staged: Sequence[StagedGroup], cleaned_to: int, cleaned_for: int) -> None:
        parts = [part for each in staged for part in self._parts(each)]
        sources = sorted(
            (*parts, *self._hidden_within(parts)), key=lambda each: each.start_offset
        )  # fmt: skip
        outputs = [self._output(each) for each in staged]
        swap = Swap(
            self.files.partition, tuple(sources), tuple(outputs), cleaned_to, cleaned_for,
            first_dirty=self.state.first_dirty, expires_below=self._expires_below or 0,
        )  # fmt: skip
        if self._allowance is not None:
            self._allowance.take(swap)
        ids = [(each.id.segment_id, each.start_offset) for each in outputs]
        self._publisher.register(ids)
        self._registered.update(segment_id for segment_id, _ in ids)
        for output in outputs:
            # From here on the decision log knows of it.
            self._layout.delete_own(work_name(output.id))
        self._publisher.announce_all(outputs)
        self._publisher.decide_and_publish(swap)
        self._cleaned_to = cleaned_to
        self._decided.update(segment_id for segment_id, _ in ids)

    def _output(self, staged: StagedGroup) -> RemoteLogSegment:
        """Return the announcement of an output as its task has described it, checked."""
        name = staged_id(self.files.partition, staged)
        data = self._layout.read_own(work_name(name))
        if data is None or data in (BEGUN, SWEPT):
            raise ConflictError(
                f"what was staged has been removed; do the round again. object={work_name(name)}",
                code="K429",
            )
        found = decode(data)
        sources = self._parts(staged)
        expected = (
            name, sources[0].start_offset, sources[-1].end_offset, merged_epochs(sources),
            staged.size_bytes, self._publisher.mark,
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )  # fmt: skip
        if not isinstance(found, RemoteLogSegment) or expected != (
            found.id, found.start_offset, found.end_offset, found.epochs, found.size_bytes,
            found.broker_id, found.state,
        ):  # fmt: skip
            raise InvariantError(
                f"an output is not what was staged. expected={expected} found={found}", code="K901"
            )
        size = self._layout.open(found).log_bytes
        invariant(size == found.size_bytes, f"an output has another size. found={size} {found}")
        return found

    def abandon(self, round_: Round) -> None:
        """Remove what was staged and not decided; what cannot be removed now is known as ours."""
        if self._holder is None:
            return
        left = [
            (staged_id(self.files.partition, staged), staged.base_offset)
            for staged in (*self._joined, *(s for r in round_.results for s in r.staged))
            if staged.files
        ]
        left = [each for each in left if each[0].segment_id not in self._decided]
        registered = [n.segment_id for n, _ in left if n.segment_id in self._registered]
        # The partition's next holder tries again: the id, or word of the output, is there.
        with contextlib.suppress(CompactionError, OSError):
            if registered:
                self._publisher.discard_ids(registered)
        for name, start_offset in left:
            if name.segment_id not in self._registered:
                with contextlib.suppress(CompactionError, OSError):
                    remove_output(self._layout, name, start_offset, self._newest)

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Write down how far the partition is clean, where its last swap has not."""
        return [self._advance(round_) for round_ in rounds]

    def _advance(self, round_: Round) -> Exception | None:
        end = round_.results[-1].end_offset
        if self._holder is None or end <= self._cleaned_to:
            return None
        try:
            self._publisher.advance(end)
        except (CompactionError, OSError) as error:
            return error
        return None
