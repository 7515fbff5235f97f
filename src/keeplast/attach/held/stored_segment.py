"""Whether a segment lies in the remote tier as brokers will read it: all of it, batch by batch.

The rule: **nothing that was replaced is deleted before what replaced it was read from the store**.
A broker's caches hide an object that is missing, for hours; so brokers are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from keeplast.cluster.layouts.layout import ALWAYS_THERE, AuxiliaryFile, RemoteLayout, SegmentReader
from keeplast.cluster.metadata_cache import is_compactors
from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.log.indexes import IndexCheck
from keeplast.log.windows import Window, WindowBuffers, read_windows


def check_stored(layout: RemoteLayout, segment: RemoteLogSegment) -> None:
    """Read all of ``segment``; CorruptError when brokers would not read what was announced.

    Sizes, checksums and offsets of every batch, both indexes against the batches, and that the
    other files can be read.
    """
    read = StoredSegment(layout, segment)
    for _ in read.windows(WindowBuffers()):
        pass
    for each in read.index_problems():
        raise each


class StoredSegment:
    """A segment that is read from its objects once, checked on the way."""

    def __init__(self, layout: RemoteLayout, segment: RemoteLogSegment) -> None:
        """Look at nothing yet."""
        self.segment = segment
        self.aborted: list[txn_index.AbortedTransaction] = []
        """What its transaction index says, once :meth:`windows` has begun."""
        self._layout = layout
        self._path = Path(f"{segment.start_offset:020d}-{encode_id(segment.id.segment_id)}")
        self._indexes: IndexCheck | None = None

    def windows(self, buffers: WindowBuffers) -> Iterator[Window]:
        """Yield all batches; CorruptError, at the end at the latest, for what is not as announced.

        Not for an index that lies: see :meth:`index_problems`.
        """
        try:
            yield from self._windows(buffers)
        except FileNotFoundError as error:
            raise CorruptError(
                "an object of a remote segment is missing",
                path=str(error.filename or self._path),
                code="K412",
            ) from error

    def headers(self, buffers: WindowBuffers) -> Iterator[Window]:
        """Yield all batches with unchecked checksums; CorruptError for a log that cannot be
        followed, FileNotFoundError when it is gone.
        """
        log = _StoredLog(self._layout.open(self.segment))
        yield from read_windows(log, self._path, buffers, checks_crc=False)

    def index_problems(self) -> list[CorruptError]:
        """Return what the indexes say and the batches do not, when all windows were read."""
        if self._indexes is None:
            return []
        self._indexes.finish()
        return [
            CorruptError(
                f"an index of a remote segment lies: {each.problem}",
                path=f"{self._path}{each.kind}", expected=each.expected, found=each.found,
                code="K437",
            )
            for each in self._indexes.problems
        ]  # fmt: skip

    def _windows(self, buffers: WindowBuffers) -> Iterator[Window]:
        segment, path = self.segment, self._path
        reader = self._layout.open(segment)
        if reader.log_bytes != segment.size_bytes:
            raise CorruptError(
                "a remote log has not the size that was announced", path=str(path), position=0,
                expected=segment.size_bytes, found=reader.log_bytes, code="K437",
            )  # fmt: skip
        files = {kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile}
        for kind in ALWAYS_THERE:
            if files[kind] is None:
                raise CorruptError(
                    "a file of a remote segment is missing", path=f"{path}.{kind}", code="K412"
                )
        self._indexes = IndexCheck(
            offset_index.decode(files[AuxiliaryFile.OFFSET_INDEX] or b""),
            time_index.decode(files[AuxiliaryFile.TIME_INDEX] or b""),
            base_offset=segment.start_offset, last_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
        )  # fmt: skip
        producer_snapshot.decode(files[AuxiliaryFile.SNAPSHOT] or b"")
        leader_epoch.decode(files[AuxiliaryFile.LEADER_EPOCHS] or b"")
        aborted = txn_index.decode(files[AuxiliaryFile.TXN_INDEX] or b"")
        # Brokers ask for no index that was announced as empty.
        self.aborted = [] if segment.is_txn_index_empty else list(aborted)
        expected = segment.start_offset
        for window in read_windows(_StoredLog(reader), path, buffers):
            self._indexes.add(window)
            for row in window.table[: window.batches]:
                if row[t.BASE_OFFSET] < expected or row[t.LAST_OFFSET] < row[t.BASE_OFFSET]:
                    raise CorruptError(
                        "offsets of a remote log do not ascend", path=str(path),
                        position=window.position + int(row[t.POSITION]), expected=expected,
                        found=int(row[t.BASE_OFFSET]), code="K437",
                    )  # fmt: skip
                expected = int(row[t.LAST_OFFSET]) + 1
            yield window
        # A broker's own may end early: its cleaner had it before its topic was tiered, and leaves
        # no batch to close it.
        is_early = expected <= segment.end_offset and not is_compactors(segment)
        if expected != segment.end_offset + 1 and not is_early:
            raise CorruptError(
                "a remote log ends at another offset than was announced: consumers would stop "
                "there",
                path=str(path), position=segment.size_bytes, expected=segment.end_offset,
                found=expected - 1, code="K437",
            )  # fmt: skip


class _StoredLog(Struct, frozen=True):
    """The log as a file that is read by position."""

    reader: SegmentReader

    @property
    def size_bytes(self) -> int:
        return self.reader.log_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        return self.reader.read_into(position, buffer)

    def close(self) -> None:
        """Nothing is held open."""
