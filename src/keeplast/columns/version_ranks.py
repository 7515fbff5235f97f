"""Key maps that do more than the plain one: that note, that rank by version, that join others.

*Versions* of records serve the strategies ``timestamp`` and ``header`` (KIP-280). They take a
second walk over records that :mod:`keeplast.columns.rows` has parsed: every length in them has been
checked and is not checked again. The strategy ``offset`` never comes here. A row that has a version
gets HAS_VERSION in its flags and the version in its column. A row without one, whatever the reason,
gets version 0 and no flag. In a header no number stands for "none": -1 and the smallest number are
versions like any other. A timestamp of -1 is none. cleaning.md section 9.2.

*Noting.* :class:`NotingKeyMap` notes in a ledger how each record stands, while it learns the
winners. The notes are right only while offsets ascend, so that an offset names one record;
:meth:`NotingKeyMap.forget_notes` when they do not. A map that ranks by more than the offset notes
in its own way.

*Ranking by version.* The winner is the greatest (has a version, version, offset) of a key. A slot
is four words: two hash halves, a *mark* and the version. A record's mark is
``2 * offset + has_version``, and is stored plus 2, so that 0 still says empty and 1 announced. The
largest offset that Kafka can assign, 2^63 - 2, just fits. The version lies next to it as it is: the
mark shows a missing one, never a number. Blocks have the same four words with the plain mark.
Everything else is :mod:`keeplast.columns.winners`: shards, homes, probing, growth. cleaning.md 9.2.

*Joining.* Tasks may each know a part of a log. The best record of a key in one part may be
outranked by that of another part. A part's map gives its rows away (:class:`PartKeyMap`). A map of
all of them then says which of these rows lose (:class:`RivalKeyMap`). By offset alone;
:mod:`keeplast.columns.winners` has the tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import load_be64, read_varint, read_varlong, table_at
from keeplast.columns.winners import (
    ADDRESS,
    KEYS,
    LOSES,
    NO_LEDGER,
    SHARD_BITS,
    SHARDS,
    SLOTS,
    UNKNOWN,
    WINS,
    KeyMap,
    ReasonLedger,
    end_of_step,
    find_row,
    find_slot,
    prefetch_home,
    starts_of,
)
from keeplast.model.partition import NO_TIMESTAMP

HAS_VERSION = 8
MALFORMED_VERSION = 16
"""More flags of a row than :mod:`keeplast.columns.rows` has.

In this order: the row has a version; its header is there and holds none.
"""

VERSION_BYTES = 8

_ABSENT = -2
"""The header is not there; lengths are -1 (null) and up."""


@inline
def _find_header(data, at, end, name):
    """Return position and length of the value of the last header ``name`` of one record.

    ``at`` is the position after the record's length field. The length is negative when the value is
    null and ``_ABSENT`` when there is no such header.
    """
    _delta, at = read_varlong(data, at + 1, end)
    _delta, at = read_varint(data, at, end)
    for _ in range(2):
        length, at = read_varint(data, at, end)
        if length > 0:
            at += length
    headers, at = read_varint(data, at, end)
    found_at, found = at, np.int64(_ABSENT)
    for _ in range(headers):
        length, at = read_varint(data, at, end)
        is_named = length == name.shape[0]
        for k in range(length):
            if not is_named:
                break
            is_named = data[at + k] == name[k]
        at += length
        length, at = read_varint(data, at, end)
        if is_named:
            found_at, found = at, max(length, np.int64(-1))
        if length > 0:
            at += length
    return found_at, found


@kernel(
    "UniTuple(int64, 2)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, uint8[::1],"
    " uint8[::1], uint8[::1], int64[::1])"
)
def read_header_versions(
    window, scratch, table, first, last, name, wanted, flags, versions
):  # fmt: skip
    """Read the versions of the ``wanted`` rows of batches ``[first, last)`` from header ``name``.

    Returns how many of them have no such header, and how many have one whose last occurrence is
    null or not eight bytes. Neither has a version, and no earlier occurrence steps in.
    """
    missing = 0
    malformed = 0
    for i in range(first, last):
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            length, at = read_varint(data, at, end)
            if wanted[r] != 0:
                value_at, found = _find_header(data, at, at + length, name)
                has_version = found == VERSION_BYTES
                versions[r] = load_be64(data, value_at) if has_version else 0
                if has_version:
                    flags[r] |= HAS_VERSION
                elif found == _ABSENT:
                    missing += 1
                else:
                    flags[r] |= MALFORMED_VERSION
                    malformed += 1
            at += length
    return missing, malformed


@kernel(
    "void(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, uint8[::1], uint8[::1], int64[::1])"
)
def read_timestamps(window, scratch, table, first, last, wanted, flags, versions):
    """Read the timestamps of the ``wanted`` rows of batches ``[first, last)``.

    With LogAppendTime it is the batch's maximum. A record without a timestamp, -1 on disk, has no
    version: it ranks below every date, those before 1970 included.
    """
    for i in range(first, last):
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        # What an old format says is in the deltas of its converted records already.
        is_append_time = table[i, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0 and table[i, t.MAGIC] == 2
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            length, at = read_varint(data, at, end)
            if wanted[r] != 0:
                delta, _ = read_varlong(data, at + 1, end)
                stamp = table[i, t.BASE_TIMESTAMP] + delta
                if is_append_time:
                    stamp = table[i, t.MAX_TIMESTAMP]
                is_dated = stamp != NO_TIMESTAMP
                versions[r] = stamp if is_dated else 0
                if is_dated:
                    flags[r] |= HAS_VERSION
            at += length


@inline
def note(standings, at, standing):
    """Note a record's standing, if the ledger reaches there."""
    if 0 <= at < standings.shape[0]:
        standings[at] = standing


