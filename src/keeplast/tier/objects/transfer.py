"""Copies a local segment into object storage, with everything that KIP-405 keeps next to it.

The objects are read back and compared before a process may say that they are there. A store that
lost a part would be noticed while the local segment still exists. Files: the log, its indexes, the
producers at its end (``.snapshot``) and the leader epochs up to there (``.epochs``).

A log that was cleaned before may have segments whose last records are gone. They get an empty batch
at their end, as the cleaner leaves one (I-6): a segment without a directory around it must show
where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from keeplast.columns import batches as t
from keeplast.errors import CorruptError, UnavailableError
from keeplast.format import leader_epoch, offset_index, time_index, txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.checksum import crc32c
from keeplast.format.filename import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, reading
from keeplast.log.indexes import IndexCheck
from keeplast.log.partition_log import (
    SegmentFiles,
    SegmentIndexes,
    load_indexes,
    rebuild_indexes,
)
from keeplast.log.windows import WindowBuffers, read_from, read_windows
from keeplast.model.partition import INT32_MAX, TopicPartition
from keeplast.tier.objects.object_store import ObjectStore, object_key
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, SegmentKind

EPOCHS = ".epochs"
PART_BYTES = 8 << 20


def copy_segment(
    objects: ObjectStore,
    files: FileSystem,
    segment: SegmentFiles,
    *,
    partition: TopicPartition,
    topic_id: str,
    segment_id: str,
    next_offset: int,
    lineage: Sequence[LeaderEpoch],
    leader_epoch_of_owner: int,
    number: int,
    cleaner_offsets: dict[int, int],
    index_interval_bytes: int,
    aborted: Sequence[AbortedTransaction],
    from_offset: int | None = None,
    is_cut: bool = False,
) -> RemoteSegment:
    """Upload a closed local segment ``[base, next_offset)`` under ``segment_id`` and verify it.

    ``aborted`` becomes its transaction index, which readers of the store trust: it is what the
    markers say (:func:`keeplast.log.transactions.aborted_by_segment`), not the local index.
    ``from_offset`` above the base leaves out the batches below it, which another segment has.
    ``is_cut`` leaves out those from ``next_offset`` on, where a batch must begin or none lie.
    UnavailableError when what was stored is not what was sent. Nothing is live before the metadata
    store says so.
    """
    base = segment.base_offset if from_offset is None else max(segment.base_offset, from_offset)
    key = partial(object_key, partition, topic_id, segment_id, base)
    # Built again where they are missing or lie, so that no reader has to do it from objects.
    buffers = WindowBuffers()
    indexes = load_indexes(segment, files, index_interval_bytes, buffers)
    start, _ = _find_batch(files, segment, indexes, base)
    kept, is_whole = indexes, not start
    if is_cut:
        stop, _ = _find_batch(files, segment, indexes, next_offset)
        is_whole = is_whole and stop == segment.size_bytes
        segment = replace(segment, size_bytes=stop)
    if not is_whole:
        # Not cut from the whole: where the greatest timestamp is left out, another one counts.
        kept = rebuild_indexes(
            segment, files, index_interval_bytes, buffers, start=start, base_offset=base
        )
    epochs = epochs_between(lineage, base, next_offset)
    end = end_batch(files, segment, indexes, base, next_offset, epochs[-1].epoch)
    log, is_sound = _stream_log(
        objects, files, segment, key(LOG), kept if is_whole else None, start=start, end=end,
        last_offset=next_offset - 1,
    )  # fmt: skip
    if not is_sound:
        kept = rebuild_indexes(segment, files, index_interval_bytes, buffers)
    small_files = _small_files(
        kept,
        [entry for entry in lineage if entry.start_offset < next_offset],
        [entry for entry in aborted if base <= entry.last_offset < next_offset],
    )
    stored = {LOG: log}
    for suffix, content in small_files.items():
        stored[suffix] = put_small(objects, key(suffix), content)
    snapshot = segment.directory / segment_file(next_offset, SNAPSHOT)
    if files.exists(snapshot):
        stored[SNAPSHOT] = _stream(objects, files, snapshot, key(SNAPSHOT))
    return RemoteSegment(
        segment_id=segment_id,
        base_offset=base,
        last_offset=next_offset - 1,
        epochs=epochs,
        size_bytes=stored[LOG].size_bytes,
        max_timestamp_ms=kept.largest_timestamp_ms,
        mtime_ms=segment.mtime_ms,
        kind=SegmentKind.RAW,
        leader_epoch=leader_epoch_of_owner,
        number=number,
        cleaner_offsets=cleaner_offsets,
        files=stored,
    )


def _small_files(
    indexes: SegmentIndexes, lineage: Sequence[LeaderEpoch], aborted: Sequence[AbortedTransaction]
) -> dict[str, bytes]:
    """Return what lies next to a segment by its suffix; no index of transactions without any."""
    found = {
        INDEX: offset_index.encode(indexes.offsets),
        TIME_INDEX: time_index.encode(indexes.times),
        EPOCHS: leader_epoch.encode(lineage),
    }
    return found | ({TXN_INDEX: txn_index.encode(aborted)} if aborted else {})


def find_cut(
    files: FileSystem, segment: SegmentFiles, offset: int, index_interval_bytes: int
) -> int:
    """Return where a segment can be cut so that nothing at or above ``offset`` stays: there, or
    where the batch begins that holds it."""
    indexes = load_indexes(segment, files, index_interval_bytes, WindowBuffers())
    _, base = _find_batch(files, segment, indexes, offset)
    return offset if base is None else max(min(base, offset), segment.base_offset)


def _find_batch(
    files: FileSystem, segment: SegmentFiles, indexes: SegmentIndexes, offset: int
) -> tuple[int, int | None]:
    """Return where the first batch lies that ends at or above ``offset``, and its base offset.

    The end of the file, and None, when there is no such batch.
    """
    if offset <= segment.base_offset:
        return 0, segment.base_offset
    start = indexes.position_before(offset - segment.base_offset)
    with reading(files, segment.log_path) as handle:
        for window in read_from(
            handle, segment.log_path, WindowBuffers(), position=start, offset=offset,
            end=segment.size_bytes,
        ):  # fmt: skip
            rows = window.table[: window.batches]
            found = np.flatnonzero(rows[:, t.LAST_OFFSET] >= offset)
            if len(found):
                row = rows[found[0]]
                return window.position + int(row[t.POSITION]), int(row[t.BASE_OFFSET])
    return segment.size_bytes, None


def epochs_between(
    lineage: Sequence[LeaderEpoch], base_offset: int, next_offset: int
) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs of the records in ``[base_offset, next_offset)``.

    A log without a leader-epoch checkpoint is epoch 0 from its first offset on.
    """
    if not lineage:
        return (LeaderEpoch(0, base_offset),)
    found: list[LeaderEpoch] = []
    for position, entry in enumerate(lineage):
        following = lineage[position + 1 :]
        end = following[0].start_offset if following else next_offset
        if entry.start_offset < next_offset and end > base_offset:
            found.append(LeaderEpoch(entry.epoch, max(entry.start_offset, base_offset)))
    return tuple(found) or (LeaderEpoch(lineage[0].epoch, base_offset),)


