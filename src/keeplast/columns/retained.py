"""What of the batches and rows of a window remains: the rules, one function a rule, and their use.

A record goes only for one of five reasons, tested in this order:

1. its transaction was aborted, or it is a marker whose horizon has passed;
2. it has no key and lies at or below the key map's last offset, unless such records are kept;
3. a record with its key and a greater rank is in the key map: with the strategy ``offset``, one
   with a greater offset;
4. it is a tombstone whose delete horizon has passed (magic 2);
5. it is a tombstone of a segment older than the old-format horizon (magic 0 and 1).

Where readers are waited for, what has passed its horizon goes by (1), (4) and (5) below the offset
that all of them have read to. From there on it goes once it has waited long enough:
:func:`kept_from`.

Everything above the key map's last offset stays, because nothing is known about it, unless (1).
Where versions rank, (4) and (5) wait until nothing that the tombstone outranks can be left: see
:func:`may_expire`. Answers to ``Cleaner.checkBatchRetention`` and ``shouldRetainRecord``;
cleaning.md sections 3.4 and 9.3.

In this order: :func:`judge_batches` before records are parsed (batches with DELETE never are), then
:func:`mark_indexed` for the first pass, or :func:`judge_rows` for the second.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batches as t
from keeplast.columns.kernel import inline, kernel
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.version_ranks import HAS_VERSION
from keeplast.columns.winners import LOSES, UNKNOWN
from keeplast.model.partition import NO_HORIZON

KEEP = 0
SUPERSEDED = 1
EXPIRED_TOMBSTONE = 2
KEYLESS = 3
ABORTED_DATA = 4
EXPIRED_MARKER = 5
REASONS = 6

ANY_EXPIRES = 0
UNCONTESTED_EXPIRES = 1
UNVERSIONED_EXPIRES = 2
"""Which tombstones past their horizon may go.

All that win (strategy ``offset``); of those below ``expires_below`` the ones whose key no dirty
record has; of these the ones without a version.
"""


@inline
def kept_from(magic, horizon, now, late_now, passed_to, late_to, old_kept_from):
    """Return the offset from which on the tombstones, or the marker, of a batch stay for now.

    ``horizon`` is -1 when the batch carries none. Removal happens at ``now == horizon``, below the
    offset ``passed_to`` that all readers who are waited for have read to, INT64_MAX without any.
    From there on it happens at ``late_now``, which is ``now`` less the longest wait, and below
    ``late_to``, which no wait ends. An old format goes by its segment: ``old_kept_from``.
    """
    if magic < 2:
        return np.int64(old_kept_from)
    if horizon < 0 or now < horizon:
        return np.int64(0)
    return np.int64(passed_to) if late_now < horizon else np.int64(late_to)


@inline
def discards_records(is_control, is_unneeded, is_aborted, offset, kept):
    """Say whether every record of a batch goes: aborted data, or a marker that may expire.

    ``offset`` is the batch's last, ``kept`` that of :func:`kept_from`.
    """
    if is_control:
        return is_unneeded and offset < kept
    return is_aborted


@inline
def batch_verdict(discards, is_last_of_producer, ends_at_bound):
    """Return what happens to a batch without any record that stays.

    Two kinds of batch are kept as an empty header. One is an active producer's last one, because
    its sequence number is how the broker recognises a duplicate. The other is the one that ends at
    the bound, because it holds the end offset of the round (KAFKA-17076).
    """
    if is_last_of_producer or ends_at_bound:
        return t.RETAIN_EMPTY
    if discards:
        return t.DELETE
    return t.DELETE_EMPTY


@inline
def may_expire(expiry, expires_below, offset, flags, standing):
    """Say whether a winning tombstone may go once its time has come.

    By offset a later record always wins, so that nothing comes back. By version a tombstone may be
    all that holds down a record with a greater offset. It stays for a record that

    (a) is dirty too. A crash between two groups would take the one and leave the other;
    (b) is dirty while the tombstone is clean. The same holds, so no dirty record may have its key;
    (c) was not indexed because the map filled. Then ``expires_below`` is 0, and none may go.
    """
    if expiry == ANY_EXPIRES:
        return True
    if expiry == UNVERSIONED_EXPIRES and flags & HAS_VERSION != 0:
        return False
    return offset < expires_below and standing == UNKNOWN


@inline
def record_verdict(
    discards, is_control, offset, map_latest, flags, standing, kept, keeps_keyless, expiry,
    expires_below,
):  # fmt: skip
    """Return KEEP or the reason for which one record goes.

    ``standing`` is the record's in the key map; ``kept`` is :func:`kept_from` of its batch.
    ``keeps_keyless`` says whether records without a key stay, as they do in a log that no broker
    compacts. For the rest see :func:`may_expire`.
    """
    if discards:
        return EXPIRED_MARKER if is_control else ABORTED_DATA
    if is_control or offset > map_latest:
        return KEEP
    if flags & HAS_KEY == 0:
        return KEEP if keeps_keyless else KEYLESS
    if standing == LOSES:
        return SUPERSEDED
    if flags & HAS_VALUE != 0 or not may_expire(expiry, expires_below, offset, flags, standing):
        return KEEP
    return EXPIRED_TOMBSTONE if offset < kept else KEEP


@inline
def new_horizon(magic, has_horizon, kept, kept_tombstones, is_empty_transaction, now_plus):
    """Return the delete horizon that a batch receives now, or -1.

    Set once, the first time a batch with a retained tombstone, or a marker whose transaction has no
    data left, is copied. An old-format batch receives it while it becomes magic 2 (F1).
    ``now_plus`` is now + delete.retention.ms in 64-bit arithmetic; negative means never.
    """
    if has_horizon or kept == 0 or now_plus < 0:
        return np.int64(-1)
    if kept_tombstones > 0 or is_empty_transaction:
        return now_plus
    return np.int64(-1)


MESSAGES_READ = 0
MESSAGES_WRITTEN = 1
BYTES_READ = 2
INVALID = 3
TOMBSTONES_READ = 4
TOMBSTONES_WRITTEN = 5
PASSED_THROUGH = 6
REBUILT = 7
DROPPED = 8
EMPTIED = 9
REASON_RECORDS = 10
REASON_BYTES = REASON_RECORDS + REASONS
BYTES_WRITTEN = REASON_BYTES + REASONS
COUNTERS = BYTES_WRITTEN + 1

DISORDER = -2
"""Offsets that do not ascend; every offset and \"none yet\", -1, lies above."""


