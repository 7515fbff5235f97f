"""The records of keys in files that are no part of the live log: staged, replaced, kept, foreign.

The rules that a reader must not break:

- Nothing here is held or written, and no lock is taken.
- A path whose content was not looked into is reported with its size and the reason.
- A link is reported and never followed, and so is a folder that cannot be listed.

A segment that a round or a broker has replaced has its records until its file goes, and so has a
directory that a broker disposes of. They are searched as ``erase`` searches them
(:mod:`keeplast.inspect.erasure_search`), the log first: what moves from it meanwhile is seen twice
rather than never.

What rounds have kept for ``keeplast undo`` is a trace of the key until its time is over. A kept
file that is still a segment of the log, because its round never came so far, is no second copy.

Foreign files have unknown names: what fsck has put into ``lost+found``, copies, notes. Of folders
with such names only names, sizes and times are read. A file whose first batch is sound is read as a
log, compressed batches decompressed. In any other file the bytes of the keys are sought, windows
overlapping by the longest key. What is compressed or encrypted there hides a key, and keys that are
known by their hashes alone cannot be sought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.clock import SystemClock
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvalidError,
    RefusedError,
    StoppedError,
    error_text,
)
from keeplast.format.filename import LOG
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.inspect.erasure_search import (
    LOOKS_MAX,
    PIECE_BYTES,
    BesideLog,
    BesideNews,
    WantedKeys,
    search_beside,
    search_directories,
)
from keeplast.inspect.key_search import (
    RECORDS_MAX,
    KeyRecord,
    Progressed,
    SearchedSegment,
    find_key_records,
)
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem, ReadHandle
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, Tail, find_tail
from keeplast.log.readers import settled_partition
from keeplast.log.truncation import noted_log_start
from keeplast.log.undo_files import read_kept
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_opened
from keeplast.rewrite.ranking import Ranking
from keeplast.rewrite.workspace import Workspace


@dataclass(frozen=True, slots=True)
class BesideCopy:
    """A record in ``file``, named as ``erase`` names it, at ``position``.

    ``horizon_ms`` is the delete horizon of its batch, None without one. With ``in_transaction`` the
    transaction's end is not known: the file alone does not show it.
    """

    record: Record
    file: str
    position: int
    horizon_ms: int | None
    in_transaction: bool


@dataclass(frozen=True, slots=True)
class BesideCopies:
    """What was found; ``unseen`` says which files could not be searched to their end, and why."""

    found: tuple[BesideCopy, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the files that have the key, each once, in the order of the search."""
        return tuple(dict.fromkeys(each.file for each in self.found))


def find_beside_copies(
    directory: Path | None,
    marked: Iterable[PartitionEntry],
    key: bytes,
    files: FileSystem,
    *,
    values_bytes_max: int | None = None,
    planned: Callable[[int], None],
    progressed: Progressed,
) -> BesideCopies:
    """Find ``key`` next to the log in ``directory``, and in the directories ``marked`` of it.

    What rounds have kept for ``undo`` is not looked into. ``directory`` None is of a partition that
    has no log here. ``planned`` hears of the bytes of each file before it is read. InvalidError for
    more records, or values, than a person reads; errors of
    :func:`~keeplast.log.partition_log.list_partition`; OSError.
    """
    wanted = WantedKeys(key.__eq__, frozenset((key,)))
    collected = _Collected(directory, values_bytes_max)
    news = BesideNews(collected.add, planned, progressed)
    beside: Sequence[BesideLog] = ()
    if directory is not None:
        listing, tail = _listed(directory, files)
        beside, _, _ = search_beside(listing, tail, wanted, files, news, leaves_kept=True)
    elsewhere, _ = search_directories(marked, wanted, files, news)
    unseen = tuple(
        f"{each.name}: {each.problem}" for each in (*beside, *elsewhere) if each.problem is not None
    )
    return BesideCopies(tuple(collected.found), unseen)


def _listed(directory: Path, files: FileSystem) -> tuple[PartitionFiles, Tail]:
    """Return what lies in a partition directory now, and where its log ends."""
    for look in range(LOOKS_MAX):
        try:
            start = noted_log_start(files, directory)
            listing = settled_partition(directory, files, SystemClock(), if_empty=start)
            return listing, find_tail(listing, files)
        except FileNotFoundError:
            if look + 1 == LOOKS_MAX:
                raise
    raise AssertionError("unreachable")


