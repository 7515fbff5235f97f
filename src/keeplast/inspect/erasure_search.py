"""Every file of one partition that may have wanted keys: its log, and every other that was one.

The log is read by the kernels of a search, from its first byte to the end of its last sound batch,
compressed batches decompressed. Any other file of the directory that is, or was, a ``.log``
(staged, replaced, put aside) is read batch by batch. So is a directory that a broker disposes of.

The rule that a reader must not break: a file that could not be read to its end is reported with a
``problem``. A file of unknown name is reported as unknown. Neither ever counts as searched. Nor
does a log in which a swap is under way, for some of its records are in no file of it. Such a swap
is waited for, and one that was interrupted is refused (:mod:`keeplast.log.readers`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import CorruptError, RefusedError, UnavailableError
from keeplast.format.batch import RecordBatch
from keeplast.format.filename import (
    CLEANED_FOR,
    INCOMPLETE,
    LOG,
    PARTITION_METADATA,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.format.identifier import encode_id
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.inspect.key_search import (
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_keys,
    find_records_of_keys,
)
from keeplast.log.checkpoints import UNFINISHED as UNFINISHED_NOTE
from keeplast.log.data_directory import DataDirectory, PartitionEntry, read_topic_id
from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentFiles,
    Tail,
    find_tail,
)
from keeplast.log.paths import child_path
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import Window
from keeplast.model.erasure_request import SegmentDigest
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace

LOOKS_MAX = 3
"""A log whose files change while it is searched is searched so many times."""
PIECE_BYTES = 1 << 20
KEYS_SOUGHT_MAX = 16
"""Of so many keys the bytes are sought in a batch before its records are taken apart."""
NAME_BYTES_CUT = 255
"""A broker cuts the topic in the name of a directory that it disposes of, to this length."""


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Which keys are searched for: ``keys`` where they are known, else what ``is_wanted`` says."""

    is_wanted: Callable[[bytes], bool]
    keys: frozenset[bytes] | None = None


@dataclass(frozen=True, slots=True)
class BesideLog:
    """A file next to a log: the wanted ``keys`` in it, and why not all of it could be searched."""

    name: str
    keys: frozenset[bytes] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class BesideNews:
    """What hears of a search of the files next to a log.

    ``met`` hears of every wanted record, with its file and batch, also where the file cannot be
    read to its end. ``planned`` hears of the bytes of a file before it is read, ``progressed`` of
    those that were. What they raise ends the search, unless it is a CorruptError or a RefusedError.
    """

    met: Callable[[Path, Batch, Record], None] = lambda path, batch, record: None
    planned: Callable[[int], None] = lambda size_bytes: None
    progressed: Callable[[int], None] = lambda size_bytes: None


NO_LISTENER = BesideNews()


@dataclass(frozen=True, slots=True)
class PartitionSearch:
    """What one directory has of the wanted keys, as far as ``log_end``, exclusive.

    ``records`` are by key, in log order, without values. ``sums`` are of the bytes that were
    searched of each segment. ``beside`` are files with a wanted key or a problem. ``searched`` is
    how many files next to the log were looked into, ``unknown`` the unknown names of files.
    """

    partition: TopicPartition
    path: Path
    topic_id: str | None
    listing: PartitionFiles
    tail: Tail
    records: Mapping[bytes, tuple[KeyRecord, ...]]
    sums: tuple[SegmentDigest, ...]
    batches: int
    beside: tuple[BesideLog, ...]
    searched: int
    unknown: tuple[str, ...]

    @property
    def log_end(self) -> int:
        """Return the end of what was searched, exclusive."""
        return self.tail.log_end

    @property
    def problems(self) -> tuple[BesideLog, ...]:
        """Return what could not be searched to its end."""
        return tuple(each for each in self.beside if each.problem is not None)

    def is_of(self, segments: Iterable[SearchedSegment]) -> bool:
        """Say whether these are the files that were searched; one without a byte is none."""
        return [_identity(each.files) for each in segments if each.files.size_bytes] == [
            _identity(each) for each in self.listing.segments if each.size_bytes
        ]


class SegmentSums:
    """The SHA-256 of segments while they are searched, window by window, and how many batches."""

    def __init__(self, segments: Sequence[SearchedSegment]) -> None:
        """Take what will be searched; no two begin at one offset."""
        self.batches = 0
        self._segments = segments
        self._digests = {each.files.base_offset: hashlib.sha256() for each in segments}

    def passed(self, segment: SearchedSegment, window: Window) -> None:
        """Take a window in."""
        self.batches += window.batches
        self._digests[segment.files.base_offset].update(window.data[: window.length].data)

    def of(self, partition: TopicPartition) -> tuple[SegmentDigest, ...]:
        """Return what was taken in, segment by segment."""
        return tuple(
            SegmentDigest(
                partition, each.files.log_path.name, each.valid_bytes,
                self._digests[each.files.base_offset].hexdigest(),
            )
            for each in self._segments
        )  # fmt: skip


