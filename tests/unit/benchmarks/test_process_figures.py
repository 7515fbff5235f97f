"""Memory and processor time of other processes, as the benchmarks tell them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.process_figures import (
    PeakMemory,
    busiest_thread_seconds,
    thread_seconds,
)

HOLDS = "held = b'x' * (64 << 20); print(len(held), flush=True); input()"
HELD_BYTES = 64 << 20


def test_memory_of_a_child_is_seen_at_its_peak() -> None:
    with PeakMemory(os.getpid()) as memory:
        before = memory.peak_bytes
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + 30
        while memory.peak_bytes < HELD_BYTES + before and time.monotonic() < deadline:
            time.sleep(0.01)
        child.communicate(b"\n")
    assert memory.peak_bytes >= HELD_BYTES


def test_the_busiest_thread_counts() -> None:
    assert 3.0 == busiest_thread_seconds({1: 5.0, 2: 1.0}, {1: 6.0, 2: 4.0, 3: 2.5})
    assert busiest_thread_seconds({}, {}) is None
    assert os.getpid() in thread_seconds(os.getpid())
