"""Bytes of each codec against the JVM's, framing that readers must accept, and damage."""

from __future__ import annotations

import random
import struct
import zlib
from typing import NamedTuple

import cramjam
import pytest

from keeplast.errors import CorruptError
from keeplast.format.checksum import xxh32
from keeplast.format.compression import Codec, compress, decompress

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
SIZES = [0, 1, 1_000, 32_768, 65_536, 65_537, 300_000]
A = b"\xaa" * 100

SNAPPY_OF_A = bytes.fromhex("82534e41505059000000000100000001000000096400aafe01008a0100")
ZSTD_OF_A = bytes.fromhex("28b52ffd005844000010aaaa01003f012c010000")
GZIP_OF_A = bytes.fromhex("1f8b08000000000000ff5bb58af60000874434c364000000")
LZ4_BLOCK_OF_A = bytes.fromhex("1faa01004b50aaaaaaaaaa")
LZ4_OF_A = bytes.fromhex("04224d18604082") + b"\x0b\0\0\0" + LZ4_BLOCK_OF_A + bytes(4)


class Damage(NamedTuple):
    codec: Codec
    data: bytes
    position: int


def text(size: int) -> bytes:
    dice = random.Random(size)
    return b"".join(b"%d," % dice.randrange(1000) for _ in range(size // 2 + 1))[:size]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("content", [text, noise, bytes])
def test_data_reads_back(codec: Codec, size: int, content: type[bytes]) -> None:
    data = content(size)

    assert data == bytes(decompress(codec, compress(codec, data)))


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (Codec.SNAPPY, SNAPPY_OF_A),
        (Codec.ZSTD, ZSTD_OF_A),
        (Codec.GZIP, GZIP_OF_A),
        (Codec.LZ4, LZ4_OF_A),
        (Codec.NONE, A),
    ],
)
def test_bytes_are_those_of_the_jvm(codec: Codec, expected: bytes) -> None:
    assert expected == compress(codec, A)
    assert bytes(decompress(codec, expected)) == A


@pytest.mark.parametrize("codec", list(Codec))
def test_any_buffer_is_taken(codec: Codec) -> None:
    payload = compress(codec, text(1000))

    for buffer in (bytes, bytearray, memoryview):
        assert payload == compress(codec, buffer(text(1000)))
        assert text(1000) == bytes(decompress(codec, buffer(payload)))


def test_gzip_header_names_an_unknown_operating_system() -> None:
    assert bytes.fromhex("1f8b08000000000000ff") == compress(Codec.GZIP, b"x")[:10]


def test_snappy_is_cut_every_32_kib() -> None:
    payload = compress(Codec.SNAPPY, noise(70_000))
    lengths = []
    position = 16
    while position < len(payload):
        (length,) = struct.unpack_from(">i", payload, position)
        lengths.append(length)
        position += 4 + length

    assert len(lengths) == 3
    assert [payload[20:23], payload[24 + lengths[0] :][:3]] == [b"\x80\x80\x02", b"\x80\x80\x02"]


def test_lz4_stores_blocks_that_do_not_shrink() -> None:
    payload = compress(Codec.LZ4, noise(65_537))

    assert len(payload) == 7 + 4 + 65_536 + 4 + 1 + 4
    assert bytes.fromhex("00000180") == payload[7:11]
    assert bytes.fromhex("01000080") == payload[65_547:65_551]


def test_zstd_ends_with_an_empty_block() -> None:
    payload = compress(Codec.ZSTD, text(300_000))

    assert bytes.fromhex("28b52ffd0058") == payload[:6]
    assert bytes.fromhex("010000") == payload[-3:]


def test_lz4_of_magic_0_has_the_broken_header_checksum() -> None:
    broken = compress(Codec.LZ4, A, magic=0)

    assert LZ4_OF_A[:6] + b"\x1a" + LZ4_OF_A[7:] == broken
    assert bytes(decompress(Codec.LZ4, broken, magic=0)) == A
    assert bytes(decompress(Codec.LZ4, LZ4_OF_A, magic=0)) == A