def search_partition(
    partition: TopicPartition,
    path: Path,
    wanted: WantedKeys,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
) -> PartitionSearch:
    """Search one partition directory; takes no lock and writes nothing.

    ``rankings`` say how versions are read. CorruptError where a closed segment cannot be read,
    RefusedError where a swap was interrupted. UnavailableError when files change all the time, or
    one of them was not there at any look.
    """
    missing: list[str | None] = []
    for _ in range(LOOKS_MAX):
        try:
            found = _search(partition, path, wanted, rankings, files, workspace, progressed)
            end = found.tail.log_end
            if _is_still(found, settled_partition(path, files, SystemClock(), if_empty=end)):
                return found
        except FileNotFoundError as error:
            missing.append(None if error.filename is None else str(error.filename))
    if len(missing) == LOOKS_MAX and missing[0] is not None and len(set(missing)) == 1:
        # A list of objects is as of one moment: one that is gone since is missed at every look.
        raise UnavailableError(
            "a part of the log is missing: it was collected meanwhile (run again), or removed by "
            "hand or by a rule (put it back from a copy). Or the metadata is of another place. "
            f"partition={partition} missing={missing[0]}",
            code="K241",
        )
    raise UnavailableError(
        "the log changed each time that it was searched; run again when no round is under way. "
        f"partition={partition} path={path}",
        code="K234",
    )


def search_marked(
    directory: DataDirectory, partition: TopicPartition, wanted: WantedKeys, files: FileSystem
) -> tuple[list[BesideLog], int]:
    """Search what a broker disposes of, moves or has set aside of ``partition``.

    Returns what was found, names with their directory, and how many files were looked into.
    """
    return search_directories(marked_of(directory.partitions, partition), wanted, files)


def marked_of(
    entries: Iterable[PartitionEntry], partition: TopicPartition
) -> tuple[PartitionEntry, ...]:
    """Return which of ``entries`` are out of service, and of ``partition``."""
    return tuple(
        entry
        for entry in entries
        if entry.partition.partition == partition.partition and is_marked_of(entry, partition.topic)
    )


def is_marked_of(entry: PartitionEntry, topic: str) -> bool:
    """Say whether a directory is of ``topic`` and out of service: disposed of, moved, set aside."""
    if entry.mark is None:
        return False
    is_cut = len(entry.path.name) >= NAME_BYTES_CUT
    named = entry.partition.topic
    return named == topic or (is_cut and topic.startswith(named))


def search_directories(
    entries: Iterable[PartitionEntry],
    wanted: WantedKeys,
    files: FileSystem,
    news: BesideNews = NO_LISTENER,
) -> tuple[list[BesideLog], int]:
    """Search directories that are out of service; returns as :func:`search_marked` does."""
    found: list[BesideLog] = []
    searched = 0
    for entry in entries:
        try:
            names = [name for name in files.listdir(entry.path) if was_log(name)]
        except FileNotFoundError:
            continue  # disposed of by now
        for name in names:
            each = search_file(child_path(entry.path, name), wanted, files, news)
            searched += 1
            if each is not None and (each.keys or each.problem):
                found.append(BesideLog(f"{entry.path.name}/{each.name}", each.keys, each.problem))
    return found, searched


def sum_file(files: FileSystem, path: Path, size_bytes: int) -> str | None:
    """Return the SHA-256 of the first bytes of a file, None when it has less or is not there."""
    digest = hashlib.sha256()
    try:
        with reading(files, path) as handle:
            if handle.size_bytes < size_bytes:
                return None
            buffer = bytearray(min(PIECE_BYTES, max(size_bytes, 1)))
            at = 0
            while at < size_bytes:
                view = memoryview(buffer)[: min(len(buffer), size_bytes - at)]
                got = handle.pread_into(view, at)
                if not got:
                    return None
                digest.update(view[:got])
                at += got
    except FileNotFoundError:
        return None
    return digest.hexdigest()


def _search(
    partition: TopicPartition,
    path: Path,
    wanted: WantedKeys,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    progressed: Progressed,
) -> PartitionSearch:
    listing = settled_partition(path, files, SystemClock(), if_empty=noted_log_start(files, path))
    tail = find_tail(listing, files)
    segments = [
        SearchedSegment(each, tail.valid_bytes if each is listing.active else each.size_bytes)
        for each in listing.segments
    ]
    keys = wanted.keys
    if keys is None:
        keys = frozenset(find_keys(segments, wanted.is_wanted, files, workspace, progressed))
    sums = SegmentSums(segments)
    records: dict[bytes, list[KeyRecord]] = {}
    for each in find_records_of_keys(
        segments, keys, rankings, files, workspace, progressed, sums.passed
    ):
        records.setdefault(each.record.key or b"", []).append(each)
    beside, searched, unknown = search_beside(listing, tail, wanted, files)
    topic_id = read_topic_id(path, files)
    return PartitionSearch(
        partition, path, None if topic_id is None else encode_id(topic_id), listing, tail,
        {key: tuple(its) for key, its in records.items()},
        sums.of(partition),
        sums.batches, beside, searched, unknown,
    )  # fmt: skip


