"""Segments as Kafka's LocalTieredStorage lays them out: files on a disk that all hosts share.

::

    <dir>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<start offset>-<segment id>.<kind>
    <dir>/.keeplast/<name>                                        keeplast's own small objects
    <dir>/.keeplast/.logs/<topic>-<partition>-<topic id>/<...>    logs that are being written

``dir`` is the plugin's setting of that name; ids have 22 characters, offsets 20 digits; kinds are
``log`` and those of :class:`AuxiliaryFile`. The plugin takes every name next to the partitions'
folders for a partition, so nothing of ours lies there. Log and indexes are as a broker has them.

The rule: **a log gets its name last**, when it and all files next to it are on stable storage.
Answers to ``LocalTieredStorage``, ``RemoteTopicPartitionDirectory``, ``RemoteLogSegmentFileset``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from keeplast.cluster.layouts.layout import (
    ALWAYS_THERE,
    AUXILIARY_BYTES_MAX,
    OWN,
    AuxiliaryFile,
    FoundOwn,
    FoundSegment,
    LogWriter,
    OwnDirectory,
    SegmentReader,
    WrittenLog,
    is_own_name,
    make_directory,
    sync_directory,
    unavailable,
)
from keeplast.errors import ConflictError, CorruptError, invariant
from keeplast.format.checksum import Buffer
from keeplast.format.identifier import decode_id, encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import ForeignPath, walk
from keeplast.log.files import LocalFiles, ReadHandle, write_at_once
from keeplast.model.partition import TopicPartition

SEGMENTS = "kafka-tiered-storage"
_LOGS = ".logs"
_LOG = "log"
_FILE = re.compile(rf"([0-9]{{20}})-([A-Za-z0-9_-]{{22}})\.(?:{_LOG}|{'|'.join(AuxiliaryFile)})\Z")
_FOLDER = re.compile(r".+-[0-9]+-[A-Za-z0-9_-]{22}\Z")


class LocalStorage(Struct, frozen=True):
    """The layout of a shared file system; ``dir`` is the plugin's own setting."""

    dir: Path

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment; CorruptError when its log has not the size that was announced."""
        reader = _FileSegmentReader(self._stem(segment.id, segment.start_offset))
        if reader.log_bytes != segment.size_bytes:
            raise CorruptError(
                "a remote log has not the size that was announced", path=str(reader.log),
                position=0, expected=segment.size_bytes, found=reader.log_bytes, code="K437",
            )  # fmt: skip
        return reader

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return the newest: there is one variant."""
        return sources[-1]

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start a log outside the plugin's sight; there is one variant, so ``like`` is not asked.

        ConflictError when this id has a log, or has had a writer.
        """
        stem = self._stem(segment_id, start_offset)
        waiting = self._waiting(segment_id, start_offset)
        with unavailable(waiting):
            if _with(stem, _LOG).exists():
                raise ConflictError(
                    f"there is a log of this id already. path={_with(stem, _LOG)}", code="K306"
                )
            make_directory(waiting.parent)
            return _FileLogWriter(waiting)

    def complete(
        self,
        segment: RemoteLogSegment,
        written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes],
        like: RemoteLogSegment,
    ) -> bytes | None:
        """Put everything at its place, the log last; there is no custom metadata."""
        missing = sorted(ALWAYS_THERE - set(auxiliary))
        invariant(not missing, f"files of a segment are missing. kinds={','.join(missing)}")
        invariant(
            segment.size_bytes == written.size_bytes,
            "another size is announced than was written. "
            f"announced={segment.size_bytes} written={written.size_bytes}",
        )
        stem = self._stem(segment.id, segment.start_offset)
        waiting = self._waiting(segment.id, segment.start_offset)
        log = _with(stem, _LOG)
        with unavailable(log):
            if log.exists():
                return None
            found = waiting.stat().st_size
            if found != written.size_bytes:
                raise CorruptError(
                    "a log is not as it was written", path=str(waiting), position=0,
                    expected=written.size_bytes, found=found, code="K437",
                )  # fmt: skip
            make_directory(stem.parent)
            for kind, data in auxiliary.items():
                new = waiting.with_suffix(f".{kind}")
                write_at_once(LocalFiles().open_write(new), data)
                os.rename(new, _with(stem, kind))
            sync_directory(log.parent)
            os.rename(waiting, log)
            sync_directory(log.parent)
            sync_directory(waiting.parent)
        return None

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove a segment's files, the log first."""
        self._delete(segment.id, segment.start_offset)

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove files that a listing found."""
        self._delete(RemoteLogSegmentId(partition, found.segment_id), found.start_offset)

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield segments by id, those too whose log is still being written."""
        found: dict[tuple[bytes, int], FoundSegment] = {}
        for folder in (self._folder(partition), self._waiting_folder(partition)):
            with unavailable(folder), contextlib.suppress(FileNotFoundError):
                for each in _files(folder):
                    name = each.segment_id, each.start_offset
                    before = found.get(name, FoundSegment(*name, 0, 0))
                    found[name] = FoundSegment(
                        *name, before.size_bytes + each.size_bytes,
                        max(before.modified_ms, each.modified_ms),
                    )  # fmt: skip
        yield from (found[name] for name in sorted(found))

    def foreign(self) -> Iterator[ForeignPath]:
        """Yield the files below ``dir`` that are no segment's and none of keeplast's own."""

        def is_known(parts: tuple[str, ...]) -> bool:
            if parts[0] == OWN and is_own_name("/".join(parts[1:])):
                return True
            folder, name = parts[:-1], parts[-1]
            is_place = folder[:-1] in ((SEGMENTS,), (OWN, _LOGS)) and _FOLDER.match(folder[-1])
            return bool(is_place) and _FILE.match(name) is not None

        with unavailable(self.dir):
            yield from walk(self.dir, LocalFiles(), is_known)

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Return False: a file that is removed is gone."""
        return False

    def check_conditions(self) -> None:
        """RefusedError when the file system has no hard links, or no locks."""
        self._own.check_conditions()

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object of keeplast's own; False when there is one."""
        return self._own.put_new(name, data)

    def read_own(self, name: str) -> bytes | None:
        """Return an own object, None when there is none."""
        return self._own.read(name)

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace an own object that still is ``expected``; False else."""
        return self._own.replace(name, data, expected)

    def delete_own(self, name: str) -> None:
        """Remove an own object."""
        self._own.delete(name)

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the own objects right below ``folder``."""
        return self._own.list(folder)

    @property
    def _own(self) -> OwnDirectory:
        return OwnDirectory(self.dir / OWN)

    def _delete(self, segment_id: RemoteLogSegmentId, start_offset: int) -> None:
        stem = self._stem(segment_id, start_offset)
        waiting = self._waiting(segment_id, start_offset)
        with unavailable(stem):
            for each in (stem, waiting.with_suffix("")):
                for kind in (_LOG, *AuxiliaryFile):
                    _with(each, kind).unlink(missing_ok=True)
            for folder in (stem.parent, waiting.parent):
                if folder.is_dir():
                    sync_directory(folder)

    def _folder(self, partition: TopicIdPartition) -> Path:
        return self.dir / SEGMENTS / _folder_name(partition)

    def _waiting_folder(self, partition: TopicIdPartition) -> Path:
        return self.dir / OWN / _LOGS / _folder_name(partition)

    def _stem(self, segment_id: RemoteLogSegmentId, start_offset: int) -> Path:
        return self._folder(segment_id.partition) / _stem_name(segment_id, start_offset)

    def _waiting(self, segment_id: RemoteLogSegmentId, start_offset: int) -> Path:
        folder = self._waiting_folder(segment_id.partition)
        return _with(folder / _stem_name(segment_id, start_offset), _LOG)