@inline
def _insert_rows(table, block, first, last, first_offset, standings):
    new = 0
    for i in range(first, last):
        prefetch_home(table, block, i, last)
        s = find_slot(table, block[i, 0], block[i, 1])
        mark = table[s, 2]
        if mark == np.uint64(0):
            table[s, 0] = block[i, 0]
            table[s, 1] = block[i, 1]
            new += 1
        raised = block[i, 2] + np.uint64(2)
        if raised < mark:
            note(standings, np.int64(block[i, 2]) - first_offset, LOSES)
            continue
        if mark >= np.uint64(2):
            note(standings, np.int64(mark) - 2 - first_offset, LOSES)
        table[s, 2] = raised
        note(standings, np.int64(block[i, 2]) - first_offset, WINS)
    return new


@kernel(
    "int64(int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64, int64, int64, uint8[::1])"
)
def insert_noting(shards, block, at, ends, first, last, first_offset, standings):
    """Do what :func:`keeplast.columns.winners.insert` does, and note which record wins and which
    lost.
    """
    for shard in range(first, last):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        while at[shard] < ends[shard]:
            end = end_of_step(shards, shard, at[shard], ends[shard])
            if end == at[shard]:
                return shard
            shards[shard, KEYS] += _insert_rows(
                table, block, at[shard], end, first_offset, standings
            )
            at[shard] = end
    return last


