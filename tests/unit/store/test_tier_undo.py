"""What a round in a store replaced is kept for as long as is set, and comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from keeplast.errors import ConflictError, CorruptError, RefusedError
from keeplast.host.leased_host import open_host
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.hold import HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.undo import UndoRound
from keeplast.run.undoing import undo_partitions
from keeplast.store.undo import UndoneStore
from keeplast.survey.receipt_book import UndoReceipt, read_entries, rounds_of
from keeplast.tier.metadata import schema, undo_rows
from keeplast.tier.metadata.facts import ERASURES, KeptText
from keeplast.tier.objects.object_store import object_key, segment_of_key
from keeplast.tier.state.kept_rounds import KeptSwap, joined_swap
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import Route
from tests.support.broker_directory import BrokerDirectory, crashing_at
from tests.support.heard_calls import appending
from tests.support.observed_files import Crash
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS, PARTITION

KEPT_MS = 2 * DAY_MS
GRACE_MS = DAY_MS // 24
TOPIC = replace(COMPACT, segment_bytes=1 << 20, undo_retention_ms=KEPT_MS)
CHUNKED = replace(TOPIC, segment_bytes=14, tier_chunk_bytes=14)
"""Every segment is a group, and a chunk."""
DELETING = {"cleanup_policy": frozenset({"compact", "delete"}), "retention_ms": -1}


class World(BrokerDirectory):
    """A store that keeps what rounds replace, and what its readers find; of ``written`` keys."""

    def __init__(self, root: Path, topic: TopicConfig) -> None:
        super().__init__(root, topic)
        self.written: list[str] = []

    def append_key(self, key: str, value: str) -> None:
        log = LogAppender(self.path, LocalFiles(), topic=COMPACT, clock=self.clock)
        log.append([NewRecord(key.encode(), value.encode(), NOW_MS)])
        log.roll()
        log.close()

    def fill(self, *keys: str) -> None:
        """Append and import a segment a key."""
        for key in keys:
            self.append_key(key, f"{key} at {len(self.written)}")
            self.written.append(key)
        self.import_all()

    def clean(self, **how: Any) -> None:
        report = self.tiered.clean(PARTITION, force=True, grace_ms=GRACE_MS, **how)
        assert not report.skipped

    def undo(self, **how: Any) -> UndoRound | None:
        return self.tiered.undo.put_back(PARTITION, grace_ms=GRACE_MS, **how)

    def rounds(self) -> tuple[UndoRound, ...]:
        return self.tiered.undo.rounds(PARTITION)

    def collect(self) -> int:
        return self.tiered.collect(PARTITION).segments

    def seen(self) -> tuple[object, ...]:
        """Return what is read and what says how far it is clean, without who holds it.

        What segments carry of that is left out: one that was copied behind a round loses it.
        """
        found = self.state
        segments = {
            name: replace(each, cleaner_offsets={}) for name, each in found.segments.items()
        }
        return (
            found.routes, segments, found.first_dirty(), found.cleaned_for,
            found.remote_bytes,
        )  # fmt: skip

    def sound(self) -> None:
        """AssertionError unless every row and live object is in order."""
        assert () == self.tiered.verify(PARTITION)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return made(tmp_path / "world")


def made(root: Path, topic: TopicConfig = TOPIC) -> World:
    (root / "data" / str(PARTITION)).mkdir(parents=True)
    found = World(root, topic)
    found.fill("a", "b", "a", "c")
    return found


def test_a_round_is_listed_and_undone_as_it_was(world: World) -> None:
    before, values = world.seen(), world.values()
    world.clean()
    after = world.seen()
    assert before != after
    (listed,) = world.rounds()
    assert (None, True, 4, 0, 4, 0) == (
        listed.refusal, listed.is_in_place, listed.segments, listed.first, listed.end,
        listed.checkpoint,
    )  # fmt: skip
    assert KEPT_MS == listed.until_ms - listed.kept_at_ms
    assert listed == world.undo(writes=False)
    assert after == world.seen()
    lines: list[bytes] = []
    assert listed == world.undo(receipt=appending(lines))
    assert (before, values) == (world.seen(), world.values())
    noted = json.loads(lines[0])["undo"]
    assert (listed.round, 0, 4) == (noted["attempt"], noted["checkpoint"], len(noted["restored"]))
    assert all(each["crc32c"] is not None for each in (*noted["restored"], *noted["replaced"]))
    assert (None, ()) == (world.undo(), world.rounds())
    world.sound()
    world.clean()
    assert after[2:4] == world.seen()[2:4]
    world.sound()


def test_what_an_undo_puts_back_is_a_reason_for_a_round_in_the_process_that_removed_it(
    tmp_path: Path,
) -> None:
    world = made(tmp_path, replace(TOPIC, delete_retention_ms=0))
    log = LogAppender(world.path, LocalFiles(), topic=COMPACT, clock=world.clock)
    log.append([NewRecord(b"a", None, NOW_MS)])
    log.roll()
    log.close()
    world.import_all()
    world.clean()
    stamped = world.seen()

    def takes_expired() -> bool:
        world.clock.advance(1)
        report = world.tiered.clean(PARTITION, expired=True, grace_ms=GRACE_MS)
        return report.is_expired_round and not report.skipped

    assert takes_expired()
    taken = world.seen()
    world.undo()
    assert stamped == world.seen()
    assert takes_expired()
    assert taken != stamped != world.seen()
    assert not takes_expired()


def test_nothing_is_kept_unless_that_is_set(tmp_path: Path) -> None:
    world = made(tmp_path, replace(TOPIC, undo_retention_ms=0))
    world.clean()
    assert () == world.rounds()
    world.clock.advance(GRACE_MS)
    assert 4 == world.collect()


@pytest.mark.parametrize("topic", [TOPIC, CHUNKED], ids=["whole", "in chunks"])
def test_rounds_come_back_from_the_newest_on_with_what_was_copied_since(
    tmp_path: Path, topic: TopicConfig
) -> None:
    world = made(tmp_path, topic)
    states = [world.seen()]
    for keys in (("b", "d"), ("a",), ("c", "a")):
        world.clean()
        world.fill(*keys)
        states.append(world.seen())
    values = world.values()
    world.clean()
    newest, *others = world.rounds()
    assert 4 == len(others) + 1
    assert [None, *["a later round has to be undone first"] * 3] == [
        each.refusal for each in (newest, *others)
    ]
    # An intermediate of a round in chunks goes by its grace: it is nothing that the round found.
    world.clock.advance(GRACE_MS)
    world.collect()
    world.undo()
    assert (states.pop(), values) == (world.seen(), world.values())
    while states:
        assert world.undo() is not None
        routes, _, first_dirty, cleaned_for, _ = states.pop()
        found = world.seen()
        assert (routes, first_dirty, cleaned_for) == (
            found[0][: len(routes)], found[2], found[3]  # type: ignore[index, arg-type]
        )  # fmt: skip
        world.sound()
    expected = {
        n: f"{k} at {n}" for n, k in enumerate(("a", "b", "a", "c", "b", "d", "a", "c", "a"))
    }
    assert expected == world.values()


def test_kept_rounds_are_not_collected_until_their_time_is_over(world: World) -> None:
    world.clean()
    objects = len(list(world.objects.list("")))
    world.clock.advance(KEPT_MS - 1)
    assert (0, objects) == (world.collect(), len(list(world.objects.list(""))))
    (kept,) = {each.not_before_ms for each in world.store.orphans(PARTITION)}
    assert kept == world.clock.now_ms() + 1
    world.clock.advance(1)
    assert () == world.rounds()
    assert world.undo() is None
    assert 4 == world.collect()
    live = set(world.state.segments)
    assert live == {segment_of_key(each.key) for each in world.objects.list(str(PARTITION))}


def test_a_round_whose_time_is_over_takes_those_before_it_along(world: World) -> None:
    """A longer time was set before: by itself that round would come back over what stayed."""
    world.clean()
    world.fill("a")
    world.topic = replace(TOPIC, undo_retention_ms=DAY_MS)
    world.clean()
    assert 2 == len(world.rounds())
    world.clock.advance(DAY_MS)
    assert () == world.rounds()
    world.collect()
    assert () == world.store.undo_rows.kept(PARTITION)[1]


def test_a_shorter_time_counts_for_what_is_kept_already(world: World) -> None:
    world.clean()
    world.topic = replace(TOPIC, undo_retention_ms=DAY_MS)
    world.tiered.configure(PARTITION, {"undo.retention.ms": str(DAY_MS)})
    (kept,) = world.rounds()
    assert DAY_MS == kept.until_ms - kept.kept_at_ms
    world.topic = TOPIC
    world.tiered.configure(PARTITION, {"undo.retention.ms": str(KEPT_MS)})
    assert (kept,) == world.rounds()
    world.topic = replace(TOPIC, undo_retention_ms=0)
    world.tiered.configure(PARTITION, {"undo.retention.ms": "0"})
    assert () == world.rounds()


def lose_object(world: World) -> None:
    world.objects.delete([log_of_source(world)])


def change_object(world: World) -> None:
    key = log_of_source(world)
    data = bytearray(world.objects.read_range(key, 0, world.objects.stat(key).size_bytes))
    data[-1] ^= 1
    world.objects.delete([key])
    with_new(world, key, bytes(data))


def shorten_object(world: World) -> None:
    key = log_of_source(world)
    data = bytes(world.objects.read_range(key, 0, world.objects.stat(key).size_bytes))
    world.objects.delete([key])
    with_new(world, key, data[:-1])


def with_new(world: World, key: str, data: bytes) -> None:
    writer = world.objects.open_write(key)
    writer.write(data)
    writer.close()


def log_of_source(world: World) -> str:
    state, (kept, *_) = world.store.undo_rows.kept(PARTITION)
    found = kept.segments[kept.source_ids[1]]
    return object_key(PARTITION, state.topic_id, found.segment_id, found.base_offset, ".log")


def say_it_is_cleaner(world: World) -> None:
    """As a copy does of a directory whose broker's cleaner went further."""
    world.fill("z")
    state = world.state
    world.store.publish(PARTITION, "f" * 32, epoch=state.leader_epoch, cleaned_to=5)


