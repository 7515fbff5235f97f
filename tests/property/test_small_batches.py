"""What a kernel decompresses is what the libraries make of it; the rest it leaves to them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.columns import batches as t
from keeplast.columns.kernel import OK
from keeplast.columns.unpack import FULL, REFUSED, unpack_small
from keeplast.format.compression import Codec, ZstdReader, compress, decompress

ROOM = 80_000
PIECES = st.sampled_from([b"a", b"key-1", b'{"name":"', bytes(40), b"xyz" * 30])
TEXTS = st.lists(PIECES | st.binary(max_size=40), max_size=60).map(b"".join)
CODECS = st.sampled_from([Codec.LZ4, Codec.SNAPPY])
AT = 3


def unpacked(codec: Codec, payload: bytes, *, room: int = ROOM) -> tuple[int, bytes]:
    """Return the kernel's code and what it wrote for one batch with this payload."""
    window = np.frombuffer(bytearray(t.HEADER_BYTES) + payload, np.uint8)
    table = t.new_batch_table(1)
    table[0] = 0
    table[0, [t.SIZE, t.MAGIC, t.ATTRIBUTES, t.COUNT]] = len(window), 2, codec, 1
    table[0, [t.PAYLOAD_IN, t.VERDICT]] = -1, t.DELETE_EMPTY
    scratch = np.full(room, 0xEE, np.uint8)
    following, end, code = unpack_small(window, table, 0, 1, scratch, AT)
    if code != OK:
        assert (0, AT, -1) == (following, end, table[0, t.PAYLOAD_IN])
        return int(code), b""
    if table[0, t.PAYLOAD_IN] < 0:
        return REFUSED, b""  # not small
    assert [1, AT, end] == table[0, [t.PAYLOAD_IN, t.PAYLOAD_START, t.PAYLOAD_END]].tolist()
    return OK, scratch[AT:end].tobytes()


@given(codec=CODECS, text=TEXTS)
def test_what_is_written_is_read(codec: Codec, text: bytes) -> None:
    payload = compress(codec, text)
    expected = (OK, text) if len(payload) + t.HEADER_BYTES <= 2048 else (REFUSED, b"")
    assert expected == unpacked(codec, payload)


@given(
    codec=CODECS,
    text=TEXTS,
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 8),
)
def test_whatever_is_accepted_is_what_the_library_gives(
    codec: Codec, text: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    payload = bytearray(compress(codec, text))
    for at, byte in changes:
        payload[at % len(payload)] = byte
    damaged = bytes(payload[: max(1, len(payload) - cut)])
    code, found = unpacked(codec, damaged)
    if code == OK:
        assert bytes(decompress(codec, damaged)) == found


@given(codec=CODECS, text=TEXTS.filter(len))
def test_nothing_is_written_without_room(codec: Codec, text: bytes) -> None:
    payload = compress(codec, text)
    if len(payload) + t.HEADER_BYTES <= 2048:
        assert (FULL, b"") == unpacked(codec, payload, room=AT + len(text) - 1)


@given(text=TEXTS, at=st.integers(0, 500), byte=st.integers(0, 255), tail=st.binary(max_size=2))
def test_a_kept_zstd_context_reads_what_a_new_one_does(
    text: bytes, at: int, byte: int, tail: bytes
) -> None:
    reader = ZstdReader()
    payload = compress(Codec.ZSTD, text)
    assert reader.read(memoryview(payload)) in (text, None)
    damaged = bytearray(payload)
    damaged[at % len(damaged)] = byte
    content = reader.read(memoryview(damaged + tail))
    if content is not None:
        assert bytes(decompress(Codec.ZSTD, bytes(damaged + tail))) == content
    assert reader.read(memoryview(payload)) in (text, None)


def test_a_declared_size_is_not_believed() -> None:
    """A frame that says it holds a gibibyte is for the reader that holds that against its size."""
    frame = bytes.fromhex("28b52ffd a0 00000040 010000")
    assert ZstdReader().read(memoryview(frame)) is None


@pytest.mark.parametrize("size", [3_000, 14_000, 130_000])
def test_a_kept_zstd_context_reads_frames_of_up_to_64_kib(size: int) -> None:
    text = b"".join(b'{"id":%d,"of":"%x"}' % (n, n * 7919) for n in range(size // 24))
    frame = compress(Codec.ZSTD, text)
    assert 0 < len(frame) <= 64 << 10
    assert ZstdReader().read(memoryview(frame)) == text


def test_a_kept_zstd_context_leaves_alone_what_is_longer_or_may_grow_beyond_4_mib() -> None:
    reader = ZstdReader()
    noise = random.Random(1).randbytes(70_000)
    assert reader.read(memoryview(compress(Codec.ZSTD, noise))) is None
    # Forty blocks of 128 KiB that each repeat one byte, behind a raw one of 3,000 bytes.
    blocks = (3000 << 3).to_bytes(3, "little") + bytes(3000)
    blocks += ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    blocks = blocks + blocks[-4:] * 39
    last = (1).to_bytes(3, "little")
    frame = bytes.fromhex("28b52ffd 00 58") + blocks + last
    assert len(decompress(Codec.ZSTD, frame)) == 3000 + 40 * (128 << 10)
    assert reader.read(memoryview(frame)) is None


def test_a_kept_zstd_context_leaves_a_cut_frame_to_whoever_names_the_place() -> None:
    frame = compress(Codec.ZSTD, random.Random(1).randbytes(20_000))
    assert all(ZstdReader().read(memoryview(frame)[:end]) is None for end in (10, 9_000, -1))
