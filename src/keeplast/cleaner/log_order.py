"""Decides which of the logs that are worth a round come first.

Among those that are eligible (:mod:`keeplast.cleaner.cleanable_range` says which):

1. a log that was passed over :data:`PASSED_OVER_MAX` times comes first, the longest waiting before
   the others;
2. then those whose ``max.compaction.lag.ms`` is overdue, whatever their ratio, the earliest
   deadline first;
3. then by dirty ratio, the highest first; rounds that only remove what has expired come last.

Rule 1 is why no log is starved, neither by hot ones nor by ones that are always overdue. With ``n``
eligible logs and ``k`` taken by each choice, every log is taken within
``PASSED_OVER_MAX + ceil(n / k)`` choices. A log that was taken begins to wait again, after all that
wait longer. ``KAFKA`` is the broker's order instead: the ratio alone, the first of equals first.
Kafka: ``LogCleanerManager.grabFilthiestCompactedLog``; cleaning.md 1.6, KIP-354.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from keeplast.model.partition import TopicPartition
from keeplast.model.text import precise_duration_text

PASSED_OVER_MAX = 4


class Order(StrEnum):
    """Whose rules say which log is next."""

    OVERDUE_FIRST = "overdue-first"
    KAFKA = "kafka"


class Candidate(Struct, frozen=True):
    """A log that is worth a round.

    ``compaction_delay_ms`` is for how long it has been overdue, 0 when it is not. ``passed_over``
    counts the choices in a row in which it was eligible and was not taken. ``is_asked_for`` says
    that its round was asked for, which changes why it was chosen and not when.
    """

    partition: TopicPartition
    ratio: float
    compaction_delay_ms: int = 0
    is_expired_round: bool = False
    passed_over: int = 0
    is_asked_for: bool = False


class Choice(Struct, frozen=True):
    """A log that was chosen, and why, in words."""

    partition: TopicPartition
    why: str


def choose(
    candidates: Sequence[Candidate], count: int, order: Order = Order.OVERDUE_FIRST
) -> tuple[Choice, ...]:
    """Return at most ``count`` of ``candidates``, the most urgent first."""
    key = (lambda each: -each.ratio) if order is Order.KAFKA else _key
    ranked = sorted(candidates, key=key)
    return tuple(Choice(each.partition, _why(each, order)) for each in ranked[:count])


def _key(candidate: Candidate) -> tuple[int, int, bool, float, TopicPartition]:
    waited = candidate.passed_over if candidate.passed_over >= PASSED_OVER_MAX else 0
    return (
        -waited,
        -candidate.compaction_delay_ms,
        candidate.is_expired_round,
        -candidate.ratio,
        candidate.partition,
    )


def _why(candidate: Candidate, order: Order) -> str:
    if candidate.is_asked_for:
        return "asked for from the console"
    if order is Order.OVERDUE_FIRST:
        if candidate.passed_over >= PASSED_OVER_MAX:
            return f"passed over {candidate.passed_over} times"
        if candidate.compaction_delay_ms > 0:
            return f"overdue for {precise_duration_text(candidate.compaction_delay_ms)}"
    if candidate.is_expired_round:
        return "only expired tombstones and markers"
    return f"dirty ratio {candidate.ratio:.2f}"
