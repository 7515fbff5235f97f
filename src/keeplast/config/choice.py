"""What a call chooses: which partitions it is about, and where settings are looked for.

Plain values, passed on as they are from whoever asks to whoever reads. Imports nothing heavy: the
command line declares its options as these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keeplast.config.layers import Layer
from keeplast.model.partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """Partitions by topic and by number; nothing given means all."""

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    def includes(self, partition: TopicPartition) -> bool:
        """Say whether a partition is one of those that were asked for."""
        return (not self.topics or partition.topic in self.topics) and (
            not self.partitions or partition.partition in self.partitions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """The sources of settings that a caller names.

    ``flags`` are ``KEY=VALUE`` texts; ``config_file`` None means ``keeplast.toml`` in the data
    directory when there is one; ``broker_config`` is a broker's ``server.properties``;
    ``environment`` None means the process's own. ``place`` is what the table of a named place says
    of its topics.
    """

    flags: tuple[str, ...] = ()
    config_file: Path | None = None
    broker_config: Path | None = None
    environment: Mapping[str, str] | None = None
    place: Layer | None = None


ALL_PARTITIONS = PartitionChoice()
USUAL_SOURCES = SettingSources()
