"""Kafka's ProducerStateManagerTest (cleaning.md section 8.5, PS)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.transactions import last_records
from keeplast.errors import CorruptError
from keeplast.format.batch import decode_batch, encode_batch, encode_empty_batch
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.active_segment import ProducerState
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    batches_of,
    clean,
    clean_at,
    clean_request,
    data_batch,
    marker,
    one,
    write_partition,
    write_snapshot,
)

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def state_after(*batches: bytes, entries: tuple[ProducerEntry, ...] = ()) -> ProducerState:
    state = ProducerState(entries)
    for batch in batches:
        state.add(decode_batch(batch))
    return state


def test_ps01_marker_with_a_newer_epoch_clears_the_producers_data() -> None:
    state = state_after(data_batch(0, 7, [b"a"]), marker(1, 7, ABORT, epoch=1))
    (entry,) = state.entries()
    assert (1, -1, -1, -1) == (
        entry.epoch, entry.last_offset, entry.last_sequence, entry.current_txn_first_offset,
    )  # fmt: skip
    rows = last_records(state.entries(), now_ms=NOW_MS, expiration_ms=DAY_MS)
    assert [[7, -1, 1]] == rows.tolist()


def test_ps01_marker_of_the_same_epoch_keeps_the_producers_data() -> None:
    (entry,) = state_after(data_batch(0, 7, [b"a", b"b"]), marker(2, 7, COMMIT)).entries()
    assert (0, 1, 1, 1) == (
        entry.epoch, entry.last_offset, entry.last_sequence, entry.offset_delta,
    )  # fmt: skip


def test_ps01_data_batch_of_a_fenced_producer_is_not_protected(tmp_path: Path) -> None:
    """X31: the marker stays for its epoch, the data batch has no reason to stay."""
    directory = write_partition(
        tmp_path,
        {0: data_batch(0, 7, [b"a"]) + marker(1, 7, ABORT, epoch=1), 2: one(2, b"x"), 3: b""},
    )
    (directory / f"{0:020d}.index").unlink()
    clean_at(directory)
    assert [1, 2] == [batch.last_offset for batch in batches_of(directory)]
    clean_at(directory, NOW_MS + 1)
    clean_at(directory, NOW_MS + 1 + DAY_MS - 2)
    (kept, _) = batches_of(directory)
    assert (7, 1, True) == (kept.producer_id, kept.producer_epoch, kept.is_control)


def test_ps02_empty_control_batch_ends_nothing() -> None:
    empty = encode_empty_batch(decode_batch(marker(1, 7, COMMIT)))
    state = state_after(data_batch(0, 7, [b"a"]), empty)
    assert state.first_open_transaction() == 0
    assert state_after(empty).entries() == ()


def test_ps03_last_stable_offset_with_overlapping_transactions() -> None:
    batches = [data_batch(0, 1, [b"a"]), data_batch(1, 2, [b"b"]), data_batch(2, 3, [b"c"])]
    state = state_after(*batches)
    found = [state.first_open_transaction()]
    for offset, producer in ((3, 1), (4, 3), (5, 2)):
        state.add(decode_batch(marker(offset, producer, COMMIT)))
        found.append(state.first_open_transaction())
    assert found == [0, 1, 1, None]


def test_ps03_a_marker_that_not_every_replica_has_decides_nothing() -> None:
    state = state_after(
        data_batch(0, 1, [b"a"]), data_batch(1, 2, [b"b"]), marker(2, 1, COMMIT),
        marker(3, 2, ABORT, epoch=0),
    )  # fmt: skip
    found = [state.first_undecided(watermark) for watermark in (0, 2, 3, 4)]
    assert found == [0, 0, 1, None]
    assert state.first_open_transaction() is None


@pytest.mark.parametrize(("decided", "bound"), [((), 0), ((1,), 10), ((1, 3), 10), ((1, 3, 2), 30)])
def test_ps03_open_transactions_hold_a_round_back(
    tmp_path: Path, decided: tuple[int, ...], bound: int
) -> None:
    tail = b"".join(marker(30 + i, producer, COMMIT) for i, producer in enumerate(decided))
    directory = write_partition(
        tmp_path,
        {
            0: data_batch(0, 1, [b"a"]),
            10: data_batch(10, 2, [b"b"]),
            20: data_batch(20, 3, [b"c"]),
            30: tail or one(30, b"x"),
        },
    )
    assert bound == clean(clean_request(directory)).bound


@pytest.mark.parametrize(
    ("high_watermark", "is_unsafe", "bound"), [(30, False, 0), (31, False, 31), (30, True, 30)]
)
def test_ps03_a_marker_below_a_snapshot_that_not_every_replica_has_decides_nothing(
    tmp_path: Path, high_watermark: int, is_unsafe: bool, bound: int
) -> None:
    """But to who insists on a high watermark: a broker that is restarted has forgotten it."""
    # Segments were rolled behind the marker, and the snapshot says only that nothing is open.
    directory = write_partition(
        tmp_path,
        {
            0: data_batch(0, 1, [b"a"]),
            10: one(10, b"b"),
            30: marker(30, 1, COMMIT),
            31: one(31, b"c"),
            32: b"",
        },
    )
    opened = ProducerEntry(1, 0, 0, 0, 0, NOW_MS, -1, 0)
    for offset in (10, 30, 31, 32):
        ended = offset > 30
        entry = replace(opened, current_txn_first_offset=-1) if ended else opened
        write_snapshot(directory, offset, [entry])
    request = clean_request(directory)
    # Of the clock, which is the tests' own, nothing is asked here.
    given = replace(request, high_watermark=high_watermark, is_unsafe=is_unsafe, now_ms=None)
    assert bound == clean(given).bound


def test_aborted_transaction_knows_what_was_open_when_it_ended() -> None:
    state = state_after(data_batch(4, 1, [b"a"]), data_batch(5, 2, [b"b"]))
    assert AbortedTransaction(2, 5, 6, 4) == state.add(decode_batch(marker(6, 2, ABORT)))
    assert AbortedTransaction(1, 4, 7, 8) == state.add(decode_batch(marker(7, 1, ABORT)))
    assert state.add(decode_batch(marker(8, 1, ABORT))) is None


def test_marker_that_cannot_be_read_is_corrupt() -> None:
    bad = encode_batch([Record(0, NOW_MS, b"\x00", b"")], producer_id=1, is_control=True)
    with pytest.raises(CorruptError):
        state_after(bad)


@pytest.mark.parametrize(
    ("idle_ms", "open_since", "expected"),
    [
        (DAY_MS - 1, -1, [[7, 3, 2]]),
        (DAY_MS, -1, []),
        (DAY_MS * 100, 3, [[7, 3, 2]]),
    ],
)
def test_producers_expire_unless_their_transaction_is_open(
    idle_ms: int, open_since: int, expected: list[list[int]]
) -> None:
    entry = ProducerEntry(7, 2, 5, 3, 0, NOW_MS - idle_ms, -1, open_since)
    rows = last_records([entry], now_ms=NOW_MS, expiration_ms=DAY_MS)
    assert expected == rows.tolist()


def test_producers_are_sorted_for_the_search(tmp_path: Path) -> None:
    entries = [ProducerEntry(p, 0, 0, p, 0, NOW_MS, -1, -1) for p in (9, -1, 2**62, 3)]
    rows = last_records(entries, now_ms=NOW_MS, expiration_ms=DAY_MS)
    assert [-1, 3, 9, 2**62] == rows[:, 0].tolist()


def test_ps04_snapshots_of_what_is_left_stay_and_strays_are_the_brokers(tmp_path: Path) -> None:
    """Cleaning takes the snapshots of merged bases only; a start-up removes strays."""
    directory = write_partition(
        tmp_path, {0: one(0, b"a"), 2: one(2, b"a"), 5: one(5, b"a"), 42: b""}
    )
    for offset in (2, 3, 5, 42):
        write_snapshot(directory, offset)
    clean(clean_request(directory))
    assert {3, 42} == {int(path.stem) for path in directory.glob("*.snapshot")}


def test_ps04_unreadable_snapshot_is_passed_over(tmp_path: Path) -> None:
    """Case W of formats.md 3.5; the older one and the batches behind it say the same."""
    directory = write_partition(
        tmp_path,
        {
            0: data_batch(0, 7, [b"a"]) + marker(1, 7, COMMIT),
            2: data_batch(2, 7, [b"a"], sequence=1) + marker(3, 7, COMMIT),
            4: one(4, b"a"),
            5: b"",
        },
    )
    entry = ProducerEntry(7, 0, 0, 0, 0, NOW_MS, 0, -1)
    write_snapshot(directory, 2, [entry])
    write_snapshot(directory, 5).write_bytes(b"\x00\x01not a snapshot")
    clean(clean_request(directory))
    # The producer's last data batch stays, empty; its first one does not.
    kept = [batch for batch in batches_of(directory) if batch.producer_id == 7]
    assert [(2, 0, False)] == [
        (batch.last_offset, batch.count, batch.is_control) for batch in kept if not batch.is_control
    ]
