"""What lies in a Kafka data directory: partitions, and names that are none.

A path is a ``log.dirs`` directory, or one partition directory (its name parses and it holds a
``.log``). The latter is treated as a data directory with that single partition. The path that a
user names may be a link; links below it are listed as ignored and never entered. Source: formats.md
sections 2.1 and 2.2. The topic of a partition directory is known by its id: a name may be used
again, an id is not (``PartitionMetadataFile``, formats.md section 2.7).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format import partition_metadata
from keeplast.format.filename import (
    LOG,
    PARTITION_METADATA,
    parse_partition_directory,
    parse_segment_file,
)
from keeplast.log.files import FileSystem
from keeplast.log.paths import child_path, is_object_path, url_of
from keeplast.model.partition import TopicPartition

METADATA_TOPIC = "__cluster_metadata"


class PartitionEntry(Struct, frozen=True):
    """A partition directory; ``mark`` is None, or what a suffix says: delete, future, stray."""

    partition: TopicPartition
    path: Path
    mark: str | None


class DataDirectory(Struct, frozen=True):
    """A data directory and the partitions in it, ascending; ``ignored`` are the other names."""

    root: Path
    partitions: tuple[PartitionEntry, ...]
    ignored: tuple[str, ...]
    is_single: bool

    def find(self, partition: TopicPartition) -> PartitionEntry | None:
        """Return the entry of ``partition`` without a mark, or None."""
        for entry in self.partitions:
            if entry.partition == partition and entry.mark is None:
                return entry
        return None

    def topics(self) -> frozenset[str]:
        """Return the topics of partitions without a mark, the metadata log not among them."""
        return frozenset(
            each.partition.topic
            for each in self.partitions
            if each.mark is None and each.partition.topic != METADATA_TOPIC
        )


def open_data_directory(path: Path, files: FileSystem) -> DataDirectory:
    """List ``path``; InvalidError when it is not a directory of either kind.

    RefusedError where two directories are of one partition, such as ``t-0`` and ``t-00``: they have
    one line in a checkpoint, and no broker starts on them.
    """
    given, path = path, path.resolve()
    if given != path and not files.is_directory(path) and files.is_directory(given):
        path = given  # It is none of this host's, whatever lies there by that name.
    if not files.is_directory(path):
        if is_object_path(path):
            raise InvalidError(
                "nothing lies there, or this command is for directories on disks; correct bucket "
                f"and prefix, or use clean --to to bring it to a disk. url={url_of(path)}",
                code="K116",
            )
        problem = "not a directory" if files.exists(path) else "no such directory"
        raise InvalidError(
            f"{problem}; give a Kafka log.dirs directory or a partition in it. path={path}",
            code="K116",
        )
    names, directories = files.listdir(path), files.directories_in(path)
    own = parse_partition_directory(path.name)
    if own is not None and any(_is_log(name) for name in names):
        entry = PartitionEntry(own.partition, path, own.mark)
        return DataDirectory(path.parent, (entry,), (), True)
    partitions: list[PartitionEntry] = []
    ignored: list[str] = []
    for name in names:
        parsed = parse_partition_directory(name)
        is_directory = name in directories
        if parsed is not None and is_directory:
            partitions.append(PartitionEntry(parsed.partition, child_path(path, name), parsed.mark))
        elif parsed is not None or is_directory:
            ignored.append(name)
    partitions.sort(key=lambda entry: (entry.partition, entry.path.name))
    in_service = [entry for entry in partitions if entry.mark is None]
    for one, other in itertools.pairwise(in_service):
        if one.partition == other.partition:
            raise RefusedError(
                "two directories are of one partition, and no broker starts on them; move one "
                f"away. path={one.path} other={other.path.name!r}",
                code="K208",
            )
    return DataDirectory(path, tuple(partitions), tuple(ignored), False)


def open_data_directories(paths: Sequence[Path], files: FileSystem) -> DataDirectory:
    """List several directories of one cluster as one; errors as :func:`open_data_directory`.

    A partition that several have is listed as often. ``root`` is the first that has the metadata
    log, else the first: what is said once for all topics is read there. InvalidError for a
    directory that is given twice.
    """
    found = [open_data_directory(path, files) for path in paths]
    if len(found) == 1:
        return found[0]
    entries = [entry for each in found for entry in each.partitions]
    given = sorted(each.path for each in entries)
    for one, other in itertools.pairwise(given):
        if one == other:
            raise InvalidError(
                f"a directory is given twice; leave one out. path={one}", code="K208"
            )
    with_metadata = [
        each
        for each in found
        if any(entry.partition.topic == METADATA_TOPIC for entry in each.partitions)
    ]
    return DataDirectory(
        (with_metadata or found)[0].root,
        # In the order they were given, within a partition.
        tuple(sorted(entries, key=lambda entry: entry.partition)),
        tuple(name for each in found for name in each.ignored),
        all(each.is_single for each in found),
    )


def _is_log(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.kind == LOG and parsed.stage == ""


METADATA_BYTES_MAX = 1 << 16


def read_topic_id(path: Path, files: FileSystem) -> bytes | None:
    """Return the topic id that a partition directory says; None when it says none that is one."""
    try:
        data = files.read_bytes(path / PARTITION_METADATA, METADATA_BYTES_MAX)
        return partition_metadata.decode(data).topic_id
    except (FileNotFoundError, CorruptError, InvalidError):
        return None
