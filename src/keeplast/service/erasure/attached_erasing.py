"""Searches a live cluster's remote tier for keys that must go: the answer of ``erase keys``.

Cluster, decision log and objects are only read: nothing is claimed and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import cast

from keeplast.attach.answers.erasure import (
    AttachedTraces,
    TierLook,
    beside_name,
    search_attached,
    search_listed,
)
from keeplast.attach.answers.explain import RemoteLog, collected_times
from keeplast.attach.held.kept_folds import fold_known
from keeplast.attach.rounds.round import RoundWish
from keeplast.clock import Clock
from keeplast.cluster.facts import ClusterFacts, TopicFacts
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import MetadataReader
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.errors import invariant
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.inspect.erasure_search import WantedKeys
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.traces import LastTrace, find_attached_trace
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import Workspace
from keeplast.service.cluster_answer import AskedCluster, remote_log
from keeplast.service.erasure.erasing import Search, SearchedLog, search_logs, with_foreign
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.tombstone_dates import dated, removal_pace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName


@dataclass(frozen=True, slots=True)
class TieredLog:
    """A partition of a live cluster's remote tier, as it can be searched."""

    layout: RemoteLayout
    remote: RemoteLog
    at: TopicIdPartition
    wish: RoundWish
    clock: Clock

    @property
    def partition(self) -> TopicPartition:
        """Return which one it is."""
        return self.remote.partition

    def search(self, asked: Search) -> SearchedLog:
        """Search what brokers serve, and what they hide; :class:`ListedTier` has what is left."""
        found = search_attached(
            self.layout, self.remote, self.at, self.wish, self.clock, asked.wanted,
            asked.workspace, asked.progressed,
        )  # fmt: skip
        return SearchedLog(
            found.search, found.told, self.remote.cleaned_to, found.beside, found.searched_beside,
            unseen=found.unseen, tiered=found,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ListedTier:
    """Where a partition's objects are listed, and cluster and decision log asked again."""

    cluster: MetadataReader
    facts: ClusterFacts
    log: DecisionLog
    layout: RemoteLayout
    at: TopicIdPartition
    clock: Clock
    workspace: Callable[[], Workspace]
    progressed: Callable[[int], None]

    def complete(self, found: SearchedLog, wanted: WantedKeys) -> SearchedLog:
        """Return what was found with what the list of the objects has besides."""
        invariant(found.tiered is not None, "what was searched is of no remote tier")
        return found.with_beside(
            *search_listed(
                self.layout, self.at, cast(AttachedTraces, found.tiered), self._look, self.clock,
                wanted, self.workspace, self.progressed,
            )
        )  # fmt: skip

    def _look(self) -> TierLook:
        name = AttachedName(self.facts.cluster_id, self.at)
        held = self.log.find(name)
        # Before the metadata topic: what is announced meanwhile is found there.
        own = () if held is None else self.log.own_segments(held, only_left=True)
        if self.facts.metadata_topic is None:
            known = PartitionCache()
        else:
            folded = fold_known(self.cluster, self.facts, self.facts.metadata_topic, self.log)
            known = folded.cache.partitions.get(self.at, PartitionCache())
        return TierLook(known, frozenset(each.segment_id for each in own))


class AttachedDates:
    """By when traces are gone from attached topics: what ``explain`` says of one key."""

    undecided_words = (
        "write a tombstone for the key, to this partition, unless one is among what only brokers "
        "have as yet"
    )

    def __init__(self, logs: Iterable[RemoteLog], grace_ms: int) -> None:
        """Take what will be searched; ``grace_ms`` is how long replaced segments lie."""
        self._times = {
            each.partition: {
                beside_name(name): at_ms
                for name, at_ms in collected_times(each.decisions, grace_ms).items()
            }
            for each in logs
        }

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return None: nobody knows when brokers copy more, which decides what rounds may take."""
        return None

    def erased_words(self, partition: TopicPartition) -> str:
        """Return why nobody knows."""
        return "no date: nobody knows when brokers copy more"

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone from what brokers serve."""
        return find_attached_trace(found, replaced=0, is_partly_unseen=False)

    def beside_trace(
        self, partition: TopicPartition, names: Sequence[str]
    ) -> tuple[int | None, str]:
        """Return None, and how what brokers do not read goes."""
        return None, "in segments that brokers do not read: gone once the last of them is collected"

    def beside_from_ms(self, partition: TopicPartition, names: Sequence[str]) -> int | None:
        """Return from when on segments may be collected, None where nobody replaced one of them."""
        times = [self._times[partition].get(each) for each in names]
        known = [each for each in times if each is not None]
        return max(known) if len(known) == len(times) else None


def find_attached_traces(
    cluster: AskedCluster,
    facts: ClusterFacts,
    known: ClusterCache,
    log: DecisionLog,
    layout: RemoteLayout,
    settings: Settings,
    clock: Clock,
    keys: ErasureKeys,
    *,
    grace_ms: int,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> ErasureAnswer:
    """Search every partition of the topics of ``facts`` that keeplast is to compact.

    ``known`` is the fold of the metadata topic. A partition of which nothing is in the remote tier
    is told as what only brokers have; what fails is among the faults. With ``runner`` its tasks
    read the objects, each those of one partition.
    """
    chosen: list[TieredLog] = []
    left_out: list[tuple[TopicPartition, str]] = []
    groups = BrokerGroups(cluster)
    for topic in facts.topics:
        for number in range(topic.partition_count):
            at = name_of(topic, number)
            why = _why_left_out(topic, known.partitions.get(at), settings)
            if why is None:
                remote, wish = remote_log(
                    cluster, groups, facts, known, log, settings, topic, number, clock.now_ms()
                )  # fmt: skip
                chosen.append(TieredLog(layout, remote, at, wish, clock))
            else:
                left_out.append((TopicPartition(topic.name, number), why))
    planned(sum(each.size_bytes for log_ in chosen for each in log_.remote.copied))
    pace = removal_pace(settings.cleaner_config(), (e.remote.cache for e in chosen), grace_ms)
    chosen = [
        replace(
            each,
            remote=dated(
                each.remote, facts, each.wish.topic, pace, log.clock.now_ms(), has_log=True
            ),
        )
        for each in chosen
    ]
    # Made where something is left to be searched.
    workspace = cache(partial(Workspace, memory_bytes))
    answer = search_logs(
        chosen, AttachedDates([each.remote for each in chosen], grace_ms), clock.now_ms(), keys,
        memory_bytes=memory_bytes, progressed=progressed, left_out=tuple(left_out), runner=runner,
        completing={
            each.partition: ListedTier(
                cluster, facts, log, layout, each.at, clock, workspace, progressed
            ).complete
            for each in chosen
        },
    )  # fmt: skip
    return with_foreign(answer, layout.foreign, keys, planned=planned, progressed=progressed)


def _why_left_out(
    topic: TopicFacts, cache: PartitionCache | None, settings: Settings
) -> str | None:
    """Return why a partition is not searched, None where it is."""
    if not settings.topic_config(topic.name).is_compacted:
        return "keeplast's settings do not compact it"
    if topic.is_tiered or (cache is not None and cache.segment_count):
        return None
    return "the topic is not tiered: brokers alone have it"
