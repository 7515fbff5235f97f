"""Why a log is cleaned as far as it is, and no further: kinds with their numbers, no words.

Three families: a :data:`Limit` is what keeps offsets from being cleaned, a :data:`SkipReason` why
no round happens, a :data:`DueReason` why one is worth it. Code that must distinguish them asks for
the class, never for the sentence; the sentences are those of :mod:`keeplast.survey.wording`.

Pure. The rules are those of :mod:`~keeplast.cleaner.cleanable_range` and
:mod:`~keeplast.cleaner.dirty_section`; KIP-58, KIP-354, cleaning.md 1.3 to 1.6.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

MIN_LAG = "min.compaction.lag.ms"
MAX_LAG = "max.compaction.lag.ms"
MIN_RATIO = "min.cleanable.dirty.ratio"


class ActiveLimit(Struct, frozen=True):
    """The active segment begins at ``offset``; it is never cleaned."""

    offset: int


class CopiedLimit(Struct, frozen=True):
    """What was copied to the store ends at ``offset``, exclusive."""

    offset: int


class SourcesEnd(Enum):
    """What ends the segments of a live cluster's remote tier that may be compacted."""

    HOLE = "hole"
    SHADOWED = "shadowed"
    OTHER_LINEAGE = "other lineage"
    BEGUN_COPY = "begun copy"
    MARGIN = "margin"


class SourcesLimit(Struct, frozen=True):
    """What may be compacted in a live cluster's remote tier ends at ``offset`` or before it."""

    offset: int
    why: SourcesEnd


class WatermarkLimit(Struct, frozen=True):
    """The high watermark: what follows may not be on every replica."""

    offset: int


class TransactionLimit(Struct, frozen=True):
    """A transaction that begins at ``offset`` is undecided."""

    offset: int


class KeptLimit(Struct, frozen=True):
    """A transaction from ``offset`` on was aborted, and must be cleaned elsewhere first."""

    offset: int


class GivenLimit(Struct, frozen=True):
    """The caller gave ``offset`` as the first uncleanable one."""

    offset: int


class HoldLimit(Struct, frozen=True):
    """The hold ``name`` keeps the state as of ``point`` until ``until_ms``: from ``offset`` on
    nothing is cleaned.
    """

    offset: int
    name: str
    until_ms: int
    point: int


class LagLimit(Struct, frozen=True):
    """The segment at ``offset`` is younger than the least lag, ``lag_ms`` > ``age_ms``.

    A negative age is a date in the future. ``is_undated``: the age is the file's.
    """

    offset: int
    age_ms: int
    lag_ms: int
    is_undated: bool = False


Limit = (
    ActiveLimit
    | CopiedLimit
    | SourcesLimit
    | WatermarkLimit
    | TransactionLimit
    | KeptLimit
    | GivenLimit
    | HoldLimit
    | LagLimit
)


class EmptyLog(Struct, frozen=True):
    """There is no record in the log, so nothing to clean."""


class OnlyActive(Struct, frozen=True):
    """The log has one segment, the active one from ``active_base`` on."""

    active_base: int


class AllClean(Struct, frozen=True):
    """All is clean up to the active segment at ``active_base``."""

    active_base: int


class AllCopiedClean(Struct, frozen=True):
    """All that was copied to the store is clean."""


class NothingBelow(Struct, frozen=True):
    """All that is dirty lies at or above ``limit``, where no round may clean."""

    limit: Limit

    @property
    def holds_back(self) -> bool:
        """Say whether closed segments wait, too: not just the active one is left."""
        return not isinstance(self.limit, ActiveLimit)


class RatioTooLow(Struct, frozen=True):
    """The dirty ratio is not above ``threshold``; equal to it is too little."""

    ratio: float
    threshold: float


class NothingCopied(Struct, frozen=True):
    """A store has nothing of the partition yet; ``host`` asks as the one that would copy it."""

    is_host: bool = False


class NotCompacted(Struct, frozen=True):
    """``cleanup.policy`` is ``policy``, without ``compact``; ``is_stored`` of a store's topic."""

    policy: str
    is_stored: bool = False


