"""From when on rounds take the tombstones and markers of an attached partition, or why never.

Pure: :mod:`keeplast.attach.rules.removal` decides, and here the clock is run on for it. The rule
that a reader must not break: **no time told here is too early**: a round that begins then takes
what was asked about. It rests on what nobody can know: what was replaced is collected within a pass
behind its grace, rounds end whole, settings stay, and no leader copies again what was copied
before. That a round is done at all, no clock tells: none is done for horizons alone.
docs/decisions/0030.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keeplast.attach.rules.removal import (
    REMEMBERED_MS,
    RemovalTerms,
    exposures,
    is_cut,
    is_settled,
    settled_from,
)
from keeplast.attach.rules.sources import sources_start
from keeplast.cleaner.reasons import TombstoneRemoval, TombstonesStay, TombstonesWait
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.model.offsets import INT64_MAX
from keeplast.tier.state.attached import Decision, DecisionState


@dataclass(frozen=True, slots=True)
class RemovalPace:
    """``grace_ms`` is how long whoever collects lets replaced segments lie.

    ``pass_ms`` is the longest from any moment to the end of the next pass that cleans and collects.
    """

    grace_ms: int
    pass_ms: int


@dataclass(frozen=True, slots=True)
class Holdback:
    """What lies at or above ``offset`` stays until ``until_ms``; None: no clock tells."""

    offset: int
    until_ms: int | None
    why: TombstonesWait


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRemoval:
    """What can be said of a partition without reading its batches.

    ``clean`` is about what rounds have gone over and given a horizon, below ``clean_below``; None
    where that is nothing. ``next`` is about what the next round goes over, or gives a horizon.
    From ``hidden_from`` on, where it is not None, all stays: no clock tells until when.
    """

    clean_below: int
    clean: TombstoneRemoval | None
    next: TombstoneRemoval
    hidden_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalDates:
    """What dates of a partition are made of, as of ``now_ms`` by the decision log's clock.

    ``stays`` is why none of its tombstones goes, and then nothing else counts. What a round goes
    over first may go ``settle_ms`` after its end, and not before ``newest_ms``; what one gives a
    horizon, ``horizon_ms`` after it, and ``readers_ms`` behind that, the longest wait for consumer
    groups. No horizon that rounds have given is later than ``given_ms``.
    """

    now_ms: int
    pass_ms: int
    stays: TombstonesStay | None = None
    settle_ms: int = 0
    horizon_ms: int = 0
    newest_ms: int = 0
    readers_ms: int = 0
    given_ms: int = 0
    holdbacks: tuple[Holdback, ...] = ()

    def of(
        self, offset: int, *, horizon_ms: int | None, first_dirty: int, is_due: bool = False,
        is_old_format: bool = False,
    ) -> TombstoneRemoval:  # fmt: skip
        """Return when the tombstone, or marker, at ``offset`` goes.

        ``horizon_ms`` is its batch's, None without one. ``is_due`` says that the next round goes
        over it, and is due now.
        """
        if self.stays is not None:
            return TombstoneRemoval(self.stays)
        if is_old_format:
            return TombstoneRemoval(TombstonesStay.OLD_FORMAT)
        below = [each for each in self.holdbacks if each.offset <= offset]
        waits = [(each.until_ms, each.why) for each in below if each.until_ms is not None]
        if len(waits) < len(below):
            return TombstoneRemoval(TombstonesStay.HIDDEN)
        after_ms: int | None = None
        if offset >= first_dirty:
            after_ms = max(self.settle_ms, self.horizon_ms + self.readers_ms)
            waits.append((self.newest_ms, TombstonesWait.READABLE))
        elif horizon_ms is None:
            after_ms = self.horizon_ms + self.readers_ms
        else:
            waits.append((horizon_ms, TombstonesWait.HORIZON))
            if self.readers_ms:
                waits.append((horizon_ms + self.readers_ms, TombstonesWait.READERS))
        until_ms, why = max(waits, default=(-1, TombstonesWait.NOTHING))
        if until_ms <= self.now_ms:
            until_ms, why = self.now_ms, TombstonesWait.NOTHING
        if after_ms is None:
            return TombstoneRemoval(None, until_ms, None, why)
        if not is_due:
            # A round that ends later than now ends later than that before `until_ms`, too.
            return TombstoneRemoval(None, None, max(after_ms, until_ms - self.now_ms), why)
        from_ms = max(until_ms, self.now_ms + self.pass_ms + after_ms)
        return TombstoneRemoval(None, from_ms, after_ms, why)

    def of_partition(self, cache: PartitionCache, cleaned_to: int) -> PartitionRemoval:
        """Return what can be said of all; ``cleaned_to`` is the first offset that is not clean."""
        first_dirty = _clean_below(cache, cleaned_to)
        hidden = [each.offset for each in self.holdbacks if each.until_ms is None]
        hidden_from = min(hidden, default=None)
        end = max((each.end_offset + 1 for each in cache.served()), default=first_dirty)
        last = (end if hidden_from is None else min(end, hidden_from)) - 1
        has_clean = any(each.start_offset < first_dirty for each in cache.served())
        clean = self.of(
            min(first_dirty - 1, last), horizon_ms=self.given_ms, first_dirty=first_dirty
        )
        return PartitionRemoval(
            clean_below=first_dirty, clean=clean if has_clean else None,
            next=self.of(last, horizon_ms=None, first_dirty=min(first_dirty, last)),
            hidden_from=hidden_from,
        )  # fmt: skip


def find_removal_dates(
    terms: RemovalTerms | TombstonesStay,
    cache: PartitionCache,
    decisions: Sequence[Decision] | None,
    pace: RemovalPace,
    *,
    log_start: int,
    now_ms: int,
    readers_ms: int = 0,
) -> RemovalDates:
    """Return what dates of a partition are made of.

    ``terms`` are :func:`.removal.find_terms`'s, ``decisions`` all of the partition's, None where
    nobody was asked. ``readers_ms`` is how long tombstones wait for consumer groups at most; those
    that have read on may be sent back.
    """
    stays = terms if isinstance(terms, TombstonesStay) else None
    if stays is None and is_cut(sources_start(cache, log_start), log_start):
        stays = TombstonesStay.CUT
    if stays is None and decisions is None:
        stays = TombstonesStay.NO_DECISION_LOG
    if stays is not None or decisions is None or isinstance(terms, TombstonesStay):
        return RemovalDates(now_ms=now_ms, pass_ms=pace.pass_ms, stays=stays)
    newest_ms = max(
        (each.max_timestamp_ms for each in cache.served_segments().values()), default=-1
    )
    by_ms = now_ms + pace.pass_ms
    published = [by_ms if e.published_ms is None else e.published_ms for e in decisions]
    # What the decision log has forgotten was published before.
    given_ms = max([*published, now_ms - REMEMBERED_MS]) + terms.delete_retention_ms
    return RemovalDates(
        now_ms=now_ms, pass_ms=pace.pass_ms,
        settle_ms=settled_from(terms, 0, pace.grace_ms + pace.pass_ms),
        horizon_ms=terms.delete_retention_ms,
        newest_ms=settled_from(terms, newest_ms, 0), readers_ms=readers_ms, given_ms=given_ms,
        holdbacks=(*_unsettled(terms, decisions, pace, now_ms), *_exposed(cache, now_ms)),
    )  # fmt: skip


def swap_settled_ms(decision: Decision, terms: RemovalTerms, pace: RemovalPace, now_ms: int) -> int:
    """Return from when on a swap is settled, if it is collected in time: :func:`settled_from`."""
    by_ms = now_ms + pace.pass_ms
    published_ms = by_ms if decision.published_ms is None else decision.published_ms
    is_collected = decision.state is DecisionState.COLLECTED
    collected_ms = decision.collected_ms if is_collected else None
    if collected_ms is None:
        kept_ms = published_ms + max(pace.grace_ms, decision.keep_ms)
        collected_ms = max(kept_ms, now_ms) + pace.pass_ms
    newest_ms = max(published_ms, *(each.max_timestamp_ms for each in decision.sources))
    return settled_from(terms, newest_ms, collected_ms)


def _unsettled(
    terms: RemovalTerms, decisions: Sequence[Decision], pace: RemovalPace, now_ms: int
) -> Iterator[Holdback]:
    """Yield what swaps hold back that are not settled."""
    for each in decisions:
        if is_settled(each, terms, now_ms):
            continue
        until_ms = swap_settled_ms(each, terms, pace, now_ms)
        yield Holdback(each.first_dirty, until_ms, TombstonesWait.READABLE)


def _exposed(cache: PartitionCache, now_ms: int) -> Iterator[Holdback]:
    """Yield what brokers' own copies hold back that they do not serve."""
    for start, until_ms in exposures(cache):
        if until_ms > now_ms:
            told_ms = None if until_ms == INT64_MAX else until_ms
            yield Holdback(start, told_ms, TombstonesWait.COPY)


def _clean_below(cache: PartitionCache, cleaned_to: int) -> int:
    """Return from where on a round may take what is served once more: a segment whole."""
    found = cleaned_to
    served = cache.served_segments().values()
    for each in sorted(served, key=lambda each: each.start_offset, reverse=True):
        if each.start_offset < found <= each.end_offset:
            found = each.start_offset
    return found
