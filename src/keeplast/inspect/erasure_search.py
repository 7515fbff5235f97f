"""All that ``erase`` searches of a place: the logs of partitions, and files of unknown name.

A log is read by the kernels of a search, from its first byte to the end of its last sound batch,
compressed batches decompressed. Files next to it are searched with it
(:mod:`keeplast.inspect.remains`).

The rules that a reader must not break:

- A file of unknown name is reported as unknown and does not count as searched. Nor does a log in
  which a swap is under way, for some of its records are in no file of it. Such a swap is waited
  for, and one that was interrupted is refused (:mod:`keeplast.log.readers`).
- A path whose content was not looked into is reported with its size and the reason.
- A link is reported and never followed, and so is a folder that cannot be listed.

Foreign files have unknown names: what fsck has put into ``lost+found``, copies, notes. Of folders
with such names only names, sizes and times are read. A file whose first batch is sound is read as a
log, compressed batches decompressed. In any other file the bytes of the keys are sought, windows
overlapping by the longest key. What is compressed or encrypted there hides a key, and keys that are
known by their hashes alone cannot be sought.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.clock import SystemClock
from keeplast.errors import (
    CompactionError,
    CorruptError,
    RefusedError,
    StoppedError,
    UnavailableError,
)
from keeplast.format.identifier import encode_id
from keeplast.inspect.key_search import (
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_keys,
    find_records_of_keys,
)
from keeplast.inspect.remains import (
    LOOKS_MAX,
    PIECE_BYTES,
    Remains,
    WantedKeys,
    search_next_to_log,
)
from keeplast.log.data_directory import read_topic_id
from keeplast.log.files import FileSystem, ReadHandle, reading
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, find_tail
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.log.windows import Window
from keeplast.model.erasure_request import SegmentDigest
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_opened
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace


class PartitionSearch(Struct, frozen=True):
    """What one directory has of the wanted keys, as far as ``log_end``, exclusive.

    ``records`` are by key, in log order, without values. ``sums`` are of the bytes that were
    searched of each segment. ``remains`` lie next to the log, ``unknown`` are the names of files
    there that are unknown.
    """

    partition: TopicPartition
    path: Path
    topic_id: str | None
    listing: PartitionFiles
    tail: Tail
    records: Mapping[bytes, tuple[KeyRecord, ...]]
    sums: tuple[SegmentDigest, ...]
    batches: int
    remains: tuple[Remains, ...]
    unknown: tuple[str, ...]

    @property
    def log_end(self) -> int:
        """Return the end of what was searched, exclusive."""
        return self.tail.log_end

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
    remains, unknown = search_next_to_log(listing, tail, wanted, files)
    topic_id = read_topic_id(path, files)
    return PartitionSearch(
        partition, path, None if topic_id is None else encode_id(topic_id), listing, tail,
        {key: tuple(its) for key, its in records.items()},
        sums.of(partition),
        sums.batches, tuple(remains), unknown,
    )  # fmt: skip


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


FILE_BYTES_MAX = 16 << 30
"""A larger file is reported and not read: no segment is larger than 2 GiB."""
PATHS_MAX = 100_000
"""So many paths of unknown name are reported; with more of them the place is no place of logs."""
PREFIX_BYTES = 4
_TABLE_BITS = 20
_MAGIC_AT, _MAGIC_MAX = 16, 2
"""Where every batch and message has its magic byte (formats.md 1.1), and the newest there is."""
_SPREAD = np.uint32(2654435761)

BY_HASH_ALONE = "the keys are known by their hashes alone: give --keys to have its bytes searched"
EMPTY_KEY = "the empty key cannot be sought in bytes"
TOO_LARGE = f"it is larger than {FILE_BYTES_MAX >> 30} GiB"
NO_FILE = "a link, or no regular file"
DAMAGED = "it begins as a log does, and cannot be read to its end as one"
CHANGING = "it changed each time that it was searched"
TOO_MANY = f"more than {PATHS_MAX} paths of unknown name: move them away"


class ForeignPath(Struct, frozen=True):
    """A path of unknown name below a place; ``name`` is relative to the place.

    ``stamp`` is another one once the file is another one, or has another content. ``barred`` says
    why nothing can be read there. ``open`` raises as :meth:`FileSystem.open_read` does.
    """

    name: str
    size_bytes: int
    stamp: tuple[int, ...]
    open: Callable[[], ReadHandle]
    barred: str | None = None


class ForeignFinding(Struct, frozen=True):
    """A path with some of the wanted ``keys``, or whose content was not searched, and ``why``.

    ``may_have_records`` says that what was not searched is most likely a log.
    """

    name: str
    size_bytes: int
    keys: frozenset[bytes] = frozenset()
    why: str | None = None
    may_have_records: bool = False


class ForeignSearch(Struct, frozen=True):
    """The paths to report, by name, and how many others were searched without a find."""

    findings: tuple[ForeignFinding, ...] = ()
    searched: int = 0


def search_foreign(
    listed: Callable[[], Iterable[ForeignPath]],
    wanted: WantedKeys,
    *,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> ForeignSearch:
    """Search every path that ``listed`` gives; one that changes meanwhile is searched again.

    ``planned`` and ``progressed`` hear of the bytes to be read; what they raise ends the search.
    """
    known: dict[str, tuple[tuple[int, ...], ForeignFinding]] = {}
    bytes_of_keys = KeyBytes(wanted.keys or ())
    is_cut = False
    for look in range(LOOKS_MAX + 1):
        paths: dict[str, ForeignPath] = {}
        for each in listed():
            if len(paths) == PATHS_MAX:
                is_cut = True
                break
            paths[each.name] = each
        fresh = [
            each
            for each in paths.values()
            if each.name not in known or known[each.name][0] != each.stamp
        ]
        known = {name: found for name, found in known.items() if name in paths}
        if not fresh:
            break
        if look == LOOKS_MAX:
            for each in fresh:
                at = ForeignFinding(each.name, each.size_bytes, why=CHANGING)
                known[each.name] = each.stamp, at
            break
        planned(sum(each.size_bytes for each in fresh if each.size_bytes <= FILE_BYTES_MAX))
        for each in fresh:
            found = _search_path(each, wanted, bytes_of_keys, progressed)
            if found is not None:
                known[each.name] = each.stamp, found
    findings = [known[name][1] for name in sorted(known)]
    shown = [each for each in findings if each.keys or each.why]
    searched = len(findings) - len(shown)
    if is_cut:
        shown.append(ForeignFinding("further paths", 0, why=TOO_MANY, may_have_records=True))
    return ForeignSearch(tuple(shown), searched)


def _search_path(
    path: ForeignPath,
    wanted: WantedKeys,
    bytes_of_keys: KeyBytes,
    progressed: Callable[[int], None],
) -> ForeignFinding | None:
    """Search one path, None when it is gone by now."""

    def finding(
        why: str | None, keys: frozenset[bytes] = frozenset(), *, is_log: bool = False
    ) -> ForeignFinding:
        return ForeignFinding(path.name, path.size_bytes, keys, why, is_log and why is not None)

    if path.barred is not None:
        return finding(path.barred)
    if path.size_bytes > FILE_BYTES_MAX:
        return finding(TOO_LARGE)
    try:
        handle = path.open()
    except FileNotFoundError:
        return None
    except RefusedError:
        return finding(NO_FILE)
    except OSError as error:
        return finding(f"it cannot be read ({error.strerror})")
    try:
        keys, is_log, is_whole = _keys_in_batches(handle, wanted, progressed)
        if is_whole or not handle.size_bytes:
            return finding(None, keys)
        if wanted.keys is not None:
            keys |= bytes_of_keys.find(handle, progressed)
        if is_log:
            return finding(DAMAGED, keys, is_log=True)
        if wanted.keys is None:
            return finding(BY_HASH_ALONE)
        return finding(EMPTY_KEY if b"" in wanted.keys else None, keys)
    except StoppedError:
        raise
    except FileNotFoundError:
        return None
    except (CompactionError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return finding(f"it cannot be read to its end ({why})")
    finally:
        handle.close()


def _keys_in_batches(
    handle: ReadHandle, wanted: WantedKeys, progressed: Callable[[int], None]
) -> tuple[frozenset[bytes], bool, bool]:
    """Return the wanted keys of a file's records, and whether it is a log, and one to its end."""
    keys: set[bytes] = set()
    is_log = False
    head = bytearray(_MAGIC_AT + 1)
    if handle.pread_into(memoryview(head), 0) < len(head) or head[_MAGIC_AT] > _MAGIC_MAX:
        return frozenset(), False, False
    try:
        for batch in read_opened(handle, Path()):
            if not batch.is_valid:
                return frozenset(keys), is_log, False
            is_log = True  # By the checksum of a whole batch: by less, any file may be one.
            progressed(batch.size_bytes)
            if batch.is_control:
                continue
            keys |= {
                each.key
                for each in batch.records()
                if each.key is not None and wanted.is_wanted(each.key)
            }
    except (CorruptError, RefusedError):
        return frozenset(keys), is_log, False
    return frozenset(keys), is_log, is_log


