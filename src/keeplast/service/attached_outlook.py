"""What comes next of attached partitions: regions, dirty ratio, next round, end of old values.

The ratio and the reasons are those that the loop goes by (:mod:`keeplast.attach.answers.look`). The
rule that a reader must not break: **no date shown here is earlier than what may happen**. When
brokers roll and copy is not known. So what is overwritten now has no date, but a span after the
round that takes it.

Dates of tombstones come from a topic's settings, what brokers know, and the decision log; no object
is read. Their rule is :mod:`keeplast.attach.rules.tombstone_removal`, and every date goes by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.answers.explain import RemoteLog
from keeplast.attach.answers.look import AttachedLooks, AttachedOutlook
from keeplast.attach.rounds.missing_aborts import MissingAbort
from keeplast.attach.rounds.round import RoundWish, clean_to, margin_of
from keeplast.attach.rules.tombstone_removal import (
    REMEMBERED_MS,
    PartitionRemoval,
    RemovalDates,
    RemovalPace,
    RemovalTerms,
    exposures,
    find_local_ms,
    find_removal_dates,
    find_terms,
    settled_from,
    swap_settled_ms,
)
from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.reasons import (
    DueReason,
    NotCompacted,
    SourcesEnd,
    TombstoneRemoval,
    TombstonesStay,
)
from keeplast.clock import utc_text
from keeplast.cluster.check import check_cluster, check_topic
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, name_of
from keeplast.config.precedence import Settings
from keeplast.errors import CompactionError
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.model.partition import INT64_MAX, LogRegion, TopicPartition
from keeplast.model.text import format_bytes, precise_duration_text
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.service.attached_savings import Saving
from keeplast.service.attached_sight import INTERVAL_MS_DEFAULT, refusal_words
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.schedule import daemon_pace
from keeplast.survey.wording import due_briefly, reason_code, removal_words, skip_words
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, AttachedName, Decision


def removal_pace(
    cleaner: CleanerConfig, caches: Iterable[PartitionCache], grace_ms: int
) -> RemovalPace:
    """Return how fast ``run`` is taken to go through these partitions, on a slow disk.

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
    """Return what dates of one partition are made of; ``decisions`` None: no log was asked."""
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


class PartitionTombstones(Struct, frozen=True):
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
    """Return the tombstones of each of ``chosen`` with a served segment."""
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


class RegionSegment(Struct, frozen=True):
    """A segment that brokers serve from the remote tier: offsets ``[base_offset, end_offset)``."""

    base_offset: int
    end_offset: int
    size_bytes: int
    region: LogRegion


class AttachedRegion(Struct, frozen=True):
    """The segments of one region: offsets ``[base_offset, end_offset)``."""

    name: LogRegion
    base_offset: int
    end_offset: int
    segments: int | None = None
    bytes: int | None = None


class OldValues(Struct, frozen=True):
    """By when overwritten records are gone, from brokers' disks too; times in milliseconds.

    ``after_round_ms`` is how long after its round at most, None where that is not known. What
    rounds have replaced before is gone by ``replaced_by_ms``, None where that is nothing or not
    known.
    """

    after_round_ms: int | None
    replaced_by_ms: int | None
    why: str


