"""Where the chunks of a log lie in Aiven's object: the chunk index of a manifest.

A log is cut into chunks of ``original_chunk_size`` bytes, the last one shorter and never empty;
each is stored on its own, one behind the other. An index is ``fixed`` when all but the last have
one stored size, else ``variable``: the sizes, big-endian, in one zstd frame::

    int32 0 | int32 1, int32 size | int32 count, int32 base, uint8 width, (count - 1) * width, int32

A size but the last is ``base`` plus its ``width`` bytes; ``base`` is the least of them. The rule:
**an index that does not add up is damage**; a reader that believed it would give a broker other
bytes at an offset. Pure. Answers to ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex``,
``ChunkSizesBinaryCodec``.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.compression import compress_sized, decompress_sized, sized_content
from keeplast.model.offsets import INT32_MAX

FIXED, VARIABLE = "fixed", "variable"
SEAL_BYTES = 28
"""What encryption adds to a chunk: 12 bytes of IV before it and 16 of tag behind it."""
FRAME_BYTES_MAX = 10 << 20
"""The plugin's own limit of what the sizes of a variable index may be, decompressed."""
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">iiB")
_WIDTH_MAX = 4

Sizes = NDArray[np.int64]
JsonObject = dict[str, object]


@dataclass(frozen=True, eq=False)
class ChunkIndex:
    """The chunks of one log: ``sizes`` are those stored, in order."""

    original_chunk_size: int
    original_size: int
    sizes: Sizes

    def __post_init__(self) -> None:
        """Raise CorruptError unless the numbers fit each other."""
        is_chunk = 0 < self.original_chunk_size <= INT32_MAX
        if not is_chunk or not 0 <= self.original_size <= INT32_MAX:
            raise _wrong(
                "sizes of a log and its chunks are out of range", f"1 to {INT32_MAX}",
                f"chunk {self.original_chunk_size} log {self.original_size}",
            )  # fmt: skip
        count = chunk_count(self.original_size, self.original_chunk_size)
        if len(self.sizes) != count:
            raise _wrong("another number of chunks than the log has", count, len(self.sizes))
        if count and int(self.sizes.min()) < 1:
            raise _wrong("a chunk has no bytes", ">= 1", int(self.sizes.min()))
        if self.stored_size > INT32_MAX:
            raise _wrong("chunks are more than an object holds", INT32_MAX, self.stored_size)

    @cached_property
    def starts(self) -> Sizes:
        """Where chunks lie in the object; one more than there are, the last is its size."""
        starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=starts[1:])
        return starts

    @property
    def stored_size(self) -> int:
        """Return the size of the log's object."""
        return int(self.starts[-1])

    def original_range(self, chunk: int) -> tuple[int, int]:
        """Return the bytes of the log that a chunk holds, ``[start, end)``."""
        start = chunk * self.original_chunk_size
        return start, min(start + self.original_chunk_size, self.original_size)

    def check_untransformed(self, added: int) -> None:
        """Raise CorruptError unless each chunk is stored with ``added`` bytes more than it has."""
        if not len(self.sizes):
            return
        start, end = self.original_range(len(self.sizes) - 1)
        whole = self.original_chunk_size + added
        is_last = int(self.sizes[-1]) == end - start + added
        if not is_last or not bool((self.sizes[:-1] == whole).all()):
            raise _wrong(
                "chunks that are not compressed have other sizes than the log's", whole,
                int(self.sizes[0]),
            )  # fmt: skip


