"""The port through which every byte of a log reaches the disk.

Nothing in keeplast opens, renames or removes a log's file but through a :class:`FileSystem`, so
that a test can count, fail and forget each operation. The port never follows a symbolic link in the
last component of a path: a link in a data directory is refused, not followed out of it. Durability
is the caller's: ``fsync`` a file, then ``fsync_directory`` what holds its name.

The port also asks the system to begin writing what lies in its cache, so that a flush finds less to
do. A large output is written while the next of it is made, instead of all at once by the flush that
the commit waits for. It is advice, never durability: nothing is waited for and no error is reported
here. What fails in the background is reported by the ``fsync`` that follows, which no caller may
leave out because of this. The call is ``sync_file_range(2)``, which Python has no function for;
where a system has none, nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from keeplast.errors import CorruptError, InvalidError, RefusedError

_WRITE = 2
"""``SYNC_FILE_RANGE_WRITE``: begin with what is dirty, wait for nothing."""


def _find_call() -> Callable[[int, int, int, int], int] | None:
    # On 32 bits some machines order the arguments in another way.
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call.restype = ctypes.c_int
    return call


_call = _find_call()


def begin(fd: int, position: int, length: int) -> None:
    """Have the bytes ``[position, position + length)`` of an open file written soon."""
    if _call is not None:
        _call(fd, position, length, _WRITE)


Buffer = bytes | bytearray | memoryview
COPY_BYTES = 8 << 20
WRITE_BACK_BYTES = 16 << 20
"""A new file goes to the disk in such pieces while it grows; with pieces of 4 MiB the calls took
what they gained.
"""


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes and modification time in nanoseconds of a regular file.

    ``inode`` distinguishes a file from another one that has taken its name; 0 where it is not
    known.
    """

    size_bytes: int
    mtime_ns: int
    inode: int = field(default=0, compare=False)


class ReadHandle(Protocol):
    """An open file to read from; positions are byte offsets."""

    @property
    def size_bytes(self) -> int:
        """Return the size the file had when it was opened."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` from ``position``; return the bytes read, less only at the end."""

    def close(self) -> None:
        """Release the file; calling it again does nothing."""


class WriteHandle(Protocol):
    """A file that is open to append to; what is written counts after :meth:`fsync` alone."""

    def write(self, data: Buffer) -> None:
        """Append all of ``data``; OSError when not all of it could be, as on a full disk."""

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        """Append ``length`` bytes of ``source`` from ``position``, inside the kernel if it can."""

    def fsync(self) -> None:
        """Return when everything appended so far is on stable storage."""

    def close(self) -> None:
        """Release the file, without :meth:`fsync`; calling it again does nothing."""


class FileSystem(Protocol):
    """What a log needs of a file system. Paths may not be symbolic links."""

    def open_read(self, path: Path) -> ReadHandle:
        """Open a regular file; OSError when it cannot be, RefusedError for anything else."""

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Create or truncate a file, or open it at its end with ``append``."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def is_directory(self, path: Path) -> bool:
        """Say whether ``path`` is a directory and not a link to one."""

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return the names in a directory for which :meth:`is_directory` is True."""

    def exists(self, path: Path) -> bool:
        """Say whether there is anything at ``path``."""

    def stat(self, path: Path) -> FileStat:
        """Return size, modification time and inode; of a link itself, not of what it points to."""

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a whole small file; InvalidError when it is larger than ``limit``."""

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Replace a small file atomically: temporary, fsync, rename, fsync of the directory."""

    def append_durable(self, path: Path, data: Buffer) -> None:
        """Append to a file, creating it, and return when it is on stable storage."""

    def rename(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, atomically; a file that had it is gone."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name on its volume; FileExistsError when it is taken."""

    def unlink(self, path: Path) -> None:
        """Remove a file's name; FileNotFoundError when there is none."""

    def fsync(self, path: Path) -> None:
        """Return when the content of an existing file is on stable storage."""

    def fsync_directory(self, path: Path) -> None:
        """Return when the names in ``path`` are on stable storage."""

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set the modification time, nanoseconds since 1970; retention reads it of undated logs."""

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Give ``target`` the mode of ``source`` and, where permitted, its owner."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; nothing happens when it exists."""

    def free_bytes(self, path: Path) -> int:
        """Return what an unprivileged process may still write on the volume of ``path``."""


