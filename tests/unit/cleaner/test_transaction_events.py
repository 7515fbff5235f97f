"""The fold over the events of segments gives the state that the fold along the batches gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keeplast.cleaner.transactions import EventLister, TransactionState, aborted_keys
from keeplast.columns import batches as t
from keeplast.columns import transactions as kernels
from keeplast.format.record import ControlType
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.windows import Window
from tests.support.kernel_window import window_of
from tests.support.partition_maker import data_batch, marker, one

PRODUCERS = (7, 8, 9)
STEPS = ("data", "abort", "commit", "plain")


def batch(offset: int, step: tuple[str, int]) -> bytes:
    kind, producer_id = step
    if kind == "data":
        return data_batch(offset, producer_id, [b"k"])
    if kind == "plain":
        return one(offset, b"k")
    outcome = ControlType.ABORT if kind == "abort" else ControlType.COMMIT
    return marker(offset, producer_id, outcome)


def follow(state: TransactionState, window: Window) -> list[int]:
    _, bad = state.follow(window.data, window.data, window.table, 0, window.batches)
    assert bad is None
    states: list[int] = window.table[: window.batches, t.STATE].tolist()
    return states


def open_of(state: TransactionState) -> dict[int, int]:
    """Return the marks of every producer with a transaction under way."""
    return {producer: marks for producer, marks, _ in state._producers.tolist() if marks > 0}


def events_of(known: list[AbortedTransaction], window: Window) -> list[tuple[int, ...]]:
    lister = EventLister(aborted_keys(TransactionState(known).aborted))
    assert lister.add(window.data, window.data, window.table, 0, window.batches) is None
    return [tuple(event) for event in lister.events().tolist()]


@given(
    segments=st.lists(
        st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(PRODUCERS)), max_size=12),
        min_size=1,
        max_size=5,
    ),
    aborted=st.lists(
        st.tuples(st.sampled_from(PRODUCERS), st.integers(0, 40), st.integers(0, 40)), max_size=6
    ),
)
def test_both_folds_agree_also_where_indexes_contradict_the_log(
    segments: list[list[tuple[str, int]]], aborted: list[tuple[int, int, int]]
) -> None:
    known = [AbortedTransaction(p, first, max(first, last), 0) for p, first, last in aborted]
    along, replayed = TransactionState(known), TransactionState(known)
    offset = 0
    for steps in segments:
        entry = replayed.at_entry(offset)
        assert open_of(along.at_entry(offset)) == open_of(entry)
        if not steps:
            continue
        data = b"".join(batch(offset + i, step) for i, step in enumerate(steps))
        offset += len(steps)
        assert follow(along, window_of(data)) == follow(entry.copy(), window_of(data))
        lister = EventLister(aborted_keys(TransactionState(known).aborted))
        window = window_of(data)
        assert lister.add(window.data, window.data, window.table, 0, window.batches) is None
        replayed.replay(lister.events())


def test_data_that_changes_nothing_is_no_event() -> None:
    batches = [data_batch(i, 7, [b"k"]) for i in range(5)]
    window = window_of(b"".join([*batches, marker(5, 7, ControlType.COMMIT)]))
    expected = [(0, 7, kernels.DATA), (5, 7, kernels.COMMIT_MARKER)]
    assert expected == events_of([], window)


def test_data_counts_again_after_the_beginning_of_an_aborted_transaction() -> None:
    window = window_of(b"".join(data_batch(i, 7, [b"k"]) for i in range(4)))
    expected = [(0, 7, kernels.DATA), (2, 7, kernels.DATA)]
    assert expected == events_of([AbortedTransaction(7, 2, 9, 0)], window)


def test_state_at_entry_holds_only_open_transactions() -> None:
    state = TransactionState(())
    batches = [data_batch(i, i, [b"k"]) for i in range(50)]
    ends = [marker(50 + i, i, ControlType.COMMIT) for i in range(49)]
    follow(state, window_of(b"".join([*batches, *ends])))
    assert {49: kernels.COMMITTED_OPEN} == open_of(state.at_entry(99))


def test_keys_are_in_the_order_of_the_transactions_that_they_name() -> None:
    """One first offset twice: no broker writes that."""
    aborted = [AbortedTransaction(producer, 7, 20 + producer, 9) for producer in range(30, 0, -1)]
    state = TransactionState(aborted)
    assert list(range(1, 31)) == [each.producer_id for each in state.aborted]
    assert list(range(1, 31)) == state._keys[:, 1].tolist()
