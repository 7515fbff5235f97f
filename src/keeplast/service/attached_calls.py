"""What is done by hand with a live cluster's topics: rounds, their proof, and holds.

The order that a reader must not break: claim, repair, round, then what follows while the partition
is still held. A fault of one partition is in its report and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from msgspec import Struct

from keeplast.attach.answers.shown_logs import AttachedHolds, HeldCluster
from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.proof.verification import AttachedVerifier, AttachedVerifySettings
from keeplast.attach.rounds.round import (
    RoundCosts,
    RoundWish,
    clean_attached,
    clean_to,
    margin_of,
    plan_attached,
)
from keeplast.attach.upkeep.replaced_segments import repaired
from keeplast.clock import Clock, SystemClock
from keeplast.cluster.check import Severity, check_cluster, check_topic
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, TopicFacts
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, name_of
from keeplast.config.precedence import Settings
from keeplast.errors import CompactionError, RefusedError
from keeplast.inspect.receipt_proof import with_check
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Keyless, Shape
from keeplast.rewrite.task import Runner
from keeplast.run.holds import choose_partitions
from keeplast.run.receipt import Receipt
from keeplast.service.attached_outlook import PartitionTombstones, find_tombstones
from keeplast.service.cluster_answer import choose_attached
from keeplast.service.verifying import ChosenPartition, VerifyAnswer, VerifyTerms, judge_each
from keeplast.survey.kept_heads import read_kept_chain
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName

Followed = Callable[[Publisher, Receipt | None], None]
"""What is done to a partition after its round, while it is held; ``receipt`` takes lines."""


def nothing_follows(publisher: Publisher, receipt: Receipt | None) -> None:
    """Do nothing after a round."""


class AttachedTerms(Struct, frozen=True, kw_only=True):
    """How rounds of live topics are done: memory in bytes, and what is asked of each."""

    force: bool = False
    keyless: Keyless = Keyless.FAIL
    memory_bytes: int
    task_memory_bytes: int
    shape: Shape | None = None
    keep_sources_ms: int = 0
    takes_over: bool = False


class AttachedRounds(Struct, frozen=True):
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

    def _clean(
        self,
        topic: TopicFacts,
        number: int,
        runner: Runner,
        receipt: Receipt | None,
        progressed: Callable[[int], None],
        followed: Followed,
    ) -> RoundReport:
        """Do a round of a partition; every failure but a defect of keeplast is in its report."""
        try:
            progressed(0)
            publisher = claim(
                self.client, self.log, self.layout, name_of(topic, number), self.facts.cluster_id,
                self._terms(topic), takes_over=self.asked.takes_over,
            )  # fmt: skip
            kept: list[Exception] = []
            with repaired(publisher, kept.append):
                report = clean_attached(
                    publisher, self._wish(topic), lambda _: nullcontext(runner), SystemClock(),
                    progressed=progressed, receipt=receipt,
                )  # fmt: skip
                followed(publisher, receipt)
            for error in kept:
                raise error
            return report
        except (CompactionError, OSError) as error:
            return RoundReport(error=describe_error(error), failure=error)

    def clean_each(
        self,
        chosen: Sequence[tuple[TopicFacts, int]],
        open_runner: Callable[[], AbstractContextManager[Runner]],
        receipt: Receipt | None,
        progressed: Callable[[int], None],
        finished: Callable[[TopicPartition, RoundReport], None],
        followed: Followed = nothing_follows,
    ) -> CleanReport:
        """Do a round of each partition, one after the other."""
        reports: list[PartitionReport] = []
        with open_runner() as runner:
            for topic, number in chosen:
                report = self._clean(topic, number, runner, receipt, progressed, followed)
                finished(TopicPartition(topic.name, number), report)
                reports.append(PartitionReport(topic.name, number, (report,)))
        return CleanReport(tuple(reports))

    def plan_each(
        self,
        chosen: Sequence[tuple[TopicFacts, int]],
        cache: ClusterCache,
        runner: Runner | None,
        progressed: Callable[[int], None],
    ) -> list[tuple[TopicPartition, RoundReport, RoundCosts | None]]:
        """Return what each round would do and what it would cost; with a ``runner`` by reading."""
        return [
            (
                TopicPartition(topic.name, number),
                *self._plan(
                    topic, number, cache.partitions.get(name_of(topic, number), PartitionCache()),
                    runner, progressed,
                ),
            )
            for topic, number in chosen
        ]  # fmt: skip

    def find_tombstones(
        self, chosen: Sequence[tuple[TopicFacts, int]], cache: ClusterCache, grace_ms: int
    ) -> list[PartitionTombstones]:
        """Return what the chosen partitions have of tombstones, and when they may go."""
        topics = {each.name: each for each, _ in chosen}
        ranges = {name: self.client.read_ranges(each) for name, each in topics.items()}
        return find_tombstones(
            self.facts, ranges, cache.partitions, self.log, self.settings, grace_ms, chosen
        )

    def _plan(
        self,
        topic: TopicFacts,
        number: int,
        known: PartitionCache,
        runner: Runner | None,
        progressed: Callable[[int], None],
    ) -> tuple[RoundReport, RoundCosts | None]:
        try:
            terms = self._terms(topic)
            found = list(check_cluster(self.facts, self.address))
            found += check_topic(topic, terms.policy, self.address)
            for each in found:
                if each.severity is Severity.REFUSES:
                    raise RefusedError(
                        f"{each.words}; see keeplast place check. rule={each.rule}", code="K416"
                    )
            name = name_of(topic, number)
            held = self.log.find(AttachedName(self.facts.cluster_id, name))
            start = self.client.read_ranges(topic)[number].start
            return plan_attached(
                self.layout, name, known, self._wish(topic), SystemClock(), log_start=start,
                cleaned_to=start if held is None else clean_to(self.log, held, known, start),
                holds=() if held is None else held.holds,
                counting=None if runner is None else lambda _: nullcontext(runner),
                progressed=progressed,
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


def verify_topics(
    client: ClusterClient, facts: ClusterFacts, settings: Settings, layout: RemoteLayout,
    log: DecisionLog, judged: Sequence[RoundReceipt], numbers: Collection[int],
    terms: VerifyTerms,
) -> VerifyAnswer:  # fmt: skip
    """Judge what is served of the chosen partitions, by the ``judged`` lines of a receipt."""
    files, chain = LocalFiles(), None
    if terms.receipt is not None:
        chain = read_kept_chain(terms.receipt, files, log.facts)
    verifier = AttachedVerifier(client, log, layout, terms.progressed, terms.planned)

    def judge(topic: TopicFacts, number: int, at: TopicPartition) -> VerificationReport:
        wanted = AttachedVerifySettings(
            topic=settings.topic_config(topic.name), memory_bytes=terms.memory_bytes,
            receipts=tuple(each for each in judged if each.partition == at),
        )  # fmt: skip
        report = verifier.verify(topic, number, wanted)
        return report if chain is None else with_check(report, chain)

    chosen = (
        ChosenPartition(str(at), at, partial(judge, topic, number, at))
        for topic, number in choose_attached(facts, numbers)
        for at in (TopicPartition(topic.name, number),)
    )
    return judge_each(chosen, terms, files, chain, settings.warnings)


def hold_topics(
    cluster: HeldCluster,
    facts: ClusterFacts,
    log: DecisionLog,
    layout: RemoteLayout,
    settings: Settings,
    clock: Clock,
    topics: Sequence[str],
    partitions: Sequence[int],
    name: str,
    point: HoldPoint,
    max_age_ms: int,
    *,
    address: str,
) -> tuple[Hold, ...]:
    """Hold ``partitions`` of ``topics``, all without a number, at ``point``; all or none.

    ``address`` is the cluster's, as people type it. Errors as for
    :meth:`~keeplast.attach.answers.shown_logs.AttachedHolds.add`; InvalidError also for what is not
    there.
    """
    there = {
        TopicPartition(topic.name, number): topic
        for topic in facts.topics
        for number in range(topic.partition_count)
    }
    chosen = [
        (
            AttachedName(facts.cluster_id, name_of(there[each], each.partition)),
            AttachTerms(settings.topic_config(each.topic).cleanup_policy, address),
        )
        for each in choose_partitions(there, topics, partitions, "the cluster")
    ]
    return AttachedHolds(cluster, log, layout, clock).add(chosen, name, point, max_age_ms)