class KeyBytes:
    """The bytes of up to thousands of keys, sought in one pass; the empty key is in no file."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """Take the keys; each is known by its first bytes, and by its length."""
        self._keys = frozenset(each for each in keys if each)
        self._overlap = max(map(len, self._keys), default=1) - 1
        self._lengths: dict[int, dict[bytes, list[int]]] = {}
        for key in self._keys:
            width = min(len(key), PREFIX_BYTES)
            lengths = self._lengths.setdefault(width, {}).setdefault(key[:width], [])
            if len(key) not in lengths:
                lengths.append(len(key))
        self._tables = {width: _table(its) for width, its in self._lengths.items()}

    def find(self, handle: ReadHandle, progressed: Callable[[int], None]) -> frozenset[bytes]:
        """Return which keys are in a file, of the size that it had when it was opened.

        CorruptError where the file has become shorter; OSError.
        """
        found: set[bytes] = set()
        buffer = bytearray(max(PIECE_BYTES, 2 * self._overlap) + self._overlap)
        at = kept = 0
        while at < handle.size_bytes and len(found) < len(self._keys):
            view = memoryview(buffer)[kept : kept + min(len(buffer) - kept, handle.size_bytes - at)]
            got = handle.pread_into(view, at)
            if not got:
                raise CorruptError("it has become shorter", position=at, code="K224")
            window = bytes(memoryview(buffer)[: kept + got])
            found |= self._in(window)
            progressed(got)
            at += got
            kept = min(self._overlap, len(window))
            buffer[:kept] = window[len(window) - kept :]
        return frozenset(found)

    def _in(self, window: bytes) -> set[bytes]:
        found: set[bytes] = set()
        data = np.frombuffer(window, np.uint8)
        for width, by_prefix in self._lengths.items():
            if len(data) < width:
                continue
            places = np.flatnonzero(self._tables[width][_slots(data, width)])
            for at in places.tolist():
                for length in by_prefix.get(window[at : at + width], ()):
                    piece = window[at : at + length]
                    if piece in self._keys:
                        found.add(piece)
        return found


def _slots(data: NDArray[np.uint8], width: int) -> NDArray[np.uint32]:
    """Return for each position the slot of a table that ``width`` bytes from there on have."""
    count = len(data) - width + 1
    values = data[:count].astype(np.uint32)
    for number in range(1, width):
        values |= data[number : number + count].astype(np.uint32) << np.uint32(8 * number)
    slots: NDArray[np.uint32] = (values * _SPREAD) >> np.uint32(32 - _TABLE_BITS)
    return slots


def _table(prefixes: Iterable[bytes]) -> NDArray[np.bool_]:
    table = np.zeros(1 << _TABLE_BITS, np.bool_)
    for each in prefixes:
        table[_slots(np.frombuffer(each, np.uint8), len(each))] = True
    return table


IsKnown = Callable[[tuple[str, ...]], bool]
"""Says of the parts of a file's path, below the place, whether its name is known."""


