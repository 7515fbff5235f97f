"""Small objects of keeplast's own, where segments lie in directories.

The rule: **who was first is for the file system to say**. A new file appears by a hard link, which
fails where there is one; one that is there is replaced and removed under a lock on that very file.
A process that ends gives its locks back; one that is frozen with a lock holds it, and others are
told to come back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keeplast.cluster.layouts.layout import OWN_BYTES_MAX, FoundOwn
from keeplast.errors import (
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
    error_text,
    invariant,
)

OWN = ".keeplast"
"""The folder of keeplast's own objects, and of logs that are being written."""
_NAME = re.compile(r"(?:(?!\.)[A-Za-z0-9._-]{1,200}/){0,8}(?!\.)[A-Za-z0-9._-]{1,200}\Z")
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class OwnDirectory:
    """Files below ``path``, each written whole. Names are relative paths, no part begins with a
    dot."""

    path: Path

    def check_conditions(self) -> None:
        """RefusedError when the file system has no hard links, or its locks exclude nobody."""
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
                why = "its locks exclude nobody"
            except OSError as error:
                why = error_text(error)
            finally:
                other.unlink(missing_ok=True)
        raise RefusedError(
            "this file system cannot say who was first; keeplast needs hard links and flock. "
            f"path={self.path} error={why}"
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
                    f"another process changes this file just now; try again. path={target}"
                )
            yield handle
        finally:
            os.close(handle)

    def _content(self, file: int, target: Path) -> bytes:
        size = os.fstat(file).st_size
        if size > OWN_BYTES_MAX:
            raise CorruptError(
                "an own object is larger than any that is written", path=str(target), position=0,
                expected=f"<= {OWN_BYTES_MAX}", found=size,
            )  # fmt: skip
        return os.pread(file, size, 0)


def is_own_name(name: str) -> bool:
    """Say whether an object of keeplast's own may have this name; any other is a stranger's."""
    return _NAME.match(name) is not None


def check_own_name(name: str) -> str:
    """Return ``name``; InvalidError when it is none of an own object."""
    if not is_own_name(name):
        raise InvalidError(
            "an object's name is parts of letters, digits, dots, _ and -, none of which begins "
            f"with a dot, with / between them. name={name[:200]!r}"
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
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def unavailable(path: Path) -> Iterator[None]:
    """Raise UnavailableError for what the system says of ``path``, but that it is not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"the remote tier's file system failed: {error_text(error)}"
            + ("" if error.filename else f". path={path}")
        ) from error
