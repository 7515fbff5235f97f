"""Settings of one topic and of the cleaner, and what a call chooses by name, as typed values.

The strategy decides which record of a key stays (KIP-280). The record of the greatest rank wins; a
rank is (has a version, version, offset), where

* ``offset`` gives every record the same version, so that the last one in the log wins;
* ``timestamp`` takes the record's timestamp, the batch's maximum with LogAppendTime; a record
  without one has no version;
* ``header`` takes the last header of the configured name when its value is eight bytes, a signed
  big-endian number. Any other record has no version and ranks below all that have one.

Source: cleaning.md section 9.2.

A shape of a round is how the work of one partition is cut into tasks. The bytes that are written
are the same in every shape. What each costs, and which one is chosen:
:mod:`keeplast.cleaner.shapes`.

Other choices are what becomes of records without a key, which a topic that no broker compacts may
hold, and what a host of a partition may become.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import astuple

from keeplast.model.partition import INT64_MAX

SLOT_BYTES = 24
"""A slot of the key map: 128 bits of hash and an offset."""
VERSIONED_SLOT_BYTES = 32
"""A slot of a key map that ranks by version too."""


class Strategy(StrEnum):
    """A topic's ``compaction.strategy`` (KIP-280): which record of a key stays."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"

    @property
    def slot_bytes(self) -> int:
        """Return what a key takes in the key map."""
        return SLOT_BYTES if self is Strategy.OFFSET else VERSIONED_SLOT_BYTES


AS_TOTAL = -2
"""A local retention that follows the total one."""
UNLIMITED = 1.7976931348623157e308
"""The greatest double: how Kafka spells "no limit" of bytes a second."""


class TopicConfig(Struct, frozen=True):
    """Topic settings that cleaning, rolling and retention read. Source: cleaning.md section 7.

    ``strategy_header`` is the header that carries versions, used with the strategy ``header``
    alone. ``keep_versioned_tombstones`` never lets a tombstone expire that has a version.
    ``local_*`` are about the local part of a tiered log; -1 is no limit.
    ``tier_chunk_bytes`` -1 means ``segment_bytes``; ``tier_filter_fpp`` 0 means no filters.
    ``undo_retention_ms`` 0 means that a round keeps nothing of what it replaced.
    ``strategy_said`` is a strategy and in words who chose it, which counts for that one alone. It
    makes no difference to a round, and stays the last field: equality leaves that one out.
    """

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str | None = None
    keep_versioned_tombstones: bool = False
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    local_delete_requires_clean: bool = False
    local_delete_max_extra_ms: int = 86_400_000
    local_delete_max_extra_bytes: int = 1 << 30
    tier_chunk_bytes: int = -1
    tier_filter_fpp: float = 0.01
    undo_retention_ms: int = 0
    tombstones_wait_for_groups: tuple[str, ...] = ()
    tombstones_wait_max_ms: int = 604_800_000
    strategy_said: tuple[Strategy, str] | None = None

    def __eq__(self, other: object) -> bool:
        """Say whether rounds go by the same settings."""
        return isinstance(other, TopicConfig) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        """Return the same for settings that are equal."""
        return hash(astuple(self)[:-1])

    @property
    def is_compacted(self) -> bool:
        """True when ``cleanup.policy`` contains ``compact``, alone or with ``delete``."""
        return "compact" in self.cleanup_policy

    @property
    def ranking(self) -> str:
        """Return by what the records of a key rank, and who says so, in words."""
        return f"{self.strategy_words}, {self.strategy_source}"

    @property
    def strategy_source(self) -> str:
        """Return in words who chose the strategy."""
        if self.strategy_said is None or self.strategy_said[0] is not self.strategy:
            return "as given"
        return self.strategy_said[1]

    @property
    def strategy_words(self) -> str:
        """Return the strategy, and the header that it reads."""
        if self.strategy is Strategy.HEADER:
            return f"{self.strategy} {self.strategy_header}"
        return str(self.strategy)

    @property
    def readers_wait_ms(self) -> int:
        """Return how long at most tombstones wait for readers after their horizon; 0 is no wait."""
        return self.tombstones_wait_max_ms if self.tombstones_wait_for_groups else 0

    @property
    def expires(self) -> bool:
        """True when the policy contains ``delete``: segments go by size and by time."""
        return "delete" in self.cleanup_policy

    @property
    def local_age_max_ms(self) -> int:
        """Return how old a local segment of a tiered log may get, negative without a limit."""
        own = self.local_retention_ms
        return self.retention_ms if own == AS_TOTAL else own

    @property
    def local_bytes_max(self) -> int:
        """Return how large the local part of a tiered log may get, negative without a limit."""
        own = self.local_retention_bytes
        return self.retention_bytes if own == AS_TOTAL else own

    @property
    def segment_age_max_ms(self) -> int:
        """Return the age above which an active segment is left (cleaning.md section 1.7)."""
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms


class CleanerConfig(Struct, frozen=True):
    """Broker-wide settings of the cleaner. Source: cleaning.md section 7.1.

    ``key_map_bytes`` None means that the key map has no bound of its own; a value N gives
    ``N // slot bytes`` slots; ``trunc(slots * load_factor)`` of them are used.
    """

    key_map_bytes: int | None = None
    load_factor: float = 0.9
    producer_id_expiration_ms: int = 86_400_000
    io_bytes_per_second: float = UNLIMITED
    backoff_ms: int = 15_000
    has_expired_rounds: bool = False

    @property
    def io_limit(self) -> float | None:
        """Return how many bytes a second may be read and written, None without a limit."""
        return None if self.io_bytes_per_second >= UNLIMITED else self.io_bytes_per_second


class Shape(StrEnum):
    """How a round is cut into tasks."""

    PARTITION = "partition"
    BROADCAST = "broadcast"
    BUCKET = "bucket"


class Keyless(StrEnum):
    """Kafka's cleaner drops them, and its brokers refuse them in a compacted topic."""

    FAIL = "fail"
    DROP = "drop"
    RETAIN = "retain"


class HostRole(StrEnum):
    """Which of leading and following a host does."""

    AUTO = "auto"
    """Leads what no other host leads, follows the rest."""
    LEADER = "leader"
    """Leads what no other host leads, leaves the rest alone."""
    FOLLOWER = "follower"
    """Follows, whatever becomes of the leader."""
