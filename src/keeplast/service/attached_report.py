"""How attached topics stand at a look, for terminal and console alike.

It is made from brokers' announcements, offsets and the decision log where there is one. Objects are
read only for an outlook, and none without a layout. The rule that a reader must not break:
**terminal and pages show the same**, so that nothing is added to a document anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keeplast.attach.answers.shown_logs import earliest_as_of
from keeplast.attach.upkeep.replaced_segments import GRACE_MS_DEFAULT
from keeplast.clock import Clock
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ASSUMED_OF_BROKERS, ClusterFacts, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache, name_of
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.config.precedence import Settings
from keeplast.errors import error_text
from keeplast.model.hold import in_force
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.service.attached_outlook import PartitionOutlook, find_outlooks, find_tombstones
from keeplast.service.attached_savings import Saving, count_savings
from keeplast.service.attached_status import (
    AttachedStatus,
    attached_status,
    holes_words,
    waits_of,
)
from keeplast.service.status import PartitionStatus, PlaceStatus, State, most_urgent_first
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Decision

if TYPE_CHECKING:
    from keeplast.cluster.client import ClusterClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus(PlaceStatus):
    """The status of tiered topics of a live cluster; ``metadata_ends`` are how far the metadata
    topic was read, exclusive, by its partitions.

    ``has_log`` says that a decision log was asked: without it the clean offsets are unknown.
    """

    address: str
    cluster_id: str
    metadata_ends: Mapping[int, int]
    has_log: bool

    def own_head(self) -> dict[str, Any]:
        """Return the cluster, and what was read of its metadata topic."""
        return {
            "cluster_id": self.cluster_id,
            "metadata_offsets": {str(number): end for number, end in self.metadata_ends.items()},
            "assumed": ASSUMED_OF_BROKERS,
        }

    def notes(self) -> list[str]:
        """Return what the rest is taken to be, and what is missing to show more."""
        lines = [f"assumed: {ASSUMED_OF_BROKERS}"]
        if not self.has_log:
            lines.append("all counts as dirty: the decision log, --decisions, says what is clean")
        return lines if self.partitions else []

    def find(self, partition: TopicPartition) -> PartitionStatus | None:
        """Return how a partition stands, None for one that is not here."""
        return next((each for each in self.partitions if each.partition == partition), None)


def cluster_status(
    client: ClusterClient, facts: ClusterFacts, folded: FoldedMetadata, log: DecisionLog | None,
    layout: RemoteLayout | None, settings: Settings, clock: Clock, address: str, *,
    numbers: Collection[int] = (), grace_ms: int = GRACE_MS_DEFAULT,
    open_runner: Callable[[], AbstractContextManager[Runner]] | None = None,
    progressed: Callable[[int], None] = lambda count: None,
) -> ClusterStatus:  # fmt: skip
    """Return how the topics of ``facts`` stand, of their partitions ``numbers`` if any.

    Without a ``log`` all counts as dirty, without a ``layout`` no object is read. A runner reads
    them to count what rounds would save.
    """
    caches = folded.cache.partitions
    # Ends last: what was announced by then lies below the log's end.
    ranges = {topic.name: client.read_ranges(topic) for topic in facts.topics}
    groups = BrokerGroups(client)
    known = () if log is None else log.partitions(facts.cluster_id)
    attached = {
        each.name.partition: replace(each, holds=in_force(each.holds, clock.now_ms()))
        for each in known
    }
    waits = waits_of(groups, facts, settings, clock)
    chosen = [
        (topic, number)
        for topic in facts.topics
        for number in range(len(ranges[topic.name]))
        if not numbers or number in numbers
    ]
    savings: dict[TopicPartition, Saving] = {}
    if layout is not None and open_runner is not None:
        counted = ((topic, number, ranges[topic.name][number]) for topic, number in chosen)
        with open_runner() as runner:
            savings = count_savings(
                facts, counted, caches, log, layout, settings, groups, clock, runner, progressed
            )
    found: list[tuple[TopicFacts, AttachedStatus, Sequence[Decision]]] = []
    earliest: dict[TopicPartition, int] = {}
    for topic, number in chosen:
        name, partition = name_of(topic, number), TopicPartition(topic.name, number)
        own, ends = attached.get(name), ranges[topic.name][number]
        decisions = () if log is None or own is None else log.decisions(own)
        status = attached_status(
            topic, number, ends, caches.get(name), own, decisions, waits.get(partition)
        )
        found.append((topic, status, decisions))
        if log is not None:
            cache = caches.get(name, PartitionCache())
            earliest[partition] = earliest_as_of(cache, log, own, log_start=ends.start)
    now_ms = clock.now_ms()
    outlooks = find_outlooks(
        facts, folded.cache, log, layout, settings, grace_ms, now_ms, address, found
    )
    tombstones = {} if log is None else {
        each.partition: each
        for each in find_tombstones(facts, ranges, caches, log, settings, grace_ms, chosen)
    }  # fmt: skip
    return ClusterStatus(
        now_ms=now_ms,
        partitions=most_urgent_first(
            _standing(
                status,
                replace(
                    outlook, earliest_as_of=earliest.get(outlook.partition),
                    tombstones=tombstones.get(outlook.partition),
                    saving=savings.get(outlook.partition),
                ),
            )
            for (_, status, _), outlook in zip(found, outlooks, strict=True)
        ),
        address=address,
        cluster_id=facts.cluster_id,
        metadata_ends={each: held.end for each, held in sorted(folded.ranges.items())},
        has_log=log is not None,
    )  # fmt: skip


def _standing(status: AttachedStatus, outlook: PartitionOutlook) -> PartitionStatus:
    """Return how one partition stands; what nothing serves comes before all else."""
    saving, error = outlook.saving, outlook.error
    if error is None and saving is not None:
        error = saving.error
    reason = outlook.why if outlook.error is None else error_text(outlook.error)
    return PartitionStatus(
        status.partition, _state(status, outlook),
        next(iter(holes_words(status)), reason), error=error, attached=status, outlook=outlook,
        looked=outlook.figures, code=outlook.code,
    )  # fmt: skip


def _state(status: AttachedStatus, outlook: PartitionOutlook) -> State:
    if status.remote.holes:
        return State.HOLES
    if outlook.error is not None:
        return State.UNREADABLE
    if not status.is_attached:
        return State.NOT_ATTACHED
    if status.attached is not None and status.attached.paused_ms is not None:
        return State.PAUSED
    figures = outlook.figures
    if outlook.is_due is None:
        return State.DIRTY if status.dirty_bytes else State.CLEAN
    if outlook.is_due:
        is_late = figures is not None and figures.compaction_delay_ms
        return State.OVERDUE if is_late else State.ELIGIBLE
    is_clean = figures is not None and not figures.cleanable.cleanable_bytes
    return State.CLEAN if is_clean and not status.dirty_bytes else State.NOT_DUE
