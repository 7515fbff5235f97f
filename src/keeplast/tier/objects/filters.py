"""The filter of a remote segment as an object: which keys are in it, and what time can change.

It lies next to the segment. It is bound to it by id, size and checksum, and to the store by a mark
of the key it hashes with. A filter that does not match is no filter, and the segment is read. It
can only save work; nothing is lost with it, so that it is the one object that may be written again.

::

    magic 8 | version u16 | header bytes u32 | segment id 16 | key mark 8
    segment size i64 | segment crc u32 | keys i64 | bits i64 | probes u16 | crc of the words u32
    keyless i64 | tombstones i64 | unstamped i64 | horizon i64 (-1: none)
    transactional i64 | old format i64 | more empties u8 | empties u32
    (producer id i64, last offset i64) * empties | crc of the header u32 | words u64 * (bits / 64)

All numbers are little-endian. KIP-1272, "Bloom Filter Index on Skip Optimization".
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.plan import EMPTIES_MAX, SegmentContents
from keeplast.columns import filters
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.checksum import crc32c

MAGIC = b"klfilter"
VERSION = 1
KEY_FACT = "filter.key"
KEY_BYTES = 16
HEAD_BYTES = 64 << 10
"""What is read at first: the header, however many batches it names, and small filters whole."""
_FIXED = struct.Struct("<8sHI16s8sqIqqHI")
_CONTENTS = struct.Struct("<qqqqqqBI")
_EMPTY = struct.Struct("<qq")
_CRC = struct.Struct("<I")
HEADER_BYTES_MAX = _FIXED.size + _CONTENTS.size + EMPTIES_MAX * _EMPTY.size + _CRC.size
FILTER_BYTES_MAX = HEADER_BYTES_MAX + filters.BITS_MAX // 8


class FilterKey(Struct, frozen=True):
    """The secret with which a store hashes keys for its filters, as two words."""

    k0: int
    k1: int

    @property
    def mark(self) -> bytes:
        """Return what distinguishes this key from another one, and nothing else of it."""
        key = struct.pack("<QQ", self.k0, self.k1)
        return hashlib.blake2b(b"keeplast filter", key=key, digest_size=8).digest()

    @classmethod
    def of_fact(cls, text: str) -> FilterKey:
        """Return the key that a store keeps as a fact; InvalidError when it is none."""
        try:
            return cls(*struct.unpack("<QQ", bytes.fromhex(text)))
        except (ValueError, struct.error) as error:
            raise InvalidError(
                f"the store's filter key is not {KEY_BYTES} bytes in hexadecimal. fact={KEY_FACT}",
                code="K311",
            ) from error


class SegmentBytes(Struct, frozen=True):
    """The very bytes that a filter speaks for.

    Without a ``crc32c`` the id, used once, identifies them.
    """

    segment_id: str
    size_bytes: int
    crc32c: int | None


class FilterHead(Struct, frozen=True):
    """All of a filter but its words; they follow at ``words_at``."""

    segment: SegmentBytes
    key_mark: bytes
    keys: int
    bits: int
    probes: int
    words_crc: int
    contents: SegmentContents
    words_at: int

    @property
    def size_bytes(self) -> int:
        """Return the length of the object in bytes: header and bits."""
        return self.words_at + self.bits // 8

    def is_of(self, segment: SegmentBytes, object_bytes: int) -> bool:
        """Say whether an object of ``object_bytes`` is whole, and about these very bytes."""
        crc = self.segment.crc32c if segment.crc32c is None else segment.crc32c
        is_same = self.segment == replace(segment, crc32c=crc)
        return is_same and self.size_bytes == object_bytes

    def speaks_for(self, segment: SegmentBytes, object_bytes: int, key: FilterKey) -> bool:
        """Say whether it is about these very bytes, and its bits are of hashes under ``key``."""
        return self.is_of(segment, object_bytes) and self.key_mark == key.mark


def encode_filter(
    segment: SegmentBytes,
    key: FilterKey,
    contents: SegmentContents,
    hashes: NDArray[np.uint64],
    fpp: float,
) -> bytes:
    """Return the object for a segment with these key ``hashes``."""
    bits, probes = filters.filter_shape(len(hashes), fpp)
    words = np.zeros(bits // 64, np.uint64)
    filters.add(words, bits, probes, hashes, len(hashes))
    words_bytes = words.astype("<u8").tobytes()
    header_bytes = _FIXED.size + _CONTENTS.size + _EMPTY.size * len(contents.empties) + _CRC.size
    header = b"".join(
        [
            _FIXED.pack(
                MAGIC, VERSION, header_bytes, bytes.fromhex(segment.segment_id), key.mark,
                segment.size_bytes, segment.crc32c or 0, len(hashes), bits, probes,
                crc32c(words_bytes),
            ),
            _CONTENTS.pack(
                contents.keyless, contents.tombstones, contents.unstamped,
                -1 if contents.horizon_ms is None else contents.horizon_ms,
                contents.transactional, contents.old_format, contents.more_empties,
                len(contents.empties),
            ),
            *(_EMPTY.pack(*each) for each in contents.empties),
        ]
    )  # fmt: skip
    return header + _CRC.pack(crc32c(header)) + words_bytes


def decode_head(data: bytes, path: str) -> FilterHead:
    """Return the head of a filter from its first bytes; CorruptError when it is none of ours."""

    def corrupt(problem: str, expected: object, found: object) -> CorruptError:
        return CorruptError(
            problem, path=path, position=0, expected=expected, found=found, code="K311"
        )

    if len(data) < _FIXED.size or data[: len(MAGIC)] != MAGIC:
        raise corrupt("not a filter", MAGIC, data[: len(MAGIC)])
    (
        _, version, header_bytes, segment_id, mark, size, crc, keys, bits, probes, words_crc,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    if version != VERSION:
        raise corrupt("a filter of another version", VERSION, version)
    least = _FIXED.size + _CONTENTS.size + _CRC.size
    if not least <= header_bytes <= min(HEADER_BYTES_MAX, len(data)):
        raise corrupt("the filter's header has another length", f">= {least}", header_bytes)
    end = header_bytes - _CRC.size
    (found,) = _CRC.unpack_from(data, end)
    if crc32c(data[:end]) != found:
        raise corrupt("the filter's header is damaged", found, crc32c(data[:end]))
    if not 0 < bits <= filters.BITS_MAX or bits % 64 or not 0 < probes <= filters.PROBES_MAX:
        raise corrupt("the filter has no such shape", "bits by 64", f"{bits} bits {probes} probes")
    (
        keyless, tombstones, unstamped, horizon, transactional, old, more, empties,
    ) = _CONTENTS.unpack_from(data, _FIXED.size)  # fmt: skip
    at = _FIXED.size + _CONTENTS.size
    if at + empties * _EMPTY.size != end:
        raise corrupt("the filter names another number of batches", empties, end - at)
    contents = SegmentContents(
        keyless, tombstones, unstamped, None if horizon < 0 else horizon,
        transactional, old,
        tuple((pid, offset) for pid, offset in _EMPTY.iter_unpack(data[at:end])), bool(more),
    )  # fmt: skip
    segment = SegmentBytes(segment_id.hex(), size, crc)
    return FilterHead(segment, mark, keys, bits, probes, words_crc, contents, header_bytes)


def decode_words(head: FilterHead, data: bytes, path: str) -> NDArray[np.uint64]:
    """Return the words of a filter; CorruptError when they are not what its head says."""
    check_words(head, len(data), crc32c(data), path)
    return np.frombuffer(data, "<u8").astype(np.uint64)


def check_words(head: FilterHead, size_bytes: int, crc: int, path: str) -> None:
    """Raise CorruptError unless words of ``size_bytes`` with this sum are those of the head."""
    if size_bytes != head.bits // 8 or crc != head.words_crc:
        raise CorruptError(
            "the filter is damaged", path=path, position=head.words_at,
            expected=f"{head.bits // 8} bytes with crc {head.words_crc}",
            found=f"{size_bytes} bytes with crc {crc}", code="K311",
        )  # fmt: skip
