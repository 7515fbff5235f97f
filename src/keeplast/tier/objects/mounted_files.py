"""This host's disks, and buckets of object stores among them: what a call on ``s3://`` works with.

A path below a mount is an object, any other one a file, so that a log can be read from one and
written to the other by code that knows of neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from keeplast.errors import InvariantError
from keeplast.log.files import (
    Buffer,
    FileStat,
    FileSystem,
    LocalFiles,
    ReadHandle,
    WriteHandle,
)
from keeplast.log.object_paths import is_object_path, mount_of, url_of
from keeplast.tier.objects.object_files import ObjectFiles
from keeplast.tier.objects.object_store import ObjectTree
from keeplast.tier.objects.stores import open_tree


@dataclass(frozen=True, slots=True)
class MountedRecipe:
    """How a worker opens :class:`MountedFiles`: each bucket's path and its store."""

    mounts: tuple[tuple[Path, ObjectTree], ...]

    def open(self) -> FileSystem:
        """Return disks and buckets."""
        return MountedFiles({mount: ObjectFiles(tree, mount) for mount, tree in self.mounts})

    def is_on_disk(self, path: Path) -> bool:
        """Say whether ``path`` is a file of the host."""
        return not is_object_path(path)


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
            raise InvariantError(f"no store was opened for this place. path={url_of(path)}")
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
        if self._at(source) is not self._at(target):
            raise InvariantError(f"a rename between stores. source={source} target={target}")
        self._at(source).rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Link within a disk."""
        if self._at(source) is not self._at(target):
            raise InvariantError(f"a link between stores. source={source} target={target}")
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