@inline
def is_last_of_producer(table, i, last_records):
    """Say whether batch ``i`` is what its producer's state rests on.

    ``last_records`` (n, 3), ascending by producer id: id, last data offset or -1, epoch.
    """
    producer_id = table[i, t.PRODUCER_ID]
    if producer_id < 0:
        return False
    low, high = 0, last_records.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if last_records[middle, 0] < producer_id:
            low = middle + 1
        else:
            high = middle
    if low == last_records.shape[0] or last_records[low, 0] != producer_id:
        return False
    if last_records[low, 1] >= 0:
        return table[i, t.LAST_OFFSET] == last_records[low, 1]
    is_control = table[i, t.ATTRIBUTES] & t.CONTROL != 0
    return is_control and table[i, t.PRODUCER_EPOCH] == last_records[low, 2]


@inline
def horizon_of(table, i):
    """Return the delete horizon that batch ``i`` carries, or -1."""
    if table[i, t.MAGIC] == 2 and table[i, t.ATTRIBUTES] & t.DELETE_HORIZON != 0:
        return table[i, t.BASE_TIMESTAMP]
    return np.int64(-1)


@inline
def _is_empty_already(table, i):
    """Say whether batch ``i`` is just as it would be written with none of its records left."""
    written = t.LOG_APPEND_TIME | t.TRANSACTIONAL | t.CONTROL
    is_bare = table[i, t.COUNT] == 0 and table[i, t.SIZE] == t.HEADER_BYTES
    return is_bare and table[i, t.ATTRIBUTES] & ~written == 0 and table[i, t.BASE_TIMESTAMP] == -1


@inline
def _discards(table, i, kept):
    state = table[i, t.STATE]
    return discards_records(
        table[i, t.ATTRIBUTES] & t.CONTROL != 0,
        state & t.UNNEEDED != 0,
        state & t.ABORTED != 0,
        table[i, t.LAST_OFFSET],
        kept,
    )


