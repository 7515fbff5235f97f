"""The lock of a data directory, as a broker takes it.

A POSIX record lock on ``.lock``, held for the whole of ``clean``. Java file locks are ``fcntl``
locks on Linux, so it is ``lockf`` and not ``flock``. Such a lock belongs to the process. A second
one in the same process would be granted, and closing *any* descriptor of the file gives it up. So
what this process holds is remembered here, and its file is never opened again meanwhile.

A file that was there stays; one that we made goes while the lock is still held. A process that gets
a lock makes sure that it is on the file that has the name. Kafka: ``LogManager.lockLogDirs``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from keeplast.errors import ConflictError, RefusedError
from keeplast.format.filename import LOCK
from keeplast.log.paths import is_object_path

_guard = threading.Lock()
_held: dict[tuple[int, int], int | None] = {}
"""The open lock file of each directory, by device and inode, whose lock this process holds."""


@contextlib.contextmanager
def locked(root: Path, *, writes: bool = True) -> Iterator[None]:
    """Hold the lock of the data directory ``root``; RefusedError when another process does.

    No broker serves a log out of an object store, and there is no lock in one. Without ``writes`` a
    read-only file system will do, such as a snapshot. Then a lock file that is there is shared, so
    that only a broker which holds it is in the way, and none is made.
    """
    if is_object_path(root):
        yield
        return
    path = root / LOCK
    with _claimed(root) as identity:
        existed = path.exists()
        if path.is_symlink():
            raise RefusedError(
                f"the lock file is a link, which is not followed; remove the link. path={path}",
                code="K203",
            )
        kind, flags = fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT
        if not writes and _is_read_only(root):
            if not existed:
                yield
                return
            kind, flags = fcntl.LOCK_SH, os.O_RDONLY
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.lockf(fd, kind | fcntl.LOCK_NB)
            except OSError as error:
                raise _in_use(root) from error
            if not has_name(fd, path):
                raise _in_use(root)
            _held[identity] = fd
            try:
                yield
            finally:
                if not existed and has_name(fd, path):
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
        finally:
            os.close(fd)


def check_held(root: Path) -> None:
    """Raise RefusedError where the lock of ``root``, which this process took, is lost.

    Its file is another one where it was removed, or where a backup was put in place of the
    directory: others can have the lock then. OSError where there is no directory any more.
    """
    fd = _held.get(_identity(root))
    if fd is None or not has_name(fd, root / LOCK):
        raise RefusedError(
            "the lock file was removed or replaced, so that others may use the data directory; "
            f"start this command again. path={root / LOCK}",
            code="K201",
        )


def is_locked(root: Path) -> bool:
    """Say whether a broker or a cleaning process holds the lock now; never creates the file.

    The file is only read, so that a principal who may do no more gets the true answer.
    """
    if is_object_path(root):
        return False
    with _guard:
        try:
            if _identity(root) in _held:
                return True
        except FileNotFoundError:
            return False  # It is none of this host's.
        try:
            fd = os.open(root / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Brokers' locks exclude shared ones, which a file that is only read may have.
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False


@contextlib.contextmanager
def edited(path: Path) -> Iterator[None]:
    """Keep every other editor from the file ``path``; ConflictError while one is at it.

    The ``flock`` is on the file's directory, which a new file does not replace, and nothing of it
    stays. Where there are no such locks no editor is kept away.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"another process is changing the file; run again. path={path}", code="K202"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def appended(path: Path) -> Iterator[None]:
    """Let one writer at a time append to the file ``path``, of any process; the others wait.

    The holder writes a line and is done. The lock is that of :func:`edited`, and there are places
    without it.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _claimed(root: Path) -> Iterator[tuple[int, int]]:
    """Keep every other part of this process away from the lock file of ``root``; yields its key."""
    identity = _identity(root)
    with _guard:
        if identity in _held:
            raise _in_use(root)
        _held[identity] = None
    try:
        yield identity
    finally:
        with _guard:
            del _held[identity]


def _is_read_only(root: Path) -> bool:
    return bool(os.statvfs(root).f_flag & os.ST_RDONLY)


def _identity(root: Path) -> tuple[int, int]:
    status = os.stat(root)
    return status.st_dev, status.st_ino


def has_name(fd: int, path: Path) -> bool:
    """Say whether ``path`` is still the file that is open as ``fd``: a lock on another is none."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _in_use(root: Path) -> RefusedError:
    return RefusedError(
        "the data directory is in use by a running broker or another keeplast; "
        f"stop it first. path={root / LOCK}",
        code="K201",
    )
