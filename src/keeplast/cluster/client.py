"""The home of a Kafka client: topics, settings, groups' offsets, records of the metadata topic.

The rule: **nothing is written to the cluster but by** :meth:`ClusterClient.append`, one batch to a
partition of the metadata topic; no group is joined and no offset committed. For all the rest a
principal that may describe and read is enough. Every call has a time limit. Errors name what was
asked for and, where the cluster refuses it, the permission that is missing; they never carry a
setting's value.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    MetadataEnd,
    MetadataValue,
    OffsetRange,
    Right,
    Settings,
    TopicEnds,
    TopicFacts,
    encode_batch,
    is_refused,
    is_tiered,
    missing,
)
from keeplast.cluster.topic_records import ConsumedRecord, is_of_group, read_records
from keeplast.errors import (
    CommitUnknownError,
    InvalidError,
    UnavailableError,
    installing,
)
from keeplast.format.remote_log_metadata import RemoteLogEvent
from keeplast.model.partition import TopicPartition as PartitionName
from keeplast.model.text import shown_url

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

TIMEOUT_SECONDS = 15.0
APPEND_SECONDS = 60.0
"""How long a batch may take, leaders that change included, before its outcome is unknown."""
_PRODUCER: dict[str, str | int | float | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "none",
    # Flushing does not end it: all of a batch must be in the queue by then, which takes far less.
    "linger.ms": 300,
    "batch.size": 900_000,
    "batch.num.messages": 10_000,
    "message.timeout.ms": 45_000,
    "message.max.bytes": 1_000_000,
}
"""One batch to one partition, once: a transaction would leave a marker there that stops brokers."""
WAIT_SECONDS = 0.25
WAITS_MAX = 240
RECORDS_AT_ONCE = 10_000
_GROUP = "keeplast-attach"
_UNAUTHORIZED = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    }
)  # fmt: skip
_BROKERS = Right("DescribeConfigs")
_METADATA, _WRITE = Right("Read", METADATA_TOPIC), Right("Write", METADATA_TOPIC)
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_NO_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_OR_PARTITION"})
_UNREACHED = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL", "_AUTHENTICATION"}
)
_ID = struct.Struct(">qq")
# The client's own lines would say addresses and settings; what matters comes as an error.
_SILENT = logging.getLogger("keeplast.cluster.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
Answer = TypeVar("Answer")


class ClusterClient:
    """A connection to a live cluster: a :class:`~keeplast.cluster.live_cluster.LiveCluster`."""

    def __init__(
        self, bootstrap_servers: str, settings: Mapping[str, str] | None = None, *,
        accepts_untested: bool = False,
    ) -> None:  # fmt: skip
        """Connect lazily; ``settings`` are those of :mod:`keeplast.cluster.client_properties`.

        InvalidError when the client is not installed or cannot use a setting.
        """
        try:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            raise InvalidError(
                f"a live cluster needs the package confluent-kafka; {installing('cluster')}",
                code="K134",
            ) from error
        self._address = shown_url(bootstrap_servers)
        self._accepts_untested = accepts_untested
        self._settings: dict[str, str | int | float | bool] = {
            "log_level": 0, **(settings or {}), "bootstrap.servers": bootstrap_servers,
        }  # fmt: skip
        try:
            self._admin: AdminClient = AdminClient(self._settings, logger=_SILENT)
        except KafkaException as error:
            # The client's text may repeat the value that it cannot use.
            raise InvalidError(
                "the client cannot use a setting; check the file of --command-config. "
                f"code={_code(error)}",
                code="K403",
            ) from None

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        """Return the cluster with ``topics``, or with every tiered topic when none is named.

        InvalidError when a named topic does not exist, RefusedError when a permission is missing,
        UnavailableError when the cluster does not answer.
        """
        listing = self._listing()
        # A topic that is hidden from the principal is not listed: asked for by name it is refused.
        unlisted = sorted({*topics, METADATA_TOPIC} - set(listing.topics))
        absent = [each for each in unlisted if self.find_topic_id(each) is None]
        if any(each in topics for each in absent):
            raise InvalidError(
                "no such topic in the cluster; correct its name. "
                f"topics={sorted({*absent} & {*topics})}",
                code="K114",
            )
        cluster = self._future("the cluster", self._admin.describe_cluster())
        unset: dict[str, frozenset[str]] = {}
        brokers = self._settings_of("BROKER", [str(each.id) for each in cluster.nodes], unset)
        asked = {*(topics or listing.topics), METADATA_TOPIC} & set(listing.topics)
        settings = self._settings_of("TOPIC", sorted(asked))
        # A cluster has thousands of topics, and few of them are tiered.
        wanted = set(topics) or {name for name, each in settings.items() if is_tiered(each)}
        described = {*wanted, METADATA_TOPIC} & settings.keys()
        found = {each.name: each for each in self._topics(sorted(described), settings)}
        return ClusterFacts(
            cluster.cluster_id,
            tuple(
                BrokerFacts(int(name), values, unset[name])
                for name, values in sorted(brokers.items())
            ),
            tuple(found[name] for name in sorted(wanted)),
            found.get(METADATA_TOPIC), self._accepts_untested,
        )  # fmt: skip

    def read_cluster_id(self) -> str:
        """Return which cluster it is; errors as before."""
        found: str = self._future("the cluster", self._admin.describe_cluster()).cluster_id
        return found

    def read_topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        """Return the ids of those of ``topics`` that there are; errors as before."""
        listing = self._listing()
        there = sorted(set(topics) & set(listing.topics))
        if not there:
            return {}
        found = self._topics(there, {name: {} for name in there})
        return {each.name: each.topic_id for each in found}

    def find_topic_id(self, topic: str) -> bytes | None:
        """Return a topic's id, None when brokers say that there is none of this name.

        A topic that is hidden from the principal is no topic that is gone: RefusedError, while the
        list of topics only leaves it out. No topic is made by asking.
        """
        found = self._find_topic(topic)
        return None if found is None else _id_bytes(found.topic_id)

    def find_ends(self, topic: str) -> TopicEnds | None:
        """Return a topic's id and where its partitions end; None and errors as before."""
        found = self._find_topic(topic)
        if found is None:
            return None
        ends = self._list_offsets(topic, [each.id for each in found.partitions], "latest")
        return TopicEnds(
            _id_bytes(found.topic_id), {number: each.offset for number, each in ends.items()}
        )

    def read_group_offsets(self, group: str) -> dict[PartitionName, int]:
        """Return where a consumer group goes on reading, by partition; nothing where it is none.

        Offsets that it wrote in an undecided transaction do not count yet. A partition that brokers
        report nothing of is left out.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        asked = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_SECONDS
        )
        right = Right("Describe", group=group)
        found: Any = self._future(f"offsets of group {group}", asked[group], right)
        return {
            PartitionName(each.topic, each.partition): each.offset
            for each in found.topic_partitions or ()
            if each.error is None and each.offset >= 0
        }

    def _find_topic(self, topic: str) -> Any:
        """Return what brokers say of a topic, None when they say that there is none."""
        from confluent_kafka import KafkaException, TopicCollection

        answer: Future[Any] = self._admin.describe_topics(
            TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS
        )[topic]
        with contextlib.suppress(TimeoutError):
            error = answer.exception(TIMEOUT_SECONDS)
            if isinstance(error, KafkaException) and _code(error) in _NO_TOPIC:
                return None
        return self._future(f"topic {topic}", answer, Right("Describe", topic))

    def missing_rights(self, topics: Collection[str] = ()) -> list[Right]:
        """Return the rights that the principal lacks to see ``topics``, or all that it may see.

        Each is tried; errors but for what is not allowed as :meth:`read_facts`.
        """
        listing = self._listing()
        nodes = self._future("the cluster", self._admin.describe_cluster()).nodes
        asked = sorted({*(topics or listing.topics), METADATA_TOPIC})
        tried: list[tuple[Right, Callable[[], object]]] = [
            (_BROKERS, partial(self._settings_of, "BROKER", [str(each.id) for each in nodes[:1]])),
            (_METADATA, self._read_one),
        ]
        for topic in asked:
            if topic != METADATA_TOPIC:
                tried.append((Right("Describe", topic), partial(self.find_topic_id, topic)))
            ask = partial(self._settings_of, "TOPIC", [topic])
            tried.append((Right("DescribeConfigs", topic), ask))
        return [right for right, ask in tried if is_refused(ask)]

    def _read_one(self) -> None:
        """Read a record of the metadata topic, where there is one."""
        if self.find_topic_id(METADATA_TOPIC) is None:
            return
        (metadata_topic,) = self._topics([METADATA_TOPIC], {METADATA_TOPIC: {}})
        for partition, held in enumerate(self.read_ranges(metadata_topic)):
            if held.start < held.end:
                next(iter(self.read_metadata(partition, OffsetRange(held.start, held.start + 1))))
                return

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        """Return what each partition of ``topic`` holds, in order; errors as before."""
        ends: list[list[int]] = []
        for which in ("earliest", "latest"):
            found = self._list_offsets(topic.name, range(topic.partition_count), which)
            ends.append([found[each].offset for each in range(topic.partition_count)])
        return [OffsetRange(start, end) for start, end in zip(*ends, strict=True)]

    def read_stable_ends(self, topic: TopicFacts) -> list[int]:
        """Return where what is decided of each partition ends, exclusive: its last stable offset.

        Errors as before.
        """
        from confluent_kafka import IsolationLevel

        numbers = range(topic.partition_count)
        found = self._list_offsets(
            topic.name, numbers, "latest", isolation_level=IsolationLevel.READ_COMMITTED
        )
        return [found[each].offset for each in numbers]

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        """Yield what a partition of the metadata topic holds in ``held``, in order of offset.

        An offset alone stands for one without a record: a transaction's marker, or a record that
        was removed. Reads uncommitted records, as brokers do. UnavailableError when nothing comes
        for a minute.
        """
        from confluent_kafka import Consumer, TopicPartition

        if held.start >= held.end:
            return
        settings = {
            **self._settings,
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "error",
        }
        consumer = Consumer(settings, logger=_SILENT)
        try:
            consumer.assign([TopicPartition(METADATA_TOPIC, partition, held.start)])
            expected = held.start
            silent = 0
            while expected < held.end:
                # One more than is left: the end is a message too, and ends the wait.
                wanted = min(held.end - expected + 1, RECORDS_AT_ONCE)
                messages = consumer.consume(wanted, timeout=WAIT_SECONDS)
                silent = 0 if messages else silent + 1
                if silent > WAITS_MAX:
                    raise UnavailableError(
                        f"the cluster sends nothing. topic={METADATA_TOPIC} partition={partition} "
                        f"offset={expected}",
                        code="K404",
                    )
                for message in messages:
                    error = message.error()
                    if error is not None and is_of_group(error):
                        continue
                    if error is not None and error.name() != "_PARTITION_EOF":
                        self._raise(f"{METADATA_TOPIC}-{partition}", error, _METADATA)
                    offset = message.offset() or 0
                    if error is not None and offset < held.end:
                        raise UnavailableError(
                            f"the metadata topic ends before its end; look again. "
                            f"partition={partition} offset={offset} end={held.end}",
                            code="K404",
                        )
                    yield from range(expected, min(offset, held.end))
                    if error is None and offset < held.end:
                        raw: Any = message.value()
                        epoch = message.leader_epoch()
                        yield MetadataValue(offset, raw, -1 if epoch is None else epoch)
                    expected = max(expected, offset + (error is None))
        finally:
            consumer.close()

    def read_records(
        self, topic: str, partition: int, held: OffsetRange, *, is_committed: bool
    ) -> Generator[ConsumedRecord]:
        """Yield what a consumer is given; see :class:`.topic_records.RecordReader`."""
        settings = {**self._settings, "group.id": _GROUP}
        failed = partial(self._raise, right=Right("Read", topic))
        return read_records(
            settings, _SILENT, failed, topic, partition, held, is_committed=is_committed
        )

    def read_end(self, partition: int) -> MetadataEnd:
        """Return where a partition of the metadata topic ends, and its leader's epoch."""
        found = self._list_offsets(METADATA_TOPIC, [partition], "latest")[partition]
        return MetadataEnd(found.offset, -1 if found.leader_epoch is None else found.leader_epoch)

    def _list_offsets(
        self, topic: str, partitions: Iterable[int], which: str, **how: Any
    ) -> dict[int, Any]:
        """Ask the leaders of ``partitions`` for their offsets, once more when they are not known.

        ``which`` is the name of the client's ``OffsetSpec``.

        A client that saw a topic without a leader, as in a restart, goes on seeing none until it
        asks for all topics again. By its name a topic that was deleted could be made again.
        """
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = {TopicPartition(topic, each): getattr(OffsetSpec, which)() for each in partitions}
        for is_last in (False, True):
            answers = self._admin.list_offsets(asked, request_timeout=TIMEOUT_SECONDS, **how)
            try:
                return {
                    each.partition: self._future(
                        f"offsets of {topic}", answer, Right("Describe", topic)
                    )
                    for each, answer in answers.items()
                }
            except UnavailableError:
                if is_last:
                    raise
                self._listing()
        raise AssertionError("unreachable")

    def append(
        self, metadata_topic: TopicFacts, partition: int, events: Sequence[RemoteLogEvent]
    ) -> OffsetRange:
        """Append ``events`` to a partition of the metadata topic, as one batch of a new producer.

        RefusedError when the principal may not write, InvalidError when brokers find the batch too
        large: nothing is there then. CommitUnknownError when some may be there, or lie apart.
        """
        from confluent_kafka import KafkaException, Producer

        values = encode_batch(metadata_topic, partition, events)
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        producer = Producer({**self._settings, **_PRODUCER}, logger=_SILENT)
        try:
            for value in values:
                producer.produce(
                    METADATA_TOPIC, value=value, partition=partition, on_delivery=delivered
                )
            left = producer.flush(APPEND_SECONDS)
        except (KafkaException, BufferError, SystemError) as error:
            producer.purge()
            # What ends a producer for good is raised in the middle of another call of the client's,
            # which calls that an error of the system. A batch that may not be sent does.
            ended = error.__cause__ if isinstance(error, SystemError) else error
            if isinstance(error, SystemError) and not isinstance(ended, KafkaException):
                raise
            if not offsets and isinstance(ended, KafkaException) and _code(ended) in _UNAUTHORIZED:
                raise missing(_WRITE, f"append to {METADATA_TOPIC}-{partition}") from None
            raise CommitUnknownError(
                f"the metadata topic was not written to as it should be. partition={partition} "
                f"error={type(error).__name__}",
                code="K405",
            ) from None
        if left:
            # Nothing of it may be sent when no caller waits for it any more.
            producer.purge()
        names = {error.name() for error in errors}
        if not offsets and not left and len(names) == 1:
            (name,) = names
            if name in _UNAUTHORIZED:
                raise missing(_WRITE, f"append to {METADATA_TOPIC}-{partition}")
            if name in _TOO_LARGE:
                raise InvalidError(
                    "brokers find the batch too large; raise max.message.bytes of "
                    f"{METADATA_TOPIC}, or take fewer segments. bytes={sum(map(len, values))}",
                    code="K406",
                )
        if sorted(offsets) != list(
            range(min(offsets, default=0), min(offsets, default=0) + len(values))
        ):
            raise CommitUnknownError(
                f"it is not known whether {METADATA_TOPIC} has all of a batch, in one piece. "
                f"partition={partition} records={len(values)} acknowledged={len(offsets)} "
                f"errors={sorted(names)}",
                code="K405",
            )
        return OffsetRange(min(offsets), max(offsets) + 1)

    def _listing(self) -> ClusterMetadata:
        return self._asked(
            "the list of topics", lambda: self._admin.list_topics(timeout=TIMEOUT_SECONDS)
        )

    def _topics(
        self, names: Sequence[str], settings: Mapping[str, Settings]
    ) -> Iterator[TopicFacts]:
        from confluent_kafka import TopicCollection

        if not names:
            return
        described = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=TIMEOUT_SECONDS
        )
        for name in names:
            found = self._future(f"topic {name}", described[name], Right("Describe", name))
            yield TopicFacts(
                name,
                _id_bytes(found.topic_id),
                len(found.partitions),
                min((len(each.replicas) for each in found.partitions), default=0),
                settings[name],
            )

    def _settings_of(
        self, kind: str, names: Iterable[str], unset: dict[str, frozenset[str]] | None = None
    ) -> dict[str, Settings]:
        """Return settings by name of what has them; ``unset`` receives the names that are not
        set.
        """
        from confluent_kafka.admin import ConfigEntry, ConfigResource

        resources = [ConfigResource(ConfigResource.Type[kind], name) for name in names]
        # Each broker reports its own, so the client takes one of them a call. All are asked at
        # once.
        calls = [[each] for each in resources] if kind == "BROKER" else [resources]
        answers: dict[ConfigResource, Future[dict[str, ConfigEntry]]] = {}
        for call in calls:
            answers |= self._admin.describe_configs(call, request_timeout=TIMEOUT_SECONDS)
        found: dict[str, Settings] = {}
        for each, answer in answers.items():
            right = _BROKERS if kind == "BROKER" else Right("DescribeConfigs", each.name)
            entries = self._future(f"the settings of {kind.lower()} {each.name}", answer, right)
            found[each.name] = {name: entry.value for name, entry in entries.items()}
            if unset is not None:
                unset[each.name] = frozenset(
                    name for name, entry in entries.items() if entry.is_default
                )
        return found

    def _future(self, what: str, answer: Future[Answer], right: Right | None = None) -> Answer:
        return self._asked(what, lambda: answer.result(TIMEOUT_SECONDS), right)

    def _asked(self, what: str, ask: Callable[[], Answer], right: Right | None = None) -> Answer:
        from confluent_kafka import KafkaException

        try:
            return ask()
        except KafkaException as error:
            self._raise(what, error.args[0], right)
        except TimeoutError:
            raise UnavailableError(
                f"the cluster does not answer in time; try again. asked={what} "
                f"bootstrap_servers={self._address}",
                code="K401",
            ) from None

    def _raise(self, what: str, error: KafkaError, right: Right | None = None) -> NoReturn:
        if error.name() in _UNAUTHORIZED:
            raise missing(right or Right("Describe"), what)
        if error.name() in _UNREACHED:
            raise UnavailableError(
                "no broker answers; check the address, and --command-config where the listener "
                f"asks for SSL or SASL. bootstrap_servers={self._address} asked={what} "
                f"error={error.name()}",
                code="K401",
            )
        raise UnavailableError(
            f"the cluster does not answer as it should. asked={what} error={error.name()} "
            f"bootstrap_servers={self._address}",
            code="K404",
        )


def _id_bytes(found: Any) -> bytes:
    """Return the 16 bytes of the client's id, which has its halves as signed numbers."""
    return _ID.pack(found.get_most_significant_bits(), found.get_least_significant_bits())


def _code(error: Exception) -> str:
    first: Any = error.args[0]
    return str(first.name())
