"""What a read-committed consumer does not see, by the transaction indexes that a broker sends it.

The indexes of the right log must hide exactly the data of transactions that the markers of the
left one say were aborted: an entry too few shows an aborted record, one too many hides a committed
one. Answers to ``CompletedFetch`` of the consumer and ``TransactionIndex.collectAbortedTxns``.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format.control import ControlType
from keeplast.format.filename import TXN_INDEX
from keeplast.inspect.log_facts import control_type
from keeplast.inspect.verdicts import Findings
from keeplast.inspect.verified_log import VerifiedLog, VerifiedPart
from keeplast.log.partition_log import load_aborted
from keeplast.read.transaction_outcomes import (
    TransactionOutcome,
    TransactionOutcomes,
    is_transactional_data,
)


class HiddenRecords:
    """A consumer that reads from the log start and knows aborted transactions from indexes."""

    def __init__(self, log: VerifiedLog, outcomes: TransactionOutcomes, findings: Findings) -> None:
        """Load the transaction indexes of ``log``; ``outcomes`` is what is true."""
        self._outcomes = outcomes
        self._findings = findings
        self._entries: list[tuple[int, int]] = []
        self._at = 0
        self._hides: set[int] = set()
        bases = [segment.base_offset for segment in log.segments]
        for segment, end in zip(log.segments, [*bases[1:], 1 << 63], strict=True):
            try:
                entries = load_aborted(segment, log.files)
            except CorruptError as error:
                findings.add(str(error), offset=segment.base_offset)
                continue
            for entry in entries:
                if entry.last_offset >= end:
                    findings.add(
                        f"transaction index of segment {segment.base_offset}: the entry of "
                        f"producer {entry.producer_id} ends in another segment",
                        offset=entry.last_offset,
                    )
                self._entries.append((entry.first_offset, entry.producer_id))
        active = log.listing.active
        rebuilt = outcomes.aborted_from(active.base_offset)
        if rebuilt and not log.files.exists(active.path(TXN_INDEX)):
            findings.cannot_judge(
                "the active segment has no transaction index; a broker makes it at its start"
            )
            self._entries.extend(rebuilt)
        self._entries.sort()

    def add(self, part: VerifiedPart, first: int, last: int) -> None:
        """Read batches ``[first, last)`` of a part."""
        table = part.table[first:last]
        chosen = (table[:, t.PRODUCER_ID] >= 0) & (
            table[:, t.ATTRIBUTES] & (t.TRANSACTIONAL | t.CONTROL) != 0
        )
        if not chosen.any():
            return
        is_data = is_transactional_data(table)
        truth = self._outcomes.of_batches(table)
        for i in np.flatnonzero(chosen & (table[:, t.MAGIC] == 2)).tolist():
            base, last_offset, producer_id, count = table[
                i, [t.BASE_OFFSET, t.LAST_OFFSET, t.PRODUCER_ID, t.COUNT]
            ].tolist()
            while self._at < len(self._entries) and self._entries[self._at][0] <= last_offset:
                self._hides.add(self._entries[self._at][1])
                self._at += 1
            if not is_data[i]:
                if (
                    producer_id in self._hides
                    and control_type(part.window, part.first + first + i) is ControlType.ABORT
                ):
                    self._hides.discard(producer_id)
                continue
            is_hidden = producer_id in self._hides
            if count == 0 or is_hidden == (truth[i] == TransactionOutcome.ABORTED):
                continue
            if truth[i] == TransactionOutcome.OPEN:
                continue
            problem = (
                f"a committed record of producer {producer_id} is hidden by the transaction index"
                if is_hidden
                else f"an aborted record of producer {producer_id} is shown: the transaction index "
                "has no entry for it"
            )
            self._findings.add(problem, offset=base)
