"""An attached partition of a live cluster, and what was decided about it, as values.

The rule: **what a decision says never changes once it is written**; only its state goes on, one
way. Until its sources are collected it alone can publish a swap again that the cluster lost.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment, TopicIdPartition
from keeplast.model.hold import Hold
from keeplast.tier.state.holder import Holder

MARK_BASE = -1000
"""Announcements of epoch ``n`` carry the broker ``MARK_BASE - n``; brokers begin at 0."""


def mark_of(epoch: int) -> int:
    """Return the broker id that announcements of ``epoch``, 1 or greater, carry."""
    return MARK_BASE - epoch


def epoch_of_mark(broker_id: int) -> int:
    """Return the epoch of an announcement, 0 when no epoch made it."""
    return max(MARK_BASE - broker_id, 0)


class AttachedName(Struct, frozen=True):
    """A partition of one incarnation of a topic in one cluster."""

    cluster_id: str
    partition: TopicIdPartition

    def __str__(self) -> str:
        """Return topic, number and topic id."""
        at = self.partition
        return f"{at.topic}-{at.partition} topic_id={encode_id(at.topic_id)}"


class MetadataPoint(Struct, frozen=True, kw_only=True):
    """How far the metadata topic was seen: the record before ``offset``, exclusive.

    ``digest`` is of that record's value; ``leader_epoch`` the partition's leader's by then. A topic
    without them is another one: cloned, restored or created again.
    """

    topic_id: bytes
    partition_count: int
    offset: int = 0
    leader_epoch: int = -1
    digest: str = ""


class Attached(Struct, frozen=True, kw_only=True):
    """A partition as the decision log has it.

    ``cleaned_to`` is the first offset that is not clean. ``held_since_ms`` is None when the holder
    gave it back, ``paused_ms`` and ``detached_ms`` None while it is neither; one of epoch 0 is
    detached and was never claimed. ``cleaned_for`` is the greatest end of a round that has decided,
    also of one that was cut short; 0 is not known. ``holds`` are all, also those that are over.
    """

    row_id: int
    name: AttachedName
    epoch: int
    holder: Holder | None
    held_since_ms: int | None
    paused_ms: int | None
    detached_ms: int | None
    attached_ms: int
    cleaned_to: int
    seen: MetadataPoint
    cleaned_for: int = 0
    holds: tuple[Hold, ...] = ()


class DecisionState(StrEnum):
    """How far a decision is; ``COLLECTING`` says that sources' objects may be gone."""

    DECIDED = "decided"
    PUBLISHED = "published"
    COLLECTING = "collecting"
    COLLECTED = "collected"


class Decision(Struct, frozen=True, kw_only=True):
    """A swap that was decided: ``outputs`` take the place of ``sources``, both ascending.

    ``sources`` are as they stood in the cluster; ``outputs`` carry the custom metadata of the
    finished copy. ``floor_offset`` is where the metadata partition ended before: what is published
    lies at or above it. ``first_offset`` and ``last_offset``, inclusive, are where it lies. The
    collector keeps the sources for ``keep_ms`` after the publication at least. ``first_dirty`` is
    from where on its round was dirty when it began, 0 when that is not known; below
    ``expires_below`` tombstones and markers went whose horizon had passed.
    """

    id: str
    name: AttachedName
    epoch: int
    state: DecisionState
    sources: tuple[RemoteLogSegment, ...]
    outputs: tuple[RemoteLogSegment, ...]
    cleaned_to: int
    metadata_partition: int
    floor_offset: int
    decided_ms: int
    published_ms: int | None = None
    collected_ms: int | None = None
    keep_ms: int = 0
    first_dirty: int = 0
    expires_below: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class OwnSegment(Struct, frozen=True, kw_only=True):
    """A segment id that was given out here, whether or not anything came of it.

    ``announced`` is what was announced to the cluster, None for nothing.
    """

    segment_id: bytes
    start_offset: int
    epoch: int
    at_ms: int
    announced: RemoteLogSegment | None
    decision_id: str | None
    is_discarded: bool
