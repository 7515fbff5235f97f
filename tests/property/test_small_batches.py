"""What a kernel decompresses is what the libraries make of it; the rest it leaves to them."""

from __future__ import annotations

import numpy as np
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
def test_written_bytes_are_read(codec: Codec, text: bytes) -> None:
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


def row(reader: ZstdReader, frames: bytes) -> bytes | None:
    """Return what a kept context gives for frames, up to ROOM bytes."""
    target = bytearray(ROOM)
    filled = reader.read_row(frames, memoryview(target))
    return None if filled is None else bytes(target[:filled])


@given(text=TEXTS, at=st.integers(0, 500), byte=st.integers(0, 255), tail=st.binary(max_size=2))
def test_a_kept_zstd_context_reads_what_a_new_one_does(
    text: bytes, at: int, byte: int, tail: bytes
) -> None:
    reader = ZstdReader()
    payload = compress(Codec.ZSTD, text)
    assert 2 * text == row(reader, 2 * payload)
    damaged = bytearray(payload)
    damaged[at % len(damaged)] = byte
    row(reader, bytes(damaged) + tail)
    assert text == row(reader, payload)


def test_a_declared_size_is_not_believed() -> None:
    """A frame that says it holds a gibibyte is for the reader that holds that against its size."""
    assert row(ZstdReader(), bytes.fromhex("28b52ffd a0 00000040 010000")) is None


def test_a_frame_gives_no_more_than_there_is_room_for() -> None:
    """Forty blocks of 128 KiB that each repeat one byte."""
    blocks = 40 * (((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"x")
    frame = bytes.fromhex("28b52ffd 00 58") + blocks + (1).to_bytes(3, "little")
    assert len(decompress(Codec.ZSTD, frame)) == 40 * (128 << 10)
    assert row(ZstdReader(), frame) == ROOM * b"x"
