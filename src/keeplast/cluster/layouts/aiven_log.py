"""The bytes of a log in Aiven's layout, read by ranges and written as a stream.

The rule: **no more than a few chunks are in memory**, however large the log is. A plain log is read
and written as it stands. Of any other log whole chunks are fetched, neighbours by one request. The
last one is kept, since the next reader mostly begins in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from keeplast.cluster.layouts.aiven_encryption import (
    IV_BYTES,
    TAG_BYTES,
    ChunkSealer,
    SegmentCipher,
)
from keeplast.cluster.layouts.aiven_manifest import (
    INDEX_MEMBERS,
    SEAL_BYTES,
    ChunkIndex,
    Sealing,
    SegmentManifest,
    StoredFile,
    check_log_size,
    encode_written,
    fixed_index,
)
from keeplast.cluster.layouts.layout import AuxiliaryFile, SegmentReader, WrittenLog
from keeplast.errors import CorruptError, RefusedError, UnavailableError, invariant
from keeplast.format.checksum import Buffer
from keeplast.format.compression import compress_sized, decompress_sized
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.object_store import ObjectStore, fill

CHUNK_BYTES_MAX = 256 << 20
"""A chunk that is compressed or encrypted must be held whole."""
FETCH_BYTES = 8 << 20
"""So much of neighbouring chunks is asked for at once, or one chunk."""
PART_BYTES = 1 << 20
"""So much is encrypted at once, and decrypted where objects are files: it is near the processor."""


def check_chunks(size: int, is_transformed: bool) -> None:
    """RefusedError for chunks that would have to be held whole and are too large for it."""
    if is_transformed and size > CHUNK_BYTES_MAX:
        raise RefusedError(
            "chunks that are compressed or encrypted are larger than is worked with; lower the "
            f"plugin's chunk.size. size={size} max={CHUNK_BYTES_MAX}",
            code="K438",
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


class _DecodedChunk:
    """The chunk that a reader has decoded last, and the memory that it works in."""

    __slots__ = ("content", "number", "part", "room")

    def __init__(self, room_bytes: int) -> None:
        self.number = -1
        self.content: Buffer = b""
        # Pages of them are there once they are written to.
        self.room = np.empty(room_bytes, np.uint8).data
        self.part = np.empty(min(room_bytes, PART_BYTES), np.uint8).data


class AivenSegmentReader(SegmentReader):
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
        has_chunks = not self._is_plain and len(self._chunks.sizes) > 0
        self._room_bytes = int(self._chunks.sizes.max()) if has_chunks else 0
        # Who reads takes it out meanwhile: another thread decodes for itself.
        self._kept: deque[_DecodedChunk] = deque(maxlen=1)

    @property
    def log_bytes(self) -> int:
        """Return the size of the log itself."""
        return self._chunks.original_size

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``start`` on, less at the log's end."""
        end = min(start + len(buffer), self._chunks.original_size)
        if end <= start:
            return 0
        out = buffer[: end - start]
        if self._is_plain:
            if not fill(self._objects, self._log_key, start, out):
                out[:] = self._fetch(self._log_key, start, end)
            return len(out)
        try:
            kept = self._kept.pop()
        except IndexError:
            kept = _DecodedChunk(self._room_bytes)
        chunk = self._chunks.original_chunk_size
        first, last = start // chunk, (end - 1) // chunk
        fetched, from_, behind = memoryview(b""), 0, first
        for number in range(first, last + 1):
            if number != kept.number and not self._fill(number, kept):
                if number >= behind:
                    behind = self._run_end(number, last)
                    from_, to = self._stored_range(number, behind)
                    fetched = self._fetch(self._log_key, from_, to)
                begin, stop = self._stored_range(number, number + 1)
                self._decode(number, fetched[begin - from_ : stop - from_], kept)
            self._copy(out, start, kept)
        self._kept.append(kept)
        return len(out)

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
            raise error.placed(
                path=f"{self._url}/{self._indexes_key}", position=place.position
            ) from None

    def _stored_range(self, first: int, behind: int) -> tuple[int, int]:
        """Return where the chunks ``[first, behind)`` lie in the object."""
        return int(self._chunks.starts[first]), int(self._chunks.starts[behind])

    def _run_end(self, first: int, last: int) -> int:
        """Return after which chunk one request ends: at FETCH_BYTES, one chunk at least."""
        starts = self._chunks.starts
        found = int(np.searchsorted(starts, int(starts[first]) + FETCH_BYTES, "right")) - 1
        return min(max(found, first + 1), last + 1)

    def _copy(self, out: memoryview, start: int, kept: _DecodedChunk) -> None:
        """Put what ``out``, which begins at ``start``, needs of a chunk where it belongs."""
        begin, _ = self._chunks.original_range(kept.number)
        skipped = max(start - begin, 0)
        target = begin + skipped - start
        part = memoryview(kept.content)[skipped : skipped + len(out) - target]
        out[target : target + len(part)] = part

    def _fill(self, number: int, kept: _DecodedChunk) -> bool:
        """Keep a chunk of an object that is a file, without memory between.

        False for any other, and for what is not right: :meth:`_decode` says what it is.
        """
        begin, stop = self._stored_range(number, number + 1)
        kept.number, kept.content = -1, b""
        try:
            if self._cipher is None:
                stored = kept.room[: stop - begin]
                if not fill(self._objects, self._log_key, begin, stored):
                    return False
                self._keep(number, stored, kept)
                return True
            ends = memoryview(bytearray(SEAL_BYTES))
            iv, tag = ends[:IV_BYTES], ends[IV_BYTES:]
            begin, stop = begin + IV_BYTES, stop - TAG_BYTES
            if not (
                fill(self._objects, self._log_key, begin - IV_BYTES, iv)
                and fill(self._objects, self._log_key, stop, tag)
            ):
                return False
            parts = self._parts(begin, stop, kept.part)
            content = self._cipher.unseal_parts(bytes(iv), bytes(tag), parts, kept.room)
            self._keep(number, content, kept)
        except CorruptError:
            return False
        return True

    def _parts(self, start: int, end: int, room: memoryview) -> Iterator[memoryview]:
        """Yield ``[start, end)`` of the object part by part, each in ``room``; less if it fails."""
        while start < end and fill(self._objects, self._log_key, start, room[: end - start]):
            yield room[: end - start]
            start += len(room)

    def _decode(self, number: int, stored: memoryview, kept: _DecodedChunk) -> None:
        """Keep a chunk; CorruptError for one that is damaged, and none is kept."""
        kept.number, kept.content = -1, b""
        try:
            cipher = self._cipher
            content = stored if cipher is None else cipher.unseal_into(stored, kept.room)
            self._keep(number, content, kept)
        except CorruptError as error:
            position = int(self._chunks.starts[number])
            raise error.placed(path=f"{self._url}/{self._log_key}", position=position) from None

    def _keep(self, number: int, content: Buffer, kept: _DecodedChunk) -> None:
        if self._manifest.is_compressed:
            start, end = self._chunks.original_range(number)
            content = decompress_sized(content, end - start)
        kept.number, kept.content = number, content

    def _fetch(self, key: str, start: int, end: int) -> memoryview:
        try:
            data = self._objects.read_range(key, start, end)
            size = start + len(data)
        except UnavailableError:
            # A store fails, too, when it is asked for bytes beyond an object's end.
            size = self._objects.stat(key).size_bytes
            if size >= end:
                raise
        if size < end:
            raise CorruptError(
                "an object is shorter than its manifest says", path=f"{self._url}/{key}",
                position=start, expected=f">= {end}", found=size, code="K437",
            )  # fmt: skip
        return data


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
        self._waiting = memoryview(b"")
        self._waiting_bytes = 0
        self._sealer: ChunkSealer | None = None
        self._sealed_bytes = 0
        self._room = memoryview(b"")
        self._sizes: list[int] = []
        self._size_bytes = 0

    def write(self, data: Buffer) -> None:
        """Append to the log; RefusedError, once it is larger than the plugin can read."""
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        check_log_size(self._size_bytes, self._chunk_size)
        if self._is_compressed:
            self._gather(view)
        elif self._cipher is None:
            self._target.write(view)
        else:
            self._seal_chunks(self._cipher, view)

    def _gather(self, view: memoryview) -> None:
        """Compress whole chunks; what is left waits."""
        while len(view):
            if not self._waiting_bytes and len(view) >= self._chunk_size:
                self._put(view[: self._chunk_size])
                view = view[self._chunk_size :]
                continue
            if not self._waiting:
                # Pages of it are there once they are written to.
                self._waiting = np.empty(self._chunk_size, np.uint8).data
            at = self._waiting_bytes
            part = view[: self._chunk_size - at]
            self._waiting[at : at + len(part)] = part
            self._waiting_bytes += len(part)
            view = view[len(part) :]
            if self._waiting_bytes == self._chunk_size:
                self._put_waiting()

    def close(self) -> WrittenLog:
        """Make the object appear; the description has no plain key."""
        invariant(self._size_bytes != 0, "a log without bytes cannot be read by the plugin")
        if self._waiting_bytes:
            self._put_waiting()
        if self._sealer is not None:
            self._end_seal(self._sealer)
        if self._is_compressed:
            sizes = np.array(self._sizes, np.int64)
            chunks = ChunkIndex(self._chunk_size, self._size_bytes, sizes)
        else:
            added = 0 if self._cipher is None else SEAL_BYTES
            chunks = fixed_index(self._chunk_size, self._size_bytes, added)
        invariant(
            chunks.stored_size == self._target.size_bytes,
            "chunks were not written as their index says. "
            f"index={chunks.stored_size} written={self._target.size_bytes}",
        )
        description = encode_written(
            SegmentManifest(chunks, {}, self._is_compressed, self._sealing)
        )
        self._target.close()
        return WrittenLog(self._size_bytes, description)

    def abort(self) -> None:
        """Give up what was written."""
        self._waiting = memoryview(b"")
        self._target.abort()

    def _put_waiting(self) -> None:
        self._put(self._waiting[: self._waiting_bytes])
        self._waiting_bytes = 0

    def _put(self, part: Buffer) -> None:
        """Write one chunk, compressed."""
        part = compress_sized(part)
        added = 0 if self._cipher is None else SEAL_BYTES
        self._sizes.append(len(part) + added)
        if self._cipher is None:
            self._target.write(part)
        else:
            self._end_seal(self._seal(self._cipher, memoryview(part)))

    def _seal_chunks(self, cipher: SegmentCipher, view: memoryview) -> None:
        """Encrypt what comes as it comes; a chunk ends where it is full."""
        while len(view):
            part = view[: self._chunk_size - self._sealed_bytes]
            view = view[len(part) :]
            sealer = self._seal(cipher, part)
            self._sealed_bytes += len(part)
            if self._sealed_bytes == self._chunk_size:
                self._end_seal(sealer)

    def _seal(self, cipher: SegmentCipher, part: memoryview) -> ChunkSealer:
        if not self._room:
            self._room = np.empty(PART_BYTES + SEAL_BYTES, np.uint8).data
        if self._sealer is None:
            self._sealer = cipher.sealer()
        for at in range(0, len(part), PART_BYTES):
            self._target.write(self._sealer.update(part[at : at + PART_BYTES], self._room))
        return self._sealer

    def _end_seal(self, sealer: ChunkSealer) -> None:
        self._target.write(sealer.finish())
        self._sealer, self._sealed_bytes = None, 0
