"""What is known of a partition in a store: its place in the loop, its objects, what is next.

State, reason, deadline and the date of old values are those of any owner's partition. Published
facts join a look with what the loop has done; nothing is read for them.

The decisions are those that the loop goes by (:mod:`keeplast.store.look`). The rule that a reader
must not break: **pages that stay open look again and again**. So objects are read for a log only
when its metadata have changed, and for :data:`OBJECT_SECONDS` a look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.dirty_section import LogFigures
from keeplast.cleaner.reasons import DueReason, NotCompacted, NothingBelow
from keeplast.errors import CompactionError, UnavailableError, error_text
from keeplast.inspect.status import ErasedBy
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.schedule import TurnHistory, read_stored_mark
from keeplast.service.snapshot import PartitionFacts, TierFacts
from keeplast.service.status import PartitionStatus, PlaceStatus, State, most_urgent_first
from keeplast.service.store_choice import tier_pace
from keeplast.store.erasure import TierEligibility, TierPace
from keeplast.store.look import FirstTimestamps, RemoteLook, look_at_remote
from keeplast.store.status import TierStatus
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import decision_words, reason_code
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.partition_state import PartitionState as Stored


def elsewhere_facts(
    request: PartitionRequest, history: TurnHistory, state: Stored, reason: str
) -> PartitionFacts:
    """Return what is published of a partition that is left alone, for ``reason``."""
    return PartitionFacts(
        request.partition, request.path, State.ELSEWHERE, reason,
        log_start=state.log_start, log_end=state.remote_end,
        rounds=history.rounds, last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        tier=TierFacts(state.owner, state.leader_epoch, state.remote_bytes, 0, 0),
    )  # fmt: skip


def with_look(facts: PartitionFacts, look: RemoteLook, looked_ms: int) -> PartitionFacts:
    """Return ``facts`` with what a look at ``looked_ms`` found of the log and its objects."""
    state = look.state
    return replace(
        facts,
        log_start=state.log_start,
        log_end=state.remote_end,
        figures=look.figures,
        surveyed_ms=looked_ms,
        is_expired_round=bool(look.expired),
        tier=TierFacts(
            state.owner, state.leader_epoch, state.remote_bytes, len(look.orphans),
            look.orphan_bytes,
        ),
    )  # fmt: skip


OBJECT_SECONDS = 5.0
"""No look begins to read objects for another log after so long."""
NOT_YET = "why it is or is not cleaned is not known yet: the next look shows it"


class StoreOutlook(Struct, frozen=True, kw_only=True):
    """One partition; ``reason`` says why it is in its ``state``.

    ``state`` is None where objects could not be read, or were not yet: ``reason`` is why, ``error``
    too where there was one, and ``figures`` and ``erased`` are None. ``erased`` is None also where
    it was not asked for.
    """

    partition: TopicPartition
    state: State | None
    reason: str
    figures: LogFigures | None = None
    erased: ErasedBy | None = None
    error: Exception | None = None
    code: str | None = None


class StoreOutlooks:
    """Outlooks of one store, look after look; what objects say of segments is kept between them."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._stamps: dict[str, int | None] = {}
        self._known: dict[TopicPartition, tuple[PartitionState, TierEligibility]] = {}
        self._begin = 0

    def find(
        self,
        opened: TieredStore,
        partitions: Sequence[TopicPartition],
        pace: TierPace | None,
        place: Callable[[TopicPartition], Path | None],
        *,
        seconds: float | None = None,
    ) -> dict[TopicPartition, StoreOutlook]:
        """Return the outlook of each of ``partitions``; ``place`` says where a host has its log.

        Without a ``pace`` nothing is read to say by when old values are gone. Partitions for which
        ``seconds``, by default :data:`OBJECT_SECONDS`, were too short are looked at first the next
        time. Once objects cannot be reached they are not asked for the rest: each says why.
        """
        clock, problem, unreached = opened.parts().clock, "", None
        until = clock.seconds() + (OBJECT_SECONDS if seconds is None else seconds)
        begin = self._begin
        found: dict[TopicPartition, StoreOutlook] = {}
        for at in range(len(partitions)):
            place_of = (begin + at) % len(partitions)
            partition = partitions[place_of]
            state = opened.state(partition)
            is_known = partition in self._known and self._known[partition][0] == state
            if not is_known and not problem and at and clock.seconds() > until:
                problem, self._begin = NOT_YET, place_of
            if problem and not is_known and state.uncleanable_reason is None:
                found[partition] = StoreOutlook(
                    partition=partition, state=None, reason=problem, error=unreached
                )
                continue
            try:
                found[partition] = self._outlook(opened, state, pace, place(partition))
            except (CompactionError, OSError) as error:
                reason = f"why it is or is not cleaned is not known: {error_text(error)}"
                found[partition] = StoreOutlook(
                    partition=partition, state=None, reason=reason, error=error
                )
                if isinstance(error, OSError | UnavailableError):
                    problem, unreached = reason, error
        self._known = {each: kept for each, kept in self._known.items() if each in found}
        return found

    def _outlook(
        self, opened: TieredStore, state: PartitionState, pace: TierPace | None, local: Path | None
    ) -> StoreOutlook:
        partition, topic = state.partition, opened.topic_for(state)
        parts = opened.parts()
        now_ms = parts.clock.now_ms()
        erased = None
        if pace is not None:
            known = self._known.get(partition)
            # A local log may have grown without any word of it in the metadata.
            if local is not None or known is None or known[0] != state:
                known = (state, opened.eligibility(state, local))
                self._known[partition] = known
            erased = known[1].bounded(topic, pace, now_ms)
        if state.uncleanable_reason is not None:
            mark = read_stored_mark(partition, state.uncleanable_reason, 0)
            return StoreOutlook(
                partition=partition, state=State.SET_ASIDE, reason=mark.reason, erased=erased
            )
        stamps = FirstTimestamps(parts.objects, self._stamps)
        return replace(_outlook_of(look_at_remote(state, (), topic, stamps, now_ms)), erased=erased)


