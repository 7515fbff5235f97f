"""``keeplast attach check``: whether tiered topics may be compacted where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import (
    ClusterOptions,
    PolicyOptions,
    StorageOptions,
    decision_log_there,
    fold,
    layout_at,
)
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json

if TYPE_CHECKING:
    from keeplast.cluster.check import AttachFinding
    from keeplast.cluster.client import ClusterClient
    from keeplast.cluster.facts import ClusterFacts, TopicFacts
    from keeplast.cluster.rights import Right
    from keeplast.config.settings import Settings
    from keeplast.format.remote_log_metadata import RemoteLogSegment
    from keeplast.model.topic_config import TopicConfig
    from keeplast.tier.metadata.decisions import DecisionLog


@command(
    first=("bootstrap_server", "topics", "command_config"),
    example="keeplast attach check --bootstrap-server localhost:9092",
)
def check(
    cluster: ClusterOptions,
    settings: PolicyOptions,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL",
            help="The decision log: what it knows is no other compactor's. Default: none.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="PLUGIN:PLACE", show_default=False,
            help="Look there too, as for `attach clean`: the newest segment of each topic is "
            "opened, a probe of keeplast's own is written, read, listed and removed, and what the "
            "principal of the bucket lacks is named.",
        ),
    ] = None,
    storage_options: StorageOptions = (),
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Say of each tiered topic whether it may be compacted from outside, and what to change.

    Changes nothing; a principal that may describe and read is enough, and each permission that is
    missing is named. With `--storage` the bucket's principal should be the one that rounds will
    have. What keeplast is to do with a topic comes from its own settings, since the
    broker's policy stays `delete`; a topic that they do not name is to be compacted. Exit code 1
    when something refuses.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.show.attach import check_parts
    from keeplast.cli.show.output import print_result
    from keeplast.cluster.check import (
        Severity,
        check_cluster,
        check_groups,
        check_rights,
        check_topic,
    )
    from keeplast.cluster.facts import ClusterFacts
    from keeplast.cluster.storage_check import check_storage
    from keeplast.errors import InvalidError, RefusedError

    if storage is None and storage_options:
        raise InvalidError("options of a storage that is not named; give --storage")
    # What an argument can be wrong about is found before anybody is asked.
    layout = None if storage is None else layout_at(storage, storage_options)
    client = cluster.connect()
    try:
        facts = client.read_facts(cluster.topics)
        found = list(check_cluster(facts, cluster.bootstrap_server))
        more, served = _metadata_findings(client, facts, store)
        found += more
    except RefusedError:
        missing = client.missing_rights(cluster.topics)
        if not missing:
            raise
        facts = ClusterFacts(client.read_cluster_id(), (), (), None)
        found, served = list(check_rights(missing, cluster.bootstrap_server)), []
    if layout is not None:
        found += check_storage(layout, storage or "", served)
    wanted = _wanted(settings, facts.topics)
    for topic in facts.topics:
        config = wanted.topic_config(topic.name)
        found += check_topic(topic, config.cleanup_policy, cluster.bootstrap_server)
        found += check_groups(_unknown(client, config), topic.name, cluster.bootstrap_server)
    if not as_json:
        print_result(*check_parts(facts, found))
    refuses = any(each.severity is Severity.REFUSES for each in found)
    return CHECK_FAILED if refuses else DONE, {
        "cluster_id": facts.cluster_id,
        "brokers": [each.broker_id for each in facts.brokers],
        "topics": [each.name for each in facts.topics],
        "findings": found,
    }


def _metadata_findings(
    client: ClusterClient, facts: ClusterFacts, store: str | None
) -> tuple[list[AttachFinding], list[RemoteLogSegment]]:
    """Return what the metadata topic's records say against the topics of ``facts``.

    And one segment of each topic that brokers serve.
    """
    from keeplast.cluster.check import check_copied, check_faults, check_marks
    from keeplast.cluster.metadata_cache import PartitionCache
    from keeplast.cluster.status import name_of
    from keeplast.cluster.storage_check import newest_served

    if facts.metadata_topic is None:
        return [], []
    with decision_log_there(store, only_looks=True) as log:
        folded = fold(client, facts, facts.metadata_topic, log)
        own = set() if log is None else _own_ids(log, facts.cluster_id)
    names = {each.name for each in facts.topics}
    found = [*check_faults(folded.faults), *check_marks(folded.cache, names, own)]
    for topic in facts.topics:
        known = [
            folded.cache.partitions.get(name_of(topic, each), PartitionCache())
            for each in range(topic.partition_count)
        ]
        if any(each.segments or each.highest >= 0 for each in known):
            found += check_copied(topic, client.read_ranges(topic), known)
    return found, newest_served(folded.cache, names)


def _own_ids(log: DecisionLog, cluster_id: str) -> set[bytes]:
    """Return the segment ids that a decision log knows of a cluster."""
    from keeplast.attach.held.publication import known_ids

    return {name for each in log.partitions(cluster_id) for name in known_ids(log, each)}


def _unknown(client: ClusterClient, config: TopicConfig) -> list[Right]:
    """Return what the principal lacks to be told of the groups that tombstones wait for."""
    from functools import partial

    from keeplast.cluster.rights import Right, is_refused

    groups = config.tombstones_wait_for_groups if config.is_compacted else ()
    return [
        Right("Describe", group=each)
        for each in dict.fromkeys(groups)
        if is_refused(partial(client.read_group_offsets, each))
    ]


def _wanted(options: PolicyOptions, topics: Sequence[TopicFacts]) -> Settings:
    """Return what keeplast is asked to do with each topic."""
    from keeplast.config.attached import wanted_settings
    from keeplast.config.sources import read_layers
    from keeplast.log.files import LocalFiles

    return wanted_settings(read_layers(LocalFiles(), options), topics)
