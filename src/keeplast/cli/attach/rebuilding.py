"""What ``keeplast attach repair --rebuild`` does to each partition of the topics that are named."""

from __future__ import annotations

from keeplast.attach.held.kept_folds import KeptFolds
from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.upkeep.rebuild import is_compacted, rebuild
from keeplast.attach.upkeep.repair import repair
from keeplast.cli.attach.options import AttachedCall
from keeplast.cli.attach.steps import Row, told
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.status import name_of
from keeplast.errors import CompactionError, InvalidError, error_text
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import AttachedName


def rebuild_topics(
    call: AttachedCall, grace_ms: int, *, accepts_metadata: bool, as_json: bool
) -> Result:
    """Own each partition by this decision log, and repair it; the greatest exit code counts."""
    if not call.cluster.topics:
        raise InvalidError("name the topics that are taken over from another decision log: --topic")
    client = call.cluster.connect()
    layout = call.tier.open_layout()
    code, rows = DONE, []
    with call.tier.open_log() as log:
        facts = client.read_facts(call.cluster.topics)
        settings = call.wanted.settings_of(facts.topics)
        folds = KeptFolds(log.folds)
        for topic in facts.topics:
            policy = settings.topic_config(topic.name).cleanup_policy
            terms = AttachTerms(policy, call.cluster.bootstrap_server)
            for number in range(topic.partition_count):
                row: Row = {
                    "topic": topic.name, "topic_id": encode_id(topic.topic_id),
                    "partition": number,
                }  # fmt: skip
                try:
                    row |= _rebuild(
                        client, log, layout, AttachedName(facts.cluster_id, name_of(topic, number)),
                        terms, folds, grace_ms, call.take_over, accepts_metadata,
                    )  # fmt: skip
                except (CompactionError, OSError) as error:
                    code = max(code, error_exit_code(error))
                    row["error"] = error_text(error)
                rows.append(row)
    return told(code, rows, as_json)


def _rebuild(
    client: ClusterClient, log: DecisionLog, layout: RemoteLayout, name: AttachedName,
    terms: AttachTerms, folds: KeptFolds, grace_ms: int, takes_over: bool, accepts_metadata: bool,
) -> Row:  # fmt: skip
    """Rebuild and repair a partition; nothing happens to one that no compactor ever had."""
    partition: TopicIdPartition = name.partition
    if log.find(name) is None and not is_compacted(client, layout, name, terms, log.store_id()):
        return {}
    publisher, found = rebuild(
        client, log, layout, partition, name.cluster_id, terms, grace_ms=grace_ms,
        takes_over=takes_over, accepts_metadata=accepts_metadata, folds=folds,
    )  # fmt: skip
    try:
        repaired = repair(publisher, accepts_metadata=accepts_metadata)
    finally:
        publisher.close()
    return {
        "epoch": publisher.epoch, "rebuilt_decisions": found.decisions,
        "uncollected": found.uncollected,
        "published": repaired.published, "published_again": repaired.published_again,
        "discarded": repaired.discarded,
    }  # fmt: skip
