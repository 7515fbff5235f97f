"""Which partitions the topics of a data directory have, by its metadata log."""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.config.sources import read_partition_numbers
from keeplast.pipeline.log_parts import Logs
from keeplast.tier.objects.log_directory import LogDirectoryRecipe


def known_partitions(logs: Logs) -> Mapping[str, frozenset[int]]:
    """Return the numbers of each topic that is known; none where a directory is only shown."""
    if isinstance(logs.recipe, LogDirectoryRecipe):
        return {}
    return read_partition_numbers(logs.directory.root, logs.files)
