"""Three brokers with one remote tier, whose leaders are moved, frozen and killed by tests.

``__remote_log_metadata`` and the topic have three replicas, two of which must be in sync. Leaders
change because a broker is frozen until the others have elected another one, which takes no restart;
it wakes up believing that it leads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from keeplast.cluster.client import ClusterClient
from keeplast.cluster.live_cluster import METADATA_TOPIC
from keeplast.cluster.metadata_cache import (
    PartitionCache,
    RemotePartitionStatus,
    name_of,
    partition_status,
)
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.errors import ConflictError, UnavailableError
from keeplast.format.identifier import metadata_partition
from tests.kafka.broker import Broker, tier_settings
from tests.kafka.cluster import NODES, Cluster
from tests.support.waiting import SECONDS_MAX, wait_until

Answer = TypeVar("Answer")
ASK_SECONDS = 5.0
SEGMENT_BYTES = 40_000


def rack_of(node: int) -> str:
    """Return the rack of a broker: one of its own."""
    return f"rack{node}"


class TieredCluster:
    """Three brokers below ``root``; ``remote`` is what they share."""

    def __init__(self, version: str, root: Path) -> None:
        """Choose ports; nothing runs yet."""
        self.version = version
        self.remote = root / "remote"
        settings = tier_settings(version, root) | {
            "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "min.insync.replicas": "2",
            "auto.leader.rebalance.enable": "false",
            "replica.lag.time.max.ms": "5000",
            # Who says in which rack he is may read from a follower there.
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # A follower may not be sent more than fits a segment.
            "replica.fetch.max.bytes": str(SEGMENT_BYTES // 2),
        }
        if version.startswith("4"):
            settings["rlmm.config.remote.log.metadata.topic.min.isr"] = "2"
        self.cluster = Cluster(version, root, settings)
        for node, broker in self.cluster.brokers.items():
            broker.configure({"broker.rack": rack_of(node)})
        self._frozen: set[int] = set()
        self._places: dict[tuple[str, int], int] = {}

    def __enter__(self) -> TieredCluster:
        """Start all three."""
        self.cluster.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End all three, frozen ones too."""
        self.cluster.__exit__(*error)

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """Return the brokers by node."""
        return self.cluster.brokers

    @property
    def address(self) -> str:
        """Return what clients bootstrap from."""
        return self.cluster.addresses

    def complaints(self) -> str:
        """Return what brokers complain of."""
        return "\n".join(
            line for each in self.brokers.values() for line in each.lines("ERROR")[-10:]
        )

    def create(self, topic: str, partitions: int, more: Mapping[str, str] | None = None) -> None:
        """Create a tiered topic whose segments are small, with ``more`` settings."""
        config = {
            "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
            "retention.bytes": "-1", "local.retention.bytes": "1", "file.delete.delay.ms": "1000",
            self.size_setting: str(SEGMENT_BYTES), **(more or {}),
        }  # fmt: skip
        admin = self._admin()  # It ends its requests when it is forgotten.
        made = admin.create_topics([NewTopic(topic, partitions, 3, config=config)])
        made[topic].result(SECONDS_MAX)

    @property
    def size_setting(self) -> str:
        """Return the setting by which segments are this small."""
        return "segment.bytes" if self.version.startswith("3") else "internal.segment.bytes"

    def set_segment_bytes(self, topic: str, size: int) -> None:
        """Let brokers roll at another size."""
        self._alter(topic, self.size_setting, str(size))

    def keep_local(self, topic: str, *, keeps: bool) -> None:
        """Let brokers keep what is remote already, or nothing of it."""
        self._alter(topic, "local.retention.bytes", "-2" if keeps else "1")

    def _alter(self, topic: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(SECONDS_MAX)

    def leader(self, topic: str, partition: int) -> int:
        """Return who leads a partition, -1 when there is none or no broker says."""
        return self._partition(topic, partition)[0]

    def known_leader(self, topic: str, partition: int) -> int:
        """Return who leads a partition, once somebody does."""
        return self._known(topic, partition)[0]

    def replicas(self, topic: str, partition: int) -> list[int]:
        """Return the replicas of a partition, the preferred leader first."""
        return self._known(topic, partition)[2]

    def metadata_leader(self, topic: str, partition: int) -> int:
        """Return who leads what the metadata topic has of a partition."""
        return self.known_leader(METADATA_TOPIC, self.metadata_partition(topic, partition))

    def metadata_partition(self, topic: str, partition: int) -> int:
        """Return which partition of the metadata topic has a partition."""
        if (topic, partition) not in self._places:
            facts = _asked(lambda: ClusterClient(self.address).read_facts([topic]))
            assert facts.metadata_topic is not None
            self._places[topic, partition] = metadata_partition(
                facts.topics[0].topic_id, partition, facts.metadata_topic.partition_count
            )
        return self._places[topic, partition]

    def move_leader(self, topic: str, partition: int) -> None:
        """Let a partition have another leader; who led it wakes up as a zombie."""
        self.wait_for_replicas(topic, partition)
        before = self.known_leader(topic, partition)
        self.freeze(before)
        try:
            wait_until(
                lambda: self.leader(topic, partition) not in (-1, before), words=self.complaints
            )
        finally:
            self.thaw(before)

    def move_both_leaders(self, topic: str, partition: int) -> None:
        """Let a partition, and what the metadata topic has of it, have other leaders."""
        at = self.metadata_partition(topic, partition)
        before = self.known_leader(METADATA_TOPIC, at)
        self.move_leader(topic, partition)
        if self.known_leader(METADATA_TOPIC, at) == before:
            self.move_leader(METADATA_TOPIC, at)

    def elect_preferred(self, topic: str, partition: int) -> None:
        """Let the first replica of a partition lead it."""
        self.wait_for_replicas(topic, partition)

        def is_elected() -> bool:
            if self.leader(topic, partition) == self.replicas(topic, partition)[0]:
                return True
            where, admin = [TopicPartition(topic, partition)], self._admin()
            try:
                admin.elect_leaders(ElectionType.PREFERRED, where).result(ASK_SECONDS)
            except (KafkaException, TimeoutError):
                return False
            return False

        wait_until(is_elected, words=self.complaints)

    def wait_for_replicas(self, topic: str, partition: int) -> None:
        """Wait until all replicas of a partition are in sync."""

        def is_whole() -> bool:
            leader, in_sync, replicas = self._partition(topic, partition)
            return leader != -1 and len(in_sync) == len(replicas) == len(NODES)

        wait_until(is_whole, words=self.complaints)

    def freeze(self, node: int) -> None:
        """Let a broker give no answer."""
        self.brokers[node].freeze()
        self._frozen.add(node)

    def thaw(self, *nodes: int) -> None:
        """Let brokers go on; all that are frozen when none is named."""
        for node in nodes or tuple(self._frozen):
            self.brokers[node].thaw()
            self._frozen.discard(node)

    def cache(self, topic: str, partition: int) -> PartitionCache:
        """Return what brokers know of a partition's remote log."""
        return _asked(lambda: self._fold(topic, partition))[1]

    def status(self, topic: str, partition: int) -> RemotePartitionStatus:
        """Return what brokers serve of a partition."""
        return _asked(lambda: self._fold(topic, partition))[0]

    def wait_until_remote(self, topic: str, partition: int) -> None:
        """Wait until all of a partition but the leader's active segment is remote alone."""
        wait_until(lambda: self._is_remote(topic, partition), words=self.complaints)
        # Asked for while all answer: what happens in the middle of a call asks no broker.
        self.metadata_partition(topic, partition)

    def clear_caches(self) -> None:
        """Remove the indexes that brokers, which must be down, have cached of the remote tier."""
        for broker in self.brokers.values():
            for path in (broker.data / "remote-log-index-cache").glob("*"):
                path.unlink()

    def _is_remote(self, topic: str, partition: int) -> bool:
        leader = self.leader(topic, partition)
        if leader == -1:
            return False
        folder = self.brokers[leader].data / f"{topic}-{partition}"
        local = [int(path.name[:20]) for path in folder.glob("*.log")]
        found = self.status(topic, partition)
        is_copied = not found.copying.count and found.remote_end == max(local, default=0) - 1
        return len(local) == 1 and is_copied

    def _fold(self, topic: str, partition: int) -> tuple[RemotePartitionStatus, PartitionCache]:
        client = ClusterClient(self.address)
        facts = client.read_facts([topic])
        (found,), metadata = facts.topics, facts.metadata_topic
        if metadata is None:
            cache = PartitionCache()
        else:
            at = metadata_partition(found.topic_id, partition, metadata.partition_count)
            folded = fold_metadata(client, metadata, [at])
            cache = folded.cache.partitions.get(name_of(found, partition), PartitionCache())
        log = client.read_ranges(found)[partition]
        return partition_status(found, partition, log, cache), cache

    def _known(self, topic: str, partition: int) -> tuple[int, list[int], list[int]]:
        found = [self._partition(topic, partition)]

        def is_led() -> bool:
            found[0] = self._partition(topic, partition)
            return found[0][0] != -1

        wait_until(is_led, words=self.complaints)
        return found[0]

    def _partition(self, topic: str, partition: int) -> tuple[int, list[int], list[int]]:
        try:
            found = self._admin().list_topics(topic, timeout=ASK_SECONDS).topics[topic]
        except (KafkaException, KeyError):
            return -1, [], []
        known = found.partitions.get(partition)
        if known is None:
            return -1, [], []
        return known.leader, list(known.isrs), list(known.replicas)

    def _admin(self) -> AdminClient:
        awake = [
            broker.address for node, broker in self.brokers.items() if node not in self._frozen
        ]
        return AdminClient(
            {
                "bootstrap.servers": ",".join(awake), "log_level": 0,
                "broker.address.family": "v4", "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip


def _asked(ask: Callable[[], Answer]) -> Answer:
    """Return what ``ask`` says, once the cluster answers."""
    found: list[Answer] = []

    def is_answered() -> bool:
        with contextlib.suppress(UnavailableError, ConflictError):
            found.append(ask())
        return bool(found)

    wait_until(is_answered)
    return found[0]
