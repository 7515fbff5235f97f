"""What a live cluster is asked for, as a port: the client is one, and so is a model in tests.

The rule: **what is appended went through** :func:`encode_batch`. Brokers have no defence against a
record that they cannot read: one is enough to end the remote tier of every topic, for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from keeplast.cluster.facts import METADATA_TOPIC, ClusterFacts, OffsetRange, TopicFacts
from keeplast.errors import InvalidError, InvariantError
from keeplast.format.murmur2 import metadata_partition
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    decode,
    encode,
)

BATCH_BYTES_MAX = 800_000
"""Of values in one batch; brokers take 1 MiB by default, the client is told 900,000."""
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_NEEDED = 400_000
"""More than the largest swap takes: without that much the metadata topic is of no use."""
RECORD_BYTES = 64
"""More than what a record and its share of a batch's header add to a value."""


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """A record of the metadata topic; ``value`` is None where a producer sent none.

    ``leader_epoch`` is the one in which a leader took it, -1 where that is not told.
    """

    offset: int
    value: bytes | None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class MetadataEnd:
    """Where a partition of the metadata topic ends, exclusive, and its leader's epoch."""

    offset: int
    leader_epoch: int


class MetadataReader(Protocol):
    """Who reads the metadata topic; see :class:`~keeplast.cluster.client.ClusterClient`."""

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        """Return what each partition of ``topic`` holds, in order."""
        ...

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        """Yield the records in ``held``; an offset alone stands for one without a record."""
        ...


class LiveCluster(MetadataReader, Protocol):
    """A cluster whose metadata topic is written to as well."""

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        """Return brokers, ``topics`` and the metadata topic."""
        ...

    def read_end(self, partition: int) -> MetadataEnd:
        """Return where a partition of the metadata topic ends by its present leader."""
        ...

    def append(
        self, metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
    ) -> OffsetRange:
        """Append ``events`` as one batch; return where they lie.

        CommitUnknownError when they may be there, or lie apart; other errors leave nothing there.
        """
        ...


def encode_batch(
    metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
) -> list[bytes]:
    """Return the values of ``events`` for one batch of a partition of the metadata topic.

    InvalidError when there are too many for one. InvariantError for a record that is not a new
    segment's or an update's, belongs to another partition, or does not come back from decoding as
    the same bytes.
    """
    values = []
    for each in events:
        match each:
            case RemoteLogSegment():
                is_lawful = each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
            case RemoteLogSegmentUpdate():
                is_lawful = each.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
            case _:
                is_lawful = False
        if not is_lawful:
            raise InvariantError(f"no record that a broker survives. event={each}")
        at = each.id.partition  # type: ignore[union-attr]
        if partition != metadata_partition(
            at.topic_id, at.partition, metadata_topic.partition_count
        ):
            raise InvariantError(f"a record for another partition. partition={partition} of={at}")
        value = encode(each)
        if decode(value) != each or encode(decode(value)) != value:
            raise InvariantError(f"a record that does not come back. value={value.hex()}")
        values.append(value)
    size = sum(len(value) + RECORD_BYTES for value in values)
    limit = min(
        BATCH_BYTES_MAX, int(metadata_topic.settings.get("max.message.bytes") or BATCH_BYTES_MAX)
    )
    if not values or len(values) > BATCH_RECORDS_MAX or size > limit:
        raise InvalidError(
            f"one batch of {METADATA_TOPIC} has 1 to {BATCH_RECORDS_MAX} records and at most "
            f"{limit} bytes; take fewer segments, or raise its max.message.bytes where that is "
            f"less than {BATCH_BYTES_MAX}. records={len(values)} bytes={size}"
        )
    return values