class PartitionOutlook(Struct, frozen=True, kw_only=True):
    """One partition; ``segments`` ascend. ``figures`` are None while no round may take anything.

    ``is_due`` says that a round would be done now, None where the clean section is not known.
    ``why`` says why it would or not, and ``code`` names that reason. ``deadline_ms`` is when
    ``max.compaction.lag.ms`` ends, None where it does not or was not looked at. ``old`` is None
    where the topic is not compacted. ``error`` says why nothing of this could be found out.
    """

    partition: TopicPartition
    log: OffsetRange
    segments: tuple[RegionSegment, ...] = ()
    brokers_from: int | None = None
    """The first offset that only brokers have, up to the log end; None where there is none."""
    first_dirty: int = 0
    figures: LogFigures | None = None
    is_due: bool | None = False
    why: str = ""
    code: str | None = None
    old: OldValues | None = None
    missing_aborts: tuple[MissingAbort, ...] = ()
    """What the transaction indexes lack that brokers serve, as far as a look goes."""
    earliest_as_of: int | None = None
    """The first offset whose state can be read, None without a decision log."""
    tombstones: PartitionTombstones | None = None
    """When they go; None where nothing is served, or no decision log was asked."""
    saving: Saving | None = None
    """What a round would save now, None where it was not counted."""
    error: Exception | None = None

    @property
    def deadline_ms(self) -> int | None:
        """Return when a round is due at the latest, None when that is not known."""
        return None if self.figures is None else self.figures.overdue_from_ms

    def bytes_of(self, *regions: LogRegion) -> int:
        """Return the bytes of the segments in these ``regions``."""
        return sum(each.size_bytes for each in self.segments if each.region in regions)

    def regions(self) -> list[AttachedRegion]:
        """Return the parts of the log, ascending; the bytes that only brokers have are unknown."""
        found = []
        for region in LogRegion:
            its = [each for each in self.segments if each.region is region]
            if its:
                end = max(each.end_offset for each in its)
                found.append(
                    AttachedRegion(region, its[0].base_offset, end, len(its), self.bytes_of(region))
                )
        if self.brokers_from is not None:
            found.append(AttachedRegion(LogRegion.BROKERS_ONLY, self.brokers_from, self.log.end))
        return found


