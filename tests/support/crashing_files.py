"""A file system in memory that knows what of it is on the disk, and what a crash could leave.

What was not made durable survives a crash in parts:

* data of a file behind its last fsync: any prefix of it, or nothing;
* names of a directory since its last fsync: any subset of the creations, renames and removals,
  applied in their order; or, in mode ``prefix``, the first few of them, as a journal would have it.

A rename that survives takes its file along, whatever became of the file's creation. Modification
times survive with the file. :class:`~keeplast.log.files.LocalFiles` has the contract.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.log.files import Buffer, FileStat, ReadHandle, WriteHandle
from tests.support.observed_files import Crash

Image = dict[Path, dict[str, tuple[bytes, int]]]
"""Content and modification time of every file, by directory and name."""

DEFAULT_FREE_BYTES = 1 << 40
START_NS = 1_700_000_000_000_000_000


class Mode(StrEnum):
    """Which of the changes to a directory's names may survive without the others."""

    SUBSET = "subset"
    PREFIX = "prefix"


@dataclass(slots=True, eq=False)
class Inode:
    """A file without its names; ``durable`` is what it held at its last fsync."""

    data: bytearray
    durable: bytes
    mtime_ns: int

    def contents(self, dice: random.Random) -> list[bytes]:
        """Return contents that a crash may leave: all of it, the durable part, and one between."""
        whole = bytes(self.data)
        if whole == self.durable:
            return [whole]
        # A file that was truncated and written again has its old content until it is synced.
        start = len(self.durable) if whole.startswith(self.durable) else 0
        cut = dice.randint(start, len(whole))
        return list(dict.fromkeys([whole, self.durable, whole[:cut]]))


class Change(Struct, frozen=True):
    """One change of a directory's names: ``source`` goes away, ``target`` becomes ``inode``."""

    directory: Path
    source: str | None
    target: str | None
    inode: Inode

    def apply(self, names: dict[str, Inode]) -> None:
        """Make the change; a source that another change has taken meanwhile stays as it is."""
        if self.source is not None and names.get(self.source) is self.inode:
            del names[self.source]
        if self.target is not None:
            names[self.target] = self.inode


