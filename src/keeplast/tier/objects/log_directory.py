"""Partitions of object storage as one data directory, for readers: logs, checkpoints, topic ids.

To a reader of a log, or of its state as of a point, the remote log is what a broker's directory is.
So one implementation of each rule does for both. What the directory shows is what was known when
the recipe was made: it never changes, and is read while rounds go on. The rule: **an object that is
listed and gone is an error, never a log that is shorter**. Rounds replace objects, and replaced
objects are collected after a grace.

Nothing can be written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.errors import ConflictError, InvalidError, InvariantError
from keeplast.format import checkpoint, leader_epoch, partition_metadata
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    segment_file,
)
from keeplast.format.identifier import NO_ID
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.log.files import Buffer, FilesRecipe, FileStat, FileSystem, ReadHandle, WriteHandle
from keeplast.model.partition import TopicPartition
from keeplast.tier.objects.handles import BytesReadHandle, WriteOnceFiles


class ShownLog(Struct, frozen=True, kw_only=True):
    """A partition as the directory has it: its segments by ``files``, below ``root/partition``.

    ``earliest_as_of`` is the first offset that its state can be shown as of, like every later one:
    what a cleaner's checkpoint says of a directory. ``settings`` are those that are kept with it.
    ``behind`` says what of the log is elsewhere, above what is shown; empty for nothing.
    """

    partition: TopicPartition
    files: FilesRecipe
    log_start: int
    earliest_as_of: int
    topic_id: bytes
    lineage: tuple[LeaderEpoch, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    behind: str = ""

    def small_files(self) -> dict[str, bytes]:
        """Return what lies next to the segments, by name."""
        found = {LEADER_EPOCH_CHECKPOINT: leader_epoch.encode(self.lineage)}
        if self.topic_id != NO_ID:
            metadata = partition_metadata.PartitionMetadata(self.topic_id)
            found[PARTITION_METADATA] = partition_metadata.encode(metadata)
        return found


class EmptyLogRecipe(Struct, frozen=True):
    """How a worker opens a log that has no records: the active segment at ``log_start``."""

    path: Path
    log_start: int

    def open(self) -> EmptyLogFiles:
        """Return its files."""
        return EmptyLogFiles(self.path / segment_file(self.log_start, LOG))

    def is_on_disk(self, path: Path) -> bool:
        """Return False: it is nowhere."""
        return False


class LogDirectoryRecipe(Struct, frozen=True):
    """How a worker opens :class:`LogDirectory`.

    ``others`` are partitions that are there, and were not asked for. ``source`` says in a word what
    the directory stands for.
    """

    root: Path
    logs: tuple[ShownLog, ...]
    others: tuple[TopicPartition, ...] = ()
    source: str = ""

    def open(self) -> LogDirectory:
        """Return the directory."""
        return LogDirectory(self)

    def is_on_disk(self, path: Path) -> bool:
        """Return False: workers go to the object store themselves."""
        return False

    def behind(self, partition: TopicPartition) -> str:
        """Return what of a log is elsewhere, in words; empty for nothing."""
        return next((each.behind for each in self.logs if each.partition == partition), "")

    def of_one(self, partition: TopicPartition) -> LogDirectoryRecipe:
        """Return a recipe with one of the logs alone: what a task of it needs."""
        kept = tuple(each for each in self.logs if each.partition == partition)
        return replace(self, logs=kept, others=())


class ReadOnlyFiles(WriteOnceFiles):
    """The methods that would change what is only read; each is an InvariantError."""

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """InvariantError: this is for reading."""
        raise InvariantError(f"a store is only read here. path={path}", code="K901")

    def unlink(self, path: Path) -> None:
        """InvariantError: this is for reading."""
        self.open_write(path)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """InvariantError: this is for reading."""
        self.open_write(path)


class LogDirectory(ReadOnlyFiles):
    """The :class:`~keeplast.log.files.FileSystem` of the logs of a recipe. Threads may share it."""

    def __init__(self, recipe: LogDirectoryRecipe) -> None:
        self.recipe = recipe
        self._root = recipe.root
        self._logs = {str(each.partition): each for each in recipe.logs}
        self._opened: dict[str, FileSystem] = {}
        self._small = {
            self._root / name / small: data
            for name, each in self._logs.items()
            for small, data in each.small_files().items()
        }
        for name, offsets in (
            (LOG_START_CHECKPOINT, {each.partition: each.log_start for each in recipe.logs}),
            (CLEANER_CHECKPOINT, {each.partition: each.earliest_as_of for each in recipe.logs}),
        ):
            self._small[self._root / name] = checkpoint.encode_offsets(offsets)

    def _at(self, path: Path) -> FileSystem:
        """Return the files of the log that ``path`` is in."""
        name = path.parent.name if path.parent.parent == self._root else path.name
        found = self._opened.get(name)
        if found is None:
            if name not in self._logs:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            found = self._opened.setdefault(name, self._logs[name].files.open())
        return found

    def _explained(self, path: Path, error: FileNotFoundError) -> Exception:
        """Return what it means that a file is not there: one that is listed was."""
        if self._at(path).exists(path):
            return ConflictError(
                "an object of a segment is missing: it was replaced and removed while it was read. "
                f"Read again, with a longer grace; if it stays so, keeplast verify. "
                f"path={path} object={error.filename}",
                code="K340",
            )
        return error

    # The port.

    def open_read(self, path: Path) -> ReadHandle:
        """Open a file; ConflictError for one whose object is gone."""
        small = self._small.get(path)
        if small is not None:
            return BytesReadHandle(small)
        try:
            return _Handle(self._at(path).open_read(path), path, self)
        except FileNotFoundError as error:
            raise self._explained(path, error) from error

    def listdir(self, path: Path) -> list[str]:
        """Return the partitions and checkpoints, or the files of a partition."""
        small = [each.name for each in self._small if each.parent == path]
        if path == self._root:
            return sorted([*small, *self.directories_in(path)])
        return sorted([*small, *(self._at(path).listdir(path) if path.name in self._logs else [])])

    def is_directory(self, path: Path) -> bool:
        """Say whether it is the directory, or a partition in it."""
        return path == self._root or (
            path.parent == self._root and path.name in self.directories_in(self._root)
        )

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return the partitions."""
        if path != self._root:
            return frozenset()
        return frozenset([*self._logs, *map(str, self.recipe.others)])

    def exists(self, path: Path) -> bool:
        """Say whether there is such a file or directory."""
        if path in self._small or self.is_directory(path):
            return True
        is_within = path.parent.parent == self._root and path.parent.name in self._logs
        return is_within and self._at(path).exists(path)

    def stat(self, path: Path) -> FileStat:
        """Return size and time, as the metadata knows them."""
        small = self._small.get(path)
        return FileStat(len(small), 0) if small is not None else self._at(path).stat(path)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole; ConflictError for one whose object is gone."""
        small = self._small.get(path)
        if small is not None:
            if len(small) > limit:
                raise InvalidError(
                    f"file is larger than the limit. path={path} size_bytes={len(small)} "
                    f"limit={limit}",
                    code="K158",
                )
            return small
        try:
            return self._at(path).read_bytes(path, limit)
        except FileNotFoundError as error:
            raise self._explained(path, error) from error


class EmptyLogFiles(ReadOnlyFiles):
    """The :class:`~keeplast.log.files.FileSystem` of one empty segment, ``log``."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def _require(self, path: Path) -> None:
        if path != self._log:
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def open_read(self, path: Path) -> ReadHandle:
        """Open the segment."""
        self._require(path)
        return BytesReadHandle(b"")

    def listdir(self, path: Path) -> list[str]:
        """Return the one file."""
        return [self._log.name] if path == self._log.parent else []

    def is_directory(self, path: Path) -> bool:
        """Say whether it is the partition."""
        return path == self._log.parent

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return none."""
        return frozenset()

    def exists(self, path: Path) -> bool:
        """Say whether it is the segment, or the partition."""
        return path in (self._log, self._log.parent)

    def stat(self, path: Path) -> FileStat:
        """Return the size of nothing."""
        self._require(path)
        return FileStat(0, 0)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return nothing."""
        self._require(path)
        return b""


class _Handle:
    """An open file whose object may be gone before all of it was read."""

    def __init__(self, handle: ReadHandle, path: Path, directory: LogDirectory) -> None:
        self._handle = handle
        self._path = path
        self._directory = directory
        self.size_bytes: Final = handle.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        try:
            return self._handle.pread_into(buffer, position)
        except FileNotFoundError as error:
            raise self._directory._explained(self._path, error) from error

    def close(self) -> None:
        self._handle.close()
