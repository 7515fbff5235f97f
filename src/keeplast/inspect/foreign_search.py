"""Keys in files that nobody here knows: what fsck has put into ``lost+found``, copies, notes.

A file whose first batch is sound is read as a log, compressed batches decompressed. In any other
file the bytes of the keys are sought, windows overlapping by the longest key; what is compressed or
encrypted there hides a key, and keys that are known by their hashes alone cannot be sought.

The rule that a reader must not break: a path whose content was not looked into is told with its
size and the reason. Nothing here is followed, held or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keeplast.errors import CompactionError, CorruptError, RefusedError, StoppedError
from keeplast.inspect.erasure_search import LOOKS_MAX, PIECE_BYTES, WantedKeys
from keeplast.log.files import ReadHandle
from keeplast.read.log_reader import read_opened

FILE_BYTES_MAX = 16 << 30
"""A larger file is told and not read: no segment is larger than 2 GiB."""
PATHS_MAX = 100_000
"""So many paths of unknown name are told; a place with more of them is somebody else's."""
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
    """The paths that need to be told, by name, and how many others were searched without a find."""

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
    told = [each for each in findings if each.keys or each.why]
    searched = len(findings) - len(told)
    if is_cut:
        told.append(ForeignFinding("further paths", 0, why=TOO_MANY, may_have_records=True))
    return ForeignSearch(tuple(told), searched)


def _search(
    path: ForeignPath,
    wanted: WantedKeys,
    bytes_of_keys: KeyBytes,
    progressed: Callable[[int], None],
) -> ForeignFinding | None:
    """Search one path, None when it is gone by now."""

    def told(
        why: str | None, keys: frozenset[bytes] = frozenset(), *, is_log: bool = False
    ) -> ForeignFinding:
        return ForeignFinding(path.name, path.size_bytes, keys, why, is_log and why is not None)

    if path.barred is not None:
        return told(path.barred)
    if path.size_bytes > FILE_BYTES_MAX:
        return told(TOO_LARGE)
    try:
        handle = path.open()
    except FileNotFoundError:
        return None
    except RefusedError:
        return told(NO_FILE)
    except OSError as error:
        return told(f"it cannot be read ({error.strerror})")
    try:
        keys, is_log, is_whole = _keys_in_batches(handle, wanted, progressed)
        if is_whole or not handle.size_bytes:
            return told(None, keys)
        if wanted.keys is not None:
            keys |= bytes_of_keys.find(handle, progressed)
        if is_log:
            return told(DAMAGED, keys, is_log=True)
        if wanted.keys is None:
            return told(BY_HASH_ALONE)
        return told(EMPTY_KEY if b"" in wanted.keys else None, keys)
    except StoppedError:
        raise
    except FileNotFoundError:
        return None
    except (CompactionError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return told(f"it cannot be read to its end ({why})")
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
                raise CorruptError("it has become shorter", position=at)
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
