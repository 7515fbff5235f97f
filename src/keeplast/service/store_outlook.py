"""What comes next of partitions of a store, whoever owns them: the state, the reason, the deadline,
and by when old values are gone.

The decisions are those that ``tier run`` goes by (:mod:`keeplast.store.look`). The rule that
a reader must not break: **pages that stay open look again and again**, so that objects are read for
a log only when its metadata have changed, and for :data:`OBJECT_SECONDS` a look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keeplast.cleaner.reasons import DueReason, NotCompacted, NothingBelow
from keeplast.cleaner.section import LogFigures
from keeplast.errors import CompactionError, UnavailableError, error_text
from keeplast.model.partition import TopicPartition
from keeplast.service.set_aside import read_stored_mark
from keeplast.service.status import State
from keeplast.store.erasure import TierEligibility, TierErasure, TierPace
from keeplast.store.look import FirstTimestamps, RemoteLook, look_at_remote
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.wording import decision_words
from keeplast.tier.state.partition_state import PartitionState

OBJECT_SECONDS = 5.0
"""No look begins to read objects for another log after so long."""
NOT_YET = "why it is or is not cleaned is not known yet: a next look tells it"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutlook:
    """One partition; ``reason`` says why it is in its ``state``.

    ``state`` is None where objects could not be read, or were not yet: ``reason`` is why, and
    ``figures`` and ``erased`` are None.
    """

    partition: TopicPartition
    state: State | None
    reason: str
    figures: LogFigures | None = None
    erased: TierErasure | None = None

    @property
    def deadline_ms(self) -> int | None:
        """Return when a round is due at the latest, None when nobody knows."""
        return None if self.figures is None else self.figures.overdue_from_ms

    @property
    def is_due(self) -> bool:
        """Say whether a round would be done now."""
        return self.state in (State.OVERDUE, State.ELIGIBLE)


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
        pace: TierPace,
        place: Callable[[TopicPartition], Path | None],
    ) -> dict[TopicPartition, StoreOutlook]:
        """Return the outlook of each of ``partitions``; ``place`` says where a host has its log.

        Those for which there was no time are looked at first the next time. Once objects cannot be
        reached they are not asked for the rest: each says why.
        """
        clock, problem = opened.parts().clock, ""
        until, begin = clock.seconds() + OBJECT_SECONDS, self._begin
        found: dict[TopicPartition, StoreOutlook] = {}
        for at in range(len(partitions)):
            place_of = (begin + at) % len(partitions)
            partition = partitions[place_of]
            state = opened.state(partition)
            is_known = partition in self._known and self._known[partition][0] == state
            if not is_known and not problem and at and clock.seconds() > until:
                problem, self._begin = NOT_YET, place_of
            if problem and not is_known and state.uncleanable_reason is None:
                found[partition] = StoreOutlook(partition=partition, state=None, reason=problem)
                continue
            try:
                found[partition] = self._outlook(opened, state, pace, place(partition))
            except (CompactionError, OSError) as error:
                reason = f"why it is or is not cleaned is not known: {error_text(error)}"
                found[partition] = StoreOutlook(partition=partition, state=None, reason=reason)
                if isinstance(error, OSError | UnavailableError):
                    problem = reason
        self._known = {each: kept for each, kept in self._known.items() if each in found}
        return found

    def _outlook(
        self, opened: TieredStore, state: PartitionState, pace: TierPace, local: Path | None
    ) -> StoreOutlook:
        partition, topic = state.partition, opened.topic_for(state)
        parts = opened.parts()
        now_ms = parts.clock.now_ms()
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
    return StoreOutlook(partition=look.state.partition, state=state, reason=reason, figures=figures)
