"""The key map: for every dirty key the offset of its winner, in shards of open-addressing tables.

A table is a zeroed uint64 array of (slots, 3): two hash halves and ``offset + 2``. 0 in the third
word marks an empty slot, 1 a key that is known without an offset (it counts as absent). The shard
of a key is the top ``SHARD_BITS`` of the first half. Its home slot follows from the next 32 bits,
and probing is linear. A table is never more than ``LOAD_MAX`` full.

The tables of a map are handed to kernels as *shards*. Each is an int64 row: the address of its
table, its slots, and how many keys are in it. So one call does what a block asks of all of them.

Keys arrive as *blocks*: rows sorted by shard, (rows, 3) of two halves and the offset, with
``starts`` giving each shard's range. The same blocks are what a shuffle carries.

A *ledger* has what the first pass already knows of each record it indexed, by offset: whether it
still wins. A key map is asked by key. That costs the second pass a hash and a walk into a table
much larger than any cache, for every record. When a record replaces another in the map, both their
offsets are at hand. The one is noted as winning, the other as losing, a byte an offset. At the end
of the pass that is the standing of every record that was indexed, and the second pass reads it with
the offset alone. A record without a note (not indexed, or outside the ledger) is looked up.
:mod:`keeplast.columns.version_ranks` takes the notes. The map answers to Kafka's
``SkimpyOffsetMap``; cleaning.md section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import prefetch_row, table_at


class ReasonLedger(Struct, frozen=True):
    """``standings[n]`` is the standing of the record at ``first_offset + n``, UNKNOWN (0) if none.

    One byte an offset, so that threads that note different records never touch one byte.
    """

    first_offset: int
    standings: NDArray[np.uint8]

    def part(self, first_offset: int, end_offset: int) -> ReasonLedger:
        """Return what is noted of ``[first_offset, end_offset)``, as far as this one reaches."""
        start = max(first_offset - self.first_offset, 0)
        end = max(end_offset - self.first_offset, start)
        return ReasonLedger(self.first_offset + start, self.standings[start:end])

    def add(self, other: ReasonLedger) -> int:
        """Take the notes of another ledger over; returns how many offsets both reach.

        Nothing of these may have been noted before.
        """
        mine = self.part(other.first_offset, other.first_offset + len(other.standings))
        theirs = other.part(mine.first_offset, mine.first_offset + len(mine.standings))
        mine.standings[:] = theirs.standings
        return len(theirs.standings)


NO_LEDGER = ReasonLedger(0, np.empty(0, np.uint8))
"""Knows nothing."""


def new_ledger(first_offset: int, end_offset: int, bytes_max: int) -> ReasonLedger:
    """Return a ledger for ``[first_offset, end_offset)``, or for as much of it as is allowed."""
    length = max(0, min(end_offset - first_offset, bytes_max))
    return ReasonLedger(first_offset, np.zeros(length, np.uint8))


SHARD_BITS = 6
SHARDS = 1 << SHARD_BITS
LOAD_MAX = 0.85
GROWTH = 1.4
"""Of a table that is full: less is moved too often, and more takes more than 40 bytes a key."""
SLOTS_MIN = 64
STEP_ROWS_MIN = 1152
"""A step of an insertion reserves a slot for each of its rows, known keys included.

A full block has 1,024 rows a shard, seldom more than four deviations of 32 beyond that.
"""
PREFETCH_ROWS = 12
MERGE_PARTS = 64
"""Each of so many passes over the rows of a table fills another one by little, everywhere."""

ADDRESS = 0
SLOTS = 1
KEYS = 2
"""The words of a shard."""

UNKNOWN = 0
WINS = 1
LOSES = 2
"""The standing of a record: its key is not in the map; it is the key's winner; it is not."""


@kernel(
    "int64(uint64[:, ::1], int64[::1], uint8[::1], int64, int64, uint64[:, ::1], int32[::1],"
    " int64[::1])"
)
def sort_by_shard(hashes, offsets, wanted, first, last, block, rows, starts):
    """Collect the rows of ``[first, last)`` with ``wanted`` != 0 into a block.

    ``rows`` receives each block row's origin, ``starts`` (SHARDS + 1) each shard's first row.
    Within a shard the order of rows is kept. Returns the number of rows.
    """
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
            block[i, 0] = hashes[r, 0]
            block[i, 1] = hashes[r, 1]
            block[i, 2] = np.uint64(offsets[r])
            rows[i] = r
            starts[s] = i + 1
    # Each start has moved to its shard's end, which is where the next shard starts.
    for s in range(SHARDS, 0, -1):
        starts[s] = starts[s - 1]
    starts[0] = 0
    return starts[SHARDS]