def _outlook_of(look: RemoteLook) -> StoreOutlook:
    decision, figures = look.decision, look.figures
    if isinstance(decision, DueReason):
        state = State.OVERDUE if figures.compaction_delay_ms else State.ELIGIBLE
    elif isinstance(decision, NotCompacted):
        state = State.NOT_COMPACTED
    elif figures.first_dirty >= look.state.remote_end:
        state = State.CLEAN
    elif isinstance(decision, NothingBelow) and decision.holds_back:
        state = State.HELD_BACK
    else:
        state = State.NOT_DUE
    reason = decision_words(decision, names_options=False)
    return StoreOutlook(
        partition=look.state.partition, state=state, reason=reason, figures=figures,
        code=reason_code(decision),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus(PlaceStatus):
    """The status of a store; ``given_up`` are partitions whose objects wait to be removed."""

    given_up: tuple[TopicPartition, ...]

    def own_head(self) -> dict[str, Any]:
        """Return the partitions that have only objects left."""
        rows = [{"topic": each.topic, "partition": each.partition} for each in self.given_up]
        return {"given_up": rows}

    def notes(self) -> list[str]:
        """Name the partitions that wait to be removed."""
        return [
            f"{each}: given up; keeplast collect, or keeplast run, removes its objects"
            for each in self.given_up
        ]


def store_status(
    opened: TieredStore,
    chosen: Sequence[TopicPartition],
    given_up: Sequence[TopicPartition],
    cleaner: CleanerConfig,
    place: Callable[[TopicPartition], Path | None],
    *,
    wants_erased: bool,
) -> StoreStatus:
    """Return how the ``chosen`` partitions stand; one that cannot be read says why, and hides none.

    ``place`` says where a host has its log, which is shown too. Objects are read for the time that
    a round is due, and with ``wants_erased`` for the time that old values are gone.
    """
    found: list[PartitionStatus] = []
    tiers: dict[TopicPartition, TierStatus] = {}
    faults: dict[TopicPartition, Exception] = {}
    for each in chosen:
        tier, fault = _tier_status(opened, each, place(each))
        if tier is not None:
            tiers[each] = tier
        if fault is not None:
            faults[each] = fault
        if tier is None and fault is not None:
            found.append(PartitionStatus(each, State.UNREADABLE, error_text(fault), error=fault))
    sizes = [each.remote_bytes for each in tiers.values()]
    pace = tier_pace(cleaner, sizes) if wants_erased else None
    outlooks = StoreOutlooks().find(
        opened, [*tiers], pace, lambda each: None if each in faults else place(each),
        seconds=math.inf,
    )  # fmt: skip
    found += [
        stored_partition(tier, outlooks[each], faults.get(each)) for each, tier in tiers.items()
    ]
    return StoreStatus(
        now_ms=opened.parts().clock.now_ms(), partitions=most_urgent_first(found),
        given_up=tuple(given_up),
    )  # fmt: skip


def _tier_status(
    opened: TieredStore, partition: TopicPartition, local: Path | None
) -> tuple[TierStatus | None, Exception | None]:
    """Return what is known of a partition, and what could not be read of it, its log at least."""
    try:
        return opened.status(partition, local), None
    except (CompactionError, OSError) as error:
        fault = error
    if local is None:
        return None, fault
    try:
        return opened.status(partition), fault
    except (CompactionError, OSError) as error:
        return None, error


def stored_partition(
    tier: TierStatus, outlook: StoreOutlook | None, fault: Exception | None = None
) -> PartitionStatus:
    """Return how a partition stands by its metadata and by what comes next, None where unknown.

    ``fault`` is why its local log is not among it.
    """
    state = None if outlook is None else outlook.state
    reason = "" if outlook is None else outlook.reason
    if tier.uncleanable_reason is not None:
        state = State.SET_ASIDE
        reason = read_stored_mark(tier.partition, tier.uncleanable_reason, 0).reason
    if fault is not None:
        reason = f"{reason}; the local log is left out: {error_text(fault)}"
    return PartitionStatus(
        tier.partition,
        state or (State.DIRTY if tier.cleanable_bytes else State.CLEAN),
        reason,
        error=fault or (None if outlook is None else outlook.error),
        erased_by=None if outlook is None else outlook.erased,
        stored=tier,
        looked=None if outlook is None else outlook.figures,
        code=None if outlook is None else outlook.code,
    )
