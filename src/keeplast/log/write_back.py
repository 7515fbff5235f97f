"""Asks the system to begin writing what lies in its cache, so that a flush finds less to do.

A large output is written while the next of it is made, instead of all at once by the flush that
the commit waits for. It is advice, never durability: nothing is waited for and no error is
reported here. What fails in the background is reported by the ``fsync`` that follows, which
nobody may leave out because of this. ``sync_file_range(2)``, of which Python has no function;
where a system has none, nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_WRITE = 2
"""``SYNC_FILE_RANGE_WRITE``: begin with what is dirty, wait for nothing."""


def _find_call() -> Callable[[int, int, int, int], int] | None:
    # On 32 bits some machines order the arguments in another way.
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call.restype = ctypes.c_int
    return call


_call = _find_call()


def begin(fd: int, position: int, length: int) -> None:
    """Have the bytes ``[position, position + length)`` of an open file written soon."""
    if _call is not None:
        _call(fd, position, length, _WRITE)
