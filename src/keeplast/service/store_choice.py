"""What a call about a store knows first: its partitions, its pace, its dates, its loop's settings.

The pace of rounds in a store is apart from that of a local daemon, because it needs what the tier
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.remains import Remains
from keeplast.inspect.status import ErasedBy
from keeplast.inspect.traces import TOMBSTONE_WORDS, LastTrace, behind_undo, find_last_trace
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Shape
from keeplast.rewrite.task import Runner
from keeplast.service.schedule import daemon_pace
from keeplast.store.erasure import TierPace
from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, GRACE_MS_DEFAULT, TieredStore
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT

SHOWN_MAX = 10
ROUNDS_MAX = 32
"""How many partitions of a store are worked on at once, however many cores a cluster has."""
REPLACED_WORDS = "in replaced segments, until those are collected"


def choose_partitions(opened: TieredStore, choice: PartitionChoice) -> list[TopicPartition]:
    """Return the chosen partitions, of an empty store none without a choice.

    InvalidError when something was named and nothing in the store fits.
    """
    known = opened.partitions()
    found = [each for each in known if choice.includes(each)]
    if found or not (choice.topics or choice.partitions):
        return found
    names = ", ".join(str(each) for each in known[:SHOWN_MAX]) or "none"
    raise InvalidError(
        "no such partition in the store; correct --topic and --partition, or take it in "
        f"with keeplast copy --new. topics={list(choice.topics)} "
        f"partitions={list(choice.partitions)} there={names}",
        code="K115",
    )


def choose_topics(opened: TieredStore, topics: Collection[str]) -> list[TopicPartition]:
    """Return the partitions of ``topics``, all without any; InvalidError where one is not there."""
    there: Sequence[TopicPartition] = opened.partitions()
    strange = sorted(set(topics) - {each.topic for each in there})
    if strange:
        raise InvalidError(
            f"no such topic in the store; correct --topic. topic={strange[0]}", code="K114"
        )
    return [each for each in there if not topics or each.topic in topics]


def share_of(cleaner: CleanerConfig, runner: Runner, rounds: int) -> CleanerConfig:
    """Return the settings of each of so many rounds that a runner does side by side.

    Threads share one throttle; the tasks of a cluster know of no other round's.
    """
    if runner.shares_memory or cleaner.io_limit is None:
        return cleaner
    return replace(cleaner, io_bytes_per_second=cleaner.io_limit / max(rounds, 1))


def tier_pace(cleaner: CleanerConfig, sizes: Sequence[int]) -> TierPace:
    """Return the pace over logs of these sizes in bytes, one after another on a slow disk.

    Without replicas: a store that is filled by ``import`` or ``copy`` has none of its own.
    """
    pace = daemon_pace(cleaner, None)
    return TierPace(
        every_ms=pace.backoff_ms, round_ms=sum(pace.duration_ms(size) for size in sizes),
        grace_ms=GRACE_MS_DEFAULT, garbage_age_ms=GARBAGE_AGE_MS_DEFAULT, has_followers=False,
    )  # fmt: skip


class StoreSettings(Struct, frozen=True):
    """What stays the same from start to end.

    ``name`` is the store's for people, without a password. ``cleaner`` reads settings each time.
    ``slots`` is how many rounds are done at once. ``data_dir`` is what partitions gain from, None
    for nothing, ``retention`` its broker's ``delete.retention.ms`` by topic, read each time.
    ``takes_over`` fences other owners at the first look; ``retries`` forgets then what is set
    aside. ``receipt`` is a file that takes a line of every round. ``unanswered`` says what asked
    brokers do not answer.
    """

    name: str
    owner: str
    is_about: Callable[[TopicPartition], bool]
    cleaner: Callable[[], CleanerConfig]
    slots: int = 1
    data_dir: Path | None = None
    retention: Callable[[], Callable[[str], int]] | None = None
    takes_over: bool = False
    retries: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    shape: Shape | None = None
    grace_ms: int = GRACE_MS_DEFAULT
    garbage_age_ms: int = GARBAGE_AGE_MS_DEFAULT
    receipt: Path | None = None
    unanswered: Callable[[], Sequence[str]] = tuple


class StoreDates:
    """By when traces are gone from a store that ``keeplast run`` goes on with."""

    undecided_words = TOMBSTONE_WORDS

    def __init__(self, opened: TieredStore, pace: TierPace, *, has_expired_rounds: bool) -> None:
        self._opened = opened
        self._pace = pace
        self._known: dict[TopicPartition, ErasedBy] = {}
        self._has_expired_rounds = has_expired_rounds

    def erased_by(self, partition: TopicPartition) -> ErasedBy:
        """Return by when all that is overwritten now is gone."""
        if partition not in self._known:
            # It reads what segments say of their tombstones: once for all keys.
            self._known[partition] = self._opened.erased_by(partition, self._pace)
        return self._known[partition]

    def erased_words(self, partition: TopicPartition) -> str:
        """Return what that rests on, or why it is not known."""
        return self.erased_by(partition).why

    def last_trace(self, found: KeyExplanation, remains: Sequence[Remains] = ()) -> LastTrace:
        """Return by when the last record of the key is gone, replaced segments included."""
        pace = self._pace
        trace = find_last_trace(
            found, erased_by_ms=self.erased_by(found.partition).by_ms,
            turn_ms=2 * pace.pass_ms + pace.left_ms(found.topic.undo_retention_ms),
            has_expired_rounds=self._has_expired_rounds,
        )  # fmt: skip
        return behind_undo(trace, remains, found.now_ms, pace.pass_ms)

    def remains_trace(
        self, partition: TopicPartition, remains: Sequence[Remains]
    ) -> tuple[None, int | None, str]:
        """Return by when replaced segments are gone, None when not known, and how they go."""
        return None, self.erased_by(partition).by_ms, REPLACED_WORDS
