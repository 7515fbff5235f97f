"""The identity of a key, against SipHash written out in plain Python."""

from __future__ import annotations

import pytest

from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from tests.support.kernel_window import HASH_KEY, rows_of, window_of

MASK = (1 << 64) - 1
OFFICIAL_KEY = bytes(range(16))
OFFICIAL_24 = {
    b"": "a3817f04ba25a8e66df67214c7550293",
    b"\x00": "da87c1d86b99af44347659119b22fc45",
}
"""Of the authors' own vectors for the 128-bit variant with 2 and 4 rounds."""


def rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def siphash128(data: bytes, key: bytes, *, rounds: int, last_rounds: int) -> bytes:
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def mix(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    mix(last_rounds)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(last_rounds)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


@pytest.mark.parametrize(("data", "text"), OFFICIAL_24.items())
def test_the_plain_version_is_siphash(data: bytes, text: str) -> None:
    assert text == siphash128(data, OFFICIAL_KEY, rounds=2, last_rounds=4).hex()


def hashes(keys: list[bytes | None]) -> list[tuple[int, int]]:
    records = [Record(i, 0, key, b"") for i, key in enumerate(keys)]
    return [row.hashes for row in rows_of(window_of(encode_batch(records)))]


def test_every_length_around_whole_words_hashes_as_the_plain_version() -> None:
    keys = [bytes((i * 7 + n) & 0xFF for i in range(n)) for n in [*range(40), 255, 256, 257, 5000]]
    key = b"".join(half.to_bytes(8, "little") for half in HASH_KEY)
    expected = []
    for data in keys:
        digest = siphash128(data, key, rounds=1, last_rounds=3)
        expected.append(tuple(int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)))
    assert expected == hashes(list(keys))


def test_identity_does_not_depend_on_where_a_key_lies() -> None:
    first, _, second = hashes([b"same key", b"x" * 13, b"same key"])
    assert first == second


def test_padding_does_not_make_two_keys_one() -> None:
    assert len(set(hashes([bytes(n) for n in range(20)]))) == 20