SkipReason = (
    EmptyLog
    | OnlyActive
    | AllClean
    | AllCopiedClean
    | NothingBelow
    | RatioTooLow
    | NothingCopied
    | NotCompacted
)


class Overdue(Struct, frozen=True):
    """``max.compaction.lag.ms``, ``lag_ms``, has passed for ``delay_ms``."""

    delay_ms: int
    lag_ms: int


class DirtyEnough(Struct, frozen=True):
    """The dirty ratio is above ``threshold``, which is ``min.cleanable.dirty.ratio``."""

    ratio: float
    threshold: float


class Forced(Struct, frozen=True):
    """The caller insists; the dirty ratio is not above ``threshold``."""

    ratio: float
    threshold: float


class ExpiredDue(Struct, frozen=True):
    """Tombstones or markers may go: the batches of each whose delete horizon has passed."""

    tombstone_batches: int
    marker_batches: int


class Unserved(Struct, frozen=True):
    """Brokers serve nothing at offsets ``first`` to ``last``, which a round makes served again."""

    first: int
    last: int


class TombstonesStay(StrEnum):
    """Why no round takes a tombstone or marker of an attached partition, as things are."""

    RANKS = "ranks"
    LOCAL_UNLIMITED = "local retention unlimited"
    LOCAL_UNKNOWN = "local retention unknown"
    NOT_REMEMBERED = "longer than remembered"
    CUT = "cut by the log start"
    HIDDEN = "hidden copy"
    OLD_FORMAT = "old format"
    NO_DECISION_LOG = "no decision log"


class TombstonesWait(StrEnum):
    """What a tombstone of an attached partition waits for the longest."""

    NOTHING = "nothing"
    HORIZON = "delete horizon"
    READABLE = "still readable"
    COPY = "copy begun"
    READERS = "readers"


class TombstoneRemoval(Struct, frozen=True):
    """From when on rounds take a tombstone or marker of an attached partition, at the latest.

    ``stays`` says why none will, and then nothing else counts. Otherwise the first round takes it
    that begins at ``from_ms`` or later. That rests on ``why`` and, where ``after_round_ms`` is
    there, on the next round that goes over it: the time is as long after that one's end. With
    ``from_ms`` None it is not known when that is.
    """

    stays: TombstonesStay | None = None
    from_ms: int | None = None
    after_round_ms: int | None = None
    why: TombstonesWait = TombstonesWait.NOTHING


class AbortUnnamed(Struct, frozen=True):
    """The transaction index that brokers serve lacks the abort at offset ``marker`` of the
    transaction that began at ``first``: read-committed consumers are given its records."""

    first: int
    marker: int


DueReason = Overdue | DirtyEnough | Forced | ExpiredDue | Unserved | AbortUnnamed
Decision = SkipReason | DueReason
"""Whether a log is worth a round, and why or why not."""


class CheckpointRepaired(Struct, frozen=True):
    """The cleaner checkpoint lies outside the log: cleaning starts at ``log_start``.

    ``log_end`` is there when the checkpoint is beyond it, None when it is below the log start.
    """

    checkpoint: int
    log_start: int
    log_end: int | None = None


class BoundNote(Struct, frozen=True):
    """A round ends before ``bound``; ``uncleanable`` is ``limit`` before rounding to a segment."""

    bound: int
    uncleanable: int
    limit: Limit


class FutureDates(Struct, frozen=True):
    """``segments`` dirty ones are dated up to ``ahead_ms`` ahead, and which lags that touches."""

    segments: int
    ahead_ms: int
    has_min_lag: bool
    has_max_lag: bool


class MissingDates(Struct, frozen=True):
    """``segments`` dirty ones have no timestamp, and which lags that touches."""

    segments: int
    has_min_lag: bool
    has_max_lag: bool


class BackDates(Struct, frozen=True):
    """``segments`` dirty ones are dated before what is in front of them; the least lag is set."""

    segments: int
    lag_ms: int


SectionNote = DueReason | CheckpointRepaired | BoundNote | FutureDates | MissingDates | BackDates
