"""Rounds where versions rank, with tiny maps and crashes between groups: no winner is ever lost.

The law that cleaning.md 9.3 was checked with: whatever rounds happen in between, complete or not,
in the end every key has the record of the greatest rank that was ever committed, once. A tombstone
that wins is honoured also when it had expired while a record that it outranks was still dirty.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from keeplast.api.open_log import open_log
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import text
from tests.support.record_rank import Rank, rank_of
from tests.support.scenario_log import ScenarioLog
from tests.support.turns import examples
from tests.support.versioned_log import BY_HEADER, BY_TIMESTAMP, HEADER_NAME, version_bytes

KEYS = 4
NAME = HEADER_NAME.encode()
TOPICS = [
    replace(topic, segment_bytes=segment_bytes)
    for topic in (BY_HEADER, BY_TIMESTAMP, TopicConfig(cleanup_policy=BY_HEADER.cleanup_policy))
    for segment_bytes in (14, 400)
]


class Write(Struct, frozen=True):
    """A batch, perhaps of a transaction, and perhaps the end of the segment."""

    records: tuple[NewRecord, ...]
    codec: Codec
    outcome: str
    rolls: bool


class Round(Struct, frozen=True):
    """A round with so many usable slots (0: no bound); a crash ends it after its first groups."""

    slots: int
    wave_bytes: int | None


Step = Write | Round


def records() -> st.SearchStrategy[NewRecord]:
    versions = st.one_of(
        st.none(), st.integers(-2, 4).map(version_bytes), st.sampled_from([b"", b"1234567"])
    )
    headers = st.lists(versions, max_size=2).map(tuple)
    return st.builds(
        lambda key, value, stamp, found: NewRecord(
            text(key), value, stamp, tuple((NAME, version) for version in found)
        ),
        st.integers(0, KEYS - 1),
        st.sampled_from([None, b"v"]),
        st.integers(-1, 5),
        headers,
    )


def writes() -> st.SearchStrategy[Write]:
    return st.builds(
        Write,
        st.lists(records(), min_size=1, max_size=3).map(tuple),
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP]),
        st.sampled_from(["plain", "plain", "commit", "abort"]),
        st.booleans(),
    )


def rounds() -> st.SearchStrategy[Round]:
    return st.builds(Round, st.sampled_from([0, 1, 1, 2, 3]), st.sampled_from([None, 1, 300]))


def steps() -> st.SearchStrategy[list[Step]]:
    return st.lists(st.one_of(writes(), writes(), rounds()), max_size=12)


@dataclass(slots=True)
class Model:
    """The log, and next to it every committed record in memory."""

    log: ScenarioLog
    committed: list[Record] = field(default_factory=list)
    first_dirty: int = 0
    producers: int = 0

    def take(self, step: Step) -> None:
        """Apply one step to both."""
        if isinstance(step, Write):
            self._write(step)
        else:
            self._clean(step)

    def _write(self, write: Write) -> None:
        if write.outcome == "plain":
            base = self.log.append(*write.records, codec=write.codec)
        else:
            self.producers += 1
            producer = self.log.producer(self.producers)
            base = producer.send_records(*write.records, codec=write.codec)
            producer.commit() if write.outcome == "commit" else producer.abort(rolls=False)
        if write.outcome != "abort":
            self.committed += [
                Record(base + i, new.timestamp_ms, new.key, new.value, new.headers)
                for i, new in enumerate(write.records)
            ]
        if write.rolls:
            self.log.roll()

    def _clean(self, round_: Round) -> None:
        if self.first_dirty >= self.log.active_base:
            return
        # Four slots of which three of four are usable, and so on.
        capacity = None if round_.slots == 0 else (round_.slots * 4 + 2) // 3
        if round_.wave_bytes is not None:
            self.log.clean_first_wave(
                wave_bytes_max=round_.wave_bytes, capacity=capacity, first_dirty=self.first_dirty
            )
            return
        report = self.log.clean(self.first_dirty, capacity=capacity, expiration_ms=1)
        assert report.end_offset is not None
        assert report.end_offset > self.first_dirty
        self.first_dirty = report.end_offset

    def winners(self) -> dict[bytes, Record]:
        """Return the record of the greatest rank of every key."""
        best: dict[bytes, tuple[Rank, Record]] = {}
        for record in self.committed:
            assert record.key is not None
            found = rank_of(record, self.log.topic.strategy, NAME)
            if record.key not in best or best[record.key][0] < found:
                best[record.key] = found, record
        return {key: record for key, (_, record) in best.items()}

    def check_state(self) -> None:
        """Hold what a reader gets that applies the rank against the records ever committed."""
        alive = {key: r for key, r in self.winners().items() if r.value is not None}
        assert alive == open_log(self.log.directory).state(self.log.topic)

    def close_segment(self) -> None:
        """Roll, unless the active segment is empty."""
        if self.log.log_end > self.log.active_base:
            self.log.roll()

    def finish(self) -> None:
        """Clean everything, with room for all keys."""
        self.log.roll()
        self.log.append(NewRecord(b"end", b"v"))
        self.log.roll()
        self.committed.append(self.log.records()[-1])
        self._clean(Round(0, None))


def left(log: ScenarioLog) -> dict[bytes, list[int]]:
    """Return the offsets of each key's records."""
    found: dict[bytes, list[int]] = {}
    for record in log.records():
        assert record.key is not None
        found.setdefault(record.key, []).append(record.offset)
    return found


@pytest.mark.parametrize("topic", TOPICS, ids=[f"{t.strategy}-{t.segment_bytes}" for t in TOPICS])
@given(before=steps(), after=steps())
@settings(max_examples=examples(40))
def test_no_winner_is_lost_and_no_key_is_left_twice(
    topic: TopicConfig, before: list[Step], after: list[Step]
) -> None:
    """Horizons pass between the two halves: late records meet expired tombstones."""
    with tempfile.TemporaryDirectory() as scratch:
        model = Model(ScenarioLog(Path(scratch), topic))
        try:
            for step in before:
                model.take(step)
                model.check_state()
            retention_ms = topic.delete_retention_ms
            model.log.now_ms += retention_ms + 1
            removed = False
            for step in after:
                # Once a tombstone may be gone nothing may come late, and nothing wait in the active
                # segment: K25 and K28 are no defects.
                if isinstance(step, Write) and removed:
                    continue
                if isinstance(step, Round) and not removed:
                    model.close_segment()
                    removed = True
                model.take(step)
                model.check_state()
            model.finish()
            model.check_state()
            winners = model.winners()
            found = left(model.log)
            assert {key: [winners[key].offset] for key in found} == found
            # In the end the tombstones go too, and nothing comes back.
            for _ in range(2):
                model.log.now_ms += retention_ms + 1
                model.finish()
            model.check_state()
            alive = {key for key, record in model.winners().items() if record.value is not None}
            assert alive == left(model.log).keys()
        finally:
            model.log.close()
