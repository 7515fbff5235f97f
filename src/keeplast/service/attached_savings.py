"""What rounds of attached partitions would save now: bytes, counted by reading keys.

A partition that cannot be counted says why, and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

from msgspec import Struct

from keeplast.attach.rounds.round import RoundWish, clean_to, margin_of, plan_attached
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache, name_of
from keeplast.config.precedence import Settings
from keeplast.errors import CompactionError
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Keyless
from keeplast.rewrite.task import Runner
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName


class Saving(Struct, frozen=True):
    """What a round would save of a partition now: bytes and records of ``of_bytes`` that it reads.

    ``reason`` says why nothing, and ``error`` why it could not be counted; None where it was.
    """

    bytes: int = 0
    records: int = 0
    of_bytes: int = 0
    reason: str | None = None
    error: Exception | None = None


def count_savings(
    facts: ClusterFacts, chosen: Iterable[tuple[TopicFacts, int, OffsetRange]],
    caches: Mapping[TopicIdPartition, PartitionCache], log: DecisionLog | None,
    layout: RemoteLayout, settings: Settings, groups: GroupReader, clock: Clock, runner: Runner,
    progressed: Callable[[int], None],
) -> dict[TopicPartition, Saving]:  # fmt: skip
    """Read what rounds of ``chosen`` would, and count."""
    found: dict[TopicPartition, Saving] = {}
    for topic, number, held in chosen:
        config, name = settings.topic_config(topic.name), name_of(topic, number)
        # Records without a key are another question; what a round may drop is said there.
        wish = RoundWish(
            topic=config, margin_bytes=margin_of(config, topic), force=True,
            cleaner=settings.cleaner_config(), keyless=Keyless.RETAIN, brokers=groups,
        )  # fmt: skip
        cache, cleaned_to = caches.get(name, PartitionCache()), held.start
        known = None if log is None else log.find(AttachedName(facts.cluster_id, name))
        try:
            if log is not None and known is not None:
                cleaned_to = clean_to(log, known, cache, held.start)
            report, _ = plan_attached(
                layout, name, cache, wish, clock, log_start=held.start, cleaned_to=cleaned_to,
                holds=() if known is None else known.holds,
                counting=lambda _: nullcontext(runner), progressed=progressed,
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            found[TopicPartition(topic.name, number)] = Saving(error=error)
            continue
        stats = report.stats
        found[TopicPartition(topic.name, number)] = (
            Saving(reason=report.reason or "nothing to do")
            if stats is None
            else Saving(
                stats.bytes_read - stats.bytes_written,
                stats.messages_read - stats.messages_written, stats.bytes_read,
            )
        )  # fmt: skip
    return found