@inline
def home_slot(half, slots):
    """Return where the search for a key begins in a table of ``slots``."""
    bits = (half >> np.uint64(64 - SHARD_BITS - 32)) & np.uint64(0xFFFFFFFF)
    return np.int64((bits * np.uint64(slots)) >> np.uint64(32))


@inline
def prefetch_home(table, block, i, last):
    """Ask for where a row to come will be looked for: a table is larger than the nearest cache.

    A search goes on for a few slots, and a line of the cache holds less than three.
    """
    ahead = i + PREFETCH_ROWS
    if ahead < last:
        home = home_slot(block[ahead, 0], table.shape[0])
        prefetch_row(table, home)
        prefetch_row(table, min(home + 2, table.shape[0] - 1))


@inline
def find_slot(table, a, b):
    """Return the slot of a key, or the empty one where it would go."""
    slots = table.shape[0]
    s = home_slot(a, slots)
    while table[s, 2] != np.uint64(0) and (table[s, 0] != a or table[s, 1] != b):
        s += 1
        if s == slots:
            s = 0
    return s


@inline
def end_of_step(shards, shard, at, end):
    """Return where a step of an insertion from row ``at`` on ends, ``at`` when there is no room."""
    slots = shards[shard, SLOTS]
    step = min(end - at, max(STEP_ROWS_MIN, slots // 64))
    return at + step if shards[shard, KEYS] + step <= LOAD_MAX * slots else at


@inline
def _insert_rows(table, block, first, last):
    new = 0
    for i in range(first, last):
        prefetch_home(table, block, i, last)
        s = find_slot(table, block[i, 0], block[i, 1])
        if table[s, 2] == np.uint64(0):
            table[s, 0] = block[i, 0]
            table[s, 1] = block[i, 1]
            new += 1
        raised = block[i, 2] + np.uint64(2)
        if raised > table[s, 2]:
            table[s, 2] = raised
    return new


@kernel("int64(int64[:, ::1], uint64[:, ::1], int64[::1], int64[::1], int64, int64)")
def insert(shards, block, at, ends, first, last):
    """Raise keys to the offsets of block rows; the greatest offset of a key wins.

    So the order in which rows arrive makes no difference. These are the rows from ``at[shard]`` to
    ``ends[shard]`` of each shard in ``[first, last)``, and ``at`` moves on with them. Returns the
    shard that has no room for its next step, or ``last``.
    """
    for shard in range(first, last):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        while at[shard] < ends[shard]:
            end = end_of_step(shards, shard, at[shard], ends[shard])
            if end == at[shard]:
                return shard
            shards[shard, KEYS] += _insert_rows(table, block, at[shard], end)
            at[shard] = end
    return last


@kernel("int64(uint64[:, ::1], uint64[:, ::1], int64, int64, int32[::1], uint8[::1])")
def announce(table, block, first, last, rows, is_new):
    """Make the keys of block rows known without storing an offset.

    ``is_new[row]`` becomes 1 for the first row of each key that was not known. Lets a bounded map
    find the exact record that no longer fits before any offset is replaced.
    """
    new = 0
    for i in range(first, last):
        s = find_slot(table, block[i, 0], block[i, 1])
        is_new[rows[i]] = 0
        if table[s, 2] == np.uint64(0):
            table[s, 0] = block[i, 0]
            table[s, 1] = block[i, 1]
            table[s, 2] = np.uint64(1)
            is_new[rows[i]] = 1
            new += 1
    return new


@kernel("void(int64[:, ::1], uint64[:, ::1], int64[::1], int32[::1], uint8[::1])")
def look_up(shards, block, starts, rows, standings):
    """Write to ``standings[row]`` how each block row's record stands: UNKNOWN, WINS or LOSES."""
    for shard in range(SHARDS):
        table = table_at(shards[shard, ADDRESS], shards[shard, SLOTS], block.shape[1])
        for i in range(starts[shard], starts[shard + 1]):
            prefetch_home(table, block, i, starts[shard + 1])
            mark = table[find_slot(table, block[i, 0], block[i, 1]), 2]
            standing = UNKNOWN
            # An announced key has no offset, and counts as absent.
            if mark >= np.uint64(2):
                standing = LOSES if block[i, 2] + np.uint64(2) < mark else WINS
            standings[rows[i]] = standing


@kernel("void(uint64[:, ::1], uint64[:, ::1])")
def move(source, target):
    """Insert every key of ``source`` into the larger, empty ``target``."""
    slots = target.shape[0]
    for i in range(source.shape[0]):
        if source[i, 2] == np.uint64(0):
            continue
        s = home_slot(source[i, 0], slots)
        while target[s, 2] != np.uint64(0):
            s += 1
            if s == slots:
                s = 0
        for word in range(source.shape[1]):
            target[s, word] = source[i, word]


@kernel("int64(uint8[::1], int64, int64, int64)")
def find_overflow(is_new, first, last, room):
    """Return the first row at which ``room`` new keys have already been seen, or ``last``.

    Kafka tests for room before it looks the key up, so the row that does not fit may hold a
    known key (cleaning.md section 2.2).
    """
    for r in range(first, last):
        if room <= 0:
            return r
        room -= np.int64(is_new[r])
    return last


@inline
def find_row(block, slots, i):
    """Return the slot that names a row with the key of row ``i``, or the empty one for it: -1."""
    s = home_slot(block[i, 0], slots.shape[0])
    while slots[s] >= 0 and (
        block[slots[s], 0] != block[i, 0] or block[slots[s], 1] != block[i, 1]
    ):
        s += 1
        if s == slots.shape[0]:
            s = 0
    return s


@kernel("void(uint64[:, ::1], int32[::1], uint8[::1])")
def mark_best(block, slots, best):
    """Set ``best`` of the row of each key that has the greatest offset of the key's rows.

    ``slots`` holds -1s and is larger than the block. Where a damaged log has an offset twice, both
    rows may be set, because both stay; a row that is set without need costs a question.
    """
    for i in range(block.shape[0]):
        s = find_row(block, slots, i)
        other = slots[s]
        if other < 0:
            slots[s] = i
            best[i] = 1
        elif block[i, 2] > block[other, 2]:
            best[other] = 0
            best[i] = 1
            slots[s] = i
        else:
            best[i] = block[i, 2] == block[other, 2]


def starts_of(shard: int, first: int, last: int) -> NDArray[np.int64]:
    """Return the starts of a block whose rows ``[first, last)`` are of one shard, and no others."""
    starts = np.full(SHARDS + 1, first, np.int64)
    starts[shard + 1 :] = last
    return starts


class KeyMap:
    """Winners of the dirty keys of one partition and round.

    Grows shard by shard, so that no more than one shard exists twice at any time. Two writers must
    not work on one shard at once; readers need no lock once nothing is put any more.
    """

    __slots__ = ("_shards", "_tables")

    WORDS = 3
    """Words of a slot, and of a row of a block."""

    def __init__(self) -> None:
        tables = np.zeros((SHARDS, SLOTS_MIN, self.WORDS), np.uint64)
        self._tables = list(tables)
        self._shards = np.zeros((SHARDS, 3), np.int64)
        self._shards[:, ADDRESS] = tables.ctypes.data + np.arange(SHARDS) * tables[0].nbytes
        self._shards[:, SLOTS] = SLOTS_MIN

    def __setstate__(self, state: tuple[None, dict[str, object]]) -> None:
        """Take what another process sent: its tables lie elsewhere here."""
        for name, value in state[1].items():
            setattr(self, name, value)
        self._shards[:, ADDRESS] = [table.ctypes.data for table in self._tables]

    def __len__(self) -> int:
        return int(self._shards[:, KEYS].sum())

    @property
    def size_bytes(self) -> int:
        """Return what the tables occupy."""
        return sum(table.nbytes for table in self._tables)

    @property
    def ledger(self) -> ReasonLedger:
        """Return what was noted of single records: nothing."""
        return NO_LEDGER

    def forget_notes(self) -> None:
        """Do nothing: there are none."""

    def _insert(
        self,
        block: NDArray[np.uint64],
        at: NDArray[np.int64],
        ends: NDArray[np.int64],
        first: int,
        last: int,
    ) -> int:
        """Do as :func:`insert` says."""
        stopped: int = insert(self._shards, block, at, ends, first, last)
        return stopped

    def find(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        standings: NDArray[np.uint8],
    ) -> None:
        """Write the standing of every block row's record to ``standings[row]``."""
        look_up(self._shards, block, starts, rows, standings)

    def _make_room(self, shard: int, more: int) -> NDArray[np.uint64]:
        table = self._tables[shard]
        need = int(self._shards[shard, KEYS]) + more
        if need <= LOAD_MAX * table.shape[0]:
            return table
        # The first guess takes every row for a new key and is generous while small; later
        # growth is by less, or a block that repeats its keys would double the table.
        slots = table.shape[0]
        while need > LOAD_MAX * slots:
            slots = int(slots * GROWTH) + 1
        grown = np.zeros((slots, self.WORDS), np.uint64)
        move(table, grown)
        self._shards[shard, ADDRESS], self._shards[shard, SLOTS] = grown.ctypes.data, slots
        self._tables[shard] = grown
        return grown

    def put(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Raise keys to every row of ``block``, in any order; the greatest rank wins."""
        self.put_shards(0, SHARDS, block, starts)

    def merge(self, block: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Raise keys to every row of what :meth:`to_block` of another map gave.

        Its rows lie as they lay in a table. Put into one that grows meanwhile they would all fall
        close together, and every search would be long. So an empty shard gets its room before.
        Where another may have to grow, rows come from all over it.
        """
        for shard in range(SHARDS):
            rows = block[int(starts[shard]) : int(starts[shard + 1])]
            if not self._shards[shard, KEYS]:
                self._make_room(shard, len(rows))
            elif self._shards[shard, KEYS] + len(rows) > LOAD_MAX * self._shards[shard, SLOTS]:
                rows = np.concatenate([rows[part::MERGE_PARTS] for part in range(MERGE_PARTS)])
            self.put_shard(shard, rows, 0, len(rows))

    def put_shard(self, shard: int, block: NDArray[np.uint64], first: int, last: int) -> None:
        """Raise keys to the rows ``[first, last)`` of ``block``, which are of this shard."""
        self.put_shards(shard, shard + 1, block, starts_of(shard, first, last))

    def put_shards(
        self, first: int, last: int, block: NDArray[np.uint64], starts: NDArray[np.int64]
    ) -> None:
        """Raise keys to those rows of ``block`` that are of the shards ``[first, last)``."""
        at, ends = starts[:SHARDS].copy(), starts[1:]
        while True:
            first = self._insert(block, at, ends, first, last)
            if first == last:
                return
            step = max(STEP_ROWS_MIN, len(self._tables[first]) // 64)
            self._make_room(first, min(step, int(ends[first] - at[first])))

    def to_block(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return every key with its rank as one block and its shards' starts, for a shuffle."""
        parts = list(self.rows())
        starts = np.zeros(SHARDS + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=starts[1:])
        return np.concatenate(parts), starts

    def rows(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the keys of each shard with their ranks, as rows of a block."""
        for table in self._tables:
            rows = table[table[:, 2] > 1]
            rows[:, 2] -= np.uint64(2)
            yield rows

    def announce(
        self,
        block: NDArray[np.uint64],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        is_new: NDArray[np.uint8],
    ) -> None:
        """Make keys known without offsets; see :func:`announce`."""
        for shard in range(SHARDS):
            first, last = int(starts[shard]), int(starts[shard + 1])
            if first < last:
                table = self._make_room(shard, last - first)
                new = announce(table, block, first, last, rows, is_new)
                self._shards[shard, KEYS] += new

    def find_shard(self, shard: int, block: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return the standing of each row of ``block``; all rows are of this shard."""
        standings = np.empty(len(block), np.uint8)
        rows = np.arange(len(block), dtype=np.int32)
        self.find(block, starts_of(shard, 0, len(block)), rows, standings)
        return standings
