"""Feeds the first pass with the keys of plain batches, without reading values that are large.

A value of 100 KB costs the copy out of the page cache and nothing else: the first pass does not
look at it. So where records reach far beyond a window, only a piece with the next key is read.
On a cold disk pieces would come one by one, so the whole range is fetched ahead all the same: the
second pass needs every byte of it, and checks every CRC.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.columns import key_stream as kernels
from keeplast.columns.kernel import OK
from keeplast.errors import CorruptError
from keeplast.log.files import LocalReadHandle, ReadHandle
from keeplast.rewrite.workspace import Workspace

PIECE_BYTES = 4 << 10
"""What is read for the next key, after a value that was stepped over."""
STEP_BYTES_MIN = 16 << 10
"""To step over less saves less than another call costs."""
AHEAD_BYTES = 4 << 20
ADVICE_BYTES = 512 << 10
"""The system takes only so much of one piece of advice."""


class KeyStream:
    """The rows of plain batches of one pass, appended to a workspace's held rows."""

    def __init__(
        self, workspace: Workspace, hash_key: tuple[int, int], first_dirty: int, last_offset: int
    ) -> None:
        """Start between two batches; offsets should ascend from ``last_offset``."""
        self._w = workspace
        self._k0, self._k1 = hash_key
        self._first_dirty = first_dirty
        self._state = kernels.new_stream_state()
        self._state[kernels.LAST_OFFSET] = last_offset
        self._state[kernels.LATEST] = -1

    @property
    def last_offset(self) -> int:
        """Return the last offset, or DISORDER when offsets did not ascend."""
        return int(self._state[kernels.LAST_OFFSET])

    @property
    def latest(self) -> int:
        """Return how far the dirty batches that were read reach, -1 when there was none."""
        return int(self._state[kernels.LATEST])

    @property
    def messages(self) -> int:
        """Return the records of the batches that were begun."""
        return int(self._state[kernels.MESSAGES])

    def read(
        self,
        handle: ReadHandle,
        path: Path,
        start: int,
        end: int,
        enough: Callable[[], None],
        progressed: Callable[[int], None],
    ) -> int:
        """Read ``[start, end)`` up to a batch that is not plain; returns where that begins.

        ``enough`` must take the rows that are held. CorruptError says no more than that the other
        way of reading will know what is wrong.
        """
        w = self._w
        window_bytes = w.buffers.window_bytes
        local = handle if isinstance(handle, LocalReadHandle) else None
        advised = position = start
        want = window_bytes
        while position < end:
            length = min(want, end - position)
            w.buffers.make_room(length)
            data = w.buffers.data
            if handle.pread_into(data.data[:length], position) < length:
                raise self._corrupt(path, position)
            done, w.rows_held, code = kernels.stream_keys(
                data, length, end - position, self._first_dirty, self._state, w.rows_held,
                self._k0, self._k1, w.offsets, w.hashes, w.flags,
            )  # fmt: skip
            position += done
            if done:
                progressed(done)
            if w.rows_held >= w.rows_wanted:
                enough()
            if code == kernels.REFUSED:
                break
            if code == kernels.BROKEN or position > end:
                raise self._corrupt(path, position)
            if code == kernels.CUT and not done:
                if length == end - position:
                    if self._state[kernels.LEFT]:
                        raise self._corrupt(path, position)
                    break
                want = 2 * length
            elif local is not None and done - length >= STEP_BYTES_MIN:
                want = PIECE_BYTES
                while advised < min(position + AHEAD_BYTES, end):
                    advised = max(advised, position)
                    local.read_ahead(advised, ADVICE_BYTES)
                    advised += ADVICE_BYTES
            elif code in (OK, kernels.CUT):
                want = min(2 * want, window_bytes)
        return position

    def _corrupt(self, path: Path, position: int) -> CorruptError:
        return CorruptError(
            "record does not fit its batch", path=str(path), position=position,
            expected="a key", found="something else",
        )  # fmt: skip
