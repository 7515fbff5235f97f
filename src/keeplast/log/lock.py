"""The lock of a data directory, as a broker takes it.

A POSIX record lock on ``.lock`` (Java file locks are ``fcntl`` locks on Linux, so ``lockf`` and not
``flock``). Held for the whole of ``clean``; the file stays, because removing a locked file lets a
second process lock a new one of the same name. Kafka: ``LogManager.lockLogDirs``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from keeplast.errors import RefusedError
from keeplast.format.filename import LOCK


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the lock of the data directory ``root``; RefusedError when somebody else does."""
    path = root / LOCK
    existed = path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RefusedError(
                "the data directory is in use by a running broker or another keeplast; "
                f"stop it first. path={path}"
            ) from error
        try:
            yield
        finally:
            if not existed:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
    finally:
        os.close(fd)


def is_locked(root: Path) -> bool:
    """Say whether another process holds the lock now; never creates the file."""
    try:
        fd = os.open(root / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
