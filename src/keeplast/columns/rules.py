"""The rules that decide what remains, one function a rule, called by the kernels.

A record goes only for one of five reasons, tested in this order:

1. its transaction was aborted, or it is a marker whose horizon has passed;
2. it has no key and lies at or below the key map's last offset, unless such records are kept;
3. a record with its key and a greater rank is in the key map: with the strategy ``offset``, one
   with a greater offset;
4. it is a tombstone whose delete horizon has passed (magic 2);
5. it is a tombstone of a segment older than the old-format horizon (magic 0 and 1).

Where readers are waited for, what has passed its horizon goes by (1), (4) and (5) below the offset
that all of them have read to, and from there on once it has waited long enough: :func:`kept_from`.

Everything above the key map's last offset stays, because nothing is known about it, unless (1).
Where versions rank, (4) and (5) wait until nothing that the tombstone outranks can be left: see
:func:`may_expire`. Answers to ``Cleaner.checkBatchRetention`` and ``shouldRetainRecord``;
cleaning.md sections 3.4 and 9.3.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.kernel import inline
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.columns.versions import HAS_VERSION
from keeplast.columns.winners import LOSES, UNKNOWN

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
"""Which tombstones past their horizon may go: all that win (strategy ``offset``); of those below
``expires_below`` the ones whose key no dirty record has; of these the ones without a version."""


@inline
def kept_from(magic, horizon, now, late_now, passed_to, late_to, old_kept_from):
    """Return the offset from which on the tombstones, or the marker, of a batch stay for now.

    ``horizon`` is -1 when the batch carries none. Removal happens at ``now == horizon``, below the
    offset ``passed_to`` that all readers who are waited for have read to, INT64_MAX when nobody is;
    from there on at ``late_now``, which is ``now`` less the longest wait, and below ``late_to``,
    which no wait ends. An old format goes by its segment: ``old_kept_from``.
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
    """Return what happens to a batch of which no record stays.

    Two kinds of batch are kept as an empty header: an active producer's last one, because its
    sequence number is how the broker recognises a duplicate, and the one that ends at the bound,
    because it holds the end offset of the round (KAFKA-17076).
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
    all that holds down a record with a greater offset, one that

    (a) is dirty too: a crash between two groups would take the one and leave the other;
    (b) is dirty while the tombstone is clean: the same, so no dirty record may have its key;
    (c) was not indexed because the map filled: then ``expires_below`` is 0, and none may go.
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

    ``standing`` is the record's in the key map; ``kept`` is :func:`kept_from` of its batch,
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

    Set once, the first time a batch with a retained tombstone, or a marker whose transaction has
    no data left, is copied; an old-format batch receives it while it becomes magic 2 (F1).
    ``now_plus`` is now + delete.retention.ms in 64-bit arithmetic; negative means never.
    """
    if has_horizon or kept == 0 or now_plus < 0:
        return np.int64(-1)
    if kept_tombstones > 0 or is_empty_transaction:
        return now_plus
    return np.int64(-1)
