"""One round of an attached partition, by its holder: looked at, compacted, published.

    look      the cluster again: refused is what the check refuses     Publisher.look
    sweep     outputs of an earlier round that were never announced
    choose    which segments may be compacted, and why no more
    round     the engine's, on the segments as a directory             attached_place
    publish   swap after swap, each after a look of its own            Publisher.decide_and_publish

The holder has repaired the partition before: :mod:`keeplast.attach.upkeep.replaced_segments`.

Only the cluster knows why an object of a remote tier is not there. The rule: **damage is what
brokers still serve and the remote tier has not**. A process that slept in its round may wake after
another one has replaced and collected what it reads. A broker may expire or delete it at any time.
Nothing is wrong then, and a new round finds what took its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import MetadataView
from keeplast.attach.held.outputs import sweep_filters
from keeplast.attach.held.publication import Publisher
from keeplast.attach.held.words import sweep_outputs
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.rounds.attached_place import (
    RECORDS_A_SEGMENT,
    Allowance,
    AttachedPlace,
    AttachedState,
)
from keeplast.attach.rounds.missing_aborts import AbortSearch, measure_sources
from keeplast.attach.rules.sources import (
    MARGIN_SEGMENTS,
    Sources,
    choose_sources,
    effective_log,
    newest_whole,
    overlaid_from,
)
from keeplast.attach.rules.tombstone_removal import expires_below, removal_terms
from keeplast.cleaner.plan import plan_groups
from keeplast.cleaner.reasons import NothingBelow, SourcesEnd, SourcesLimit
from keeplast.clock import Clock
from keeplast.cluster.late_copies import closable_holes, late_copies
from keeplast.cluster.layouts.layout import AuxiliaryFile, RemoteLayout
from keeplast.cluster.live_cluster import TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import ConflictError, CorruptError
from keeplast.format import leader_epoch
from keeplast.format.identifier import encode_id
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment, TopicIdPartition
from keeplast.log.windows import WINDOW_BYTES_DEFAULT
from keeplast.model.hold import GroupReader, Hold
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Keyless, Shape, TopicConfig
from keeplast.run.events import ProgressOnly
from keeplast.run.receipt import Receipt
from keeplast.run.round import Rounds, RunnerFor
from keeplast.run.round_state import PartitionRun, Round, base_report, planned_report
from keeplast.store.look import StoredReaders
from keeplast.survey.notes import WaitNote
from keeplast.survey.report import RoundReport
from keeplast.survey.request import (
    MEMORY_BYTES_DEFAULT,
    TASK_MEMORY_BYTES_DEFAULT,
    CleanRequest,
    PartitionRequest,
)
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.objects.stores import PART_BYTES
from keeplast.tier.state.attached import Attached, DecisionState


@contextmanager
def naming_why_gone(publisher: Publisher, view: MetadataView) -> Iterator[None]:
    """Read segments of ``view``, by the partition's holder; an object that is gone is explained.

    FencedError when another process has taken the partition over. ConflictError when brokers serve
    a segment of ``view`` no more: a round that is done again finds what they do. CorruptError for
    an object that is missing and should be there. Any other error of the look is raised as it is.
    """
    before = view.cache.served_segments()
    try:
        yield
    except (FileNotFoundError, CorruptError) as error:
        publisher.log.check(publisher.held)
        now = publisher.look().cache.served_segments()
        # What this very round has replaced shows nothing of another process.
        mine = {
            source.id
            for decision in publisher.log.decisions(publisher.held)
            if decision.epoch == publisher.epoch
            for source in decision.sources
        }
        gone = [each for name, each in before.items() if name not in now and name not in mine]
        if gone:
            raise ConflictError(
                "a segment was replaced, or expired, while a round read it; the next round reads "
                "what is served now. "
                f"partition={publisher.name} segment={encode_id(gone[0].id.segment_id)} "
                f"count={len(gone)}",
                code="K429",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise CorruptError(
                "an object of the remote tier is missing, although brokers serve its segment. It "
                "was removed by hand or by a rule of the bucket, or --storage names another "
                "place than the brokers' plugin. Put it back from a copy, or correct --storage",
                path=str(error.filename or error), code="K412",
            ) from error  # fmt: skip
        raise


Progressed = Callable[[int], None]
REQUESTS_A_SOURCE, REQUESTS_AN_OUTPUT = 18, 25
"""What a segment costs however small it is: manifests, indexes, and keeplast's own objects."""


class RoundWish(Struct, frozen=True, kw_only=True):
    """What is asked of a round.

    ``topic`` is what keeplast is to do, with the brokers' sizes; ``margin_bytes`` is what stays raw
    at the end, :data:`~keeplast.attach.rules.sources.MARGIN_SEGMENTS` of a broker's segments at
    least. ``brokers`` report what the groups have committed that tombstones wait for, None for no
    groups.
    """

    topic: TopicConfig
    margin_bytes: int
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    keyless: Keyless = Keyless.FAIL
    force: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    shape: Shape | None = None
    brokers: GroupReader | None = None

    def request_for(self, partition: TopicPartition, state: AttachedState) -> CleanRequest:
        """Return the request of one partition's round."""
        path = attached_path(state.sources.segments[-1].newest.id.partition)
        return CleanRequest(
            (PartitionRequest(partition, path, self.topic, self.cleaner),), force=self.force,
            memory_bytes=self.memory_bytes, task_memory_bytes=self.task_memory_bytes,
            shape=self.shape,
        )  # fmt: skip