def put_small(objects: ObjectStore, key: str, content: bytes) -> RemoteFile:
    """Write a small object and read it back."""
    writer = objects.open_write(key)
    writer.write(content)
    writer.close()
    made = RemoteFile(len(content), crc32c(content))
    check_object(objects, key, made)
    return made


def check_object(objects: ObjectStore, key: str, expected: RemoteFile) -> None:
    """Read an object by ranges; UnavailableError unless it is there and what was sent.

    A process that was away since it was sent may find that a newer leader has removed it, as
    garbage.
    """
    try:
        crc, size = crc_of(objects, key)
    except FileNotFoundError as error:
        raise UnavailableError(
            "what was sent to the object store is not there; it is sent again unless a newer "
            f"leader has removed it. key={key}",
            code="K305",
        ) from error
    if (size, crc) != (expected.size_bytes, expected.crc32c):
        raise UnavailableError(
            "the object store has not kept what was sent; it is written again. "
            f"key={key} expected_bytes={expected.size_bytes} found_bytes={size} "
            f"expected_crc32c={expected.crc32c} found_crc32c={crc}",
            code="K305",
        )


def crc_of(objects: ObjectStore, key: str) -> tuple[int, int]:
    """Return the CRC-32C and the size of an object, read by ranges."""
    crc, size = 0, objects.stat(key).size_bytes
    for position in range(0, size, PART_BYTES):
        data = objects.read_range(key, position, min(position + PART_BYTES, size))
        crc = crc32c(data, crc)
    return crc, size


