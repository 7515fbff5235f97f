"""The one way a kernel is declared: typed, compiled once a machine, free of the interpreter lock.

A kernel is a plain function over arrays. It never raises: it returns a code from this module and
the position of what it refused, and the caller makes the :class:`CorruptError`. Array bounds are
not checked by the compiler, so every kernel checks each length that it reads from data before
it follows it.

Compilation is deferred until :func:`load` so that somebody can be told what is being compiled;
the compiler's cache folder is set by :mod:`keeplast.columns` before this module is imported.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Self

from numba import config, njit
from numba.core.registry import cpu_target

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


class KernelLocator:
    """Tells numba where a kernel is kept: in the cache folder, wherever its source lies.

    Numba's own locators put a digest of the source's path between, so that machine code would be
    lost with every move of the package. The folder is named by the content of all sources, so
    neither their path nor their age has to say anything more.
    """

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._py_file = source
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> Self:
        """Return the locator of ``function``, as numba asks for it."""
        return cls(function, source)

    def ensure_cache_path(self) -> None:
        """Do nothing: whoever chose the folder has made it."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(config.CACHE_DIR)  # type: ignore[attr-defined]

    def get_source_stamp(self) -> str:
        """Return what changes with the source and not with the folder: nothing does."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart."""
        return str(self._line)


def processor() -> str:
    """Return the name of the processor that kernels are compiled for, with its features."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{zlib.crc32(f'{triple} {features}'.encode()):08x}"


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel with its exact argument types; it is compiled by :func:`load`."""

    def declare(function: Callable[..., Any]) -> Any:
        # A setting of the whole process, but only read here, when the cache of a function is made.
        before = config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
        if config.CACHE_DIR:  # type: ignore[attr-defined]
            locator = f"{__name__}.{KernelLocator.__name__}"
            config.CACHE_LOCATOR_CLASSES = locator  # type: ignore[attr-defined]
        try:
            dispatcher = njit(cache=True, **_OPTIONS)(function)
        finally:
            config.CACHE_LOCATOR_CLASSES = before  # type: ignore[attr-defined]
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
