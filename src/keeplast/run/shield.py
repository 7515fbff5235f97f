"""Holds signals back while something is done that must not be left half done.

A signal whose handler raises would end a swap between two renames. That loses nothing, but leaves
the partition for the next start-up to finish. Handlers run in the main thread only, so that is
where they are put aside; what arrived is delivered when the block ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Let neither SIGINT nor SIGTERM interrupt the block; they take effect at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    # A handler that was not set from Python cannot be put back, and raises nothing either.
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not None]
    previous = {
        number: signal.signal(number, lambda got, _: arrived.append(got)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for got in dict.fromkeys(arrived):
            signal.raise_signal(got)
