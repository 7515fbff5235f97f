"""Whether a tiered topic may be compacted from outside: the rules, one after the other.

Pure: facts in, findings out. The rule: **a finding that refuses names what is lost without it**.
The finding names the line to type too, where there is one. Every rule was seen on brokers of 3.9.1
and 4.3.0, or follows from what they keep. Sources: attach.md sections 4, 5 and 8, tiering.md
section 8.1.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from keeplast.cluster.late_copies import closable_holes
from keeplast.cluster.live_cluster import (
    BATCH_BYTES_NEEDED,
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    MetadataFault,
    OffsetRange,
    Right,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, is_compactors
from keeplast.cluster.tested_releases import TESTED_VERSIONS, find_untested

METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
LOCAL_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
AIVEN_STORAGE = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
STORAGE_MANAGERS = (LOCAL_STORAGE, AIVEN_STORAGE)
STORAGE_SETTING = "remote.log.storage.manager.class.name"
UNBOUNDED = (1 << 63) - 1
NO_LIMIT = -1
AS_TOTAL = -2


class Severity(StrEnum):
    """What a finding means for the topic."""

    REFUSES = "refuses"
    WARNS = "warns"


class AttachFinding(Struct, frozen=True):
    """Something that stands in the way of ``topic``, or of all of them when it is None.

    ``remedy`` is a line to type, or what to do in words; empty where nothing helps.
    """

    rule: str
    severity: Severity
    topic: str | None
    words: str
    remedy: str = ""


def check_cluster(facts: ClusterFacts, address: str) -> Iterator[AttachFinding]:
    """Yield what stands in the way of every topic: brokers, and the metadata topic's settings."""
    for broker in facts.brokers:
        yield from _check_broker(broker, accepts_untested=facts.accepts_untested)
    if any(find_untested(each) is None for each in facts.brokers):
        yield AttachFinding(
            "patch-release", Severity.WARNS, None,
            f"tested are {' and '.join(TESTED_VERSIONS)}. By their settings brokers are of such a "
            "release; clients do not learn which patch release it is",
            "look at each broker's package, or at version in its JMX bean kafka.server:"
            "type=app-info; of another patch release, read what it changed in tiered storage first",
        )  # fmt: skip
    if any(each.settings.get(STORAGE_SETTING) == AIVEN_STORAGE for each in facts.brokers):
        # No listing has such parts, and no call of our client reads a bucket's rules.
        yield AttachFinding(
            "unended-uploads", Severity.WARNS, None,
            "brokers keep segments in object storage: parts of an upload that was never ended, of "
            "a broker or a compactor that was killed, cost, and are in no listing. Whether a "
            "lifecycle rule of the bucket ends them cannot be seen from here",
            "see that the bucket has a rule that aborts incomplete multipart uploads, after 7 days",
        )  # fmt: skip
    if facts.metadata_topic is None:
        yield _refuse(
            "metadata-topic", None,
            f"there is no {METADATA_TOPIC}: nothing was ever copied to a remote tier here",
        )  # fmt: skip
    else:
        yield from _check_metadata_topic(facts.metadata_topic, len(facts.brokers), address)


def check_faults(faults: Iterable[MetadataFault]) -> Iterator[AttachFinding]:
    """Yield what was found in the metadata topic's records."""
    for each in faults:
        where = f"partition {each.partition} of {METADATA_TOPIC}, offset {each.offset}"
        yield _refuse(
            "metadata-record", None,
            f"{where}: {each.problem}; brokers that start cannot follow it, and neither can "
            "keeplast",
        )  # fmt: skip


def check_marks(
    cache: ClusterCache, topics: Collection[str], own: Collection[bytes] = ()
) -> Iterator[AttachFinding]:
    """Yield the partitions of ``topics`` in which an unknown compactor announced.

    ``own`` are the segment ids that a decision log knows.
    """
    for partition, known in cache.partitions.items():
        marked = [
            each for each in known.segments if is_compactors(each) and each.id.segment_id not in own
        ]
        if marked and partition.topic in topics:
            yield _refuse(
                "foreign-marks", partition.topic,
                f"partition {partition.partition} has {len(marked)} segments that a compactor "
                "announced, of which no decision is known here; two compactors of one log undo "
                "each other",
            )  # fmt: skip


