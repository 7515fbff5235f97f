"""Compresses and decompresses what lies inside a batch, with Kafka's framing of each codec.

Two rules. *Bytes written are Kafka's*: gzip, lz4 and zstd give what Kafka 4.3 writes for the same
input. Snappy gives the same framing, but in about half of all cases other block contents. *Sizes
read are not believed*. Before anything is allocated, a declared size is compared with the most that
its input can give, and the sum with the caller's limit.

    ======  ==============================================================================
    codec   framing
    ======  ==============================================================================
    gzip    RFC 1952 members; the JDK's header says operating system ``ff``
    snappy  xerial: 16-byte header, then int32 length + raw block each; written in 32 KiB
            blocks. A payload without that header is one raw block
    lz4     one frame, little-endian, independent blocks, written in 64 KiB blocks without
            checksums. What follows its end mark is ignored. In magic 0 the header checksum
            covers the magic number too and is not checked on read
    zstd    frames; Kafka writes one without content size or checksum, ended by an empty block
    ======  ==============================================================================

Only this module may import ``cramjam`` and ``zstandard``. The latter writes zstd, because its
version of the library is the one Kafka 4.3 carries. It reads frames of up to 64 KiB, because its
context can be kept. Answers to ``Compression`` and its streams (``Lz4BlockInputStream``);
formats.md section 1.6, and F8 of cleaning-findings.md for the bytes.
"""

from __future__ import annotations

from enum import IntEnum

import cramjam
import zstandard

from keeplast.errors import CorruptError
from keeplast.format import frames
from keeplast.format.checksum import Buffer
from keeplast.format.frames import DECOMPRESSED_BYTES_MAX, check_limit, cut, undecodable

_ZSTD_LEVEL = 3
_ZSTD_BOUND_BYTES_MAX = 4 << 20
_ZSTD_ROOM_BYTES = 1 << 20
_ROOM_GROWTH = 8
_WINDOW_BYTES_MAX = 16 << 20


