"""Spark's ``kafka-log`` with settings as every command reads them, and with live clusters.

The topic's strategy decides which record of a key is the state, so ``state=latest`` needs what a
directory's ``keeplast.toml``, its metadata log and the environment say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from keeplast.config.known_partitions import known_partitions
from keeplast.config.sources import read_settings
from keeplast.config.stored import stored_topic_config
from keeplast.errors import CompactionError, InvalidError, installing
from keeplast.log.files import FilesRecipe
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import FoundLogs, LogSource, Session, register_source
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import SourceOptions
from keeplast.tier.objects.log_directory import LogDirectoryRecipe


class KafkaLogSource(LogSource):
    """The data source as users have it."""

    def find(self, options: SourceOptions) -> FoundLogs:
        """Return what ``options`` name, with the effective settings of its topics."""
        if options.cluster is None:
            return FoundLogs(options, _topic_configs, known=known_partitions)
        try:
            from keeplast.config.attached_source import find_attached_logs
        except ModuleNotFoundError as error:
            raise InvalidError(
                f"a live cluster needs more packages; {installing('cluster')}. missing={error.name}"
            ) from error
        return find_attached_logs(options, options.cluster)

    @contextlib.contextmanager
    def naming(self, recipe: FilesRecipe) -> Iterator[None]:
        """Let errors of who reads by ``recipe`` name what is really there."""
        try:
            yield
        except CompactionError as error:
            if not isinstance(recipe, LogDirectoryRecipe):
                raise
            try:
                from keeplast.attach.answers.shown_logs import naming_segments
            except ModuleNotFoundError:
                # A task has less installed than who looks at a cluster.
                raise error from None
            with naming_segments(recipe):
                raise


def _topic_configs(logs: Logs) -> Callable[[str], TopicConfig]:
    if isinstance(logs.recipe, LogDirectoryRecipe):
        return stored_topic_config(logs.recipe)
    return read_settings(logs.directory.root, logs.files).topic_config


def register(spark: Session) -> None:
    """Make ``kafka-log`` a format of ``spark``, for ``spark.read`` and ``spark.readStream``.

    RefusedError when the session's Spark is older than 4.2.
    """
    register_source(spark, KafkaLogSource)
