"""What comes next of attached partitions: regions, dirty ratio, the next round, and old values.

The ratio and the reasons are those that ``attach run`` goes by
(:mod:`keeplast.attach.answers.look`). The rule that a reader must not break: **no date told here is
earlier than what may happen**: when brokers roll and copy nobody knows, so that of what is
overwritten now there is no date, but a span behind the round that takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from keeplast.attach.answers.look import AttachedLooks, AttachedOutlook
from keeplast.attach.rounds.missing_aborts import MissingAbort
from keeplast.attach.rounds.round import RoundWish, clean_to, margin_of
from keeplast.attach.rules.removal import (
    REMEMBERED_MS,
    RemovalTerms,
    exposures,
    find_local_ms,
    settled_from,
)
from keeplast.attach.rules.removal_dates import RemovalPace, swap_settled_ms
from keeplast.cleaner.reasons import (
    DueReason,
    NotCompacted,
    SourcesEnd,
    TombstoneRemoval,
    TombstonesStay,
)
from keeplast.cleaner.section import LogFigures
from keeplast.clock import utc_text
from keeplast.cluster.check import check_cluster, check_topic
from keeplast.cluster.facts import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.cluster.status import name_of
from keeplast.config.settings import Settings
from keeplast.errors import CompactionError, error_text
from keeplast.model.duration import precise_duration_text
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_bytes
from keeplast.model.topic_config import TopicConfig
from keeplast.service.attached_sight import refusal_words
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.documents import figures_document
from keeplast.service.tombstone_dates import removal_pace
from keeplast.survey.wording import due_briefly, removal_words, skip_words
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, Decision


class LogZone(StrEnum):
    """What a part of the log is to a round; ``margin`` is what stays as brokers copied it."""

    CLEAN = "clean"
    DIRTY = "dirty"
    UNCLEANABLE = "uncleanable"
    MARGIN = "margin"
    BROKERS_ONLY = "brokers_only"


@dataclass(frozen=True, slots=True)
class ZonedSegment:
    """A segment that brokers serve from the remote tier: offsets ``[base_offset, end_offset)``."""

    base_offset: int
    end_offset: int
    size_bytes: int
    zone: LogZone


@dataclass(frozen=True, slots=True)
class OldValues:
    """By when what is overwritten is gone, from brokers' disks too; times in milliseconds.

    ``after_round_ms`` is how long after its round at most, None where nobody can say; what rounds
    have replaced before is gone by ``replaced_by_ms``, None where that is nothing or nobody knows.
    """

    after_round_ms: int | None
    replaced_by_ms: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutlook:
    """One partition; ``segments`` ascend. ``figures`` are None while no round may take anything.

    ``is_due`` says that a round would be done now, None where nobody knows what is clean; ``why``
    says why it would or not. ``deadline_ms`` is
    when ``max.compaction.lag.ms`` ends, None where it does not or nobody has looked. ``old`` is
    None where nobody compacts the topic. ``error`` says why nothing of this could be told.
    """

    partition: TopicPartition
    log: OffsetRange
    segments: tuple[ZonedSegment, ...] = ()
    brokers_from: int | None = None
    """The first offset that only brokers have, up to the log end; None where there is none."""
    first_dirty: int = 0
    figures: LogFigures | None = None
    is_due: bool | None = False
    why: str = ""
    old: OldValues | None = None
    missing_aborts: tuple[MissingAbort, ...] = ()
    """What the transaction indexes lack that brokers serve, as far as a look goes."""
    error: str | None = None

    @property
    def deadline_ms(self) -> int | None:
        """Return when a round is due at the latest, None when nobody knows."""
        return None if self.figures is None else self.figures.overdue_from_ms

    def bytes_of(self, *zones: LogZone) -> int:
        """Return the bytes of the segments in these ``zones``."""
        return sum(each.size_bytes for each in self.segments if each.zone in zones)

    def as_document(self) -> dict[str, Any]:
        """Return what the document shows."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "regions": self._regions(),
            **figures_document(self.figures),
            "first_dirty": self.first_dirty,
            "deadline_ms": self.deadline_ms,
            "is_due": self.is_due,
            "why": self.why,
            "erased_by": self.old,
            "missing_aborts": self.missing_aborts,
            "error": self.error,
        }

    def _regions(self) -> list[dict[str, Any]]:
        found = []
        for zone in LogZone:
            its = [each for each in self.segments if each.zone is zone]
            if its:
                found.append(_region(
                    zone, its[0].base_offset, max(each.end_offset for each in its), len(its),
                    self.bytes_of(zone),
                ))  # fmt: skip
        if self.brokers_from is not None:
            found.append(_region(LogZone.BROKERS_ONLY, self.brokers_from, self.log.end, None, None))
        return found


def _region(
    zone: LogZone, base: int, end: int, segments: int | None, size: int | None
) -> dict[str, Any]:
    return {"name": zone.value, "base_offset": base, "end_offset": end, "segments": segments,
            "bytes": size}  # fmt: skip


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
            found.append(PartitionOutlook(partition=partition, log=ends, error=error_text(error)))
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
                _zoned(status, look),
                is_due=is_due if barred is None else False,
                why=why if barred is None else barred,
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
        return "paused on every host; attach resume goes on"
    if attached is not None and attached.epoch and attached.detached_ms is not None:
        return "given up by attach detach; keeplast clean takes it again"
    if has_log and (attached is None or not attached.epoch):
        return "nobody compacts it by this decision log; keeplast clean begins"
    return None


def _zoned(status: AttachedStatus, look: AttachedOutlook) -> PartitionOutlook:
    figures, limit = look.figures, look.sources.limit
    first_dirty = look.cleaned_to if figures is None else figures.first_dirty
    bound = look.sources.end if figures is None else figures.cleanable.bound

    def zone_of(start: int) -> LogZone:
        if start < first_dirty:
            return LogZone.CLEAN
        if start < bound:
            return LogZone.DIRTY
        is_margin = limit.why is SourcesEnd.MARGIN and start >= limit.offset
        return LogZone.MARGIN if is_margin else LogZone.UNCLEANABLE

    log, remote_end = status.remote.log, status.remote.remote_end
    brokers_from = log.start if remote_end is None else max(remote_end + 1, log.start)
    return PartitionOutlook(
        partition=status.partition, log=log,
        segments=tuple(
            ZonedSegment(each.start, each.end, each.size_bytes, zone_of(each.start))
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
    # Nobody reads what is gone, so that delete.retention.ms plays no part.
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
    return OldValues(after_ms, by_ms, f"{words}, if attach run goes on (default grace)")
