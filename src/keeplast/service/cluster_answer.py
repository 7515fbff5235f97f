"""What is known of one key in a live cluster's remote tier: the answer of ``explain``.

Cluster, decision log and objects are only read: nothing is claimed and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from keeplast.attach.answers.explain import RemoteLog, explain_attached
from keeplast.attach.rounds.round import RoundWish, clean_to, margin_of
from keeplast.clock import Clock, time_text
from keeplast.cluster.group_offsets import BrokerGroups, GroupCluster
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, MetadataReader, TopicFacts
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, name_of
from keeplast.config.precedence import Settings
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.traces import find_attached_trace
from keeplast.model.hold import ReportedGroups
from keeplast.model.partition import TopicPartition
from keeplast.model.text import duration_text
from keeplast.service.attached_outlook import dated, removal_pace
from keeplast.service.explained import AskedLog, ExplainedPartition, KeyAnswer, found_parts
from keeplast.service.search_tasks import SearchRunner, ask_each
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName

ON_BROKERS = (
    "what brokers keep on their disks and in their caches of all this, and versions of objects"
)


class AskedCluster(MetadataReader, GroupCluster, Protocol):
    """A live cluster that shows its remote tier, and consumer groups."""


def choose_attached(facts: ClusterFacts, numbers: Collection[int]) -> list[tuple[TopicFacts, int]]:
    """Return the partitions with these numbers, all without any; InvalidError for none at all."""
    found = [
        (topic, number)
        for topic in facts.topics
        for number in range(topic.partition_count)
        if not numbers or number in numbers
    ]
    if not found:
        raise InvalidError(
            "no such partition of a tiered topic; correct --topic and --partition. "
            f"partitions={list(numbers)} topics={[each.name for each in facts.topics]}",
            code="K115",
        )
    return found


def answer_from_cluster(
    cluster: AskedCluster,
    facts: ClusterFacts,
    known: ClusterCache,
    log: DecisionLog | None,
    layout: RemoteLayout,
    settings: Settings,
    chosen: Sequence[tuple[TopicFacts, int]],
    clock: Clock,
    asked: AskedKey,
    *,
    grace_ms: int,
    receipts: Sequence[RoundReceipt] = (),
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    runner: SearchRunner | None = None,
) -> KeyAnswer:
    """Explain a key in each of ``chosen`` that keeplast is to compact and that has segments.

    ``known`` is the fold of the metadata topic. Without a decision ``log`` all counts as dirty, the
    end of replaced segments is not known, and no filter is asked. ``planned`` and ``progressed``
    hear of the bytes that are read; what they raise ends the search. A partition that cannot be
    read is among the faults; where an offset was asked about, its error is raised. With ``runner``
    its tasks read the objects, each those of one partition.
    """
    asked.require_one(len(chosen))
    groups = BrokerGroups(cluster)
    faults: list[tuple[TopicPartition, Exception]] = []
    left_out: list[tuple[TopicPartition, str]] = []
    found: list[tuple[RemoteLog, RoundWish]] = []
    for topic, number in chosen:
        partition, name = TopicPartition(topic.name, number), name_of(topic, number)
        cache = known.partitions.get(name, PartitionCache())
        config = settings.topic_config(topic.name)
        if not config.is_compacted:
            left_out.append((partition, "keeplast's settings do not compact it"))
        elif not cache.served():
            left_out.append(
                (partition, "nothing of it is in the remote tier; brokers alone have it")
            )
        else:
            found.append(
                remote_log(
                    cluster, groups, facts, known, log, settings, topic, number, clock.now_ms()
                )
            )
    pace = removal_pace(
        settings.cleaner_config(), (remote.cache for remote, _ in found), grace_ms
    )  # fmt: skip
    now_ms = (clock if log is None else log.clock).now_ms()
    found = [
        (dated(remote, facts, wish.topic, pace, now_ms, has_log=log is not None), wish)
        for remote, wish in found
    ]
    # Nothing is written: without a key there is no filter.
    filter_key = None if log is None else log.find_filter_key()
    if runner is not None:
        planned(sum(each.size_bytes for remote, _ in found for each in remote.copied))
    logs = [
        AskedLog(
            remote.partition,
            partial(
                explain_attached, layout, remote, wish, clock, asked, grace_ms=grace_ms,
                filter_key=filter_key,
            ),
        )
        for remote, wish in found
    ]  # fmt: skip
    parts = []
    remotes = {remote.partition: remote for remote, _ in found}
    answers = ask_each(logs, AskedLog.ask, memory_bytes, planned, progressed, runner)
    for answer in found_parts(answers, asked, faults):
        partition = answer.found.partition
        trace = find_attached_trace(
            answer.found, is_in_replaced=any(each.records for each in answer.remains),
            is_partly_unseen=bool(answer.unseen),
        )  # fmt: skip
        parts.append(
            ExplainedPartition(
                answer.found, trace,
                _erased_words(remotes[partition], grace_ms, has_log=log is not None),
                [each for each in receipts if each.partition == partition], answer.remains,
                (*answer.unseen, ON_BROKERS), answer.left_out,
            )
        )  # fmt: skip
    return KeyAnswer(asked.key, tuple(parts), tuple(faults), tuple(left_out))


def remote_log(
    cluster: MetadataReader,
    groups: BrokerGroups,
    facts: ClusterFacts,
    known: ClusterCache,
    log: DecisionLog | None,
    settings: Settings,
    topic: TopicFacts,
    number: int,
    now_ms: int,
) -> tuple[RemoteLog, RoundWish]:
    """Return a partition as cluster and decision log have it, and what rounds do with it.

    Both are values: a task can be sent them.
    """
    name = name_of(topic, number)
    cache = known.partitions.get(name, PartitionCache())
    config = settings.topic_config(topic.name)
    held = None if log is None else log.find(AttachedName(facts.cluster_id, name))
    ends = cluster.read_ranges(topic)[number]
    remote = RemoteLog(
        partition=TopicPartition(topic.name, number), ends=ends, cache=cache,
        cleaned_to=ends.start
        if log is None or held is None
        else clean_to(log, held, cache, ends.start),
        holds=() if held is None else held.holds,
        decisions=() if log is None or held is None else log.decisions(held),
    )  # fmt: skip
    wanted = config.tombstones_wait_for_groups
    reported = groups.waited(remote.partition, wanted, topic.topic_id, now_ms) if wanted else ()
    wish = RoundWish(
        topic=config, margin_bytes=margin_of(config, topic), cleaner=settings.cleaner_config(),
        brokers=ReportedGroups(reported),
    )  # fmt: skip
    return remote, wish


def _erased_words(remote: RemoteLog, grace_ms: int, *, has_log: bool) -> str:
    """Say what stands between a round and the end of what it replaces."""
    words = (
        "no date: when brokers copy more is not known; what a round replaces stays "
        f"{duration_text(grace_ms)} longer at least, until it is collected"
    )
    if not has_log:
        return f"{words}; no decision log was named, which says how far it is clean, and what waits"
    kept = [
        each.published_ms + each.keep_ms
        for each in remote.decisions
        if each.published_ms is not None and each.keep_ms > grace_ms
    ]
    return f"{words}; sources are kept until {time_text(max(kept))}" if kept else words
