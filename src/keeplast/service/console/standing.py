"""How each partition stands: its state in a word, why, by when a round is due, and who comes first.

What a reader must not break: all pages and documents show the same of one partition, whether the
loop says it, an outlook, or the metadata alone. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from keeplast.cleaner.reasons import HoldLimit
from keeplast.config.definitions import BY_KEY
from keeplast.config.layers import Layer
from keeplast.config.mapping import KEPT_SOURCE
from keeplast.config.place_properties import PlaceKind
from keeplast.config.precedence import Settings
from keeplast.errors import error_text
from keeplast.log.paths import shown
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_counted
from keeplast.service.console.view import ConsoleView
from keeplast.service.schedule import read_stored_mark
from keeplast.service.snapshot import PartitionFacts
from keeplast.service.status import PartitionStatus, PlaceStatus, State, most_urgent_first
from keeplast.service.status_words import shown_state, skipped_words
from keeplast.service.store_facts import StoreStatus, stored_partition
from keeplast.survey.wording import decision_words
from keeplast.tier.state.kept_rounds import RoundDay

_IDLE = (State.CLEAN, State.HELD_BACK, State.NOT_COMPACTED)
_IN_TURN = (State.ELIGIBLE, State.NOT_DUE)
_LOOKED = (State.OVERDUE, State.HELD_BACK, State.CLEAN, *_IN_TURN)
_URGENT = (State.OVERDUE, State.SET_ASIDE)


def entries(view: ConsoleView) -> tuple[PartitionStatus, ...]:
    """Return how all partitions stand, the most urgent first."""
    return view.kept("entries", lambda: most_urgent_first(_standing(view)))


def find_entry(view: ConsoleView, partition: TopicPartition) -> PartitionStatus | None:
    """Return how a partition of the view stands, None when it has no such."""
    return view.kept("found", lambda: {each.partition: each for each in entries(view)}).get(
        partition
    )


def _standing(view: ConsoleView) -> Iterator[PartitionStatus]:
    facts = facts_by_partition(view)
    for each in _looked_at(view):
        known = facts.get(each.partition)
        if known is not None and known.failures:
            each = replace(each, failures=known.failures, retry_at_ms=known.retry_at_ms)
        yield each if known is None or view.status is not None else _with_facts(each, known)


def _looked_at(view: ConsoleView) -> Iterable[PartitionStatus]:
    status = view.attached if view.status is None else view.status
    if status is not None:
        return status.partitions
    return (stored_partition(each, view.outlooks.get(each.partition)) for each in view.tiers)


def facts_by_partition(view: ConsoleView) -> dict[TopicPartition, PartitionFacts]:
    """Return what the loop says of each partition, empty without one."""
    found = () if view.snapshot is None else view.snapshot.partitions
    return view.kept("facts", lambda: {each.partition: each for each in found})


def _with_facts(each: PartitionStatus, facts: PartitionFacts) -> PartitionStatus:
    """Return how a partition stands by what the loop says.

    What is wrong comes first, from any source; else the loop's word counts, in which only what an
    outlook knows better is made more exact.
    """
    figures, reason = facts.figures or each.looked, facts.reason
    if each.state is State.HOLES:
        return replace(each, looked=figures)
    seen, taken = each.looked, facts.figures
    is_open = facts.state in _IN_TURN and each.state in _LOOKED
    if is_open and seen is not None and taken is not None and seen.cleanable != taken.cleanable:
        # One of the two is older. What is said of a log is of the look that has drawn it.
        return each
    if each.state is State.NOT_ATTACHED and facts.state in _IN_TURN:
        reason = f"{reason}; what is drawn is of a look before that"
    if each.stored is not None and facts.state is State.ELSEWHERE:
        why = "" if each.state is State.SET_ASIDE else facts.reason
        reason = "; ".join(words for words in (each.reason, why) if words)
    return replace(each, state=_state_with(each.state, facts), reason=reason, looked=figures)


def _state_with(ahead: State, facts: PartitionFacts) -> State:
    if facts.state is State.ELIGIBLE and facts.figures is not None:
        return State.OVERDUE if facts.figures.compaction_delay_ms else facts.state
    knows_better = (facts.state is State.NOT_DUE and ahead in _IDLE) or (
        facts.state is State.ELSEWHERE and ahead in _URGENT
    )
    return ahead if knows_better else facts.state


def reason_of(view: ConsoleView, each: PartitionStatus) -> str:
    """Return why a partition is in its state, as pages say it: they name no option."""
    if each.decision is not None:
        return decision_words(each.decision, names_options=False)
    found, outlook = each.attached, each.outlook
    if found is None or each.state is State.HOLES or view.snapshot is not None:
        return each.reason
    if not found.is_attached:
        return "nothing is known of rounds: no decision log that is asked here attached it"
    kept = sum(waiting.segments for waiting in found.waiting)
    more = f"; {format_counted(kept, 'replaced segment')} in grace" if kept else ""
    why = "" if outlook is None else outlook.why
    if outlook is not None and outlook.error is not None:
        why = error_text(outlook.error)
    coming = f"; next round: {why}" if why else ""
    return f"clean up to offset {found.cleaned_to}{more}{coming}"


def last_days(view: ConsoleView) -> Mapping[TopicPartition, RoundDay]:
    """Return the last day with rounds of each partition of a store, of any host."""
    return view.kept(
        "last days",
        lambda: {
            each.partition: each
            for each in sorted(view.round_days, key=lambda each: each.sums.last_ms)
        },
    )


def skipped_class(each: PartitionStatus) -> str | None:
    """Return the class of the error that a log is skipped for, None where it is not known."""
    if each.set_aside is not None:
        return each.set_aside.error_class
    if each.stored is None or each.stored.uncleanable_reason is None:
        return None
    mark = read_stored_mark(each.partition, each.stored.uncleanable_reason, 0)
    return None if mark.error_class == mark.reason else mark.error_class


def state_badge(each: PartitionStatus) -> str:
    """Return the state of a log as its badge says it, of one that is skipped with what for."""
    if each.state is State.SET_ASIDE:
        return skipped_words(skipped_class(each))
    return shown_state(each)


def holder_of(each: PartitionStatus) -> HoldLimit | None:
    """Return the hold that keeps rounds from a log, None without one."""
    return each.limit if isinstance(each.limit, HoldLimit) else each.hold


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
            "may be at work on these logs too (log.cleaner.enable), and is not shown here."
        )
    return "No broker's cleaner works on these logs: no process holds the lock of the directory."


def tips_of(view: ConsoleView) -> dict[str, str]:
    """Say what the two columns of dates cover: a round's deadline, and the end of old values."""
    where = "" if view.status is not None or view.attached is not None else ", in object storage"
    closed = " for old values in closed segments" if view.status is not None else ""
    return {
        "due": f"Round due by: the deadline of a round{closed}",
        "gone": f"Old values gone by: when all values overwritten until now{where} are gone",
    }


