"""Work that must not take long whatever it is given: damaged lengths, counts and chains.

Measured is the processor time of this process, so that a busy machine makes no failure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from keeplast.columns import kernel

SECONDS_MAX = 10.0
"""For an input of some kilobytes: a hundred times and more of what it takes."""


@contextmanager
def bounded_work() -> Iterator[None]:
    """AssertionError when the block takes more than ``SECONDS_MAX`` of processor time."""
    kernel.load()  # to compile them takes longer
    started = time.process_time()
    yield
    assert time.process_time() - started < SECONDS_MAX