@kernel(
    "void(int64[:, ::1], int64, int64, int64, int64, int64, int64, int64, int64[:, ::1],"
    " int64[::1])"
)
def judge_batches(
    table, first, last, now, late_now, passed_to, late_to, bound, last_records, counters
):  # fmt: skip
    """Set VERDICT of batches ``[first, last)`` for the second pass.

    ``now``, ``late_now``, ``passed_to`` and ``late_to`` are :func:`kept_from`'s; ``bound`` is
    the round's exclusive upper bound.
    """
    read = 0
    for i in range(first, last):
        # No batch of an old format is a control batch, so its segment's time plays no part.
        kept = kept_from(
            table[i, t.MAGIC], horizon_of(table, i), now, late_now, passed_to, late_to, np.int64(0)
        )  # fmt: skip
        discards = _discards(table, i, kept)
        verdict = batch_verdict(
            discards,
            is_last_of_producer(table, i, last_records),
            table[i, t.LAST_OFFSET] + 1 == bound,
        )
        table[i, t.VERDICT] = verdict
        read += table[i, t.SIZE]
        if verdict == t.DELETE:
            is_control = table[i, t.ATTRIBUTES] & t.CONTROL != 0
            reason = EXPIRED_MARKER if is_control else ABORTED_DATA
            counters[REASON_RECORDS + reason] += table[i, t.COUNT]
            counters[REASON_BYTES + reason] += table[i, t.SIZE]
    counters[BYTES_READ] += read


@kernel("void(int64[:, ::1], int64, int64)")
def select_indexed(table, first, last):
    """Set VERDICT for the first pass: DELETE, so no rows, for control and aborted batches."""
    for i in range(first, last):
        skips = table[i, t.ATTRIBUTES] & t.CONTROL != 0 or table[i, t.STATE] & t.ABORTED != 0
        table[i, t.VERDICT] = t.DELETE if skips else t.DELETE_EMPTY


@kernel("int64(int64, int64, int64, int64[::1])")
def last_ascending(first, last, previous, offsets):
    """Return the last offset of rows ``[first, last)`` when all ascend from ``previous``.

    DISORDER when they do not.
    """
    for r in range(first, last):
        if offsets[r] <= previous:
            return np.int64(DISORDER)
        previous = offsets[r]
    return previous


@kernel("int64(int64, int64, int64, int64[::1], uint8[::1], uint8[::1])")
def mark_indexed(rows, first_offset, end_offset, offsets, flags, wanted):
    """Mark the rows with a key and an offset in ``[first_offset, end_offset)``."""
    n = 0
    for r in range(rows):
        wants = flags[r] & HAS_KEY != 0 and first_offset <= offsets[r] < end_offset
        wanted[r] = wants
        n += wants
    return n


@kernel(
    "int64(int64[:, ::1], int64, int64, int64, boolean, int64[::1], uint8[::1], uint8[::1],"
    " uint8[::1])"
)
def mark_looked_up(table, first, last, map_latest, is_ranked, offsets, flags, standings, wanted):
    """Mark the rows of batches ``[first, last)`` that the key map has yet to decide.

    Where versions rank (``is_ranked``) no rank holds a negative offset: such a record stays.
    """
    n = 0
    for i in range(first, last):
        is_data = table[i, t.ATTRIBUTES] & t.CONTROL == 0 and table[i, t.STATE] & t.ABORTED == 0
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            wants = is_data and flags[r] & HAS_KEY != 0 and offsets[r] <= map_latest
            wants = wants and standings[r] == UNKNOWN and (offsets[r] >= 0 or not is_ranked)
            wanted[r] = wants
            n += wants
    return n


@kernel("int64(int64[:, ::1], int64, int64)")
def count_messages(table, first, last):
    """Count as Kafka's first pass does: one a control batch, else the records, aborted or not."""
    n = 0
    for i in range(first, last):
        n += 1 if table[i, t.ATTRIBUTES] & t.CONTROL != 0 else table[i, t.COUNT]
    return n


