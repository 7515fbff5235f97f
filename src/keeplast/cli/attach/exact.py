"""What ``attach status --exact`` adds: the bytes that a round would save now, by reading keys.

A partition of which that cannot be told says why, and stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from keeplast.attach.rounds.round import RoundWish, clean_to, margin_of, plan_attached
from keeplast.cli.attach.options import ExactOptions, decision_log_there
from keeplast.cli.frame import wiring
from keeplast.cli.show.attach import Saving
from keeplast.cli.show.progress import ProgressEvents
from keeplast.clock import SystemClock
from keeplast.cluster.facts import ClusterFacts, OffsetRange
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import name_of
from keeplast.errors import CompactionError, error_text
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.model.hold import Hold
from keeplast.model.keyless import Keyless
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import RoundReport
from keeplast.tier.state.attached import AttachedName


def count_savings(
    options: ExactOptions, facts: ClusterFacts, ranges: Mapping[str, Sequence[OffsetRange]],
    caches: Mapping[TopicIdPartition, PartitionCache], groups: BrokerGroups,
) -> list[Saving]:  # fmt: skip
    """Read what rounds would, and count; ``ranges`` are those of each topic's partitions."""
    layout = options.open_layout()
    settings = options.wanted.settings_of(facts.topics)
    found: list[Saving] = []
    with (
        decision_log_there(options.store, only_looks=True) as log,
        ProgressEvents("counting") as events,
        wiring.open_runner(wiring.RunnerName.LOCAL, master=None, cores=None) as runner,
    ):
        for topic in facts.topics:
            config = settings.topic_config(topic.name)
            # Records without a key are another question; what a round may drop is said there.
            wish = RoundWish(
                topic=config, margin_bytes=margin_of(config, topic), force=True,
                cleaner=settings.cleaner_config(), keyless=Keyless.RETAIN, brokers=groups,
            )  # fmt: skip
            for number, held in enumerate(ranges[topic.name]):
                name = name_of(topic, number)
                cache = caches.get(name, PartitionCache())
                known = None if log is None else log.find(AttachedName(facts.cluster_id, name))

                def count(
                    name: TopicIdPartition = name, cache: PartitionCache = cache,
                    wish: RoundWish = wish, start: int = held.start,
                    holds: tuple[Hold, ...] = () if known is None else known.holds,
                    cleaned_to: int = held.start
                    if log is None or known is None
                    else clean_to(log, known, cache, held.start),
                ) -> RoundReport:  # fmt: skip
                    report, _ = plan_attached(
                        layout, name, cache, wish, SystemClock(), log_start=start,
                        cleaned_to=cleaned_to, holds=holds,
                        counting=lambda _: nullcontext(runner), progressed=events.progressed,
                    )  # fmt: skip
                    return report

                found.append(_saving(TopicPartition(topic.name, number), count))
    return found


def _saving(partition: TopicPartition, count: Callable[[], RoundReport]) -> Saving:
    topic, number = partition.topic, partition.partition
    try:
        report = count()
    except (CompactionError, OSError) as error:
        return Saving(topic, number, error=error_text(error))
    stats = report.stats
    if stats is None:
        return Saving(topic, number, reason=report.reason or "nothing to do")
    return Saving(
        topic, number, bytes=stats.bytes_read - stats.bytes_written,
        records=stats.messages_read - stats.messages_written, of_bytes=stats.bytes_read,
    )  # fmt: skip
