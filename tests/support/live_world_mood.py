"""What kind of run a seed of the attached world is, and what was survived."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from keeplast.model.topic_config import TopicConfig
from tests.support.simulated import Mood, Tally

ABANDONED_UPLOAD = "a leader left an upload behind"
ABANDONED_IDS = "it was not known whether segments were announced"
CUT_OFF_IN_SWAP = "a process ended between decision and publication"
CUT_OFF_IN_COLLECTION = "a process ended in a collection"
CUT_OFF_IN_ROUND = "a process ended before its decision"
EXPIRED_ANNOUNCED = "a broker expired what was announced and not live"
EXPIRED_SOURCES = "a broker expired replaced segments before they were collected"
FENCED = "an overtaken process was fenced"
FILTERED = "filters let clean segments stay unread"
FINISHED_LATER = "a decision was published by the next owner"
LAGGING_READ = "a lagging broker served what was replaced"
LATE_BATCH = "a batch came after it was given up"
LATE_UPLOAD = "an overtaken leader finished its upload"
LEADER_IN_ROUND = "the topic's leader changed in a round"
LOG_START_CUTS = "the log start moved"
LOST_ANSWER = "the answer to a batch was lost"
LOST_BATCH = "a batch did not come"
METADATA_LEADER = "the metadata topic's leader changed in a look"
OVERLAPPING = "a leader uploaded over what was copied"
OVER_COMPACTED = "a leader uploaded over what was compacted"
REPLACED_DISK = "a replica began again where the local log begins"
RIVAL_REFUSED = "another decision log was refused"
RIVAL_OF_CLONE = "a clone of the cluster was refused"
SEVERAL_SWAPS = "a round published several swaps"
SLOW_FETCH = "a fetch outlived the segment that it reads"
TAKEN_BACK = "leftovers were taken back"
MARKER_GONE = "a transaction's marker went"
TOMBSTONE_GONE = "a tombstone went"
SLOW_READER = "a slow reader came to the end in time"
TOPIC_DELETED = "the topic was deleted in a round"
UPLOADED_IN_ROUND = "a leader finished an upload in a round"
WOKEN_IN_ROUND = "an overtaken process woke in another one's round"
ZOMBIE_PUBLISHED = "an overtaken process published what was decided"

GUARDED = (
    ABANDONED_UPLOAD, ABANDONED_IDS, CUT_OFF_IN_SWAP, CUT_OFF_IN_COLLECTION, CUT_OFF_IN_ROUND,
    EXPIRED_ANNOUNCED, EXPIRED_SOURCES, FENCED, FILTERED, FINISHED_LATER, LAGGING_READ, LATE_BATCH,
    LATE_UPLOAD, LEADER_IN_ROUND, LOG_START_CUTS, LOST_ANSWER, LOST_BATCH, MARKER_GONE,
    METADATA_LEADER, OVERLAPPING, OVER_COMPACTED, REPLACED_DISK, RIVAL_REFUSED, RIVAL_OF_CLONE,
    SEVERAL_SWAPS, SLOW_FETCH, SLOW_READER, TAKEN_BACK, TOMBSTONE_GONE, TOPIC_DELETED,
    UPLOADED_IN_ROUND, WOKEN_IN_ROUND, ZOMBIE_PUBLISHED,
)  # fmt: skip
"""What a guard is for: each has to occur in runs that are worth something."""


CHECK_MS = 200
"""How often brokers look for local segments that have expired."""
FILTERS_EVERY, FILTERS_AT = 5, 3
"""One seed of so many has filters: they are more requests, and what remains is the same."""


class RemovalMood(Struct, frozen=True):
    """For how long tombstones stay, and brokers' local segments.

    ``late`` is how often a leader that was overtaken goes on with its upload; ``key_slots`` are
    those of a key map that fills, None without a bound.
    """

    delete_retention_ms: int
    local_ms: int
    late: float
    key_slots: int | None


class LiveMood(Mood, frozen=True, kw_only=True):
    """What kind of run a seed is."""

    margin_bytes: int
    keys: int
    retention_ms: int | None
    deletes_records: bool
    rolls_alike: float
    """How often a follower rolls where its leader does."""
    changes_leader: bool
    busy: float
    """How often brokers, or an overtaken process, do something before a request of keeplast."""
    sleeps: float
    loses: float
    """How often it is not known at once what became of a batch."""
    slow_ms: int
    keeps_folds: bool
    has_rival: bool
    is_cloned: bool
    deletes_topic: bool
    removal: RemovalMood | None = None
    """Without one brokers keep their local segments, and tombstones stay."""

    @property
    def policy(self) -> frozenset[str]:
        """Return what is asked of keeplast."""
        return self.topic.cleanup_policy


def draw_mood(dice: random.Random, seed: int) -> LiveMood:
    """Return what kind of run this is; in two of five tombstones go, one of five has filters."""
    found = _draw_mood(dice)
    if seed % FILTERS_EVERY == FILTERS_AT:
        found = _with_filters(found, random.Random(f"filters {seed}"))
    own = random.Random(f"removal {seed}")
    if own.random() >= 0.4 or found.deletes_topic:
        return found
    removal = RemovalMood(
        own.choice([0, 600, 3_000]), own.choice([0, 0, 1_000, 12_000, 20_000]),
        own.choice([0.5, 0.02]), own.choice([None, None, 4]),
    )  # fmt: skip
    # Brokers roll by bytes: what a follower's segment has in addition lies in the margin.
    return replace(
        found, removal=removal, changes_leader=True, events=found.events + own.choice([0, 40]),
        topic=replace(found.topic, delete_retention_ms=removal.delete_retention_ms),
    )  # fmt: skip


def _with_filters(found: LiveMood, own: random.Random) -> LiveMood:
    """Return a mood with filters, and mostly with segments that stay apart and differ in keys."""
    topic = replace(found.topic, tier_filter_fpp=0.01)
    if own.random() < 0.3:
        return replace(found, topic=topic)
    return replace(
        found, keys=own.randint(8, 60), topic=replace(topic, segment_bytes=100),
        has_transactions=found.has_transactions and own.random() < 0.5,
    )  # fmt: skip


def _draw_mood(dice: random.Random) -> LiveMood:
    retention_ms = dice.choice([None, None, None, 15_000, 40_000])
    policy = {"compact"} if retention_ms is None else {"compact", "delete"}
    segment_bytes = dice.choice([400, 800, 1600])
    return LiveMood(
        topic=TopicConfig(
            cleanup_policy=frozenset(policy), segment_bytes=segment_bytes,
            index_interval_bytes=dice.choice([1, 256, 4096]), min_cleanable_dirty_ratio=0.0,
            tier_filter_fpp=0.0,
        ),
        margin_bytes=dice.choice([0, 0, 400, 1200]),
        keys=dice.randint(2, 8),
        has_transactions=dice.random() < 0.6,
        retention_ms=retention_ms,
        deletes_records=dice.random() < 0.3,
        rolls_alike=dice.choice([0.0, 0.5, 0.95]),
        changes_leader=dice.random() < 0.6,
        busy=dice.choice([0.0, 0.02, 0.06, 0.15]),
        sleeps=dice.choice([0.0, 0.2, 0.4]),
        dies=dice.choice([0.0, 0.15, 0.3]),
        fails=dice.choice([0.0, 0.1, 0.3]),
        loses=dice.choice([0.0, 0.1, 0.3]),
        slow_ms=dice.choice([0, 0, 30, 200]),
        keeps_folds=dice.random() < 0.5,
        has_rival=dice.random() < 0.3,
        is_cloned=dice.random() < 0.5,
        deletes_topic=dice.random() < 0.08,
        events=dice.randint(60, 110),
    )  # fmt: skip


@dataclass(slots=True)
class LiveTally(Tally):
    """What was survived and seen."""

    guarded: ClassVar[tuple[str, ...]] = GUARDED

    operations: int = 0
    tasks: int = 0
    records: int = 0
    reads: int = 0
    swaps: int = 0
    collected: int = 0
    sleeps: int = 0
    deaths: int = 0
    faults: int = 0
    leader_changes: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """How tasks ended that did not go well."""
    died_before: Counter[str] = field(default_factory=Counter)
    slept_before: Counter[str] = field(default_factory=Counter)

    def progress(self) -> str:
        """Return what shows that it goes on."""
        return f"{self.swaps:,} swaps, {self.deaths:,} crashes"

    def __str__(self) -> str:
        """Say counts, then what happened, how tasks ended, and before which calls."""
        lines = self.counts()
        for title, counter in (
            ("what happened:", self.happened), ("how tasks ended:", self.ends),
        ):  # fmt: skip
            lines += [title, *(f"{n:>12,} {what}" for what, n in sorted(counter.items()))]
        calls = sorted({*self.died_before, *self.slept_before})
        lines.append("deaths and sleeps before each call:")
        lines += [
            f"{self.died_before[each]:>12,} {self.slept_before[each]:>8,} {each}" for each in calls
        ]
        return "\n".join(lines)