def search_beside(
    listing: PartitionFiles,
    tail: Tail,
    wanted: WantedKeys,
    files: FileSystem,
    news: BesideNews = NO_LISTENER,
    *,
    leaves_kept: bool = False,
) -> tuple[tuple[BesideLog, ...], int, tuple[str, ...]]:
    """Return what was found next to the log, how many files were searched, and what is unknown.

    With ``leaves_kept`` what rounds have kept for ``undo`` is left to the caller, which knows its
    end.
    """
    found: list[BesideLog] = []
    if listing.active.size_bytes > tail.valid_bytes and not _is_zero(
        files, listing.active.log_path, tail.valid_bytes, listing.active.size_bytes
    ):
        found.append(
            BesideLog(
                listing.active.log_path.name,
                problem=f"bytes behind the log's end, from position {tail.valid_bytes} on, are no "
                "batches: a broker's start cuts them off",
            )
        )
    searched, unknown = 0, []
    for name in (*listing.leftovers, *listing.unknown):
        if not was_log(name):
            if name in listing.unknown and not is_without_keys(name):
                unknown.append(name)
            continue
        if leaves_kept and parse_undo_file(name) is not None:
            continue
        each = search_file(child_path(listing.path, name), wanted, files, news)
        searched += each is not None
        if each is not None and (each.keys or each.problem):
            found.append(each)
    return tuple(found), searched, tuple(unknown)


_KNOWN = frozenset(
    {
        PARTITION_METADATA, "leader-epoch-checkpoint", "leader-epoch-checkpoint.tmp",
        CLEANED_FOR, UNFINISHED_NOTE, INCOMPLETE,
    }
)  # fmt: skip
"""Files of a partition directory that have neither keys nor values of records."""


def is_without_keys(name: str) -> bool:
    """Say whether a file of a partition directory has, by its name, neither keys nor values."""
    parsed = parse_segment_file(name) or parse_undo_file(name)
    return name in _KNOWN if parsed is None else parsed.kind != LOG


def was_log(name: str) -> bool:
    """Say whether a file is, or by its name may have been, a segment of records."""
    parsed = parse_segment_file(name) or parse_undo_file(name)
    return parsed.kind == LOG if parsed is not None else LOG in name


def search_file(
    path: Path, wanted: WantedKeys, files: FileSystem, news: BesideNews = NO_LISTENER
) -> BesideLog | None:
    """Return what a file next to a log has, None when it is gone by now."""
    keys: set[bytes] = set()
    try:
        news.planned(files.stat(path).size_bytes)
        for batch in read_segment(files, path):
            news.progressed(batch.size_bytes)
            # First: what says that a batch has markers alone is a bit of what the checksum is of.
            if not batch.is_valid:
                return BesideLog(path.name, frozenset(keys), "a batch has a wrong checksum")
            if batch.is_control or _has_none(batch, wanted):
                continue
            for record in batch.records():
                if record.key is not None and wanted.is_wanted(record.key):
                    keys.add(record.key)
                    news.met(path, batch, record)
    except FileNotFoundError:
        return None
    except (CorruptError, RefusedError) as error:
        problem = error.problem if isinstance(error, CorruptError) else "it is no plain file"
        return BesideLog(path.name, frozenset(keys), f"it cannot be read to its end ({problem})")
    return BesideLog(path.name, frozenset(keys))


def _has_none(batch: Batch, wanted: WantedKeys) -> bool:
    """Say whether the bytes of no wanted key are in a batch; False where that is not sought."""
    if wanted.keys is None or len(wanted.keys) > KEYS_SOUGHT_MAX:
        return False
    if not isinstance(batch, RecordBatch) or batch.count <= 0:
        return False
    data = bytes(batch.plain())
    return all(key not in data for key in wanted.keys)


def _is_zero(files: FileSystem, path: Path, start: int, end: int) -> bool:
    """Say whether bytes ``[start, end)`` of a file are all zero, as a broker's preallocation is."""
    with reading(files, path) as handle:
        buffer = bytearray(PIECE_BYTES)
        while start < end:
            view = memoryview(buffer)[: min(PIECE_BYTES, end - start)]
            got = handle.pread_into(view, start)
            if not got:
                return True
            if any(view[:got]):
                return False
            start += got
    return True


def _identity(segment: SegmentFiles) -> tuple[int, int]:
    return segment.base_offset, segment.inode


def _is_still(found: PartitionSearch, now: PartitionFiles) -> bool:
    """Say whether all that was searched is what is there, but for what was appended since."""
    there = {each.base_offset: each for each in now.segments}
    for each in found.listing.segments:
        same = there.pop(each.base_offset, None)
        if same is None or same.inode != each.inode:
            return False
        has_grown = each is found.listing.active and same.size_bytes > each.size_bytes
        # A number that was given back may be another file's by now.
        if (same.size_bytes, same.mtime_ns) != (each.size_bytes, each.mtime_ns) and not has_grown:
            return False
    is_new = all(base >= found.log_end for base in there)
    return is_new and set(now.leftovers) <= set(found.listing.leftovers)
