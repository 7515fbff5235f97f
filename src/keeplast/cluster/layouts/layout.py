"""The port of a storage plugin's layout: what lies where in the remote tier, and in which form.

The rule: **every segment is read by its own description, and nothing is written under an id that
was used before**. Brokers cache by segment id, some of them for ever. What a plugin would not read
is refused by name before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from keeplast.format.checksum import Buffer
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.inspect.foreign_search import ForeignPath


class AuxiliaryFile(StrEnum):
    """What a plugin stores beside a segment's log; content as in a broker's own directory."""

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
"""The own object by which is tried what a store allows, and whether it heeds conditions.

It is removed each time. One that may not be removed is written over by the next try.
"""


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """A log that was written, and is not yet described: what a task hands to who publishes.

    ``size_bytes`` is the log's own, ``description`` the layout's (JSON; keys only wrapped).
    """

    size_bytes: int
    description: bytes


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """Objects of one segment id as a listing shows them: bytes stored, newest change."""

    segment_id: bytes
    start_offset: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class FoundOwn:
    """An object of keeplast's own as a listing shows it; ``name`` is as it is read by."""

    name: str
    modified_ms: int


class SegmentReader(Protocol):
    """A segment that is there, as brokers would read it; safe for threads."""

    @property
    def log_bytes(self) -> int:
        """Return the size of the log, as it was before compression and encryption."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` with the log's bytes from ``start`` on; return how many, less at its end.

        CorruptError for damage; then ``buffer`` may hold anything.
        """
        ...

    def read_log(self, start: int, end: int) -> memoryview:
        """Return the log's bytes ``[start, end)`` in memory of their own, as :meth:`read_into`."""
        buffer = memoryview(bytearray(max(min(end, self.log_bytes) - start, 0)))
        return buffer[: self.read_into(start, buffer)]

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        """Return a file beside the log; None for a transaction index that the segment has not."""
        ...


class LogWriter(Protocol):
    """A segment's log while it is written as a stream; nobody sees it yet."""

    def write(self, data: Buffer) -> None:
        """Append to the log."""
        ...

    def close(self) -> WrittenLog:
        """Make the log's object appear, whole, and return what its description needs."""
        ...

    def abort(self) -> None:
        """Give up what was written; no object appears."""
        ...


class RemoteLayout(Protocol):
    """Where and how one plugin keeps segments. Values travel between processes: it is pickled.

    UnavailableError when the store fails, FileNotFoundError for an object that is not there.
    """

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment by its own description.

        CorruptError when description, sizes and announcement disagree; RefusedError for a variant
        that is not known, naming it.
        """
        ...

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return which of ``sources``, oldest first, outputs are written like.

        The newest of the strongest: an encrypted one where any is, with the largest chunks. It
        reads descriptions; ask once for a round, where it is decided.
        """
        ...

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start the log of a new segment in the variant of ``like``, never a weaker one.

        ``like`` is what :meth:`pattern` returned. ConflictError when there is one under this id.
        """
        ...

    def complete(
        self,
        segment: RemoteLogSegment,
        written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes],
        like: RemoteLogSegment,
    ) -> bytes | None:
        """Write what stands beside the log, its description last.

        ``auxiliary`` has all of ALWAYS_THERE; ``like`` is the newest source. Returns the custom
        metadata of the finished segment, None where the plugin keeps none; its fields are those of
        ``like``. Done once more after a crash, it does no harm.
        """
        ...

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove all objects of a segment; those that are gone already are no error."""
        ...

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove what :meth:`list` found, whether it was ever announced or not."""
        ...

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield what lies in a partition's place, by segment id, known or not."""
        ...

    def foreign(self) -> Iterator[ForeignPath]:
        """Yield what lies in the tier's place under names that the plugin and keeplast never give.

        Other topics' segments have such names, and are left out.
        """
        ...

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Say whether the store tells of a segment's log that deleting it would only hide it."""
        ...

    def check_conditions(self) -> None:
        """RefusedError when the store does not heed the conditions of the four methods below.

        It writes an object of keeplast's own to find out, and removes it.
        """
        ...

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small object of keeplast's own, where no plugin looks; False if it is there.

        ``name`` is a relative path of letters, digits, ``.``, ``_`` and ``-``; data is not empty.
        After a lost answer False may speak of one's own: compare what is there.
        """
        ...

    def read_own(self, name: str) -> bytes | None:
        """Return a small object of keeplast's own, None when there is none."""
        ...

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace an own object that still is ``expected``; False, and nothing is written, else."""
        ...

    def delete_own(self, name: str) -> None:
        """Remove an own object; one that is gone already is no error."""
        ...

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield the own objects right below ``folder``, in any order; none where there is none.

        What has a name that no own object has is a stranger's, and left out.
        """
        ...
