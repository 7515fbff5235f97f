"""The aborted-transaction index of a segment (``.txnindex``).

34-byte big-endian entries in order of ascending last offset; a partial entry at the end is
ignored, as Kafka ignores it. Only aborted transactions that have data get one.

    ===  ====  ==================================================================
    off  size  field
    ===  ====  ==================================================================
    0    2     version, 0; the JVM looks at the first byte only, we at both
    2    8     producer id
    10   8     first offset: first data of the transaction, maybe segments before
    18   8     last offset: the ABORT marker, always in this segment
    26   8     last stable offset when the abort was written
    ===  ====  ==================================================================

Answers to ``TransactionIndex`` and ``AbortedTxn``; formats.md section 2.6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer

ENTRY_BYTES = 34
VERSION = 0

_ENTRY = struct.Struct(
    ">h"  # version
    "q"  # producer id
    "q"  # first offset
    "q"  # last offset
    "q"  # last stable offset
)


class AbortedTransaction(Struct, frozen=True):
    """One aborted transaction; first and last offset are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode(data: Buffer) -> tuple[AbortedTransaction, ...]:
    """Return the whole entries in file order; a wrong version is a :class:`CorruptError`."""
    entries = []
    whole = len(data) - len(data) % ENTRY_BYTES
    for index, (version, *fields) in enumerate(_ENTRY.iter_unpack(memoryview(data)[:whole])):
        if version != VERSION:
            raise CorruptError(
                "unknown version of an aborted transaction",
                position=index * ENTRY_BYTES,
                expected=VERSION,
                found=version,
                code="K219",
            )
        entries.append(AbortedTransaction(*fields))
    return tuple(entries)


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the file's bytes with ``entries`` in the given order."""
    return b"".join(
        _ENTRY.pack(
            VERSION,
            entry.producer_id,
            entry.first_offset,
            entry.last_offset,
            entry.last_stable_offset,
        )
        for entry in entries
    )
