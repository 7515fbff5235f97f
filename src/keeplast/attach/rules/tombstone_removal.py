"""Below which offset tombstones and transaction markers may leave a partition, and from when on.

Pure. Their horizons are KIP-534's, in the batches; this says where one that has passed counts.
The rule: **a tombstone goes only when nothing that it deletes can be read any more, nor could be
for** ``delete.retention.ms``. Four things may still hold what it deletes:

1. a replaced segment: until it is collected a metadata topic that loses its end, or a broker that
   lags, serves it again. So the dirty records of a round that is not collected stay;
2. a broker's local log, which no cleaner compacts: ``local.retention.ms`` and the newest record of
   its segment say until when a record may be read there;
3. a copy that a leader began and may still finish, or one that is whole and hidden;
4. a segment below the sources that the log start has cut: no round touches it.

Readers who are waited for come on top, by the survey of a round: they keep more, and never less.

A copy is unknown while the metadata topic has no word of it, because its leader sleeps. It brings a
value back only if the leader slept for ``delete.retention.ms`` and finishes it then.

For dates the clock is run on. The rule that a reader must not break: **no date is too early**: a
round that begins then takes the tombstones and markers in question. Dates rest on assumptions:
replaced segments are collected within a pass after their grace, rounds end whole, settings stay,
and no leader copies again what was copied before. No clock says that a round is done at all: none
is done for horizons alone.

Source: tiering.md 0.4 and I-16; KIP-534; docs/contributing/decisions/0030.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from keeplast.attach.rules.sources import Sources, overlaid_from, sources_start
from keeplast.attach.rules.swap import Swap
from keeplast.cleaner.reasons import TombstoneRemoval, TombstonesStay, TombstonesWait
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.live_cluster import Settings
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors
from keeplast.errors import ConflictError
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.tier.state.attached import Decision, DecisionState

REMEMBERED_MS = 30 * 24 * 60 * 60 * 1000
"""How long the decision log remembers what was collected; where that is too short, all stay."""
LOOKS = 2
"""A local segment goes with the second look for what has expired: brokers' clocks differ, too."""
CHECK_MS_DEFAULT = 300_000
_CHECK = "log.retention.check.interval.ms"
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_AS_TOTAL, _NO_LIMIT = -2, -1


class RemovalTerms(Struct, frozen=True):
    """``local_ms`` is for how long after its newest record brokers have a local segment at most."""

    delete_retention_ms: int
    local_ms: int


def removal_terms(
    config: TopicConfig, settings: Settings, brokers: Iterable[Settings]
) -> RemovalTerms | None:
    """Return the terms by what keeplast is to do, and by the settings of the topic and brokers.

    None where tombstones stay: :func:`find_terms` says why.
    """
    found = find_terms(config, settings, brokers)
    return None if isinstance(found, TombstonesStay) else found


def find_terms(
    config: TopicConfig, settings: Settings, brokers: Iterable[Settings]
) -> RemovalTerms | TombstonesStay:
    """Return the terms, or why tombstones stay.

    Brokers keep local segments for longer than is remembered here, or for an unknown time. Or
    records rank by more than their offset: a copy of what lies above a tombstone would then bring
    back what that deletes.
    """
    if config.strategy is not Strategy.OFFSET:
        return TombstonesStay.RANKS
    local_ms = find_local_ms(settings, brokers)
    if isinstance(local_ms, TombstonesStay):
        return local_ms
    found = RemovalTerms(config.delete_retention_ms, local_ms)
    is_remembered = found.delete_retention_ms + found.local_ms <= REMEMBERED_MS
    return found if is_remembered else TombstonesStay.NOT_REMEMBERED


def find_local_ms(settings: Settings, brokers: Iterable[Settings]) -> int | TombstonesStay:
    """Return for how long after its newest record brokers have a local segment at most.

    Or why that is unknown: they keep it without a limit, or the topic does not say.
    """
    kept_ms = _number(settings, "local.retention.ms")
    if kept_ms == _AS_TOTAL:
        kept_ms = _number(settings, "retention.ms")
    if kept_ms is None:
        return TombstonesStay.LOCAL_UNKNOWN
    if kept_ms <= _NO_LIMIT:
        return TombstonesStay.LOCAL_UNLIMITED
    checks = [_number(each, _CHECK) for each in brokers]
    check_ms = max((CHECK_MS_DEFAULT if each is None else each for each in checks), default=None)
    check_ms = CHECK_MS_DEFAULT if check_ms is None else check_ms
    return kept_ms + LOOKS * check_ms


def expires_below(
    terms: RemovalTerms | None,
    sources: Sources,
    cache: PartitionCache,
    decisions: Sequence[Decision],
    *,
    log_start: int,
    first_dirty: int,
    now_ms: int,
) -> int | None:
    """Return below which offset what has passed its horizon may go in a round of ``sources``.

    None when a round may not even set horizons; then all stay as they are. ``decisions`` are all of
    the partition's, ``now_ms`` is the decision log's time.
    """
    if terms is None or not sources.segments:
        return None
    if is_cut(sources.segments[0].start_offset, log_start):
        return None  # What is below is read: neither values nor aborted data are gone.
    found = min(first_dirty, exposed_from(cache, now_ms))
    for each in decisions:
        if not is_settled(each, terms, now_ms):
            found = min(found, each.first_dirty)
    return max(found, 0)


