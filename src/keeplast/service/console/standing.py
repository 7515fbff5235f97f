"""How each partition stands: its state in a word, why, by when a round is due, and who comes first.

What a reader must not break: all pages and documents tell the same of one partition, whoever says
it: the loop, an outlook, or the metadata alone. Pure.
"""

from __future__ import annotations

from keeplast.cleaner.reasons import MAX_LAG, MIN_RATIO
from keeplast.config.definitions import BY_KEY
from keeplast.config.layers import Layer
from keeplast.config.settings import Settings
from keeplast.config.stored import KEPT_SOURCE
from keeplast.errors import CorruptError
from keeplast.model.offsets import INT64_MAX
from keeplast.model.partition import TopicPartition
from keeplast.model.size import format_counted
from keeplast.service.attached_outlook import PartitionOutlook
from keeplast.service.attached_status import AttachedStatus
from keeplast.service.console.view import ConsoleView
from keeplast.service.set_aside import read_stored_mark
from keeplast.service.snapshot import PartitionCondition, PartitionFacts
from keeplast.service.status import PartitionStatus, State
from keeplast.service.status_words import DAMAGE, skipped_words, state_words
from keeplast.store.status import TierStatus

Entry = PartitionStatus | TierStatus | AttachedStatus
NEED = (
    "holes", "set aside", "unreadable", "failing", "retrying", "refused", "overdue", "eligible",
    "expired", "dirty", "paused", "not due", "held back", "not attached", "owned elsewhere",
    "clean", "not compacted",
)  # fmt: skip
"""States of a store and of a live cluster, the most urgent first."""
_RANK = {state: rank for rank, state in enumerate(NEED)}


def entries(view: ConsoleView) -> tuple[Entry, ...]:
    """Return all partitions, the most urgent first."""
    if view.status is not None:
        return view.status.partitions
    facts = facts_by_partition(view)

    def need(each: Entry) -> tuple[int, int, float, TopicPartition]:
        rank = _RANK.get(state_of(view, each, facts.get(each.partition)), len(_RANK))
        late_ms = deadline_ms(view, each, facts.get(each.partition))
        by_ms = INT64_MAX if late_ms is None else late_ms
        return rank, by_ms, -ratio_of(each), each.partition

    return tuple(sorted(_unordered(view), key=need))


def _unordered(view: ConsoleView) -> tuple[TierStatus, ...] | tuple[AttachedStatus, ...]:
    return view.tiers if view.attached is None else view.attached.partitions


def state_of(view: ConsoleView, entry: Entry, facts: PartitionFacts | None = None) -> str:
    """Return the state of a partition in a word or two; ``facts`` are the loop's, where one runs.

    What is wrong comes first, whoever says so; else the loop's word counts, in which only what an
    outlook knows better is made more exact.
    """
    if isinstance(entry, PartitionStatus):
        return entry.state.value
    if isinstance(entry, AttachedStatus):
        ahead = attached_state(view, entry)
        if ahead == "holes" or facts is None:
            return ahead
    else:
        ahead = _stored_state(view, entry)
        if facts is None:
            return ahead
    if facts.state is PartitionCondition.ELIGIBLE:
        late = facts.figures is not None and facts.figures.compaction_delay_ms
        return State.OVERDUE.value if late else facts.state.value
    if facts.state is PartitionCondition.NOT_DUE:
        return ahead if ahead in _IDLE else facts.state.value
    is_late = facts.state is PartitionCondition.ELSEWHERE and ahead in _URGENT
    return ahead if is_late else facts.state.value


_IDLE = (State.CLEAN.value, State.HELD_BACK.value, State.NOT_COMPACTED.value)
_URGENT = (State.OVERDUE.value, State.SET_ASIDE.value)


def _stored_state(view: ConsoleView, entry: TierStatus) -> str:
    outlook = view.outlooks.get(entry.partition)
    if entry.uncleanable_reason is not None:
        return State.SET_ASIDE.value
    if outlook is not None and outlook.state is not None:
        return outlook.state.value
    return "dirty" if entry.cleanable_bytes else State.CLEAN.value


