"""The producer-state snapshot of a partition (``.snapshot``): everything below its offset.

    ===  ====  ==============================================================
    off  size  field
    ===  ====  ==============================================================
    0    2     version, 1
    2    4     CRC-32C of bytes 6 to the end
    6    4     number of entries
    10   8     producer id                                  (46 bytes an entry)
    18   2     producer epoch
    20   4     last sequence of the last batch
    24   8     last offset of the last data batch, -1 when only markers were seen
    32   4     offset delta: last minus first sequence of that batch
    36   8     timestamp of the last batch or marker, in milliseconds
    44   4     coordinator epoch, -1 none
    48   8     first offset of the open transaction, -1 none
    ===  ====  ==============================================================

The order of entries is arbitrary (a Java hash map) and kept as found.
Answers to ``ProducerStateManager.readSnapshot``; formats.md section 2.7.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer, crc32c

VERSION = 1
ENTRY_BYTES = 46

_HEADER = struct.Struct(
    ">h"  # version
    "I"  # crc
    "i"  # number of entries
)
_CRC_START = 6
_ENTRY = struct.Struct(
    ">q"  # producer id
    "h"  # epoch
    "i"  # last sequence
    "q"  # last offset
    "i"  # offset delta
    "q"  # timestamp
    "i"  # coordinator epoch
    "q"  # current transaction's first offset
)


class ProducerEntry(Struct, frozen=True):
    """What is known of one producer: its last batch and its open transaction, if any."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def decode(data: Buffer) -> tuple[ProducerEntry, ...]:
    """Return the entries in file order after checking version, CRC and count."""
    if len(data) < _HEADER.size:
        raise CorruptError(
            "producer snapshot too short",
            position=0,
            expected=f"at least {_HEADER.size} bytes",
            found=f"{len(data)} bytes",
            code="K222",
        )
    view = memoryview(data)
    version, crc, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise CorruptError(
            "unknown version of a producer snapshot",
            position=0,
            expected=VERSION,
            found=version,
            code="K222",
        )
    computed = crc32c(view[_CRC_START:])
    if crc != computed:
        raise CorruptError(
            "crc mismatch in a producer snapshot",
            position=2,
            expected=f"{crc:#010x}",
            found=f"{computed:#010x}",
            code="K222",
        )
    body = view[_HEADER.size :]
    if count < 0 or count * ENTRY_BYTES != len(body):
        raise CorruptError(
            "producer snapshot entry count mismatch",
            position=_CRC_START,
            expected=f"{count} entries of {ENTRY_BYTES} bytes",
            found=f"{len(body)} bytes",
            code="K222",
        )
    return tuple(ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(body))


def encode(entries: Sequence[ProducerEntry]) -> bytes:
    """Return the file's bytes with ``entries`` in the given order."""
    count = struct.pack(">i", len(entries))
    body = b"".join(
        _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    )
    return _HEADER.pack(VERSION, crc32c(body, crc32c(count)), len(entries)) + body