class FilesRecipe(Protocol):
    """How a worker opens the file system of its task, in whatever process it runs.

    A recipe travels with the task, so it holds values only: it pickles, and what it opens elsewhere
    shows the same files. Secrets in it appear in no ``repr``.
    """

    def open(self) -> FileSystem:
        """Return the file system; one that is newly opened knows nothing of what others did."""

    def is_on_disk(self, path: Path) -> bool:
        """Say whether ``path`` is on the host's disks, so that every host must have mounted it."""


READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without O_NONBLOCK, opening a pipe would wait for a writer."""


class LocalReadHandle:
    """A file descriptor that is read by position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(str(path), READ_FLAGS)
        except OSError as error:
            # What is not found is no link either.
            if not isinstance(error, FileNotFoundError) and path.is_symlink():
                raise RefusedError(
                    f"symbolic link in a log directory; replace it by the file. path={path}",
                    code="K203",
                ) from error
            raise
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise RefusedError(
                f"not a regular file; name another one, or move it away. path={path}", code="K203"
            )
        self.size_bytes: Final = status.st_size

    def fileno(self) -> int:
        """Return the descriptor, for copies inside the kernel."""
        return self._fd

    def read_ahead(self, position: int, length: int) -> None:
        """Ask the system to fetch a range before it is asked for; it may do so or not."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_WILLNEED)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read until the buffer is full or the file ends."""
        done, wanted = 0, len(buffer)
        while done < wanted:
            try:
                count = os.preadv(self._fd, [buffer[done:] if done else buffer], position + done)
            except OSError as error:
                error.filename = str(self._path)
                raise
            if count == 0:
                break
            done += count
        return done

    def close(self) -> None:
        """Close the descriptor once; later calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalWriteHandle:
    """A file descriptor that is appended to."""

    def __init__(self, path: Path, *, append: bool) -> None:
        """Create, truncate or open ``path`` at its end, never through a link."""
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= os.O_APPEND if append else os.O_TRUNC
        self._fd = os.open(path, flags, 0o644)
        self._appends = append
        self._size_bytes = self._begun_to = 0

    def write(self, data: Buffer) -> None:
        """Append all of ``data``, however often the kernel takes less."""
        view = memoryview(data).cast("B")
        try:
            while len(view):
                count = os.write(self._fd, view)
                self._grown(count)
                view = view[count:]
        except OSError as error:
            error.filename = str(self._path)
            raise

    def _grown(self, count: int) -> None:
        self._size_bytes += count
        fresh = self._size_bytes - self._begun_to
        if fresh >= WRITE_BACK_BYTES and not self._appends:
            begin(self._fd, self._begun_to, fresh)
            self._begun_to = self._size_bytes

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        """Use ``copy_file_range`` between descriptors and plain reads where it is refused."""
        fd = source.fileno() if isinstance(source, LocalReadHandle) else -1
        while length > 0 and fd >= 0 and not self._appends:
            try:
                count = os.copy_file_range(fd, self._fd, length, position)
            except OSError:
                break  # another volume or a file system without it: read and write instead
            if count == 0:
                raise self._ended_early(position)
            self._grown(count)
            position += count
            length -= count
        buffer = memoryview(bytearray(min(length, COPY_BYTES)))
        while length > 0:
            part = buffer[: min(length, COPY_BYTES)]
            count = source.pread_into(part, position)
            if count == 0:
                raise self._ended_early(position)
            self.write(part[:count])
            position += count
            length -= count

    def _ended_early(self, position: int) -> OSError:
        return OSError(errno.EIO, f"what is copied ended early, at {position}", str(self._path))

    def fsync(self) -> None:
        """Flush content and size to stable storage (``fsync(2)``); an error names the file."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def close(self) -> None:
        """Close the descriptor once; later calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def flush(path: Path, flags: int) -> None:
    """Return when a file or directory, opened with ``flags`` too, is on stable storage."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LocalFiles:
    """The disks of this host, by system calls; errors are the operating system's."""

    def open_read(self, path: Path) -> ReadHandle:
        """Open a regular file and no link (``O_NOFOLLOW``); RefusedError for anything else."""
        return LocalReadHandle(path)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Create or truncate a file, or go on at its end with ``append``; no link."""
        return LocalWriteHandle(path, append=append)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted: the system gives them in any order."""
        return sorted(os.listdir(path))

    def is_directory(self, path: Path) -> bool:
        """Say whether it is a real directory."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return the names of real directories in a directory; the system lists them as such."""
        with os.scandir(path) as entries:
            return frozenset([e.name for e in entries if e.is_dir(follow_symlinks=False)])

    def exists(self, path: Path) -> bool:
        """Say whether there is anything, a dangling link included; OSError when that is not known.

        What may not be looked at is not missing.
        """
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: Path) -> FileStat:
        """Return size and time of the name itself, not of what a link points to."""
        status = os.lstat(path)
        return FileStat(status.st_size, status.st_mtime_ns, status.st_ino)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a file whole; InvalidError above ``limit``, CorruptError when it shrinks."""
        with reading(self, path) as handle:
            if handle.size_bytes > limit:
                raise InvalidError(
                    f"file is larger than what it can sensibly be. path={path} "
                    f"size_bytes={handle.size_bytes} limit={limit}",
                    code="K158",
                )
            return read_whole(handle, path)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Write ``<path>.tmp``, fsync, rename, fsync the directory; owner and mode stay."""
        temporary = path.with_name(path.name + ".tmp")
        write_at_once(self.open_write(temporary), data)
        if self.exists(path):
            self.copy_owner_and_mode(path, temporary)
        os.replace(temporary, path)
        self.fsync_directory(path.parent)

    def append_durable(self, path: Path, data: Buffer) -> None:
        """Append, fsync, and fsync the directory when the file is new."""
        is_new = not self.exists(path)
        write_at_once(self.open_write(path, append=True), data)
        if is_new:
            self.fsync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename over whatever ``target`` is (``rename(2)``); OSError across volumes."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Make a hard link (``link(2)``); OSError where the file system has none."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Remove a name; the bytes go with the last descriptor that is open."""
        os.unlink(path)

    def fsync(self, path: Path) -> None:
        """Flush a file that others have written and closed."""
        flush(path, os.O_NOFOLLOW)

    def fsync_directory(self, path: Path) -> None:
        """Flush the names in a directory, without which a rename may be undone by a crash."""
        flush(path, os.O_DIRECTORY)

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set both times; the access time means nothing to Kafka."""
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Copy the mode of a regular file; copy the owner when this process may."""
        status = os.stat(source, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return  # a link's mode lets everybody write
        os.chmod(target, stat.S_IMODE(status.st_mode))
        own = os.stat(target, follow_symlinks=False)
        if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
            with contextlib.suppress(PermissionError):
                os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)

    def make_directory(self, path: Path) -> None:
        """Create a directory with its parents; one that is there is left as it is."""
        path.mkdir(parents=True, exist_ok=True)

    def free_bytes(self, path: Path) -> int:
        """Return the blocks that are free for users, without those kept for root, in bytes."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class LocalRecipe(Struct, frozen=True):
    """The disks of the host that the worker runs on."""

    def open(self) -> FileSystem:
        """Return the files of the host that calls it."""
        return LocalFiles()

    def is_on_disk(self, path: Path) -> bool:
        """Return True: every path is on this host's disks."""
        return True


