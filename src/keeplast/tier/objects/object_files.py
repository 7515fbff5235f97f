"""Data directories in object stores as file systems, and this host's disks with such among them.

A data directory in an object store is a :class:`~keeplast.log.files.FileSystem`. Keys are paths.
Files are read by ranges and written as streams; an object appears whole or not at all, and is
durable then. What a disk has and an object store has not:

1. *Renaming.* A rename is a copy inside the store and a removal. It is not atomic, and may not be
   relied on where a reader could look in between. A data directory is written under names of an
   attempt. It gets its final names while a marker says that it is incomplete.
2. *Modification times.* A store says when an object was written, not when its records were. Times
   that were set are kept in one more object a directory, :data:`TIMES`, which no listing shows.
   They count for a file while it has the size it had. Without one the store's own time counts: it
   is never earlier than the file's, and a later time only keeps records longer.
3. *Appending, owners, modes, free space.* Refused, or nothing.

A directory is listed once, until something in it is written through this object. What others write
meanwhile is seen by the next ``listdir``.

A call on ``s3://`` works with this host's disks, and buckets of object stores among them. A path
below a mount is an object, any other one a file. So code that knows of neither reads a log from one
and writes it to the other.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from keeplast.errors import (
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
    UnavailableError,
    invariant,
)
from keeplast.format.filename import parse_segment_file
from keeplast.log.files import (
    Buffer,
    FileStat,
    FileSystem,
    LocalFiles,
    ReadHandle,
    WriteHandle,
    write_at_once,
)
from keeplast.log.paths import is_object_path, mount_of, url_of
from keeplast.tier.objects.handles import (
    ObjectFacts,
    ObjectReadHandle,
    ObjectWriteHandle,
)
from keeplast.tier.objects.object_store import ObjectTree
from keeplast.tier.objects.stores import open_tree

TIMES = ".keeplast-times"
TIMES_VERSION = 1
TIMES_BYTES_MAX = 64 << 20
LISTINGS_KEPT = 1024


class _Listing(Struct):
    """What was found directly below a path."""

    files: dict[str, FileStat] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


class ObjectFiles(ObjectFacts):
    """The files below ``mount``, which is a bucket; safe for threads."""

    def __init__(self, objects: ObjectTree, mount: Path) -> None:
        """Show the objects of a store below the path ``mount``."""
        self._objects = objects
        self._mount = mount
        self._lock = threading.Lock()
        self._listings: OrderedDict[str, _Listing] = OrderedDict()
        self._times: dict[Path, dict[str, int]] = {}

    def _key(self, path: Path) -> str:
        return path.relative_to(self._mount).as_posix().removeprefix(".")

    # What is where.

    def _list(self, path: Path) -> _Listing:
        """List a directory again."""
        key = self._key(path)
        objects, folders = self._objects.children(key)
        files = {
            each.key.rpartition("/")[2]: FileStat(each.size_bytes, each.modified_ms * 1_000_000)
            for each in objects
        }
        times = files.pop(TIMES, None)
        if times is not None:
            for name, (size_bytes, mtime_ns) in self._read_times(path, times.size_bytes).items():
                if name in files and files[name].size_bytes == size_bytes:
                    files[name] = FileStat(size_bytes, mtime_ns)
        listing = _Listing(files, frozenset(folders))
        with self._lock:
            self._listings[key] = listing
            while len(self._listings) > LISTINGS_KEPT:
                self._listings.popitem(last=False)
        return listing

    def _find_listing(self, path: Path) -> _Listing | None:
        with self._lock:
            return self._listings.get(self._key(path))

    def _forget(self, path: Path) -> None:
        """Forget what is known of the directory that ``path`` is in, and of those above it."""
        with self._lock:
            for parent in path.parents:
                if parent == self._mount.parent:
                    break
                self._listings.pop(self._key(parent), None)

    def _find(self, path: Path) -> FileStat:
        """Return a file's size and time; FileNotFoundError when there is none."""
        listing = self._find_listing(path.parent)
        if listing is None:
            found = self._objects.stat(self._key(path))
            return FileStat(found.size_bytes, found.modified_ms * 1_000_000)
        if path.name not in listing.files:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return listing.files[path.name]

    def listdir(self, path: Path) -> list[str]:
        """Return the names of files and folders; FileNotFoundError when there are none."""
        listing = self._list(path)
        names = sorted({*listing.files, *listing.folders})
        if not names and path != self._mount:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return names

    def is_directory(self, path: Path) -> bool:
        """Say whether anything lies below ``path``."""
        parent = None if path == self._mount else self._find_listing(path.parent)
        if parent is not None:
            return path.name in parent.folders
        listing = self._find_listing(path) or self._list(path)
        return bool(listing.files or listing.folders) or path == self._mount

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return the names of folders."""
        return frozenset((self._find_listing(path) or self._list(path)).folders)

    def exists(self, path: Path) -> bool:
        """Say whether there is a file, or anything below."""
        if path == self._mount:
            return True
        try:
            self._find(path)
        except FileNotFoundError:
            return self.is_directory(path)
        return True

    def stat(self, path: Path) -> FileStat:
        """Return size and time."""
        if self._find_listing(path.parent) is None and parse_segment_file(path.name) is not None:
            self._list(path.parent)  # times lie next to the files
        return self._find(path)

    # Reading.

    def open_read(self, path: Path) -> ReadHandle:
        """Open a file."""
        return ObjectReadHandle(self._objects, self._key(path), self._find(path).size_bytes)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole."""
        size_bytes = self._find(path).size_bytes
        if size_bytes > limit:
            raise InvalidError(
                f"file is larger than what it can sensibly be. path={path} "
                f"size_bytes={size_bytes} limit={limit}",
                code="K158",
            )
        return self._read(path, size_bytes)

    def _read(self, path: Path, size_bytes: int) -> bytes:
        data = bytes(self._objects.read_range(self._key(path), 0, size_bytes))
        if len(data) != size_bytes:
            raise CorruptError(
                "file is shorter than it was when it was looked at",
                path=str(path), position=0, expected=size_bytes, found=len(data), code="K309",
            )  # fmt: skip
        return data

    # Writing.

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Start a file; it is there when ``fsync`` has returned."""
        if append:
            raise _no_append(path)
        key = self._key(path)

        def completed(size_bytes: int) -> None:
            self._forget(path)
            self._check_size(path, size_bytes)

        return _Copied(lambda: ObjectWriteHandle(self._objects, key, completed), self, path)

    def _check_size(self, path: Path, size_bytes: int) -> None:
        found = self._objects.stat(self._key(path)).size_bytes
        if found != size_bytes:
            raise UnavailableError(
                f"the store kept another size than was written. path={path} written={size_bytes} "
                f"found={found}",
                code="K305",
            )

    def copy_within(self, source: ObjectReadHandle | None, target: Path) -> bool:
        """Copy a whole object inside the store; False when it is not in this one."""
        if source is None or source.objects is not self._objects:
            return False
        self._objects.copy(source.key, self._key(target))
        self._forget(target)
        self._check_size(target, source.size_bytes)
        return True

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Put a small file over whatever is there, at once."""
        write_at_once(self.open_write(path), data)

    def append_durable(self, path: Path, data: Buffer) -> None:
        """RefusedError: objects are not appended to."""
        raise _no_append(path)

    def rename(self, source: Path, target: Path) -> None:
        """Copy inside the store and remove the source."""
        size_bytes = self._objects.stat(self._key(source)).size_bytes
        self._objects.copy(self._key(source), self._key(target))
        self._forget(target)
        self._check_size(target, size_bytes)
        self.unlink(source)

    def link(self, source: Path, target: Path) -> None:
        """RefusedError: an object has one key."""
        raise RefusedError(
            f"objects have one name; nothing is kept twice. path={source}", code="K307"
        )

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is gone already is no error."""
        self._objects.delete([self._key(path)])
        self._forget(path)

    def fsync(self, path: Path) -> None:
        """Do nothing: a file that is there is durable."""

    def fsync_directory(self, path: Path) -> None:
        """Write down the times that were set in ``path``."""
        times = self._times.pop(path, None)
        if times is None:
            return
        listing = self._list(path)
        known = {
            name: [status.size_bytes, times.get(name, status.mtime_ns)]
            for name, status in listing.files.items()
            if _has_time(name)
        }
        document = {"version": TIMES_VERSION, "files": known}
        self.write_durable(path / TIMES, json.dumps(document, indent=0).encode())

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Remember the time of a segment's file until ``fsync_directory`` writes it down.

        Times of staged files are not kept: the caller that gives them their final name knows them.
        """
        if _has_time(path.name):
            with self._lock:
                self._times.setdefault(path.parent, {})[path.name] = mtime_ns

    def _read_times(self, path: Path, size_bytes: int) -> dict[str, tuple[int, int]]:
        """Return size and time by name; CorruptError when the object is none of ours."""
        place = path / TIMES
        if size_bytes > TIMES_BYTES_MAX:
            raise InvalidError(
                f"file is larger than what it can sensibly be. path={place} "
                f"size_bytes={size_bytes} limit={TIMES_BYTES_MAX}",
                code="K158",
            )
        try:
            document = json.loads(self._read(place, size_bytes))
            version, files = document["version"], document["files"]
            times = {str(name): (int(size), int(time)) for name, (size, time) in files.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(
                "times of files cannot be read; remove the object, and when objects were written "
                "counts instead",
                path=str(place), position=0, expected="JSON with version and files",
                found=str(error), code="K310",
            ) from error  # fmt: skip
        if version != TIMES_VERSION:
            raise RefusedError(
                f"times of files are of a version that is not known; use a newer keeplast. "
                f"path={place} version={version} known={TIMES_VERSION}",
                code="K226",
            )
        return times


class _Copied:
    """A file that is written; one that is a whole object of the same store is copied there."""

    def __init__(
        self, begin: Callable[[], ObjectWriteHandle], files: ObjectFiles, path: Path
    ) -> None:
        self._begin = begin
        self._files = files
        self._path = path
        self._inner: ObjectWriteHandle | None = None
        self._source: ObjectReadHandle | None = None

    def write(self, data: Buffer) -> None:
        self._begun().write(data)

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        is_whole = position == 0 and length == source.size_bytes and self._inner is None
        if is_whole and self._source is None and isinstance(source, ObjectReadHandle):
            self._source = source  # perhaps all that will be written
            return
        self._begun().copy_from(source, position, length)

    def _begun(self) -> ObjectWriteHandle:
        """Return the object, with what waited because it might have been all."""
        if self._inner is None:
            self._inner = self._begin()
            if self._source is not None:
                self._inner.copy_from(self._source, 0, self._source.size_bytes)
        return self._inner

    def fsync(self) -> None:
        is_copy = self._inner is None and self._source is not None
        if not (is_copy and self._files.copy_within(self._source, self._path)):
            self._begun().fsync()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def _has_time(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and not parsed.stage


def _no_append(path: Path) -> RefusedError:
    return RefusedError(
        f"objects are not appended to; use a file on a disk. path={url_of(path)}", code="K307"
    )


class MountedRecipe(Struct, frozen=True):
    """How a worker opens :class:`MountedFiles`: each bucket's path and its store."""

    mounts: tuple[tuple[Path, ObjectTree], ...]

    def open(self) -> FileSystem:
        """Return disks and buckets."""
        return MountedFiles({mount: ObjectFiles(tree, mount) for mount, tree in self.mounts})

    def is_on_disk(self, path: Path) -> bool:
        """Say whether ``path`` is a file of the host."""
        return not is_object_path(path)

    def tree_of(self, path: Path) -> Any:
        """Return the store that an object path is in, for what a file system has not."""
        return dict(self.mounts)[mount_of(path)]


def mount(paths: tuple[Path, ...], options: dict[str, str]) -> MountedRecipe:
    """Return a recipe for the buckets that ``paths`` are in; ``options`` are their stores'.

    InvalidError when a store cannot be opened with them.
    """
    mounts = sorted({mount_of(path) for path in paths if is_object_path(path)})
    return MountedRecipe(
        tuple((mount, open_tree(url_of(mount), dict(options))) for mount in mounts)
    )


class MountedFiles:
    """The :class:`~keeplast.log.files.FileSystem` of disks and buckets.

    Each method is that of the disk or bucket in which its path lies.
    """

    def __init__(self, mounts: dict[Path, ObjectFiles]) -> None:
        """Take what is below each mount; everything else is on this host."""
        self._mounts = mounts
        self._local = LocalFiles()

    def _at(self, path: Path) -> FileSystem:
        if not is_object_path(path):
            return self._local
        found = self._mounts.get(mount_of(path))
        if found is None:
            raise InvariantError(
                f"no store was opened for this place. path={url_of(path)}", code="K901"
            )
        return found

    def open_read(self, path: Path) -> ReadHandle:
        return self._at(path).open_read(path)

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        return self._at(path).open_write(path, append=append)

    def listdir(self, path: Path) -> list[str]:
        return self._at(path).listdir(path)

    def is_directory(self, path: Path) -> bool:
        return self._at(path).is_directory(path)

    def directories_in(self, path: Path) -> frozenset[str]:
        return self._at(path).directories_in(path)

    def exists(self, path: Path) -> bool:
        return self._at(path).exists(path)

    def stat(self, path: Path) -> FileStat:
        return self._at(path).stat(path)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        return self._at(path).read_bytes(path, limit)

    def write_durable(self, path: Path, data: Buffer) -> None:
        self._at(path).write_durable(path, data)

    def append_durable(self, path: Path, data: Buffer) -> None:
        self._at(path).append_durable(path, data)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a disk or a bucket."""
        invariant(
            self._at(source) is self._at(target),
            f"a rename between stores. source={source} target={target}",
        )
        self._at(source).rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Link within a disk."""
        invariant(
            self._at(source) is self._at(target),
            f"a link between stores. source={source} target={target}",
        )
        self._at(source).link(source, target)

    def unlink(self, path: Path) -> None:
        self._at(path).unlink(path)

    def fsync(self, path: Path) -> None:
        self._at(path).fsync(path)

    def fsync_directory(self, path: Path) -> None:
        self._at(path).fsync_directory(path)

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        self._at(path).set_mtime(path, mtime_ns)

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Copy them between files on disks."""
        if not is_object_path(source):
            self._at(target).copy_owner_and_mode(source, target)

    def make_directory(self, path: Path) -> None:
        self._at(path).make_directory(path)

    def free_bytes(self, path: Path) -> int:
        return self._at(path).free_bytes(path)
