"""Ways past the table of rows for plain batches: keys streamed for the index, losers skimmed off.

*Streaming.* The first pass wants offset and key of each record and nothing else. It reads keys from
the bytes of plain batches: no table, and of a record only what is in front. Plain is a batch of
magic 2 that is neither compressed nor of a transaction nor control; at any other the stream stops.
A record may reach beyond the window. Where its key ends inside, the rest is stepped over, so that
values need not be in memory, nor be read. What this does not look at (values, headers, CRCs) the
second pass does, before anything is committed. Nothing here says what is wrong with a log: a
refused caller reads it the other way.

*Skimming* drops what is known to be superseded while the batches of a window are found. Where
batches are small, most of the second pass goes into describing, judging and stepping over batches
that go. For a plain data batch the ledger alone says so. When each of its records has a later one,
nothing else about the round matters, unless the batch must stay as an empty header. Such a batch is
counted and gets no row; every other one is left to the rules, in the table.

*Settling* does it for compressed batches, and for both ways. The first pass has decompressed and
parsed a dirty batch. It notes the size of its records where their standings alone can decide: all
have a key and a value, and their offsets have no gaps. When all of them are superseded, or none is,
the second pass need not decompress the batch. It goes, or stays as it is.

The rule that follows: what is left out here is what :func:`keeplast.columns.retained.judge_rows`
would drop with the reason SUPERSEDED, and it is checked as strictly, its CRC included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns import retained
from keeplast.columns.batches import HAS_GAPS, describe_batch, has_right_crc
from keeplast.columns.kernel import OK, TOO_MANY, inline, kernel, outline
from keeplast.columns.machine import load_be32, load_be64, read_varint, read_varlong
from keeplast.columns.retained import DISORDER
from keeplast.columns.rows import HAS_KEY, HAS_VALUE, parse_record, siphash128
from keeplast.columns.winners import LOSES, WINS

NOT_PLAIN = t.CODEC_MASK | t.CONTROL | t.TRANSACTIONAL

CUT = 101
"""The window ends before the next key does."""
REFUSED = 102
"""The next batch is not plain, or something is wrong with it."""
BROKEN = 103
"""A record does not fit its batch."""

LEFT = 0
"""``state``: records of the present batch that are still to come."""
BASE_OFFSET = 1
BATCH_END = 2
"""``state``: where the present batch ends, from the start of the next window."""
LAST_OFFSET = 3
"""``state``: of the last record, or DISORDER once they did not ascend."""
MESSAGES = 4
LATEST = 5
"""``state``: the last offset of the last batch that reaches the dirty section."""
STATE_SIZE = 6


def new_stream_state() -> NDArray[np.int64]:
    """Return the state between two batches; LAST_OFFSET and LATEST are the caller's to set."""
    return np.zeros(STATE_SIZE, np.int64)


@inline
def _enter_batch(data, at, rest, first_dirty, state):
    """Read the header at ``at``; returns its size, or 0 when the batch is refused."""
    size = load_be32(data, at + 8) + t.PREFIX_BYTES
    count = load_be32(data, at + 57)
    if data[at + 16] != 2 or size < t.HEADER_BYTES or size > rest or count < 0:
        return np.int64(0)
    if np.int64(data[at + 22]) & NOT_PLAIN != 0 or count > (size - t.HEADER_BYTES) // 7 + 1:
        return np.int64(0)
    state[BASE_OFFSET] = load_be64(data, at)
    last_offset = state[BASE_OFFSET] + load_be32(data, at + 23)
    if last_offset >= first_dirty:
        state[LATEST] = last_offset
    state[MESSAGES] += count
    state[LEFT] = count
    state[BATCH_END] = at + size
    return size


@inline
def _find_key(data, at, length, batch_end):
    """Return (end of the record, offset delta, key position, key length, code)."""
    nothing = np.int64(0)
    limit = min(length, batch_end)
    size, at = read_varint(data, at, limit)
    stop = at + size
    if at >= 0:
        if size < 0 or stop > batch_end:
            return nothing, nothing, nothing, nothing, BROKEN
        limit = min(length, stop)
        _timestamp, at = read_varlong(data, at + 1, limit)
        if at >= 0:
            delta, at = read_varint(data, at, limit)
            if at >= 0:
                key_length, at = read_varint(data, at, limit)
                if at >= 0 and key_length <= stop - at:
                    code = OK if at + key_length <= length else CUT
                    return stop, delta, at, key_length, code
                if at >= 0:
                    return nothing, nothing, nothing, nothing, BROKEN
    # A number that runs out of the window may be whole in a larger one.
    return nothing, nothing, nothing, nothing, CUT if limit == length else BROKEN


