"""What receipts tell of records of a key that are gone: the round they went with at the latest.

Receipts name no keys: they tell which offsets a round went over, and how many records it took. What
is still there of the key says the rest. The rule that a reader must not break: a round that goes
over a record for the first time leaves of its key, below the end of the round, the winner alone. So
where such a record is there now, all that rounds ever took of the key below that end went with that
round, or with one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keeplast.inspect.explain import KeyExplanation
from keeplast.read.transaction_outcomes import TransactionOutcome
from keeplast.survey.receipt_book import RoundReceipt


@dataclass(frozen=True, slots=True)
class PastRounds:
    """Which rounds may have taken records of a key; ``taking`` are those that took any at all.

    ``last`` is the round that was the last to take any below its end, where ``kept`` is the offset
    that it left there; both None where receipts do not tell.
    """

    taking: tuple[RoundReceipt, ...]
    last: RoundReceipt | None = None
    kept: int | None = None

    @property
    def earlier(self) -> int:
        """Return how many of ``taking`` came before ``last``."""
        if self.last is None:
            return 0
        return next((n for n, e in enumerate(self.taking) if e is self.last), 0)


def records_taken(receipt: RoundReceipt) -> int | None:
    """Return how many records and markers a round took, None where an old line does not tell."""
    read = receipt.document["round"]["stats"].get("messages_read")
    return None if read is None else int(read) - receipt.messages_written


def find_past_rounds(found: KeyExplanation, receipts: Sequence[RoundReceipt]) -> PastRounds:
    """Return what ``receipts``, the partition's in order, tell of records of the key that are gone.

    A line is an intent: what is dirty now was gone over by no round that has ended. Where more than
    one record of the key is clean, one of them could not be taken, and may go with a later round.
    """
    clean = [each.record for each in found.records if each.record.offset < found.first_dirty]
    last = None
    if len(clean) == 1 and clean[0].outcome is TransactionOutcome.COMMITTED:
        kept = clean[0].offset
        over = [each for each in receipts if each.first_dirty <= kept < each.end_offset]
        last = over[-1] if over and over[-1].has_ended else None
    taking = tuple(each for each in receipts if records_taken(each) != 0 or each is last)
    return PastRounds(taking, last, None if last is None else clean[0].offset)