def ask_for_erasure(world: World) -> None:
    text = {
        "version": 1,
        "requests": [
            {
                "id": "0" * 16, "created_ms": 1, "topics": ["t"], "hash_key": "x", "keys": [],
                "before": [],
            }
        ],
    }  # fmt: skip
    kept = KeptText(world.store._transactions._engine, world.clock, ERASURES)
    kept.change(lambda _: json.dumps(text))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lose_object, "missing or damaged"),
        (change_object, "missing or damaged"),
        (shorten_object, "missing or damaged"),
        (say_it_is_cleaner, "the cleaner checkpoint says 5"),
        (ask_for_erasure, "keys of the topic are to be erased"),
    ],
)
def test_an_undo_that_would_lose_records_is_refused(
    world: World, change: Callable[[World], None], reason: str
) -> None:
    world.clean()
    change(world)
    before = world.seen()
    for writes in (False, True):
        with pytest.raises(RefusedError, match=reason):
            world.undo(writes=writes)
    assert before == world.seen()
    assert 1 == world.tiered.undo.drop(PARTITION)
    assert () == world.rounds()


def test_a_request_that_comes_while_objects_are_read_is_heeded(world: World) -> None:
    world.clean()
    before = world.seen()
    with pytest.raises(RefusedError, match="are to be erased"):
        world.undo(receipt=lambda line: ask_for_erasure(world))
    assert before == world.seen()