def margin_of(config: TopicConfig, topic: TopicFacts) -> int:
    """Return how many bytes at the end of a topic's partitions stay raw: by whatever size rolls."""
    return MARGIN_SEGMENTS * max(
        config.segment_bytes, int(topic.settings.get("segment.bytes") or 0)
    )


def clean_attached(
    publisher: Publisher,
    wish: RoundWish,
    runner_for: RunnerFor,
    clock: Clock,
    *,
    progressed: Progressed,
    receipt: Receipt | None = None,
    allowance: Allowance | None = None,
) -> RoundReport:
    """Do one round of a partition that was claimed and repaired.

    The report says what it did or why nothing. RefusedError before anything is written for what the
    check refuses; errors of a round as :func:`do_round`, and of sources that went meanwhile as
    :func:`.naming_why_gone`. With an ``allowance`` swaps end where that ends, as when an operator
    stops the round.
    """
    view = sweep_outputs(publisher)
    # The filters of segments that are gone go, or all of them where none are wanted.
    has_filters = bool(wish.topic.tier_filter_fpp)
    known = {each.id.segment_id for each in view.cache.segments} if has_filters else set()
    sweep_filters(publisher.layout, publisher.name.partition, known)
    with naming_why_gone(publisher, view):
        return _clean(publisher, view, wish, runner_for, clock, progressed, receipt, allowance)


def _clean(
    publisher: Publisher, view: MetadataView, wish: RoundWish, runner_for: RunnerFor, clock: Clock,
    progressed: Progressed, receipt: Receipt | None, allowance: Allowance | None,
) -> RoundReport:  # fmt: skip
    lineage_of = partial(read_lineage, publisher.layout)
    now_ms = publisher.log.clock.now_ms()
    found = sources_of(
        lineage_of, view.cache, view.log.start, wish.margin_bytes, now_ms=now_ms
    )  # fmt: skip
    sources = measure_sources(publisher.layout, found)
    if not sources.segments:
        return nothing_to_clean(sources)
    known = publisher.log.find(publisher.name) or publisher.held
    cleaned_to = clean_to(publisher.log, known, view.cache, view.log.start)
    state = AttachedState(sources, view.log.start, cleaned_to, known.holds)
    at = publisher.name.partition
    closes = any(last < sources.end for _, last in closable_holes(view.cache, view.log.start))
    # Objects are asked only where that can change what is done.
    force = wish.force or closes or _lacks_abort(publisher.layout, view, sources, cleaned_to)
    wish = replace(wish, force=force)
    request = wish.request_for(TopicPartition(at.topic, at.partition), state)
    terms = removal_terms(wish.topic, view.topic.settings, [e.settings for e in view.brokers])
    below = expires_below(
        terms, sources, view.cache, publisher.log.decisions(known), log_start=view.log.start,
        first_dirty=state.first_dirty, now_ms=now_ms,
    )  # fmt: skip
    place = AttachedPlace(
        publisher.layout, state, publisher, request, clock, keyless=wish.keyless, receipt=receipt,
        allowance=allowance, expires_below=below, brokers=wish.brokers,
        filter_key=publisher.log.filter_key() if wish.topic.tier_filter_fpp else None,
    )  # fmt: skip
    return do_round(place, runner_for, clock, progressed)


def _lacks_abort(
    layout: RemoteLayout, view: MetadataView, sources: Sources, cleaned_to: int
) -> bool:
    """Say whether brokers serve an index without an abort that ``sources`` have."""
    newest = newest_whole(view.cache)
    if newest is None:
        return False
    ranges = effective_log(view.cache, read_lineage(layout, newest), view.log.start).ranges
    missing = AbortSearch(layout).find(
        ranges, log_start=view.log.start, first_dirty=cleaned_to
    )  # fmt: skip
    return any(each.marker_offset < sources.end for each in missing)


def clean_to(log: DecisionLog, known: Attached, cache: PartitionCache, log_start: int) -> int:
    """Return the first offset that is not clean, by what was decided and what came over it.

    No round takes offsets that ``log_start`` has cut, so a cut makes nothing above it dirty. The
    segment that a late copy lies within is taken again, of whatever origin.
    """
    published = (DecisionState.PUBLISHED, DecisionState.COLLECTING, DecisionState.COLLECTED)
    outputs = (each for decision in log.decisions(known, *published) for each in decision.outputs)
    overlaid = overlaid_from(cache, outputs, log_start)
    dirty = [
        each.copy.start_offset
        for each in late_copies(cache)
        if each.within.start_offset >= log_start
    ]
    if overlaid is not None:
        dirty.append(overlaid)
    return min(known.cleaned_to, min(dirty, default=known.cleaned_to))


