"""Upkeep of a live cluster's attached partitions, one after the other.

The rule: each partition is claimed, worked on and given back, and a topic that is gone is never
claimed: its brokers remove what they knew of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.held.words import Words, clear_outputs, sweep_outputs, words_of_live
from keeplast.attach.upkeep.orphans import collect_gone, orphans_of_gone, unknown_of_live
from keeplast.attach.upkeep.rebuild import is_compacted, rebuild
from keeplast.attach.upkeep.replaced_segments import WhyWait, collect, repair
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.cluster.live_cluster import TopicFacts
from keeplast.cluster.metadata_cache import name_of
from keeplast.config.layers import PartitionChoice
from keeplast.config.precedence import Settings
from keeplast.errors import ConflictError, InvalidError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import Receipt
from keeplast.service.cluster_answer import choose_attached
from keeplast.service.upkeep import (
    Orphans,
    RepairTerms,
    UpkeepReport,
    UpkeepTerms,
    outcome_of,
)
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, AttachedName

Facts = Mapping[str, Any]
Step = Callable[[Publisher], Facts]
GoneStep = Callable[[Attached, KeptFolds], Facts]
"""What is done for a partition whose topic is gone, or is hidden from the principal."""


class AttachedUpkeep(Struct, frozen=True):
    """A cluster's brokers, decision log and remote tier.

    ``settings_of`` returns the wanted settings of topics, ``address`` is how remedies call the
    brokers. ``grace_ms`` is how long replaced segments lie; ``why_wait`` is asked before a
    deletion.
    """

    client: ClusterClient
    log: DecisionLog
    layout: RemoteLayout
    settings_of: Callable[[Sequence[TopicFacts]], Settings]
    address: str
    grace_ms: int
    why_wait: WhyWait | None = None

    def collect(
        self,
        scope: PartitionChoice,
        terms: UpkeepTerms,
        orphans: Orphans | None,
        receipt: Receipt | None,
    ) -> UpkeepReport:
        """Delete replaced segments whose grace has passed, and ``orphans`` as is wished."""
        collects = self._collects(terms, receipt)
        if orphans is None:
            return self._each(scope, terms, collects)
        of_gone = partial(self._orphans_of_gone, orphans, takes_over=terms.takes_over)
        return self._each(
            scope, terms, lambda found: {**collects(found), **find_unknown(found, orphans)},
            of_gone=of_gone,
        )  # fmt: skip

    def repair(self, scope: PartitionChoice, terms: RepairTerms) -> UpkeepReport:
        """Publish what was decided and is not on the cluster, and take back what never was."""
        if terms.rebuilds:
            return self._rebuild(scope, terms)
        accepts = terms.accepts_metadata
        step = partial(repair_one, accepts_metadata=accepts)
        return self._each(scope, terms, step, accepts_metadata=accepts)

    def detach(
        self, scope: PartitionChoice, terms: UpkeepTerms, receipt: Receipt | None
    ) -> UpkeepReport:
        """Give up partitions that wait for nothing any more; one that is gone is forgotten."""
        step = partial(detach_one, collects=self._collects(terms, receipt))
        return self._each(scope, terms, step, of_gone=self._forget_gone)

    def _collects(self, terms: UpkeepTerms, receipt: Receipt | None) -> Step:
        grace_ms = max(self.grace_ms, terms.keep_sources_ms)
        return partial(collect_one, grace_ms=grace_ms, why_wait=self.why_wait, receipt=receipt)

    def _each(
        self,
        scope: PartitionChoice,
        terms: UpkeepTerms,
        step: Step,
        *,
        accepts_metadata: bool = False,
        of_gone: GoneStep | None = None,
    ) -> UpkeepReport:
        """Claim each chosen partition, do ``step`` and give it back.

        Of a topic that was deleted there is nothing to do, but ``of_gone``.
        """
        cluster_id = self.client.read_cluster_id()
        chosen = choose_held(self.log, cluster_id, scope)
        folds = KeptFolds(self.log.folds)
        ids = self.client.read_topic_ids({each.name.partition.topic for each in chosen})
        names = sorted({each.name.partition.topic for each in chosen if not _is_gone(each, ids)})
        settings = self.settings_of(self.client.read_facts(names).topics if names else ())

        def act(each: Attached) -> Iterator[Facts]:
            at = each.name.partition
            yield {"topic_id": encode_id(at.topic_id)}
            if _is_gone(each, ids):
                yield {"is_gone": True, "is_detached": False}
                yield {} if of_gone is None else of_gone(each, folds)
                return
            policy = settings.topic_config(at.topic).cleanup_policy
            publisher = claim(
                self.client, self.log, self.layout, at, cluster_id,
                AttachTerms(policy, self.address), takes_over=terms.takes_over,
                accepts_metadata=accepts_metadata, folds=folds,
            )  # fmt: skip
            with closing(publisher):
                yield {"epoch": publisher.epoch}
                yield step(publisher)

        return UpkeepReport(tuple(outcome_of(_at(each), partial(act, each)) for each in chosen))

    def _forget_gone(self, each: Attached, folds: KeptFolds) -> Facts:
        """End a partition in the decision log, when brokers say that its topic is gone."""
        if self.client.find_topic_id(each.name.partition.topic) == each.name.partition.topic_id:
            raise ConflictError(
                f"the topic is there again; try again. partition={each.name}", code="K432"
            )
        self.log.forget(each)
        return {"is_detached": True}

    def _orphans_of_gone(
        self, wish: Orphans, each: Attached, folds: KeptFolds, *, takes_over: bool
    ) -> Facts:
        """List, or remove, what a topic that is gone has left."""
        is_list = wish is Orphans.LIST
        if is_list:
            found = orphans_of_gone(self.client, self.log, self.layout, each, self.grace_ms, folds)
        else:
            found = collect_gone(
                self.client, self.log, self.layout, each, self.grace_ms, folds,
                takes_over=takes_over, takes_served=wish is Orphans.COLLECT_SERVED,
            )  # fmt: skip
        verb, gone = (
            ("orphan", found.named) if is_list else ("collected", found.named + found.served)
        )
        still = found.served if is_list else ()
        held = self.log.find(each.name)
        return {
            f"{verb}_segments": len(gone), f"{verb}_bytes": _bytes_of(gone),
            "still_served_segments": len(still), "still_served_bytes": _bytes_of(still),
            **_word_counts(found.words, wish), "waiting": len(found.waiting),
            **_unknown(found.unknown),
            "is_detached": held is None or held.detached_ms is not None,
        }  # fmt: skip

    def _rebuild(self, scope: PartitionChoice, terms: RepairTerms) -> UpkeepReport:
        """Own each partition of the named topics by this decision log, and repair it."""
        if not scope.topics:
            raise InvalidError(
                "name the topics that are taken over from another decision log: --topic",
                code="K102",
            )
        facts = self.client.read_facts(scope.topics)
        settings = self.settings_of(facts.topics)
        folds = KeptFolds(self.log.folds)

        def act(topic: TopicFacts, number: int) -> Iterator[Facts]:
            yield {"topic_id": encode_id(topic.topic_id)}
            name = AttachedName(facts.cluster_id, name_of(topic, number))
            policy = settings.topic_config(topic.name).cleanup_policy
            yield self._rebuild_one(name, AttachTerms(policy, self.address), folds, terms)

        return UpkeepReport(
            tuple(
                outcome_of(TopicPartition(topic.name, number), partial(act, topic, number))
                for topic, number in choose_attached(facts, scope.partitions)
            )
        )

    def _rebuild_one(
        self, name: AttachedName, terms: AttachTerms, folds: KeptFolds, asked: RepairTerms
    ) -> Facts:
        """Rebuild and repair a partition; nothing happens to one that no compactor ever had."""
        partition: TopicIdPartition = name.partition
        if self.log.find(name) is None and not is_compacted(
            self.client, self.layout, name, terms, self.log.store_id()
        ):
            return {}
        publisher, found = rebuild(
            self.client, self.log, self.layout, partition, name.cluster_id, terms,
            grace_ms=self.grace_ms, takes_over=asked.takes_over,
            accepts_metadata=asked.accepts_metadata, folds=folds,
        )  # fmt: skip
        with closing(publisher):
            repaired = repair(publisher, accepts_metadata=asked.accepts_metadata)
        return {
            "epoch": publisher.epoch, "rebuilt_decisions": found.decisions,
            "uncollected": found.uncollected, "published": repaired.published,
            "published_again": repaired.published_again, "discarded": repaired.discarded,
        }  # fmt: skip


def set_paused(
    client: ClusterClient, log: DecisionLog, scope: PartitionChoice, *, is_paused: bool
) -> UpkeepReport:
    """Pause the chosen partitions, or let processes go on with them; fences no process."""

    def act(each: Attached) -> Iterator[Facts]:
        yield {"topic_id": encode_id(each.name.partition.topic_id)}
        log.set_paused(each, is_paused=is_paused)
        yield {"is_paused": is_paused}

    chosen = choose_held(log, client.read_cluster_id(), scope)
    return UpkeepReport(tuple(outcome_of(_at(each), partial(act, each)) for each in chosen))


def collect_one(
    publisher: Publisher, grace_ms: int, why_wait: WhyWait | None = None,
    receipt: Receipt | None = None,
) -> Facts:  # fmt: skip
    """Collect a partition's replaced segments, after it was repaired."""
    repaired = repair(publisher)
    found = collect(publisher, grace_ms, receipt=receipt, why_wait=why_wait)
    return {
        "published": repaired.published + repaired.published_again,
        "discarded": repaired.discarded, "collected_segments": found.segments,
        "collected_bytes": found.bytes, "waiting": found.waiting,
        **({} if found.due_ms is None else {"waiting_until_ms": found.due_ms}),
        **({} if found.held_back is None else {"held_back": found.held_back}),
    }  # fmt: skip


