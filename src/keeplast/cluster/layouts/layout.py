"""The port of a storage plugin's layout: what lies where in the remote tier, and in which form.

The rule: **every segment is read by its own description, and nothing is written under an id that
was used before**. Brokers cache by segment id, some of them for good. What a plugin would not read
is refused by name before anything is written.

Small objects of keeplast's own lie in directories next to the segments. The second rule: **the file
system says which process was first**. A new file appears by a hard link, which fails where there is
one. One that is there is replaced and removed under a lock on that very file. A process that ends
gives its locks back. One that is frozen with a lock holds it, and others get an error that asks
them to come back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from keeplast.errors import (
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
    error_words,
    invariant,
)
from keeplast.format.checksum import Buffer
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.inspect.erasure_search import ForeignPath
from keeplast.log.files import flush


class AuxiliaryFile(StrEnum):
    """What a plugin stores next to a segment's log; content as in a broker's own directory."""

    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCHS = "leader_epoch_checkpoint"


ALWAYS_THERE = frozenset(AuxiliaryFile) - {AuxiliaryFile.TXN_INDEX}
"""Brokers upload these for every segment, and fail to read one that lacks any of them."""
AUXILIARY_BYTES_MAX = 1 << 28
OWN_BYTES_MAX = 1 << 28
PROBES = "probes"
PROBE = f"{PROBES}/probe"
"""The own object that tries what a store allows, and whether it heeds conditions.

It is removed each time. One that may not be removed is written over by the next try.
"""


class WrittenLog(Struct, frozen=True):
    """A log that was written, and is not yet described: what a task hands to who publishes.

    ``size_bytes`` is the log's own, ``description`` the layout's (JSON; keys only wrapped).
    """

    size_bytes: int
    description: bytes


class FoundSegment(Struct, frozen=True):
    """Objects of one segment id as a listing shows them: bytes stored, newest change."""

    segment_id: bytes
    start_offset: int
    size_bytes: int
    modified_ms: int


class FoundOwn(Struct, frozen=True):
    """An object of keeplast's own as a listing shows it; ``name`` is as it is read by."""

    name: str
    modified_ms: int