def chunk_count(original_size: int, original_chunk_size: int) -> int:
    """Return how many chunks a log is cut into."""
    return -(-original_size // original_chunk_size)


def fixed_index(original_chunk_size: int, original_size: int, added: int) -> ChunkIndex:
    """Return the index of chunks that are stored with ``added`` bytes more each."""
    count = chunk_count(original_size, original_chunk_size)
    sizes = np.full(count, original_chunk_size + added, np.int64)
    if count:
        sizes[-1] = original_size - (count - 1) * original_chunk_size + added
    return ChunkIndex(original_chunk_size, original_size, sizes)


def check_log_size(size: int, original_chunk_size: int) -> None:
    """RefusedError for a log that the plugin could not read to its end.

    It counts in signed 32 bits, and up to the end of a chunk behind the last one.
    """
    chunks = chunk_count(size, original_chunk_size)
    if size + 2 * original_chunk_size + SEAL_BYTES * chunks > INT32_MAX:
        raise RefusedError(
            "the plugin cannot read a log of this size in such chunks; make segments smaller "
            f"(segment.bytes). size={size} chunk_size={original_chunk_size}"
        )


def encode_index(index: ChunkIndex, *, is_compressed: bool) -> JsonObject:
    """Return the ``chunkIndex`` of a manifest; members in the plugin's order.

    Chunks that are not compressed have one size, and a fixed index.
    """
    shared: JsonObject = {
        "originalChunkSize": index.original_chunk_size,
        "originalFileSize": index.original_size,
    }
    if is_compressed:
        packed = base64.b64encode(compress_sized(encode_sizes(index.sizes))).decode("ascii")
        return {"type": VARIABLE, **shared, "transformedChunks": packed}
    last_start, last_end = index.original_range(max(len(index.sizes) - 1, 0))
    last = int(index.sizes[-1]) if len(index.sizes) else 0
    added = last - (last_end - last_start)
    whole = index.original_chunk_size + added
    return {
        "type": FIXED, **shared, "transformedChunkSize": whole, "finalTransformedChunkSize": last,
    }  # fmt: skip


def fixed_sizes(original_size: int, original_chunk_size: int, whole: int, last: int) -> Sizes:
    """Return the stored sizes that a fixed index means.

    CorruptError when there are more chunks than a variable index may have.
    """
    count = chunk_count(original_size, original_chunk_size)
    if count > FRAME_BYTES_MAX:
        raise _wrong("too many chunks", FRAME_BYTES_MAX, count)
    if max(whole, last) > INT32_MAX:
        raise _wrong("a chunk is larger than an object", INT32_MAX, max(whole, last))
    sizes = np.full(count, whole, np.int64)
    if count:
        sizes[-1] = last
    return sizes


def unpack_sizes(text: str) -> Sizes:
    """Return the stored sizes in ``transformedChunks``; CorruptError when they cannot be read."""
    try:
        frame = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise _wrong("transformedChunks is not base64", "base64", text[:40]) from None
    size = sized_content(frame)
    if size > FRAME_BYTES_MAX:
        raise _wrong("too many chunks", f"{FRAME_BYTES_MAX} bytes of sizes", size)
    return decode_sizes(decompress_sized(frame, size))


def encode_sizes(sizes: Sizes) -> bytes:
    """Return stored sizes as a variable index has them."""
    count = len(sizes)
    if count < 2:
        return b"".join(_INT32.pack(value) for value in (count, *map(int, sizes)))
    before = sizes[:-1]
    base = int(before.min())
    over = (before - base).astype(">u4")
    width = max(1, -(-int(over.max()).bit_length() // 8))
    body = over.view(np.uint8).reshape(-1, _WIDTH_MAX)[:, _WIDTH_MAX - width :].tobytes()
    return _HEAD.pack(count, base, width) + body + _INT32.pack(int(sizes[-1]))


def decode_sizes(data: bytes) -> Sizes:
    """Return stored sizes; CorruptError for other lengths than their head says."""
    if len(data) < _INT32.size:
        raise _wrong("sizes of chunks end early", _INT32.size, len(data))
    (count,) = _INT32.unpack_from(data)
    if count < 2:
        if count < 0 or len(data) != _INT32.size * (1 + count):
            raise _wrong("sizes of chunks end elsewhere", _INT32.size * (1 + count), len(data))
        return np.frombuffer(data, ">i4", offset=_INT32.size).astype(np.int64)
    if len(data) < _HEAD.size:
        raise _wrong("sizes of chunks end early", _HEAD.size, len(data))
    _, base, width = _HEAD.unpack_from(data)
    end = _HEAD.size + (count - 1) * width
    if not 0 < width <= _WIDTH_MAX or len(data) != end + _INT32.size:
        raise _wrong("sizes of chunks end elsewhere", end + _INT32.size, len(data))
    over = np.zeros((count - 1, _WIDTH_MAX), np.uint8)
    over[:, _WIDTH_MAX - width :] = np.frombuffer(
        data, np.uint8, (count - 1) * width, _HEAD.size
    ).reshape(-1, width)
    sizes = np.empty(count, np.int64)
    sizes[:-1] = over.view(">u4").ravel().astype(np.int64) + base
    (sizes[-1],) = _INT32.unpack_from(data, end)
    return sizes


def _wrong(problem: str, expected: object, found: object) -> CorruptError:
    return CorruptError(f"chunk index: {problem}", expected=expected, found=found)
