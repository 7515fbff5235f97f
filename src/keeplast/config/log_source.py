"""Spark's ``kafka-log`` with settings as every command reads them, and with live clusters.

The topic's strategy decides which record of a key is the state, so ``state=latest`` needs what a
directory's ``keeplast.toml``, its metadata log and the environment say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.config.known_partitions import known_partitions
from keeplast.config.layers import USUAL_SOURCES
from keeplast.config.mapping import stored_topic_config
from keeplast.config.precedence import Settings
from keeplast.config.sources import read_layers, read_settings
from keeplast.errors import CompactionError, InvalidError, installing
from keeplast.log.files import FilesRecipe, LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import FoundLogs, LogSource, Session, register_source
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.query_options import ClusterPlace
from keeplast.pipeline.source_options import SourceOptions
from keeplast.tier.objects.log_directory import LogDirectoryRecipe


class KafkaLogSource(LogSource):
    """The data source as users have it."""

    def find(self, options: SourceOptions) -> FoundLogs:
        """Return what ``options`` name, with the effective settings of its topics."""
        if options.cluster is None:
            return FoundLogs(options, _topic_configs, known=known_partitions)
        return find_attached_logs(options, options.cluster)

    @contextlib.contextmanager
    def naming(self, recipe: FilesRecipe) -> Iterator[None]:
        """Let errors of readers by ``recipe`` name what is really there."""
        try:
            yield
        except CompactionError as error:
            if not isinstance(recipe, LogDirectoryRecipe):
                raise
            try:
                from keeplast.attach.answers.shown_logs import naming_segments
            except ModuleNotFoundError:
                # A task has less installed than a driver that looks at a cluster.
                raise error from None
            with naming_segments(recipe):
                raise


def find_attached_logs(options: SourceOptions, place: ClusterPlace) -> FoundLogs:
    """Return what ``options`` choose of the cluster at ``place``, as brokers serve it now.

    Only the driver that plans a query looks at the cluster: what tasks are given says which objects
    they read. How records rank the environment says, by default by offset: brokers know nothing of
    it. InvalidError for what is not there, RefusedError for topics that are not tiered and logs
    with holes, UnavailableError when no broker answers.
    """
    try:
        from keeplast.attach.answers.shown_logs import decision_log_at, find_shown_topics
        from keeplast.cluster.client import ClusterClient
        from keeplast.cluster.client_properties import read_client_properties
        from keeplast.cluster.group_offsets import BrokerGroups
        from keeplast.cluster.layouts.open import open_layout
    except ModuleNotFoundError as error:
        raise InvalidError(
            f"a live cluster needs more packages; {installing('cluster')}. missing={error.name}",
            code="K134",
        ) from error
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


def _topic_configs(logs: Logs) -> Callable[[str], TopicConfig]:
    if isinstance(logs.recipe, LogDirectoryRecipe):
        return stored_topic_config(logs.recipe)
    return read_settings(logs.directory.root, logs.files).topic_config


def register(spark: Session) -> None:
    """Make ``kafka-log`` a format of ``spark``, for ``spark.read`` and ``spark.readStream``.

    RefusedError when the session's Spark is older than 4.2, or the Python of its workers
    (``PYSPARK_PYTHON``) has no keeplast of this version.
    """
    register_source(spark, KafkaLogSource)
