"""Says every reason and note in words; no other module does, and none reads them back.

The same fact is always said in the same sentence: offsets as they are, spans of time in human
units, settings and options by their names. A sentence is a fragment in lower case without a full
stop; the caller says which partition. Reports, receipts, JSON and screens show these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from keeplast.cleaner import reasons as r
from keeplast.cleaner import segment_expiry as e
from keeplast.cleaner.cleanable_range import IdleRoll
from keeplast.cleaner.erasure import BasisKind, ErasureBasis
from keeplast.cleaner.reasons import (
    MAX_LAG,
    MIN_LAG,
    MIN_RATIO,
    Decision,
    DueReason,
    Limit,
    SkipReason,
)
from keeplast.clock import utc_text
from keeplast.errors import Despite
from keeplast.format.consumer_offsets import TOPIC
from keeplast.model.hold import Absence, ReaderWait, WaitedGroup
from keeplast.model.text import duration_text, precise_duration_text, printable
from keeplast.model.undo import UndoBar, UndoRefusal
from keeplast.survey import notes as n
from keeplast.survey.notes import GivenOption, Lift, Note, RollStage

_OPTIONS = {
    GivenOption.NOW: ("--now-ms", "is ahead of the clock"),
    GivenOption.LOG_START: ("--log-start-offset", "is above the log start"),
    GivenOption.HIGH_WATERMARK: ("--high-watermark", "is above the high watermark"),
    GivenOption.FIRST_DIRTY: ("--first-dirty-offset", "is above the first dirty offset"),
    GivenOption.UNCLEANABLE: ("--uncleanable-offset", "is above the first uncleanable offset"),
}
_ANY_DATE = (
    "a record dated far ahead may still be appended, and message.timestamp.after.max.ms is not set"
)
_BASES = {
    BasisKind.CLEAN: "everything is clean",
    BasisKind.EMPTY: "it is empty",
    BasisKind.NOTHING_LEFT: "nothing superseded or deleted is left",
    BasisKind.LEFTOVERS: "files that a crash left are removed at the next look",
    BasisKind.KEPT: "what rounds have kept for undo goes then",
    BasisKind.NEXT_ROUND: "the next round covers it",
    BasisKind.OVERDUE: "it is overdue",
    BasisKind.MAX_LAG_AFTER_FIRST: f"{MAX_LAG} after the first record of {{segment}}",
    BasisKind.MAX_LAG_AFTER_LAST: f"{MAX_LAG} after the last record of {{segment}}",
    BasisKind.MIN_LAG_AFTER_LAST: f"{MIN_LAG} after the last record of {{segment}}",
    BasisKind.HELD: "no date, because {held}",
    BasisKind.HOLD: "{held}",
    BasisKind.NO_MAX_LAG: f"no date: {MAX_LAG} is not set",
    BasisKind.NO_MAX_LAG_OF_FOLLOWERS: f"no date for followers: {MAX_LAG} is not set",
    BasisKind.UNDATED: (
        f"no date, because {{segment}} begins without a timestamp: {MAX_LAG} ignores it"
    ),
    BasisKind.LAG_OF_ANY_DATE: f"no date, because of {MIN_LAG}: {_ANY_DATE}",
    BasisKind.KEY_MAP_OF_ANY_DATE: f"no date, because the key map may be full before: {_ANY_DATE}",
    BasisKind.SET_ASIDE: "no date while it is skipped",
    BasisKind.UNREADABLE: "no date while it cannot be looked at",
    BasisKind.FAILING: "? while its rounds fail: a date would rest on the next one succeeding",
}
_UNDO_BARS = {
    UndoBar.LATER_ROUND: "a later round has to be undone first",
    UndoBar.CHANGED: "the segment at {offset} is not what the round left there: the log was "
    "cleaned, cut or replaced since",
    UndoBar.CHECKPOINT: "the cleaner checkpoint says {offset}, which is neither where the round "
    "began nor where it ended: the log was cleaned since",
    UndoBar.LOG_START: "the log start has moved to {offset}, into what the round replaced",
    UndoBar.COPY: "what was kept of the segment at {offset} is missing or damaged",
    UndoBar.NO_INDEX: "the segment at {offset} had no index files, and brokers need both in a swap",
    UndoBar.DAMAGED_LIST: "the list of what the round has kept is damaged",
}
_ROLLS = {
    RollStage.DONE: "the active segment was rolled",
    RollStage.FORESEEN: "the active segment will be rolled",
    RollStage.AT_TARGET: "the active segment is rolled at --to, the source stays",
}

_REASON_CODES: dict[type, str] = {
    r.EmptyLog: "K801",
    r.OnlyActive: "K802",
    r.AllClean: "K803",
    r.AllCopiedClean: "K804",
    r.LagLimit: "K805",
    r.RatioTooLow: "K806",
    r.NothingCopied: "K807",
    r.NotCompacted: "K808",
    r.ActiveLimit: "K809",
    r.CopiedLimit: "K810",
    r.SourcesLimit: "K811",
    r.WatermarkLimit: "K812",
    r.TransactionLimit: "K813",
    r.KeptLimit: "K814",
    r.GivenLimit: "K815",
    r.HoldLimit: "K816",
}

_SOURCES_END = {
    r.SourcesEnd.HOLE: "nothing in the remote tier serves offset {offset}",
    r.SourcesEnd.SHADOWED: "of the segment at {offset} a part is served by another one",
    r.SourcesEnd.OTHER_LINEAGE: "the segment at {offset} is of leader epochs that the log's end "
    "does not know",
    r.SourcesEnd.BEGUN_COPY: "a copy that a broker has begun, and may finish yet, ends among the "
    "segments that lie over one another from offset {offset} on",
    r.SourcesEnd.MARGIN: "from {offset} on the newest segments stay as brokers copied them",
}
_ABSENCES = {
    Absence.NOT_COMMITTED: "has committed nothing",
    Absence.NOT_HERE: "counts as not there yet: {home}, where its offsets would be, is not in this "
    "directory",
    Absence.UNREADABLE: "counts as not there yet: {home}, where its offsets would be, cannot be "
    "read",
    Absence.NOT_UNDERSTOOD: "counts as not there yet: a newer Kafka wrote its offset",
    Absence.ANOTHER_TOPIC: "has committed an offset of an earlier topic of this name only",
    Absence.BEYOND_END: "has committed an offset beyond the log end, which is another log's",
    Absence.NOT_REPORTED: "counts as not there yet: {problem}",
    Absence.NOT_ASKED: "counts as not there yet: no broker was asked; status, plan, clean, "
    "run, explain and erase ask brokers, with --bootstrap-server HOST:PORT",
}
_TOMBSTONES_STAY = {
    r.TombstonesStay.RANKS: "never at this rate: by compaction.strategy records rank by more than "
    "their offset, and what brokers copy again could bring back what is deleted",
    r.TombstonesStay.LOCAL_UNLIMITED: "never at this rate: local.retention.ms has no limit (by "
    "default it goes by retention.ms), so that brokers keep what is deleted; set a finite one",
    r.TombstonesStay.LOCAL_UNKNOWN: "never at this rate: the topic has no local.retention.ms, so "
    "that how long brokers keep what is deleted is not known",
    r.TombstonesStay.NOT_REMEMBERED: "never at this rate: local.retention.ms and "
    "delete.retention.ms are together longer than the decision log remembers (30 d)",
    r.TombstonesStay.CUT: "never at this rate: the log start has cut a segment (DeleteRecords), "
    "which no round takes, and what is deleted may be in it; not before the log start has passed "
    "that",
    r.TombstonesStay.HIDDEN: "no date: brokers have a copy there, or below, that they do not serve "
    "and may yet; a round that takes all around it takes it away",
    r.TombstonesStay.OLD_FORMAT: "never at this rate: its batch is older than format 2, which "
    "alone has a delete horizon",
    r.TombstonesStay.NO_DECISION_LOG: "no date: no decision log was named, which says where what "
    "is deleted may still be read",
}
_TOMBSTONES_WAIT = {
    r.TombstonesWait.NOTHING: "nothing",
    r.TombstonesWait.HORIZON: "its delete horizon",
    r.TombstonesWait.READABLE: "until delete.retention.ms before, what is deleted may be read: in "
    "replaced segments, in brokers' local ones",
    r.TombstonesWait.COPY: "until then a broker may end a copy that it has begun",
    r.TombstonesWait.READERS: "tombstones.wait.max.ms after its delete horizon, or sooner, once "
    "consumer groups have read it",
}


def limit_words(limit: Limit) -> str:
    """Say what keeps offsets from being cleaned."""
    match limit:
        case r.ActiveLimit(offset):
            return f"the active segment starts at {offset}"
        case r.CopiedLimit(offset):
            return f"what was copied ends at {offset}"
        case r.SourcesLimit(offset, why):
            return _SOURCES_END[why].format(offset=offset)
        case r.WatermarkLimit(offset):
            return f"the high watermark is {offset}, what follows may not be on every replica"
        case r.TransactionLimit(offset):
            return f"a transaction is open since offset {offset}"
        case r.KeptLimit(offset):
            return (
                f"a transaction from {offset} on was aborted, and the rest of the log is not clean "
                "up to its end"
            )
        case r.GivenLimit(offset):
            return f"{offset} was given as the first uncleanable offset"
        case r.HoldLimit(offset, name, until_ms, point):
            within = "" if offset == point else f", which needs what lies from {offset} on,"
            return f"the state as of {point}{within} is held by {name} until {utc_text(until_ms)}"
        case r.LagLimit():
            return _lag_words(limit)
    assert_never(limit)


def _lag_words(limit: r.LagLimit) -> str:
    missing = duration_text(limit.lag_ms - limit.age_ms)
    lag = f"{MIN_LAG} ({duration_text(limit.lag_ms)})"
    name = f"segment {limit.offset}"
    if limit.is_undated:
        return f"{name} has no timestamps; its file keeps it back for another {missing} by {lag}"
    if limit.age_ms < 0:
        ahead = duration_text(-limit.age_ms)
        return f"{name} is dated {ahead} in the future and waits {missing} for {lag}"
    return f"{name} is held back for another {missing} by {lag}"


def reason_code(decision: Decision | None) -> str | None:
    """Return the code of why there is no round, as ``keeplast help`` knows it; None for a round."""
    found = decision.limit if isinstance(decision, r.NothingBelow) else decision
    return _REASON_CODES.get(type(found))


def skip_words(reason: SkipReason, *, names_options: bool = True) -> str:
    """Say why no round happens, and which option does one all the same, where one can be given."""
    match reason:
        case r.EmptyLog():
            return "nothing to clean: the log is empty"
        case r.OnlyActive(base):
            option = "; clean --roll-active closes it" if names_options else ""
            return f"nothing to clean: there is only the active segment, from {base}{option}"
        case r.AllClean(base):
            return f"nothing to clean: all is clean up to the active segment at {base}"
        case r.AllCopiedClean():
            return "nothing to clean: all that was copied is clean"
        case r.NothingBelow(r.LagLimit() as limit):
            return (
                f"too young to clean: {limit_words(limit)}; a round follows only if it is dirty "
                "enough or overdue then"
            )
        case r.NothingBelow(limit):
            return f"nothing to clean: {limit_words(limit)}"
        case r.RatioTooLow(ratio, threshold):
            remedy = f"; to go past this: clean --despite {Despite.DIRTY_RATIO}"
            option = remedy if names_options else ""
            return f"dirty ratio {ratio:.3f} is not above {MIN_RATIO} {threshold}{option}"
        case r.NothingCopied(is_host):
            return f"nothing was copied {'to object storage ' if is_host else ''}yet"
        case r.NotCompacted(policy, is_stored):
            if is_stored:
                return f"not compacted: cleanup.policy={policy}"
            return f"cleanup.policy is {policy}: the topic is not compacted"
    assert_never(reason)


def due_words(due: DueReason) -> str:
    """Say why a log is worth a round."""
    match due:
        case r.Overdue(delay_ms, lag_ms):
            return (
                f"due for a round: overdue for {precise_duration_text(delay_ms)}, {MAX_LAG} is "
                f"{duration_text(lag_ms)}"
            )
        case r.DirtyEnough(ratio, threshold):
            return f"due for a round: dirty ratio {ratio:.3f} is above {MIN_RATIO} {threshold}"
        case r.Forced(ratio, threshold):
            return f"forced: dirty ratio {ratio:.3f}, {MIN_RATIO} is {threshold}"
        case r.ExpiredDue():
            return f"a round for what has expired: {_expired_words(due)}"
        case r.Unserved(first, last):
            return (
                f"due for a round: brokers serve nothing at offsets {first} to {last}, where a "
                "copy that was finished late hides what is there"
            )
        case r.AbortUnnamed(first, marker):
            return (
                "due for a round: the transaction index that brokers serve lacks the abort at "
                f"offset {marker} of the transaction that began at {first}, so that read-committed "
                "consumers are given aborted records"
            )
    assert_never(due)


def decision_words(decision: Decision, *, names_options: bool = True) -> str:
    """Say why a log is worth a round, or why it is not, as :func:`skip_words`."""
    if isinstance(decision, DueReason):
        return due_words(decision)
    return skip_words(decision, names_options=names_options)


def due_briefly(due: DueReason) -> str:
    """Say the same in as few words as a line of a list has room for."""
    match due:
        case r.Overdue():
            return f"overdue: {MAX_LAG}"
        case r.DirtyEnough(ratio) | r.Forced(ratio):
            return f"dirty ratio {ratio:.3f} is above {MIN_RATIO}"
        case r.ExpiredDue():
            return "tombstones or markers have expired"
        case r.Unserved(first, last):
            return f"a late copy hides offsets {first} to {last}"
        case r.AbortUnnamed(_, marker):
            return f"an index lacks the abort at offset {marker}"
    assert_never(due)


def _expired_words(due: r.ExpiredDue) -> str:
    counts = ((due.tombstone_batches, "tombstone batch"), (due.marker_batches, "marker batch"))
    parts = [f"{count} {what if count == 1 else what + 'es'}" for count, what in counts if count]
    return " and ".join(parts) or "nothing"


def basis_words(basis: ErasureBasis) -> str:
    """Say what the date of an erasure rests on, or why there is none."""
    held = "" if basis.limit is None else limit_words(basis.limit)
    return _BASES[basis.kind].format(held=held, segment=f"segment {basis.base_offset}")


def expiry_words(reason: e.ExpiryReason) -> str:
    """Say why a segment goes by retention or the log start offset, or why it stays."""
    match reason:
        case e.BelowLogStart(log_start):
            return f"all of it is below the log start offset {log_start}"
        case e.SizeLeft(left, retention):
            return f"{left} bytes are left without it, retention.bytes is {retention}"
        case e.SegmentAge(age_ms, retention_ms, is_undated):
            newest = "its file" if is_undated else "its newest record"
            if age_ms < 0:
                return f"{newest} is {duration_text(-age_ms)} in the future"
            return (
                f"{newest} is {duration_text(age_ms)} old, "
                f"retention.ms is {duration_text(retention_ms)}"
            )
        case e.AboveWatermark(high_watermark):
            return f"it reaches above the high watermark {high_watermark}"
        case e.TornActive():
            return "its tail is torn"
    assert_never(reason)


def lift_words(lift: Lift) -> str:
    """Name the option, the value that was given and the one that counts."""
    option, compared = _OPTIONS[lift.option]
    why = "" if lift.limit is None else f": {limit_words(lift.limit)}"
    return f"{option} {lift.given} {compared}, {lift.actual}{why}"


def note_words(note: Note) -> str:
    """Say a note."""
    match note:
        case (
            r.Overdue()
            | r.DirtyEnough()
            | r.Forced()
            | r.ExpiredDue()
            | r.Unserved()
            | r.AbortUnnamed()
        ):
            return due_words(note)
        case r.CheckpointRepaired(checkpoint, log_start, None):
            return f"checkpoint {checkpoint} is below the log start; starting at {log_start}"
        case r.CheckpointRepaired(checkpoint, log_start, log_end):
            return (
                f"checkpoint {checkpoint} is beyond the log end {log_end}; "
                f"everything from {log_start} is dirty again"
            )
        case r.BoundNote(bound, uncleanable, limit):
            rounded = ", and a segment is cleaned as a whole" if bound < uncleanable else ""
            return f"not cleaned past offset {bound}: {limit_words(limit)}{rounded}"
        case r.FutureDates(segments, ahead_ms, has_min, has_max):
            effects = [f"{MIN_LAG} holds back what follows until then"] if has_min else []
            effects += [f"{MAX_LAG} counts from then"] if has_max else []
            return (
                f"{_dirty(segments)} dated in the future, by up to {duration_text(ahead_ms)}: "
                f"{', '.join(effects)}"
            )
        case r.MissingDates(segments, has_min, has_max):
            effects = [f"the file's time counts for {MIN_LAG}"] if has_min else []
            effects += [f"{MAX_LAG} never makes them overdue"] if has_max else []
            return f"{_dirty(segments)} without timestamps: {', '.join(effects)}"
        case r.BackDates(segments, lag_ms):
            return (
                f"{_dirty(segments)} dated before what is in front of it: {MIN_LAG} protects "
                f"for less than {duration_text(lag_ms)} after the append"
            )
        case n.RollNote(stage, idle):
            return f"{_ROLLS[stage]} ({'as asked' if idle is None else _idle_words(idle)})"
        case n.RemainsActive(base, limit):
            why = "no round is worth it" if limit is None else limit_words(limit)
            return f"the active segment from {base} on is old enough and remains at --to: {why}"
        case n.TornTail(base, position, problem, log_end):
            return (
                f"the active segment {base} is torn at byte {position} ({problem}); "
                f"the log is taken to end at offset {log_end}"
            )
        case n.RebuiltIndexes(bases):
            return f"indexes rebuilt in memory for segments {', '.join(map(str, bases))}"
        case n.UnknownFiles(count, names):
            shown = ", ".join(map(repr, names))
            return f"{count} files with names that mean nothing, left alone: {shown}"
        case n.StagedFiles(count, partition):
            return f"{count} staged files of an earlier run lie in {partition}"
        case n.LiftNote(lift, stands):
            if stands:
                return f"unsafe: {lift_words(lift)}"
            return f"clean refuses this: {lift_words(lift)}; {Despite.LOG_BOUNDS.remedy}"
        case n.ClockBehind(path, last_ms, now_ms):
            return (
                f"the clock is {(last_ms - now_ms) / 1000:.0f} s behind the last receipt: it was "
                "ahead then, and what goes by time went early, or it is behind now, and that goes "
                f"late; set it right. receipt={path} last_ms={last_ms} now_ms={now_ms}"
            )
        case n.LacksVersions(header, missing, malformed):
            return (
                f"without a version: {missing} records lack the header {header}, {malformed} have "
                "one that is not eight bytes; they lose to any that has"
            )
        case e.StaysNote(base, reason):
            return f"segment {base} stays: {expiry_words(reason)}"
        case n.WaitNote(readers):
            return wait_words(readers)
        case n.LacksEstimate(problem):
            return f"no estimate: {problem}"
        case n.PartlyDone(groups):
            return (
                f"{groups} groups of this round are in place and complete; the rest and the "
                "checkpoint are as before"
            )
    assert_never(note)


def wait_words(readers: ReaderWait) -> str:
    """Say whom tombstones and markers wait for, and up to where each has read."""
    groups = "; ".join(_group_words(each) for each in readers.groups)
    return (
        f"tombstones and markers wait for readers, at most {duration_text(readers.max_ms)} after "
        f"their delete horizon: {groups}"
    )


def _group_words(each: WaitedGroup) -> str:
    name = printable(each.group)
    if each.absence is None:
        return f"group {name} has read up to offset {each.offset}"
    return f"group {name} {absence_words(each)}"


def absence_words(each: WaitedGroup) -> str:
    """Say why no offset of a group counts, to stand after its name."""
    if each.absence is None:
        return "has one"
    return _ABSENCES[each.absence].format(home=f"{TOPIC}-{each.home}", problem=each.problem)


def removal_words(found: r.TombstoneRemoval) -> str:
    """Say with which round a tombstone of an attached partition goes, or why with none."""
    if found.stays is not None:
        return _TOMBSTONES_STAY[found.stays]
    if found.from_ms is None:
        after = precise_duration_text(found.after_round_ms or 0)
        return (
            f"with the first round that begins {after} or more after the one that goes over it "
            "next; when that is, is not known"
        )
    when = f"with the first round that begins at {utc_text(found.from_ms)} or later"
    if found.after_round_ms is not None:
        after = precise_duration_text(found.after_round_ms)
        return f"{when}, at least {after} after the next one, which is due now"
    if found.why is r.TombstonesWait.NOTHING:
        return "with the next round"
    return f"{when} ({_TOMBSTONES_WAIT[found.why]})"


def removal_wait_words(found: r.TombstoneRemoval) -> str:
    """Say what a tombstone of an attached partition that will go waits for."""
    if found.after_round_ms is not None:
        return f"a round that goes over it, and {precise_duration_text(found.after_round_ms)}"
    return _TOMBSTONES_WAIT[found.why]


def sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Say each note, in their order."""
    return tuple(note_words(note) for note in notes)


def _idle_words(idle: IdleRoll) -> str:
    return (
        f"first record {duration_text(idle.age_ms)} old, {idle.limit} is "
        f"{duration_text(idle.age_max_ms)}"
    )


def _dirty(count: int) -> str:
    return f"{count} dirty segment{' is' if count == 1 else 's are'}"


def undo_words(refusal: UndoRefusal) -> str:
    """Return why a round cannot be undone."""
    return _UNDO_BARS[refusal.bar].format(offset=refusal.offset)
