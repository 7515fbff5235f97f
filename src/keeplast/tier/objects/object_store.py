"""What the tier needs of an object store, and where its objects lie.

An object is written once, under a key that holds a segment id nobody used before, and is never
overwritten: a late writer can waste space and nothing else. Keys:

    <topic>-<partition>/<topic id>/<segment id>/<base offset>.log      and its indexes beside it
    <topic>-<partition>/<topic id>/<segment id>/filter
    keeplast-store                                                     whose objects these are
    keeplast-marks/<number>                                            how far metadata has been

Nothing is read from a listing but what may be collected: the metadata store says what is live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from keeplast.model.partition import TopicPartition

FILTER = "filter"
ID_CHARS = 32
STORE_NAME = "keeplast-store"
"""The object that names the one store whose objects lie here."""
STORE_PROBE = "keeplast-probe"
"""Written and removed when a store is made, to see whether both are allowed."""
MARKS = "keeplast-marks"
"""The folder of the objects that say how far metadata has been; see :mod:`.marks`."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A key of the store, its size and when it was written, in milliseconds."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectWriter(Protocol):
    """An object while it is written; it appears when it is closed, whole, or not at all."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to what will be the object; nobody sees it yet."""
        ...

    def close(self) -> None:
        """Make the object appear, whole, or raise UnavailableError."""
        ...

    def abort(self) -> None:
        """Give up what was written; no object appears."""
        ...


class ObjectStore(Protocol):
    """Objects by key. UnavailableError when the store fails, FileNotFoundError for no object."""

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Return the bytes ``[start, end)``, less at the end of the object."""
        ...

    def stat(self, key: str) -> StoredObject:
        """Return size and time."""
        ...

    def open_write(self, key: str) -> ObjectWriter:
        """Start an object under a key that is not there."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with the path ``prefix``, in any order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone already is no error."""
        ...


@runtime_checkable
class FillsBuffers(Protocol):
    """An object store that can put bytes where they are wanted, without memory between."""

    def fill(self, key: str, start: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` with the object's bytes from ``start`` on.

        False where it cannot, for whatever reason: then it may hold anything, and who asks for the
        range is told.
        """
        ...


@runtime_checkable
class OnDisk(Protocol):
    """An object store whose objects may be files, below ``directory``; None where they are none."""

    @property
    def directory(self) -> Path | None:
        """Return where the files are."""
        ...


def fill(objects: ObjectStore, key: str, start: int, buffer: memoryview) -> bool:
    """Have ``objects`` fill ``buffer`` if it can; False, and the range is to be asked for, else."""
    return isinstance(objects, FillsBuffers) and objects.fill(key, start, buffer)


class ObjectPlace(ObjectStore, Protocol):
    """Objects of which one can be written where nobody else has: who was first is for the store
    to say, whatever several hosts do at once."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Write an object, whole; False, and nothing is written, when there is one already.

        After a lost answer False may speak of one's own: compare what is there.
        """
        ...


class ObjectTree(ObjectStore, Protocol):
    """Objects whose keys are taken for paths: what a data directory in an object store needs."""

    def children(self, prefix: str) -> tuple[tuple[StoredObject, ...], tuple[str, ...]]:
        """Return the objects directly below the path ``prefix``, and the names of its folders."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, over whatever is at ``target``."""
        ...


def partition_prefix(partition: TopicPartition, topic_id: str) -> str:
    """Return the path below which all objects of a partition lie; InvalidError for a name that no
    broker takes."""
    return f"{partition.checked()}/{topic_id}"


def object_key(
    partition: TopicPartition, topic_id: str, segment_id: str, base_offset: int, suffix: str
) -> str:
    """Return the key of one file of a segment; ``suffix`` is ``.log`` and the like, or FILTER."""
    name = suffix if suffix == FILTER else f"{base_offset:020d}{suffix}"
    return f"{partition_prefix(partition, topic_id)}/{segment_id}/{name}"


def segment_of_key(key: str) -> str | None:
    """Return the segment id in a key, None for a key that is none of ours."""
    parts = key.split("/")
    if len(parts) < 4 or len(parts[-2]) != ID_CHARS:
        return None
    return parts[-2]


def topic_ids_of(keys: Iterable[str]) -> dict[str, str]:
    """Return under which topic id the objects of each segment lie.

    Not always the partition's own: of a topic that was given up, and whose name is taken again,
    what is not collected yet stays where it was.
    """
    return {
        segment_id: key.split("/")[-3]
        for key in keys
        if (segment_id := segment_of_key(key)) is not None
    }