def dates_words(view: ConsoleView) -> str:
    """Say what the dates of a page rest on, and from where what they are about is gone."""
    if view.attached is not None:
        place = "the remote tier and from brokers' disks"
    elif view.status is None:
        place = "the store and from the disks of its hosts"
    else:
        place = "this directory; other replicas of a log have their own cleaning"
    return (
        f"Each date is kept at the latest, while keeplast run goes on and its rounds succeed. "
        f"Gone is gone from {place}."
    )


def settings_of(view: ConsoleView, each: PartitionStatus) -> Settings | None:
    """Return the settings that count for a partition, a store's as they are kept with it.

    None where they are not known.
    """
    if each.stored is None:
        return view.settings
    return Settings([Layer(KEPT_SOURCE, topics={each.partition.topic: each.stored.settings})])


def setting_number(view: ConsoleView, each: PartitionStatus, key: str) -> float | None:
    """Return what a setting of a partition is, None where settings are not known."""
    settings = settings_of(view, each)
    if settings is None:
        return None
    return settings.effective(BY_KEY[key], each.partition.topic).number


def place_head(view: ConsoleView) -> dict[str, Any]:
    """Return how documents name the place."""
    if view.status is not None:
        return {"place": shown(str(view.status.root)), "kind": PlaceKind.DIRECTORY}
    if view.attached is not None:
        return {"place": f"kafka://{view.attached.address}", "kind": PlaceKind.CLUSTER}
    return {"place": view.place, "kind": PlaceKind.STORE}


def status_among(view: ConsoleView, found: Sequence[PartitionStatus]) -> PlaceStatus:
    """Return the status of the place with these partitions alone."""
    rows = tuple(found)
    if view.status is not None:
        return dataclasses.replace(view.status, partitions=rows)
    if view.attached is not None:
        return dataclasses.replace(view.attached, partitions=rows)
    return StoreStatus(now_ms=view.now_ms, partitions=rows, given_up=view.given_up)