def round_that_keeps_nothing(world: World) -> None:
    world.fill("a")
    world.clean(keeps=False)


def truncate(world: World) -> None:
    world.tiered.removals.truncate(PARTITION, 3, grace_ms=0)


def forget(world: World) -> None:
    world.tiered.removals.forget(PARTITION, grace_ms=0)


def lead(world: World) -> None:
    topic = replace(TOPIC, undo_retention_ms=0)
    host = open_host(world.tiered, PARTITION, world.root / "host", topic)
    host.become_follower(world.state.leader_epoch)
    host.catch_up()
    host.become_leader(world.state.leader_epoch + 1)
    host.close()


@pytest.mark.parametrize("change", [round_that_keeps_nothing, truncate, forget, lead])
def test_what_ends_a_history_lets_go_what_was_kept_of_it(
    world: World, change: Callable[[World], None]
) -> None:
    world.clean()
    change(world)
    assert () == world.rounds()
    world.clock.advance(GRACE_MS)
    assert world.collect() >= 4


def test_the_log_start_takes_what_is_kept_below_it(tmp_path: Path) -> None:
    """Each segment is a group: what lies above the new start comes back all the same."""
    world = made(tmp_path, replace(CHUNKED, **DELETING))
    world.fill("a")
    world.clean()
    (whole,) = world.rounds()
    assert (0, 3, 2) == (whole.first, whole.end, whole.segments)
    world.tiered.removals.delete_records(PARTITION, 2, grace_ms=0)
    (left,) = world.rounds()
    assert (None, 2, 3, 1) == (left.refusal, left.first, left.end, left.segments)
    world.clock.advance(GRACE_MS)
    assert 3 == world.collect(), "what was read below, what came before it, and nothing above"
    assert world.undo() is not None
    assert {2: "a at 2", 3: "c at 3", 4: "a at 4"} == world.values()
    world.sound()


