"""A partition in object storage as the files of a round: read by ranges, written as streams.

To the engine it is one partition directory that holds every live segment and an empty active one
after them. So a round is planned and rewritten by the same code as on a local disk. No segment is
ever held or stored whole. What a round stages becomes objects under the id of a new segment. They
belong to nothing until the metadata store names them. An attempt that lost leaves objects that are
collected.

A segment that is still on the local disk is read there (KIP-1272), if it is what was copied: size,
time and, when it is first opened, checksum. A local pass may have cleaned it meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import CorruptError, InvalidError, InvariantError, invariant
from keeplast.format.filename import LOG, SNAPSHOT, parse_segment_file, segment_file
from keeplast.log.files import (
    Buffer,
    FileStat,
    LocalFiles,
    ReadHandle,
    WriteHandle,
    write_at_once,
)
from keeplast.model.partition import TopicPartition
from keeplast.tier.objects.handles import (
    ObjectReadHandle,
    ObjectWriteHandle,
    PartitionObjects,
)
from keeplast.tier.objects.object_store import FILTER, ID_CHARS, ObjectStore, object_key
from keeplast.tier.objects.transfer import file_crc
from keeplast.tier.state.segment import RemoteSegment, SegmentKind

ROOT = Path("/remote")


class Located(Struct, frozen=True):
    """Where the bytes of one virtual file are: an object, or a local copy of it."""

    key: str
    size_bytes: int
    mtime_ns: int
    crc: int = 0
    local: Path | None = None


_FILTER_FILE = re.compile(r"([0-9]{20})\.filter(?:\.([0-9a-z]+)\.deleted)?\Z")


def round_path(partition: TopicPartition) -> Path:
    """Return the directory that a partition's objects look like to a round."""
    return ROOT / str(partition)


def filter_file(base_offset: int, attempt: str | None = None) -> str:
    """Return the name of a segment's filter, or of one that ``attempt`` stages with its segment."""
    return f"{base_offset:020d}.filter" + ("" if attempt is None else f".{attempt}.deleted")


def parse_filter_file(name: str) -> tuple[int, str | None] | None:
    """Return base offset and attempt of what :func:`filter_file` named, None for anything else."""
    found = _FILTER_FILE.match(name)
    return None if found is None else (int(found[1]), found[2])


def new_segment_id(attempt: str, base_offset: int) -> str:
    """Return the id of what ``attempt`` writes at ``base_offset``.

    An attempt's name is random and used once, so no other attempt ever gets the same id. The
    committing process knows the id from the staged file's name, wherever the attempt ran.
    """
    digest = hashlib.sha256(f"{attempt}/{base_offset}".encode()).hexdigest()
    return digest[:ID_CHARS]


class RoundRecipe(Struct, frozen=True):
    """How a worker opens :class:`RoundFiles`: where the objects are, and which of them are live."""

    objects: ObjectStore
    partition: TopicPartition
    topic_id: str
    segments: tuple[RemoteSegment, ...]
    local: Path | None = None

    def open(self) -> RoundFiles:
        """Return the files of the round."""
        return RoundFiles(
            self.objects, self.partition, self.topic_id, self.segments, local=self.local
        )

    def is_on_disk(self, path: Path) -> bool:
        """Return False: a local copy is read by the host that has it."""
        return False


