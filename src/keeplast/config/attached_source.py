"""What ``kafka-log`` reads of a live cluster: its tiered topics' logs, as brokers serve them.

The rule: **only who plans a query looks at the cluster**, with its client and the decision log.
What tasks are given says which objects they read, and holds neither.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.attach.answers.shown_logs import decision_log_at, find_shown_topics
from keeplast.clock import SystemClock
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.client_properties import read_client_properties
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.open import open_layout
from keeplast.config.choice import USUAL_SOURCES
from keeplast.config.settings import Settings
from keeplast.config.sources import read_layers
from keeplast.log.files import LocalFiles
from keeplast.pipeline.cluster_options import ClusterPlace
from keeplast.pipeline.data_source import FoundLogs
from keeplast.pipeline.source_options import SourceOptions


def find_attached_logs(options: SourceOptions, place: ClusterPlace) -> FoundLogs:
    """Return what ``options`` choose of the cluster at ``place``, as it is now.

    How records rank the environment says, by default by offset: brokers know nothing of it.
    InvalidError for what is not there, RefusedError for topics that are not tiered and logs with
    holes, UnavailableError when no broker answers.
    """
    layout = open_layout(place.storage, place.storage_options)
    config = None if place.command_config is None else Path(place.command_config)
    settings = read_client_properties(config, "commandConfig")
    choice = options.choice
    topics = sorted({*choice.topics, *(each.topic for each in choice.assigned)})
    with decision_log_at(place.store, SystemClock()) as log:
        client = ClusterClient(place.bootstrap_servers, settings)
        facts = client.read_facts(topics)
        recipe = find_shown_topics(client, facts, log, layout, choice.covers, place.where())
    ranks = Settings(read_layers(LocalFiles(), USUAL_SOURCES)).topic_config
    return FoundLogs(options.of(recipe), lambda _: ranks, BrokerGroups(client))