def find_unknown(publisher: Publisher, wish: Orphans) -> Facts:
    """Say what lies there without a name; what a process began and never announced may go."""
    removes = wish is not Orphans.LIST
    words = words_of_live(publisher, removes=removes)
    if removes:
        # As a round does at its beginning: there may be none for long. Words that are due are
        # counted before, since it removes them too; what it marks waits.
        sweep_outputs(publisher)
        words = replace(words, waiting=words_of_live(publisher, removes=False).waiting)
    return {**_word_counts(words, wish), **_unknown(unknown_of_live(publisher))}


def repair_one(publisher: Publisher, *, accepts_metadata: bool) -> Facts:
    """End what was left undone in a partition."""
    found = repair(publisher, accepts_metadata=accepts_metadata)
    # Also where no decision is open: a batch that came late may have hidden what is whole.
    publisher.mend(publisher.look())
    return {
        "published": found.published, "published_again": found.published_again,
        "discarded": found.discarded,
    }  # fmt: skip


def detach_one(publisher: Publisher, collects: Step) -> Facts:
    """Give a partition up when nothing of it waits after ``collects``."""
    found = collects(publisher)
    if not found["waiting"]:
        clear_outputs(publisher)
        publisher.detach()
    return {**found, "is_detached": not found["waiting"]}


