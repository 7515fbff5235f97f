"""What a live cluster is asked for, as a port, with the values and rights that go with it.

The client is one, and so is a model in tests. The rule: **appended values went through**
:func:`encode_batch`. Brokers have no defence against a record that they cannot read: one is enough
to end the remote tier of every topic, for good. The values of what was read are plain: nothing here
talks to a cluster.

Rights are operations on resources, as Kafka's ACLs name them. The second rule: **a right is named
where it is missing, and never more than that one**: an operator who is asked to grant too much
grants it. Read and Write on a topic imply Describe.

Answers to ``AclOperation`` and what ``KafkaApis`` asks for; tried on brokers of 3.9.1 and 4.3.0.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from keeplast.errors import InvalidError, RefusedError, invariant
from keeplast.format.identifier import metadata_partition
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    decode,
    encode,
)

METADATA_TOPIC = "__remote_log_metadata"

Settings = Mapping[str, str | None]
"""Values by name; one that is not said (a password) is None."""


class BrokerFacts(Struct, frozen=True):
    """A broker, and its settings; ``unset`` names those that are not set: its release's own."""

    broker_id: int
    settings: Settings
    unset: frozenset[str] = frozenset()


class TopicFacts(Struct, frozen=True):
    """A topic; ``replicas`` is the least number of replicas of one of its partitions."""

    name: str
    topic_id: bytes
    partition_count: int
    replicas: int
    settings: Settings

    @property
    def is_tiered(self) -> bool:
        """Return whether its segments are copied to the remote tier."""
        return is_tiered(self.settings)


ASSUMED_OF_BROKERS = (
    f"brokers are taken to have read of a swap in {METADATA_TOPIC} when its grace is over, and its "
    "sources go then; keeplast collect and run ask them with --broker-metrics"
)


class OffsetRange(Struct, frozen=True):
    """What a partition's leader has: from ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int


class TopicEnds(Struct, frozen=True):
    """A topic's id, and where each of its partitions ends, exclusive, as readers see it."""

    topic_id: bytes
    ends: Mapping[int, int]


class ClusterFacts(Struct, frozen=True):
    """A cluster, its brokers and topics; ``metadata_topic`` is None where there is none.

    ``accepts_untested`` says that who asked takes the risk of brokers of a release that was not
    tested.
    """

    cluster_id: str
    brokers: tuple[BrokerFacts, ...]
    topics: tuple[TopicFacts, ...]
    metadata_topic: TopicFacts | None
    accepts_untested: bool = False


class MetadataFault(Struct, frozen=True):
    """Something in the metadata topic that stands in the way; ``offset`` is where it is."""

    partition: int
    offset: int
    problem: str


def is_tiered(settings: Settings) -> bool:
    """Return whether segments of a topic with these settings are copied to the remote tier."""
    return settings.get("remote.storage.enable") == "true"


class Right(Struct, frozen=True):
    """``operation`` on a topic or a consumer group, or on the cluster when neither is named."""

    operation: str
    topic: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if self.group is not None:
            return f"{self.operation} on the consumer group {self.group}"
        where = "the cluster" if self.topic is None else f"the topic {self.topic}"
        return f"{self.operation} on {where}"

    def line(self, address: str) -> str:
        """Return the line that grants it, but for the principal's name."""
        if self.group is not None:
            what = f"--group {shlex.quote(self.group)}"
        else:
            what = "--cluster" if self.topic is None else f"--topic {shlex.quote(self.topic)}"
        return (
            f"kafka-acls.sh --bootstrap-server {shlex.quote(address)} --add "
            f"--allow-principal User:NAME --operation {self.operation} {what}"
        )


def missing(right: Right, what: str) -> RefusedError:
    """Return the error of who asked for ``what`` without ``right``."""
    return RefusedError(
        f"the principal may not do that; it needs {right} (kafka-acls --add). asked={what}",
        code="K402",
    )


def is_refused(ask: Callable[[], object]) -> bool:
    """Return whether ``ask`` is refused."""
    try:
        ask()
    except RefusedError:
        return True
    return False


BATCH_BYTES_MAX = 800_000
"""Of values in one batch; brokers take 1 MiB by default, the client's limit is 900,000."""
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_NEEDED = 400_000
"""More than the largest swap takes: without that much the metadata topic is of no use."""
RECORD_BYTES = 64
"""More than what a record and its share of a batch's header add to a value."""


class MetadataValue(Struct, frozen=True):
    """A record of the metadata topic; ``value`` is None where a producer sent none.

    ``leader_epoch`` is the one in which a leader took it, -1 where that is unknown.
    """

    offset: int
    value: bytes | None
    leader_epoch: int = -1


class MetadataEnd(Struct, frozen=True):
    """Where a partition of the metadata topic ends, exclusive, and its leader's epoch."""

    offset: int
    leader_epoch: int


class MetadataReader(Protocol):
    """A reader of the metadata topic; see :class:`~keeplast.cluster.client.ClusterClient`."""

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        """Return what each partition of ``topic`` holds, in order."""

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        """Yield the records in ``held``; an offset alone stands for one without a record."""


class LiveCluster(MetadataReader, Protocol):
    """A cluster whose metadata topic is written to as well."""

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        """Return brokers, ``topics`` and the metadata topic."""

    def read_end(self, partition: int) -> MetadataEnd:
        """Return where a partition of the metadata topic ends by its present leader."""

    def append(
        self, metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
    ) -> OffsetRange:
        """Append ``events`` as one batch; return where they lie.

        CommitUnknownError when they may be there, or lie apart; other errors leave nothing there.
        """


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
        invariant(is_lawful, f"no record that a broker survives. event={each}")
        at = each.id.partition  # type: ignore[union-attr]
        invariant(
            partition
            == metadata_partition(at.topic_id, at.partition, metadata_topic.partition_count),
            f"a record for another partition. partition={partition} of={at}",
        )
        value = encode(each)
        invariant(
            decode(value) == each and encode(decode(value)) == value,
            f"a record that does not come back. value={value.hex()}",
        )
        values.append(value)
    size = sum(len(value) + RECORD_BYTES for value in values)
    limit = min(
        BATCH_BYTES_MAX, int(metadata_topic.settings.get("max.message.bytes") or BATCH_BYTES_MAX)
    )
    if not values or len(values) > BATCH_RECORDS_MAX or size > limit:
        raise InvalidError(
            f"one batch of {METADATA_TOPIC} has 1 to {BATCH_RECORDS_MAX} records and at most "
            f"{limit} bytes; take fewer segments, or raise its max.message.bytes where that is "
            f"less than {BATCH_BYTES_MAX}. records={len(values)} bytes={size}",
            code="K406",
        )
    return values
