"""What every file system of a round is that lies on objects: a file is written once, and stays.

The rule: **what was closed is durable, keeps its name, and is never appended to**.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import InvariantError
from keeplast.log.files import Buffer
from keeplast.tier.objects.handles import FREE_BYTES


class WriteOnceFiles:
    """The methods of a :class:`~keeplast.log.files.FileSystem` that need nothing done, or may not
    be asked for."""

    def append_durable(self, path: Path, data: Buffer) -> None:
        """InvariantError: objects are not appended to."""
        raise InvariantError(f"objects are not appended to. path={path}")

    def rename(self, source: Path, target: Path) -> None:
        """InvariantError: objects keep their key."""
        raise InvariantError(f"objects are not renamed. source={source} target={target}")

    def link(self, source: Path, target: Path) -> None:
        """InvariantError: an object has one key."""
        raise InvariantError(f"objects have one name. source={source} target={target}")

    def fsync(self, path: Path) -> None:
        """Do nothing: what was closed is durable."""

    def fsync_directory(self, path: Path) -> None:
        """Do nothing: what was closed is durable."""

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Do nothing: the metadata keeps the times."""

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Do nothing: objects have neither."""

    def make_directory(self, path: Path) -> None:
        """Do nothing: a key needs no directory."""

    def free_bytes(self, path: Path) -> int:
        """Return a size that no round needs: a bucket does not fill up."""
        return FREE_BYTES
