"""Searches a live cluster's remote tier for keys that must go, for ``erase keys`` and certificates.

Cluster, decision log and objects are only read: nothing is claimed and nothing is changed.

Brokers keep what they serve on their own disks too, and may upload it again. Nothing of that is
searched, and a certificate says so. The decision log's epoch of a partition and the end of the
metadata topic only grow: lower ones are of what came back from a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.answers.erasure import (
    AttachedTraces,
    TierLook,
    search_attached,
    search_listed,
)
from keeplast.attach.answers.explain import RemoteLog, collected_times
from keeplast.attach.held.metadata_view import fold_known
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.rounds.round import RoundWish
from keeplast.clock import Clock
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, MetadataReader, TopicFacts
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, name_of
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.config.precedence import Settings
from keeplast.errors import invariant
from keeplast.format.identifier import encode_id, metadata_partition
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.inspect.erasure_search import PartitionSearch
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.remains import Remains, WantedKeys
from keeplast.inspect.traces import LastTrace, find_attached_trace
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import Workspace
from keeplast.service.attached_outlook import dated, removal_pace
from keeplast.service.cluster_answer import AskedCluster, remote_log
from keeplast.service.erasure.certificate import (
    ATTACHED,
    NOT_SEARCHED,
    NOT_SEARCHED_OF_UNKNOWN,
    SEARCHED_OF_UNKNOWN,
    CertifiedPlace,
    SearchedPlace,
    receipts_standing,
)
from keeplast.service.erasure.certificate_check import (
    PartitionStanding,
    age,
    compare_each,
    judge,
    made_again,
    missing,
    wanted_keys,
)
from keeplast.service.erasure.erasing import Search, SearchedLog, search_logs, with_foreign
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.search_tasks import SearchRunner
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName


class TieredLog(Struct, frozen=True):
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
            found.search, found.explained, self.remote.cleaned_to, found.remains,
            unseen=found.unseen, tiered=found,
        )  # fmt: skip


class ListedTier(Struct, frozen=True):
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
        """Return what was found, and what only the list of the objects has."""
        invariant(found.tiered is not None, "what was searched is of no remote tier")
        listed = search_listed(
            self.layout, self.at, cast(AttachedTraces, found.tiered), self._look, self.clock,
            wanted, self.workspace, self.progressed,
        )  # fmt: skip
        return replace(found, remains=(*found.remains, *listed))

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


HIDDEN_WORDS = "in segments that brokers do not read: gone once the last of them is collected"


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
                encode_id(name.segment_id): at_ms
                for name, at_ms in collected_times(each.decisions, grace_ms).items()
            }
            for each in logs
        }

    def erased_words(self, partition: TopicPartition) -> str:
        """Return why there is no date."""
        return "no date: when brokers copy more is not known"

    def last_trace(self, found: KeyExplanation) -> LastTrace:
        """Return by when the last record of the key is gone from what brokers serve."""
        return find_attached_trace(found)

    def remains_trace(
        self, partition: TopicPartition, remains: Sequence[Remains]
    ) -> tuple[int | None, None, str]:
        """Return from when on segments may be collected, None where one was not replaced.

        The date of their end is not known, but how they go.
        """
        times = [self._times[partition].get(each.name) for each in remains]
        known = [each for each in times if each is not None]
        return max(known) if len(known) == len(times) else None, None, HIDDEN_WORDS


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

    ``known`` is the fold of the metadata topic. A partition without a remote segment is reported as
    what only brokers have; what fails is among the faults. With ``runner`` its tasks read the
    objects, each those of one partition.
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


SEARCHED_IN_TIER = (
    "every batch of every segment of the remote tier that brokers serve, decompressed, up to "
    "searched_to",
    "segments that were copied or made, whose place others have taken, and that are not collected",
    "the list of the partitions' objects, at a moment behind the search: none was there that was "
    "not searched and begins below searched_to",
)
NOT_SEARCHED_OF_ATTACHED = (
    "brokers' local logs, which have more than the remote tier serves, and what brokers upload of "
    "them later, also below searched_to",
    "brokers' and plugins' caches of segments and indexes",
    "keeplast's own filters beside segments, which have keyed hashes of keys in some of their bits",
    "earlier topics of the same names, with other ids",
    "uploads that were given up, as far as the store does not list them",
    "the decision log's database, its logs and its backups",
)


def attached_place(facts: ClusterFacts, folded: FoldedMetadata, log: DecisionLog) -> CertifiedPlace:
    """Return what is said of topics, before they are searched: what is found then is no older."""
    found = [(topic, number) for topic in facts.topics for number in range(topic.partition_count)]
    return CertifiedPlace(
        {
            "kind": ATTACHED, "cluster_id": facts.cluster_id, "directory_id": None,
            "node_id": None, "decision_log": log.store_id(),
        },
        (*SEARCHED_IN_TIER, SEARCHED_OF_UNKNOWN),
        (*NOT_SEARCHED, *NOT_SEARCHED_OF_ATTACHED, NOT_SEARCHED_OF_UNKNOWN),
        {TopicPartition(t.name, number): encode_id(t.topic_id) for t, number in found},
        {TopicPartition(t.name, n): _epoch(facts, log, t, n) for t, n in found},
        {TopicPartition(t.name, n): _metadata_end(facts, folded, t, n) for t, n in found},
    )  # fmt: skip


def _epoch(facts: ClusterFacts, log: DecisionLog, topic: TopicFacts, number: int) -> int:
    """Return at which epoch a partition was claimed last, 0 where it never was."""
    held = log.find(AttachedName(facts.cluster_id, name_of(topic, number)))
    return 0 if held is None else held.epoch


def _metadata_end(
    facts: ClusterFacts, folded: FoldedMetadata, topic: TopicFacts, number: int
) -> int:
    if facts.metadata_topic is None:
        return 0
    at = metadata_partition(topic.topic_id, number, facts.metadata_topic.partition_count)
    return folded.ranges[at].end


class LiveTier(Struct, frozen=True):
    """A live cluster's remote tier as it stands; ``folded`` is its metadata topic, to the end."""

    cluster: AskedCluster
    facts: ClusterFacts
    folded: FoldedMetadata
    log: DecisionLog
    layout: RemoteLayout
    settings: Settings


