"""``verify`` of a store finds each kind of corruption, and reads each object once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.cleaner.plan import SegmentContents
from keeplast.format import leader_epoch, offset_index, time_index, txn_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import (
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.store.verification import CLAIMS, judge_partition, verify_remote
from keeplast.tier.objects.filters import FilterKey, SegmentBytes, encode_filter
from keeplast.tier.objects.object_store import FILTER, object_key
from keeplast.tier.objects.transfer import EPOCHS
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteFile
from tests.support.legacy_sets import encode_message_set
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION
from tests.support.tiered_log import Tiered

ABORT = ControlType.ABORT


class Store(Tiered):
    """A store whose rows and objects can be changed by hand; what was read is counted."""

    changed: PartitionState | None = None

    @property
    def now(self) -> PartitionState:
        return self.state if self.changed is None else self.changed

    def key(self, base: int, suffix: str) -> str:
        route = next(r for r in self.now.routes if r.base_offset == base)
        return object_key(PARTITION, self.now.topic_id, route.segment_id, base, suffix)

    def read(self, base: int, suffix: str) -> bytes:
        key = self.key(base, suffix)
        return bytes(self.objects.read_range(key, 0, self.objects.stat(key).size_bytes))

    def write(self, base: int, suffix: str, data: bytes, *, in_row: bool = True) -> None:
        """Put another object there; ``in_row`` lets the row say that it is the right one."""
        self.objects.delete([self.key(base, suffix)])
        writer = self.objects.open_write(self.key(base, suffix))
        writer.write(data)
        writer.close()
        if in_row:
            self.change(base, {suffix: RemoteFile(len(data), crc32c(data))})

    def change(self, base: int, files: dict[str, RemoteFile] | None = None, **fields: int) -> None:
        """Change the row of the segment at ``base``."""
        state = self.now
        route = next(r for r in state.routes if r.base_offset == base)
        old = state.segments[route.segment_id]
        made = replace(old, files={**old.files, **(files or {})}, **fields)
        segments = {**state.segments, route.segment_id: made}
        self.changed = replace(state, segments=segments)

    def findings(self) -> list[str]:
        found = verify_remote(self.objects, self.now, lambda count: None)
        assert {each.invariant for each in found} <= CLAIMS.keys()
        return [f"{each.invariant} {each.problem}" for each in found]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three segments; a transaction begins in the first and is aborted in the second."""
    log = LogBuilder(tmp_path / "t-0", replace(COMPACT, index_interval_bytes=100))
    for base in (0, 1, 2):
        aborted, committed = log.producer(7), log.producer(8)
        if base == 0:
            aborted.send(1)
        for number in range(10):
            log.now_ms += 1
            committed.send(number)
        if base == 1:
            log.producer(7).abort()
        committed.commit()
        log.roll()
    log.close()
    return Store(tmp_path, log.directory)


def bases(store: Store) -> list[int]:
    return [route.base_offset for route in store.now.routes]


def test_a_sound_store_has_no_finding_before_and_after_a_round(store: Store) -> None:
    assert [] == store.findings()
    store.clean(COMPACT)
    assert [] == store.findings()


