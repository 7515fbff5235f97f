"""The key map that ranks by version: the greatest (has a version, version, offset) of a key.

A slot is four words: two hash halves, a *mark* and the version. A record's mark is
``2 * offset + has_version``, and is stored plus 2, so that 0 still says empty and 1 announced; the
largest offset that Kafka can assign, 2^63 - 2, just fits. The version lies beside it as it is: a
missing one is told by the mark, never by a number. Blocks have the same four words with the plain
mark.

Everything else is :mod:`keeplast.columns.winners`: shards, homes, probing, growth. cleaning.md 9.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import table_at
from keeplast.columns.noting import NotingKeyMap, note
from keeplast.columns.versions import HAS_VERSION
from keeplast.columns.winners import (
    ADDRESS,
    KEYS,
    LOSES,
    SHARD_BITS,
    SHARDS,
    SLOTS,
    UNKNOWN,
    WINS,
    end_of_step,
    find_row,
    find_slot,
    prefetch_home,
    starts_of,
)

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

    Rows and result as in :func:`keeplast.columns.winners.insert`. Notes who wins and who lost in
    the ledger that begins at ``first_offset``.
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
    :meth:`raise_known`: afterwards the map knows each dirty key's winner wherever that lies, and
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