def stored_reason(view: ConsoleView, entry: TierStatus, facts: PartitionFacts | None) -> str:
    """Say why a partition of a store is in its state, whoever owns it."""
    outlook = view.outlooks.get(entry.partition)
    if facts is not None and facts.state is not PartitionCondition.ELSEWHERE:
        return facts.reason
    if entry.uncleanable_reason is not None:
        return read_stored_mark(entry.partition, entry.uncleanable_reason, 0).reason
    ahead = "" if outlook is None else outlook.reason
    return "; ".join(each for each in (ahead, "" if facts is None else facts.reason) if each)


def facts_by_partition(view: ConsoleView) -> dict[TopicPartition, PartitionFacts]:
    """Return what the loop of a store or a cluster says of each partition, empty without one."""
    if view.snapshot is None or view.status is not None:
        return {}
    return {each.partition: each for each in view.snapshot.partitions}


def attached_state(view: ConsoleView, entry: AttachedStatus) -> str:
    """Return the state of an attached partition where no loop says it."""
    if entry.remote.holes:
        return "holes"
    if not entry.is_attached:
        return "not attached"
    if entry.attached is not None and entry.attached.paused_ms is not None:
        return "paused"
    outlook = outlook_of(view, entry)
    if outlook is None or outlook.error is not None or outlook.is_due is None:
        return "dirty" if entry.dirty_bytes else State.CLEAN.value
    figures = outlook.figures
    if outlook.is_due:
        is_late = figures is not None and figures.compaction_delay_ms
        return State.OVERDUE.value if is_late else State.ELIGIBLE.value
    is_clean = figures is not None and not figures.cleanable.cleanable_bytes
    return State.CLEAN.value if is_clean and not entry.dirty_bytes else State.NOT_DUE.value


def deadline_ms(view: ConsoleView, entry: Entry, facts: PartitionFacts | None) -> int | None:
    """Return by when a round is due at the latest, None when nobody knows."""
    if isinstance(entry, PartitionStatus):
        return None if entry.log is None else entry.log.deadline_ms
    if facts is not None and facts.figures is not None:
        return facts.figures.overdue_from_ms
    if isinstance(entry, AttachedStatus):
        ahead = outlook_of(view, entry)
        return None if ahead is None else ahead.deadline_ms
    outlook = view.outlooks.get(entry.partition)
    return None if outlook is None else outlook.deadline_ms


def outlook_of(view: ConsoleView, entry: AttachedStatus) -> PartitionOutlook | None:
    """Return what comes next of an attached partition, None where nobody has looked."""
    return None if view.attached is None else view.attached.outlooks.get(entry.partition)


def reason_of(view: ConsoleView, entry: Entry, facts: PartitionFacts | None) -> str:
    """Return why a partition is in its state."""
    if isinstance(entry, PartitionStatus):
        return entry.reason
    if isinstance(entry, AttachedStatus):
        return attached_reason(entry, facts, outlook_of(view, entry))
    return stored_reason(view, entry, facts)


def skipped_class(entry: Entry) -> str | None:
    """Return the class of the error that a log is skipped for, None where nobody knows it."""
    if isinstance(entry, PartitionStatus):
        return None if entry.set_aside is None else entry.set_aside.error_class
    if isinstance(entry, TierStatus) and entry.uncleanable_reason is not None:
        mark = read_stored_mark(entry.partition, entry.uncleanable_reason, 0)
        return None if mark.error_class == mark.reason else mark.error_class
    return None


def is_damaged(entry: Entry) -> bool:
    """Say whether a log could not be looked at because a file is damaged."""
    error = entry.error if isinstance(entry, PartitionStatus) else None
    return isinstance(error, CorruptError)


def is_defect(entry: Entry) -> bool:
    """Say whether a log is skipped for a defect of keeplast, and not for a damaged file."""
    error_class = skipped_class(entry)
    return error_class is not None and error_class not in DAMAGE


def state_badge(entry: Entry, state: str) -> str:
    """Return the state of a log as its badge says it, of one that is skipped with what for."""
    skipped = state == State.SET_ASIDE.value
    return skipped_words(skipped_class(entry)) if skipped else state_words(state)


