"""Records of a topic as a consumer is given them, from brokers and in either isolation level.

The rule: **no group is joined and no offset committed**; a principal that may describe and read the
topic is enough. Memory is what the client holds of a partition, ``QUEUED_KIB`` at most and one
fetch more. A record that brokers keep from a reader is reported by name: a reader that stops is as
bad as a record that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import Struct

from keeplast.cluster.live_cluster import OffsetRange
from keeplast.errors import CorruptError, UnavailableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

WAIT_SECONDS = 0.25
WAITS_MAX = 240
"""A reader that is given nothing for so long has stopped."""
REFUSALS_MAX = 8
"""How often in a row brokers may fail to serve an offset; the client asks twice a second."""
RECORDS_AT_ONCE = 2_000
QUEUED_KIB = 16 << 10
_PASSING = frozenset(
    {
        "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT", "COORDINATOR_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH", "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
        "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT", "UNKNOWN_LEADER_EPOCH",
    }
)  # fmt: skip
"""What a leader that changes, or a broker that starts, may say for a while."""
_FORBIDDEN = frozenset(
    {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "_AUTHENTICATION", "_SSL"}
)
_FINAL = frozenset({"_AUTO_OFFSET_RESET", "_BAD_MSG", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"})
"""After these the client asks no more."""


class ConsumedRecord(Struct, frozen=True):
    """A record as the client hands it out; ``headers`` None where it cannot show their names."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None = ()


class RecordReader(Protocol):
    """A reader of a topic; see :class:`~keeplast.cluster.client.ClusterClient`."""

    def read_records(
        self, topic: str, partition: int, held: OffsetRange, *, is_committed: bool
    ) -> Generator[ConsumedRecord]:
        """Yield what a consumer is given of ``held``, ascending; fewer where the log ends.

        ``is_committed`` is the isolation level. CorruptError where brokers do not serve an offset,
        UnavailableError when none of them answers, RefusedError for a permission that is missing.
        """


def read_records(
    settings: Mapping[str, Any],
    logger: logging.Logger,
    failed: Callable[[str, KafkaError], NoReturn],
    topic: str,
    partition: int,
    held: OffsetRange,
    *,
    is_committed: bool,
) -> Generator[ConsumedRecord]:
    """Read as :class:`RecordReader` says; ``failed`` words what a principal may not do."""
    from confluent_kafka import Consumer, TopicPartition

    if held.start >= held.end:
        return
    consumer = Consumer(
        {
            **settings,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "queued.max.messages.kbytes": QUEUED_KIB,
        },
        logger=logger,
    )
    name = f"{topic}-{partition}"
    try:
        consumer.assign([TopicPartition(topic, partition, held.start)])
        expected = held.start
        silent = refused = 0
        unreached = ""
        while expected < held.end:
            messages = consumer.consume(RECORDS_AT_ONCE, timeout=WAIT_SECONDS)
            silent += 1
            for message in messages:
                error = message.error()
                if error is None:
                    silent = refused = 0
                    unreached = ""
                    found = _record(message)
                    if found.offset >= held.end:
                        return
                    yield found
                    expected = found.offset + 1
                    continue
                code = error.name()
                if code == "_PARTITION_EOF":
                    return
                if is_of_group(error):
                    continue
                if code in _FORBIDDEN:
                    failed(name, error)
                if code in _PASSING:
                    unreached = code
                    continue
                silent = 0
                refused += 1
                if refused > REFUSALS_MAX or code in _FINAL:
                    raise _not_served(name, expected, code)
            if silent > WAITS_MAX:
                if unreached:
                    raise UnavailableError(
                        f"no broker answers a reader. partition={name} offset={expected} "
                        f"error={unreached}",
                        code="K401",
                    )
                raise _not_served(name, expected, "nothing for a minute")
    finally:
        consumer.close()


def is_of_group(error: KafkaError) -> bool:
    """Return whether an error says that the principal may not join a group, which no reader does.

    The client asks for the coordinator of its group, whatever it is used for.
    """
    return error.name() == "GROUP_AUTHORIZATION_FAILED"


def _not_served(name: str, offset: int, found: str) -> CorruptError:
    return CorruptError(
        "brokers do not serve an offset, and a consumer stops there",
        path=name, expected=f"records from offset {offset} on", found=found, code="K442",
    )  # fmt: skip


def _record(message: Any) -> ConsumedRecord:
    try:
        headers: tuple[tuple[str, bytes | None], ...] | None = tuple(message.headers() or ())
    except (UnicodeDecodeError, SystemError):
        headers = None  # A name that is no text, which the client cannot show.
    return ConsumedRecord(
        message.offset(), message.timestamp()[1], message.key(), message.value(), headers
    )
