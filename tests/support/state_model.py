"""The state that a log stands for, read record by record: the model of keeplast's own reader.

The final record of every live key, as the topic ranks records: what a read-committed reader from
the log start holds in the end if it applies the rank that the cleaner applies (KIP-280). Two
passes: how transactions ended is known by their markers, which come after their data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, Record, decode_control_type
from keeplast.inspect.log_facts import ENDS_TRANSACTION
from keeplast.model.topic_config import TopicConfig
from keeplast.read.transactions import TransactionOutcomes
from tests.support.record_rank import Rank, rank_of

Batches = Callable[[], Iterable[Batch]]


def read_state(
    batches: Batches, topic: TopicConfig, *, log_start: int = 0
) -> tuple[dict[bytes, Record], int]:
    """Return the final record of every key that is not deleted, in offset order, and their end.

    ``batches`` gives all batches in log order each time it is called. Nothing below ``log_start``
    counts, and nothing at or above the exclusive end: where the first open transaction begins, or
    the log ended for the first pass. What is appended meanwhile is left to the next call, because
    nothing is known of its transactions.
    """
    outcomes, end = _outcomes(batches(), log_start)
    aborted = outcomes.aborted
    header = (topic.strategy_header or "").encode()
    winners: dict[bytes, tuple[Rank, Record]] = {}
    for batch in batches():
        if batch.base_offset >= end:
            break
        if batch.is_control or _is_aborted(batch, aborted):
            continue
        for record in batch.records():
            if record.key is None or record.offset < log_start:
                continue
            rank = rank_of(record, topic.strategy, header)
            known = winners.get(record.key)
            if known is None or known[0] < rank:
                winners[record.key] = rank, record
    found = sorted((record for _, record in winners.values()), key=lambda record: record.offset)
    return {r.key: r for r in found if r.key is not None and r.value is not None}, end


def _outcomes(batches: Iterable[Batch], log_start: int) -> tuple[TransactionOutcomes, int]:
    """Return how transactions ended, and the exclusive end of what is decided."""
    outcomes, end = TransactionOutcomes(), log_start
    for batch in batches:
        end = max(end, batch.last_offset + 1)
        if batch.producer_id < 0:
            continue
        if not batch.is_control:
            if batch.is_transactional:
                outcomes.add_data(batch.producer_id, batch.base_offset)
            continue
        record = next(iter(batch.records()), None)
        kind = None if record is None else decode_control_type(record.key)
        if kind in ENDS_TRANSACTION:
            commits = kind is ControlType.COMMIT
            outcomes.add_marker(batch.producer_id, batch.last_offset, commits=commits)
    first_open = outcomes.first_open()
    return outcomes, end if first_open is None else min(first_open, end)


def _is_aborted(batch: Batch, aborted: dict[int, list[tuple[int, int]]]) -> bool:
    if not batch.is_transactional:
        return False
    ranges = aborted.get(batch.producer_id, ())
    return any(first <= batch.base_offset <= last for first, last in ranges)