def cleaner_beside(view: ConsoleView) -> str:
    """Say whether a broker's own cleaner works on the same logs, as far as keeplast knows."""
    if view.attached is not None:
        return (
            "Brokers' own cleaners do not clean these logs: Kafka compacts no topic that has "
            "remote storage."
        )
    if view.status is None:
        return (
            "No broker's cleaner cleans what lies in object storage; where logs are copied from a "
            "running broker, its own cleaner may clean its files."
        )
    if view.snapshot is not None:
        return (
            "No broker runs on this directory: this loop holds the lock of the directory, and a "
            "broker that starts here fails until keeplast ends. So keeplast rolls an active "
            "segment whose first record is older than segment.ms or max.compaction.lag.ms, unless "
            "it keeps to a broker's order."
        )
    if view.status.is_locked:
        return (
            "A broker or another keeplast holds the directory. If it is a broker, its own cleaner "
            "may be at work on these logs too (log.cleaner.enable), and is not told of here."
        )
    return "No broker's cleaner works on these logs: nobody holds the lock of the directory."


def headings_of(view: ConsoleView) -> tuple[str, str]:
    """Return what the two columns of dates cover: a round's deadline, and the end of old values."""
    if view.status is not None:
        return (
            "Old values in closed segments: round due by",
            "Values overwritten until now: gone by",
        )
    where = "" if view.attached is not None else ", in object storage"
    return "Round due by", f"Values overwritten until now{where}: gone by"


def dates_words(view: ConsoleView) -> str:
    """Say what the dates of a page rest on, and from where what they are about is gone."""
    if view.attached is not None:
        loop, place = "attach run", "the remote tier and from brokers' disks"
    elif view.status is None:
        loop, place = "tier run", "the store and from the disks of its hosts"
    else:
        loop = "run"
        place = "this directory; other replicas of a log have their own cleaning"
    return (
        f"Each date is kept at the latest, while keeplast {loop} goes on and its rounds succeed. "
        f"Gone is gone from {place}."
    )


def settings_of(view: ConsoleView, entry: Entry) -> Settings | None:
    """Return the settings that count for a partition, a store's as they are kept with it.

    None where nobody knows them.
    """
    if isinstance(entry, TierStatus):
        topic = entry.partition.topic
        return Settings([Layer(KEPT_SOURCE, topics={topic: entry.settings})])
    return view.settings


def least_ratio(view: ConsoleView, entry: Entry) -> str:
    """Return the dirty ratio that a log has to be above, empty where nobody knows it."""
    settings = settings_of(view, entry)
    if settings is None:
        return ""
    found = settings.effective(BY_KEY[MIN_RATIO], entry.partition.topic)
    return f"{found.number:g}"


def has_longest_lag(view: ConsoleView, entry: Entry) -> bool | None:
    """Say whether a log becomes overdue at all; None where nobody knows."""
    settings = settings_of(view, entry)
    if settings is None:
        return None
    return settings.effective(BY_KEY[MAX_LAG], entry.partition.topic).number < INT64_MAX


def holes_words(entry: AttachedStatus) -> list[str]:
    """Return what nothing serves of an attached partition, a sentence each."""
    return [
        f"nothing serves offsets {first} to {last}; who reads them is sent elsewhere, or stops"
        for first, last in entry.remote.holes
    ]


def attached_reason(
    entry: AttachedStatus, facts: PartitionFacts | None, outlook: PartitionOutlook | None
) -> str:
    """Say why an attached partition is in its state."""
    if entry.remote.holes:
        return holes_words(entry)[0]
    if facts is not None:
        return facts.reason
    if not entry.is_attached:
        return "nothing is known of rounds: no decision log that is asked here attached it"
    kept = sum(each.segments for each in entry.waiting)
    more = f"; {format_counted(kept, 'replaced segment')} in grace" if kept else ""
    coming = "" if outlook is None else f"; next round: {outlook.error or outlook.why}"
    return f"clean up to offset {entry.cleaned_to}{more}{coming}"


def ratio_of(entry: Entry) -> float:
    """Return which part is dirty, 0 where nobody could look."""
    if not isinstance(entry, PartitionStatus):
        return entry.ratio
    return 0.0 if entry.log is None else entry.log.figures.cleanable.ratio


def find_entry(view: ConsoleView, partition: TopicPartition) -> Entry | None:
    """Return a partition of the view, None when it has no such."""
    found = _unordered(view) if view.status is None else view.status.partitions
    return next((each for each in found if each.partition == partition), None)
