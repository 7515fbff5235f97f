"""zstd batches that are decompressed by one call are what they are one by one, damage included."""

from __future__ import annotations

import random

import pytest

from keeplast.columns import batches as t
from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec, compress
from keeplast.format.record import Record
from keeplast.log.windows import Window
from keeplast.rewrite.workspace import DecompressedCache, Workspace
from tests.support.kernel_window import HASH_KEY, rows_of, window_of

MIB = 1 << 20


def batch(number: int, *, size: int = 900, codec: Codec = Codec.ZSTD) -> bytes:
    """Return ten records of about so many bytes that are not much smaller when compressed."""
    dice = random.Random(number)
    first = 10 * number
    records = [
        Record(first + i, 1, b"k%d" % i, dice.randbytes(size // 2).hex().encode())
        for i in range(10)
    ]
    return encode_batch(records, codec=codec)


def with_payload(number: int, payload: bytes, count: int) -> bytes:
    """Return a zstd batch that says it has ``count`` records, whatever its payload holds."""
    data = bytearray(batch(number)[: t.HEADER_BYTES] + compress(Codec.ZSTD, payload))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    return bytes(data)


def payloads(w: Workspace, window: Window, cache: DecompressedCache, *, keeps: bool) -> list[bytes]:
    """Return the records of each batch of a window as they lie in scratch."""
    table = window.table
    table[: window.batches, t.VERDICT] = t.DELETE + 1
    found: list[bytes] = []
    for part in w.slices(window, 0, HASH_KEY, cache, keeps=keeps):
        for i in range(part.first, part.last):
            start, end = int(table[i, t.PAYLOAD_START]), int(table[i, t.PAYLOAD_END])
            source = window.data if table[i, t.PAYLOAD_IN] == 0 else w.scratch
            found.append(source[start:end].tobytes())
    return found


@pytest.mark.parametrize("size", [80, 900, 40_000])
@pytest.mark.parametrize("codecs", [(Codec.ZSTD,), (Codec.ZSTD, Codec.NONE), tuple(Codec)])
def test_a_row_gives_what_its_batches_give(
    size: int, codecs: tuple[Codec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty batches of 400 KB are more than scratch holds at a time."""
    batches = [batch(n, size=size, codec=codecs[n % len(codecs)]) for n in range(40)]
    data = b"".join(batches)
    w = Workspace(32 * MIB)
    with monkeypatch.context() as patched:
        patched.setattr(Workspace, "_unpack_row", lambda *_: 0)
        expected = payloads(w, window_of(data), DecompressedCache(0), keeps=False)
    for room in (0, 100_000, 1 << 30):
        cache = DecompressedCache(room)
        assert expected == payloads(w, window_of(data), cache, keeps=True)
        assert expected == payloads(w, window_of(data), cache, keeps=False)
        assert cache.is_empty


def test_what_is_missing_from_a_payload_is_not_taken_from_the_next_one() -> None:
    """Both payloads together are the records that both batches name, in another place."""
    whole = b"".join(row.record for row in rows_of(window_of(batch(0))))
    cut = len(whole) // 2 - 3
    data = with_payload(0, whole[:cut], 5) + with_payload(1, whole[cut:], 5) + batch(2)
    with pytest.raises(CorruptError) as error:
        payloads(
            Workspace(32 * MIB), window_of(data, checks_crc=False), DecompressedCache(0), keeps=True
        )
    assert 0 == error.value.position


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("at", [61, 66, 68, 90, 400, -1])
def test_damage_is_reported_of_the_batch_that_has_it(
    at: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [bytearray(batch(n)) for n in range(count)]
    batches[count // 2][at] ^= 0x55
    data = b"".join(batches)

    def outcome() -> object:
        window = window_of(data, checks_crc=False)
        try:
            return payloads(Workspace(32 * MIB), window, DecompressedCache(0), keeps=True)
        except CorruptError as error:
            return error.position, str(error)

    in_a_row = outcome()
    monkeypatch.setattr(Workspace, "_unpack_row", lambda *_: 0)
    assert outcome() == in_a_row
