"""The header of a batch after cleaning, against the header it came from.

Cleaning keeps base and last offset, leader epoch, producer fields and all attributes; it may set a
delete horizon once, take the codec off an emptied batch, and lower the greatest timestamp with the
record that had it. A batch of an old format comes out as magic 2 without any of it (F1 of
cleaning-findings). Answers to ``MemoryRecords.buildRetainedRecordsInto``; cleaning.md 3.7, 3.8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batch_table as t
from keeplast.inspect.verdicts import Findings
from keeplast.inspect.verified_log import BASE_SEQUENCE, LEADER_EPOCH, VerifiedPart


class FieldComparison:
    """Compares matched batches and says what differs."""

    def __init__(self, findings: Findings, *, are_replicas: bool) -> None:
        """Report to ``findings``; of replicas either may be the cleaner one."""
        self._findings = findings
        self._are_replicas = are_replicas

    def add(
        self,
        left: VerifiedPart,
        found: NDArray[np.int64],
        right: VerifiedPart,
        numbers: NDArray[np.int64],
    ) -> None:
        """Compare left's batches ``found`` with right's ``numbers``, pair by pair."""
        ours, theirs = left.table[found], right.table[numbers]
        ours_extra, theirs_extra = left.extra[found], right.extra[numbers]
        is_converted = (ours[:, t.MAGIC] < 2) & (theirs[:, t.MAGIC] == 2)
        both = (ours[:, t.MAGIC] == 2) & (theirs[:, t.MAGIC] == 2)
        is_back = (ours[:, t.MAGIC] == 2) & (theirs[:, t.MAGIC] < 2)
        if not self._are_replicas:
            self._say("the format went back to an old one", is_back, theirs)
            self._say(
                "a batch of an old format has a producer now",
                is_converted & (theirs[:, t.PRODUCER_ID] != -1),
                theirs,
            )
        for name, column in (
            ("base offset", t.BASE_OFFSET),
            ("last offset", t.LAST_OFFSET),
            ("producer id", t.PRODUCER_ID),
            ("producer epoch", t.PRODUCER_EPOCH),
        ):
            self._differ(name, both, ours[:, column], theirs[:, column], theirs)
        for name, column in (("leader epoch", LEADER_EPOCH), ("base sequence", BASE_SEQUENCE)):
            self._differ(name, both, ours_extra[:, column], theirs_extra[:, column], theirs)
        for name, mask in (
            ("timestamp type", t.LOG_APPEND_TIME),
            ("transactional flag", t.TRANSACTIONAL),
            ("control flag", t.CONTROL),
        ):
            self._differ(
                name, both, ours[:, t.ATTRIBUTES] & mask, theirs[:, t.ATTRIBUTES] & mask, theirs
            )
        is_filled = (ours[:, t.COUNT] > 0) & (theirs[:, t.COUNT] > 0)
        self._differ(
            "codec",
            both & is_filled,
            ours[:, t.ATTRIBUTES] & t.CODEC_MASK,
            theirs[:, t.ATTRIBUTES] & t.CODEC_MASK,
            theirs,
        )
        if not self._are_replicas:
            self._check_horizons(both & (theirs[:, t.COUNT] > 0), ours, theirs)
            self._check_timestamps(both, ours, theirs)

    def _check_horizons(
        self, both: NDArray[np.bool_], ours: NDArray[np.int64], theirs: NDArray[np.int64]
    ) -> None:
        had = ours[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
        has = theirs[:, t.ATTRIBUTES] & t.DELETE_HORIZON != 0
        moved = ours[:, t.BASE_TIMESTAMP] != theirs[:, t.BASE_TIMESTAMP]
        self._say("the delete horizon moved", both & had & (~has | moved), theirs)

    def _check_timestamps(
        self, both: NDArray[np.bool_], ours: NDArray[np.int64], theirs: NDArray[np.int64]
    ) -> None:
        """The greatest timestamp stays, or is that of the records that are left."""
        differs = ours[:, t.MAX_TIMESTAMP] != theirs[:, t.MAX_TIMESTAMP]
        is_fixed = (theirs[:, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0) | (theirs[:, t.COUNT] == 0)
        is_wrong = is_fixed | (theirs[:, t.MAX_TIMESTAMP] != theirs[:, t.OUT_MAX_TIMESTAMP])
        self._say("greatest timestamp changed", both & differs & is_wrong, theirs)

    def _differ(
        self,
        name: str,
        both: NDArray[np.bool_],
        ours: NDArray[np.int64],
        theirs: NDArray[np.int64],
        table: NDArray[np.int64],
    ) -> None:
        for i in np.flatnonzero(both & (ours != theirs)).tolist():
            self._findings.add(
                f"{name} of the batch changed from {ours[i]} to {theirs[i]}",
                offset=int(table[i, t.BASE_OFFSET]),
            )

    def _say(self, problem: str, chosen: NDArray[np.bool_], table: NDArray[np.int64]) -> None:
        for i in np.flatnonzero(chosen).tolist():
            self._findings.add(problem, offset=int(table[i, t.BASE_OFFSET]))