def test_a_log_start_inside_of_what_was_replaced_ends_it(tmp_path: Path) -> None:
    """One group of four: a part of it may not come back, and without that the rest cannot."""
    world = made(tmp_path, replace(TOPIC, **DELETING))
    world.clean()
    world.fill("a")
    world.clean()
    assert 2 == len(world.rounds())
    world.tiered.removals.delete_records(PARTITION, 2, grace_ms=0)
    (newest,) = world.rounds()
    assert (None, 2) == (newest.refusal, newest.segments)
    world.clock.advance(GRACE_MS)
    assert 4 == world.collect()
    assert world.undo() is not None
    assert world.undo() is None
    world.sound()


def test_a_hold_hinders_no_undo(world: World) -> None:
    world.clean()
    end = world.state.remote_end
    (hold,) = world.tiered.holds.add([PARTITION], "audit", HoldPoint(offset=end), DAY_MS)
    assert end == hold.offset
    assert world.undo() is not None
    world.clean()
    assert (1, end) == (len(world.rounds()), world.state.first_dirty())


class Overtaken(UndoneStore, frozen=True):
    """A store that changes once the names of its rounds were looked up."""

    def names(self, partition: TopicPartition) -> list[str]:
        names = super().names(partition)
        self.undo.put_back(partition, grace_ms=GRACE_MS)
        return names


def test_no_other_round_is_undone_than_the_one_that_was_named(world: World) -> None:
    """Two calls with the same names: the second may not take the round before."""
    world.clean()
    world.fill("a")
    world.clean()
    newest, earlier = world.rounds()
    place = Overtaken(world.tiered.undo, GRACE_MS)
    done = undo_partitions(place, [PARTITION], rounds=[newest.round])
    ((partition, error),) = done.failed
    assert (PARTITION, ()) == (partition, done.rounds)
    assert isinstance(error, RefusedError)
    assert "another round is the newest by now" in str(error)
    assert (earlier.round,) == tuple(each.round for each in world.rounds())


def test_another_owner_undoes_what_a_former_one_replaced(world: World) -> None:
    before = world.seen()
    world.clean()
    other = world.opened("b")
    with pytest.raises(RefusedError, match="another host owns"):
        other.undo.put_back(PARTITION, grace_ms=0)
    assert other.undo.put_back(PARTITION, grace_ms=0, takes_over=True) is not None
    assert before == world.seen()
    with pytest.raises(RefusedError, match="another host owns"):
        world.clean()


def test_a_round_that_went_on_meanwhile_ends(world: World) -> None:
    """Its next commit finds other segments, or what says how far the log was clean."""
    state = world.state
    world.clean()
    first = world.state
    world.undo()
    with pytest.raises(ConflictError):
        world.store.publish(
            PARTITION, "e" * 32, epoch=state.leader_epoch, cleaned_to=4, began=first
        )
    assert 0 == world.state.first_dirty()


def test_what_changes_while_objects_are_read_is_seen(world: World) -> None:
    world.clean()

    def receipt(line: bytes) -> bytes:
        world.fill("z")
        return line

    with pytest.raises(ConflictError, match="changed meanwhile"):
        world.undo(receipt=receipt)
    assert world.undo() is not None
    world.sound()


def test_the_oldest_rounds_give_way_where_there_are_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo_rows, "ROUNDS_MAX", 2)
    for _ in range(3):
        world.clean()
        world.fill("a")
    assert 2 == len(world.rounds())
    for _ in range(2):
        assert world.undo() is not None
    assert world.undo() is None
    world.sound()


def test_receipts_of_all_chunks_are_of_a_round_that_was_undone(tmp_path: Path) -> None:
    """Behind it the same round is done again: what was undone is none that counts."""
    world = made(tmp_path, CHUNKED)
    world.fill("a", "a", "b")
    path = tmp_path / "receipts"

    def receipt(line: bytes) -> bytes:
        with path.open("ab") as file:
            file.write(line)
        return line

    def rounds() -> list[str]:
        return [each.name for each in rounds_of(read_entries(path, LocalFiles()))]

    world.clean(receipt=receipt)
    first = rounds()
    world.undo(receipt=receipt)
    assert first == rounds(), "an intent, until a round shows that it was carried out"
    (undone,) = (each for each in read_entries(path, LocalFiles()) if isinstance(each, UndoReceipt))
    assert first == [undone.attempt, *undone.more]
    assert len(first) > 2
    world.clean(receipt=receipt)
    assert len(first) == len(rounds())
    assert not set(first) & set(rounds())