def is_cut(first_offset: int, log_start: int) -> bool:
    """Say whether the log start has cut a segment below what rounds take from ``first_offset``."""
    return first_offset > log_start


def is_settled(decision: Decision, terms: RemovalTerms, now_ms: int) -> bool:
    """Say whether nothing has read for ``delete.retention.ms`` what a swap removed, and nothing
    can.

    The segments that brokers have of it locally may end elsewhere, and begin before its newest
    record. By the publication all of them had been rolled, for the margin lies above.
    """
    collected_ms, published_ms = decision.collected_ms, decision.published_ms
    is_collected = decision.state is DecisionState.COLLECTED
    if not is_collected or collected_ms is None or published_ms is None:
        return False
    newest_ms = max(published_ms, *(each.max_timestamp_ms for each in decision.sources))
    return settled_from(terms, newest_ms, collected_ms) <= now_ms


def settled_from(terms: RemovalTerms, newest_ms: int, collected_ms: int) -> int:
    """Return from when on a swap is settled that is collected at ``collected_ms``.

    ``newest_ms`` is the later one of its publication and of its sources' newest record.
    """
    return max(collected_ms, newest_ms + terms.local_ms) + terms.delete_retention_ms


def exposed_from(cache: PartitionCache, now_ms: int) -> int:
    """Return from where on brokers may serve what they copied themselves and do not serve now.

    What they copy at the end of the log lies above all that is compacted.
    """
    return min(
        (start for start, until_ms in exposures(cache) if until_ms > now_ms), default=INT64_MAX
    )


def exposures(cache: PartitionCache) -> Iterator[tuple[int, int]]:
    """Yield where brokers' copies begin that they do not serve and may yet, and until when.

    INT64_MAX is until the copy is taken away: it is whole and hidden.
    """
    served = {each.segment.id for each in cache.served()}
    for each in cache.segments:
        if each.state is _STARTED and not is_compactors(each):
            yield each.start_offset, each.event_timestamp_ms + COPY_MS
        elif each.state is _FINISHED and each.id not in served:
            yield each.start_offset, INT64_MAX


def require_settled(
    cache: PartitionCache,
    swap: Swap,
    outputs: Iterable[RemoteLogSegment],
    *,
    log_start: int,
    now_ms: int,
) -> None:
    """Raise ConflictError when what the tombstones of a swap delete may be read again since.

    The round has looked before it began; a copy of it comes only from a leader that slept.
    ``outputs`` are those that were published.
    """
    if not swap.expires_below:
        return
    overlaid = overlaid_from(cache, outputs, log_start)
    exposed = min(exposed_from(cache, now_ms), INT64_MAX if overlaid is None else overlaid)
    if exposed < swap.expires_below:
        raise ConflictError(
            "a broker copies what was copied before, and tombstones of it would go; plan again. "
            f"partition={swap.partition.topic}-{swap.partition.partition} offset={exposed} "
            f"expires_below={swap.expires_below}",
            code="K429",
        )


def _number(settings: Settings, name: str) -> int | None:
    try:
        return int(settings.get(name) or "")
    except ValueError:
        return None


class RemovalPace(Struct, frozen=True):
    """``grace_ms`` is how long collection leaves replaced segments in place.

    ``pass_ms`` is the longest from any moment to the end of the next pass that cleans and collects.
    """

    grace_ms: int
    pass_ms: int


class Holdback(Struct, frozen=True):
    """What lies at or above ``offset`` stays until ``until_ms``; None: no clock says."""

    offset: int
    until_ms: int | None
    why: TombstonesWait


class PartitionRemoval(Struct, frozen=True, kw_only=True):
    """What can be said of a partition without reading its batches.

    ``clean`` is about what rounds have gone over and given a horizon, below ``clean_below``; None
    where that is nothing. ``next`` is about what the next round goes over, or gives a horizon. From
    ``hidden_from`` on, where it is not None, all stays: no clock says until when.
    """

    clean_below: int
    clean: TombstoneRemoval | None
    next: TombstoneRemoval
    hidden_from: int | None = None


class RemovalDates(Struct, frozen=True, kw_only=True):
    """What dates of a partition are made of, as of ``now_ms`` by the decision log's clock.

    ``stays`` is why none of its tombstones goes, and then nothing else counts. What a round goes
    over first may go ``settle_ms`` after its end, and not before ``newest_ms``. What a round gives
    a horizon may go ``horizon_ms`` after it, and ``readers_ms`` after that: the longest wait for
    consumer groups. No horizon that rounds have given is later than ``given_ms``.
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
    they were not asked for. ``readers_ms`` is how long tombstones wait for consumer groups at most;
    those that have read on may be sent back.
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
            known_ms = None if until_ms == INT64_MAX else until_ms
            yield Holdback(start, known_ms, TombstonesWait.COPY)


def _clean_below(cache: PartitionCache, cleaned_to: int) -> int:
    """Return from where on a round may take what is served once more: a segment whole."""
    found = cleaned_to
    served = cache.served_segments().values()
    for each in sorted(served, key=lambda each: each.start_offset, reverse=True):
        if each.start_offset < found <= each.end_offset:
            found = each.start_offset
    return found