@dataclass(slots=True)
class Directory:
    """Names as a process sees them, and as they are on the disk."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)


class CrashingFiles:
    """Files in memory that stop before operation ``crash_at``; from then on nothing works."""

    def __init__(self, image: Image, *, free_bytes: int = DEFAULT_FREE_BYTES) -> None:
        """Start with ``image``, all of it durable."""
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self._free_bytes = free_bytes
        self._is_dead = False
        self._clock_ns = START_NS
        self._pending: list[Change] = []
        self._directories: dict[Path, Directory] = {}
        for path, files in image.items():
            names = {
                name: Inode(bytearray(data), data, mtime_ns)
                for name, (data, mtime_ns) in files.items()
            }
            self._directories[path] = Directory(names, dict(names))

    # What a crash leaves.

    def image(self) -> Image:
        """Return everything as the process sees it."""
        return {
            path: {n: (bytes(i.data), i.mtime_ns) for n, i in directory.names.items()}
            for path, directory in self._directories.items()
        }

    def survivors(self, dice: random.Random, *, mode: Mode, limit: int) -> Iterator[Image]:
        """Yield states that the disk can be in now; all of them when that is at most ``limit``.

        Otherwise the telling ones first (nothing, everything, every prefix, each change alone lost
        and alone kept), and random ones up to ``limit``.
        """
        for kept in _chosen(len(self._pending), dice, mode=mode, limit=limit):
            survived: dict[Path, dict[str, Inode]] = {
                path: dict(directory.durable) for path, directory in self._directories.items()
            }
            for position, change in enumerate(self._pending):
                if position in kept:
                    change.apply(survived[change.directory])
            yield from _with_contents(survived, dice)

    def survivor(self, dice: random.Random) -> Image:
        """Return one state, at random, that the disk can be in now."""
        count = len(self._pending)
        if dice.choice(list(Mode)) is Mode.PREFIX:
            kept = set(range(dice.randint(0, count)))
        else:
            share = dice.random()
            kept = {position for position in range(count) if dice.random() < share}
        survived = {path: dict(found.durable) for path, found in self._directories.items()}
        for position, change in enumerate(self._pending):
            if position in kept:
                change.apply(survived[change.directory])
        chosen: dict[int, bytes] = {}
        for names in survived.values():
            for inode in names.values():
                if id(inode) not in chosen:
                    chosen[id(inode)] = dice.choice(inode.contents(dice))
        return {
            path: {name: (chosen[id(inode)], inode.mtime_ns) for name, inode in names.items()}
            for path, names in survived.items()
        }

    def _note(self, operation: str) -> None:
        if self._is_dead or len(self.operations) == self.crash_at:
            self._is_dead = True
            raise Crash(operation)
        self.operations.append(operation)

    def _change(
        self, directory: Path, source: str | None, target: str | None, inode: Inode
    ) -> None:
        change = Change(directory, source, target, inode)
        change.apply(self._directories[directory].names)
        self._pending.append(change)

    def _now_ns(self) -> int:
        self._clock_ns += 1_000_000
        return self._clock_ns

    def _find(self, path: Path) -> Inode:
        directory = self._directories.get(path.parent)
        inode = None if directory is None else directory.names.get(path.name)
        if inode is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return inode

    # The port.

    def open_read(self, path: Path) -> ReadHandle:
        """Open a file to read."""
        return _Reader(self._find(path))

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Create, truncate or append."""
        self._note(f"open {path.name}")
        inode = self._directories[path.parent].names.get(path.name)
        if inode is None:
            inode = Inode(bytearray(), b"", self._now_ns())
            self._change(path.parent, None, path.name, inode)
        elif not append:
            inode.data.clear()
        return _Writer(self, path.name, inode)

    def listdir(self, path: Path) -> list[str]:
        """Return names of files and of directories."""
        if path not in self._directories:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        below = [other.name for other in self._directories if other.parent == path]
        return sorted([*self._directories[path].names, *below])

    def is_directory(self, path: Path) -> bool:
        """Say whether it is a directory."""
        return path in self._directories

    def directories_in(self, path: Path) -> frozenset[str]:
        """Return the names of directories in one."""
        return frozenset(other.name for other in self._directories if other.parent == path)

    def exists(self, path: Path) -> bool:
        """Say whether there is anything."""
        directory = self._directories.get(path.parent)
        return path in self._directories or (directory is not None and path.name in directory.names)

    def stat(self, path: Path) -> FileStat:
        """Return size and time."""
        inode = self._find(path)
        return FileStat(len(inode.data), inode.mtime_ns, id(inode))

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole."""
        data = bytes(self._find(path).data)
        if len(data) > limit:
            raise InvalidError(f"file is larger than the limit. path={path}")
        return data

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Replace a file step by step, each of which is an operation."""
        temporary = path.with_name(path.name + ".tmp")
        handle = self.open_write(temporary)
        handle.write(data)
        handle.fsync()
        self.rename(temporary, path)
        self.fsync_directory(path.parent)

    def append_durable(self, path: Path, data: Buffer) -> None:
        """Append and sync."""
        is_new = not self.exists(path)
        handle = self.open_write(path, append=True)
        handle.write(data)
        handle.fsync()
        if is_new:
            self.fsync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory."""
        self._note(f"rename {source.name} {target.name}")
        assert source.parent == target.parent
        self._change(source.parent, source.name, target.name, self._find(source))

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name in its directory."""
        self._note(f"link {source.name} {target.name}")
        assert source.parent == target.parent
        if self.exists(target):
            raise FileExistsError(17, "File exists", str(target))
        self._change(target.parent, None, target.name, self._find(source))

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        self._note(f"unlink {path.name}")
        self._change(path.parent, path.name, None, self._find(path))

    def fsync(self, path: Path) -> None:
        """Make content durable."""
        self._note(f"fsync {path.name}")
        inode = self._find(path)
        inode.durable = bytes(inode.data)

    def fsync_directory(self, path: Path) -> None:
        """Make names durable."""
        self._note(f"flush {path.name}")
        directory = self._directories[path]
        directory.durable = dict(directory.names)
        self._pending = [change for change in self._pending if change.directory != path]

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set the modification time."""
        self._find(path).mtime_ns = mtime_ns

    def copy_owner_and_mode(self, source: Path, target: Path) -> None:
        """Have no owners and no modes."""
        self._find(source)
        self._find(target)

    def make_directory(self, path: Path) -> None:
        """Create a directory, durably."""
        self._directories.setdefault(path, Directory())

    def free_bytes(self, path: Path) -> int:
        """Return what was given."""
        return self._free_bytes


class _Reader:
    """Reads an inode; a removed file can be read on."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        self._size_bytes = len(inode.data)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        part = self._inode.data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


