"""The bytes of a log in Aiven's layout, read by ranges and written as a stream.

The rule: **no more than a few chunks are in memory**, however large the log is. A plain log is read
and written as it stands; of any other one whole chunks are fetched, neighbours by one request, and
the last one is kept, since the next reader mostly begins in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keeplast.cluster.layouts.aiven_chunks import (
    SEAL_BYTES,
    ChunkIndex,
    check_log_size,
    fixed_index,
)
from keeplast.cluster.layouts.aiven_keys import SegmentCipher
from keeplast.cluster.layouts.aiven_manifest import (
    INDEX_MEMBERS,
    Sealing,
    SegmentManifest,
    StoredFile,
    encode_written,
)
from keeplast.cluster.layouts.layout import AuxiliaryFile, WrittenLog
from keeplast.errors import CorruptError, InvariantError, RefusedError, UnavailableError
from keeplast.format.checksum import Buffer
from keeplast.format.compression import compress_sized, decompress_sized
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.object_store import ObjectStore

CHUNK_BYTES_MAX = 256 << 20
"""A chunk that is compressed or encrypted must be held whole."""
FETCH_BYTES = 8 << 20
"""So much of neighbouring chunks is asked for at once, or one chunk."""


def check_chunks(size: int, is_transformed: bool) -> None:
    """RefusedError for chunks that would have to be held whole and are too large for it."""
    if is_transformed and size > CHUNK_BYTES_MAX:
        raise RefusedError(
            "chunks that are compressed or encrypted are larger than is worked with; lower the "
            f"plugin's chunk.size. size={size} max={CHUNK_BYTES_MAX}"
        )


def pack_indexes(
    auxiliary: Mapping[AuxiliaryFile, bytes], cipher: SegmentCipher | None
) -> tuple[dict[AuxiliaryFile, StoredFile], bytes]:
    """Return where each file lies in ``.indexes``, and the object: never cut, never compressed.

    Each is encrypted by itself, but for one without bytes.
    """
    files: dict[AuxiliaryFile, StoredFile] = {}
    parts: list[bytes] = []
    at = 0
    for kind in INDEX_MEMBERS:
        if kind not in auxiliary:
            continue
        data = auxiliary[kind]
        if cipher is not None and data:
            data = cipher.seal(data)
        files[kind] = StoredFile(at, len(data))
        parts.append(data)
        at += len(data)
    return files, b"".join(parts)


class AivenSegmentReader:
    """A segment whose manifest was read; nothing else was."""

    def __init__(
        self, objects: ObjectStore, url: str, log_key: str, indexes_key: str,
        manifest: SegmentManifest, cipher: SegmentCipher | None,
    ) -> None:  # fmt: skip
        """RefusedError when a chunk is too large to be held; ``url`` is for errors."""
        self._objects = objects
        self._url = url
        self._log_key = log_key
        self._indexes_key = indexes_key
        self._chunks = manifest.chunks
        self._manifest = manifest
        self._cipher = cipher
        self._is_plain = cipher is None and not manifest.is_compressed
        longest = min(self._chunks.original_chunk_size, self._chunks.original_size)
        check_chunks(longest, not self._is_plain)
        self._kept: tuple[int, Buffer] = -1, b""

    @property
    def log_bytes(self) -> int:
        """Return the size of the log itself."""
        return self._chunks.original_size

    def read_log(self, start: int, end: int) -> memoryview:
        """Return the log's bytes ``[start, end)``, less at its end."""
        end = min(end, self._chunks.original_size)
        if end <= start:
            return memoryview(b"")
        if self._is_plain:
            return self._fetch(self._log_key, start, end)
        chunk = self._chunks.original_chunk_size
        first, last = start // chunk, (end - 1) // chunk
        at, content = self._kept
        if first == last == at:
            return memoryview(content)[start - first * chunk : end - first * chunk]
        out = memoryview(bytearray(end - start))
        while first <= last:
            if first == at:
                self._copy(out, start, first, content)
                first += 1
                continue
            behind = self._run_end(first, last)
            from_, to = (int(self._chunks.starts[each]) for each in (first, behind))
            stored = self._fetch(self._log_key, from_, to)
            for number in range(first, behind):
                begin, stop = (int(self._chunks.starts[each]) for each in (number, number + 1))
                content = self._decode(number, stored[begin - from_ : stop - from_])
                self._copy(out, start, number, content)
                at = number
            first = behind
        self._kept = at, content
        return out

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        """Return a file of ``.indexes`` by one request, none for one without bytes."""
        place = self._manifest.files.get(file)
        if place is None:
            return None
        if place.size == 0:
            return b""
        data = self._fetch(self._indexes_key, place.position, place.position + place.size)
        if self._cipher is None:
            return bytes(data)
        try:
            return self._cipher.unseal(data)
        except CorruptError as error:
            raise self._located(error, self._indexes_key, place.position) from None

    def _run_end(self, first: int, last: int) -> int:
        """Return behind which chunk one request ends: at FETCH_BYTES, one chunk at least."""
        starts = self._chunks.starts
        found = int(np.searchsorted(starts, int(starts[first]) + FETCH_BYTES, "right")) - 1
        return min(max(found, first + 1), last + 1)

    def _copy(self, out: memoryview, start: int, number: int, content: Buffer) -> None:
        """Put what ``out``, which begins at ``start``, needs of a chunk where it belongs."""
        begin, _ = self._chunks.original_range(number)
        skipped = max(start - begin, 0)
        target = begin + skipped - start
        part = memoryview(content)[skipped : skipped + len(out) - target]
        out[target : target + len(part)] = part

    def _decode(self, number: int, stored: memoryview) -> Buffer:
        start, end = self._chunks.original_range(number)
        content: Buffer = stored
        try:
            if self._cipher is not None:
                content = self._cipher.unseal(content)
            if self._manifest.is_compressed:
                content = decompress_sized(content, end - start)
        except CorruptError as error:
            position = int(self._chunks.starts[number])
            raise self._located(error, self._log_key, position) from None
        return content

    def _fetch(self, key: str, start: int, end: int) -> memoryview:
        try:
            data = self._objects.read_range(key, start, end)
            size = start + len(data)
        except UnavailableError:
            # A store fails, too, when it is asked for what lies behind an object's end.
            size = self._objects.stat(key).size_bytes
            if size >= end:
                raise
        if size < end:
            raise CorruptError(
                "an object is shorter than its manifest says", path=f"{self._url}/{key}",
                position=start, expected=f">= {end}", found=size,
            )  # fmt: skip
        return data

    def _located(self, error: CorruptError, key: str, position: int) -> CorruptError:
        return CorruptError(
            error.problem, path=f"{self._url}/{key}", position=position, expected=error.expected,
            found=error.found,
        )  # fmt: skip