class SegmentReader(Protocol):
    """A segment that is there, as brokers would read it; safe for threads."""

    @property
    def log_bytes(self) -> int:
        """Return the size of the log, as it was before compression and encryption."""

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` with the log's bytes from ``start`` on; return how many, less at its end.

        CorruptError for damage; then ``buffer`` may hold anything.
        """

    def read_log(self, start: int, end: int) -> memoryview:
        """Return the log's bytes ``[start, end)`` in memory of their own, as :meth:`read_into`."""
        buffer = memoryview(bytearray(max(min(end, self.log_bytes) - start, 0)))
        return buffer[: self.read_into(start, buffer)]

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        """Return a file next to the log; None for a transaction index that the segment has not."""


class LogWriter(Protocol):
    """A segment's log while it is written as a stream; no reader sees it yet."""

    def write(self, data: Buffer) -> None:
        """Append to the log."""

    def close(self) -> WrittenLog:
        """Make the log's object appear, whole, and return what its description needs."""

    def abort(self) -> None:
        """Give up what was written; no object appears."""


class RemoteLayout(Protocol):
    """Where and how one plugin keeps segments. Values travel between processes: it is pickled.

    UnavailableError when the store fails, FileNotFoundError for an object that is not there.
    """

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment by its own description.

        CorruptError when description, sizes and announcement disagree; RefusedError for a variant
        that is not known, naming it.
        """

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return which of ``sources``, oldest first, outputs are written like.

        The newest of the strongest: an encrypted one where any is, with the largest chunks. It
        reads descriptions; ask once for a round, where it is decided.
        """

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start the log of a new segment in the variant of ``like``, never a weaker one.

        ``like`` is what :meth:`pattern` returned. ConflictError when there is one under this id.
        """

    def complete(
        self,
        segment: RemoteLogSegment,
        written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes],
        like: RemoteLogSegment,
    ) -> bytes | None:
        """Write the files next to the log, its description last.

        ``auxiliary`` has all of ALWAYS_THERE; ``like`` is the newest source. Returns the custom
        metadata of the finished segment, None where the plugin keeps none; its fields are those of
        ``like``. Done once more after a crash, it does no harm.
        """

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove all objects of a segment; those that are gone already are no error."""

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove what :meth:`list` found, whether it was ever announced or not."""

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield what lies in a partition's place, by segment id, known or not."""

    def foreign(self) -> Iterator[ForeignPath]:
        """Yield what lies in the tier's place under names that the plugin and keeplast never give.

        Other topics' segments have such names, and are left out.
        """

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Say whether the store shows for a segment's log that deleting it would only hide it."""

    def check_conditions(self) -> None:
        """RefusedError when the store does not heed the conditions of the four methods below.

        It writes an object of keeplast's own to find out, and removes it.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object of keeplast's own, where no plugin looks; False if it is there.

        ``name`` is a relative path of letters, digits, ``.``, ``_`` and ``-``; data is not empty.
        After a lost answer False may speak of one's own: compare what is there.
        """

    def read_own(self, name: str) -> bytes | None:
        """Return a small object of keeplast's own, None when there is none."""

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace an own object that still is ``expected``; False, and nothing is written, else."""

    def delete_own(self, name: str) -> None:
        """Remove an own object; one that is gone already is no error."""

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the own objects right below ``folder``, in any order; none where there is none.

        An object with a name that no own object has is a stranger's, and left out.
        """


OWN = ".keeplast"
"""The folder of keeplast's own objects, and of logs that are being written."""
_NAME = re.compile(r"(?:(?!\.)[A-Za-z0-9._-]{1,200}/){0,8}(?!\.)[A-Za-z0-9._-]{1,200}\Z")
_NEW = ".new"


class OwnDirectory(Struct, frozen=True):
    """Files below ``path``, each written whole. Names are relative paths, no part begins with a
    dot."""

    path: Path

    def check_conditions(self) -> None:
        """RefusedError when the file system has no hard links, or no locks between processes."""
        with unavailable(self.path), self._written(b"probe") as new:
            other = new.with_name(new.name + "-link")
            try:
                os.link(new, other)
                with new.open("rb+") as one, other.open("rb+") as two:
                    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    try:
                        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        return
                why = "its locks exclude no other process"
            except OSError as error:
                why = error_words(error)
            finally:
                other.unlink(missing_ok=True)
        raise RefusedError(
            "this file system cannot say who was first; keeplast needs hard links and flock. "
            f"path={self.path} error={why}",
            code="K240",
        )

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file; False, and nothing is written, when there is one."""
        target = self._at(name)
        with unavailable(target):
            if target.exists():
                return False
            make_directory(target.parent)
            with self._written(data) as new:
                try:
                    os.link(new, target)
                except FileExistsError:
                    return False
            sync_directory(target.parent)
        return True

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None when there is none."""
        target = self._at(name)
        with unavailable(target):
            try:
                with target.open("rb") as file:
                    return self._content(file.fileno(), target)
            except FileNotFoundError:
                return None

    def replace(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace a file that still is ``expected``; False, and nothing is written, else."""
        target = self._at(name)
        with unavailable(target), self._locked(target) as file:
            if file is None or self._content(file, target) != expected:
                return False
            with self._written(data) as new:
                os.rename(new, target)
            sync_directory(target.parent)
        return True

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        target = self._at(name)
        with unavailable(target), self._locked(target) as file:
            if file is not None:
                target.unlink()
                sync_directory(target.parent)

    def list(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the files right below ``folder``; what goes meanwhile is left out."""
        target = self._at(folder)
        with unavailable(target), contextlib.suppress(FileNotFoundError):
            for each in os.scandir(target):
                with contextlib.suppress(FileNotFoundError):
                    name = f"{folder}/{each.name}"
                    if each.is_file(follow_symlinks=False) and is_own_name(name):
                        modified_ms = each.stat(follow_symlinks=False).st_mtime_ns // 1_000_000
                        yield FoundOwn(name, modified_ms)

    def _at(self, name: str) -> Path:
        return self.path / check_own_name(name)

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[Path]:
        """Give a file with ``data`` on stable storage that goes away unless it is renamed."""
        check_own_content(data)
        folder = self.path / _NEW
        make_directory(folder)
        handle, text = tempfile.mkstemp(dir=folder)
        new = Path(text)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            yield new
        finally:
            new.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, target: Path) -> Iterator[int | None]:
        """Lock the file that has this name, None for no file; UnavailableError when it is held."""
        try:
            handle = os.open(target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_current = os.path.samestat(os.fstat(handle), target.lstat())
            except (BlockingIOError, FileNotFoundError):
                is_current = False
            if not is_current:
                raise UnavailableError(
                    f"another process changes this file just now; try again. path={target}",
                    code="K202",
                )
            yield handle
        finally:
            os.close(handle)

    def _content(self, file: int, target: Path) -> bytes:
        size = os.fstat(file).st_size
        if size > OWN_BYTES_MAX:
            raise CorruptError(
                "an own object is larger than any that is written", path=str(target), position=0,
                expected=f"<= {OWN_BYTES_MAX}", found=size, code="K437",
            )  # fmt: skip
        return os.pread(file, size, 0)


def is_own_name(name: str) -> bool:
    """Say whether an object of keeplast's own may have this name; any other is a stranger's."""
    return _NAME.match(name) is not None


def check_own_name(name: str) -> str:
    """Return ``name``; InvalidError when it is none of an own object."""
    if not is_own_name(name):
        raise InvalidError(
            "an object's name is parts of letters, digits, dots, _ and -, with / between them; "
            f"no part begins with a dot. name={name[:200]!r}",
            code="K452",
        )
    return name


def check_own_content(data: bytes) -> None:
    """InvariantError for an own object that could not be read again: stores give no empty range."""
    invariant(
        0 < len(data) <= OWN_BYTES_MAX, f"an own object is empty or too large. bytes={len(data)}"
    )


def make_directory(path: Path) -> None:
    """Make a directory and its parents, and put the names of new ones on stable storage."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on stable storage."""
    flush(path, os.O_DIRECTORY)


@contextlib.contextmanager
def unavailable(path: Path) -> Iterator[None]:
    """Raise UnavailableError for what the system says of ``path``, but that it is not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"the remote tier's file system failed: {error_words(error)}"
            + ("" if error.filename else f". path={path}"),
            code="K449",
        ) from error