class _Writer:
    """Appends to an inode."""

    def __init__(self, files: CrashingFiles, name: str, inode: Inode) -> None:
        self._files = files
        self._name = name
        self._inode = inode

    def write(self, data: Buffer) -> None:
        self._files._note(f"write {self._name}")
        self._inode.data += memoryview(data).cast("B")
        self._inode.mtime_ns = self._files._now_ns()

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        part = bytearray(length)
        assert source.pread_into(memoryview(part), position) == length
        self.write(part)

    def fsync(self) -> None:
        self._files._note(f"fsync {self._name}")
        self._inode.durable = bytes(self._inode.data)

    def close(self) -> None:
        pass


def load_image(root: Path) -> Image:
    """Return what lies in the real directory ``root`` and one level below it."""
    directories = [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
    return {
        directory: {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(directory.iterdir())
            if path.is_file()
        }
        for directory in directories
    }


def digest(image: Image) -> bytes:
    """Return what distinguishes images; modification times do not count."""
    found = hashlib.blake2b(digest_size=16)
    for path, files in sorted(image.items()):
        for name, (data, _) in sorted(files.items()):
            found.update(f"{path}\0{name}\0{len(data)}\0".encode())
            found.update(data)
    return found.digest()


def _chosen(count: int, dice: random.Random, *, mode: Mode, limit: int) -> Iterator[frozenset[int]]:
    """Yield the positions of the changes that survive, each choice once."""
    everything = frozenset(range(count))
    prefixes = [frozenset(range(length)) for length in range(count + 1)]
    if mode is Mode.PREFIX:
        yield from prefixes[:limit]
        return
    if 2**count <= limit:
        for bits in range(2**count):
            yield frozenset(position for position in everything if bits >> position & 1)
        return
    telling = [frozenset[int](), everything]
    telling += [everything - {position} for position in everything]
    telling += [frozenset({position}) for position in everything]
    telling += prefixes
    seen = set(telling[:limit])
    yield from dict.fromkeys(telling[:limit])
    while len(seen) < limit:
        share = dice.random()
        kept = frozenset(position for position in everything if dice.random() < share)
        if kept not in seen:
            seen.add(kept)
            yield kept


def _with_contents(survived: dict[Path, dict[str, Inode]], dice: random.Random) -> Iterator[Image]:
    """Yield one image for whole files, one for what is durable of them, one for what is between."""
    contents: dict[int, list[bytes]] = {
        id(inode): inode.contents(dice) for names in survived.values() for inode in names.values()
    }
    for variant in range(max((len(choices) for choices in contents.values()), default=1)):
        yield {
            path: {
                name: (contents[id(inode)][variant % len(contents[id(inode)])], inode.mtime_ns)
                for name, inode in names.items()
            }
            for path, names in survived.items()
        }