def find_outlooks(
    facts: ClusterFacts, known: ClusterCache, log: DecisionLog | None,
    layout: RemoteLayout | None, settings: Settings, grace_ms: int, now_ms: int, address: str,
    chosen: Iterable[tuple[TopicFacts, AttachedStatus, Sequence[Decision]]],
) -> list[PartitionOutlook]:  # fmt: skip
    """Return the outlook of each of ``chosen`` at ``now_ms``; one that fails says so.

    Of each its topic, what is known of it, and what was decided, as ``log`` says. Without a
    decision ``log`` all counts as dirty; without a ``layout`` no object is looked at.
    """
    looks = AttachedLooks(layout)
    # The loop goes through all that is attached, whichever topics are shown.
    pace = removal_pace(settings.cleaner_config(), known.partitions.values(), grace_ms)
    everywhere = list(check_cluster(facts, address))
    found = []
    for topic, status, decisions in chosen:
        partition, ends, attached = status.partition, status.remote.log, status.attached
        cache = known.partitions.get(name_of(topic, partition.partition), PartitionCache())
        config = settings.topic_config(topic.name)
        wish = RoundWish(
            topic=config, margin_bytes=margin_of(config, topic), cleaner=settings.cleaner_config()
        )
        cleaned_to = ends.start
        if log is not None and attached is not None:
            cleaned_to = clean_to(log, attached, cache, ends.start)
        try:
            look = looks.look(
                cache, wish, now_ms, log_start=ends.start, cleaned_to=cleaned_to,
                holds=() if attached is None else attached.holds,
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            found.append(PartitionOutlook(partition=partition, log=ends, error=error))
            continue
        own = check_topic(topic, config.cleanup_policy, address)
        refusal = refusal_words([*everywhere, *own])
        barred = _barred(config, attached, refusal, has_log=log is not None)
        decision = look.decision
        why = (
            due_briefly(decision)
            if isinstance(decision, DueReason)
            else skip_words(decision, names_options=False)
        )
        if layout is None and config.max_compaction_lag_ms < INT64_MAX and not look.is_eligible:
            why = f"{why}; no remote tier was named, which says when max.compaction.lag.ms ends"
        if log is None:
            why = f"no decision log was named, which says what is clean; if nothing is: {why}"
        is_due = None if log is None else look.is_eligible
        found.append(
            replace(
                _by_region(status, look),
                is_due=is_due if barred is None else False,
                why=why if barred is None else barred,
                code=reason_code(decision) if barred is None else None,
                old=_old_values(
                    facts, topic, cache, look, decisions, pace, wish.margin_bytes,
                    now_ms if log is None else log.clock.now_ms(), is_barred=barred is not None,
                )
                if config.is_compacted
                else None,
            )
        )  # fmt: skip
    return found


def _barred(
    config: TopicConfig, attached: Attached | None, refusal: str | None, *, has_log: bool
) -> str | None:
    """Return why no round is done whatever lies there; None where one may be."""
    if not config.is_compacted:
        return skip_words(NotCompacted(",".join(sorted(config.cleanup_policy))))
    if refusal is not None:
        return f"place check refuses it: {refusal}"
    if attached is not None and attached.paused_ms is not None:
        return "paused on every host; keeplast pause --resume goes on"
    if attached is not None and attached.epoch and attached.detached_ms is not None:
        return "given up by keeplast detach; keeplast clean takes it again"
    if has_log and (attached is None or not attached.epoch):
        return "no process compacts it by this decision log; keeplast clean begins"
    return None


def _by_region(status: AttachedStatus, look: AttachedOutlook) -> PartitionOutlook:
    figures, limit = look.figures, look.sources.limit
    first_dirty = look.cleaned_to if figures is None else figures.first_dirty
    bound = look.sources.end if figures is None else figures.cleanable.bound

    def region_of(start: int) -> LogRegion:
        if start < first_dirty:
            return LogRegion.CLEAN
        if start < bound:
            return LogRegion.DIRTY
        is_margin = limit.why is SourcesEnd.MARGIN and start >= limit.offset
        return LogRegion.MARGIN if is_margin else LogRegion.UNCLEANABLE

    log, remote_end = status.remote.log, status.remote.remote_end
    brokers_from = log.start if remote_end is None else max(remote_end + 1, log.start)
    return PartitionOutlook(
        partition=status.partition, log=log,
        segments=tuple(
            RegionSegment(each.start, each.end, each.size_bytes, region_of(each.start))
            for each in status.served
        ),
        brokers_from=brokers_from if brokers_from < log.end else None,
        first_dirty=first_dirty, figures=figures, missing_aborts=look.missing_aborts,
    )  # fmt: skip


def _old_values(
    facts: ClusterFacts, topic: TopicFacts, cache: PartitionCache, look: AttachedOutlook,
    decisions: Sequence[Decision], pace: RemovalPace, margin_bytes: int, now_ms: int, *,
    is_barred: bool,
) -> OldValues:  # fmt: skip
    """Return by when old values are gone; what they wait for longest decides."""
    if is_barred:
        return OldValues(None, None, "no date while no round is done")
    local_ms = find_local_ms(topic.settings, [each.settings for each in facts.brokers])
    if isinstance(local_ms, TombstonesStay):
        return OldValues(None, None, removal_words(TombstoneRemoval(local_ms)))
    bound = look.sources.end
    if any(start < bound for start, _ in exposures(cache)):
        return OldValues(
            None, None, "no date: brokers have a copy that they do not serve, and may yet"
        )
    # No reader waits for what is gone, so that delete.retention.ms plays no part.
    terms = RemovalTerms(0, local_ms)
    # What the next swaps are kept for is what the last ones were.
    grace_ms = max([pace.grace_ms, *(each.keep_ms for each in decisions)])
    newest_ms = max(
        (each.max_timestamp_ms for each in cache.served_segments().values()), default=-1
    )
    after_ms = settled_from(terms, max(newest_ms - now_ms, 0), grace_ms + pace.pass_ms)
    by_ms = None
    if local_ms <= REMEMBERED_MS:  # Else what the log has forgotten may be on brokers yet.
        settled = (swap_settled_ms(each, terms, pace, now_ms) for each in decisions)
        by_ms = max((each for each in settled if each > now_ms), default=None)
    words = (
        "no date: brokers roll and copy when they like, and the newest "
        f"{format_bytes(margin_bytes)} stay raw; what a round takes is gone "
        f"{precise_duration_text(after_ms)} after it"
    )
    if by_ms is not None:
        words = f"{words}, what rounds have replaced by {utc_text(by_ms)}"
    return OldValues(after_ms, by_ms, f"{words}, if keeplast run goes on (default grace)")
