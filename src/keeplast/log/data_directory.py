"""What lies in a data directory, and the paths of its files: ``s3://b/data`` is ``/s3:/b/data``.

The path of a file whose directory is at hand, made without taking either apart.

A look at a partition names some thirty files, and ``directory / name`` parses every part anew:
of a look at thousands of small logs that was a fifth.

The rule: ``name`` is one that a directory can list. It has no separator and is not a dot.

What lies in a Kafka data directory: partitions, and names that are none.

A path is a ``log.dirs`` directory, or one partition directory (its name parses and it holds a
``.log``), which is then treated as a data directory with that single partition. The path that a
user names may be a link; links below it are listed as ignored and never entered. Source: formats.md
sections 2.1 and 2.2.

Which topic a partition directory is of: a name may be used again, an id is not.

Answers to ``PartitionMetadataFile``; formats.md section 2.7.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.format import partition_metadata
from keeplast.format.filename import (
    LOG,
    PARTITION_METADATA,
    parse_partition_directory,
    parse_segment_file,
)
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url

PARTS_MIN = 2
"""The root, and what has no part, are not followed by a separator of their own."""

if sys.version_info < (3, 12):

    def child_path(directory: Path, name: str) -> Path:
        """Return ``directory / name``, as pathlib makes it of what it has listed itself.

        Its text is given along: what is named is nearly always asked for it, and joining the parts
        again takes three times as long as all else here.
        """
        path: Path = directory._make_child_relpath(name)  # type: ignore[attr-defined]
        if len(directory.parts) >= PARTS_MIN:
            path._str = f"{directory}/{name}"  # type: ignore[attr-defined]
        return path

else:

    def child_path(directory: Path, name: str) -> Path:
        """Return ``directory / name``, which newer versions of Python parse when it is asked."""
        return directory / name


SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
"""What a URL may begin with, and what it is here."""

_URL = re.compile(r"\A([a-z][a-z0-9+.-]*):/{1,2}(.*)\Z", re.DOTALL)
_PATH = re.compile(r"\A/(s3|gs|az):/[^/]")
_SHOWN = re.compile(r"(?<![\w/:.-])/(s3|gs|az):/(?=[^/\s])")


def place_path(text: str) -> Path:
    """Return the path of what a user names by path or URL.

    InvalidError for an empty text, another kind of URL, one without a bucket, and one that leads
    out of it.
    """
    if not text.strip():
        # A path would make it the current directory, wherever somebody happens to be.
        raise InvalidError("an empty path; name a directory, . for the current one")
    found = _URL.match(text)
    if found is None or (found[1] not in SCHEMES and "://" not in text and found[1] != "file"):
        return Path(text)
    if found[1] == "file":
        return Path("/" + found[2].lstrip("/"))
    if found[1] not in SCHEMES:
        raise InvalidError(
            "no such store; give a path, or s3://, gs:// or az:// with a bucket. "
            f"url={shown_url(text)}"
        )
    parts = found[2].split("/")
    if "@" in parts[0] or ":" in parts[0]:
        raise InvalidError(
            "the URL of an object store begins with its bucket; give credentials by the "
            "environment (AWS_ACCESS_KEY_ID and so on) or as --object-option KEY=@FILE. "
            f"url={shown_url(text)}"
        )
    if not parts[0] or ".." in parts:
        raise InvalidError(
            f"a URL needs a bucket and names no parent directory: s3://BUCKET/PREFIX. url={text}"
        )
    return Path("/", f"{SCHEMES[found[1]]}:", *parts)


def is_object_path(path: Path) -> bool:
    """Say whether ``path`` is a place in an object store."""
    return _PATH.match(str(path)) is not None


def mount_of(path: Path) -> Path:
    """Return the part of an object path that names the store: its scheme and bucket."""
    return Path(*path.parts[:3])


def url_of(path: Path) -> str:
    """Return the URL of an object path."""
    return shown(str(path))


def shown(text: str) -> str:
    """Return ``text`` with object paths in it as the URLs they stand for."""
    return _SHOWN.sub(r"\1://", text)


METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """A partition directory; ``mark`` is None, or what a suffix says: delete, future, stray."""

    partition: TopicPartition
    path: Path
    mark: str | None


@dataclass(frozen=True, slots=True)
class DataDirectory:
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
                f"and prefix, or use clean --to to bring it to a disk. url={url_of(path)}"
            )
        problem = "not a directory" if files.exists(path) else "no such directory"
        raise InvalidError(
            f"{problem}; give a Kafka log.dirs directory or a partition in it. path={path}"
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
            partitions.append(PartitionEntry(parsed.partition, path / name, parsed.mark))
        elif parsed is not None or is_directory:
            ignored.append(name)
    partitions.sort(key=lambda entry: (entry.partition, entry.path.name))
    in_service = [entry for entry in partitions if entry.mark is None]
    for one, other in itertools.pairwise(in_service):
        if one.partition == other.partition:
            raise RefusedError(
                "two directories are of one partition, and no broker starts on them; move one "
                f"away. path={one.path} other={other.path.name!r}"
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
            raise InvalidError(f"a directory is given twice; leave one out. path={one}")
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
