"""Spark's ``kafka-log`` with settings as every command reads them.

The topic's strategy decides which record of a key is the state, so ``state=latest`` needs what a
directory's ``keeplast.toml``, its metadata log and the environment say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.config.sources import read_settings
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import LogSource, Session, register_source


class KafkaLogSource(LogSource):
    """The data source as users have it."""

    def topic_configs(self, root: Path, files: FileSystem) -> Callable[[str], TopicConfig]:
        """Return what gives the effective settings of a topic."""
        return read_settings(root, files).topic_config


def register(spark: Session) -> None:
    """Make ``kafka-log`` a format of ``spark``, for ``spark.read`` and ``spark.readStream``.

    RefusedError when the session's Spark is older than 4.2.
    """
    register_source(spark, KafkaLogSource)