@pytest.mark.parametrize("magic", [1, 2])
def test_broken_header_checksum_is_corrupt_from_magic_1_on(magic: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decompress(Codec.LZ4, compress(Codec.LZ4, A, magic=0), magic=magic)
    assert (
        caught.value.position,
        caught.value.expected,
        caught.value.found,
    ) == (6, "0x1a", "0x82")


# --- what readers must accept --------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_in_a_row_are_one(codec: Codec) -> None:
    parts = [text(70_000), b"", noise(50_000), A]

    data = b"".join(compress(codec, part) for part in parts)

    assert b"".join(parts) == bytes(decompress(codec, data))


def test_second_lz4_frame_is_ignored() -> None:
    assert bytes(decompress(Codec.LZ4, LZ4_OF_A + compress(Codec.LZ4, b"more"))) == A
    assert bytes(decompress(Codec.LZ4, LZ4_OF_A + b"junk")) == A


def test_many_tiny_gzip_members_are_read_in_linear_time() -> None:
    member = compress(Codec.GZIP, b"x")

    assert bytes(decompress(Codec.GZIP, member * 20_000)) == b"x" * 20_000


@pytest.mark.parametrize("junk", [b"x", b"\x1f\x8b\x08" + bytes(15), b"junk" * 10])
def test_junk_after_a_gzip_member_is_ignored(junk: bytes) -> None:
    assert bytes(decompress(Codec.GZIP, GZIP_OF_A + junk)) == A


def test_bare_snappy_block_is_accepted() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes.fromhex("02046162"))) == b"ab"
    assert bytes(decompress(Codec.SNAPPY, SNAPPY_OF_A[20:])) == A


def test_up_to_three_bytes_after_a_snappy_block_are_ignored() -> None:
    assert bytes(decompress(Codec.SNAPPY, SNAPPY_OF_A + b"\x01\x02\x03")) == A


def test_zstd_frame_of_one_shot_with_content_size_is_accepted() -> None:
    frame = bytes(cramjam.zstd.compress(text(5_000)))

    # The descriptor says: content size of two bytes, single segment.
    assert frame[4] == 0x40 | 0x20
    assert text(5_000) == bytes(decompress(Codec.ZSTD, frame))


def test_zstd_content_checksum_is_verified() -> None:
    frame = bytes(cramjam.zstd.compress(text(5_000)))
    wrong_checksum = bytes(4)

    with pytest.raises(CorruptError):
        decompress(Codec.ZSTD, frame[:4] + bytes((frame[4] | 4,)) + frame[5:] + wrong_checksum)


def test_skippable_zstd_frame_is_skipped() -> None:
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"notes"

    assert bytes(decompress(Codec.ZSTD, skippable + ZSTD_OF_A + skippable)) == A


def lz4_frame(flags: int, descriptor: int, rest: bytes, *, content_size: bytes = b"") -> bytes:
    header = bytes((flags, descriptor)) + content_size
    return b"\x04\x22\x4d\x18" + header + bytes((xxh32(header) >> 8 & 0xFF,)) + rest


def lz4_block(data: bytes, *, is_stored: bool = False) -> bytes:
    return struct.pack("<I", len(data) | (0x80000000 if is_stored else 0)) + data


def test_lz4_content_size_and_checksums_are_read() -> None:
    block = lz4_block(LZ4_BLOCK_OF_A)
    checksum = struct.pack("<I", xxh32(LZ4_BLOCK_OF_A))
    wrong_content_checksum = bytes(8)

    for flags, size, rest in (
        (0x68, b"whatever", block + bytes(4)),
        (0x64, b"", block + wrong_content_checksum),
        (0x70, b"", block + checksum + bytes(4)),
    ):
        frame = lz4_frame(flags, 0x40, rest, content_size=size)
        assert bytes(decompress(Codec.LZ4, frame)) == A


