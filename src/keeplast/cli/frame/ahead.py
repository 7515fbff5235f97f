"""A second process of a command: it compiles the kernels which a round will ask for last.

A command compiles a kernel when it is first called, one after the other, on one core. The process
begins at the other end of :data:`ROUND`, and both keep what they have compiled in one folder, so
they meet in the middle. Nothing depends on it: where it cannot be started, or dies, the command
compiles all of them itself. It writes nothing but into the cache.

Started as a program this module is that process. It lives until its standard input ends or nothing
is left to do; the command ends it when it has finished before.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from keeplast import kernel_cache

_COLUMNS = "keeplast.columns"

ROUND = tuple(
    f"{_COLUMNS}.{each}"
    for each in (
        "shortcuts.stream_keys",
        "retained.mark_indexed",
        "winners.sort_by_shard",
        "version_ranks.insert_noting",
        "shortcuts.skim_batches",
        "batches.find_bad_crc",
        "retained.judge_batches",
        "rows.parse_rows",
        "retained.judge_rows",
        "rebuild.describe_rebuilt",
        "rebuild.emit",
        "rebuild.index_batches",
        "batches.scan_batches",
    )
)
"""What a round of any plain log needs, in the order in which it does."""

STANDARD_INPUT = 0


@contextlib.contextmanager
def compiled_ahead(cores: int | None, names: Sequence[str] = ROUND) -> Iterator[None]:
    """Have another process compile ``names`` meanwhile, from the last one on.

    There is none where the folder has all of them or cannot keep any. Nor is there one for a
    command that shall have, or has, a single core (``cores`` None: what this process may use).
    """
    process = None
    kernel_cache.install()
    if (
        sys.executable
        and min(cores or 2, len(os.sched_getaffinity(0))) > 1
        and kernel_cache.cache_warning() is None
        and not all(kernel_cache.is_kept(name) for name in names)
    ):
        # Not what lies in the working directory, nor what numba or we would print.
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *names],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def compile_from_end(names: Sequence[str], is_wanted: Callable[[], bool]) -> None:
    """Compile, or load, one kernel after the other, as long as that ``is_wanted``."""
    from keeplast.columns import kernel

    if kernel_cache.cache_warning() is None:
        for name in reversed(names):
            if not is_wanted():
                return
            kernel.make_ready(name)


def _is_wanted() -> bool:
    """Return whether the command still has our input open; it never writes."""
    return not select.select([STANDARD_INPUT], [], [], 0)[0]


if __name__ == "__main__":
    compile_from_end(sys.argv[1:], _is_wanted)
