"""The one way a kernel is declared: typed, compiled once a machine, free of the interpreter lock.

A kernel is a plain function over arrays. It never raises: it returns a code from this module and
the position of what it refused, and the caller makes the :class:`CorruptError`. Array bounds are
not checked by the compiler, so every kernel checks each length that it reads from data before
it follows it.

Compilation is deferred until :func:`load` so that somebody can be told what is being compiled;
the compiler's cache folder is set by the engine before this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

OK = 0
BAD_SIZE = 1
BAD_MAGIC = 2
BAD_COUNT = 3
BAD_CODEC = 4
BAD_CRC = 5
BAD_RECORD = 6
BAD_CONTROL = 7
BAD_PRODUCER = 8
BAD_ORDER = 9
BAD_TIMESTAMP = 10
TOO_MANY = 11
BAD_LEGACY = 12

PROBLEMS = {
    BAD_SIZE: "batch size out of range",
    BAD_MAGIC: "unknown magic",
    BAD_COUNT: "record count and batch do not agree",
    BAD_CODEC: "unknown codec",
    BAD_CRC: "crc mismatch",
    BAD_RECORD: "record does not fit its batch",
    BAD_CONTROL: "control record key is invalid",
    BAD_PRODUCER: "producer fields contradict each other",
    BAD_ORDER: "offsets do not ascend inside the batch",
    BAD_TIMESTAMP: "timestamp out of range",
    BAD_LEGACY: "old-format message does not fit its set",
}
"""What each code means, in the words of the error it becomes."""

_KERNELS: list[tuple[str, Any, str]] = []


# No reference counts: without this, every call that is handed an array adds and subtracts one
# atomically, which costs more than most of these functions do. In return a kernel cannot make an
# array; whatever it fills is handed in.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}

inline = njit(forceinline=True, **_OPTIONS)
"""Declare a small function that kernels call; it becomes part of each of them."""

outline = njit(**_OPTIONS)
"""Declare a larger function that kernels call."""


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel with its exact argument types; it is compiled by :func:`load`."""

    def declare(function: Callable[..., Any]) -> Any:
        dispatcher = njit(cache=True, **_OPTIONS)(function)
        _KERNELS.append((f"{function.__module__}.{function.__name__}", dispatcher, signature))
        return dispatcher

    return declare


def names() -> list[str]:
    """Return the full names of all declared kernels, in order of declaration."""
    return [name for name, _, _ in _KERNELS]


def load(compiling: Callable[[str], None]) -> None:
    """Make every kernel ready; ``compiling(name)`` is called before each.

    Loads machine code from the cache folder where it is, compiles and stores it where not.
    """
    for name, dispatcher, signature in _KERNELS:
        if not dispatcher.signatures:
            compiling(name)
            dispatcher.compile(signature)
        dispatcher.disable_compile()
