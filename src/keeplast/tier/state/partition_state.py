"""What the metadata store knows of a partition, as values. Pure.

The *cleaner-offset vector* says how far the remote log is clean. A leader publishes, for every
leader epoch, how far the log was clean when that epoch ended, and for its own epoch how far it is
clean now. What an older leader publishes late counts only up to what its successors found. What a
reader must not break: all of it is a function of the *set* of publications, never of the order in
which they arrive. Of an epoch that has a successor one more of them can lower the end only.

Source: KIP-1272, "Persisting cleaner-offset-checkpoint to remote storage and fencing off zombie
broker", with the gaps closed that tiering.md section 9.2 names. A successor publishes a claim when
it takes over. Of two that cover a range the later publisher's counts. Entries are cut to the
lineage.

*Expiry* is what of the remote log retention and the log start offset let go. The rules are those of
a local log (:mod:`keeplast.cleaner.segment_expiry`); the active segment lies above the remote end
and never goes here. A compacted topic without ``delete`` loses only what lies below its log start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.segment_expiry import ExpiryPlan, ExpiryRule, plan_expiry
from keeplast.errors import InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.hold import Hold
from keeplast.model.partition import SegmentSummary, TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.state.holder import Holder
from keeplast.tier.state.segment import RemoteSegment, Route, SegmentState, is_within_lineage

UNKNOWN_EPOCH = -1


class Publication(Struct, frozen=True):
    """What the leader of ``epoch`` said: the first dirty offset of every epoch up to its own.

    ``number`` orders the publications of one leader; its claim, published before anything is
    cleaned, is number 0.
    """

    epoch: int
    number: int
    offsets: Mapping[int, int]

    def __post_init__(self) -> None:
        """InvalidError when its own epoch is missing or a later one is named."""
        if self.epoch not in self.offsets or max(self.offsets) > self.epoch:
            raise InvalidError(
                "a publication names its own leader epoch and older ones. "
                f"epoch={self.epoch} offsets={dict(self.offsets)}",
                code="K355",
            )

    @property
    def cleaned_to(self) -> int:
        """Return the first dirty offset that the leader claims for its own epoch, exclusive."""
        return self.offsets[self.epoch]


def cap(publications: Iterable[Publication], epoch: int) -> int | None:
    """Return up to which offset the leader of ``epoch`` can be believed, None without a limit.

    The least that any later leader found. One that knew nothing of ``epoch`` took over from an
    older one, so nothing of it is believed: -1.
    """
    found = [other.offsets.get(epoch, -1) for other in publications if other.epoch > epoch]
    return min(found, default=None)


def find_vector(
    publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int
) -> dict[int, int]:
    """Return the first dirty offset of every epoch that was published, cut to the lineage.

    ``lineage`` ascends by epoch; ``log_end`` is exclusive. Empty without publications.
    """
    epochs = sorted({epoch for publication in publications for epoch in publication.offsets})
    vector: dict[int, int] = {}
    for epoch in epochs:
        offset = cap(publications, epoch)
        if offset is None:
            offset = max(p.cleaned_to for p in publications if p.epoch == epoch)
        if offset >= 0:
            vector[epoch] = min(offset, end_of_epoch(epoch, lineage, log_end))
    return vector


def checkpoint(
    publications: Sequence[Publication], lineage: Sequence[LeaderEpoch], log_end: int
) -> int | None:
    """Return the first dirty offset of the remote log, None without publications."""
    vector = find_vector(publications, lineage, log_end)
    return vector[max(vector)] if vector else None


def take_over(
    publications: Sequence[Publication],
    lineage: Sequence[LeaderEpoch],
    log_end: int,
    *,
    epoch: int,
    log_start: int,
) -> Publication:
    """Return the claim of a new leader: what is valid now, frozen, and its own start.

    InvalidError when a leader of this epoch or a later one has published already.
    """
    newest = max((p.epoch for p in publications), default=UNKNOWN_EPOCH)
    if epoch <= newest:
        raise InvalidError(
            f"a leader of this epoch or a later one has taken over. epoch={epoch} newest={newest}",
            code="K355",
        )
    vector = find_vector(publications, lineage, log_end)
    inherited = vector[max(vector)] if vector else log_start
    return Publication(epoch, 0, {**vector, epoch: max(inherited, log_start)})


def advance(publications: Sequence[Publication], *, epoch: int, cleaned_to: int) -> Publication:
    """Return the next publication of the leader of ``epoch``; the older entries stay frozen.

    InvalidError when it has not claimed the log, or would move back (I-18).
    """
    last = newest_of(publications, epoch)
    if last is None:
        raise InvalidError(f"the leader has not taken the log over. epoch={epoch}", code="K355")
    if cleaned_to < last.cleaned_to:
        raise InvalidError(
            "the first dirty offset of a leader only grows. "
            f"epoch={epoch} from={last.cleaned_to} to={cleaned_to}",
            code="K355",
        )
    return Publication(epoch, last.number + 1, {**last.offsets, epoch: cleaned_to})


def renewed(publications: Sequence[Publication], *, epoch: int, cleaned_to: int) -> Publication:
    """Return the one publication that counts when the leader of ``epoch`` has replaced the log.

    Its number was never given before: it shows who cleaned the log that was there.
    """
    number = max((p.number for p in publications if p.epoch == epoch), default=0) + 1
    return Publication(epoch, number, {epoch: cleaned_to})


def newest_of(publications: Sequence[Publication], epoch: int) -> Publication | None:
    """Return the newest publication of the leader of ``epoch``, None before its claim."""
    own = [p for p in publications if p.epoch == epoch]
    return max(own, key=lambda p: p.number, default=None)


def end_of_epoch(epoch: int, lineage: Sequence[LeaderEpoch], log_end: int) -> int:
    """Return the offset, exclusive, up to which a leader's records are in the log.

    An epoch that is not in the lineage, because all of its records were truncated, ends where the
    next one that is there begins.
    """
    return min((entry.start_offset for entry in lineage if entry.epoch > epoch), default=log_end)


class PartitionState(Struct, frozen=True):
    """All that is known of a partition, as of one transaction. ``segments`` are the routed ones.

    ``holder`` is the process that may change it, or the last one that might when ``held_since_ms``
    is None. ``forgotten_ms`` is when the partition was given up; it has no routes then.
    ``cleaned_for`` is the greatest end of a round that cleaned anything here. ``holds`` are all of
    the partition, also those that are over.
    """

    row_id: int
    partition: TopicPartition
    topic_id: str
    leader_epoch: int
    owner: str
    version: int
    log_start: int
    remote_bytes: int
    lineage: tuple[LeaderEpoch, ...]
    publications: tuple[Publication, ...]
    routes: tuple[Route, ...]
    segments: Mapping[str, RemoteSegment]
    settings: Mapping[str, str]
    uncleanable_reason: str | None
    holder: Holder | None
    held_since_ms: int | None
    forgotten_ms: int | None = None
    cleaned_for: int = 0
    holds: tuple[Hold, ...] = ()

    @property
    def fence(self) -> tuple[int, str | None]:
        """Return what a change is compared with: the leader epoch, and the holder's id."""
        return self.leader_epoch, None if self.holder is None else self.holder.id

    @property
    def remote_end(self) -> int:
        """Return the offset after the last one in object storage; the log start without any."""
        return self.routes[-1].last_offset + 1 if self.routes else self.log_start

    @property
    def live_segments(self) -> tuple[RemoteSegment, ...]:
        """Return the segments that are read, in the order of their offsets."""
        return tuple(self.segments[route.segment_id] for route in self.routes)

    def first_dirty(self, log_end: int | None = None) -> int:
        """Return the first dirty offset, by the vector, at least the log start."""
        end = self.remote_end if log_end is None else log_end
        found = checkpoint(self.publications, self.lineage, max(end, self.remote_end))
        return self.log_start if found is None else max(found, self.log_start)

    @property
    def earliest_as_of(self) -> int:
        """Return the first offset that the state can be shown as of, like every later one.

        As far as rounds and claims say, also of rounds that were cut short; at most the remote end.
        A reader that asks for a state gets a more exact answer.
        """
        return max(self.log_start, min(max(self.cleaned_for, self.first_dirty()), self.remote_end))

    def summaries(self) -> tuple[SegmentSummary, ...]:
        """Return the live segments as decisions see them, and an empty active one after them."""
        found = [
            SegmentSummary(
                base_offset=route.base_offset,
                size_bytes=self.segments[route.segment_id].size_bytes,
                mtime_ms=self.segments[route.segment_id].mtime_ms,
                largest_timestamp_ms=self.segments[route.segment_id].max_timestamp_ms,
                offset_index_bytes=0,
                time_index_bytes=0,
            )
            for route in self.routes
        ]
        return (*found, SegmentSummary(self.remote_end, 0, 0, -1, 0, 0))

    def effective_bytes(self) -> int:
        """Return what the live segments hold, each once."""
        return sum(segment.size_bytes for segment in self.segments.values())

    def covered_to(self) -> int:
        """Return up to where live segments of the lineage cover the log without a hole."""
        at = self.log_start
        for route in self.routes:
            segment = self.segments[route.segment_id]
            if route.base_offset > at or not is_within_lineage(
                segment, self.lineage, self.remote_end
            ):
                break
            at = max(at, route.last_offset + 1)
        return at

    def with_copy(
        self,
        segment: RemoteSegment,
        route: Route,
        lineage: tuple[LeaderEpoch, ...],
        cleaned_for: int = 0,
    ) -> PartitionState:
        """Return the state after a commit of this one that made ``route`` its last.

        Of what was copied records may have gone for others below ``cleaned_for``, exclusive.
        """
        return replace(
            self, version=self.version + 1, lineage=lineage, routes=(*self.routes, route),
            segments={**self.segments, segment.segment_id: segment},
            remote_bytes=self.remote_bytes + segment.size_bytes,
            cleaned_for=max(self.cleaned_for, cleaned_for),
        )  # fmt: skip

    def joined_lineage(self, own: tuple[LeaderEpoch, ...]) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs of a log that has all of object storage's; ``own`` are its own.

        Up to the remote end the store knows them. Of a log that was cleaned before it was
        replicated, the first record of an epoch, or all of them, may be missing.
        """
        known = tuple(entry for entry in self.lineage if entry.start_offset < self.remote_end)
        newest = known[-1].epoch if known else -1
        return (*known, *(entry for entry in own if entry.epoch > newest))


def check_not_forgotten(state: PartitionState) -> None:
    """Raise InvalidError for a partition that was given up: nothing is added to it."""
    if state.forgotten_ms is not None:
        raise InvalidError(
            "the partition was given up by detach; keeplast copy --new begins it again. "
            f"partition={state.partition}",
            code="K334",
        )


class Orphan(Struct, frozen=True):
    """A segment that is read no more and may be deleted from ``not_before_ms`` on.

    ``kept_by`` is the round that has kept it for undo until then, None without one.
    """

    segment: RemoteSegment
    state: SegmentState
    not_before_ms: int
    kept_by: str | None = None


def plan_remote_expiry(
    topic: TopicConfig,
    state: PartitionState,
    now_ms: int,
    *,
    log_start: int | None = None,
    local_only_bytes: int = 0,
    rules: frozenset[ExpiryRule] = frozenset(ExpiryRule),
) -> ExpiryPlan:
    """Return what may go of the live segments of ``state``.

    ``log_start`` is where the log is to start, the present one by default. ``local_only_bytes`` lie
    above the remote end on the leader's disk: ``retention.bytes`` is about the whole log. ``rules``
    narrows what is applied.
    """
    *live, active = state.summaries()
    return plan_expiry(
        topic, (*live, replace(active, size_bytes=local_only_bytes)),
        log_start=state.log_start if log_start is None else log_start,
        log_end=state.remote_end + (1 if local_only_bytes else 0),
        high_watermark=state.remote_end, now_ms=now_ms, rules=rules,
    )  # fmt: skip


def find_directory_log_start(
    topic: TopicConfig, *, noted: int | None, first_base: int, lineage: Sequence[LeaderEpoch]
) -> int:
    """Return below which offset the broker of a directory has nothing to read any more.

    ``noted`` is the line of its log start checkpoint. A broker drops the line with the segments
    below it, and moves the beginning of its leader epochs there. A host of a tiered log, whose
    segments leave its disk alone, does not. With ``delete`` in the policy it is retention that
    moves both, and the store has a retention of its own: there the line alone counts.
    """
    found = 0 if noted is None else noted
    if topic.expires or not lineage:
        return found
    return max(found, min(first_base, lineage[0].start_offset))