def write_at_once(handle: WriteHandle, data: Buffer) -> None:
    """Write a small file or object, durably, and close it."""
    try:
        handle.write(data)
        handle.fsync()
    finally:
        handle.close()


def write_durable_like(
    files: FileSystem, path: Path, data: Buffer, like: Path, *, flushes_name: bool = True
) -> None:
    """Replace a small file next to a log, atomically and durably, with the owner and mode of
    ``like``.

    A broker that may not read a file in a partition does not start. ``flushes_name`` False leaves
    it to the caller to make its name durable, with others in that directory.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_at_once(files.open_write(temporary), data)
    try:
        files.copy_owner_and_mode(like, temporary)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    if flushes_name:
        files.fsync_directory(path.parent)


def read_whole(handle: ReadHandle, path: Path) -> bytes:
    """Return a small file's bytes; CorruptError when it has shrunk since it was opened."""
    buffer = bytearray(handle.size_bytes)
    count = handle.pread_into(memoryview(buffer), 0)
    if count < len(buffer):
        raise CorruptError(
            "file is shorter than it was when it was opened",
            path=str(path), position=0, expected=len(buffer), found=count, code="K224",
        )  # fmt: skip
    return bytes(buffer)


def reading(files: FileSystem, path: Path) -> contextlib.closing[ReadHandle]:
    """Open ``path`` for the length of a ``with`` block."""
    return contextlib.closing(files.open_read(path))
