"""Which directories ``verify`` holds against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.config.choice import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition


@dataclass(frozen=True, slots=True)
class Pair:
    """One partition; ``before`` None where only the cleaned one is there."""

    partition: TopicPartition
    before: Path | None
    after: Path


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a call, and the data directory whose settings count."""

    root: Path
    found: tuple[Pair, ...]


def find_pairs(
    places: Sequence[Path],
    files: FileSystem,
    choice: PartitionChoice,
    *,
    are_replicas: bool,
) -> Pairs:
    """Return the partitions of the last place with their counterparts in the first.

    InvalidError when a partition is only in one of them: a verdict on the rest would be taken for
    a verdict on all.
    """
    directories = [open_data_directory(place, files) for place in places]
    found = [_paths(each, choice) for each in directories]
    is_single = all(each.is_single for each in directories)
    if is_single and [len(each) for each in found] == [1, 1]:
        # Two directories that were named one by one may have any names.
        (before,), (after,) = found[0].values(), found[1].values()
        (partition,) = found[1]
        return Pairs(directories[1].root, (Pair(partition, before, after),))
    alone = found[0].keys() ^ found[-1].keys()
    if alone:
        what = "replica" if are_replicas else "log"
        raise InvalidError(
            f"a partition is in one directory only, there is no {what} to compare with; choose "
            f"with --topic. partition={min(alone)}"
        )
    if not found[-1]:
        raise InvalidError(f"no partition to verify. path={places[-1]}")
    return Pairs(
        directories[-1].root,
        tuple(
            Pair(partition, found[0][partition] if len(found) == 2 else None, path)
            for partition, path in found[-1].items()
        ),
    )


def _paths(directory: DataDirectory, choice: PartitionChoice) -> dict[TopicPartition, Path]:
    return {
        entry.partition: entry.path
        for entry in directory.partitions
        if entry.mark is None
        and entry.partition.topic != METADATA_TOPIC
        and choice.includes(entry.partition)
    }
