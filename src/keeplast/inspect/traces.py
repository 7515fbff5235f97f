"""By when the last trace of a key is gone from a log, and every fate in words.

A bound rests on the one of the whole log (:mod:`keeplast.cleaner.erasure`): by then all that is
overwritten now is gone, and a round has given every tombstone its horizon. A tombstone goes
``delete.retention.ms`` and one more turn after that. Where it waits for readers, it goes the
longest wait later, also where they have read it: they may be sent back.

Receipts show the round that gone records of a key went with at the latest. They name no keys, but
the offsets that a round went over, and how many records it took. What is still there of the key
says the rest.

A reader must not break this rule. A round that goes over a record for the first time leaves, below
its end, the winner alone of the record's key. So where such a record is there now, all that rounds
took of the key below that end went with that round, or with one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum, auto

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.reasons import TombstoneRemoval
from keeplast.cleaner.segment_expiry import ExpiryRule, SegmentExpiry
from keeplast.clock import time_text
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.fates import Fate, Outlook, RecordVerdict, Stay
from keeplast.inspect.remains import Remains, RemainsKind
from keeplast.model.text import duration_text
from keeplast.read.transactions import TransactionOutcome
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.wording import limit_words, removal_wait_words, removal_words, wait_words

TOMBSTONE_WORDS = "write a tombstone for the key, to this partition"
"""What is to be done where a value wins."""


class TraceKind(StrEnum):
    """What is known of the last trace."""

    NOTHING_THERE = auto()
    BOUNDED = auto()
    VALUE_WINS = auto()
    UNDECIDED = auto()
    STAYS = auto()
    NO_BOUND = auto()
    NEEDS_NEW_DATA = auto()
    TOMBSTONE_STAYS = auto()
    TOMBSTONE_GOES = auto()
    NO_LOOP_BOUND = auto()
    IN_REPLACED = auto()
    KEPT_FOR_UNDO = auto()
    BESIDE_LOG = auto()
    BESIDE_STAYS = auto()
    UNSEEN = auto()


class LastTrace(Struct, frozen=True):
    """By when no record of the key is left in the log; None where that is not known.

    ``values_by_ms`` is the same of all but a winning tombstone, or a winning value. What lies
    elsewhere (other replicas, copies, other topics) is not meant. ``removal`` is what is known of
    the winning tombstone of an attached partition. ``also`` says how files next to the log go,
    where a record of the key is in them.
    """

    kind: TraceKind
    by_ms: int | None = None
    values_by_ms: int | None = None
    removal: TombstoneRemoval | None = None
    also: str = ""


def find_last_trace(
    found: KeyExplanation,
    *,
    erased_by_ms: int | None,
    turn_ms: int,
    has_expired_rounds: bool,
    kept_ms: int = 0,
) -> LastTrace:
    """Return the bound, given that of all that is overwritten now in the log.

    ``turn_ms`` is the longest from a round's being due to its end, ``kept_ms`` how long what it
    replaces stays after that. Without ``has_expired_rounds`` only rounds for new records remove
    tombstones.
    """
    if not found.records:
        return LastTrace(TraceKind.NOTHING_THERE, found.now_ms, found.now_ms)
    outlooks = {each.fate.outlook for each in found.records}
    if Outlook.UNDECIDED in outlooks:
        return LastTrace(TraceKind.UNDECIDED)
    if Outlook.STAYS in outlooks:
        return LastTrace(TraceKind.STAYS)
    if Outlook.WINS in outlooks:
        return LastTrace(TraceKind.VALUE_WINS, None, erased_by_ms)
    if erased_by_ms is None:
        return LastTrace(TraceKind.NO_BOUND)
    tombstones = [e for e in found.records if e.fate.verdict is RecordVerdict.EXPIRED_TOMBSTONE]
    if not tombstones:
        return LastTrace(TraceKind.BOUNDED, erased_by_ms, erased_by_ms)
    if not has_expired_rounds:
        return LastTrace(TraceKind.NEEDS_NEW_DATA, None, erased_by_ms)
    stamped = [
        erased_by_ms + found.topic.delete_retention_ms
        if each.record.horizon_ms is None
        else max(each.record.horizon_ms, erased_by_ms)
        for each in tombstones
    ]
    by_ms = max(stamped) + found.topic.readers_wait_ms + turn_ms + kept_ms
    return LastTrace(TraceKind.BOUNDED, by_ms, erased_by_ms)


def behind_undo(
    found: LastTrace, remains: Iterable[Remains], now_ms: int, turn_ms: int
) -> LastTrace:
    """Return the bound where those of ``remains`` that are kept for undo have records of the key.

    They go ``turn_ms`` after their end, or from now on.
    """
    kept = [each for each in remains if each.kind is RemainsKind.KEPT and each.records]
    if not kept:
        return found
    kept_ms = max(now_ms, *(each.until_ms or 0 for each in kept)) + turn_ms
    if found.kind is TraceKind.NOTHING_THERE:
        return LastTrace(TraceKind.KEPT_FOR_UNDO, kept_ms, kept_ms)
    return replace(
        found,
        by_ms=later_of(found.by_ms, kept_ms),
        values_by_ms=later_of(found.values_by_ms, kept_ms),
    )


def behind_files(found: LastTrace, by_ms: int | None, words: str) -> LastTrace:
    """Return the bound where files next to the log have the key, which are gone by ``by_ms``.

    None where that is not known; ``words`` say how they go. A record of the key is there until its
    file is gone, whatever becomes of the log's.
    """
    if found.kind is TraceKind.NOTHING_THERE:
        return LastTrace(TraceKind.BESIDE_LOG, by_ms, by_ms, also=words)
    has_bound = by_ms is not None or found.kind is not TraceKind.BOUNDED
    return replace(
        found, kind=found.kind if has_bound else TraceKind.BESIDE_STAYS,
        by_ms=later_of(found.by_ms, by_ms), values_by_ms=later_of(found.values_by_ms, by_ms),
        also=words,
    )  # fmt: skip


def unless_unseen(found: LastTrace, *, is_partly_unseen: bool) -> LastTrace:
    """Return the bound where part was not searched: that nothing is there is not known then."""
    if is_partly_unseen and found.kind is TraceKind.NOTHING_THERE:
        return LastTrace(TraceKind.UNSEEN)
    return found


def later_of(one: int | None, other: int | None) -> int | None:
    """Return the later of two bounds, None where one of them is not known."""
    return None if one is None or other is None else max(one, other)


def find_attached_trace(
    found: KeyExplanation, *, is_in_replaced: bool = False, is_partly_unseen: bool = False
) -> LastTrace:
    """Return what is known in a live cluster's remote tier.

    ``is_in_replaced`` says that segments that brokers serve no more have the key. No time bounds
    it: when brokers copy, which sets what a round may take, is not known. From when on the first
    round takes a winning tombstone, its fate says.
    """
    outlooks = {each.fate.outlook for each in found.records}
    if Outlook.UNDECIDED in outlooks:
        return LastTrace(TraceKind.UNDECIDED)
    if Outlook.STAYS in outlooks:
        return LastTrace(TraceKind.STAYS)
    if found.winner is not None:
        is_tombstone = found.winner.record.is_tombstone
        kind = TraceKind.TOMBSTONE_STAYS if is_tombstone else TraceKind.VALUE_WINS
        return LastTrace(kind, removal=found.winner.fate.removal)
    removal = next((e.fate.removal for e in found.records if e.fate.removal is not None), None)
    if removal is not None:
        # It supersedes all others: they go before it, or with it.
        return LastTrace(TraceKind.TOMBSTONE_GOES, removal=removal)
    if found.records:
        return LastTrace(TraceKind.NO_LOOP_BOUND)
    if is_in_replaced:
        return LastTrace(TraceKind.IN_REPLACED)
    if is_partly_unseen:
        return LastTrace(TraceKind.UNSEEN)
    return LastTrace(TraceKind.NOTHING_THERE, found.now_ms, found.now_ms)


_TRACES = {
    TraceKind.NOTHING_THERE: "no record of the key is in this log",
    TraceKind.BOUNDED: "every record of the key is gone from this log by then",
    TraceKind.VALUE_WINS: (
        "never while its value wins: no tombstone supersedes its winning value (offset {offset})"
    ),
    TraceKind.UNDECIDED: "no date: a transaction with the key is open",
    TraceKind.STAYS: "no date: a record stays that no round would remove",
    TraceKind.NO_BOUND: "no date: nothing says when a round is due, see 'erased by'",
    TraceKind.NEEDS_NEW_DATA: (
        "no date: a tombstone goes with the first round for new records after its delete "
        "horizon, and it is not known when those come"
    ),
    TraceKind.TOMBSTONE_STAYS: (
        "no date: its tombstone wins, and rounds of attached topics keep it until nothing that it "
        "deletes can be read any more"
    ),
    TraceKind.TOMBSTONE_GOES: (
        "its tombstone goes {removal}; what that round replaces is collected its grace later"
    ),
    TraceKind.NO_LOOP_BOUND: (
        "no date: it is not known when brokers copy more, which decides what a round may take"
    ),
    TraceKind.IN_REPLACED: (
        "only in segments that brokers serve no more: gone once the last of them is collected"
    ),
    TraceKind.KEPT_FOR_UNDO: "only in what rounds have kept for keeplast undo, gone by then",
    TraceKind.BESIDE_LOG: "not in the log itself any more, but {also}",
    TraceKind.BESIDE_STAYS: "no date: it is also {also}",
    TraceKind.UNSEEN: "no record of the key is in what was searched",
}
_VERDICTS = {
    RecordVerdict.SUPERSEDED: "superseded",
    RecordVerdict.EXPIRED_TOMBSTONE: "tombstone whose delete horizon has passed",
    RecordVerdict.ABORTED_DATA: "of an aborted transaction",
}
_EXPIRIES = {
    ExpiryRule.LOG_START: "the log start offset",
    ExpiryRule.SIZE: "retention.bytes",
    ExpiryRule.TIME: "retention.ms",
}
_STAYS = {
    Stay.BELOW_LOG_START: "below the log start: no reader sees it, and it goes with its segment",
    Stay.UNDECIDED_KEY: "what becomes of it depends on an open transaction with the same key",
    Stay.NO_DIRTY_RECORD: (
        "does not win, and no dirty record has its key: it goes once another one does"
    ),
    Stay.CUT_SEGMENT: (
        "its segment begins below the log start, and no round takes that: it goes once the log "
        "start has passed it"
    ),
}


def trace_words(found: KeyExplanation, trace: LastTrace) -> str:
    """Say what is known of the last trace."""
    winner = found.winner
    removal = "" if trace.removal is None else removal_words(trace.removal)
    if removal and trace.kind is TraceKind.TOMBSTONE_STAYS:
        return f"{removal} (its tombstone wins)"
    words = _TRACES[trace.kind].format(
        offset=None if winner is None else winner.record.offset, removal=removal, also=trace.also
    )
    if winner is not None and winner.expiry and trace.kind is TraceKind.VALUE_WINS:
        words = f"{words}; but {expiry_outlook_words(winner.expiry, found.now_ms)}"
    has_more = bool(trace.also) and "{also}" not in _TRACES[trace.kind]
    return f"{words}; also {trace.also}" if has_more else words


def reason_words(fate: Fate) -> str:
    """Say why a record goes, or why it stays."""
    if fate.verdict is not None:
        by = "" if fate.by_offset is None else f" by offset {fate.by_offset}"
        return f"{_VERDICTS[fate.verdict]}{by}"
    if fate.stay is not None:
        return _STAYS[fate.stay]
    return "wins" if fate.outlook is Outlook.WINS else "its transaction is open"


def hold_words(fate: Fate, delete_retention_ms: int) -> str | None:
    """Say what a record waits for until it goes, None when it waits for nothing."""
    if fate.removal is not None and fate.removal.stays is None:
        return removal_wait_words(fate.removal)
    if fate.has_horizon:
        retention = duration_text(delete_retention_ms)
        words = f"its delete horizon, delete.retention.ms ({retention}) after a round first kept it"
        return words if fate.readers is None else f"{words}; then {wait_words(fate.readers)}"
    return None if fate.limit is None else limit_words(fate.limit)


def expiry_outlook_words(expiry: SegmentExpiry, now_ms: int) -> str:
    """Say from when on retention or the log start takes a segment."""
    what = _EXPIRIES[expiry.rule]
    if expiry.from_ms <= now_ms:
        return f"{what} lets its segment go with the next look for what has expired"
    when = time_text(expiry.from_ms)
    return f"{what} lets its segment go from {when} on, if no round changes it before"


class Moment(Struct, frozen=True):
    """A line of a record's timeline: from ``at_ms`` on at the earliest (None: no clock decides)."""

    at_ms: int | None
    what: str
    why: str


