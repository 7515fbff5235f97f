"""By when tombstones of attached partitions go: what ``attach`` tells, of whatever it looked at.

Put together of a topic's settings, what brokers know, and the decision log; no object is read. The
rule is :mod:`keeplast.attach.rules.removal_dates`, and nobody tells a date by another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keeplast.attach.answers.explain import RemoteLog
from keeplast.attach.rounds.round import clean_to
from keeplast.attach.rules.removal import find_terms
from keeplast.attach.rules.removal_dates import (
    PartitionRemoval,
    RemovalDates,
    RemovalPace,
    find_removal_dates,
)
from keeplast.cluster.facts import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.model.duration import precise_duration_text
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.service.attached_settings import INTERVAL_MS_DEFAULT
from keeplast.service.status import daemon_pace
from keeplast.survey.wording import removal_words
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName, Decision


def removal_pace(
    cleaner: CleanerConfig, caches: Iterable[PartitionCache], grace_ms: int
) -> RemovalPace:
    """Return how fast ``attach run`` is taken to go through these partitions, on a slow disk.

    A pass begins within an interval, and another one may be under way.
    """
    pace = daemon_pace(cleaner, None)
    served = [sum(each.size_bytes for each in cache.served_segments().values()) for cache in caches]
    passes_ms = 2 * sum(pace.duration_ms(size) for size in served if size)
    return RemovalPace(grace_ms, INTERVAL_MS_DEFAULT + passes_ms)


def removal_dates(
    facts: ClusterFacts, topic: TopicFacts, config: TopicConfig, cache: PartitionCache,
    decisions: Sequence[Decision] | None, pace: RemovalPace, *, log_start: int, now_ms: int,
) -> RemovalDates:  # fmt: skip
    """Return what dates of one partition are made of; ``decisions`` None: nobody was asked."""
    terms = find_terms(config, topic.settings, [each.settings for each in facts.brokers])
    return find_removal_dates(
        terms, cache, decisions, pace, log_start=log_start, now_ms=now_ms,
        readers_ms=config.readers_wait_ms,
    )  # fmt: skip


def dated(
    remote: RemoteLog, facts: ClusterFacts, config: TopicConfig, pace: RemovalPace, now_ms: int,
    *, has_log: bool,
) -> RemoteLog:  # fmt: skip
    """Return a partition with what dates of its tombstones are made of."""
    (topic,) = [each for each in facts.topics if each.name == remote.partition.topic]
    found = removal_dates(
        facts, topic, config, remote.cache, remote.decisions if has_log else None, pace,
        log_start=remote.ends.start, now_ms=now_ms,
    )  # fmt: skip
    return replace(remote, removal=found)


@dataclass(frozen=True, slots=True)
class PartitionTombstones:
    """A partition, and with which rounds its tombstones and markers go."""

    partition: TopicPartition
    removal: PartitionRemoval

    @property
    def words(self) -> str:
        """Say it in a sentence."""
        found = self.removal
        if found.next.stays is not None:
            return removal_words(found.next)
        after = precise_duration_text(found.next.after_round_ms or 0)
        parts = [
            "what the next round gives a delete horizon goes with the first one that begins "
            f"{after} or more after it"
        ]
        if found.clean is not None:
            clean = removal_words(found.clean)
            below = f"what rounds have given one below offset {found.clean_below}"
            parts.append(f"{below}, {clean}")
        if found.hidden_from is not None:
            parts.append(
                f"from {found.hidden_from} on they stay: brokers have a copy that they do not serve"
            )
        return "; ".join(parts)

    def as_document(self) -> dict[str, Any]:
        """Return what the document shows."""
        found = self.removal
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "stays": found.next.stays,
            "clean_below": found.clean_below,
            "clean_from_ms": None if found.clean is None else found.clean.from_ms,
            "after_next_round_ms": found.next.after_round_ms,
            "hidden_from": found.hidden_from,
            "why": self.words,
        }


def find_tombstones(
    facts: ClusterFacts, ranges: Mapping[str, Sequence[OffsetRange]],
    caches: Mapping[TopicIdPartition, PartitionCache], log: DecisionLog, settings: Settings,
    grace_ms: int, chosen: Iterable[tuple[TopicFacts, int]],
) -> list[PartitionTombstones]:  # fmt: skip
    """Return what is to be said of each of ``chosen`` of which something is served."""
    here = [
        (topic, number, cache)
        for topic, number in chosen
        if (cache := caches.get(name_of(topic, number))) is not None and cache.served()
    ]
    pace = removal_pace(settings.cleaner_config(), (cache for _, _, cache in here), grace_ms)
    found = []
    for topic, number, cache in here:
        start = ranges[topic.name][number].start
        held = log.find(AttachedName(facts.cluster_id, name_of(topic, number)))
        dates = removal_dates(
            facts, topic, settings.topic_config(topic.name), cache,
            () if held is None else log.decisions(held), pace, log_start=start,
            now_ms=log.clock.now_ms(),
        )  # fmt: skip
        cleaned_to = start if held is None else clean_to(log, held, cache, start)
        found.append(
            PartitionTombstones(
                TopicPartition(topic.name, number), dates.of_partition(cache, cleaned_to)
            )
        )
    return found