@pytest.mark.parametrize(
    ("descriptor", "size"), [(0x50, 1 << 18), (0x60, 1 << 20), (0x70, 1 << 22)]
)
def test_lz4_blocks_may_be_larger_than_kafkas(descriptor: int, size: int) -> None:
    frame = lz4_frame(0x60, descriptor, lz4_block(bytes(size), is_stored=True) + bytes(4))

    assert size == len(decompress(Codec.LZ4, frame))


# --- damage --------------------------------------------------------------------------------------

LZ4_BLOCK_START = 11
DAMAGE = {
    "gzip: empty": Damage(Codec.GZIP, b"", 0),
    "gzip: no header": Damage(Codec.GZIP, b"junk" * 10, 0),
    "gzip: cut": Damage(Codec.GZIP, GZIP_OF_A[:-1], 0),
    "gzip: crc": Damage(Codec.GZIP, GZIP_OF_A[:-8] + bytes(4) + GZIP_OF_A[-4:], 0),
    "gzip: size": Damage(Codec.GZIP, GZIP_OF_A[:-4] + bytes(4), 0),
    "gzip: second member": Damage(Codec.GZIP, GZIP_OF_A * 2 + GZIP_OF_A[:-1], 48),
    "snappy: empty": Damage(Codec.SNAPPY, b"", 0),
    "snappy: short header": Damage(Codec.SNAPPY, SNAPPY_OF_A[:15], 0),
    "snappy: empty block": Damage(Codec.SNAPPY, SNAPPY_OF_A[:16] + bytes(4), 20),
    "snappy: negative length": Damage(Codec.SNAPPY, SNAPPY_OF_A[:16] + b"\xff" * 4, 16),
    "snappy: length": Damage(Codec.SNAPPY, SNAPPY_OF_A[:16] + b"\x20\0\0\1", 16),
    "snappy: cut block": Damage(Codec.SNAPPY, SNAPPY_OF_A[:-1], 16),
    "snappy: declared size": Damage(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(10), 0),
    "snappy: no declared size": Damage(Codec.SNAPPY, b"\xff" * 6, 0),
    "snappy: second header cut": Damage(Codec.SNAPPY, SNAPPY_OF_A + SNAPPY_OF_A[:12], 29),
    "snappy: second version": Damage(
        Codec.SNAPPY, SNAPPY_OF_A + SNAPPY_OF_A[:8] + bytes(4) + SNAPPY_OF_A[12:], 29
    ),
    "snappy: content": Damage(Codec.SNAPPY, SNAPPY_OF_A[:21] + b"\xff" * 8, 20),
    "lz4: empty": Damage(Codec.LZ4, b"", 0),
    "lz4: short header": Damage(Codec.LZ4, LZ4_OF_A[:6], 0),
    "lz4: magic": Damage(Codec.LZ4, b"\x05" + LZ4_OF_A[1:], 0),
    "lz4: linked blocks": Damage(Codec.LZ4, lz4_frame(0x40, 0x40, bytes(4)), 4),
    "lz4: version": Damage(Codec.LZ4, lz4_frame(0xA0, 0x40, bytes(4)), 4),
    "lz4: reserved flag": Damage(Codec.LZ4, lz4_frame(0x61, 0x40, bytes(4)), 4),
    "lz4: block size": Damage(Codec.LZ4, lz4_frame(0x60, 0x30, bytes(4)), 5),
    "lz4: reserved descriptor": Damage(Codec.LZ4, lz4_frame(0x60, 0x41, bytes(4)), 5),
    "lz4: cut content size": Damage(Codec.LZ4, lz4_frame(0x68, 0x40, b"")[:7], 0),
    "lz4: no end mark": Damage(Codec.LZ4, LZ4_OF_A[:-1], 22),
    "lz4: cut block": Damage(Codec.LZ4, LZ4_OF_A[:15], LZ4_BLOCK_START),
    "lz4: large block": Damage(Codec.LZ4, LZ4_OF_A[:7] + b"\x01\0\1\0" + bytes(70_000), 7),
    "lz4: content": Damage(
        Codec.LZ4, lz4_frame(0x60, 0x40, lz4_block(b"\xff" * 9) + bytes(4)), LZ4_BLOCK_START
    ),
    "lz4: block checksum": Damage(
        Codec.LZ4, lz4_frame(0x70, 0x40, lz4_block(LZ4_BLOCK_OF_A) + bytes(8)), LZ4_BLOCK_START
    ),
    "lz4: no content checksum": Damage(
        Codec.LZ4, lz4_frame(0x64, 0x40, lz4_block(LZ4_BLOCK_OF_A) + bytes(4)), 26
    ),
    "zstd: empty": Damage(Codec.ZSTD, b"", 0),
    "zstd: cut": Damage(Codec.ZSTD, ZSTD_OF_A[:-1], len(ZSTD_OF_A) - 3),
    "zstd: magic": Damage(Codec.ZSTD, b"\0" * 20, 0),
    "zstd: junk": Damage(Codec.ZSTD, ZSTD_OF_A + b"junk", len(ZSTD_OF_A)),
    "zstd: reserved block type": Damage(Codec.ZSTD, ZSTD_OF_A[:6] + b"\x07\0\0", 6),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_corrupt_and_located(name: str) -> None:
    codec, data, position = DAMAGE[name]

    with pytest.raises(CorruptError) as caught:
        decompress(codec, data)

    assert position == caught.value.position
    assert caught.value.expected is not None
    assert caught.value.found is not None


# --- sizes ---------------------------------------------------------------------------------------


def gzip_bomb(size: int) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    return deflater.compress(bytes(size)) + deflater.flush()


def zstd_bomb(block_count: int) -> bytes:
    # Run-length blocks of 128 KiB, 4 bytes each.
    header = (128 * 1024) << 3 | 1 << 1
    blocks = (header.to_bytes(3, "little") + b"\0") * block_count
    return bytes.fromhex("28b52ffd0058") + blocks + bytes.fromhex("010000")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("content", [text, bytes])
def test_limit_is_inclusive(codec: Codec, content: type[bytes]) -> None:
    data = content(200_000)
    payload = compress(codec, data)

    assert data == bytes(decompress(codec, payload, limit=len(data)))
    with pytest.raises(CorruptError):
        decompress(codec, payload, limit=len(data) - 1)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Codec.GZIP, gzip_bomb(50_000_000)),
        (Codec.GZIP, gzip_bomb(600_000) * 2),
        (Codec.LZ4, compress(Codec.LZ4, bytes(50_000_000))),
        (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(20_000_000))),
        (Codec.ZSTD, zstd_bomb(10_000)),
        (Codec.ZSTD, zstd_bomb(5) * 2),
    ],
)
def test_bomb_stops_at_the_limit(codec: Codec, bomb: bytes) -> None:
    with pytest.raises(CorruptError):
        decompress(codec, bomb, limit=1_000_000)


def test_zstd_whose_blocks_could_exceed_the_limit_but_do_not() -> None:
    # 60 blocks, each bounded by 128 KiB: their bound is 7.5 MiB, their content 6,000 bytes.
    data = compress(Codec.ZSTD, text(100)) * 60

    assert text(100) * 60 == bytes(decompress(Codec.ZSTD, data, limit=6_000))
    assert text(100) * 60 == bytes(decompress(Codec.ZSTD, data, limit=2_000_000))


def test_zstd_that_grows_beyond_its_first_room() -> None:
    data = compress(Codec.ZSTD, bytes(20_000_000))

    assert len(decompress(Codec.ZSTD, data, limit=20_000_000)) == 20_000_000


def test_bound_of_a_zstd_bomb_is_seen_whatever_the_limit() -> None:
    with pytest.raises(CorruptError):
        decompress(Codec.ZSTD, zstd_bomb(30_000), limit=1 << 22)