@kernel(
    "UniTuple(int64, 2)(int64[:, ::1], int64, int64, int64, int64, int64, int64, int64, int64,"
    " int64, boolean, int64, int64, int64[::1], int32[::1], uint8[::1], uint8[::1], uint8[::1],"
    " int64[::1])"
)
def judge_rows(
    table, first, last, map_latest, now, late_now, passed_to, late_to, now_plus, old_kept_from,
    keeps_keyless, expiry, expires_below, offsets, positions, flags, standings, keep, counters,
):  # fmt: skip
    """Set ``keep`` of every row and ACTION of every batch in ``[first, last)``.

    ``standings`` is only read for rows with a key at or below ``map_latest``. ``now``,
    ``late_now``, ``passed_to``, ``late_to`` and ``old_kept_from`` are :func:`kept_from`'s.
    ``now_plus`` is now + delete.retention.ms, or NO_HORIZON; ``expiry`` and ``expires_below`` are
    :func:`may_expire`'s.
    OUT_BASE_TIMESTAMP receives the horizon the output batch carries, or -1. Returns (batches that
    do not stay as they are, compressed batches to rebuild).
    """
    changed = 0
    packed = 0
    for i in range(first, last):
        table[i, t.KEPT] = 0
        table[i, t.KEPT_TOMBSTONES] = 0
        table[i, t.OUT_BASE_TIMESTAMP] = -1
        verdict = table[i, t.VERDICT]
        if verdict == t.DELETE:
            table[i, t.ACTION] = t.ACTION_DROP
            counters[DROPPED] += 1
            changed += 1
            continue
        if verdict == t.KEEP_WHOLE:
            table[i, t.ACTION] = t.ACTION_COPY
            counters[PASSED_THROUGH] += 1
            continue
        magic = table[i, t.MAGIC]
        is_control = table[i, t.ATTRIBUTES] & t.CONTROL != 0
        horizon = horizon_of(table, i)
        expires_to = kept_from(
            magic, horizon, now, late_now, passed_to, late_to, old_kept_from
        )  # fmt: skip
        discards = _discards(table, i, expires_to)
        rows_end = table[i, t.FIRST_ROW] + table[i, t.ROWS]
        kept = 0
        tombstones = 0
        for r in range(table[i, t.FIRST_ROW], rows_end):
            reason = record_verdict(
                discards, is_control, offsets[r], map_latest, flags[r], standings[r], expires_to,
                keeps_keyless, expiry, expires_below,
            )  # fmt: skip
            is_tombstone = flags[r] & HAS_VALUE == 0
            keep[r] = reason == KEEP
            kept += reason == KEEP
            if not is_control and is_tombstone:
                counters[TOMBSTONES_READ] += 1
                counters[TOMBSTONES_WRITTEN] += reason == KEEP
            # Kafka asks "no value?" of retained marker records too, which all have one.
            tombstones += is_tombstone and reason == KEEP
            if reason != KEEP:
                end = table[i, t.PAYLOAD_END] if r + 1 == rows_end else positions[r + 1]
                counters[REASON_RECORDS + reason] += 1
                counters[REASON_BYTES + reason] += end - positions[r]
                counters[INVALID] += reason == KEYLESS
        counters[MESSAGES_READ] += table[i, t.ROWS]
        table[i, t.KEPT] = kept
        table[i, t.KEPT_TOMBSTONES] = tombstones
        is_empty_transaction = is_control and table[i, t.STATE] & t.UNNEEDED != 0
        stamped = new_horizon(magic, horizon >= 0, kept, tombstones, is_empty_transaction, now_plus)
        if kept > 0:
            needs_stamp = stamped >= 0 or (
                # A negative horizon means "never", and rebuilds the batch all the same.
                magic == 2
                and now_plus != NO_HORIZON
                and table[i, t.ATTRIBUTES] & t.DELETE_HORIZON == 0
                and (tombstones > 0 or is_empty_transaction)
            )
            if kept == table[i, t.ROWS] and magic == 2 and not needs_stamp:
                table[i, t.ACTION] = t.ACTION_COPY
                counters[PASSED_THROUGH] += 1
            else:
                table[i, t.ACTION] = t.ACTION_REBUILD
                table[i, t.OUT_BASE_TIMESTAMP] = horizon if horizon >= 0 else stamped
                counters[REBUILT] += 1
            counters[MESSAGES_WRITTEN] += kept
        elif verdict == t.RETAIN_EMPTY:
            if magic == 2:
                table[i, t.ACTION] = (
                    t.ACTION_COPY if _is_empty_already(table, i) else t.ACTION_EMPTY
                )
                counters[EMPTIED] += 1
            else:
                # An old-format batch cannot be empty; Kafka's round fails here each time. We keep
                # it as it is: docs/explanation/differences.md (b).
                table[i, t.ACTION] = t.ACTION_COPY
                table[i, t.KEPT] = table[i, t.ROWS]
                counters[MESSAGES_WRITTEN] += table[i, t.ROWS]
                counters[PASSED_THROUGH] += 1
        else:
            table[i, t.ACTION] = t.ACTION_DROP
            counters[DROPPED] += 1
        if table[i, t.ACTION] != t.ACTION_COPY:
            changed += 1
            if table[i, t.ACTION] == t.ACTION_REBUILD:
                packed += table[i, t.ATTRIBUTES] & t.CODEC_MASK != 0
    return changed, packed
