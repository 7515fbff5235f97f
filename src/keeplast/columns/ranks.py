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
from keeplast.columns.noting import NotingKeyMap, note
from keeplast.columns.versions import HAS_VERSION
from keeplast.columns.winners import (
    LOSES,
    SHARD_BITS,
    SHARDS,
    UNKNOWN,
    WINS,
    find_row,
    find_slot,
    prefetch_home,
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


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64, int64, int64, uint8[::1])")
def insert_greater(table, block, first, last, first_offset, standings):
    """Store the ranks of block rows ``[first, last)`` whose key is new or has a lower one.

    The table must have room for all of them. Notes who wins and who lost in the ledger that begins
    at ``first_offset``. Returns how many keys were new.
    """
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


@kernel("void(uint64[:, ::1], uint64[:, ::1], int64, int64, int64, uint8[::1])")
def raise_stored(table, block, first, last, first_offset, standings):
    """Raise stored keys to the ranks of block rows that are greater; makes no key known."""
    for i in range(first, last):
        prefetch_home(table, block, i, last)
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


@kernel("void(uint64[:, ::1], uint64[:, ::1], int64, int64, int32[::1], uint8[::1])")
def look_up_ranks(table, block, first, last, rows, standings):
    """Write to ``standings[row]`` how each block row's record stands: UNKNOWN, WINS or LOSES."""
    for i in range(first, last):
        prefetch_home(table, block, i, last)
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
        self, table: NDArray[np.uint64], block: NDArray[np.uint64], first: int, last: int
    ) -> int:
        ledger = self._ledger
        new: int = insert_greater(table, block, first, last, ledger.first_offset, ledger.standings)
        return new

    def _look_up(
        self,
        table: NDArray[np.uint64],
        block: NDArray[np.uint64],
        first: int,
        last: int,
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        look_up_ranks(table, block, first, last, rows, standings)

    def raise_known(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Take the rows of ``block`` whose key has been put and whose rank is greater."""
        for shard in range(SHARDS):
            self.raise_shard(shard, block, int(starts[shard]), int(starts[shard + 1]))

    def raise_shard(self, shard: int, block: NDArray[np.uint64], first: int, last: int) -> None:
        """Do so for rows ``[first, last)``, which are of this shard."""
        ledger = self._ledger
        raise_stored(self._tables[shard], block, first, last, ledger.first_offset, ledger.standings)