class _FileSegmentReader(SegmentReader):
    """A segment's files, each opened when it is read: nothing is held open."""

    def __init__(self, stem: Path) -> None:
        self.log = _with(stem, _LOG)
        self._stem = stem
        with _opened(self.log) as handle:
            self._log_bytes = handle.size_bytes

    @property
    def log_bytes(self) -> int:
        return self._log_bytes

    def read_into(self, start: int, buffer: memoryview) -> int:
        count = max(min(len(buffer), self._log_bytes - start), 0)
        if count:
            _fill(self.log, start, buffer[:count])
        return count

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        path = _with(self._stem, file)
        try:
            with _opened(path) as handle:
                size = handle.size_bytes
        except FileNotFoundError:
            if file in ALWAYS_THERE:
                raise
            return None
        if size > AUXILIARY_BYTES_MAX:
            raise CorruptError(
                "a file next to a remote log is too large", path=str(path), position=0,
                expected=f"<= {AUXILIARY_BYTES_MAX}", found=size, code="K437",
            )  # fmt: skip
        data = bytearray(size)
        _fill(path, 0, memoryview(data))
        return bytes(data)


class _FileLogWriter:
    """A log that grows where no plugin looks; it is left there, whole, by ``close``."""

    def __init__(self, path: Path) -> None:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            raise ConflictError(
                f"a log of this id was begun already. path={path}", code="K306"
            ) from None
        self._path = path
        self._handle = LocalFiles().open_write(path)
        self._size_bytes = 0
        self._is_open = True

    def write(self, data: Buffer) -> None:
        self._check_open()
        with unavailable(self._path):
            self._handle.write(data)
        self._size_bytes += memoryview(data).nbytes

    def close(self) -> WrittenLog:
        self._check_open()
        with unavailable(self._path):
            self._handle.fsync()
            self._handle.close()
            sync_directory(self._path.parent)
        self._is_open = False
        return WrittenLog(self._size_bytes, b"{}")

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._handle.close()
            with unavailable(self._path):
                self._path.unlink(missing_ok=True)

    def _check_open(self) -> None:
        invariant(self._is_open, f"the log is complete or given up. path={self._path}")


def _folder_name(partition: TopicIdPartition) -> str:
    name = TopicPartition(partition.topic, partition.partition).checked()
    return f"{name}-{encode_id(partition.topic_id)}"


def _stem_name(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    return f"{start_offset:020d}-{encode_id(segment_id.segment_id)}"


def _with(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}.{kind}")


def _files(folder: Path) -> Iterator[FoundSegment]:
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _FILE.match(entry.name)
            if match is None or encode_id(decode_id(match[2])) != match[2]:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            modified_ms = status.st_mtime_ns // 1_000_000
            yield FoundSegment(decode_id(match[2]), int(match[1]), status.st_size, modified_ms)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[ReadHandle]:
    with unavailable(path):
        handle = LocalFiles().open_read(path)
        try:
            yield handle
        finally:
            handle.close()


def _fill(path: Path, start: int, buffer: memoryview) -> None:
    with _opened(path) as handle:
        count = handle.pread_into(buffer, start)
    if count != len(buffer):
        raise CorruptError(
            "a file of the remote tier is shorter than it was", path=str(path), position=start,
            expected=len(buffer), found=count, code="K309",
        )  # fmt: skip