class RoundCosts(Struct, frozen=True):
    """What a round takes: bytes of log that are read, the most that is written, and records.

    ``requests`` are those that an object store is sent, about; collecting takes a few more.
    ``metadata_records`` stay in the metadata topic for good: every broker reads them at each start.
    """

    sources: int
    outputs: int
    bytes_to_read: int
    bytes_to_write: int
    requests: int
    metadata_records: int


def plan_attached(
    layout: RemoteLayout,
    partition: TopicIdPartition,
    cache: PartitionCache,
    wish: RoundWish,
    clock: Clock,
    *,
    log_start: int,
    cleaned_to: int,
    holds: tuple[Hold, ...] = (),
    counting: RunnerFor | None = None,
    progressed: Progressed = lambda count: None,
) -> tuple[RoundReport, RoundCosts | None]:
    """Say what a round would do, and what it costs at most; changes nothing.

    With ``counting`` its tasks read all that a round would, and the report says what would go.
    """
    found = sources_of(
        partial(read_lineage, layout), cache, log_start, wish.margin_bytes,
        now_ms=clock.now_ms(),
    )  # fmt: skip
    sources = measure_sources(layout, found)
    name = TopicPartition(partition.topic, partition.partition)
    if not sources.segments:
        readers = StoredReaders(partition.topic_id.hex(), wish.brokers)
        wait = readers.wait(name, wish.topic, clock.now_ms())
        remarks = () if wait is None else (WaitNote(wait),)
        return replace(nothing_to_clean(sources), remarks=remarks), None
    state = AttachedState(sources, log_start, cleaned_to, holds)
    request = wish.request_for(name, state)
    place = AttachedPlace(
        layout, state, None, request, clock, keyless=wish.keyless, brokers=wish.brokers
    )
    (asked,) = request.partitions
    run = PartitionRun(asked)
    survey = place.announce(run, place.survey(run))
    if survey.plan is None:
        return base_report(survey, skipped=True), None
    plan = survey.plan
    groups = plan_groups(plan, plan.bound)
    taken = sum(len(each.sources) for each in groups)
    size = sum(each.size_bytes for each in groups)
    round_ = Round(run, survey, plan, place.site(run))
    read = round_.bytes_to_read() + size
    requests = REQUESTS_A_SOURCE * taken + REQUESTS_AN_OUTPUT * len(groups)
    costs = RoundCosts(
        sources=taken, outputs=len(groups), bytes_to_read=read, bytes_to_write=size,
        requests=requests + read // WINDOW_BYTES_DEFAULT + size // PART_BYTES,
        metadata_records=RECORDS_A_SEGMENT * (taken + len(groups)),
    )  # fmt: skip
    if counting is not None:
        return do_round(place, counting, clock, progressed), costs
    return planned_report(survey, plan, 0, None, None), costs


def sources_of(
    lineage_of: Callable[[RemoteLogSegment], Sequence[LeaderEpoch]], cache: PartitionCache,
    log_start: int, margin_bytes: int, *, now_ms: int,
) -> Sources:  # fmt: skip
    """Return what may be compacted, not measured; the newest segment's file has the epochs."""
    newest = newest_whole(cache)
    if newest is None:
        return Sources((), log_start, SourcesLimit(log_start, SourcesEnd.HOLE))
    return choose_sources(
        cache, log_start=log_start, margin_bytes=margin_bytes, lineage=lineage_of(newest),
        now_ms=now_ms,
    )  # fmt: skip


def read_lineage(layout: RemoteLayout, newest: RemoteLogSegment) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of the newest segment's file; CorruptError without it."""
    data = layout.open(newest).read_auxiliary(AuxiliaryFile.LEADER_EPOCHS)
    if data is None:
        raise CorruptError(
            "a segment of the remote tier lacks a file", path=str(newest.id),
            expected=AuxiliaryFile.LEADER_EPOCHS.value, found="none", code="K412",
        )  # fmt: skip
    return leader_epoch.decode(data)


def nothing_to_clean(sources: Sources) -> RoundReport:
    """Return the report of a partition without a segment that may be compacted."""
    return RoundReport(cause=NothingBelow(sources.limit), skipped=True)


def do_round(
    place: AttachedPlace, runner_for: RunnerFor, clock: Clock, progressed: Progressed
) -> RoundReport:
    """Do one round at ``place``; the report says what it did or why nothing.

    What ``progressed`` raises ends the round, and so does any error of the place, which is raised.
    Only the swaps that were decided before it are live then.
    """
    (partition,) = place.request.partitions
    run = PartitionRun(partition)
    events = ProgressOnly(progressed)
    Rounds(place.request, place, runner_for, clock, events, _go_on).clean([run])
    (report,) = run.rounds
    if report.failure is not None:
        raise report.failure
    return report


def _go_on() -> None:
    """Stop by what ``progressed`` raises, and by nothing else."""