class NotingKeyMap(KeyMap):
    """A key map that keeps a :class:`Ledger` of what is put into it."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: ReasonLedger) -> None:
        super().__init__()
        self._ledger = ledger

    @property
    def ledger(self) -> ReasonLedger:
        """Return the notes; final once :meth:`put` is no longer called."""
        return self._ledger

    def forget_notes(self) -> None:
        """Drop all notes and take no more."""
        self._ledger = NO_LEDGER

    def _insert(
        self,
        block: NDArray[np.uint64],
        at: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        last: int,
    ) -> int:
        ledger = self._ledger
        stopped: int = insert_noting(
            self._shards, block, at, ends, first, last, ledger.first_offset, ledger.standings
        )
        return stopped


RANK_WORDS = 4


@inline
def _outranks(mark, version, other_mark, other_version):
    """Say whether a record ranks above another; both marks are plain."""
    has, other_has = mark & np.uint64(1), other_mark & np.uint64(1)
    if has != other_has:
        return has > other_has
    if has != np.uint64(0) and version != other_version:
        return np.int64(version) > np.int64(other_version)
    return mark > other_mark


@kernel(
    "int64(uint64[:, ::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64, int64,"
    " uint64[:, ::1], int32[::1], int64[::1])"
)
def sort_ranks_by_shard(
    hashes, offsets, versions, flags, wanted, first, last, block, rows, starts
):  # fmt: skip
    """Collect wanted rows into a block of ranks, as :func:`winners.sort_by_shard` does."""
    shift = np.uint64(64 - SHARD_BITS)
    starts[:] = 0
    for r in range(first, last):
        if wanted[r] != 0:
            starts[np.int64(hashes[r, 0] >> shift) + 1] += 1
    for s in range(SHARDS):
        starts[s + 1] += starts[s]
    for r in range(first, last):
        if wanted[r] != 0:
            s = np.int64(hashes[r, 0] >> shift)
            i = starts[s]
            has_version = flags[r] & HAS_VERSION != 0
            block[i, 0] = hashes[r, 0]
            block[i, 1] = hashes[r, 1]
            block[i, 2] = np.uint64(offsets[r]) * np.uint64(2) + np.uint64(has_version)
            block[i, 3] = np.uint64(versions[r])
            rows[i] = r
            starts[s] = i + 1
    for s in range(SHARDS, 0, -1):
        starts[s] = starts[s - 1]
    starts[0] = 0
    return starts[SHARDS]


@inline
def _note(standings, first_offset, mark, standing):
    note(standings, np.int64(mark >> np.uint64(1)) - first_offset, standing)


@inline
def _insert_ranked_rows(table, block, first, last, first_offset, standings):
    new = 0
    for i in range(first, last):
        prefetch_home(table, block, i, last)
        s = find_slot(table, block[i, 0], block[i, 1])
        mark = table[s, 2]
        if mark == np.uint64(0):
            table[s, 0] = block[i, 0]
            table[s, 1] = block[i, 1]
            new += 1
        if mark >= np.uint64(2):
            stored = mark - np.uint64(2)
            if not _outranks(block[i, 2], block[i, 3], stored, table[s, 3]):
                _note(standings, first_offset, block[i, 2], LOSES)
                continue
            _note(standings, first_offset, stored, LOSES)
        table[s, 2] = block[i, 2] + np.uint64(2)
        table[s, 3] = block[i, 3]
        _note(standings, first_offset, block[i, 2], WINS)
    return new


@kernel(
    "int64(int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64, int64, int64, uint8[::1])"
)
def insert_greater(shards, block, at, ends, first, last, first_offset, standings):
    """Store the ranks of block rows whose key is new or has a lower one.

    Rows and result as in :func:`keeplast.columns.winners.insert`. Notes which record wins and which
    lost in the ledger that begins at ``first_offset``.
    """
    for shard in range(first, last):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        while at[shard] < ends[shard]:
            end = end_of_step(shards, shard, at[shard], ends[shard])
            if end == at[shard]:
                return shard
            shards[shard, KEYS] += _insert_ranked_rows(
                table, block, at[shard], end, first_offset, standings
            )
            at[shard] = end
    return last


@kernel("void(int64[:, ::1], uint64[:, ::1], int64[::1], int64, int64, int64, uint8[::1])")
def raise_stored(shards, block, starts, first, last, first_offset, standings):
    """Raise stored keys of shards ``[first, last)`` to the ranks of block rows that are greater.

    Makes no key known.
    """
    for shard in range(first, last):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        for i in range(starts[shard], starts[shard + 1]):
            prefetch_home(table, block, i, starts[shard + 1])
            s = find_slot(table, block[i, 0], block[i, 1])
            mark = table[s, 2]
            if mark >= np.uint64(2) and _outranks(
                block[i, 2], block[i, 3], mark - np.uint64(2), table[s, 3]
            ):
                _note(standings, first_offset, mark - np.uint64(2), LOSES)
                table[s, 2] = block[i, 2] + np.uint64(2)
                table[s, 3] = block[i, 3]


@kernel("void(uint64[:, ::1], int32[::1], uint8[::1])")
def mark_best_ranks(block, slots, best):
    """Set ``best`` of the row of each key that outranks the key's other rows, as ``mark_best``.

    ``slots`` holds -1s and is larger than the block.
    """
    for i in range(block.shape[0]):
        s = find_row(block, slots, i)
        other = slots[s]
        if other < 0:
            slots[s] = i
            best[i] = 1
        elif _outranks(block[i, 2], block[i, 3], block[other, 2], block[other, 3]):
            best[other] = 0
            best[i] = 1
            slots[s] = i
        else:
            best[i] = not _outranks(block[other, 2], block[other, 3], block[i, 2], block[i, 3])


@kernel("void(int64[:, ::1], uint64[:, ::1], int64[::1], int32[::1], uint8[::1])")
def look_up_ranks(shards, block, starts, rows, standings):
    """Write to ``standings[row]`` how each block row's record stands: UNKNOWN, WINS or LOSES."""
    for shard in range(SHARDS):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        for i in range(starts[shard], starts[shard + 1]):
            prefetch_home(table, block, i, starts[shard + 1])
            s = find_slot(table, block[i, 0], block[i, 1])
            mark = table[s, 2]
            standing = UNKNOWN
            if mark >= np.uint64(2):
                loses = _outranks(mark - np.uint64(2), table[s, 3], block[i, 2], block[i, 3])
                standing = LOSES if loses else WINS
            standings[rows[i]] = standing


