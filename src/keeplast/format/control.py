"""Control records: what a control batch says, and the markers that end transactions.

The key is int16 version, int16 type; longer keys and higher versions are read as version 0. The
value of a marker is int16 version, int32 coordinator epoch, read likewise. Mind the numbers: ABORT
is 0, COMMIT is 1. Types 2 to 6 occur only in the KRaft metadata log, which is never cleaned, so
their values are not decoded; any other type is unknown and to be ignored.
Answers to ``ControlRecordType`` and ``EndTransactionMarker``; formats.md section 1.4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer

_KEY = struct.Struct(
    ">h"  # version
    "h"  # type
)
_VALUE = struct.Struct(
    ">h"  # version
    "i"  # coordinator epoch
)
_VERSION = 0


class ControlType(IntEnum):
    """What a control record is about, by the number in its key (``ControlRecordType``)."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a transaction; ``control_type`` is ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int


def decode_control_type(key: Buffer | None) -> ControlType:
    """Return the type that a control record's key names; UNKNOWN for numbers not in the list."""
    _, number = _unpack(_KEY, key, "control record key")
    return ControlType(number) if number in set(ControlType) else ControlType.UNKNOWN


def encode_control_key(control_type: ControlType) -> bytes:
    """Return the key of a control record."""
    return _KEY.pack(_VERSION, control_type)


def decode_end_transaction(key: Buffer | None, value: Buffer | None) -> EndTransactionMarker:
    """Return the marker in a control record; other types are a :class:`CorruptError`."""
    control_type = decode_control_type(key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptError(
            "not a transaction marker",
            position=0,
            expected="ABORT or COMMIT",
            found=control_type.name,
        )
    _, coordinator_epoch = _unpack(_VALUE, value, "transaction marker")
    return EndTransactionMarker(control_type, coordinator_epoch)


def encode_end_transaction(marker: EndTransactionMarker) -> tuple[bytes, bytes]:
    """Return key and value of the one record in a marker's control and transactional batch."""
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_control_key(marker.control_type), value


def _unpack(layout: struct.Struct, data: Buffer | None, name: str) -> tuple[int, int]:
    if data is None or len(data) < layout.size:
        raise CorruptError(
            f"{name} too short",
            position=0,
            expected=f"at least {layout.size} bytes",
            found="null" if data is None else f"{len(data)} bytes",
        )
    version, number = layout.unpack_from(data)
    if version < 0:
        raise CorruptError(
            f"negative version of a {name}", position=0, expected="0 or more", found=version
        )
    return version, number