class RoundFiles(PartitionObjects):
    """The :class:`~keeplast.log.files.FileSystem` of one partition's round."""

    def __init__(
        self,
        objects: ObjectStore,
        partition: TopicPartition,
        topic_id: str,
        segments: tuple[RemoteSegment, ...],
        *,
        local: Path | None = None,
    ) -> None:
        """Show ``segments``, ascending and without holes; ``local`` may hold copies of some."""
        self._objects = objects
        self._partition = partition
        self._topic_id = topic_id
        self._local = LocalFiles()
        self._compared: dict[str, bool] = {}
        self.path = round_path(partition)
        self._found: dict[str, Located] = {}
        self._ids = {segment.base_offset: segment.segment_id for segment in segments}
        for segment in segments:
            self._add(segment, local)
        self.end = segments[-1].next_offset if segments else 0
        self._active = segment_file(self.end, LOG)
        self._staged: dict[str, Located] = {}

    def _add(self, segment: RemoteSegment, local: Path | None) -> None:
        mtime_ns = segment.mtime_ms * 1_000_000
        copy = None
        if local is not None and segment.kind is SegmentKind.RAW:
            path = local / segment_file(segment.base_offset, LOG)
            if self._local.exists(path):
                status = self._local.stat(path)
                is_same = (status.size_bytes, status.mtime_ns // 1_000_000) == (
                    segment.size_bytes, segment.mtime_ms,
                )  # fmt: skip
                copy = path if is_same else None
        for suffix, file in segment.files.items():
            base = segment.next_offset if suffix == SNAPSHOT else segment.base_offset
            if parse_segment_file(f"{base:020d}{suffix}") is None:
                continue
            key = object_key(
                self._partition, self._topic_id, segment.segment_id, segment.base_offset, suffix
            )
            place = copy if suffix == LOG else None
            self._found[f"{base:020d}{suffix}"] = Located(
                key, file.size_bytes, mtime_ns, file.crc32c, place
            )

    def _locate(self, path: Path) -> Located:
        name = path.name
        found = self._found.get(name) or self._staged.get(name)
        if path.parent != self.path or found is None:
            found = self._staged_elsewhere(path)
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return found

    def _staged_elsewhere(self, path: Path) -> Located | None:
        """Return a staged file that another process has written, or a filter."""
        if path.parent != self.path:
            return None
        try:
            key = self._staged_key(path)
        except InvariantError:
            return None
        try:
            return Located(key, self._objects.stat(key).size_bytes, 0)
        except FileNotFoundError:
            return None

    def _staged_key(self, path: Path) -> str:
        """Return the key of what may be written: a staged file, or the filter of a segment."""
        filter_ = parse_filter_file(path.name)
        if filter_ is not None:
            base, attempt = filter_
            known = self._ids.get(base) if attempt is None else new_segment_id(attempt, base)
            if known is not None:
                return object_key(self._partition, self._topic_id, known, base, FILTER)
        parsed = parse_segment_file(path.name)
        if parsed is None or parsed.attempt is None:
            raise InvariantError(
                f"a round writes staged files and filters. path={path}", code="K901"
            )
        segment_id = new_segment_id(parsed.attempt, parsed.base_offset)
        return object_key(
            self._partition, self._topic_id, segment_id, parsed.base_offset, parsed.kind
        )

    def named(self, error: Exception) -> Exception:
        """Return an error about a file of the round as one about the object that it is."""
        if not isinstance(error, CorruptError) or error.path is None:
            return error
        found = self._found.get(Path(error.path).name)
        if found is None or Path(error.path).parent != self.path:
            return error
        return error.placed(path=found.key)

    # The port.

    def open_read(self, path: Path) -> ReadHandle:
        """Open a segment's file; an empty one for the active segment."""
        if path.parent == self.path and path.name == self._active:
            return ObjectReadHandle(self._objects, "", 0)
        found = self._locate(path)
        if found.local is not None:
            if self._is_same(path.name, found, found.local):
                return self._local.open_read(found.local)
            self._found[path.name] = replace(found, local=None)
        return ObjectReadHandle(self._objects, found.key, found.size_bytes)

    def _is_same(self, name: str, found: Located, copy: Path) -> bool:
        """Say whether a local copy has the bytes of the object; they are compared once."""
        if name not in self._compared:
            self._compared[name] = file_crc(self._local, copy) == found.crc
        return self._compared[name]

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Start a staged object under a new key; it counts once it is closed."""
        invariant(not append, f"objects are not appended to. path={path}")
        key = self._staged_key(path)

        def completed(size_bytes: int) -> None:
            self._staged[path.name] = Located(key, size_bytes, 0)

        return ObjectWriteHandle(self._objects, key, completed)

    def listdir(self, path: Path) -> list[str]:
        """Return the files of the partition, or nothing."""
        if path == self.path:
            return sorted([*self._found, *self._staged, self._active])
        return []

    def exists(self, path: Path) -> bool:
        """Say whether there is such a file."""
        if self.is_directory(path) or (path.parent == self.path and path.name == self._active):
            return True
        try:
            self._locate(path)
        except FileNotFoundError:
            return False
        return True

    def stat(self, path: Path) -> FileStat:
        """Return size and time, as the metadata store knows them."""
        if path.parent == self.path and path.name == self._active:
            return FileStat(0, 0)
        found = self._locate(path)
        return FileStat(found.size_bytes, found.mtime_ns)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole."""
        found = self._locate(path)
        if found.size_bytes > limit:
            raise InvalidError(
                f"file is larger than the limit. path={path} size_bytes={found.size_bytes} "
                f"limit={limit}",
                code="K158",
            )
        return bytes(self._objects.read_range(found.key, 0, found.size_bytes))

    def unlink(self, path: Path) -> None:
        """Remove a staged file; what is live is never removed through here."""
        self._objects.delete([self._staged_key(path)])
        self._staged.pop(path.name, None)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Write a staged file, or the filter of a segment, at once."""
        write_at_once(self.open_write(path), data)
