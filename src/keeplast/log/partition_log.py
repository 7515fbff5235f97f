"""A partition directory as a broker left it: its segments, their indexes, and where the log ends.

Nothing here writes. While segments are being swapped, and where a crash has cut that off, some
offsets are in no ``.log`` file. Such a directory is not listed at all, so that no reader takes a
part for the log. :mod:`keeplast.log.readers` waits for the end of a swap. A torn tail of the
*active* segment ends the log there and is reported; damage anywhere else surfaces when a reader
reaches it. Indexes that are missing or cannot be right are rebuilt in memory by the rule that
recovery uses. Answers to Kafka's ``LogLoader`` without its truncation; formats.md sections 2 and
3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.errors import (
    CorruptError,
    InterruptedSwapError,
    RefusedError,
    UnavailableError,
)
from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.filename import (
    INCOMPLETE,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Kind,
    parse_segment_file,
    segment_file,
)
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import FileSystem, LocalReadHandle, reading
from keeplast.log.indexes import (
    IndexBuilder,
    filled_entries,
    read_index,
    read_index_start,
)
from keeplast.log.lock import is_locked
from keeplast.log.paths import child_path, is_object_path, url_of
from keeplast.log.windows import Window, WindowBuffers, read_from, read_windows
from keeplast.model.partition import INT32_MAX, SegmentSummary

INDEX_BYTES_MAX = 1 << 30
SNAPSHOT_BYTES_MAX = 1 << 30
SEGMENT_BYTES_MAX = INT32_MAX


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A segment's name, size and times, as listed; nothing of its content."""

    directory: Path
    base_offset: int
    size_bytes: int
    mtime_ns: int
    inode: int = field(default=0, compare=False)

    def path(self, kind: Kind) -> Path:
        """Return the path of one of the segment's files."""
        return child_path(self.directory, segment_file(self.base_offset, kind))

    @property
    def log_path(self) -> Path:
        """Return the path of the segment's ``.log`` file."""
        return self.path(LOG)

    @property
    def mtime_ms(self) -> int:
        """Return the modification time as Kafka sees it, in milliseconds."""
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """All segments of a partition, ascending, the last one active; what else lies next to them.

    ``without_index`` are the bases of segments that have no offset index, ``with_aborted`` those of
    transaction indexes; None where nothing was listed, and files have to be asked.
    """

    path: Path
    segments: tuple[SegmentFiles, ...]
    snapshots: tuple[int, ...]
    leftovers: tuple[str, ...]
    unknown: tuple[str, ...]
    without_index: frozenset[int] | None = field(default=None, compare=False)
    with_aborted: frozenset[int] | None = field(default=None, compare=False)

    def has_index(self, segment: SegmentFiles, files: FileSystem) -> bool:
        """Say whether a segment has an offset index, as listed."""
        if self.without_index is None:
            return files.exists(segment.path(INDEX))
        return segment.base_offset not in self.without_index

    def may_have_aborted(self, segment: SegmentFiles) -> bool:
        """Return False where no transaction index was listed at a segment's base."""
        return self.with_aborted is None or segment.base_offset in self.with_aborted

    @property
    def active(self) -> SegmentFiles:
        """Return the segment that is appended to."""
        return self.segments[-1]