class RankedKeyMap(NotingKeyMap):
    """Winners by rank of the dirty keys of one partition and round.

    The dirty section is :meth:`put`, in any order, then the clean section is given to
    :meth:`raise_known`. Afterwards the map knows each dirty key's winner wherever that lies, and
    changes no more.
    """

    __slots__ = ()

    WORDS = RANK_WORDS

    def _insert(
        self,
        block: NDArray[np.uint64],
        at: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        last: int,
    ) -> int:
        ledger = self._ledger
        stopped: int = insert_greater(
            self._shards, block, at, ends, first, last, ledger.first_offset, ledger.standings
        )
        return stopped

    def find(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        """Write the standing of every block row's record to ``standings[row]``."""
        look_up_ranks(self._shards, block, starts, rows, standings)

    def raise_known(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Take the rows of ``block`` whose key has been put and whose rank is greater."""
        self.raise_shards(0, SHARDS, block, starts)

    def raise_shard(self, shard: int, block: NDArray[np.uint64], first: int, last: int) -> None:
        """Do so for rows ``[first, last)``, which are of this shard."""
        self.raise_shards(shard, shard + 1, block, starts_of(shard, first, last))

    def raise_shards(
        self, first: int, last: int, block: NDArray[np.uint64], starts: NDArray[np.int64]
    ) -> None:
        """Do so for those rows of ``block`` that are of the shards ``[first, last)``."""
        ledger = self._ledger
        raise_stored(
            self._shards, block, starts, first, last, ledger.first_offset, ledger.standings
        )


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64)")
def gather_rows(table, rows, at):
    """Put the keys of a table with their offsets to ``rows`` from row ``at`` on; return the end.

    No more than ``rows`` has room for, which is enough for a map's own count of its keys.
    """
    for s in range(table.shape[0]):
        if table[s, 2] > np.uint64(1) and at < rows.shape[0]:
            rows[at, 0] = table[s, 0]
            rows[at, 1] = table[s, 1]
            rows[at, 2] = table[s, 2] - np.uint64(2)
            at += 1
    return at


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64, int64, int64[::1], int64)")
def gather_losers(table, rows, first, last, losers, at):
    """Put the offsets of rows ``[first, last)`` that lose to ``losers`` from ``at`` on.

    Every key is in the table, and ``losers`` has room for all rows. Returns the end.
    """
    for i in range(first, last):
        prefetch_home(table, rows, i, last)
        s = find_slot(table, rows[i, 0], rows[i, 1])
        if rows[i, 2] + np.uint64(2) < table[s, 2]:
            losers[at] = np.int64(rows[i, 2])
            at += 1
    return at


class PartKeyMap(NotingKeyMap):
    """The winners of a part of a log, and notes of its records."""

    __slots__ = ()

    def to_block(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return every key with its offset as one block and its shards' starts."""
        starts = np.zeros(SHARDS + 1, np.int64)
        np.cumsum(self._shards[:, KEYS], out=starts[1:])
        rows = np.empty((len(self), self.WORDS), np.uint64)
        for shard, table in enumerate(self._tables):
            gather_rows(table, rows, int(starts[shard]))
        return rows, starts


class RivalKeyMap(KeyMap):
    """The winners among the winners of parts."""

    __slots__ = ()

    def losers(self, rows: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offsets of a part's rows that lose; all of its keys are here."""
        losers, at, bounds = np.empty(len(rows), np.int64), 0, starts.tolist()
        for shard, table in enumerate(self._tables):
            at = gather_losers(table, rows, bounds[shard], bounds[shard + 1], losers, at)
        return losers[:at]