@kernel(
    "UniTuple(int64, 3)(uint8[::1], int64, int64, int64, int64[::1], int64, uint64, uint64,"
    " int64[::1], uint64[:, ::1], uint8[::1])"
)
def stream_keys(
    data, length, rest, first_dirty, state, first_row, k0, k1, offsets, hashes, flags
):  # fmt: skip
    """Append a row for each record with a key from ``first_dirty`` on, from ``data[:length]``.

    ``rest`` is how many bytes the segment has from the start of the window. Returns (bytes that
    are done, rows, code): more bytes than the window has when a value reaches beyond it. TOO_MANY
    means that the rows are full; the other codes but OK describe what comes next.
    """
    at = np.int64(0)
    n = first_row
    code = np.int64(OK)
    while True:
        if state[LEFT] == 0:
            if at >= length:
                break
            if length - at < t.HEADER_BYTES:
                code = np.int64(CUT)
                break
            size = _enter_batch(data, at, rest - at, first_dirty, state)
            if size == 0:
                code = np.int64(REFUSED)
                break
            if state[LEFT] == 0:
                at += size
                continue
            at += t.HEADER_BYTES
        if at >= length:
            break
        if n == offsets.shape[0]:
            code = np.int64(TOO_MANY)
            break
        stop, delta, key_at, key_length, code = _find_key(data, at, length, state[BATCH_END])
        if code != OK:
            break
        offset = state[BASE_OFFSET] + delta
        ascends = state[LAST_OFFSET] != DISORDER and offset > state[LAST_OFFSET]
        state[LAST_OFFSET] = offset if ascends else DISORDER
        if key_length >= 0 and offset >= first_dirty:
            hashes[n, 0], hashes[n, 1] = siphash128(data, key_at, key_length, k0, k1)
            offsets[n] = offset
            flags[n] = HAS_KEY
            n += 1
        at = stop
        state[LEFT] -= 1
        if state[LEFT] == 0 and at != state[BATCH_END]:
            code = np.int64(BROKEN)
            break
    state[BATCH_END] -= at
    return at, n, code


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
        and not retained.is_last_of_producer(table, i, last_records)
    )


@kernel(
    "UniTuple(int64, 5)(uint8[::1], int64, int64[:, ::1], int64, int64, int64[:, ::1], int64,"
    " uint8[::1], int64[::1], int64)"
)
def skim_batches(
    window, length, table, map_latest, bound, last_records, first_noted, notes, counters, size_max
):
    """Do what :func:`keeplast.columns.batches.scan_batches` does, for the second pass.

    Batches of up to ``size_max`` bytes that leave nothing and whose CRC is right get no row but are
    counted, and HAS_GAPS is among the marks. So there may be bytes consumed and no batches.
    ``bound`` and ``last_records`` are :func:`retained.judge_batches`', the notes a ledger's.
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
        counters[retained.BYTES_READ] += size_dropped
        counters[retained.MESSAGES_READ] += records
        counters[retained.TOMBSTONES_READ] += tombstones_dropped
        counters[retained.DROPPED] += dropped
        counters[retained.REASON_RECORDS + retained.SUPERSEDED] += records
        counters[retained.REASON_BYTES + retained.SUPERSEDED] += payload_dropped
    return n, position, marks, largest, code


def note_batches(
    table: NDArray[np.int64], position: int, offsets: NDArray[np.int64], flags: NDArray[np.uint8]
) -> NDArray[np.int32]:
    """Return position and size of records of the parsed batches that standings alone can decide.

    These are compressed ones among the batches of ``table``, of a window at ``position``. Offsets
    ascend, or there are no standings.
    """
    table = table[table[:, t.ROWS] > 0]
    starts, codecs = table[:, t.FIRST_ROW], table[:, t.ATTRIBUTES] & NOT_PLAIN
    ends = starts + table[:, t.ROWS]
    flags = np.bitwise_and.reduceat(flags[: ends.max(initial=0)], starts)
    is_noted = (
        (table[:, t.MAGIC] == 2)
        & (codecs > 0)
        & (codecs <= t.CODEC_MASK)
        & (flags & (HAS_KEY | HAS_VALUE) == HAS_KEY | HAS_VALUE)
        & (table[:, t.ROWS] == table[:, t.LAST_OFFSET] - table[:, t.BASE_OFFSET] + 1)
        & (offsets[starts] == table[:, t.BASE_OFFSET])
        & (offsets[ends - 1] == table[:, t.LAST_OFFSET])
    )
    sizes = table[:, t.PAYLOAD_END] - table[:, t.PAYLOAD_START]
    noted: NDArray[np.int64] = np.stack([table[:, t.POSITION] + position, sizes], 1)[is_noted]
    return noted.astype(np.int32)


@kernel("void(int64[:, ::1], int64, int64, int32[:, ::1], int64, int64, uint8[::1], int64[::1])")
def settle_batches(table, batches, position, noted, map_latest, first_noted, notes, counters):
    """Set VERDICT of judged batches that need not be decompressed: KEEP_WHOLE or DELETE.

    ``noted`` has what :func:`note_batches` noted of the segment, by ascending position; ``notes``
    are those of a ledger from ``first_noted`` on.
    """
    for i in range(batches):
        at = position + table[i, t.POSITION]
        n = np.searchsorted(noted[:, 0], at)
        first = table[i, t.BASE_OFFSET] - first_noted
        last = table[i, t.LAST_OFFSET] - first_noted
        # An offset next to the largest number makes the last one negative.
        if n == noted.shape[0] or noted[n, 0] != at or not 0 <= first <= last < notes.shape[0]:
            continue
        while first < last and notes[first] == notes[first + 1]:
            first += 1
        wins = notes[first] == WINS
        loses = notes[first] == LOSES and table[i, t.VERDICT] == t.DELETE_EMPTY
        if first < last or table[i, t.LAST_OFFSET] > map_latest or not (wins or loses):
            continue
        table[i, t.VERDICT] = t.KEEP_WHOLE if wins else t.DELETE
        counters[retained.MESSAGES_READ] += table[i, t.COUNT]
        counters[retained.MESSAGES_WRITTEN] += table[i, t.COUNT] if wins else 0
        counters[retained.REASON_RECORDS + retained.SUPERSEDED] += 0 if wins else table[i, t.COUNT]
        counters[retained.REASON_BYTES + retained.SUPERSEDED] += 0 if wins else noted[n, 1]
