"""Drops what is known to be superseded while the batches of a window are found.

Where batches are small, most of the second pass goes into describing, judging and stepping over
batches that go. For a plain data batch the ledger alone says so: when each of its records has a
later one, nothing else about the round matters, unless the batch must stay as an empty header.
Such a batch is counted and gets no row; every other one is left to the rules, in the table.

The rule that follows: what is left out here is what :func:`keeplast.columns.verdicts.judge_rows`
would drop with the reason SUPERSEDED, and it is checked as strictly, its CRC included.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns import rules, verdicts
from keeplast.columns.kernel import OK, inline, kernel, outline
from keeplast.columns.rows import parse_record
from keeplast.columns.scan import HAS_GAPS, describe_batch, has_right_crc
from keeplast.columns.winners import LOSES

NOT_PLAIN = t.CODEC_MASK | t.CONTROL | t.TRANSACTIONAL


@outline
def _count_superseded(window, table, i, map_latest, first_noted, notes):
    """Return how many tombstones batch ``i`` has when all its records are superseded, else -1."""
    at = table[i, t.PAYLOAD_START]
    end = table[i, t.PAYLOAD_END]
    base = table[i, t.BASE_OFFSET]
    tombstones = np.int64(0)
    for _ in range(table[i, t.COUNT]):
        at, _timestamp, delta, _key, key_length, value_length, _plain = parse_record(
            window, at, end
        )
        noted = base + delta - first_noted
        if at < 0 or key_length < 0 or base + delta > map_latest:
            return np.int64(-1)
        if noted < 0 or noted >= notes.shape[0] or notes[noted] != LOSES:
            return np.int64(-1)
        tombstones += value_length < 0
    return tombstones if at == end else np.int64(-1)


@inline
def _may_go(table, i, bound, last_records):
    """Say whether batch ``i`` can be decided by the standings of its records alone."""
    return (
        table[i, t.MAGIC] == 2
        and table[i, t.ATTRIBUTES] & NOT_PLAIN == 0
        and table[i, t.COUNT] > 0
        and table[i, t.LAST_OFFSET] + 1 != bound
        and not verdicts.is_last_of_producer(table, i, last_records)
    )


@kernel(
    "UniTuple(int64, 5)(uint8[::1], int64, int64[:, ::1], int64, int64, int64[:, ::1], int64,"
    " uint8[::1], int64[::1], int64)"
)
def skim_batches(
    window, length, table, map_latest, bound, last_records, first_noted, notes, counters, size_max
):
    """Do what :func:`keeplast.columns.scan.scan_batches` does, for the second pass.

    Batches of up to ``size_max`` bytes of which nothing stays and whose CRC is right get no row
    but are counted, and HAS_GAPS is among the marks; so there may be bytes consumed and no batches.
    ``bound`` and ``last_records`` are :func:`verdicts.judge_batches`', the notes a ledger's.
    """
    position = 0
    n = 0
    marks = 0
    largest = 0
    dropped = 0
    records = 0
    size_dropped = 0
    payload_dropped = 0
    tombstones_dropped = 0
    code = np.int64(OK)
    while length - position >= t.SCAN_BYTES_MIN and n < table.shape[0]:
        size, more, code = describe_batch(window, position, length, table, n)
        if size == 0:
            break
        if size <= size_max and _may_go(table, n, bound, last_records):
            tombstones = _count_superseded(window, table, n, map_latest, first_noted, notes)
            if tombstones >= 0 and has_right_crc(window, table, n):
                position += size
                dropped += 1
                records += table[n, t.COUNT]
                size_dropped += size
                payload_dropped += size - t.HEADER_BYTES
                tombstones_dropped += tombstones
                continue
        marks |= more
        position += size
        largest = max(largest, size)
        n += 1
    if dropped > 0:
        marks |= HAS_GAPS
        counters[verdicts.BYTES_READ] += size_dropped
        counters[verdicts.MESSAGES_READ] += records
        counters[verdicts.TOMBSTONES_READ] += tombstones_dropped
        counters[verdicts.DROPPED] += dropped
        counters[verdicts.REASON_RECORDS + rules.SUPERSEDED] += records
        counters[verdicts.REASON_BYTES + rules.SUPERSEDED] += payload_dropped
    return n, position, marks, largest, code