def choose_held(log: DecisionLog, cluster_id: str, scope: PartitionChoice) -> list[Attached]:
    """Return the chosen partitions that are attached; InvalidError for none, and for a topic of
    which none is."""
    attached = [each for each in log.partitions(cluster_id) if each.detached_ms is None]
    missing = sorted(set(scope.topics) - {each.name.partition.topic for each in attached})
    chosen = [each for each in attached if scope.includes(_at(each))]
    if missing or not chosen:
        raise InvalidError(
            "nothing of that is attached by this decision log; correct --decisions, --topic or "
            f"--partition. topics={missing or list(scope.topics) or 'all'} "
            f"partitions={list(scope.partitions) or 'all'} cluster_id={cluster_id}",
            code="K445",
        )
    return chosen


def _at(each: Attached) -> TopicPartition:
    return TopicPartition(each.name.partition.topic, each.name.partition.partition)


def _is_gone(each: Attached, ids: Mapping[str, bytes]) -> bool:
    """Say whether the topic that was attached is no more, or another one has its name."""
    return ids.get(each.name.partition.topic) != each.name.partition.topic_id


def _word_counts(words: Words, wish: Orphans) -> Facts:
    name = "unwritten" if wish is Orphans.LIST else "unwritten_removed"
    return {name: len(words.due), "unwritten_waiting": len(words.waiting)}


def _unknown(found: tuple[FoundSegment, ...]) -> Facts:
    return {"unknown_segments": len(found), "unknown_bytes": _bytes_of(found)}


def _bytes_of(found: tuple[FoundSegment, ...]) -> int:
    return sum(each.size_bytes for each in found)
