"""Whether a segment lies in the remote tier as brokers will read it: all of it, batch by batch.

The rule: **nothing that was replaced is deleted before what replaced it was read from the store**.
A broker's caches hide an object that is missing, for hours; so brokers are not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from keeplast.cluster.layouts.layout import ALWAYS_THERE, AuxiliaryFile, RemoteLayout, SegmentReader
from keeplast.columns import batch_table as t
from keeplast.errors import CorruptError
from keeplast.format import leader_epoch, offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.log.index_check import IndexCheck
from keeplast.log.windows import WindowBuffers, read_windows


def check_stored(layout: RemoteLayout, segment: RemoteLogSegment) -> None:
    """Read all of ``segment``; CorruptError when brokers would not read what was announced.

    Sizes, checksums and offsets of every batch, both indexes against the batches, and that the
    other files can be read.
    """
    path = Path(f"{segment.start_offset:020d}-{encode_id(segment.id.segment_id)}")
    try:
        _check(layout, segment, path)
    except FileNotFoundError as error:
        raise CorruptError(
            "an object of a remote segment is missing", path=str(error.filename or path)
        ) from error


def _check(layout: RemoteLayout, segment: RemoteLogSegment, path: Path) -> None:
    reader = layout.open(segment)
    if reader.log_bytes != segment.size_bytes:
        raise CorruptError(
            "a remote log has not the size that was announced", path=str(path), position=0,
            expected=segment.size_bytes, found=reader.log_bytes,
        )  # fmt: skip
    files = {kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile}
    for kind in ALWAYS_THERE:
        if files[kind] is None:
            raise CorruptError("a file of a remote segment is missing", path=f"{path}.{kind}")
    indexes = IndexCheck(
        offset_index.decode(files[AuxiliaryFile.OFFSET_INDEX] or b""),
        time_index.decode(files[AuxiliaryFile.TIME_INDEX] or b""),
        base_offset=segment.start_offset, last_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
    )  # fmt: skip
    producer_snapshot.decode(files[AuxiliaryFile.SNAPSHOT] or b"")
    leader_epoch.decode(files[AuxiliaryFile.LEADER_EPOCHS] or b"")
    transactions = files[AuxiliaryFile.TXN_INDEX]
    if transactions is not None:
        txn_index.decode(transactions)
    expected = segment.start_offset
    for window in read_windows(_StoredLog(reader), path, WindowBuffers()):
        indexes.add(window)
        for row in window.table[: window.batches]:
            if row[t.BASE_OFFSET] < expected or row[t.LAST_OFFSET] < row[t.BASE_OFFSET]:
                raise CorruptError(
                    "offsets of a remote log do not ascend", path=str(path),
                    position=window.position + int(row[t.POSITION]), expected=expected,
                    found=int(row[t.BASE_OFFSET]),
                )  # fmt: skip
            expected = int(row[t.LAST_OFFSET]) + 1
    if expected != segment.end_offset + 1:
        raise CorruptError(
            "a remote log ends at another offset than was announced: consumers would stop there",
            path=str(path), position=segment.size_bytes, expected=segment.end_offset,
            found=expected - 1,
        )  # fmt: skip
    indexes.finish()
    for problem in indexes.problems:
        raise CorruptError(
            f"an index of a remote segment lies: {problem.problem}",
            path=f"{path}{problem.kind}", expected=problem.expected, found=problem.found,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _StoredLog:
    """The log as a file that is read by position."""

    reader: SegmentReader

    @property
    def size_bytes(self) -> int:
        return self.reader.log_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.reader.read_log(position, position + len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing is held open."""
