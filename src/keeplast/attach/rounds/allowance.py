"""How many swaps, and records of the metadata topic, may come of a day, whoever decides them.

The rule: **what was spent is what the decision log has of the last 24 hours**, so that no restart
and no other host begins anew. A swap is charged when it is decided with all of its records, those
too by which its sources are collected later: collection is never held up. Records stay in the
metadata topic for good, and every broker reads them at each start.
"""

from __future__ import annotations

from dataclasses import dataclass

from keeplast.attach.rules.swap import Swap
from keeplast.errors import StoppedError
from keeplast.tier.metadata.decisions import DecisionLog

DAY_MS = 24 * 60 * 60 * 1000
RECORDS_A_SEGMENT = 2
"""An output is announced and finished, a source's deletion begun and ended."""
RECORDS_TAKEN_BACK = 3
"""What was announced and not decided: its deletion is begun and ended, too."""


@dataclass(frozen=True, slots=True)
class DaySum:
    """Swaps and records of the metadata topic, of a day: what was spent, or what may be."""

    swaps: int
    records: int


class Allowance:
    """What a cluster's partitions may still spend; hosts at work at a time may each spend it."""

    def __init__(self, log: DecisionLog, cluster_id: str, caps: DaySum) -> None:
        """Take the decision log that all hosts share."""
        self._log = log
        self._cluster_id = cluster_id
        self.caps = caps

    def spent(self) -> DaySum:
        """Return what was spent in the last 24 hours."""
        since_ms = self._log.clock.now_ms() - DAY_MS
        found = self._log.counts.decided_since(self._cluster_id, since_ms)
        records = RECORDS_A_SEGMENT * found.segments + RECORDS_TAKEN_BACK * found.taken_back
        return DaySum(found.swaps, records)

    def refusal(self, spent: DaySum, segments: int = 1) -> str | None:
        """Return why a swap of so many segments has to wait, None when it need not."""
        records = spent.records + RECORDS_A_SEGMENT * segments
        if spent.swaps < self.caps.swaps and records <= self.caps.records:
            return None
        return (
            "no more may be written to the metadata topic today; it goes on when older swaps are a "
            "day old, or with a greater --swaps-per-day or --records-per-day. "
            f"swaps={spent.swaps} of {self.caps.swaps} records={spent.records} of "
            f"{self.caps.records} asked={RECORDS_A_SEGMENT * segments}"
        )

    def begin(self, segments: int) -> None:
        """StoppedError when a round of at most so many segments, read and written, has to wait.

        One that is larger than a whole day's allowance begins on a fresh day: what it swaps until
        then stays, and the next one finds less to do.
        """
        spent = self.spent()
        is_fresh = spent.swaps == 0 == spent.records
        found = self.refusal(spent, 1 if is_fresh else segments)
        if found is not None:
            raise StoppedError(found)

    def take(self, swap: Swap) -> None:
        """StoppedError when ``swap`` has to wait; asked before anything of it is announced."""
        found = self.refusal(self.spent(), len(swap.sources) + len(swap.outputs))
        if found is not None:
            raise StoppedError(found)
