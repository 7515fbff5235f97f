"""Threads that share a round begin on processors of their own, and keep none of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from keeplast.clock import SystemClock
from keeplast.run.local_runner import Workbench

ALLOWED = os.sched_getaffinity(0)


def begun_on(bench: Workbench, begun: set[int]) -> frozenset[int]:
    """Return where the calling thread may run during a piece; afterwards it may anywhere."""
    with bench.apart(begun):
        during = frozenset(os.sched_getaffinity(0))
    assert ALLOWED == os.sched_getaffinity(0)
    return during


def test_each_thread_does_its_first_piece_on_a_processor_that_no_other_has() -> None:
    threads = max(2, len(ALLOWED))
    bench, begun = Workbench(None, SystemClock(), threads), set[int]()
    # A pool each: one pool could do both pieces with one thread.
    pools = [ThreadPoolExecutor(1) for _ in ALLOWED]
    first = [pool.submit(begun_on, bench, begun).result() for pool in pools]
    later = [pool.submit(begun_on, bench, begun).result() for pool in pools]
    assert sorted(ALLOWED) == sorted(one for where in first for one in where)
    assert [frozenset(ALLOWED)] * len(pools) == later


def test_a_thread_stays_free_where_processors_are_left_over() -> None:
    bench = Workbench(None, SystemClock(), 1)
    assert frozenset(ALLOWED) == begun_on(bench, set())