def search_tier(
    tier: LiveTier,
    clock: Clock,
    keys: ErasureKeys,
    *,
    grace_ms: int,
    receipt: Path | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> SearchedPlace:
    """Search the remote tier of the topics that were looked at, for what a certificate rests on.

    ``receipt`` is held against the heads that the decision log keeps. RefusedError where it is
    broken.
    """
    standing = receipts_standing(receipt, tier.log.facts)
    place = attached_place(tier.facts, tier.folded, tier.log)
    answer = find_attached_traces(
        tier.cluster, tier.facts, tier.folded.cache, tier.log, tier.layout, tier.settings, clock,
        keys, grace_ms=grace_ms, planned=planned, progressed=progressed, runner=runner,
    )  # fmt: skip
    return SearchedPlace(answer, place, standing)


def compare_attached(
    statement: Mapping[str, Any],
    tier: LiveTier,
    hasher: KeyHasher | None,
    clock: Clock,
    *,
    behind: str | None = None,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    progressed: Callable[[int], None] = lambda _: None,
) -> tuple[PartitionStanding, ...]:
    """Compare what a remote tier has now with a certificate; reads only.

    ``behind`` is why receipts do not reach the certificate's. Without ``hasher`` no key is looked
    for, and what has changed is reported as such.
    """
    wanted = wanted_keys(statement, hasher)
    asked = Search(wanted, clock.now_ms(), Workspace(memory_bytes), progressed)
    strange = _strangeness(statement, tier.facts)
    topics = {each.name: each for each in tier.facts.topics}

    def compare(entry: Mapping[str, Any], partition: TopicPartition) -> PartitionStanding:
        topic = topics.get(partition.topic)
        if topic is None or partition.partition >= topic.partition_count:
            return missing(partition)
        if entry["topic_id"] != encode_id(topic.topic_id):
            return made_again(partition, encode_id(topic.topic_id))
        return _compare(entry, tier, topic, partition, asked, clock, behind)

    return compare_each(statement["partitions"], strange, compare)


def _strangeness(statement: Mapping[str, Any], facts: ClusterFacts) -> str | None:
    """Return why a cluster is not the one that a certificate is about, None when it may be."""
    place = statement["place"]
    if place["kind"] != ATTACHED:
        return f"the certificate is about a {place['kind']}"
    if place["cluster_id"] != facts.cluster_id:
        return f"another cluster: {facts.cluster_id}, the certificate's is {place['cluster_id']}"
    return None


def _compare(
    entry: Mapping[str, Any],
    tier: LiveTier,
    topic: TopicFacts,
    partition: TopicPartition,
    asked: Search,
    clock: Clock,
    behind: str | None,
) -> PartitionStanding:
    number = partition.partition
    older = _older(
        entry, _epoch(tier.facts, tier.log, topic, number),
        _metadata_end(tier.facts, tier.folded, topic, number),
    )  # fmt: skip
    remote, wish = remote_log(
        tier.cluster, BrokerGroups(tier.cluster), tier.facts, tier.folded.cache, tier.log,
        tier.settings, topic, number, clock.now_ms(),
    )  # fmt: skip
    at = name_of(topic, number)
    listed = ListedTier(
        tier.cluster, tier.facts, tier.log, tier.layout, at, clock, lambda: asked.workspace,
        asked.progressed,
    )  # fmt: skip
    found = TieredLog(tier.layout, remote, at, wish, clock).search(asked)
    found = listed.complete(found, asked.wanted)
    search = found.search
    if search is None:
        search = PartitionSearch(
            partition, attached_path(at), None,
            PartitionFiles(attached_path(at), (), (), (), ()), Tail(remote.ends.end, 0), {}, (), 0,
            (), (),
        )  # fmt: skip
    elif older is None:
        older = age(search, entry)
    older = older or behind
    sums = {(each.name, each.size_bytes, each.sha256) for each in search.sums}
    wanted = {(e["name"], e["bytes"], e["sha256"]) for e in entry["segments_after"]}
    return judge(
        entry, search, found.remains, older, lambda: wanted <= sums,
        looked_for_keys=asked.wanted.keys is None,
    )  # fmt: skip


def _older(entry: Mapping[str, Any], epoch: int, metadata_end: int) -> str | None:
    """Return by what only grows that a cluster, or a decision log, came back from a backup."""
    if epoch < int(entry["metadata_version"]):
        return (
            f"the decision log has epoch {epoch}, and had {entry['metadata_version']}: it came "
            "back from a backup, or is another one"
        )
    if metadata_end < int(entry["metadata_offset"]):
        return f"the metadata topic ends at {metadata_end}, and ended at {entry['metadata_offset']}"
    return None
