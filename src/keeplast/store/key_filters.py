"""Which segments of a store, or of a remote tier, one key is not in, as their filters say.

A filter has every key of its segment: a round that took it for one that lacks a key would leave a
superseded record. It is believed where it is whole, under this store's key, and about the very
bytes that metadata, or the cluster, names; anything else is no filter, and the segment is read.
What is proven by reading (``erase``, certificates, ``verify``) asks none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from keeplast.cleaner.skipping import has_no_events
from keeplast.columns.filters import find_any
from keeplast.columns.hashing import hash_of
from keeplast.errors import CorruptError
from keeplast.inspect.key_search import SearchedSegment
from keeplast.log.files import FileSystem, reading
from keeplast.tier.objects.filters import (
    FILTER_BYTES_MAX,
    HEAD_BYTES,
    FilterKey,
    SegmentBytes,
    decode_head,
    decode_words,
)
from keeplast.tier.objects.round_files import filter_file


def without_absent(
    segments: Sequence[SearchedSegment],
    named: Mapping[int, SegmentBytes],
    directory: Path,
    files: FileSystem,
    key: bytes,
    filter_key: FilterKey,
    progressed: Callable[[int], None],
) -> list[SearchedSegment]:
    """Return ``segments`` with what their filters, beside them in ``directory``, say of ``key``.

    ``named`` has by base offset which bytes they are. ``progressed`` hears of the bytes of filters
    that were read. OSError when the store fails.
    """
    found = []
    for each in segments:
        of = named.get(each.files.base_offset)
        if of is not None:
            path = directory / filter_file(each.files.base_offset)
            each = _asked(each, of, path, files, key, filter_key, progressed)
        found.append(each)
    return found


def _asked(
    searched: SearchedSegment,
    of: SegmentBytes,
    path: Path,
    files: FileSystem,
    key: bytes,
    filter_key: FilterKey,
    progressed: Callable[[int], None],
) -> SearchedSegment:
    read_bytes = 0
    try:
        with reading(files, path) as handle:
            object_bytes = handle.size_bytes
            if object_bytes > FILTER_BYTES_MAX:
                return searched
            data = bytearray(min(object_bytes, HEAD_BYTES))
            read_bytes = handle.pread_into(memoryview(data), 0)
            head = decode_head(bytes(data[:read_bytes]), str(path))
            # Records of old formats are not what the filter was meant for.
            if not head.speaks_for(of, object_bytes, filter_key) or head.contents.old_format:
                return searched
            rest = bytearray(max(head.size_bytes - read_bytes, 0))
            read_bytes += handle.pread_into(memoryview(rest), read_bytes) if rest else 0
            words = decode_words(head, bytes((data + rest)[head.words_at :]), str(path))
    except (FileNotFoundError, CorruptError):
        return searched
    finally:
        progressed(read_bytes)
    hashes = np.zeros(2, np.uint64)
    hash_of(
        np.frombuffer(bytearray(key), np.uint8), np.uint64(filter_key.k0),
        np.uint64(filter_key.k1), hashes,
    )  # fmt: skip
    is_absent = find_any(words, head.bits, head.probes, hashes[:1].copy(), 1) < 0
    return replace(searched, lacks_key=is_absent, is_quiet=has_no_events(head.contents))