def check_copied(
    topic: TopicFacts, logs: Iterable[OffsetRange], caches: Iterable[PartitionCache]
) -> Iterator[AttachFinding]:
    """Yield the partitions whose brokers lack something that they take as copied.

    A broker copies nothing below the highest offset that ever was in the remote tier. It deletes up
    to there what is local, whether that still lies in the remote tier or not. A whole segment there
    that a late copy hides has a finding of its own: it is not lost. ``logs`` and ``caches`` are
    those of the partitions from 0 on; logs were read after the metadata topic.
    """
    for partition, (log, cache) in enumerate(zip(logs, caches, strict=True)):
        is_gone = not cache.served() and cache.highest >= log.start
        lost = [(log.start, cache.highest)] if is_gone else cache.holes(log.start)
        whole = closable_holes(cache, log.start)
        for first, last in lost:
            if (first, last) in whole:
                yield AttachFinding(
                    "late-copy", Severity.WARNS, topic.name,
                    f"partition {partition}: offsets {first} to {last} are whole in the remote "
                    "tier, and brokers serve nothing there: a leader that was overtaken has "
                    "finished a copy late, which hides them. Consumers get OFFSET_OUT_OF_RANGE "
                    "there; nothing is lost",
                    f"a round makes them served again: keeplast clean --topic "
                    f"{shlex.quote(topic.name)}, or attach run does one by itself, as soon as they "
                    "lie below what stays raw at the end",
                )  # fmt: skip
                continue
            yield _refuse(
                "not-copied", topic.name,
                f"partition {partition}: offsets {first} to {last} were in the remote tier and are "
                "not any more, and brokers copy none of them again: the topic was tiered before. "
                "What is left of them is local, and goes for good with local retention",
                "leave local.retention.ms and local.retention.bytes as they are, and copy the "
                "records to another topic",
            )  # fmt: skip


def check_rights(missing: Iterable[Right], address: str) -> Iterator[AttachFinding]:
    """Yield what the principal has to be allowed before anything else can be said."""
    for each in missing:
        is_topics = each.topic not in (None, METADATA_TOPIC)
        yield _refuse(
            "permission", each.topic if is_topics else None, f"the principal needs {each}",
            each.line(address),
        )  # fmt: skip


def check_groups(missing: Iterable[Right], topic: str, address: str) -> Iterator[AttachFinding]:
    """Yield the groups whose progress in ``topic`` the principal may not read.

    Rounds go on; tombstones wait for such a group for the longest wait.
    """
    for each in missing:
        yield AttachFinding(
            "permission", Severity.WARNS, topic,
            f"tombstones wait the longest time for a group: the principal needs {each}",
            each.line(address),
        )  # fmt: skip


def check_topic(topic: TopicFacts, policy: frozenset[str], address: str) -> Iterator[AttachFinding]:
    """Yield what stands in the way of ``topic``, for which keeplast is asked for ``policy``."""
    name, settings = topic.name, topic.settings

    def alter(setting: str) -> str:
        return _alter(address, name, setting)

    leaves_compact = (
        f"{alter('retention.ms=-1,retention.bytes=-1')} && {alter('cleanup.policy=delete')}"
    )
    is_compacted = settings.get("cleanup.policy") != "delete"
    if not topic.is_tiered:
        tiers = alter("remote.storage.enable=true")
        if is_compacted:
            # Brokers would refuse the last line alone, and the second alone eats what is old.
            yield _refuse(
                "not-tiered", name,
                f"it has no remote tier, and cleanup.policy is {settings.get('cleanup.policy')}, "
                "which brokers allow no tiered topic. First lift the retention, or what is old is "
                "deleted; then leave that policy; then let segments be copied",
                f"{leaves_compact} && {tiers}",
            )  # fmt: skip
        else:
            yield _refuse(
                "not-tiered",
                name,
                "remote.storage.enable is not true: it has no remote tier",
                tiers,
            )
        return
    if is_compacted:
        yield _refuse(
            "cleanup-policy", name,
            f"cleanup.policy is {settings.get('cleanup.policy')}: brokers copy only what they do "
            "not compact themselves. First lift the retention, or what is old is deleted",
            leaves_compact,
        )  # fmt: skip
    yield from _check_retention(topic, policy, alter("retention.ms=-1"))
    if _number(topic, "retention.bytes") != NO_LIMIT:
        yield _refuse(
            "retention-bytes", name,
            "retention.bytes is set: 3.9 counts replaced segments too and deletes live data",
            alter("retention.bytes=-1"),
        )  # fmt: skip
    if _number(topic, "segment.ms") >= UNBOUNDED:
        yield _refuse(
            "segment-ms", name,
            "segment.ms is unbounded: the last segment of a quiet partition is never copied, and "
            "a superseded value in it never goes",
            alter("segment.ms=604800000"),
        )  # fmt: skip
    if settings.get("unclean.leader.election.enable") == "true":
        yield _refuse(
            "unclean-election", name,
            "unclean.leader.election.enable is true: a leader that lacks offsets writes them again "
            "with other records than those that were compacted",
            alter("unclean.leader.election.enable=false"),
        )  # fmt: skip
    if settings.get("remote.log.copy.disable") == "true":
        yield _refuse(
            "copy-disabled", name,
            "remote.log.copy.disable is true: nothing new reaches the remote tier",
            alter("remote.log.copy.disable=false"),
        )  # fmt: skip
    if _number(topic, "local.retention.ms") == AS_TOTAL == _number(topic, "local.retention.bytes"):
        yield AttachFinding(
            "local-retention", Severity.WARNS, name,
            "local.retention.ms and .bytes have their defaults: with unlimited retention brokers "
            "keep every local segment, and go on serving what is not compacted; tombstones stay",
            alter("local.retention.ms=86400000"),
        )  # fmt: skip