class _Collected:
    """What a search has met so far, within its bounds."""

    def __init__(self, directory: Path | None, values_bytes_max: int | None) -> None:
        self.found: list[BesideCopy] = []
        self._directory = directory
        self._values_bytes_max = values_bytes_max
        self._values_bytes = 0

    def add(self, path: Path, batch: Batch, record: Record) -> None:
        self._values_bytes += len(record.value or b"")
        limit = self._values_bytes_max
        if limit is not None and self._values_bytes > limit:
            raise InvalidError(
                "the values of this key's records take more than is kept here; ask keeplast "
                f"explain. limit={limit} path={path}",
                code="K156",
            )
        if len(self.found) >= RECORDS_MAX:
            raise InvalidError(
                f"more than {RECORDS_MAX} records of what is asked for lie next to the log; let "
                f"what was replaced go first, or ask for less. path={path}",
                code="K156",
            )
        name = path.name if path.parent == self._directory else f"{path.parent.name}/{path.name}"
        self.found.append(
            BesideCopy(
                record, name, batch.position, batch.delete_horizon_ms, batch.is_transactional
            )
        )


@dataclass(frozen=True, slots=True)
class UndoCopy:
    """A record in what ``round`` has kept, which may go from ``until_ms`` on.

    None: no list names it, so that it goes with the next look of ``run``, or the next ``clean``.
    """

    record: KeyRecord
    round: str
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class UndoCopies:
    """What was found; ``unseen`` says which files could not be searched, and why."""

    found: tuple[UndoCopy, ...] = ()
    unseen: tuple[str, ...] = ()


def find_undo_copies(
    directory: Path,
    key: bytes,
    rankings: Mapping[Strategy, Ranking],
    files: FileSystem,
    workspace: Workspace,
    *,
    retention_ms: int,
    values_bytes_max: int | None = None,
    planned: Callable[[int], None],
    progressed: Progressed,
) -> UndoCopies:
    """Find ``key`` in what is kept in a partition directory, by ``undo.retention.ms`` of now.

    Each file is searched by itself, so that a transaction whose marker lies in another one counts
    as open. ``planned`` hears of the bytes that will be read. InvalidError for too many records, or
    values; OSError.
    """
    kept = read_kept(files, directory)
    logs = [each for each in kept.files if each.kind == LOG]
    if not logs:
        return UndoCopies()
    ends = {
        (wave.attempt, base): min(wave.until_ms, wave.kept_at_ms + retention_ms)
        for wave in kept.waves
        for base in wave.kept_bases()
    }
    listing = settled_partition(directory, files, SystemClock(), if_empty=0)
    live = {each.inode for each in listing.segments}
    found: list[UndoCopy] = []
    unseen: list[str] = []
    for each in logs:
        path = directory / each.name
        try:
            status = files.stat(path)
            if status.inode in live:
                continue
            planned(status.size_bytes)
            segment = SegmentFiles(directory, each.number, status.size_bytes, status.mtime_ns)
            records = find_key_records(
                [SearchedSegment(segment, status.size_bytes, named=path)], key, rankings, files,
                workspace, progressed, values_bytes_max,
            )  # fmt: skip
        except FileNotFoundError:
            continue  # its time is over
        except (CorruptError, RefusedError) as error:
            unseen.append(f"what round {each.attempt} has kept for undo: {error_text(error)}")
            continue
        until_ms = ends.get((each.attempt, each.number))
        found += [UndoCopy(record, each.attempt, until_ms) for record in records]
    return UndoCopies(tuple(found), tuple(unseen))


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


@dataclass(frozen=True, slots=True)
class ForeignPath:
    """A path of unknown name below a place; ``name`` is relative to the place.

    ``stamp`` is another one once the file is another one, or has another content. ``barred`` says
    why nothing can be read there. ``open`` raises as :meth:`FileSystem.open_read` does.
    """

    name: str
    size_bytes: int
    stamp: tuple[int, ...]
    open: Callable[[], ReadHandle]
    barred: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignFinding:
    """A path with some of the wanted ``keys``, or whose content was not searched, and ``why``.

    ``may_have_records`` says that what was not searched is most likely a log.
    """

    name: str
    size_bytes: int
    keys: frozenset[bytes] = frozenset()
    why: str | None = None
    may_have_records: bool = False


@dataclass(frozen=True, slots=True)
class ForeignSearch:
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
            found = _search(each, wanted, bytes_of_keys, progressed)
            if found is not None:
                known[each.name] = each.stamp, found
    findings = [known[name][1] for name in sorted(known)]
    shown = [each for each in findings if each.keys or each.why]
    searched = len(findings) - len(shown)
    if is_cut:
        shown.append(ForeignFinding("further paths", 0, why=TOO_MANY, may_have_records=True))
    return ForeignSearch(tuple(shown), searched)


def _search(
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
