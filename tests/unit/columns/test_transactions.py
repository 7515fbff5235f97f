"""Which batches belong to aborted transactions, and which markers are not needed any more."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence

import pytest

from keeplast.cleaner.transactions import TransactionState
from keeplast.columns import batches as t
from keeplast.format.batch import decode_batch, encode_batch, encode_empty_batch
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support.kernel_window import window_of
from tests.support.partition_maker import NOW_MS, data_batch, marker, one

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
NEEDED = 0


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last + 1)


def follow(
    known: Sequence[AbortedTransaction], batches: Sequence[bytes]
) -> tuple[list[int], tuple[AbortedTransaction, ...]]:
    """Return STATE of every batch and the aborted transactions that ended."""
    window = window_of(b"".join(batches))
    state = TransactionState(known)
    finished, bad = state.follow(window.data, window.data, window.table, 0, window.batches)
    assert bad is None
    return window.table[: window.batches, t.STATE].tolist(), finished


def test_data_of_an_aborted_transaction_and_its_marker() -> None:
    entry = aborted(7, 0, 2)
    batches = [data_batch(0, 7, [b"a", b"b"]), marker(2, 7, ABORT), data_batch(3, 7, [b"c"])]
    expected = [t.ABORTED, NEEDED, NEEDED], (entry,)
    assert expected == follow([entry], batches)


def test_marker_without_data_is_unneeded_and_ends_nothing() -> None:
    states, finished = follow([aborted(7, 0, 2)], [marker(2, 7, ABORT), marker(3, 8, COMMIT)])
    assert states == [t.UNNEEDED, t.UNNEEDED]
    assert finished == ()


def test_commit_marker_is_needed_while_data_is_there() -> None:
    batches = [data_batch(0, 7, [b"a"]), marker(1, 7, COMMIT), marker(2, 7, COMMIT)]
    states, _ = follow([], batches)
    assert states == [NEEDED, NEEDED, t.UNNEEDED]


def test_empty_data_batch_counts_as_data() -> None:
    empty = encode_empty_batch(decode_batch(data_batch(0, 7, [b"a"])))
    entry = aborted(7, 0, 1)
    assert ([t.ABORTED, NEEDED], (entry,)) == follow([entry], [empty, marker(1, 7, ABORT)])
    states, _ = follow([], [empty, marker(1, 7, COMMIT)])
    assert states == [NEEDED, NEEDED]


def test_empty_control_batch_is_unneeded() -> None:
    empty = encode_empty_batch(decode_batch(marker(1, 7, COMMIT)))
    states, _ = follow([], [data_batch(0, 7, [b"a"]), empty])
    assert states == [NEEDED, t.UNNEEDED]


def test_interleaved_transactions_of_two_producers() -> None:
    first, second = aborted(7, 0, 4), aborted(8, 3, 6)
    batches = [
        data_batch(0, 7, [b"a"]),
        data_batch(1, 8, [b"b"]),
        marker(2, 8, COMMIT),
        data_batch(3, 8, [b"c"]),
        marker(4, 7, ABORT),
        data_batch(5, 7, [b"d"]),
        marker(6, 8, ABORT),
        marker(7, 7, COMMIT),
    ]
    states, finished = follow([second, first], batches)
    assert states == [t.ABORTED, NEEDED, NEEDED, t.ABORTED, NEEDED, NEEDED, NEEDED, NEEDED]
    assert (first, second) == finished


def test_transaction_that_starts_inside_a_batch_covers_it() -> None:
    """The transaction opens at the batch's last offset, as in Kafka."""
    entry = aborted(7, 1, 2)
    states, _ = follow([entry], [data_batch(0, 7, [b"a", b"b"]), marker(2, 7, ABORT)])
    assert states == [t.ABORTED, NEEDED]


def test_data_that_is_not_transactional_is_never_aborted() -> None:
    idempotent = encode_batch(
        [Record(0, NOW_MS, b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0
    )
    states, _ = follow([aborted(7, 0, 5)], [idempotent, one(1, b"b")])
    assert states == [NEEDED, NEEDED]


def test_same_transaction_collected_twice_ends_once() -> None:
    """X58: the index of each segment that it spans may name it."""
    entry = aborted(7, 0, 3)
    batches = [data_batch(0, 7, [b"a"]), data_batch(2, 7, [b"b"]), marker(3, 7, ABORT)]
    assert ([t.ABORTED, t.ABORTED, NEEDED], (entry,)) == follow([entry, entry], batches)


def test_leader_change_batch_is_always_needed() -> None:
    change = encode_batch(
        [Record(0, NOW_MS, struct.pack(">hh", 0, ControlType.LEADER_CHANGE), b"")], is_control=True
    )
    unknown = encode_batch(
        [Record(1, NOW_MS, struct.pack(">hh", 0, 99), b"")], producer_id=7, is_control=True
    )
    states, _ = follow([], [change, unknown])
    assert states == [NEEDED, NEEDED]


@pytest.mark.parametrize(
    "key", [None, b"", b"\x00\x00\x00", struct.pack(">hh", -1, COMMIT), b"\xff\xff\xff\xff\xff"]
)
def test_control_key_that_cannot_be_read_is_named(key: bytes | None) -> None:
    bad = encode_batch([Record(1, NOW_MS, key, b"")], producer_id=7, is_control=True)
    window = window_of(one(0, b"a") + bad)
    state = TransactionState(())
    _, found = state.follow(window.data, window.data, window.table, 0, window.batches)
    assert found == 1


def test_following_in_steps_from_a_copy_equals_following_at_once() -> None:
    """What is handed from group to group, and to another process, is all there is to know."""
    entries = [aborted(p, 10 * p, 10 * p + 5) for p in range(0, 40, 2)]
    batches: list[bytes] = []
    for producer in range(40):
        offset = 10 * producer
        outcome = COMMIT if producer % 2 else ABORT
        batches.append(data_batch(offset, producer, [b"k"]))
        batches.append(marker(offset + 5, producer, outcome))
    expected = follow(entries, batches)
    window = window_of(b"".join(batches))
    state = TransactionState(entries)
    finished: tuple[AbortedTransaction, ...] = ()
    for first in range(0, window.batches, 7):
        last = min(first + 7, window.batches)
        untouched = state.copy()
        state.follow(window.data, window.data, window.table, first, last)
        state = pickle.loads(pickle.dumps(untouched))
        done, _ = state.follow(window.data, window.data, window.table, first, last)
        finished += done
    assert expected == (window.table[: window.batches, t.STATE].tolist(), finished)


def test_thousands_of_producers_find_their_slots() -> None:
    count = 3000
    batches = [data_batch(i, i * 2**33 + 1, [b"k"]) for i in range(count)]
    batches += [marker(count + i, i * 2**33 + 1, COMMIT) for i in range(count)]
    states, _ = follow([], batches)
    assert set(states) == {NEEDED}
