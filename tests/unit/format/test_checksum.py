from __future__ import annotations

import pytest

from keeplast.format.checksum import crc32, crc32c, xxh32

TEXT = b"Nobody inspects the spammish repetition"


def test_crc32c_continues_from_a_value() -> None:
    assert crc32c(TEXT) == crc32c(TEXT[10:], crc32c(TEXT[:10]))


def test_crc32_is_zlibs() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (TEXT, 0xE2293B2F),
    ],
)
def test_xxh32_of_known_texts(data: bytes, expected: int) -> None:
    assert expected == xxh32(data)


def test_xxh32_of_the_lz4_descriptor_gives_the_published_header_byte() -> None:
    assert xxh32(bytes.fromhex("6040")) >> 8 & 0xFF == 0x82
    assert xxh32(bytes.fromhex("04224d186040")) >> 8 & 0xFF == 0x1A
