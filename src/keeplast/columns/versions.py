"""The version of each record, for the strategies ``timestamp`` and ``header`` (KIP-280).

A second walk over records that :mod:`keeplast.columns.rows` has parsed: every length in them has
been checked and is not checked again. The strategy ``offset`` never comes here.

A row that has a version gets HAS_VERSION in its flags and the version in its column; a row without
one, whatever the reason, gets version 0 and no flag. In a header no number stands for "none": -1
and the smallest number are versions like any other. A timestamp of -1 is none. cleaning.md section
9.2.
"""

from __future__ import annotations

import numpy as np

from keeplast.columns import batch_table as t
from keeplast.columns.kernel import inline, kernel
from keeplast.columns.machine import load_be64
from keeplast.columns.varints import read_varint, read_varlong
from keeplast.model.offsets import NO_TIMESTAMP

HAS_VERSION = 8
MALFORMED_VERSION = 16
"""Flags of a row, beside those of :mod:`keeplast.columns.rows`: it has a version; its header is
there and holds none."""

VERSION_BYTES = 8

_ABSENT = -2
"""The header is not there; lengths are -1 (null) and up."""


@inline
def _find_header(data, at, end, name):
    """Return position and length of the value of the last header ``name`` of one record.

    ``at`` is behind the record's length field. The length is negative when the value is null and
    ``_ABSENT`` when there is no such header.
    """
    _delta, at = read_varlong(data, at + 1, end)
    _delta, at = read_varint(data, at, end)
    for _ in range(2):
        length, at = read_varint(data, at, end)
        if length > 0:
            at += length
    headers, at = read_varint(data, at, end)
    found_at, found = at, np.int64(_ABSENT)
    for _ in range(headers):
        length, at = read_varint(data, at, end)
        is_named = length == name.shape[0]
        for k in range(length):
            if not is_named:
                break
            is_named = data[at + k] == name[k]
        at += length
        length, at = read_varint(data, at, end)
        if is_named:
            found_at, found = at, max(length, np.int64(-1))
        if length > 0:
            at += length
    return found_at, found


@kernel(
    "UniTuple(int64, 2)(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, uint8[::1],"
    " uint8[::1], uint8[::1], int64[::1])"
)
def read_header_versions(
    window, scratch, table, first, last, name, wanted, flags, versions
):  # fmt: skip
    """Read the versions of the ``wanted`` rows of batches ``[first, last)`` from header ``name``.

    Returns how many of them have no such header, and how many have one whose last occurrence is
    null or not eight bytes. Neither has a version, and no earlier occurrence steps in.
    """
    missing = 0
    malformed = 0
    for i in range(first, last):
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            length, at = read_varint(data, at, end)
            if wanted[r] != 0:
                value_at, found = _find_header(data, at, at + length, name)
                has_version = found == VERSION_BYTES
                versions[r] = load_be64(data, value_at) if has_version else 0
                if has_version:
                    flags[r] |= HAS_VERSION
                elif found == _ABSENT:
                    missing += 1
                else:
                    flags[r] |= MALFORMED_VERSION
                    malformed += 1
            at += length
    return missing, malformed


@kernel(
    "void(uint8[::1], uint8[::1], int64[:, ::1], int64, int64, uint8[::1], uint8[::1], int64[::1])"
)
def read_timestamps(window, scratch, table, first, last, wanted, flags, versions):
    """Read the timestamps of the ``wanted`` rows of batches ``[first, last)``.

    With LogAppendTime it is the batch's maximum. A record without a timestamp, -1 on disk, has no
    version: it ranks below every date, those before 1970 included.
    """
    for i in range(first, last):
        data = window if table[i, t.PAYLOAD_IN] == 0 else scratch
        at = table[i, t.PAYLOAD_START]
        end = table[i, t.PAYLOAD_END]
        # What an old format says is in the deltas of its converted records already.
        is_append_time = table[i, t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0 and table[i, t.MAGIC] == 2
        for r in range(table[i, t.FIRST_ROW], table[i, t.FIRST_ROW] + table[i, t.ROWS]):
            length, at = read_varint(data, at, end)
            if wanted[r] != 0:
                delta, _ = read_varlong(data, at + 1, end)
                stamp = table[i, t.BASE_TIMESTAMP] + delta
                if is_append_time:
                    stamp = table[i, t.MAX_TIMESTAMP]
                is_dated = stamp != NO_TIMESTAMP
                versions[r] = stamp if is_dated else 0
                if is_dated:
                    flags[r] |= HAS_VERSION
            at += length
