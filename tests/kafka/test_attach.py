"""What is said of a live cluster's tiered topics is what its brokers do.

A broker with Kafka's own file-system tier copies segments; the fold of its metadata topic must name
exactly the objects that are there, every record must come back byte for byte, and each rule must
refuse when its setting is changed. What a compactor would announce is sent by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from keeplast.cluster.client import ClusterClient
from keeplast.cluster.live_cluster import METADATA_TOPIC, MetadataValue, TopicFacts
from keeplast.cluster.metadata_cache import name_of, partition_status
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.cluster.tested_releases import SETTINGS
from keeplast.format.identifier import decode_id, encode_id, metadata_partition
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    decode,
    encode,
)
from tests.kafka.broker import PARTITIONS, Broker
from tests.support.checked_place import findings, problems
from tests.support.live_call import live_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

TOPIC, OTHER = "orders", "payments"
WAIT_SECONDS = 120.0
COMMAND_SECONDS = 400
SEGMENT_BYTES = "40000"
OBJECT = re.compile(r"(\d{20})-(.{22})\.log\Z")
MARK = -1001


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    create(broker, TOPIC, 2)
    create(broker, OTHER, 1)
    fill(broker, TOPIC, 0, 3000)
    fill(broker, TOPIC, 1, 1000)
    wait_until_copied(broker)
    return broker


def create(broker: Broker, topic: str, partitions: int) -> None:
    size = "segment.bytes" if broker.version.startswith("3") else "internal.segment.bytes"
    config = {
        "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
        "retention.bytes": "-1", "local.retention.bytes": "1", size: SEGMENT_BYTES,
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    created = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
    created[topic].result(WAIT_SECONDS)


def fill(broker: Broker, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 4000})
    for number in range(count):
        producer.produce(topic, key=f"k{number % 50}", value="v" * 100, partition=partition)
    assert 0 == producer.flush(WAIT_SECONDS)


def alter(broker: Broker, topic: str, key: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    resource = ConfigResource(
        ResourceType.TOPIC, topic,
        incremental_configs=[ConfigEntry(key, value or "", incremental_operation=operation)],
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(WAIT_SECONDS)


def attach(broker: Broker, *arguments: str, expected: int = 0) -> dict[str, Any]:
    return _document(*live_call(broker.address, *arguments), expected=expected)


def checked(broker: Broker, *arguments: str, expected: int = 0) -> dict[str, Any]:
    return _document("place", "check", f"kafka://{broker.address}", *arguments, expected=expected)


def _document(*arguments: str, expected: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "keeplast", *arguments, "--json"],
        capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS,
    )  # fmt: skip
    assert expected == done.returncode, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def facts_of(client: ClusterClient, topic: str) -> tuple[TopicFacts, TopicFacts]:
    facts = client.read_facts([topic])
    assert facts.metadata_topic is not None
    return facts.topics[0], facts.metadata_topic


def objects(broker: Broker, topic: str, partition: int) -> dict[bytes, tuple[int, int]]:
    """Return start offset and size of every log object of a partition, by segment id."""
    found = {}
    root = broker.root / "remote" / "kafka-tiered-storage"
    for path in root.glob(f"{topic}-{partition}-*/*.log"):
        match = OBJECT.match(path.name)
        assert match is not None, path
        found[decode_id(match[2])] = int(match[1]), path.stat().st_size
    return found


def wait_until_copied(broker: Broker) -> None:
    """Wait until the remote tier has all but the active segment of each partition."""
    client = ClusterClient(broker.address)

    def is_copied() -> bool:
        facts = client.read_facts([TOPIC])
        if facts.metadata_topic is None:
            return False
        metadata, (topic,) = facts.metadata_topic, facts.topics
        folded = fold_metadata(client, metadata, range(metadata.partition_count))
        found = [
            partition_status(topic, n, log, folded.cache.partitions.get(name_of(topic, n)))
            for n, log in enumerate(client.read_ranges(topic))
        ]
        on_disk = [len(list((broker.data / f"{TOPIC}-{n}").glob("*.log"))) for n in (0, 1)]
        is_ended = not any(each.copying.count for each in found)
        return [1, 1] == on_disk and min(each.served.count for each in found) > 1 and is_ended

    wait_until(is_copied, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))


def values(client: ClusterClient, metadata: TopicFacts) -> Iterator[bytes]:
    for partition, held in enumerate(client.read_ranges(metadata)):
        for each in client.read_metadata(partition, held):
            assert isinstance(each, MetadataValue)
            assert each.value is not None
            yield each.value


def test_every_record_of_a_broker_comes_back_byte_for_byte(broker: Broker) -> None:
    client = ClusterClient(broker.address)
    _, metadata = facts_of(client, TOPIC)
    found = list(values(client, metadata))
    assert found == [encode(decode(each)) for each in found]
    kinds = {type(decode(each)) for each in found}
    assert {RemoteLogSegment, RemoteLogSegmentUpdate} == kinds


def test_served_records_are_those_of_the_remote_tier(broker: Broker) -> None:
    client = ClusterClient(broker.address)
    topic, metadata = facts_of(client, TOPIC)
    folded = fold_metadata(client, metadata, range(metadata.partition_count))
    for number in (0, 1):
        cache = folded.cache.partitions[name_of(topic, number)]
        served = {
            each.segment.id.segment_id: (each.segment.start_offset, each.segment.size_bytes)
            for each in cache.served()
        }
        assert objects(broker, TOPIC, number) == served
        assert [] == cache.holes(0)
    assert [] == folded.faults


def test_status_adds_up(broker: Broker) -> None:
    document = attach(broker, "status", "--topic", TOPIC)
    assert [0, 1] == [each["partition"] for each in document["partitions"]]
    for each in document["partitions"]:
        there = objects(broker, TOPIC, each["partition"])
        assert len(there) == each["served"]["count"]
        assert sum(size for _, size in there.values()) == each["served"]["bytes"]
        assert 0 == each["log"]["start"] == each["remote_start"]
        assert each["remote_end"] < each["log"]["end"]
        assert [] == each["holes"]
        assert 0 == each["compacted"]["count"] == each["hidden"]["count"]


def test_both_topics_may_be_attached_and_a_missing_topic_is_reported(broker: Broker) -> None:
    document = checked(broker)
    assert [TOPIC, OTHER] == document["topics"]
    assert [("patch-release", "warning")] == [
        (each["name"], each["state"]) for each in findings(document)
    ]
    answer = checked(broker, "--topic", "nowhere", expected=2)
    assert "no such topic" in answer["error"]["message"]


def test_a_release_is_known_by_its_settings(broker: Broker) -> None:
    (found,) = ClusterClient(broker.address).read_facts([TOPIC]).brokers
    known = SETTINGS[broker.version]
    assert set() == known - found.settings.keys()
    assert set() == found.unset - known
    assert {"rsm.config.dir"} < found.settings.keys() - known - found.unset


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("retention.ms", "604800000", "retention-ms"),
        ("retention.bytes", "1000000000", "retention-bytes"),
        ("segment.ms", "9223372036854775807", "segment-ms"),
        ("unclean.leader.election.enable", "true", "unclean-election"),
    ],
)
def test_a_setting_that_would_lose_data_is_refused(
    broker: Broker, key: str, value: str, rule: str
) -> None:
    """R3."""
    alter(broker, OTHER, key, value)
    try:
        document = checked(broker, "--topic", OTHER, expected=1)
    finally:
        alter(broker, OTHER, key, "-1" if key.startswith("retention") else None)
    (found,) = problems(document)
    assert (rule, OTHER) == (found["name"], found["topic"])
    assert found["remedy"].startswith("kafka-configs.sh --bootstrap-server 127.0.0.1:")


def test_a_topic_that_is_copied_no_more_is_refused(broker: Broker) -> None:
    """AT-28: brokers allow it only where both retentions are the same."""
    alter(broker, OTHER, "local.retention.bytes", "-2")
    alter(broker, OTHER, "remote.log.copy.disable", "true")
    try:
        document = checked(broker, "--topic", OTHER, expected=1)
    finally:
        alter(broker, OTHER, "remote.log.copy.disable", None)
        alter(broker, OTHER, "local.retention.bytes", "1")
    (found,) = problems(document)
    assert ("copy-disabled", OTHER) == (found["name"], found["topic"])
    assert found["remedy"].endswith("--add-config remote.log.copy.disable=false")


def test_a_topic_that_expires_may_be_attached_when_it_is_to_expire(
    broker: Broker, tmp_path: Path
) -> None:
    """AT-37."""
    config = tmp_path / "wanted.toml"
    config.write_text(f'[topic."{OTHER}"]\n"cleanup.policy" = "compact,delete"\n')
    alter(broker, OTHER, "retention.ms", "604800000")
    try:
        document = checked(broker, "--topic", OTHER, "--config-file", str(config))
    finally:
        alter(broker, OTHER, "retention.ms", "-1")
    assert "retention-ms" in {each["name"] for each in findings(document)}


def test_segments_that_another_compactor_announced_are_reported_and_refused(broker: Broker) -> None:
    fill(broker, OTHER, 0, 10)
    client = ClusterClient(broker.address)
    topic, metadata = facts_of(client, OTHER)
    name = RemoteLogSegmentId(name_of(topic, 0), bytes(range(16)))
    announced = RemoteLogSegment(
        id=name, start_offset=0, end_offset=5, broker_id=MARK, max_timestamp_ms=0,
        event_timestamp_ms=0, epochs=(EpochStart(0, 0),), size_bytes=61, custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip
    steps = [announced] + [
        RemoteLogSegmentUpdate(
            id=name, broker_id=MARK, event_timestamp_ms=0, custom_metadata=None, state=state
        )
        for state in (
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
        )
    ]
    copying = []
    for step in steps:
        send(broker, topic, metadata, encode(step))
        document = attach(broker, "status", "--topic", OTHER)
        (found,) = document["partitions"]
        copying.append(found["copying"]["count"])
        if step is announced:
            refused = checked(broker, "--topic", OTHER, expected=1)
            assert "foreign-marks" in {each["name"] for each in findings(refused)}
    assert [1, 0, 0] == copying
    # A broker of 4.x may have ended the deletion by itself, and drops ours.
    assert 0 == found["deleting"]["count"]
    checked(broker, "--topic", OTHER)


def test_a_record_that_ends_brokers_readers_is_reported_with_its_offset(broker: Broker) -> None:
    """AT-22. Last: it cannot be taken back."""
    client = ClusterClient(broker.address)
    topic, metadata = facts_of(client, OTHER)
    where = metadata_partition(topic.topic_id, 0, metadata.partition_count)
    held = client.read_ranges(metadata)[where]
    send(broker, topic, metadata, None)
    document = checked(broker, "--topic", OTHER, expected=1)
    (found,) = [each for each in problems(document) if each["name"] == "metadata-record"]
    assert f"partition {where} of {METADATA_TOPIC}, offset {held.end}: " in found["words"]
    assert "null value" in found["words"]
    refused = attach(broker, "status", "--topic", OTHER, expected=4)
    assert f"offset={held.end}" in refused["error"]["message"]
    assert encode_id(topic.topic_id) not in refused["error"]["message"]


def test_a_marker_of_a_transaction_is_reported_with_its_offset(broker: Broker) -> None:
    """AT-21. Behind the last: it cannot be taken back either."""
    client = ClusterClient(broker.address)
    topic, metadata = facts_of(client, OTHER)
    name = RemoteLogSegmentId(name_of(topic, 0), bytes(16))
    update = RemoteLogSegmentUpdate(
        id=name, broker_id=1, event_timestamp_ms=0, custom_metadata=None,
        state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    )  # fmt: skip
    where = (metadata_partition(topic.topic_id, 0, metadata.partition_count) + 1) % PARTITIONS
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": "somebody", "acks": "all"}
    )
    producer.init_transactions(WAIT_SECONDS)
    held = client.read_ranges(metadata)[where]
    producer.begin_transaction()
    producer.produce(METADATA_TOPIC, value=encode(update), partition=where)
    producer.commit_transaction(WAIT_SECONDS)
    # Who commits is answered before the marker is written.
    wait_until(
        lambda: client.read_ranges(metadata)[where].end == held.end + 2, words=lambda: "no marker"
    )
    (fault,) = fold_metadata(client, metadata, [where]).faults
    assert (where, held.end + 1) == (fault.partition, fault.offset)
    assert "a transaction's marker" in fault.problem


def send(broker: Broker, topic: TopicFacts, metadata: TopicFacts, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "acks": "all"})
    where = metadata_partition(topic.topic_id, 0, metadata.partition_count)
    producer.produce(METADATA_TOPIC, value=value, partition=where)
    assert 0 == producer.flush(WAIT_SECONDS)