def timeline(found: KeyExplanation, fate: Fate) -> tuple[Moment, ...]:
    """Return what a record has before it, in order, as if no record came any more."""
    hold = hold_words(fate, found.topic.delete_retention_ms)
    why = reason_words(fate)
    match fate.outlook:
        case Outlook.GOES_NEXT:
            return (Moment(fate.from_ms, "goes with the next round", why),)
        case Outlook.GOES_LATER:
            stays = Moment(found.now_ms, "stays", hold or "a round before that one")
            return (stays, Moment(fate.from_ms, "goes with the first round from then on", why))
        case Outlook.WINS:
            why = "stays until a later record supersedes it"
            if fate.removal is not None:
                why = f"{why}; gone as a tombstone: {removal_words(fate.removal)}"
            return (Moment(found.now_ms, "wins", why),)
        case _:
            return (Moment(found.now_ms, "stays", why if hold is None else f"{why}: {hold}"),)


class PastRounds(Struct, frozen=True):
    """Which rounds may have taken records of a key; ``taking`` are those that took any at all.

    ``last`` is the round that was the last to take any below its end, and ``kept`` the offset that
    it left there. Both are None where receipts do not show it.
    """

    taking: tuple[RoundReceipt, ...]
    last: RoundReceipt | None = None
    kept: int | None = None

    @property
    def earlier(self) -> int:
        """Return how many of ``taking`` came before ``last``."""
        if self.last is None:
            return 0
        return next((n for n, e in enumerate(self.taking) if e is self.last), 0)


def records_taken(receipt: RoundReceipt) -> int | None:
    """Return how many records and markers a round took, None where an old line does not say."""
    read = receipt.document["round"]["stats"].get("messages_read")
    return None if read is None else int(read) - receipt.messages_written


def find_past_rounds(found: KeyExplanation, receipts: Sequence[RoundReceipt]) -> PastRounds:
    """Return what ``receipts``, the partition's in order, say of records of the key that are gone.

    A line is an intent: what is dirty now was gone over by no round that has ended. Where more than
    one record of the key is clean, one of them could not be taken, and may go with a later round.
    """
    clean = [each.record for each in found.records if each.record.offset < found.first_dirty]
    last = None
    if len(clean) == 1 and clean[0].outcome is TransactionOutcome.COMMITTED:
        kept = clean[0].offset
        over = [each for each in receipts if each.first_dirty <= kept < each.end_offset]
        last = over[-1] if over and over[-1].has_ended else None
    taking = tuple(each for each in receipts if records_taken(each) != 0 or each is last)
    return PastRounds(taking, last, None if last is None else clean[0].offset)
