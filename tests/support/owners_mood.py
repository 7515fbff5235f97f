"""What kind of run a seed of the two owners is, and what was survived."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec.structs import replace

from keeplast.model.topic_config import Strategy, TopicConfig
from tests.support import simulated
from tests.support.simulated import Tally

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
VERSION_HEADER = "version"
JUMPS_MS = (-2 * DAY_MS, -HOUR_MS, -4_000, 4_000, HOUR_MS, 2 * DAY_MS, 400 * DAY_MS)

AHEAD_MS = (4_000, HOUR_MS, 2 * DAY_MS, 2 * DAY_MS, 400 * DAY_MS)


class Mood(simulated.Mood, frozen=True, kw_only=True):
    """How likely what is in a run, and how both owners are set."""

    is_healthy: bool
    """A broker at its defaults that is copied from at least every ``delete.retention.ms``/2."""
    store_topic: TopicConfig
    broker_cleans: bool
    deletes: bool
    changes_leader: bool
    goes_down: bool
    is_unclean: bool
    jump_ms: int
    """By how much the machine's clock jumps now and then, 0 for never."""
    ahead_ms: int
    """By how much it is ahead now and then and comes back soon, 0 for never."""
    busy: float
    """How often the broker does something before an operation of keeplast."""
    time_step_ms: int

    @property
    def by_version(self) -> bool:
        """Say whether the store cleans by another strategy than the broker."""
        return self.store_topic.strategy is not Strategy.OFFSET

    def is_backed_up(self, dice: random.Random) -> bool:
        """Draw whether metadata is restored from backups now and then.

        Not where the model's promise goes by what the newest store has: it would be another's.
        """
        is_apart = self.is_healthy or self.by_version or self.is_unclean or bool(self.ahead_ms)
        return not is_apart and dice.random() < 0.15

    @property
    def settings(self) -> dict[str, str]:
        """Return what is kept in the store; :attr:`store_topic` is what it means."""
        return {"cleanup.policy": ",".join(sorted(self.topic.cleanup_policy))}


def draw_mood(dice: random.Random) -> Mood:
    """Return what kind of run this is."""
    is_healthy = dice.random() < 0.2
    by_version = not is_healthy and dice.random() < 0.09
    deletes = not is_healthy and dice.random() < (0.5 if by_version else 0.3)
    policy = {"compact", "delete"} if deletes else {"compact"}
    retention_ms = DAY_MS if is_healthy else dice.choice([0, 60_000, HOUR_MS, HOUR_MS, DAY_MS])
    topic = TopicConfig(
        cleanup_policy=frozenset(policy), segment_bytes=dice.choice([300, 600, 1200]),
        delete_retention_ms=retention_ms, retention_ms=dice.choice([-1, 2 * DAY_MS]),
        min_cleanable_dirty_ratio=0.0, index_interval_bytes=dice.choice([1, 200, 4096]),
    )  # fmt: skip
    versions = [Strategy.TIMESTAMP, Strategy.HEADER]
    strategy = dice.choice(versions) if by_version else Strategy.OFFSET
    jump_ms = 0 if is_healthy or dice.random() < 0.8 else dice.choice(JUMPS_MS)
    is_ahead = not (is_healthy or by_version or jump_ms) and dice.random() < 0.2
    return Mood(
        is_healthy=is_healthy,
        topic=topic,
        store_topic=replace(
            topic,
            strategy=strategy,
            strategy_header=VERSION_HEADER if strategy is Strategy.HEADER else None,
            tier_chunk_bytes=dice.choice([-1, 4000, 1 << 20]),
        ),
        broker_cleans=not by_version or dice.random() < 0.5,
        has_transactions=dice.random() < 0.7,
        deletes=deletes,
        changes_leader=dice.random() < 0.4,
        goes_down=not is_healthy and dice.random() < 0.4,
        is_unclean=not is_healthy and dice.random() < 0.08,
        jump_ms=jump_ms,
        ahead_ms=dice.choice(AHEAD_MS) if is_ahead else 0,
        busy=0.0 if by_version else dice.choice([0.0, 0.0, 0.02, 0.08]),
        dies=0.0 if is_healthy else dice.choice([0.0, 0.1, 0.3]),
        fails=0.0 if is_healthy else dice.choice([0.0, 0.0, 0.2]),
        time_step_ms=max(2 * retention_ms, HOUR_MS),
        events=dice.randint(60, 110),
    )


TOMBSTONE_DROPPED = "a tombstone was dropped before it was copied"
MARKER_DROPPED = "an abort marker was dropped before it was copied"
INDEX_MISSING = "a transaction index is missing or behind"
NOT_REPLICATED = "a tail is not replicated"
TAIL_CUT = "a tail is cut"
LOG_START_MOVED = "the log start has moved"
NEXT_TO_DELETED = "copied next to .deleted"
NEXT_TO_STAGED = "copied next to .cleaned"
NEXT_TO_SWAP = "copied next to .swap"
CHANGED_DURING = "the broker changed the directory during a copy"
JUMP_AHEAD = "a clock jumps ahead"
JUMP_BACK = "a clock jumps back"
BACK_SEEN = "a clock was ahead for a while and nothing was missed"
BACK_UNSEEN = "a clock was ahead for a while, and deletes may be missing"
UNCLEAN = "a replica that lacked what was acknowledged was elected"
OTHER_STRATEGY = "a store of another strategy copied behind the broker's cleaner"
OUTRANKED = "records of another strategy's store are deleted from the front"
WITHOUT_INDEXES = "an aborted transaction is copied without its index"
OLDER_REFUSED = "older metadata was restored, and refused"
OLDER_ACCEPTED = "older metadata was restored, and accepted"
UNDONE = "a round was undone"
UNDO_REFUSED = "an undo was refused, as a broker's cleaner went further"
OLDER_LIKE_NEWEST = "metadata was restored that lacks nothing"

GUARDED = (
    TOMBSTONE_DROPPED, MARKER_DROPPED, INDEX_MISSING, NOT_REPLICATED, TAIL_CUT, LOG_START_MOVED,
    NEXT_TO_DELETED, NEXT_TO_STAGED, NEXT_TO_SWAP, CHANGED_DURING, JUMP_AHEAD, JUMP_BACK,
    OTHER_STRATEGY, UNCLEAN, BACK_SEEN, BACK_UNSEEN, OUTRANKED, WITHOUT_INDEXES, OLDER_REFUSED,
    OLDER_ACCEPTED, UNDONE,
)  # fmt: skip
"""What a guard is for: each has to occur in runs that are worth something."""


@dataclass(slots=True)
class OwnersTally(Tally):
    """What was survived, refused and seen."""

    guarded: ClassVar[tuple[str, ...]] = GUARDED

    commands: int = 0
    records: int = 0
    broker_rounds: int = 0
    crashes: int = 0
    faults: int = 0
    reads: int = 0
    exports: int = 0
    replacements: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def progress(self) -> str:
        """Return what shows that it goes on."""
        return f"{self.commands:,} commands, {self.crashes:,} crashes"

    def __str__(self) -> str:
        """Say counts, then what happened, how it ended, and the causes of refusals."""
        lines = [*self.counts(), "what happened:"]
        for what, count in sorted(self.happened.items()):
            ends = [f"{n:,} {end}" for (of, end), n in sorted(self.outcomes.items()) if of == what]
            lines.append(f"{count:>12,} {what}" + (f" ({', '.join(ends)})" if ends else ""))
        lines += ["refused:", *(f"{n:>12,} {cause}" for cause, n in sorted(self.refusals.items()))]
        return "\n".join(lines)