def list_partition(
    path: Path,
    files: FileSystem,
    *,
    if_empty: int | None = None,
    names: Sequence[str] | None = None,
) -> PartitionFiles:
    """List a partition directory; RefusedError when what is in it is not understood.

    UnavailableError while segments are being swapped in it, InterruptedSwapError where a crash has
    cut that off.

    A directory without any file of a segment is an empty log to a broker, which makes the first one
    at the log start offset. That is ``if_empty``, where an empty segment is listed then that has no
    file; None where a log without segments is of no use.

    ``leftovers`` are staged files (``.cleaned``, ``.deleted``) of an earlier run; ``unknown`` are
    names that brokers ignore too. ``names`` are what the caller has just listed.
    """
    segments: list[SegmentFiles] = []
    snapshots: list[int] = []
    leftovers: list[str] = []
    unknown: list[str] = []
    indexes: dict[Kind, set[int]] = {INDEX: set(), TXN_INDEX: set()}
    names = settled_names(path, files, names)
    for name in names:
        parsed = parse_segment_file(name)
        if name == INCOMPLETE:
            raise RefusedError(
                "a clean --to or export --as log that ended early has left this; run it again, "
                f"which starts over, or remove the directory. path={path / name}",
                code="K229",
            )
        if parsed is None:
            unknown.append(name)
        elif parsed.stage:
            leftovers.append(name)
        elif parsed.kind == SNAPSHOT:
            snapshots.append(parsed.base_offset)
        elif parsed.kind in indexes:
            indexes[parsed.kind].add(parsed.base_offset)
        elif parsed.kind == LOG:
            status = files.stat(child_path(path, name))
            if status.size_bytes > SEGMENT_BYTES_MAX:
                raise RefusedError(
                    f"segment is larger than a broker can open. path={path / name} "
                    f"size_bytes={status.size_bytes} limit={SEGMENT_BYTES_MAX}",
                    code="K209",
                )
            segments.append(
                SegmentFiles(
                    path, parsed.base_offset, status.size_bytes, status.mtime_ns, status.inode
                )
            )
    if not segments and if_empty is not None and is_empty_log(names):
        segments.append(SegmentFiles(path, if_empty, 0, 0))
    if not segments:
        raise RefusedError(
            f"no segment in the partition directory; choose another one. path={path}", code="K116"
        )
    segments.sort(key=lambda segment: segment.base_offset)
    return PartitionFiles(
        path, tuple(segments), tuple(sorted(snapshots)), tuple(leftovers), tuple(unknown),
        without_index=frozenset(s.base_offset for s in segments) - indexes[INDEX],
        with_aborted=frozenset(indexes[TXN_INDEX]),
    )  # fmt: skip


def settled_names(
    path: Path, files: FileSystem, names: Sequence[str] | None = None
) -> Sequence[str]:
    """Return the names in a partition directory; errors of a swap as :func:`list_partition`."""
    names = files.listdir(path) if names is None else names
    if not any(_is_swap(name) for name in names if name.endswith(SWAP)):
        return names
    # Asked before the names are listed again: the process that lets go of it has ended the swap.
    is_at_work = is_locked(path.parent)
    names = files.listdir(path)
    if not any(map(_is_swap, names)):
        return names
    if is_at_work:
        raise UnavailableError(
            f"segments are being replaced just now; try again. path={path}", code="K205"
        )
    if is_object_path(path):
        raise InterruptedSwapError(
            "this copy was made during a swap of segments, and is not the whole log; end the "
            "swap there with keeplast clean or by the broker's start. Then copy the directory "
            f"again. url={url_of(path)}",
            code="K204",
        )
    raise InterruptedSwapError(
        "a swap of segments was interrupted, so that this is not the whole log; end it with "
        f"keeplast clean or keeplast run {path.parent}, or by starting the broker. path={path}",
        code="K204",
    )


