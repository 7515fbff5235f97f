"""A log that one host led and another replicated, and what every reader of it must find.

Segments hold a few records, so that a round has several groups. The oldest records are past their
retention. Whatever happens to hosts, a reader from the log start finds of every key the newest
record that was acknowledged, at the offset that it was given, and offsets ascend.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from keeplast.model.partition import TopicPartition
from keeplast.tier.objects.object_store import object_key, partition_prefix, segment_of_key
from tests.support.host_process import Entry, Member, Place

TOPIC_ID = "5" * 32
DAY_MS = 86_400_000
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "420",
    "retention.ms": str(7 * DAY_MS),
}
KEYS = 6
OLD, NEW = 10, 22
"""How many records are past their retention, and how many are not."""


class Rivals:
    """A partition at ``place`` that ``a`` led at epoch 0 and ``b`` has replicated."""

    def __init__(self, place: Place) -> None:
        """Write the log with both hosts in this process; ``a`` is closed again, ``b`` is open."""
        self.place = place
        self.written: list[tuple[bytes, bytes | None]] = []
        now_ms = time.time_ns() // 1_000_000
        a = Member(place, "a")
        a.store.create(place.partition, TOPIC_ID, log_start=0, settings=place.settings)
        a.lead(0)
        self.b = Member(place, "b")
        self.b.follow(0)
        a.append(self.entries(OLD, now_ms - 10 * DAY_MS) + self.entries(NEW, now_ms))
        a.roll()
        a.acknowledge(a.end())
        replicate(a, self.b)
        a.close()

    def entries(self, count: int, timestamp_ms: int) -> list[Entry]:
        """Return the next ``count`` records; every seventh is a tombstone."""
        made: list[Entry] = []
        for _ in range(count):
            number = len(self.written)
            key = b"k%d" % (number % KEYS)
            value = None if number % 7 == 3 else b"value %d" % number
            self.written.append((key, value))
            made.append((key, value, timestamp_ms))
        return made

    def check_read(self, reader: Member) -> None:
        """AssertionError unless ``reader`` finds the state that the log must have."""
        found = reader.read()
        log_start = reader.store.load(self.place.partition).log_start
        for before, after in itertools.pairwise(found):
            assert before[0] < after[0]
        for offset, key, value in found:
            assert (key, value) == self.written[offset]
        expected = dict(self.written[log_start:])
        assert present(expected) == present({key: value for _, key, value in found})

    def check_sound(self, member: Member) -> None:
        """AssertionError unless every live object is there and every invariant holds."""
        assert () == member.tiered.verify(self.place.partition, lambda count: None)
        assert self.live_objects(member) <= self.objects(member)

    def check_tidy(self, member: Member) -> None:
        """AssertionError unless every object belongs to a live segment."""
        live = set(member.store.load(self.place.partition).segments)
        assert live == {segment_of_key(key) for key in self.objects(member)}

    def live_objects(self, member: Member) -> set[str]:
        """Return the keys of the objects that are read."""
        state = member.store.load(self.place.partition)
        return {
            object_key(state.partition, state.topic_id, s.segment_id, s.base_offset, suffix)
            for s in state.segments.values()
            for suffix in s.files
        }

    def objects(self, member: Member) -> set[str]:
        """Return the keys of all objects."""
        prefix = partition_prefix(self.place.partition, TOPIC_ID)
        return {found.key for found in member.objects.list(prefix)}

    def finish_as_b(self) -> None:
        """Do everything as the new leader that is left to do, and find nothing wrong at any time.

        In the end no object is left that is not live.
        """
        b = self.b
        b.lead(1)
        self.check_read(b)
        self.check_sound(b)
        b.copy()
        b.clean()
        self.check_read(b)
        b.expire()
        b.append(self.entries(5, time.time_ns() // 1_000_000))
        b.roll()
        b.acknowledge(b.end())
        b.copy()
        b.clean()
        b.collect()
        self.check_read(b)
        self.check_sound(b)
        self.check_tidy(b)

    def rejoin_as_a(self) -> None:
        """The host that was killed comes back as a follower and has what the leader has."""
        a = Member(self.place, "a")
        a.follow(1)
        replicate(self.b, a)
        assert a.host.lineage == self.b.host.lineage
        self.check_read(a)
        a.close()


def replicate(leader: Member, follower: Member) -> None:
    """Bring a follower to the leader's end."""
    while follower.end() < leader.end():
        data, _ = leader.fetch(follower.end())
        follower.replicate(data, leader.host.high_watermark, leader.log_start())


def present(values: dict[bytes, bytes | None] | dict[bytes | None, bytes | None]) -> object:
    """Return the values that are there: a deleted key and none are the same to a reader."""
    return {key: value for key, value in values.items() if value is not None}


def place_of(database: str, objects: str, root: Path, name: str, options: dict[str, str]) -> Place:
    """Return a place of its own for one test."""
    return Place(
        database, objects, root, TopicPartition(name, 0), SETTINGS, options
    )  # fmt: skip
