"""What the decision log says of all partitions of a cluster at once: what was spent, what waits.

Counts only, for who chooses what to do next; whoever acts on a partition reads its rows again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from keeplast.tier.metadata import schema
from keeplast.tier.state.attached import DecisionState

_A, _D, _S = schema.ATTACHED.c, schema.DECISIONS.c, schema.OWN_SEGMENTS.c
_WAITING = (DecisionState.DECIDED, DecisionState.PUBLISHED, DecisionState.COLLECTING)


@dataclass(frozen=True, slots=True)
class Decided:
    """Swaps that were decided since some time, and their segments, replaced and new.

    ``taken_back`` are ids that were announced since then and of which nothing was decided.
    """

    swaps: int
    segments: int
    taken_back: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is left to do for a partition.

    ``is_undone`` says that something was begun and not ended. ``published`` are swaps whose sources
    are not collected: when they were published, and for how long they keep them at least.
    """

    is_undone: bool
    published: tuple[tuple[int, int], ...]

    def is_collectable(self, grace_ms: int, now_ms: int) -> bool:
        """Say whether the grace of a swap's sources has passed."""
        return any(at_ms + max(grace_ms, keep_ms) <= now_ms for at_ms, keep_ms in self.published)


def _quotes(text: Any) -> Any:
    return func.length(text) - func.length(func.replace(text, '"', ""))


class DecisionCounts:
    """Counts of one decision log."""

    def __init__(self, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        """Take what begins a transaction that only reads."""
        self._reading = reading

    def decided_since(self, cluster_id: str, since_ms: int) -> Decided:
        """Return what was decided of a cluster at or after ``since_ms``."""
        # Segments are strings of a JSON list without a quote in them: each has two around it.
        quotes = _quotes(_D.sources) + _quotes(_D.outputs)
        decided = (
            select(func.count(), func.coalesce(func.sum(quotes), 0))
            .select_from(schema.DECISIONS)
            .join(schema.ATTACHED, _A.id == _D.attached_id)
            .where(_A.cluster_id == cluster_id, _D.decided_ms >= since_ms)
        )
        taken_back = (
            select(func.count())
            .select_from(schema.OWN_SEGMENTS)
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(
                _A.cluster_id == cluster_id, _S.at_ms >= since_ms, _S.decision_id.is_(None),
                _S.announced.is_not(None),
            )
        )  # fmt: skip
        with self._reading() as connection:
            swaps, found = connection.execute(decided).one()
            count = int(connection.execute(taken_back).scalar() or 0)
        return Decided(int(swaps), int(found) // 2, count)

    def with_ids(self, cluster_id: str) -> set[int]:
        """Return the rows of partitions under which an id was ever given out."""
        query = (
            select(_S.attached_id)
            .distinct()
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(_A.cluster_id == cluster_id)
        )
        with self._reading() as connection:
            return {row_id for (row_id,) in connection.execute(query)}

    def waiting(self, cluster_id: str) -> dict[int, Waiting]:
        """Return what is left to do, by the partition's row."""
        decisions = (
            select(_D.attached_id, _D.state, _D.published_ms, _D.keep_ms)
            .join(schema.ATTACHED, _A.id == _D.attached_id)
            .where(
                _A.cluster_id == cluster_id, _D.state.in_([each.value for each in _WAITING])
            )
        )  # fmt: skip
        leftovers = (
            select(_S.attached_id)
            .distinct()
            .join(schema.ATTACHED, _A.id == _S.attached_id)
            .where(
                _A.cluster_id == cluster_id, _S.decision_id.is_(None), _S.is_discarded == 0
            )
        )  # fmt: skip
        undone: set[int] = set()
        published: dict[int, list[tuple[int, int]]] = {}
        with self._reading() as connection:
            for row_id, state, published_ms, keep_ms in connection.execute(decisions):
                if state == DecisionState.DECIDED.value:
                    undone.add(row_id)
                else:
                    published.setdefault(row_id, []).append(
                        (int(published_ms or 0), int(keep_ms or 0))
                    )
            undone.update(row_id for (row_id,) in connection.execute(leftovers))
        return {
            each: Waiting(each in undone, tuple(sorted(published.get(each, ()))))
            for each in undone | published.keys()
        }
