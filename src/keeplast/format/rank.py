"""The version of one record, by which the winner of a key is chosen (KIP-280).

The value behind the columns of :mod:`keeplast.columns.versions`, for readers that hold records; a
test binds the two. Source: cleaning.md section 9.2, in words in :mod:`keeplast.model.strategy`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from keeplast.format.record import Header

_VERSION = struct.Struct(">q")


def header_version(headers: Sequence[Header], name: bytes) -> int | None:
    """Return the version in the last header ``name``; None without one, or not of eight bytes."""
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None or len(value) != _VERSION.size:
        return None
    version: int = _VERSION.unpack(value)[0]
    return version
