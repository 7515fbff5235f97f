"""Below which offset tombstones and transaction markers may leave an attached partition.

Pure. Their horizons are KIP-534's, in the batches; this says where one that has passed counts.
The rule: **a tombstone goes only when nothing that it deletes can be read any more, nor could be
for** ``delete.retention.ms``. Four things may still hold what it deletes:

1. a replaced segment: until it is collected a metadata topic that loses its end, or a broker that
   is behind, serves it again. So whatever was dirty in a round that is not collected stays;
2. a broker's local log, which nobody compacts: until when a record may be read there is told by
   ``local.retention.ms`` and the newest record of its segment;
3. a copy that a leader began and may still finish, or one that is whole and hidden;
4. a segment below the sources that the log start has cut: no round touches it.

Readers who are waited for come on top, by the survey of a round: they keep more, and never less.

Of a copy of which the metadata topic has no word yet, because its leader sleeps, nobody knows. It
brings a value back only if the leader slept for ``delete.retention.ms`` and finishes it then.
Source: tiering.md 0.4 and I-16; KIP-534; docs/decisions/0030.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keeplast.attach.rules.sources import Sources, overlaid_from
from keeplast.attach.rules.swap import Swap
from keeplast.cleaner.reasons import TombstonesStay
from keeplast.cluster.facts import Settings
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import is_compactors
from keeplast.errors import ConflictError
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.model.offsets import INT64_MAX
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import TopicConfig
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


@dataclass(frozen=True, slots=True)
class RemovalTerms:
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

    Brokers keep local segments for longer than is remembered here, or nobody knows for how long; or
    records rank by more than their offset, so that a copy of what lies above a tombstone would
    bring back what that deletes.
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

    Or why nobody can say: they keep it without a limit, or the topic does not tell.
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
    """Say whether nobody has read for ``delete.retention.ms`` what a swap removed, and nobody can.

    The segments that brokers have of it locally may end elsewhere, and begin before its newest
    record: by the publication all of them had been rolled, for the margin lies behind.
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

    INT64_MAX is until somebody takes it away: a copy that is whole and hidden.
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
            f"expires_below={swap.expires_below}"
        )


def _number(settings: Settings, name: str) -> int | None:
    try:
        return int(settings.get(name) or "")
    except ValueError:
        return None
