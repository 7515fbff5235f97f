"""Compares the leader epochs of batches with the checkpoint beside them.

The epoch of a batch lies outside its checksum, so nothing else notices when it has changed. A batch
is written under one leader: its epoch is the one that the checkpoint has under way at its last
offset. In the active segment an epoch above all of the checkpoint's is only noted: a broker writes
the checkpoint behind the batch. Answers to ``LeaderEpochFileCache``; formats.md section 2.8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import Batch

EPOCH_MAGIC = 2
"""Older batches have no leader epoch."""


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """A batch whose epoch is not the checkpoint's; ``is_newer``: above all that it knows."""

    expected: int
    found: int
    is_newer: bool


class EpochCheck:
    """Looks at batches in ascending order; says the first of a run that is wrong in the same way.

    Without entries, and below the first of them, nothing is known and nothing is wrong.
    """

    def __init__(self, entries: Sequence[LeaderEpoch] = ()) -> None:
        """Take the entries as the file has them; a later one removes what it contradicts."""
        known: list[LeaderEpoch] = []
        for entry in entries:
            while known and (
                known[-1].epoch >= entry.epoch or known[-1].start_offset >= entry.start_offset
            ):
                known.pop()
            known.append(entry)
        self._known = known
        self._starts = [entry.start_offset for entry in known]
        self._last: WrongEpoch | None = None

    def take(self, batch: Batch) -> WrongEpoch | None:
        """Return what is wrong with the epoch of ``batch``, once for a run of such batches."""
        wrong = self._compare(batch)
        is_told = wrong is not None and wrong == self._last
        self._last = wrong
        return None if is_told else wrong

    def _compare(self, batch: Batch) -> WrongEpoch | None:
        place = bisect_right(self._starts, batch.last_offset)
        if batch.magic < EPOCH_MAGIC or batch.leader_epoch < 0 or place == 0:
            return None
        expected = self._known[place - 1].epoch
        if batch.leader_epoch == expected:
            return None
        is_newer = batch.leader_epoch > self._known[-1].epoch
        return WrongEpoch(expected, batch.leader_epoch, is_newer)
