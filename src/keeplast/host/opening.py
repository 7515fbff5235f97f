"""Makes this process a host of a partition of a store."""

from __future__ import annotations

from pathlib import Path

from keeplast.host.partition_host import PartitionHost
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.store.tiered_store import TieredStore


def open_host(
    store: TieredStore,
    partition: TopicPartition,
    root: Path,
    topic: TopicConfig,
    *,
    recovers: bool = False,
    is_locked: bool = False,
) -> PartitionHost:
    """Return this process as a host of a partition with its local log below ``root``.

    ``recovers`` deals with what a crash left of the local log; see its ``recovered``. ``is_locked``
    says that the caller holds the lock of ``root``.
    """
    parts = store.parts()
    return PartitionHost(
        parts.metadata, parts.objects, partition, root, topic=topic, owner=parts.owner,
        files=parts.files, clock=parts.clock, recovers=recovers,
        is_locked=is_locked,
    )  # fmt: skip