def walk(root: Path, files: FileSystem, is_known: IsKnown) -> Iterator[ForeignPath]:
    """Yield every path below ``root`` whose name is not known, folders entered, links not.

    OSError where ``root`` itself cannot be listed.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        folder = root.joinpath(*parts)
        try:
            names, folders = files.listdir(folder), files.directories_in(folder)
        except (FileNotFoundError, NotADirectoryError):
            if not parts:
                raise
            continue  # it went, or something else has its name: the next look shows it
        except OSError as error:
            if not parts:
                raise
            yield _barred(parts, f"a folder that cannot be listed ({error.strerror})")
            continue
        for name in names:
            path = (*parts, name)
            if name in folders:
                waiting.append(path)
            elif not is_known(path):
                found = _listed_paths(folder / name, path, files)
                if found is not None:
                    yield found


def _listed_paths(path: Path, parts: tuple[str, ...], files: FileSystem) -> ForeignPath | None:
    try:
        status = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _barred(parts, f"it cannot be looked at ({error.strerror})")
    stamp = status.size_bytes, status.mtime_ns, status.inode
    return ForeignPath("/".join(parts), status.size_bytes, stamp, partial(files.open_read, path))


def _barred(parts: tuple[str, ...], why: str) -> ForeignPath:
    def open_none() -> ReadHandle:
        raise RefusedError(f"{why}. path={'/'.join(parts)}", code="K242")

    return ForeignPath("/".join(parts), 0, (), open_none, why)