def _is_swap(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.stage == SWAP


def is_empty_log(names: Sequence[str]) -> bool:
    """Say whether a partition directory has no file of a segment, staged ones included."""
    return all(parse_segment_file(name) is None for name in names)


class SegmentIndexes(Struct, frozen=True):
    """The indexes of one segment; ``rebuilt`` says that the files could not be used."""

    offsets: NDArray[np.int64]
    times: NDArray[np.int64]
    rebuilt: bool

    @property
    def size_bytes(self) -> int:
        """Return what the entries take in memory."""
        return self.offsets.nbytes + self.times.nbytes

    @property
    def largest_timestamp_ms(self) -> int:
        """Return the timestamp of the last entry of the time index, -1 without entries."""
        return int(self.times[-1, 0]) if len(self.times) else -1

    def position_before(self, relative_offset: int) -> int:
        """Return where to start reading for ``relative_offset``: greatest entry not above it."""
        return offset_index.find_position(self.offsets, relative_offset)


def load_indexes(
    segment: SegmentFiles, files: FileSystem, interval: int, buffers: WindowBuffers
) -> SegmentIndexes:
    """Return a closed segment's indexes, from its files or rebuilt from its batches."""
    try:
        offsets, times = (load_entries(segment, kind, files) for kind in (INDEX, TIME_INDEX))
    except (CorruptError, FileNotFoundError):
        return rebuild_indexes(segment, files, interval, buffers)
    return SegmentIndexes(offsets, times, False)


def load_entries(
    segment: SegmentFiles, kind: Kind, files: FileSystem, *, valid_bytes: int | None = None
) -> NDArray[np.int64]:
    """Return the entries of a segment's offset or time index, shape (n, 2).

    ``valid_bytes`` is there for an active segment, up to where it is sound. A running broker has
    its indexes at full size, and what they say of batches above that counts for nothing.
    FileNotFoundError without the file, CorruptError when it cannot be this segment's.
    """
    codec = offset_index if kind == INDEX else time_index
    path = segment.path(kind)
    entries: NDArray[np.int64]
    if valid_bytes is None:
        entries = codec.decode(read_index(path, kind, segment.size_bytes, files))
    else:
        entries = filled_entries(
            codec.decode(read_index_start(segment.path(kind), kind, segment.size_bytes, files))
        )
        if kind == INDEX:
            entries = entries[entries[:, 1] < valid_bytes]
    size_bytes = segment.size_bytes if valid_bytes is None else valid_bytes
    return _sound(entries, codec, size_bytes, path)


def _sound(
    entries: NDArray[np.int64], codec: ModuleType, log_bytes: int, path: Path
) -> NDArray[np.int64]:
    """Return the entries; CorruptError when they cannot be of a log of that size."""
    problem = codec.find_problem(entries, log_bytes)
    if problem is not None:
        raise CorruptError(f"wrong index: {problem}", path=str(path), code="K219")
    return entries


def sample_entries(segment: SegmentFiles, most: int, files: FileSystem) -> NDArray[np.int64]:
    """Return ``most`` entries of a closed segment's offset index, evenly, with the last.

    All where they are few, and where they are not on a disk, so that each one is a request. Shape
    and errors as for :func:`load_entries`.
    """
    path, size = segment.path(INDEX), offset_index.ENTRY_BYTES
    with reading(files, path) as handle:
        count, rest = divmod(handle.size_bytes, size)
        if rest or count <= most * size or not isinstance(handle, LocalReadHandle):
            return load_entries(segment, INDEX, files)
        data = memoryview(bytearray(most * size))
        for i, number in enumerate(np.linspace(0, count - 1, most, dtype=np.int64).tolist()):
            handle.pread_into(data[i * size : (i + 1) * size], number * size)
    return _sound(offset_index.decode(data), offset_index, segment.size_bytes, path)


def rebuild_indexes(
    segment: SegmentFiles,
    files: FileSystem,
    interval: int,
    buffers: WindowBuffers,
    *,
    start: int = 0,
    base_offset: int | None = None,
) -> SegmentIndexes:
    """Derive both indexes from the batches, as Kafka's recovery does (formats.md section 2.4).

    With ``start``, where a batch begins, those of a segment at ``base_offset`` that would have the
    batches from there on and no others.
    """
    base = segment.base_offset if base_offset is None else base_offset
    builder = IndexBuilder(base, interval)
    with reading(files, segment.log_path) as handle:
        for window in read_windows(
            handle, segment.log_path, buffers, start=start, end=segment.size_bytes
        ):
            columns = [t.SIZE, t.LAST_OFFSET, t.MAX_TIMESTAMP]
            builder.add(np.ascontiguousarray(window.table[: window.batches, columns]))
    offsets, times = builder.finish()
    return SegmentIndexes(offsets, times, True)


def load_aborted(segment: SegmentFiles, files: FileSystem) -> tuple[AbortedTransaction, ...]:
    """Return the transaction index of a segment; none when there is no file.

    CorruptError when an entry ends below the segment's base: the file belongs to another.
    """
    path = segment.path(TXN_INDEX)
    if not files.exists(path):
        return ()
    try:
        entries = txn_index.decode(read_index(path, TXN_INDEX, segment.size_bytes, files))
    except CorruptError as error:
        raise error.located(str(path)) from error
    for i, entry in enumerate(entries):
        if entry.last_offset < segment.base_offset:
            raise CorruptError(
                "aborted transaction ends before its segment begins",
                path=str(path), position=i * txn_index.ENTRY_BYTES,
                expected=f">= {segment.base_offset}", found=entry.last_offset, code="K219",
            )  # fmt: skip
    return entries


def read_first_timestamp(
    segment: SegmentFiles, files: FileSystem, head: bytes | None = None
) -> int | None:
    """Return the timestamp of a segment's first record, None when it has no batch.

    As KIP-354 has it, where the first batch's header says it: of magic 2, with a base timestamp
    that is the first record's. Else, as with LogAppendTime and where a round has put a delete
    horizon there, what :func:`read_first_batch_timestamp` returns; no record is read for it.
    Arguments and errors are the same.
    """
    found = _read_first_header(segment, files, head)
    if found is None:
        return None
    if found[16] == 2 and not found[22] & (t.LOG_APPEND_TIME | t.DELETE_HORIZON):
        base = int.from_bytes(found[27:35], "big", signed=True)
        if base > 0:
            return base
    return _greatest_timestamp(found)


def read_first_batch_timestamp(
    segment: SegmentFiles, files: FileSystem, head: bytes | None = None
) -> int | None:
    """Return the maximum timestamp of a segment's first batch, None when it has no batch.

    That is what Kafka's ``LogSegment.getFirstBatchTimestamp`` says of a log that it has loaded.
    ``head`` is what the log begins with, as far as a header goes, where that was read already.
    CorruptError when the header is damaged (F6).
    """
    found = _read_first_header(segment, files, head)
    return None if found is None else _greatest_timestamp(found)


def _read_first_header(
    segment: SegmentFiles, files: FileSystem, head: bytes | None
) -> bytes | None:
    """Return HEADER_BYTES with those of the first batch's header set, None without one."""
    if segment.size_bytes < t.SCAN_BYTES_MIN:
        return None
    if head is None:
        found = bytearray(t.HEADER_BYTES)
        with reading(files, segment.log_path) as handle:
            head = bytes(found[: handle.pread_into(memoryview(found), 0)])
    got, head = len(head), head.ljust(t.HEADER_BYTES, bytes(1))
    size = int.from_bytes(head[8:12], "big", signed=True)
    magic = int.from_bytes(head[16:17], "big", signed=True)
    if size < t.MESSAGE_BYTES_MIN or not 0 <= magic <= 2:
        raise CorruptError(
            "first batch is damaged", path=str(segment.log_path), position=0,
            expected="a size of 14 or more and magic 0 to 2", found=f"size {size}, magic {magic}",
            code="K215",
        )  # fmt: skip
    if size + t.PREFIX_BYTES > segment.size_bytes or got < 26:
        return None
    return head


def _greatest_timestamp(header: bytes) -> int:
    """Return a batch's maximum timestamp, -1 of magic 0."""
    magic = header[16]
    if magic == 0:
        return -1
    at = 18 if magic == 1 else 35
    return int.from_bytes(header[at : at + 8], "big", signed=True)


class Tail(Struct, frozen=True):
    """Where the log ends: after the last whole, sound batch of the active segment.

    ``torn_at`` is the byte position from which the active segment cannot be read, or None;
    ``problem`` says why.
    """

    log_end: int
    valid_bytes: int
    torn_at: int | None = None
    problem: str | None = None


Heard = Callable[[SegmentFiles, Window], None]
"""Hears of every window of a segment that was read, in log order."""


def unheard(segment: SegmentFiles, window: Window) -> None:
    """Hear of a window, and do nothing."""


def find_tail(
    partition: PartitionFiles, files: FileSystem, *, heard: Heard = unheard, at: int | None = None
) -> Tail:
    """Read the active segment from its last usable index entry to its end.

    Where that is not trimmed, from its start; with ``at``, an offset that is known to be there,
    from the entry below it. ``heard`` hears of what is read.
    """
    active = partition.active
    if not active.size_bytes:
        return Tail(active.base_offset, 0)
    start = 0
    try:
        entries = offset_index.decode(
            read_index_start(active.path(INDEX), INDEX, active.size_bytes, files)
        )
        # One that is not trimmed is of a broker that runs, or has crashed: the batches show it.
        if at is not None and offset_index.find_problem(entries, active.size_bytes) is not None:
            entries = filled_entries(entries)
            entries = entries[entries[:, 0] <= at - active.base_offset]
        if len(entries) and offset_index.find_problem(entries, active.size_bytes) is None:
            start = int(entries[-1, 1])
    except (CorruptError, FileNotFoundError):
        start = 0
    tail = scan_tail(active, files, start, active.base_offset, heard)
    if start and tail.torn_at == start:
        # The index pointed into the middle of a batch: only the batches can show it.
        tail = scan_tail(active, files, 0, active.base_offset, heard)
    return tail


def scan_tail(
    active: SegmentFiles, files: FileSystem, start: int, log_end: int, heard: Heard
) -> Tail:
    """Read the active segment from ``start``, where batches below ``log_end`` end, to its end."""
    valid, stop = start, active.size_bytes
    torn: CorruptError | None = None
    buffers = WindowBuffers()
    with reading(files, active.log_path) as handle:
        windows = read_windows(handle, active.log_path, buffers, start=start, end=stop)
        while True:
            try:
                window = next(windows, None)
            except CorruptError as error:
                if torn is not None:
                    raise
                # What is sound of its window is read again.
                torn, stop = error, error.position or 0
                windows = read_windows(handle, active.log_path, buffers, start=valid, end=stop)
                continue
            if window is None:
                break
            log_end = int(window.table[window.batches - 1, t.LAST_OFFSET]) + 1
            valid = window.position + window.length
            heard(active, window)
    if torn is None:
        return Tail(log_end, valid)
    return Tail(log_end, valid, valid, torn.problem)


def find_offset_from(
    offset: int,
    listing: PartitionFiles,
    tail: Tail,
    indexes: Mapping[int, SegmentIndexes],
    files: FileSystem,
    buffers: WindowBuffers,
) -> int:
    """Return the first offset at or above ``offset`` that a batch covers, else the log end.

    ``indexes`` are those of the closed segments, as far as they are known.
    """
    ends = [*(segment.base_offset for segment in listing.segments[1:]), tail.log_end]
    for segment, end_offset in zip(listing.segments, ends, strict=True):
        if end_offset <= offset:
            continue
        known = indexes.get(segment.base_offset)
        start = 0 if known is None else known.position_before(max(offset - segment.base_offset, 0))
        end = tail.valid_bytes if segment is listing.active else segment.size_bytes
        if start >= end:
            continue
        with reading(files, segment.log_path) as handle:
            for window in read_from(
                handle, segment.log_path, buffers, position=start, offset=offset, end=end
            ):
                rows = window.table[: window.batches]
                at = np.flatnonzero(rows[:, t.LAST_OFFSET] >= offset)
                if len(at):
                    return max(offset, int(rows[at[0], t.BASE_OFFSET]))
    return tail.log_end


def summarize(
    segment: SegmentFiles, indexes: SegmentIndexes, first_timestamp_ms: int | None
) -> SegmentSummary:
    """Return what decisions need of a segment."""
    return SegmentSummary(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        mtime_ms=segment.mtime_ms,
        largest_timestamp_ms=indexes.largest_timestamp_ms,
        offset_index_bytes=len(indexes.offsets) * offset_index.ENTRY_BYTES,
        time_index_bytes=len(indexes.times) * time_index.ENTRY_BYTES,
        first_timestamp_ms=first_timestamp_ms,
    )
