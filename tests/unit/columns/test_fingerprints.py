"""Fingerprints are the polynomial they are said to be, and differ for what differs."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.columns.fingerprints import PRIME, fingerprint_batches, fingerprint_rows
from keeplast.columns.kernel import OK, TOO_MANY
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from tests.support.kernel_window import window_of

SEEDS = np.array([123_456_789_012_345, PRIME - 2], np.uint64)
RECORD = Record(7, 1_700_000_000_000, b"key", b"value", ((b"h", b"1"),))


def fingerprints(data: bytes, rows: int = 64) -> tuple[int, int, list[list[int]], list[list[int]]]:
    """Return code, rows, keys and contents of the records of ``data``."""
    window = window_of(data)
    keys, contents = np.zeros((rows, 2), np.int64), np.zeros((rows, 2), np.int64)
    _, count, code = fingerprint_rows(
        window.data, np.empty(0, np.uint8), window.table, 0, window.batches, SEEDS,
        np.empty(rows, np.int64), keys, contents, np.empty(rows, np.uint8),
    )  # fmt: skip
    return code, count, keys[:count].tolist(), contents[:count].tolist()


def polynomial(data: bytes, point: int) -> int:
    """Return the polynomial in plain integers: length, then words of seven bytes."""
    value = (len(data) + 1) % PRIME
    words = [data[i : i + 7] for i in range(0, len(data), 7)]
    for word in words:
        value = (value * point + int.from_bytes(word, "little")) % PRIME
    return value


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 13, 14, 15, 16, 100])
def test_key_fingerprint_is_the_polynomial(length: int) -> None:
    key = bytes(255 - i % 251 for i in range(length))
    _, _, keys, _ = fingerprints(encode_batch([replace(RECORD, key=key)]))
    assert [[polynomial(key, int(point)) for point in SEEDS]] == keys


def test_every_field_of_a_record_counts() -> None:
    variants = [
        RECORD,
        replace(RECORD, key=b"kez"),
        replace(RECORD, key=b""),
        replace(RECORD, key=None),
        replace(RECORD, value=b"valuf"),
        replace(RECORD, value=b""),
        replace(RECORD, value=None),
        replace(RECORD, timestamp=RECORD.timestamp + 1),
        replace(RECORD, headers=()),
        replace(RECORD, headers=((b"h", None),)),
        replace(RECORD, headers=((b"h", b"1"), (b"h", b"1"))),
    ]
    contents = [fingerprints(encode_batch([record]))[3][0] for record in variants]
    assert len(variants) == len({tuple(content) for content in contents})


def test_place_in_the_batch_does_not_count() -> None:
    """Cleaning moves the base timestamp and drops neighbours; the record stays what it is."""
    alone = fingerprints(encode_batch([RECORD]))[3]
    others = [Record(3, 5, b"x", None), RECORD, Record(9, 1 << 60, None, b"z")]
    among = fingerprints(encode_batch(others, delete_horizon_ms=1 << 45))[3]
    assert alone == among[1:2]


def test_rows_that_do_not_fit_are_said() -> None:
    data = encode_batch([Record(i, 0, b"%d" % i, b"") for i in range(5)])
    assert (OK, 5) == fingerprints(data)[:2]
    assert (TOO_MANY, 0) == fingerprints(data, rows=4)[:2]


def test_every_byte_of_a_batch_counts() -> None:
    data = encode_batch([RECORD])
    window = window_of(data)
    digests = set()
    for position in range(-1, len(data)):
        changed = bytearray(data)
        if position >= 0:
            changed[position] ^= 0x80
        digest = np.empty((1, 2), np.int64)
        raw = np.frombuffer(changed, np.uint8).copy()
        fingerprint_batches(raw, window.table, np.array([0]), SEEDS, digest)
        digests.add(tuple(digest[0].tolist()))
    assert len(data) + 1 == len(digests)