class Codec(IntEnum):
    """Bits 0 to 2 of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class ZstdWriter:
    """Writes zstd as Kafka does; holds the tables between calls. Not for use by two threads."""

    __slots__ = ("_compressor",)

    def __init__(self) -> None:
        """Prepare; the tables are made by the first call."""
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)

    def compress(self, data: Buffer) -> bytes:
        """Return one frame. Kafka flushes before it closes, hence the empty last block."""
        stream = self._compressor.compressobj()
        written: bytes = stream.compress(data)
        return written + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()


class ZstdReader:
    """Reads zstd frames as Kafka writes them; holds its tables between calls.

    Making them costs 18 us: several times what a small frame takes, and as much as one of 14 KiB
    of records. From 64 KiB on it no longer matters. Not for use by two threads.
    """

    __slots__ = ("_decompressor",)

    def __init__(self) -> None:
        """Prepare; the tables are made by the first call."""
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)

    def read_row(self, data: Buffer, target: memoryview) -> int | None:
        """Decompress frames that follow each other to ``target``; returns how much they gave.

        What has no room is left out, whatever follows included. None when anything is wrong. One
        call for many frames: between frames other threads need not wait for the interpreter.
        """
        reader = self._decompressor.stream_reader(data, read_across_frames=True)
        try:
            filled: int = reader.readinto(target)
        except zstandard.ZstdError:
            return None
        return filled


def compress_sized(data: Buffer) -> bytes:
    """Return one zstd frame at the default level that says how much it holds, without checksum."""
    frame: bytes = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(
        data
    )
    return frame


def sized_content(data: Buffer) -> int:
    """Return how much a zstd frame says it holds; CorruptError when it does not say."""
    try:
        size: int = zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as error:
        raise undecodable("zstd", 0, str(error)) from None
    if size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
        raise CorruptError(
            "a zstd frame does not say how much it holds", position=0, expected="its content size",
            found="none", code="K216",
        )  # fmt: skip
    return size


def decompress_sized(data: Buffer, size: int) -> bytes:
    """Return what the one zstd frame in ``data`` holds: ``size`` bytes, as it must say itself.

    CorruptError for anything else, before memory is taken for it.
    """
    found = sized_content(data)
    if found != size:
        raise CorruptError(
            "a zstd frame holds another number of bytes",
            position=0,
            expected=size,
            found=found,
            code="K216",
        )
    try:
        content: bytes = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise undecodable("zstd", 0, str(error)) from None
    if len(content) != size:
        raise CorruptError(
            "a zstd frame holds another number of bytes", position=0, expected=size,
            found=len(content), code="K216",
        )  # fmt: skip
    return content


def compress(codec: Codec, data: Buffer, *, magic: int = 2) -> bytes:
    """Return ``data`` as the payload of a batch, at the codec's default level.

    ``magic`` matters to lz4 only: 0 writes the header checksum that old clients expect.
    """
    if codec == Codec.GZIP:
        return frames.compress(data)
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if codec == Codec.LZ4:
        return _compress_lz4(data, magic)
    if codec == Codec.ZSTD:
        return ZstdWriter().compress(data)
    return bytes(data)


def decompress(
    codec: Codec, data: Buffer, *, magic: int = 2, limit: int = DECOMPRESSED_BYTES_MAX
) -> Buffer:
    """Return what the payload ``data`` holds, at most ``limit`` bytes.

    The result may be a view of memory that nothing else writes; codec ``NONE`` gives ``data``
    itself. Anything that Kafka's reader would refuse, and anything larger than ``limit`` or
    :data:`DECOMPRESSED_BYTES_MAX`, raises :class:`CorruptError` with the position within ``data``.
    """
    limit = min(limit, DECOMPRESSED_BYTES_MAX)
    if codec == Codec.NONE:
        check_limit(len(data), limit, 0)
        return data
    view = memoryview(data)
    if codec == Codec.GZIP:
        return frames.decompress(view, limit)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(view, limit)
    if codec == Codec.LZ4:
        return _decompress_lz4(view, limit, is_checksum_checked=magic > 0)
    return _decompress_zstd(view, limit)


def decompress_into(codec: Codec, data: memoryview, target: memoryview) -> int | None:
    """Decompress what magic 2 or 1 has to the start of ``target`` and return how many bytes it was.

    None when it cannot be known beforehand that they fit; nothing is lost by asking
    :func:`decompress` then. CorruptError as there. Bytes of ``target`` after the result may have
    been written to.
    """
    room = len(target)
    if codec == Codec.SNAPPY:
        parts, total = _snappy_blocks(data, DECOMPRESSED_BYTES_MAX)
        if total > room:
            return None
        _fill_from_snappy(data, parts, target)
        return total
    if codec == Codec.LZ4:
        blocks = frames.decode_blocks(data, is_checksum_checked=True)
        if sum(block.output_bytes_max for block in blocks) > room:
            return None
        return _fill_from_lz4(data, blocks, target, room)
    if codec == Codec.ZSTD and len(data) > 0 and frames.output_bound(data) <= room:
        return _fill_from_zstd(data, target)
    return None


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [frames.XERIAL_HEADER]
    for start in range(0, len(view), frames.XERIAL_BLOCK_BYTES):
        block = memoryview(
            cramjam.snappy.compress_raw(view[start : start + frames.XERIAL_BLOCK_BYTES])
        )
        parts += (frames.encode_length(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> Buffer:
    blocks, total = _snappy_blocks(data, limit)
    output = bytearray(total)
    _fill_from_snappy(data, blocks, memoryview(output))
    return output


def _snappy_blocks(data: memoryview, limit: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return start, end and declared output of every block, and the sum of the latter."""
    spans = frames.find_blocks(data) if frames.is_framed(data) else [(0, len(data))]
    blocks = []
    total = 0
    for start, end in spans:
        size = frames.declared_size(data, start, end, limit - total)
        total += size
        blocks.append((start, end, size))
    return blocks, total