def download_object(
    objects: ObjectStore,
    files: FileSystem,
    key: str,
    expected: RemoteFile,
    path: Path,
    *,
    mtime_ms: int,
) -> None:
    """Write an object to a local file, flushed; CorruptError, and no file, when it is another."""
    crc = 0
    handle = files.open_write(path)
    try:
        for position in range(0, expected.size_bytes, PART_BYTES):
            end = min(position + PART_BYTES, expected.size_bytes)
            data = objects.read_range(key, position, end)
            handle.write(data)
            crc = crc32c(data, crc)
        handle.fsync()
    finally:
        handle.close()
    if crc != expected.crc32c:
        files.unlink(path)
        raise CorruptError(
            "an object is not what was uploaded", path=key, position=0,
            expected=f"0x{expected.crc32c:08x}", found=f"0x{crc:08x}", code="K309",
        )  # fmt: skip
    files.set_mtime(path, mtime_ms * 1_000_000)


def file_crc(files: FileSystem, path: Path) -> int:
    """Return the CRC-32C of a local file."""
    crc = position = 0
    with reading(files, path) as handle:
        buffer = memoryview(bytearray(max(1, min(PART_BYTES, handle.size_bytes))))
        while count := handle.pread_into(buffer, position):
            crc = crc32c(buffer[:count], crc)
            position += count
    return crc


def end_batch(
    files: FileSystem, segment: SegmentFiles, indexes: SegmentIndexes, base_offset: int,
    next_offset: int, epoch: int,
) -> bytes:  # fmt: skip
    """Return an empty batch that ends where the segment does, nothing when its own last one does.

    It begins at ``base_offset`` or above. CorruptError when the segment cannot be read to its end,
    or reaches beyond ``next_offset``.
    """
    start = indexes.position_before(next_offset - 1 - segment.base_offset)
    found = base_offset
    with reading(files, segment.log_path) as handle:
        for window in read_from(
            handle, segment.log_path, WindowBuffers(), position=start,
            offset=next_offset - 1, end=segment.size_bytes,
        ):  # fmt: skip
            found = max(found, int(window.table[window.batches - 1, t.LAST_OFFSET]) + 1)
    if found > next_offset:
        raise CorruptError(
            "a segment reaches into the next one", path=str(segment.log_path),
            position=segment.size_bytes, expected=f"<= {next_offset}", found=found, code="K341",
        )  # fmt: skip
    if found == next_offset:
        return b""
    last = next_offset - 1
    base = max(found, last - INT32_MAX)
    return encode_batch([], base_offset=base, last_offset=last, leader_epoch=epoch)


def _stream_log(
    objects: ObjectStore,
    files: FileSystem,
    segment: SegmentFiles,
    key: str,
    indexes: SegmentIndexes | None,
    *,
    start: int,
    end: bytes,
    last_offset: int,
) -> tuple[RemoteFile, bool]:
    """Write the batches of a segment from ``start`` on and then ``end``, and read the object back.

    Says too whether ``indexes``, of the whole segment, are what its batches say. Checksums of data
    are not looked at: what is damaged is copied as it is.
    """
    check = None
    if indexes is not None:
        check = IndexCheck(
            indexes.offsets, indexes.times, base_offset=segment.base_offset,
            last_offset=last_offset, size_bytes=segment.size_bytes,
        )  # fmt: skip
    crc = size = 0
    with reading(files, segment.log_path) as handle:
        writer = objects.open_write(key)
        try:
            for window in read_windows(
                handle, segment.log_path, WindowBuffers(PART_BYTES), start=start,
                end=segment.size_bytes, checks_crc=False,
            ):  # fmt: skip
                if check is not None:
                    check.add(window)
                data = window.data.data[: window.length]
                writer.write(data)
                crc = crc32c(data, crc)
                size += window.length
            if end:
                writer.write(end)
                crc = crc32c(end, crc)
            writer.close()
        except BaseException:
            writer.abort()
            raise
    made = RemoteFile(size + len(end), crc)
    check_object(objects, key, made)
    if check is None:
        return made, True
    check.finish()
    return made, not check.problems


def _stream(objects: ObjectStore, files: FileSystem, path: Path, key: str) -> RemoteFile:
    """Write a file, and read the object back."""
    crc = position = 0
    with reading(files, path) as handle:
        writer = objects.open_write(key)
        buffer = memoryview(bytearray(min(PART_BYTES, max(handle.size_bytes, 1))))
        try:
            while count := handle.pread_into(buffer, position):
                writer.write(buffer[:count])
                crc = crc32c(buffer[:count], crc)
                position += count
            writer.close()
        except BaseException:
            writer.abort()
            raise
    made = RemoteFile(position, crc)
    check_object(objects, key, made)
    return made