def _check_retention(
    topic: TopicFacts, policy: frozenset[str], remedy: str
) -> Iterator[AttachFinding]:
    retention_ms = _number(topic, "retention.ms")
    if retention_ms == NO_LIMIT:
        return
    if policy == frozenset({"compact"}):
        yield _refuse(
            "retention-ms", topic.name,
            f"retention.ms is {retention_ms}: brokers delete the last value of a key that is not "
            "written for so long; lift it, or choose cleanup.policy=compact,delete",
            remedy,
        )  # fmt: skip
    else:
        yield AttachFinding(
            "retention-ms", Severity.WARNS, topic.name,
            f"retention.ms is {retention_ms}: a merged segment goes when its youngest record is "
            "old enough, and one without records at once",
        )  # fmt: skip


def _check_broker(broker: BrokerFacts, *, accepts_untested: bool) -> Iterator[AttachFinding]:
    settings = broker.settings
    who = f"broker {broker.broker_id}"
    if settings.get("remote.log.storage.system.enable") != "true":
        yield _refuse(
            "tier-off", None, f"{who}: remote.log.storage.system.enable is not true",
            "set it in server.properties and restart the broker",
        )  # fmt: skip
    manager = settings.get("remote.log.metadata.manager.class.name")
    if manager != METADATA_MANAGER:
        yield _refuse(
            "metadata-manager", None,
            f"{who} keeps its remote metadata with {manager}; only Kafka's own topic is understood",
        )  # fmt: skip
    storage = settings.get(STORAGE_SETTING)
    if storage not in STORAGE_MANAGERS:
        yield _refuse(
            "storage-manager", None,
            f"{who} stores segments with {storage}; known are {', '.join(STORAGE_MANAGERS)}",
        )  # fmt: skip
    untested = find_untested(broker)
    if untested is not None:
        yield AttachFinding(
            "broker-version", Severity.WARNS if accepts_untested else Severity.REFUSES, None,
            f"{who} {untested}; tested are {' and '.join(TESTED_VERSIONS)}. What it makes of a "
            "swap is not known: records may be lost for good",
            "update the brokers; to go past this: --accept-untested",
        )  # fmt: skip


def _check_metadata_topic(
    topic: TopicFacts, broker_count: int, address: str
) -> Iterator[AttachFinding]:
    settings = topic.settings

    def alter(setting: str) -> str:
        return _alter(address, METADATA_TOPIC, setting)

    if settings.get("cleanup.policy") != "delete":
        yield _refuse(
            "metadata-policy", None,
            f"{METADATA_TOPIC} has cleanup.policy={settings.get('cleanup.policy')}: records "
            "without a key are refused there, and a later one hides what brokers must read",
            alter("cleanup.policy=delete"),
        )  # fmt: skip
    for key in ("retention.ms", "retention.bytes"):
        if _number(topic, key) != NO_LIMIT:
            yield _refuse(
                "metadata-retention", None,
                f"{METADATA_TOPIC} has {key}={settings.get(key)}: a segment whose record expires "
                "is gone for a broker that restarts",
                alter(f"{key}=-1"),
            )  # fmt: skip
    if settings.get("unclean.leader.election.enable") == "true":
        yield _refuse(
            "metadata-unclean", None,
            f"{METADATA_TOPIC} allows unclean leaders: an acknowledged swap may be lost after its "
            "sources are deleted",
            alter("unclean.leader.election.enable=false"),
        )  # fmt: skip
    limit = settings.get("max.message.bytes")
    if limit is not None and int(limit) < BATCH_BYTES_NEEDED:
        yield _refuse(
            "metadata-batch", None,
            f"{METADATA_TOPIC} has max.message.bytes={limit}: a swap is one batch, and a large one "
            f"takes up to {BATCH_BYTES_NEEDED} bytes",
            alter("max.message.bytes=1048588"),
        )  # fmt: skip
    if broker_count > 1 and topic.replicas < 2:
        yield _refuse(
            "metadata-replicas", None,
            f"{METADATA_TOPIC} has a partition in one replica on {broker_count} brokers: with its "
            "disk the remote tier of every topic is lost",
            "raise it to three replicas with kafka-reassign-partitions",
        )  # fmt: skip
    if broker_count > 1 and _number(topic, "min.insync.replicas") < 2:
        yield _refuse(
            "metadata-min-isr", None,
            f"{METADATA_TOPIC} has min.insync.replicas below 2: what one broker acknowledged alone "
            "can be lost",
            alter("min.insync.replicas=2"),
        )  # fmt: skip


def _number(topic: TopicFacts, key: str) -> int:
    """Return a setting; one that the broker does not have is as if it had no limit."""
    value = topic.settings.get(key)
    return NO_LIMIT if value is None else int(value)


def _refuse(rule: str, topic: str | None, words: str, remedy: str = "") -> AttachFinding:
    return AttachFinding(rule, Severity.REFUSES, topic, words, remedy)


def _alter(address: str, topic: str, settings: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {shlex.quote(address)} --alter --entity-type topics "
        f"--entity-name {shlex.quote(topic)} --add-config {settings}"
    )
