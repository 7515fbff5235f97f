"""Rounds of a live cluster's chosen partitions: planned, or done one after the other.

The order that a reader must not break: claim, repair, round, then what follows while the partition
is still held. A fault of one partition is in its report and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rounds.round import (
    RoundCosts,
    RoundWish,
    clean_attached,
    clean_to,
    margin_of,
    plan_attached,
)
from keeplast.attach.upkeep.repair import repair
from keeplast.clock import SystemClock
from keeplast.cluster.check import Severity, check_cluster, check_topic
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.facts import ClusterFacts, TopicFacts
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.errors import CompactionError, RefusedError
from keeplast.model.keyless import Keyless
from keeplast.model.partition import TopicPartition
from keeplast.model.shape import Shape
from keeplast.rewrite.runner import Runner
from keeplast.run.place import RunnerFor
from keeplast.run.receipt import Receipt
from keeplast.service.cluster_answer import choose_attached
from keeplast.survey.report import PartitionReport, RoundReport, describe_error
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName

Followed = Callable[[Publisher, Receipt | None], None]
"""What is done to a partition after its round, while it is held; ``receipt`` takes lines."""
Counting = tuple[RunnerFor, Callable[[int], None]]


def nothing_follows(publisher: Publisher, receipt: Receipt | None) -> None:
    """Do nothing after a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedTerms:
    """How rounds of live topics are done: memory in bytes, and what is asked of each."""

    force: bool = False
    keyless: Keyless = Keyless.FAIL
    memory_bytes: int
    task_memory_bytes: int
    shape: Shape | None = None
    keep_sources_ms: int = 0
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class AttachedRounds:
    """The rounds of one call, and the cluster as it was read when the call began."""

    client: ClusterClient
    facts: ClusterFacts
    settings: Settings
    layout: RemoteLayout
    log: DecisionLog
    address: str
    asked: AttachedTerms

    def chosen(self, numbers: Collection[int]) -> list[tuple[TopicFacts, int]]:
        """Return the chosen partitions; InvalidError when there is none."""
        return choose_attached(self.facts, numbers)

    def clean(
        self,
        topic: TopicFacts,
        number: int,
        runner: Runner,
        *,
        progressed: Callable[[int], None],
        receipt: Receipt | None,
        followed: Followed = nothing_follows,
    ) -> RoundReport:
        """Do a round of a partition; every failure but a defect of keeplast is in its report."""
        try:
            progressed(0)
            publisher = claim(
                self.client, self.log, self.layout, name_of(topic, number), self.facts.cluster_id,
                self._terms(topic), takes_over=self.asked.takes_over,
            )  # fmt: skip
            try:
                repair(publisher)
                report = clean_attached(
                    publisher, self._wish(topic), lambda _: nullcontext(runner), SystemClock(),
                    progressed=progressed, receipt=receipt,
                )  # fmt: skip
                followed(publisher, receipt)
                return report
            finally:
                publisher.close()
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error)

    def clean_each(
        self,
        chosen: Sequence[tuple[TopicFacts, int]],
        runner: Runner,
        *,
        progressed: Callable[[int], None],
        finished: Callable[[TopicPartition, RoundReport], None],
        receipt: Receipt | None,
        followed: Followed = nothing_follows,
    ) -> tuple[PartitionReport, ...]:
        """Do a round of each partition, one after the other."""
        reports: list[PartitionReport] = []
        for topic, number in chosen:
            report = self.clean(
                topic, number, runner, progressed=progressed, receipt=receipt, followed=followed
            )
            finished(TopicPartition(topic.name, number), report)
            reports.append(PartitionReport(topic.name, number, (report,)))
        return tuple(reports)

    def plan(
        self,
        topic: TopicFacts,
        number: int,
        cache: PartitionCache | None,
        counting: Counting | None = None,
    ) -> tuple[RoundReport, RoundCosts | None]:
        """Return what a round would do and what it would cost; with ``counting`` by reading."""
        try:
            terms = self._terms(topic)
            found = list(check_cluster(self.facts, self.address))
            found += check_topic(topic, terms.policy, self.address)
            for each in found:
                if each.severity is Severity.REFUSES:
                    raise RefusedError(f"{each.words}; see keeplast place check. rule={each.rule}")
            name = name_of(topic, number)
            held = self.log.find(AttachedName(self.facts.cluster_id, name))
            start = self.client.read_ranges(topic)[number].start
            known = PartitionCache() if cache is None else cache
            return plan_attached(
                self.layout, name, known, self._wish(topic), SystemClock(), log_start=start,
                cleaned_to=start if held is None else clean_to(self.log, held, known, start),
                holds=() if held is None else held.holds,
                counting=None if counting is None else counting[0],
                progressed=(lambda count: None) if counting is None else counting[1],
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error), None

    def _terms(self, topic: TopicFacts) -> AttachTerms:
        policy = self.settings.topic_config(topic.name).cleanup_policy
        return AttachTerms(policy, self.address, self.asked.keep_sources_ms)

    def _wish(self, topic: TopicFacts) -> RoundWish:
        config, asked = self.settings.topic_config(topic.name), self.asked
        return RoundWish(
            topic=config, margin_bytes=margin_of(config, topic),
            cleaner=self.settings.cleaner_config(), keyless=asked.keyless, force=asked.force,
            brokers=BrokerGroups(self.client), memory_bytes=asked.memory_bytes,
            task_memory_bytes=asked.task_memory_bytes, shape=asked.shape,
        )  # fmt: skip
