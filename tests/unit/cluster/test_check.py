"""The rules by which a tiered topic of a live cluster may be compacted from outside, or not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.cluster.check import (
    AIVEN_STORAGE,
    LOCAL_STORAGE,
    METADATA_MANAGER,
    AttachFinding,
    Severity,
    check_cluster,
    check_faults,
    check_rights,
    check_topic,
)
from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    MetadataFault,
    Right,
    TopicFacts,
)
from keeplast.cluster.tested_releases import PROTOCOL, SETTINGS

ADDRESS = "broker:9092"
COMPACT, BOTH = frozenset({"compact"}), frozenset({"compact", "delete"})
TOPIC = TopicFacts(
    "orders",
    bytes(16),
    3,
    3,
    {
        "remote.storage.enable": "true",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
        "remote.log.copy.disable": "false",
        "local.retention.ms": "86400000",
        "local.retention.bytes": "-2",
    },
)
METADATA = TopicFacts(
    METADATA_TOPIC,
    bytes(16),
    50,
    3,
    {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "2",
    },
)
BROKER_OF_THE_TIER: dict[str, str | None] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.manager.class.name": METADATA_MANAGER,
    "remote.log.storage.manager.class.name": AIVEN_STORAGE,
}
BROKER = {**dict.fromkeys(SETTINGS["4.3.0"]), **BROKER_OF_THE_TIER}
CLUSTER = ClusterFacts(
    "cluster", tuple(BrokerFacts(each, BROKER) for each in (1, 2, 3)), (TOPIC,), METADATA
)


def changed(topic: TopicFacts, key: str, value: str | None) -> TopicFacts:
    return replace(topic, settings={**topic.settings, key: value})


def of_brokers(
    *settings: dict[str, str | None], unset: frozenset[str] = frozenset()
) -> ClusterFacts:
    """Return the cluster with brokers that have ``settings``."""
    brokers = tuple(BrokerFacts(at, each, unset) for at, each in enumerate(settings, start=1))
    return replace(CLUSTER, brokers=brokers)


def refusals(found: list[AttachFinding]) -> list[str]:
    return [each.rule for each in found if each.severity is Severity.REFUSES]


def test_a_topic_as_it_should_be_has_no_finding() -> None:
    assert [] == list(check_topic(TOPIC, COMPACT, ADDRESS))
    assert [] == refusals(list(check_cluster(CLUSTER, ADDRESS)))


def test_unfinished_uploads_are_warned_of_once_where_brokers_use_object_storage() -> None:
    _, found = check_cluster(CLUSTER, ADDRESS)
    assert ("unended-uploads", Severity.WARNS, None) == (found.rule, found.severity, found.topic)
    local = {**BROKER, "remote.log.storage.manager.class.name": LOCAL_STORAGE}
    (found,) = check_cluster(of_brokers(local), ADDRESS)
    assert "patch-release" == found.rule


def test_one_note_says_that_no_broker_names_its_patch_release() -> None:
    found, _ = check_cluster(CLUSTER, ADDRESS)
    assert ("patch-release", Severity.WARNS, None) == (found.rule, found.severity, found.topic)
    assert "tested are 3.9.1 and 4.3.0" in found.words


@pytest.mark.parametrize(
    ("key", "value", "rule", "remedy"),
    [
        ("remote.storage.enable", "false", "not-tiered", "remote.storage.enable=true"),
        ("retention.ms", "604800000", "retention-ms", "retention.ms=-1"),
        ("retention.bytes", "1", "retention-bytes", "retention.bytes=-1"),
        ("segment.ms", str(2**63 - 1), "segment-ms", "segment.ms=604800000"),
        (
            "unclean.leader.election.enable",
            "true",
            "unclean-election",
            "unclean.leader.election.enable=false",
        ),
        ("remote.log.copy.disable", "true", "copy-disabled", "remote.log.copy.disable=false"),
    ],
)
def test_each_setting_that_loses_data_is_refused_with_the_line_to_type(
    key: str, value: str, rule: str, remedy: str
) -> None:
    """AT-28, R3."""
    (found,) = check_topic(changed(TOPIC, key, value), COMPACT, ADDRESS)
    assert (rule, Severity.REFUSES, "orders") == (found.rule, found.severity, found.topic)
    assert found.remedy == (
        "kafka-configs.sh --bootstrap-server broker:9092 --alter --entity-type topics "
        f"--entity-name orders --add-config {remedy}"
    )


def test_retention_is_lifted_before_the_policy_leaves_compact() -> None:
    (found,) = check_topic(changed(TOPIC, "cleanup.policy", "compact"), COMPACT, ADDRESS)
    assert "cleanup-policy" == found.rule
    lift, leave = found.remedy.split(" && ")
    assert lift.endswith("retention.ms=-1,retention.bytes=-1")
    assert leave.endswith("cleanup.policy=delete")


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_local_topic_leaves_its_policy_before_it_is_tiered_and_its_retention_before_that(
    policy: str,
) -> None:
    local = changed(changed(TOPIC, "cleanup.policy", policy), "remote.storage.enable", "false")
    (found,) = check_topic(local, COMPACT, ADDRESS)
    assert ("not-tiered", Severity.REFUSES) == (found.rule, found.severity)
    assert [
        "retention.ms=-1,retention.bytes=-1", "cleanup.policy=delete", "remote.storage.enable=true",
    ] == [each.rpartition(" ")[2] for each in found.remedy.split(" && ")]  # fmt: skip


def test_a_topic_that_is_to_expire_may_have_a_retention() -> None:
    """AT-37."""
    (found,) = check_topic(changed(TOPIC, "retention.ms", "1000"), BOTH, ADDRESS)
    assert ("retention-ms", Severity.WARNS) == (found.rule, found.severity)


def test_local_copies_without_an_end_are_warned_of() -> None:
    topic = changed(TOPIC, "local.retention.ms", "-2")
    (found,) = check_topic(topic, COMPACT, ADDRESS)
    assert ("local-retention", Severity.WARNS) == (found.rule, found.severity)


def test_a_name_that_a_shell_would_read_is_quoted() -> None:
    topic = replace(changed(TOPIC, "retention.bytes", "1"), name="a;b c")
    (found,) = check_topic(topic, COMPACT, "x y:9092")
    assert "--entity-name 'a;b c'" in found.remedy
    assert "--bootstrap-server 'x y:9092'" in found.remedy


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("cleanup.policy", "compact", "metadata-policy"),
        ("cleanup.policy", "compact,delete", "metadata-policy"),
        ("retention.ms", "604800000", "metadata-retention"),
        ("retention.bytes", "5", "metadata-retention"),
        ("unclean.leader.election.enable", "true", "metadata-unclean"),
        ("min.insync.replicas", "1", "metadata-min-isr"),
        ("max.message.bytes", "399999", "metadata-batch"),
    ],
)
def test_each_setting_of_the_metadata_topic_that_loses_segments_is_refused(
    key: str, value: str, rule: str
) -> None:
    cluster = replace(CLUSTER, metadata_topic=changed(METADATA, key, value))
    assert [rule] == refusals(list(check_cluster(cluster, ADDRESS)))


def test_one_replica_is_enough_on_one_broker_and_not_on_three() -> None:
    alone = replace(changed(METADATA, "min.insync.replicas", "1"), replicas=1)
    single = replace(CLUSTER, brokers=CLUSTER.brokers[:1], metadata_topic=alone)
    assert [] == refusals(list(check_cluster(single, ADDRESS)))
    several = replace(CLUSTER, metadata_topic=replace(METADATA, replicas=1))
    assert ["metadata-replicas"] == refusals(list(check_cluster(several, ADDRESS)))


def test_without_a_metadata_topic_there_is_no_remote_tier() -> None:
    cluster = replace(CLUSTER, metadata_topic=None)
    assert ["metadata-topic"] == refusals(list(check_cluster(cluster, ADDRESS)))


@pytest.mark.parametrize(
    ("key", "value", "rules"),
    [
        ("remote.log.storage.system.enable", "false", ["tier-off"]),
        ("remote.log.metadata.manager.class.name", "org.example.Mine", ["metadata-manager"]),
        ("remote.log.storage.manager.class.name", "org.example.Mine", ["storage-manager"]),
        ("remote.log.storage.manager.class.name", LOCAL_STORAGE, []),
        # A line that an upgrade left behind; a broker of 4.3 has no such setting.
        ("inter.broker.protocol.version", "3.6-IV2", []),
    ],
)
def test_each_broker_has_what_was_tested(key: str, value: str, rules: list[str]) -> None:
    odd = BrokerFacts(2, {**BROKER, key: value})
    brokers = (CLUSTER.brokers[0], odd, CLUSTER.brokers[2])
    found = list(check_cluster(replace(CLUSTER, brokers=brokers), ADDRESS))
    assert rules == refusals(found)
    assert all("broker 2" in each.words for each in found if each.rule in rules)


OLD: dict[str, str | None] = {
    **BROKER_OF_THE_TIER, **dict.fromkeys(SETTINGS["3.9.1"] - BROKER_OF_THE_TIER.keys()),
}  # fmt: skip


def test_a_broker_before_4_0_is_one_of_3_9_by_what_it_speaks_and_has() -> None:
    assert [] == refusals(list(check_cluster(of_brokers({**OLD, PROTOCOL: "3.9-IV0"}), ADDRESS)))
    (protocol,) = refused_of(of_brokers({**OLD, PROTOCOL: "3.8-IV0"}))
    assert "broker 1 speaks 3.8-IV0; tested are 3.9.1 and 4.3.0." in protocol.words
    # A broker of 4.1, say, in whose file the line was left.
    lacking = {name: value for name, value in OLD.items() if not name.startswith("zookeeper.")}
    (left,) = refused_of(of_brokers({**lacking, PROTOCOL: "3.9-IV0"}))
    assert (
        "lacks settings that 3.9.1 has (zookeeper.clientCnxnSocket, zookeeper.connect, "
        in left.words
    )


def test_a_broker_of_another_4_x_is_known_by_its_settings_and_refused() -> None:
    # 4.3.0 was the first release with these, 4.2.0 has all the others.
    new = ("follower.fetch.last.tiered.offset.enable", "cordoned.log.dirs")
    earlier = {name: value for name, value in BROKER.items() if name not in new}
    (older,) = refused_of(of_brokers(BROKER, earlier))
    assert "broker-version" == older.rule
    assert (
        "broker 2 lacks settings that 4.3.0 has (cordoned.log.dirs, "
        "follower.fetch.last.tiered.offset.enable): it is an older release"
    ) in older.words
    later = {**BROKER, "remote.log.compaction.enable": "false"}
    (newer,) = refused_of(of_brokers(later, unset=frozenset({"remote.log.compaction.enable"})))
    assert "has settings that 4.3.0 has not (remote.log.compaction.enable)" in newer.words
    # One that somebody has set is a plugin's, or of no plugin: it says nothing of the release.
    assert [] == refused_of(of_brokers(later))


def test_brokers_of_no_tested_release_are_not_named_as_of_one() -> None:
    assert "patch-release" not in [
        each.rule for each in check_cluster(of_brokers(BROKER_OF_THE_TIER), ADDRESS)
    ]


def refused_of(cluster: ClusterFacts) -> list[AttachFinding]:
    return [each for each in check_cluster(cluster, ADDRESS) if each.severity is Severity.REFUSES]


def test_a_release_that_was_not_tested_is_a_risk_that_a_user_may_take() -> None:
    odd = BrokerFacts(2, {**OLD, PROTOCOL: "3.6-IV2"})
    cluster = replace(CLUSTER, brokers=(CLUSTER.brokers[0], odd), accepts_untested=True)
    found = [each for each in check_cluster(cluster, ADDRESS) if each.rule == "broker-version"]
    assert [Severity.WARNS] == [each.severity for each in found]
    (refused,) = [
        each
        for each in check_cluster(replace(cluster, accepts_untested=False), ADDRESS)
        if each.severity is Severity.REFUSES
    ]
    assert "--accept-untested" in refused.remedy


def test_each_right_that_is_missing_has_its_line() -> None:
    rights = [Right("DescribeConfigs"), Right("Read", METADATA_TOPIC), Right("Describe", "a;b")]
    found = list(check_rights(rights, ADDRESS))
    assert [None, None, "a;b"] == [each.topic for each in found]
    assert ["permission"] * 3 == refusals(found)
    assert "the principal needs DescribeConfigs on the cluster" == found[0].words
    assert [
        "DescribeConfigs --cluster", f"Read --topic {METADATA_TOPIC}", "Describe --topic 'a;b'",
    ] == [each.remedy.partition("--operation ")[2] for each in found]  # fmt: skip


def test_a_record_that_brokers_cannot_follow_is_reported_with_its_offset() -> None:
    (found,) = check_faults([MetadataFault(7, 4711, "null value")])
    assert "partition 7 of __remote_log_metadata, offset 4711: null value" in found.words
    assert found.topic is None