class AivenLogWriter:
    """A log while it is cut into chunks; the object appears with ``close``."""

    def __init__(
        self, target: NewObject, chunk_size: int, sealing: Sealing | None,
        cipher: SegmentCipher | None, *, is_compressed: bool,
    ) -> None:  # fmt: skip
        self._target = target
        self._chunk_size = chunk_size
        self._sealing = sealing
        self._cipher = cipher
        self._is_compressed = is_compressed
        self._is_plain = cipher is None and not is_compressed
        self._waiting = bytearray()
        self._sizes: list[int] = []
        self._size_bytes = 0

    def write(self, data: Buffer) -> None:
        """Append to the log; RefusedError, once it is larger than the plugin can read."""
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        check_log_size(self._size_bytes, self._chunk_size)
        if self._is_plain:
            self._target.write(view)
            return
        while len(view):
            if not self._waiting and len(view) >= self._chunk_size:
                part: Buffer = view[: self._chunk_size]
                view = view[self._chunk_size :]
                self._put(part)
                continue
            missing = self._chunk_size - len(self._waiting)
            self._waiting += view[:missing]
            view = view[missing:]
            if len(self._waiting) == self._chunk_size:
                self._put_waiting()

    def close(self) -> WrittenLog:
        """Make the object appear; the description has no plain key."""
        if self._size_bytes == 0:
            raise InvariantError("a log without bytes cannot be read by the plugin")
        if self._waiting:
            self._put_waiting()
        if self._is_compressed:
            sizes = np.array(self._sizes, np.int64)
            chunks = ChunkIndex(self._chunk_size, self._size_bytes, sizes)
        else:
            added = 0 if self._cipher is None else SEAL_BYTES
            chunks = fixed_index(self._chunk_size, self._size_bytes, added)
        if chunks.stored_size != self._target.size_bytes:
            raise InvariantError(
                "chunks were not written as their index says. "
                f"index={chunks.stored_size} written={self._target.size_bytes}"
            )
        manifest = SegmentManifest(chunks, {}, self._is_compressed, self._sealing)
        description = encode_written(manifest)
        self._target.close()
        return WrittenLog(self._size_bytes, description)

    def abort(self) -> None:
        """Give up what was written."""
        self._waiting = bytearray()
        self._target.abort()

    def _put_waiting(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        self._put(waiting)

    def _put(self, part: Buffer) -> None:
        if self._is_compressed:
            part = compress_sized(part)
        if self._cipher is not None:
            part = self._cipher.seal(part)
        self._sizes.append(len(part))
        self._target.write(part)