def test_a_log_from_before_there_were_leader_epochs_has_no_finding(tmp_path: Path) -> None:
    """The checkpoint of a broker that was upgraded begins behind the old formats."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.add(encode_message_set([Record(0, NOW_MS, b"k", b"v")], magic=1))
    log.roll()
    log.record(1, 1)
    log.finish()
    epochs = leader_epoch.encode([LeaderEpoch(0, 1)])
    (log.directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    store = Store(tmp_path, log.directory)
    assert [] == store.findings()
    store.clean(COMPACT)
    assert [] == store.findings()
    # What the checkpoint does name has to be there.
    store.write(bases(store)[-1], EPOCHS, leader_epoch.encode([]))
    (found,) = store.findings()
    assert found.startswith("I-23 leader epochs of the segment are missing")


def test_every_object_is_read_once(store: Store) -> None:
    read: dict[str, int] = {}
    whole = store.objects.read_range

    def counted(key: str, start: int, end: int) -> bytes:
        data = bytes(whole(key, start, end))
        read[key] = read.get(key, 0) + len(data)
        return data

    store.objects.read_range = counted  # type: ignore[method-assign,assignment]
    assert [] == store.findings()
    sizes = {key: store.objects.stat(key).size_bytes for key in read}
    assert sizes == read
    assert sum(len(s.files) for s in store.now.segments.values()) == len(read)


Mutation = Callable[[Store, int], None]


def changed_entries(suffix: str, change: Callable[[np.ndarray], None]) -> Mutation:
    codec = offset_index if suffix == INDEX else time_index

    def mutate(store: Store, base: int) -> None:
        entries = np.array(codec.decode(store.read(base, suffix)), np.int64)
        change(entries)
        store.write(base, suffix, codec.encode(entries))

    return mutate


def set_cell(row: int, column: int, more: int) -> Callable[[np.ndarray], None]:
    def change(entries: np.ndarray) -> None:
        entries[row, column] += more

    return change


def indexed(*entries: AbortedTransaction) -> Mutation:
    return lambda store, base: store.write(base, TXN_INDEX, txn_index.encode(entries))


def aborted(store: Store) -> AbortedTransaction:
    (entry,) = txn_index.decode(store.read(bases(store)[1], TXN_INDEX))
    return entry


def lost_transactions(store: Store, base: int) -> None:
    segment = next(s for s in store.now.segments.values() if s.base_offset == base)
    files = {k: v for k, v in segment.files.items() if k != TXN_INDEX}
    segments = {**store.now.segments, segment.segment_id: replace(segment, files=files)}
    store.changed = replace(store.now, segments=segments)


def late_transaction(store: Store, base: int) -> None:
    indexed(replace(aborted(store), first_offset=base))(store, base)


def bogus_transaction(store: Store, base: int) -> None:
    indexed(aborted(store), AbortedTransaction(8, base, base + 3, base + 4))(store, base)


def foreign_transaction(store: Store, base: int) -> None:
    indexed(aborted(store), AbortedTransaction(7, 0, 10_000, 10_001))(store, base)


def gone(suffix: str) -> Mutation:
    return lambda store, base: store.objects.delete([store.key(base, suffix)])


def flipped(suffix: str) -> Mutation:
    def mutate(store: Store, base: int) -> None:
        data = bytearray(store.read(base, suffix))
        data[-1] ^= 1
        store.write(base, suffix, bytes(data), in_row=False)

    return mutate


def cut(suffix: str) -> Mutation:
    return lambda store, base: store.write(base, suffix, store.read(base, suffix)[:-1])


def with_row(**fields: int) -> Mutation:
    return lambda store, base: store.change(base, None, **fields)


def other_epochs(store: Store, base: int) -> None:
    store.write(base, EPOCHS, leader_epoch.encode([LeaderEpoch(5, 0)]))


def with_state(**fields: int) -> Mutation:
    def mutate(store: Store, base: int) -> None:
        store.changed = replace(store.now, **fields)

    return mutate


def no_route(store: Store, base: int) -> None:
    routes = tuple(route for route in store.now.routes if route.base_offset != base)
    store.changed = replace(store.now, routes=routes)


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (changed_entries(INDEX, set_cell(0, 1, 1)), "I-9 an entry points inside a batch"),
        (changed_entries(INDEX, set_cell(1, 0, -1)), "I-9 an entry has the offset of other"),
        (changed_entries(TIME_INDEX, set_cell(0, 0, -3)), "I-9 a batch before an entry is later"),
        (changed_entries(TIME_INDEX, set_cell(-1, 0, 9)), "I-9 the greatest timestamp is another"),
        (lost_transactions, "I-8 aborted records of producer 7 are not indexed"),
        (late_transaction, "I-8 aborted records of producer 7 are not indexed"),
        (bogus_transaction, "I-8 no abort marker of producer 8 ends an entry"),
        (foreign_transaction, "I-8 an entry ends in another segment"),
        (cut(INDEX), "I-9 "),
        (cut(SNAPSHOT), "I-9 "),
        (gone(LOG), "I-14 the object is gone"),
        (gone(INDEX), "I-14 the object is gone"),
        (gone(SNAPSHOT), "I-14 the object is gone"),
        (flipped(TXN_INDEX), "I-9 the object is not what was written"),
        (flipped(TIME_INDEX), "I-9 the object is not what was written"),
        (flipped(LOG), "I-9 the object is not what was written"),
        (with_row(max_timestamp_ms=5), "I-21 the row has another greatest timestamp"),
        (with_row(size_bytes=5), "I-21 its row and its log differ in size"),
        (with_row(last_offset=14), "I-1 a route reaches beyond its segment"),
        (other_epochs, "I-23 leader epochs of the segment are missing"),
        (with_state(log_start=10_000), "I-14 the log start 10000 lies beyond the end"),
        (with_state(remote_bytes=1), "I-21 the cached size is 1"),
        (no_route, "I-14 a hole or overlap at offset"),
    ],
)
def test_each_corruption_is_found(store: Store, mutate: Mutation, expected: str) -> None:
    base = bases(store)[1]
    mutate(store, base)
    assert [] != [each for each in store.findings() if each.startswith(expected)], store.findings()


def test_an_entry_that_hides_what_was_committed_before_is_found(store: Store) -> None:
    log_end = store.now.remote_end
    assert log_end > 0
    entry = aborted(store)
    # Producer 8 committed at the end of the first segment.
    end = bases(store)[1]
    indexed(entry, AbortedTransaction(8, 0, end, end + 1))(store, end)
    assert 1 == len([each for each in store.findings() if "producer 8" in each])


def test_a_filter_of_another_segment_is_found(store: Store) -> None:
    base = bases(store)[1]
    segment = next(s for s in store.now.segments.values() if s.base_offset == base)
    contents = SegmentContents(0, 0, 0, None, 0, 0, (), False)
    for crc, expected in ((segment.files[LOG].crc32c, 0), (1, 1)):
        its = SegmentBytes(segment.segment_id, segment.size_bytes, crc)
        hashes = np.ones(1, np.uint64)
        data = encode_filter(its, FilterKey(1, 2), contents, hashes, 0.01)
        writer = store.objects.open_write(store.key(base, FILTER))
        writer.write(data)
        writer.close()
        found = [each for each in store.findings() if "the filter is another segment's" in each]
        assert expected == len(found)
        store.objects.delete([store.key(base, FILTER)])


def flip(store: Store, base: int, suffix: str, at: int) -> bytes:
    """Flip a bit of the byte at ``at`` of an object; return the object as it was."""
    data = store.read(base, suffix)
    store.write(
        base, suffix, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :], in_row=False
    )  # fmt: skip
    return data


@pytest.mark.rotates(3)
@pytest.mark.parametrize("suffix", [LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, EPOCHS, FILTER])
def test_a_flipped_byte_anywhere_in_any_kind_of_object_is_found(store: Store, suffix: str) -> None:
    if suffix == FILTER:  # Rounds write them.
        store.clean(COMPACT)
    base = bases(store)[-1 if suffix == FILTER else 1]
    size = len(store.read(base, suffix))
    for at in sorted({*range(0, size, max(size // 40, 1)), size - 1}):
        data = flip(store, base, suffix, at)
        assert [] != [each for each in store.findings() if f"key={store.key(base, suffix)}" in each]
        store.write(base, suffix, data, in_row=False)
    assert [] == store.findings()


def test_a_segment_without_a_filter_has_no_finding(store: Store) -> None:
    store.clean(COMPACT)
    store.objects.delete([store.key(bases(store)[0], FILTER)])
    assert [] == store.findings()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-8], "the filter is not whole"),
        (lambda data: data + b"\0", "the filter is not whole"),
        (lambda data: b"", "not a filter"),
    ],
    ids=["cut", "too long", "empty"],
)
def test_a_filter_of_another_length_is_found(
    store: Store, change: Callable[[bytes], bytes], expected: str
) -> None:
    store.clean(COMPACT)
    base = bases(store)[0]
    store.write(base, FILTER, change(store.read(base, FILTER)), in_row=False)
    (found,) = store.findings()
    assert found.startswith(f"I-9 {expected}")


def test_a_filter_under_another_key_than_the_stores_is_found(store: Store) -> None:
    store.clean(COMPACT)
    base = bases(store)[0]
    segment = next(s for s in store.now.segments.values() if s.base_offset == base)
    its = SegmentBytes(segment.segment_id, segment.size_bytes, segment.files[LOG].crc32c)
    contents = SegmentContents(0, 0, 0, None, 0, 0, (), False)
    data = encode_filter(its, FilterKey(1, 2), contents, np.ones(1, np.uint64), 0.01)
    store.write(base, FILTER, data, in_row=False)
    judged = judge_partition(
        store.store, store.objects, PARTITION, lambda count: None, lambda count: None
    )
    (found,) = judged.findings
    assert ("I-9", store.key(base, FILTER)) == (found.invariant, found.object_key)
    assert "hashes with another key" in found.problem


def test_a_filter_that_is_written_again_while_it_is_read_is_read_once_more(store: Store) -> None:
    store.clean(COMPACT)
    base = bases(store)[0]
    data = flip(store, base, FILTER, 30)
    whole = store.objects.read_range
    read: list[str] = []

    def mends(key: str, start: int, end: int) -> bytes:
        found = bytes(whole(key, start, end))
        if key == store.key(base, FILTER):
            read.append(key)
            store.objects.read_range = whole  # type: ignore[method-assign]
            store.write(base, FILTER, data, in_row=False)
        return found

    store.objects.read_range = mends  # type: ignore[method-assign,assignment]
    assert [] == store.findings()
    assert 1 == len(read)


def test_a_finding_names_key_offset_expected_and_found(store: Store) -> None:
    base = bases(store)[1]
    lost_transactions(store, base)
    (found,) = store.findings()
    entry = AbortedTransaction(7, 0, 0, 0)
    assert f"key={store.key(base, TXN_INDEX)} offset=" in found
    assert found.endswith(f"expected={entry.first_offset} found=-1")