def _fill_from_snappy(
    data: memoryview, blocks: list[tuple[int, int, int]], target: memoryview
) -> None:
    filled = 0
    for start, end, size in blocks:
        try:
            cramjam.snappy.decompress_raw_into(data[start:end], target[filled : filled + size])
        except cramjam.DecompressionError as error:
            raise undecodable("snappy", start, str(error)) from None
        filled += size


def _compress_lz4(data: Buffer, magic: int) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [frames.BROKEN_HEADER if magic == 0 else frames.LZ4_HEADER]
    for start in range(0, len(view), frames.LZ4_BLOCK_BYTES):
        raw = view[start : start + frames.LZ4_BLOCK_BYTES]
        block = memoryview(cramjam.lz4.compress_block(raw, store_size=False))
        is_stored = len(block) >= len(raw)
        if is_stored:
            block = raw
        parts += (frames.encode_size(len(block), is_stored=is_stored), block)
    parts.append(frames.END_MARK)
    return b"".join(parts)


def _decompress_lz4(data: memoryview, limit: int, *, is_checksum_checked: bool) -> Buffer:
    blocks = frames.decode_blocks(data, is_checksum_checked=is_checksum_checked)
    # While a block is decoded it may need more room than it gives, so the greatest block is set
    # aside beyond the limit.
    sizes = [block.output_bytes_max for block in blocks]
    output = bytearray(min(sum(sizes), limit + max(sizes, default=0)))
    return _trim(memoryview(output), _fill_from_lz4(data, blocks, memoryview(output), limit))


def _fill_from_lz4(
    data: memoryview, blocks: list[frames.Block], target: memoryview, limit: int
) -> int:
    filled = 0
    for start, end, is_stored, output_bytes_max in blocks:
        free = target[filled : filled + output_bytes_max]
        if is_stored:
            free[:] = data[start:end]
            filled += output_bytes_max
        else:
            try:
                filled += cramjam.lz4.decompress_block_into(data[start:end], free)
            except cramjam.DecompressionError as error:
                raise undecodable("lz4", start, str(error)) from None
        check_limit(filled, limit, start)
    return filled


def _trim(room: memoryview, filled: int) -> Buffer:
    """Return what is filled; a small result must not hold on to the room of a whole block."""
    return room[:filled] if filled * 2 > len(room) else bytes(room[:filled])


def _fill_from_zstd(data: memoryview, target: bytearray | memoryview) -> int:
    try:
        filled: int = cramjam.zstd.decompress_into(data, target)
    except cramjam.DecompressionError as error:
        raise undecodable("zstd", 0, str(error)) from None
    return filled


def _decompress_zstd(data: memoryview, limit: int) -> Buffer:
    if len(data) == 0:
        raise cut(0, "a zstd frame", 0)
    bound = frames.output_bound(data)
    if bound <= limit and bound <= _ZSTD_BOUND_BYTES_MAX:
        # Into room for the most that the blocks can give: growing it costs two thirds of the time.
        output = bytearray(bound)
        return _trim(memoryview(output), _fill_from_zstd(data, output))
    if bound <= limit:
        try:
            return memoryview(cramjam.zstd.decompress(data))
        except cramjam.DecompressionError as error:
            raise undecodable("zstd", 0, str(error)) from None
    # The blocks could give more than is allowed. What they do give is found by trying, in room
    # that grows from a multiple of the input to the limit.
    room = min(limit, max(_ZSTD_ROOM_BYTES, _ROOM_GROWTH * len(data)))
    while True:
        output = bytearray(room)
        try:
            filled = cramjam.zstd.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if room == limit:
                raise CorruptError(
                    "zstd data cannot be decompressed",
                    position=0,
                    expected=f"valid zstd data of at most {limit} bytes",
                    found=str(error),
                    code="K216",
                ) from None
            room = min(limit, room * _ROOM_GROWTH)
        else:
            return memoryview(output)[:filled]
