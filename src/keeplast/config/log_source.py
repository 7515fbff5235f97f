"""Spark's ``kafka-log`` with settings as every command reads them.

The topic's strategy decides which record of a key is the state, so ``state=latest`` needs what a
directory's ``keeplast.toml``, its metadata log and the environment say.
"""

from __future__ import annotations

from collections.abc import Callable

from keeplast.config.sources import read_settings
from keeplast.config.stored import stored_topic_config
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import LogSource, Session, register_source
from keeplast.pipeline.log_parts import Logs
from keeplast.tier.objects.log_directory import LogDirectoryRecipe


class KafkaLogSource(LogSource):
    """The data source as users have it."""

    def topic_configs(self, logs: Logs) -> Callable[[str], TopicConfig]:
        """Return what gives the effective settings of a topic."""
        if isinstance(logs.recipe, LogDirectoryRecipe):
            return stored_topic_config(logs.recipe)
        return read_settings(logs.directory.root, logs.files).topic_config


def register(spark: Session) -> None:
    """Make ``kafka-log`` a format of ``spark``, for ``spark.read`` and ``spark.readStream``.

    RefusedError when the session's Spark is older than 4.2.
    """
    register_source(spark, KafkaLogSource)
