"""Memory and processor time of other processes, as the benchmarks give them."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.process_figures import (
    PeakMemory,
    busiest_thread_seconds,
    thread_seconds,
)
from tests.support.waiting import wait_until

STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
HOLDS = "held = b'x' * (64 << 20); print(len(held), flush=True); input()"
HELD_BYTES = 64 << 20


def test_memory_of_a_child_is_seen_at_its_peak() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS, HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        with PeakMemory(parent.pid) as memory:
            wait_until(lambda: memory.peak_bytes >= HELD_BYTES, by=lambda: parent.poll() is None)
    finally:
        parent.communicate(b"\n")


def test_the_busiest_thread_counts() -> None:
    assert 3.0 == busiest_thread_seconds({1: 5.0, 2: 1.0}, {1: 6.0, 2: 4.0, 3: 2.5})
    assert busiest_thread_seconds({}, {}) is None
    assert os.getpid() in thread_seconds(os.getpid())
