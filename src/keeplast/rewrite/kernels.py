"""Makes compiled kernels ready, and tells who waits when they must be compiled first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from keeplast.columns import kernel
from keeplast.kernel_cache import cache_folder, cache_warning

_COMPLETE = "complete"


def load_kernels(say: Callable[[str], None] | None = None) -> None:
    """Make every kernel ready; ``say`` hears what is compiled, once a machine, and any warning.

    Workers and whoever embeds keeplast have nobody to say it to. Loading from the cache is not
    compiling, so nothing is said of it.
    """
    tell = _ignore if say is None else say
    warning = cache_warning()
    if warning is not None:
        tell(warning)
    folder = cache_folder()
    if is_compiled():
        kernel.load(_ignore)
        return
    names = kernel.names()
    tell(f"compiling {len(names)} kernels for this processor, once (about 15 s); kept in {folder}")
    kernel.load(lambda name: tell(f"compiling {name}"))
    with contextlib.suppress(OSError):
        _marker().write_text("\n".join(names) + "\n")


def is_compiled() -> bool:
    """Say whether the machine code of every kernel lies in the cache, for this processor."""
    return _marker().exists()


def _marker() -> Path:
    return cache_folder() / f"{_COMPLETE}-{kernel.processor()}"


def _ignore(name: str) -> None:
    """Say nothing."""
