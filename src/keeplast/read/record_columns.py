"""Collects records into columns of bounded size, whatever windows they come from.

What is handed out belongs to the receiver: each :class:`RecordColumns` has arrays of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keeplast.columns import arrow_columns as a
from keeplast.columns.kernel import OK, PROBLEMS, TOO_MANY
from keeplast.errors import CorruptError
from keeplast.log.windows import Window

ROWS = 1 << 16
BYTES = 8 << 20
HEADERS = 1 << 17
HEADER_BYTES = 4 << 20
"""Sizes of one set of columns; larger only for a single record that does not fit."""

EVERYTHING = np.empty(0, np.uint8)
"""A selection that selects all rows."""


@dataclass(slots=True)
class RecordColumns:
    """``rows`` records of one partition as columns; see :mod:`keeplast.columns.arrow_columns`."""

    rows: int
    headers: int
    longs: NDArray[np.int64]
    ints: NDArray[np.int32]
    marks: NDArray[np.uint8]
    ends: NDArray[np.int32]
    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    header_ends: NDArray[np.int32]
    header_marks: NDArray[np.uint8]
    header_keys: NDArray[np.uint8]
    header_values: NDArray[np.uint8]


def _new_columns(
    *, key_bytes: int, value_bytes: int, headers: int, header_keys: int, header_values: int
) -> RecordColumns:
    columns = RecordColumns(
        0,
        0,
        np.empty((a.LONGS, ROWS), np.int64),
        np.empty((a.INTS, ROWS), np.int32),
        np.empty((a.MARKS, ROWS), np.uint8),
        np.empty((a.ENDS, ROWS + 1), np.int32),
        np.empty(max(BYTES, key_bytes), np.uint8),
        np.empty(max(BYTES, value_bytes), np.uint8),
        np.empty((a.HEADER_ENDS, max(HEADERS, headers) + 1), np.int32),
        np.empty(max(HEADERS, headers), np.uint8),
        np.empty(max(HEADER_BYTES, header_keys), np.uint8),
        np.empty(max(HEADER_BYTES, header_values), np.uint8),
    )
    columns.ends[:, 0] = 0
    columns.header_ends[:, 0] = 0
    return columns


class ColumnCollector:
    """The columns that are being filled. Not shared between threads."""

    def __init__(self) -> None:
        self._cursor = np.zeros(a.CURSOR, np.int64)
        self._columns = self._fresh()

    def _fresh(self) -> RecordColumns:
        key, value, headers, header_keys, header_values = self._cursor[a.NEED_KEY :].tolist()
        self._cursor[a.ROWS] = self._cursor[a.HEADER_ROWS] = 0
        self._cursor[a.NEED_KEY :] = 0
        return _new_columns(
            key_bytes=key, value_bytes=value, headers=headers,
            header_keys=header_keys, header_values=header_values,
        )  # fmt: skip

    def add(
        self,
        window: Window,
        scratch: NDArray[np.uint8],
        first: int,
        last: int,
        bounds: NDArray[np.int64],
        selected: NDArray[np.uint8] = EVERYTHING,
    ) -> Iterator[RecordColumns]:
        """Add batches ``[first, last)`` of a window; yields columns whenever they are full.

        The batches' VERDICTs are set and their payloads readable. ``bounds`` and ``selected`` are
        those of :func:`keeplast.columns.arrow_columns.fill_columns`. CorruptError names the batch
        that does not parse.
        """
        cursor = self._cursor
        cursor[[a.BATCH, a.RECORD, a.AT]] = first, 0, 0
        while cursor[a.BATCH] < last:
            c = self._columns
            code = a.fill_columns(
                window.data, scratch, window.table, last, selected, bounds, cursor,
                c.longs, c.ints, c.marks, c.ends, c.keys, c.values,
                c.header_ends, c.header_marks, c.header_keys, c.header_values,
            )  # fmt: skip
            if code not in (OK, TOO_MANY):
                raise self._corrupt(window, code)
            if cursor[a.BATCH] < last:
                yield from self.finish()

    def finish(self) -> Iterator[RecordColumns]:
        """Yield what has been collected, if anything, and start anew."""
        full = self._columns
        full.rows, full.headers = self._cursor[[a.ROWS, a.HEADER_ROWS]].tolist()
        self._columns = self._fresh()
        if full.rows:
            yield full

    def _corrupt(self, window: Window, code: int) -> CorruptError:
        batch = int(self._cursor[a.BATCH])
        expected = "records that fill the batch"
        return window.corrupt(batch, PROBLEMS[code], expected, "something else")