def test_a_row_that_was_edited_is_named(world: World) -> None:
    world.clean()
    engine = world.store._transactions._engine
    with engine.begin() as connection:
        connection.execute(update(schema.SEGMENTS).values(undo_number=None))
    findings = world.tiered.verify(PARTITION)
    assert 4 == sum("which it has kept, is not there" in str(each) for each in findings)
    with pytest.raises(RefusedError, match="missing or damaged"):
        world.undo()
    for values in ({"sources": "[]"}, {"outputs": "[[0,1]]"}, {"sources": "none"}):
        with engine.begin() as connection:
            connection.execute(update(schema.UNDO_SWAPS).values(values))
        with pytest.raises(CorruptError, match="undo_swaps"):
            world.undo()
        (finding,) = world.tiered.verify(PARTITION)
        assert "undo_swaps" in str(finding)
    assert 1 == world.tiered.undo.drop(PARTITION)
    world.sound()


def test_a_swap_of_a_later_chunk_goes_from_what_the_round_found() -> None:
    a, b, c = (Route(10 * n, 10 * n + 9, f"{n}") for n in range(3))
    low, high = Route(0, 4, "low"), Route(5, 19, "high")
    first = KeptSwap((a, b), (low, high))
    other = KeptSwap((Route(40, 49, "4"),), (Route(40, 49, "5"),))
    last = Route(5, 29, "last")
    joined, parts = joined_swap([first, other], [high, c], [last])
    assert KeptSwap((a, b, c), (low, last)) == joined
    assert (first,) == parts


@pytest.mark.parametrize("what", ["undo", "drop", "sweep"])
def test_a_crash_at_any_change_leaves_all_of_it_or_nothing_and_the_next_call_does_it(
    world: World, what: str
) -> None:
    before = world.seen()
    world.clean()
    after = world.seen(), world.values(), world.rounds()
    if what == "sweep":
        world.clock.advance(KEPT_MS)
        after = *after[:2], ()
    number = 0
    while True:
        try:
            with crashing_at(world, number) as done:
                if what == "undo":
                    world.undo()
                elif what == "drop":
                    world.tiered.undo.drop(PARTITION)
                else:
                    world.store.undo_rows.sweep(PARTITION, epoch=world.state.leader_epoch)
        except Crash:
            # Of an owner's claim, which is a change of its own, the log knows nothing.
            assert after == (world.seen(), world.values(), world.rounds())
            world.sound()
            world.tiered = world.opened(f"owner {number}")
            world.tiered.own(PARTITION, takes_over=True)
            number += 1
            continue
        break
    assert number == len(done) > 3
    assert () == world.rounds()
    assert (before if what == "undo" else after[0]) == world.seen()
    world.sound()


def test_a_crash_at_any_change_of_a_round_leaves_what_can_be_undone(tmp_path: Path) -> None:
    """Whatever of it is live comes back, and its row is there as soon as anything is."""
    world = made(tmp_path, CHUNKED)
    world.fill("a", "a", "b")
    before = world.seen()
    number, undone = 0, 0
    while True:
        try:
            with crashing_at(world, number) as done:
                world.clean()
        except Crash:
            rounds = world.rounds()
            assert bool(rounds) == (before != world.seen())
            if rounds:
                undone += 1
                assert world.undo() is not None
            assert before == world.seen()
            number += 4
            continue
        break
    assert len(done) <= number
    assert undone > 4
    assert world.undo() is not None
    assert before == world.seen()
    world.sound()


def test_a_reader_in_the_middle_goes_on_with_the_log_that_it_began_with(world: World) -> None:
    """What went waits for its grace, as behind a round."""
    world.clean()
    reading: PartitionState = world.state
    world.undo()
    world.collect()
    there = {segment_of_key(each.key) for each in world.objects.list(str(PARTITION))}
    assert set(reading.segments) <= there
    world.clock.advance(GRACE_MS)
    assert len(reading.segments) == world.collect()
